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
  int waits = 0;                             // nested waits of its thread (loop only)
};

}  // namespace argosy::worker
