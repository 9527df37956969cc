#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"
#include "runtime/worker/stream.h"

namespace argosy::worker {

// Each concurrent call of an actor has a thread.
inline constexpr int kActorConcurrencyMax = 1000;
// Calls of an actor that have started and have no result yet, because they run or wait in co_await; no more are started meanwhile.
inline constexpr int kUnfinishedMax = 2000;

struct Lane;

// One task, call or constructor that this process was asked to run.
struct Execution : std::enable_shared_from_this<Execution> {
  enum Kind { kTask, kCall, kConstructor };
  Kind kind = kTask;
  wire::TaskSpec spec;                       // constructors: function and arguments only
  std::vector<wire::Call> answers;           // whom to answer (loop only); more than one after a resend
  std::atomic<bool> cancelled = false;
  std::atomic<bool> started = false;
  // For whoever looks on (core_observe.cc). Since the epoch; 0: it has not started.
  std::atomic<int64_t> started_us = 0;
  int64_t ended_us = 0;
  uint64_t out_begin = 0;                    // bytes of this process's logs, as the next three
  uint64_t out_end = 0;
  uint64_t error_begin = 0;
  uint64_t error_end = 0;
  bool reported = false;                     // that it runs (loop only)
  StreamProgress stream;                     // generators
  std::optional<wire::ErrorInfo> refusal;    // why it cannot run, told when its turn comes
  Lane* lane = nullptr;                      // where it runs
  std::function<void()> go_on;               // a coroutine's next part, while it stands in its lane
  std::function<void()> wake;                // ends its wait, once (loop only); null when it does not wait
};

// A queue and the threads that serve it: an actor has one for each concurrency group and one for the rest, other workers have one.
struct Lane {
  std::string name;
  int threads = 1;
  // Under the core's queue_mutex_.
  std::deque<std::shared_ptr<Execution>> waiting;    // not started
  std::deque<std::shared_ptr<Execution>> resumable;  // coroutines whose wait is over
  bool resumed_last = false;                         // they take turns
  std::atomic<size_t> waiting_count = 0;
  std::atomic<size_t> resumable_count = 0;
};

}  // namespace argosy::worker
