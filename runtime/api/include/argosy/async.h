#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "argosy/bridge.h"
#include "argosy/object_ref.h"

namespace argosy {

template <class T>
class Async;

// For co_await: lets this much time pass.
struct SleepFor {
  explicit SleepFor(Timeout time) : time(time) {}
  Timeout time;
};

namespace internal {

// Several refs or one: waits without a thread, then gives the values.
template <class Refs>
struct AwaitRefs {
  explicit AwaitRefs(Refs refs) : refs(std::move(refs)) {}

  bool await_ready() const { return !CanSuspend() || AllReady(); }
  void await_suspend(std::coroutine_handle<> handle) const { ResumeWhenReady(Cells(), [handle] { handle.resume(); }); }
  auto await_resume() const {
    if (CanSuspend() && !AllReady()) ThrowCancelled();
    return Get(refs);
  }

  std::vector<CellPtr> Cells() const {
    if constexpr (RefTarget<Refs>::kIsRef) {
      return {Checked(refs.cell())};
    } else {
      std::vector<CellPtr> cells;
      for (const auto& ref : refs) cells.push_back(Checked(ref.cell()));
      return cells;
    }
  }
  bool AllReady() const {
    for (const CellPtr& cell : Cells()) {
      if (!IsReady(cell)) return false;
    }
    return true;
  }

  Refs refs;
};

struct AwaitTime {
  explicit AwaitTime(Timeout time) : time(time) {}

  bool await_ready() const {
    if (CanSuspend()) return false;
    SleepHere(time);
    return true;
  }
  void await_suspend(std::coroutine_handle<> handle) const { ResumeAfter(time, [handle] { handle.resume(); }); }
  void await_resume() const {
    if (IsCancelledHere()) ThrowCancelled();
  }
  Timeout time;
};

// What every Async's promise has: who goes on when it is done (a coroutine that awaits it, or the runtime).
struct AsyncPromise {
  std::exception_ptr thrown;
  std::coroutine_handle<> awaiting;
  std::function<void()> on_done;

  struct Final {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> handle) const noexcept {
      if (handle.promise().awaiting) return handle.promise().awaiting;
      // It may destroy the coroutine, and this with it.
      if (std::function<void()> done = std::move(handle.promise().on_done)) done();
      return std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() noexcept { return {}; }
  Final final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { thrown = std::current_exception(); }

  template <class T>
  AwaitRefs<ObjectRef<T>> await_transform(const ObjectRef<T>& ref) { return AwaitRefs<ObjectRef<T>>(ref); }
  template <class T>
  AwaitRefs<std::vector<ObjectRef<T>>> await_transform(const std::vector<ObjectRef<T>>& refs) {
    return AwaitRefs<std::vector<ObjectRef<T>>>(refs);
  }
  AwaitTime await_transform(const SleepFor& sleep) { return AwaitTime(sleep.time); }
  template <class T>
  Async<T>&& await_transform(Async<T>&& other) { return std::move(other); }
};

template <class T>
struct AsyncResult : AsyncPromise {
  std::optional<T> value;
  template <class U>
  void return_value(U&& returned) { value.emplace(std::forward<U>(returned)); }
  T Take() {
    if (thrown) std::rethrow_exception(thrown);
    return std::move(*value);
  }
};
template <>
struct AsyncResult<void> : AsyncPromise {
  void return_void() noexcept {}
  void Take() {
    if (thrown) std::rethrow_exception(thrown);
  }
};

}  // namespace internal

// What an actor's method returns that waits without holding a thread: while it is in co_await, other calls of the actor run.
//
//   argosy::Async<int> Total(argosy::ObjectRef<int> a, argosy::Actor<Other> other) {
//     int x = co_await a;
//     co_return x + co_await other.Call<&Other::Value>();
//   }
//
// co_await takes an ObjectRef, a vector of them, SleepFor(1s), or another Async. Its caller gets an ObjectRef<int>. A plain task may return
// one too: it waits on its thread.
//
// Thread:   those of the method's concurrency group: with one thread (as by default) no two parts of the actor's methods run at a time.
// Lifetime: parameters live as long as the call.
// Failure:  what the ref failed with is thrown at co_await; CancelledError when the call is cancelled there.
template <class T>
class Async {
 public:
  struct promise_type : internal::AsyncResult<T> {
    Async get_return_object() { return Async(std::coroutine_handle<promise_type>::from_promise(*this)); }
  };

  Async() = default;
  Async(Async&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Async& operator=(Async&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Async() {
    if (handle_) handle_.destroy();
  }

  // As the operand of co_await: runs it, and goes on with its result.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  T await_resume() { return handle_.promise().Take(); }

  // For the runtime: runs it until its first wait, `on_done` when it has a result.
  void Start(std::function<void()> on_done) {
    handle_.promise().on_done = std::move(on_done);
    handle_.resume();
  }
  T Take() { return handle_.promise().Take(); }

 private:
  explicit Async(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace argosy
