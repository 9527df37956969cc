#include "runtime/worker/submit_machine.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::worker {

SubmitMachine::ShapeId SubmitMachine::Shape(const std::string& key) {
  auto [it, is_new] = shape_ids_.try_emplace(key, static_cast<ShapeId>(shapes_.size()));
  if (is_new) shapes_.emplace_back().requests_allowed = limits_.requests_first;
  return it->second;
}

int SubmitMachine::Depth(const LeaseState& lease) const {
  absl::Duration average = std::min(lease.average, shapes_[lease.shape].average);
  if (lease.recalled) return 0;
  if (lease.shy || average >= limits_.pipeline_time) return 1;
  if (average <= absl::ZeroDuration()) return limits_.pipeline_max;
  return static_cast<int>(std::clamp<int64_t>(limits_.pipeline_time / average, 1, limits_.pipeline_max));
}

void SubmitMachine::PushNext(LeaseId id, absl::Time now, Effects& effects) {
  LeaseState& lease = leases_.at(id);
  ShapeState& shape = shapes_[lease.shape];
  TaskId task = shape.waiting.front();
  shape.waiting.pop_front();
  TaskState& state = tasks_.at(task);
  state.lease = id;
  if (lease.pushed.empty()) lease.started = now;
  lease.pushed.push_back(task);
  effects.pushes.push_back({id, task, state.attempt});
}

// Spreads what waits over the leases, then asks for more leases or calls requests off.
void SubmitMachine::Fill(ShapeId shape_id, absl::Time now, Effects& effects) {
  ShapeState& shape = shapes_[shape_id];
  while (!shape.waiting.empty()) {
    LeaseId best;
    size_t best_load = 0;
    for (LeaseId id : shape.leases) {
      const LeaseState& lease = leases_.at(id);
      size_t load = lease.pushed.size();
      if (load >= static_cast<size_t>(Depth(lease))) continue;
      if (best.IsNil() || load < best_load) {
        best = id;
        best_load = load;
      }
    }
    if (best.IsNil()) break;
    PushNext(best, now, effects);
  }
  size_t wanted = std::min(shape.waiting.size(), static_cast<size_t>(shape.requests_allowed));
  if (now >= shape.request_not_before) {
    while (shape.requests.size() < wanted) {
      uint64_t request = next_request_++;
      shape.requests.push_back(request);
      requests_.emplace(request, shape_id);
      effects.requests.push_back({shape_id, request});
    }
  }
  while (shape.requests.size() > wanted) {
    effects.cancelled_requests.push_back(shape.requests.back());
    requests_.erase(shape.requests.back());
    shape.requests.pop_back();
  }
}

void SubmitMachine::Wait(TaskId task, bool in_front) {
  const Asked& asked = tasks_.at(task).asked;
  std::deque<TaskId>& waiting = shapes_[asked.shape].waiting;
  auto priority = [&](TaskId other) { return tasks_.at(other).asked.priority; };
  if (in_front) {
    auto behind = [&](int mine, TaskId other) { return priority(other) <= mine; };
    waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), asked.priority, behind), task);
  } else if (waiting.empty() || priority(waiting.back()) >= asked.priority) {
    waiting.push_back(task);
  } else {
    auto behind = [&](int mine, TaskId other) { return priority(other) < mine; };
    waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), asked.priority, behind), task);
  }
}

void SubmitMachine::Submit(TaskId task, const Asked& asked, absl::Time now, Effects& effects) {
  TaskState state;
  state.asked = asked;
  state.retries_left = asked.retries_max;
  state.attempt = asked.attempt;
  if (!tasks_.emplace(task, std::move(state)).second) return;
  Wait(task, false);
  Fill(asked.shape, now, effects);
}

void SubmitMachine::Granted(uint64_t request, LeaseId id, absl::Time now, Effects& effects) {
  auto it = requests_.find(request);
  if (it == requests_.end()) {
    effects.returns.push_back({id, false});   // called off meanwhile
    return;
  }
  ShapeId shape_id = it->second;
  requests_.erase(it);
  ShapeState& shape = shapes_[shape_id];
  std::erase(shape.requests, request);
  LeaseState lease;
  lease.shape = shape_id;
  lease.idle_since = now;
  leases_.emplace(id, std::move(lease));
  shape.leases.push_back(id);
  shape.requests_allowed = std::min(2 * shape.requests_allowed, limits_.requests_max);
  Fill(shape_id, now, effects);
}

void SubmitMachine::Denied(uint64_t request, const std::optional<wire::ErrorInfo>& error, absl::Time now, Effects& effects) {
  auto it = requests_.find(request);
  if (it == requests_.end()) return;
  ShapeId shape_id = it->second;
  requests_.erase(it);
  ShapeState& shape = shapes_[shape_id];
  std::erase(shape.requests, request);
  if (!error) {
    shape.request_not_before = now + limits_.retry_request_after;
    return;
  }
  // A request's deadline is the one of the task that was first when it was made; tasks that came later have more time.
  bool overdue_only = error->kind == wire::ErrorInfo::kUnschedulable;
  size_t failed = std::erase_if(shape.waiting, [&](TaskId task) {
    if (overdue_only && tasks_.at(task).asked.deadline > now + limits_.deadline_slack) return false;
    effects.failures.push_back({task, *error});
    tasks_.erase(task);
    return true;
  });
  if (failed == 0) shape.request_not_before = now + limits_.retry_request_after;
  Fill(shape_id, now, effects);
}

void SubmitMachine::Finished(LeaseId id, TaskId task, absl::Time now, Effects& effects) {
  tasks_.erase(task);
  TakeOff(id, task, now, effects);
}

bool SubmitMachine::FailedOnce(LeaseId id, TaskId task, absl::Time now, Effects& effects) {
  auto at = tasks_.find(task);
  if (at == tasks_.end() || at->second.lease != id || at->second.cancelled || at->second.retries_left == 0) return false;
  if (at->second.retries_left > 0) --at->second.retries_left;
  ++at->second.attempt;
  at->second.lease = LeaseId();
  // Behind the others: what made it fail may need its time.
  Wait(task, false);
  TakeOff(id, task, now, effects);
  return true;
}

void SubmitMachine::TakeOff(LeaseId id, TaskId task, absl::Time now, Effects& effects) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  LeaseState& lease = it->second;
  bool oldest = !lease.pushed.empty() && lease.pushed.front() == task;
  std::erase(lease.pushed, task);
  if (oldest) {
    absl::Duration took = now - lease.started;
    auto blend = [&](absl::Duration average) { return average == absl::InfiniteDuration() ? took : average * 0.75 + took * 0.25; };
    lease.average = blend(lease.average);
    shapes_[lease.shape].average = blend(shapes_[lease.shape].average);
  }
  lease.started = now;
  lease.shy = false;
  if (lease.pushed.empty()) lease.idle_since = now;
  ShapeId shape = lease.shape;
  if (lease.recalled && lease.pushed.empty()) {
    ReturnLease(id, false, effects);
  }
  Fill(shape, now, effects);
  // Looked at after what waits here was spread over the leases.
  if (auto at = leases_.find(id); at != leases_.end() && at->second.wanted && at->second.pushed.empty()) {
    ReturnLease(id, false, effects);
  }
}

void SubmitMachine::HandedBack(LeaseId id, TaskId task, absl::Time now, Effects& effects) {
  auto at = tasks_.find(task);
  if (at == tasks_.end()) return;
  ShapeId shape = at->second.asked.shape;
  at->second.lease = LeaseId();
  ++at->second.attempt;   // the number that was handed back is used up; no retry is
  Wait(task, true);
  if (auto it = leases_.find(id); it != leases_.end()) {
    LeaseState& lease = it->second;
    std::erase(lease.pushed, task);
    lease.shy = true;
    if (lease.pushed.empty()) {
      lease.idle_since = now;
      // Nothing runs there, yet it takes nothing: its worker is blocked or being recalled.
      ReturnLease(id, false, effects);
    }
  }
  Fill(shape, now, effects);
}

void SubmitMachine::WorkerLost(LeaseId id, const wire::ErrorInfo& why, absl::Time now, Effects& effects) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  ShapeId shape = it->second.shape;
  std::deque<TaskId> pushed = std::move(it->second.pushed);
  ReturnLease(id, true, effects);
  for (size_t i = pushed.size(); i-- > 0;) {
    auto at = tasks_.find(pushed[i]);
    if (at == tasks_.end()) continue;
    TaskState& state = at->second;
    bool ran = i == 0;
    if (state.cancelled) {
      wire::ErrorInfo error = why;
      error.kind = wire::ErrorInfo::kCancelled;
      error.message = "the task was cancelled";
      effects.failures.push_back({pushed[i], error});
      tasks_.erase(at);
    } else if (ran && state.retries_left == 0) {
      wire::ErrorInfo error = why;
      error.message = fmt::format("{} (try {} of {})", why.message, state.attempt + 1, state.attempt + 1);
      effects.failures.push_back({pushed[i], error});
      tasks_.erase(at);
    } else {
      if (ran && state.retries_left > 0) --state.retries_left;
      ++state.attempt;
      state.lease = LeaseId();
      Wait(pushed[i], true);
    }
  }
  Fill(shape, now, effects);
}

void SubmitMachine::Recalled(LeaseId id, absl::Time now, Effects& effects) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  it->second.recalled = true;
  if (!it->second.pushed.empty()) return;
  ShapeId shape = it->second.shape;
  ReturnLease(id, false, effects);
  Fill(shape, now, effects);
}

void SubmitMachine::Wanted(LeaseId id, absl::Time now, Effects& effects) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return;
  it->second.wanted = true;
  ShapeId shape = it->second.shape;
  if (!it->second.pushed.empty()) return;
  ReturnLease(id, false, effects);
  Fill(shape, now, effects);
}

bool SubmitMachine::Cancel(TaskId task, absl::Time now, Effects& effects) {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return false;
  if (!it->second.lease.IsNil()) {
    it->second.cancelled = true;
    return false;
  }
  ShapeId shape = it->second.asked.shape;
  std::erase(shapes_[shape].waiting, task);
  tasks_.erase(it);
  Fill(shape, now, effects);
  return true;
}

void SubmitMachine::Tick(absl::Time now, Effects& effects) {
  std::vector<LeaseId> idle;
  for (const auto& [id, lease] : leases_) {
    if (lease.pushed.empty() && now - lease.idle_since >= limits_.idle_max) idle.push_back(id);
  }
  for (LeaseId id : idle) {
    ReturnLease(id, false, effects);
  }
  for (ShapeId shape = 0; shape < shapes_.size(); ++shape) {
    if (!shapes_[shape].waiting.empty()) Fill(shape, now, effects);
  }
}

absl::Time SubmitMachine::NextTick() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, lease] : leases_) {
    if (lease.pushed.empty()) next = std::min(next, lease.idle_since + limits_.idle_max);
  }
  for (const ShapeState& shape : shapes_) {
    if (!shape.waiting.empty() && shape.requests.empty()) next = std::min(next, shape.request_not_before);
  }
  return next;
}

void SubmitMachine::ReturnLease(LeaseId id, bool worker_failed, Effects& effects) {
  auto it = leases_.find(id);
  ShapeState& shape = shapes_[it->second.shape];
  std::erase(shape.leases, id);
  if (shape.leases.empty()) shape.requests_allowed = limits_.requests_first;
  leases_.erase(it);
  effects.returns.push_back({id, worker_failed});
}

std::optional<LeaseId> SubmitMachine::LeaseOf(TaskId task) const {
  auto it = tasks_.find(task);
  if (it == tasks_.end() || it->second.lease.IsNil()) return std::nullopt;
  return it->second.lease;
}

std::optional<uint32_t> SubmitMachine::AttemptOf(TaskId task) const {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return std::nullopt;
  return it->second.attempt;
}

int SubmitMachine::RetriesLeft(TaskId task) const {
  auto it = tasks_.find(task);
  return it == tasks_.end() ? 0 : it->second.retries_left;
}

std::optional<TaskId> SubmitMachine::WaitingTask(ShapeId shape) const {
  if (shapes_[shape].waiting.empty()) return std::nullopt;
  return shapes_[shape].waiting.front();
}

std::optional<SubmitMachine::Asked> SubmitMachine::AskedOf(TaskId task) const {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return std::nullopt;
  return it->second.asked;
}

size_t SubmitMachine::waiting(ShapeId shape) const { return shapes_[shape].waiting.size(); }

}  // namespace argosy::worker
