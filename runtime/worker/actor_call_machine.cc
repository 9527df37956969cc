#include "runtime/worker/actor_call_machine.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::worker {

void ActorCallMachine::Resolve(uint64_t incarnation_min, Effects& effects) {
  state_ = State::kResolving;
  wanted_incarnation_ = incarnation_min;
  effects.resolve = incarnation_min;
}

void ActorCallMachine::Submit(TaskId task, Effects& effects) {
  if (state_ == State::kDead) {
    effects.failures.push_back({task, death_});
    return;
  }
  calls_.emplace(task, Call());
  waiting_.push_back(task);
  if (state_ == State::kUnknown) Resolve(0, effects);
}

void ActorCallMachine::ArgumentsReady(TaskId task, Effects& effects) {
  auto it = calls_.find(task);
  if (it == calls_.end()) return;
  it->second.ready = true;
  Pump(effects);
}

// Sends, in order, every call whose turn it is.
void ActorCallMachine::Pump(Effects& effects) {
  if (state_ != State::kAlive) return;
  while (!waiting_.empty()) {
    TaskId task = waiting_.front();
    Call& call = calls_.at(task);
    if (!call.ready) return;
    call.sent = true;
    call.sequence = next_sequence_++;
    waiting_.pop_front();
    sent_.push_back(task);
    effects.sends.push_back({task, incarnation_, call.sequence, call.attempt});
  }
}

void ActorCallMachine::Resolved(const wire::ActorInfo& info, Effects& effects) {
  if (state_ != State::kResolving) return;
  max_task_retries_ = info.max_task_retries;
  switch (info.state) {
    case wire::ActorInfo::kDead: {
      wire::ErrorInfo error;
      error.kind = wire::ErrorInfo::kActorDied;
      error.message = fmt::format("actor {} is dead: {}", readable_.empty() ? info.class_name : readable_,
                                  info.death_reason.empty() ? "no reason is known" : info.death_reason);
      return Die(error, effects);
    }
    case wire::ActorInfo::kAlive:
      if (info.incarnation >= wanted_incarnation_) {
        if (sent_are_lost_) SettleSent(true, last_death_, effects);
        if (info.incarnation != incarnation_) next_sequence_ = 0;
        incarnation_ = info.incarnation;
        worker_ = info.worker;
        state_ = State::kAlive;
        return Pump(effects);
      }
      [[fallthrough]];
    case wire::ActorInfo::kPending:
    case wire::ActorInfo::kRestarting:
      if (sent_are_lost_) SettleSent(true, last_death_, effects);
      return Resolve(wanted_incarnation_, effects);
  }
}

void ActorCallMachine::ResolveFailed(const wire::ErrorInfo& error, Effects& effects) {
  if (state_ != State::kDead) Die(error, effects);
}

void ActorCallMachine::Broken(uint64_t incarnation, Effects& effects) {
  if (state_ != State::kAlive || incarnation != incarnation_) return;
  state_ = State::kAskingFate;
  effects.ask_fate = true;
}

void ActorCallMachine::Stale(uint64_t incarnation, Effects& effects) {
  if (state_ != State::kAlive || incarnation != incarnation_) return;
  sent_are_lost_ = true;
  last_death_ = "the actor restarted";
  Resolve(incarnation_ + 1, effects);
}

void ActorCallMachine::Fate(uint64_t incarnation, bool dead, const std::string& reason, Effects& effects) {
  if (state_ != State::kAskingFate || incarnation != incarnation_) return;
  if (dead) {
    sent_are_lost_ = true;
    last_death_ = reason;
    return Resolve(incarnation_ + 1, effects);
  }
  // The same process is still there: the same numbers again; it drops what it has seen.
  state_ = State::kAlive;
  for (TaskId task : sent_) {
    const Call& call = calls_.at(task);
    effects.sends.push_back({task, incarnation_, call.sequence, call.attempt});
  }
  Pump(effects);
}

void ActorCallMachine::SettleSent(bool restarts, const std::string& reason, Effects& effects) {
  sent_are_lost_ = false;
  std::vector<TaskId> lost;
  std::deque<TaskId> again;
  for (TaskId task : std::exchange(sent_, {})) {
    Call& call = calls_.at(task);
    if (max_task_retries_ < 0 || call.retries_used < max_task_retries_) {
      ++call.retries_used;
      ++call.attempt;
      call.sent = false;
      again.push_back(task);
    } else {
      lost.push_back(task);
    }
  }
  waiting_.insert(waiting_.begin(), again.begin(), again.end());
  for (TaskId task : lost) {
    wire::ErrorInfo error;
    error.kind = restarts ? wire::ErrorInfo::kActorUnavailable : wire::ErrorInfo::kActorDied;
    error.message = fmt::format("actor {} died while the call was in flight ({}); it is restarting, and the call may not be repeated "
                                "(max_task_retries = {})", readable_, reason, max_task_retries_);
    effects.failures.push_back({task, error});
    calls_.erase(task);
  }
}

void ActorCallMachine::Die(const wire::ErrorInfo& error, Effects& effects) {
  state_ = State::kDead;
  death_ = error;
  for (TaskId task : sent_) effects.failures.push_back({task, error});
  for (TaskId task : waiting_) effects.failures.push_back({task, error});
  sent_.clear();
  waiting_.clear();
  calls_.clear();
}

void ActorCallMachine::Answered(TaskId task) {
  if (calls_.erase(task) == 0) return;
  // Answers come in order, nearly always: the oldest is at the front.
  if (!sent_.empty() && sent_.front() == task) sent_.pop_front();
  else if (std::erase(sent_, task) == 0) std::erase(waiting_, task);
}

bool ActorCallMachine::Cancel(TaskId task, Effects& effects) {
  auto it = calls_.find(task);
  if (it == calls_.end() || it->second.sent) return false;
  calls_.erase(it);
  std::erase(waiting_, task);
  Pump(effects);
  return true;
}

std::optional<uint32_t> ActorCallMachine::AttemptOf(TaskId task) const {
  auto it = calls_.find(task);
  if (it == calls_.end()) return std::nullopt;
  return it->second.attempt;
}

bool ActorCallMachine::IsSent(TaskId task) const {
  auto it = calls_.find(task);
  return it != calls_.end() && it->second.sent;
}

}  // namespace argosy::worker
