#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/async/loop.h"

namespace argosy::store {

// Does blocking work in order on a thread of its own and tells the loop when it is done.
//
// Thread:   Run from anywhere.
// Lifetime: the loop outlives it. Destroying it waits for the work that runs; what waits is dropped, and `done` may still be posted.
// Failure:  none of its own.
class WorkThread {
 public:
  explicit WorkThread(async::Loop& loop);
  ~WorkThread();

  // `work` runs on the thread, then `done` on the loop.
  void Run(std::function<void()> work, std::function<void()> done);
  size_t waiting() const;

 private:
  void Work();

  async::Loop& loop_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Item {
    std::function<void()> work;
    std::function<void()> done;
  };
  std::deque<Item> items_;   // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::thread thread_;
};

}  // namespace argosy::store
