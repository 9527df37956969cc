#pragma once

#include <coroutine>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

namespace argosy {

// What a function returns that yields its values one by one. As a task or an actor's method its caller gets a Stream, and reads values
// while the function still runs.
//
//   argosy::Generator<int> CountTo(int n) {
//     for (int i = 1; i <= n; ++i) co_yield i;
//   }
//
// Thread:   the one that calls Next.
// Failure:  Next throws what the function throws; it is at its end then.
template <class T>
class Generator {
 public:
  struct promise_type {
    const T* value = nullptr;
    std::exception_ptr thrown;

    Generator get_return_object() { return Generator(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(const T& yielded) noexcept {
      value = std::addressof(yielded);
      return {};
    }
    std::suspend_always yield_value(T&& yielded) noexcept {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
      static_assert(!std::is_aggregate_v<T>, "co_yield: give the aggregate a name first; GCC 12 destroys a temporary one twice");
#endif
      value = std::addressof(yielded);
      return {};
    }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { thrown = std::current_exception(); }
    template <class U>
    std::suspend_never await_transform(U&&) {
      static_assert(!std::is_same_v<U, U>, "co_await inside a Generator: use argosy::Get");
      return {};
    }
  };

  Generator() = default;
  Generator(Generator&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Generator& operator=(Generator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Generator() {
    if (handle_) handle_.destroy();
  }

  // Runs to the next co_yield. False at the end.
  bool Next() {
    if (!handle_ || handle_.done()) return false;
    handle_.resume();
    if (std::exception_ptr thrown = std::exchange(handle_.promise().thrown, nullptr)) std::rethrow_exception(thrown);
    return !handle_.done();
  }
  // What it yielded, until the next Next.
  const T& value() const { return *handle_.promise().value; }

 private:
  explicit Generator(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

namespace internal {
template <class T>
struct GeneratorItem { static constexpr bool kIsGenerator = false; using Type = void; };
template <class T>
struct GeneratorItem<Generator<T>> { static constexpr bool kIsGenerator = true; using Type = T; };
}  // namespace internal

}  // namespace argosy
