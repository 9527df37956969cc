#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "runtime/base/unique_function.h"

namespace argosy::async {

// One event loop: posted functions, timers and descriptors. Usually one thread calls Run; a worker's threads take turns with RunFor
// (the loop is a role there: see runtime/worker), and then "on the loop" means "by whoever runs it".
//
// Thread:   Post and Stop from anywhere; the rest on the loop or before it runs.
// Lifetime: outlives every Timer and FdWatch made on it.
// Failure:  none; what a posted function throws ends the process.
class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs on the loop, later, in posting order.
  void Post(UniqueFunction<void()> function);

  // Until Stop.
  void Run();
  // One batch: waits up to `timeout` for something to do, then does what is ready. Returns the number of handlers run.
  size_t RunFor(absl::Duration timeout);
  // What is ready now, without waiting.
  size_t Poll();
  // Run and RunFor return soon; later calls of them work again after Restart.
  void Stop();
  void Restart();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Calls a function on the loop once or again and again. Destroying or re-arming it cancels what was pending.
class Timer {
 public:
  explicit Timer(Loop& loop);
  ~Timer();
  void After(absl::Duration delay, std::function<void()> function);
  // First after one period. A late call is not made up for.
  void Every(absl::Duration period, std::function<void()> function);
  void Cancel();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Tells when a descriptor can be read or written. Does not own it: Stop (or destroy) before closing the descriptor.
class FdWatch {
 public:
  FdWatch(Loop& loop, int fd);
  ~FdWatch();
  // Called each time it becomes readable, until it returns false. The callee reads until EAGAIN or as much as it wants. The loop holds
  // `keep_alive` while it waits: an object that owns this watch stays alive by it, without a cycle of references.
  void OnReadable(std::function<bool()> function, std::shared_ptr<void> keep_alive = nullptr);
  // Called once when it can be written.
  void OnceWritable(std::function<void()> function);
  void Stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Functions that must have run before something may end: each Enter is matched by dropping its token.
class Gate {
 public:
  using Pass = std::shared_ptr<void>;
  // Null once closed.
  Pass Enter();
  // `empty` runs when the last pass is dropped (at once when there is none). No pass is given after this.
  void Close(std::function<void()> empty);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace argosy::async
