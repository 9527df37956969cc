#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"

namespace argosy::worker {

// Each concurrent call of an actor has a thread.
inline constexpr int kActorConcurrencyMax = 1000;

// One task, call or constructor that this process was asked to run.
struct Execution {
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
  int waits = 0;                             // nested waits of its thread (loop only)
};

}  // namespace argosy::worker
