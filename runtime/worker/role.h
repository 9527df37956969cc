#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/unique_function.h"

namespace argosy::worker {

// Who runs the worker's loop. The loop is a role, not a thread: whoever waits for something takes it and polls the sockets itself, so that
// a reply is handled by the thread that wants it. When nobody has had the role for a while (user code computes), a standby thread takes
// it until somebody asks for it back.
//
// Thread:   any. What runs "on the loop" runs on the thread that leads.
// Lifetime: Stop before the loop goes.
// Failure:  none.
class LoopRole {
 public:
  // `before_sleep` runs on the loop whenever its leader is about to wait for events; `after_operation` after operations that ran on the
  // spot. They write what has gathered.
  struct Hooks { std::function<void()> before_sleep; std::function<void()> after_operation; };
  explicit LoopRole(async::Loop& loop, Hooks hooks = {});
  ~LoopRole();

  // The calling thread leads (it is inside a handler or inside Do).
  bool HeldByMe() const;

  // Runs `operation` on the loop: here and now when the role is free, else soon by its leader. Operations of one thread keep their order.
  void Do(UniqueFunction<void()> operation);

  // The same, though not at once: with the next operation, by the next leader, or when the standby takes the role.
  void DoLater(UniqueFunction<void()> operation);

  // Until `done` or the deadline, leading or following. `done` reads atomics only, and becomes true by something that ran on the loop.
  // Must not be called on the loop. Returns done().
  bool Await(const std::function<bool()>& done, absl::Time deadline);

  void StartStandby();
  // Joins the standby; nobody may wait any more.
  void Stop();

 private:
  bool TryTake();
  void Take();
  void Release();
  void Lead(const std::function<bool()>& done, absl::Time deadline, bool standby);
  // How many wait then.
  size_t Queue(UniqueFunction<void()> operation);
  void Drain();
  void DrainOnTheSpot();
  void RunStandby();

  async::Loop& loop_;
  Hooks hooks_;

  std::mutex mutex_;
  std::condition_variable followers_;
  std::condition_variable standby_wakes_;
  bool led_ = false;
  bool led_by_standby_ = false;
  bool standby_sleeps_ = false;
  bool stopping_ = false;
  std::atomic<bool> stop_standby_ = false;
  uint64_t releases_ = 0;
  std::atomic<int> waiting_ = 0;

  std::mutex operations_mutex_;
  std::vector<UniqueFunction<void()>> operations_;
  std::vector<UniqueFunction<void()>> batch_;   // being run; leader only
  std::atomic<bool> has_operations_ = false;

  std::thread standby_;
};

}  // namespace argosy::worker
