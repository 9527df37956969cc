#include "runtime/head/task_table.h"

#include <utility>
#include <vector>

namespace argosy::head {
namespace {

bool IsEnded(TaskEvent::State state) { return state == TaskEvent::kFinished || state == TaskEvent::kFailed; }

}  // namespace

TaskTable::Counts& TaskTable::CountsOf(const Task& task) {
  std::pair key{task.event.name, task.event.kind};
  if (!counts_.contains(key) && counts_.size() >= options_.names_max) key.first = "(others)";
  Counts& counts = counts_[key];
  counts.kind = task.event.kind;
  return counts;
}

void TaskTable::SetState(Task& task, TaskEvent::State state) {
  if (task.event.state == state) return;
  Counts& counts = CountsOf(task);
  uint64_t& before = counts.by_state[task.event.state];
  if (before > 0) --before;
  ++counts.by_state[state];
  if (task.event.state == TaskEvent::kRunning) {
    if (auto at = running_.find(task.worker); at != running_.end()) {
      at->second.erase(task.event.task);
      if (at->second.empty()) running_.erase(at);
    }
  }
  task.event.state = state;
}

void TaskTable::Add(const TaskEvents& events) {
  dropped_ += events.dropped;
  for (const TaskEvent& event : events.events) {
    if (event.state > TaskEvent::kFailed || event.kind > TaskEvent::kConstructor) continue;
    auto [at, is_new] = tasks_.try_emplace(event.task);
    Task& task = at->second;
    if (is_new) {
      task.event = event;
      task.event.state = TaskEvent::kPending;
      task.order = next_order_++;
      by_order_[task.order] = event.task;
      ++CountsOf(task).by_state[TaskEvent::kPending];
    } else {
      // Reports of one attempt come in any order; each state is further than the one before, and a later attempt begins again.
      bool later = event.attempt > task.event.attempt;
      if (event.attempt < task.event.attempt || (!later && IsEnded(task.event.state) && !event.executed)) continue;
      if (!later && event.state < task.event.state && !(event.executed && IsEnded(event.state))) {
        if (event.submitted_us != 0) task.event.submitted_us = event.submitted_us;
        continue;
      }
    }
    task.job = events.job;
    task.event.attempt = event.attempt;
    SetState(task, event.state);
    if (event.executed) {
      task.node = events.node;
      task.node_name = events.node_name;
      task.worker = events.worker;
      task.pid = events.pid;
      task.event.executed = true;
      task.event.out_begin = event.out_begin;
      task.event.out_end = event.out_end;
      task.event.error_begin = event.error_begin;
      task.event.error_end = event.error_end;
    }
    if (event.submitted_us != 0) task.event.submitted_us = event.submitted_us;
    if (event.started_us != 0) task.event.started_us = event.started_us;
    task.event.ended_us = event.ended_us;
    task.event.error = event.error;
    if (!event.trace.empty()) {
      task.event.trace = event.trace;
      task.event.span = event.span;
      task.event.parent_span = event.parent_span;
    }
    task.event.resources = event.resources;
    task.event.waits_for_arguments = event.waits_for_arguments;
    if (event.state == TaskEvent::kRunning) running_[task.worker].insert(event.task);
  }
  Trim();
}

void TaskTable::WorkerDied(WorkerId worker, const std::string& reason, int64_t now_us) {
  auto ran = running_.extract(worker);
  if (ran.empty()) return;
  for (TaskId id : ran.mapped()) {
    Task& task = tasks_.at(id);
    SetState(task, TaskEvent::kFailed);
    task.event.error = "its worker died: " + reason;
    task.event.ended_us = now_us;
  }
}

void TaskTable::JobEnded(JobId job, const std::string& reason, int64_t now_us) {
  for (auto& [id, task] : tasks_) {
    if (task.job != job || IsEnded(task.event.state)) continue;
    SetState(task, TaskEvent::kFailed);
    task.event.error = "its job ended: " + reason;
    task.event.ended_us = now_us;
  }
}

const TaskTable::Task* TaskTable::Find(TaskId id) const {
  auto at = tasks_.find(id);
  return at == tasks_.end() ? nullptr : &at->second;
}

void TaskTable::Trim() {
  auto forget = [this](uint64_t order) {
    auto id = by_order_.extract(order);
    if (id.empty()) return;
    Task& task = tasks_.at(id.mapped());
    // Of those that have not ended nobody will hear again: they leave the counts with their row.
    if (!IsEnded(task.event.state)) {
      uint64_t& count = CountsOf(task).by_state[task.event.state];
      if (count > 0) --count;
      if (auto at = running_.find(task.worker); at != running_.end()) at->second.erase(id.mapped());
    }
    tasks_.erase(id.mapped());
    ++forgotten_;
  };
  while (tasks_.size() > options_.tasks_max + old_failures_.size()) {
    auto oldest = by_order_.lower_bound(first_order_);
    if (oldest == by_order_.end()) return;
    first_order_ = oldest->first + 1;
    if (options_.failures_max > 0 && tasks_.at(oldest->second).event.state == TaskEvent::kFailed) {
      old_failures_.push_back(oldest->first);
      if (old_failures_.size() <= options_.failures_max) continue;
      forget(old_failures_.front());
      old_failures_.pop_front();
    } else {
      forget(oldest->first);
    }
  }
}

}  // namespace argosy::head
