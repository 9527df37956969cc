#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/id_map.h"
#include "runtime/wire/messages.h"

namespace argosy::worker {

// One caller's calls to one actor: in order, numbered from 0 in each incarnation, sent again with the same numbers after a broken
// connection, and moved to the next incarnation (or failed) after a death.
//
// Thread:   the worker loop; pure state.
// Lifetime: while this process has called the actor.
// Failure:  events about older incarnations are ignored.
class ActorCallMachine {
 public:
  struct Send { TaskId task; uint64_t incarnation = 0; uint64_t sequence = 0; uint32_t attempt = 0; };
  struct Fail { TaskId task; wire::ErrorInfo error; };
  struct Effects {
    std::optional<uint64_t> resolve;       // ask where it is, at least this incarnation
    bool ask_fate = false;                 // is the worker of the current incarnation dead?
    std::vector<Send> sends;
    std::vector<Fail> failures;
  };

  explicit ActorCallMachine(std::string readable) : readable_(std::move(readable)) {}

  void Submit(TaskId task, Effects& effects);
  // Its arguments are there. Later calls wait for earlier ones.
  void ArgumentsReady(TaskId task, Effects& effects);
  void Resolved(const wire::ActorInfo& info, Effects& effects);
  // The question where it is could not be answered; `error` is final.
  void ResolveFailed(const wire::ErrorInfo& error, Effects& effects);
  // The creation was refused.
  void Refused(const wire::ErrorInfo& error, Effects& effects) { ResolveFailed(error, effects); }
  // A call of that incarnation could not be delivered or answered.
  void Broken(uint64_t incarnation, Effects& effects);
  // The callee says that it is another incarnation.
  void Stale(uint64_t incarnation, Effects& effects);
  void Fate(uint64_t incarnation, bool dead, const std::string& reason, Effects& effects);
  void Answered(TaskId task);
  // True when it was not sent and is dropped.
  bool Cancel(TaskId task, Effects& effects);

  bool HasCall(TaskId task) const { return calls_.contains(task); }
  bool IsSent(TaskId task) const;
  std::optional<uint32_t> AttemptOf(TaskId task) const;
  const wire::WorkerAddress& worker() const { return worker_; }
  uint64_t incarnation() const { return incarnation_; }
  size_t pending() const { return calls_.size(); }

 private:
  enum class State { kUnknown, kResolving, kAlive, kAskingFate, kDead };
  struct Call {
    bool ready = false;
    bool sent = false;
    uint64_t sequence = 0;
    uint32_t attempt = 0;
    int retries_used = 0;
  };

  void Resolve(uint64_t incarnation_min, Effects& effects);
  void Pump(Effects& effects);
  // What was sent to a dead incarnation is sent again if it may be, else fails.
  void SettleSent(bool restarts, const std::string& reason, Effects& effects);
  void Die(const wire::ErrorInfo& error, Effects& effects);

  std::string readable_;
  State state_ = State::kUnknown;
  uint64_t incarnation_ = 0;
  uint64_t wanted_incarnation_ = 0;
  wire::WorkerAddress worker_;
  int max_task_retries_ = 0;
  uint64_t next_sequence_ = 0;
  std::string last_death_;
  bool sent_are_lost_ = false;
  wire::ErrorInfo death_;
  std::deque<TaskId> sent_;                       // unanswered, oldest first: all of these are older than
  std::deque<TaskId> waiting_;                    // those whose turn has not come
  IdMap<TaskId, Call> calls_;
};

}  // namespace argosy::worker
