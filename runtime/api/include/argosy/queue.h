#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "argosy/actor.h"
#include "argosy/context.h"

namespace argosy {

struct QueueOptions {
  uint64_t size_max = 1000;      // items; Put waits when it is full
  ActorOptions actor;            // of the process that holds the items: its name, where it runs
};

namespace internal {

// Holds a queue's items. Put and Take wait on threads of their own; more than kQueueWaiters of them stand in line.
inline constexpr int kQueueWaiters = 32;

template <class T>
class QueueActor {
 public:
  explicit QueueActor(uint64_t size_max) : size_max_(size_max) {}

  bool Put(const T& item, double wait_seconds) {
    std::unique_lock lock(mutex_);
    if (!WaitFor(lock, wait_seconds, [&] { return items_.size() < size_max_; })) return false;
    items_.push_back(item);
    changed_.notify_all();
    return true;
  }
  std::optional<T> Take(double wait_seconds) {
    std::unique_lock lock(mutex_);
    if (!WaitFor(lock, wait_seconds, [&] { return !items_.empty(); })) return std::nullopt;
    std::optional<T> item = std::move(items_.front());
    items_.pop_front();
    changed_.notify_all();
    return item;
  }
  uint64_t Size() {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  // In short turns, so that a call that was cancelled takes nothing.
  template <class Done>
  bool WaitFor(std::unique_lock<std::mutex>& lock, double seconds, Done done) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
      if (IsCancelledHere()) ThrowCancelled();
      if (done()) return true;
      auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return false;
      changed_.wait_until(lock, std::min<std::chrono::steady_clock::time_point>(
          now + std::chrono::milliseconds(50), std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline)));
    }
  }

  const uint64_t size_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
};

}  // namespace internal

// A bounded first-in-first-out queue that any process of the cluster can put into and take from. A plain value: pass it to tasks and actors.
//
//   argosy::Queue<int> queue = argosy::MakeQueue<int>({.size_max = 10});
//   queue.Put(1);                              // waits while it is full
//   std::optional<int> item = queue.Take(1s);  // none when nothing came within a second
//
// Thread:   any.
// Lifetime: lives in an actor; Shutdown, or the end of the job, ends it with the items in it.
// Failure:  ActorDiedError when its process is dead. An item is lost with a process that dies, or is
//           cancelled, while the item is on its way to it.
template <class T>
class Queue {
 public:
  Queue() = default;
  explicit Queue(Actor<internal::QueueActor<T>> actor) : actor_(actor) {}

  // False when it stayed full for so long.
  bool Put(const T& item, Timeout timeout = {}) const {
    return InTurns(timeout, [&](double seconds) { return actor_.template Call<&internal::QueueActor<T>::Put>(item, seconds); });
  }
  // None when it stayed empty for so long.
  std::optional<T> Take(Timeout timeout = {}) const {
    return InTurns(timeout, [&](double seconds) { return actor_.template Call<&internal::QueueActor<T>::Take>(seconds); });
  }
  uint64_t Size() const { return Get(actor_.template Call<&internal::QueueActor<T>::Size>()); }
  void Shutdown() const { Kill(actor_); }

  const Actor<internal::QueueActor<T>>& actor() const { return actor_; }

 private:
  // A wait without end is made of turns, so that the waits of processes that died end.
  template <class Call>
  static auto InTurns(Timeout timeout, Call call) {
    constexpr absl::Duration kTurn = absl::Seconds(5);
    absl::Time deadline = timeout.IsInfinite() ? absl::InfiniteFuture() : absl::Now() + timeout.duration();
    for (;;) {
      absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      auto ref = call(absl::ToDoubleSeconds(std::min(left, kTurn)));
      try {
        auto result = Get(ref);
        if (result || left <= kTurn) return result;
      } catch (const CancelledError&) {
        Cancel(ref);   // so that it takes nothing any more
        throw;
      }
    }
  }

  Actor<internal::QueueActor<T>> actor_;
};

template <class T>
Queue<T> MakeQueue(QueueOptions options = {}) {
  using Holder = internal::QueueActor<T>;
  if (options.size_max < 1) throw RuntimeError("size_max is 0; it must be 1 or more");
  options.actor.concurrency_groups = {{"put", internal::kQueueWaiters, Methods<&Holder::Put>()},
                                      {"take", internal::kQueueWaiters, Methods<&Holder::Take>()}};
  return Queue<T>(Spawn<Holder>(options.actor, options.size_max));
}

template <class T>
struct Codec<Queue<T>> {
  static void Encode(Encoder& e, const Queue<T>& v) { e.Write(v.actor()); }
  static void Decode(Decoder& d, Queue<T>& v) {
    Actor<internal::QueueActor<T>> actor;
    d.Read(actor);
    v = Queue<T>(actor);
  }
};

}  // namespace argosy
