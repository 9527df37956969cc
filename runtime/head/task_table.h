#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/id.h"
#include "runtime/base/observation.h"

namespace argosy::head {

// What became of tasks, put together from what their owners and their workers report: the newest tasks row by row, failures longer than
// others, and counts of all.
//
// Thread:   the head's loop; pure state.
// Failure:  reports may be missing (a worker that was killed, a bound that was reached): what is known is shown, and what was dropped is
//           counted.
class TaskTable {
 public:
  struct Options {
    size_t tasks_max = 100'000;
    size_t failures_max = 10'000;      // of the tasks that no longer fit, these stay
    size_t names_max = 10'000;         // in the counts
  };
  struct Task {
    TaskEvent event;
    JobId job;
    NodeId node;                       // where it runs or ran; nil: not known
    std::string node_name;
    WorkerId worker;
    uint32_t pid = 0;
    uint64_t order = 0;                // of its first report
  };
  struct Counts {
    TaskEvent::Kind kind = TaskEvent::kTask;
    std::array<uint64_t, 4> by_state{};   // pending and running: of the tasks that are kept; finished and failed: of all
  };

  TaskTable() : TaskTable(Options{}) {}
  explicit TaskTable(Options options) : options_(options) {}

  void Add(const TaskEvents& events);
  void AddDropped(uint64_t events) { dropped_ += events; }
  // What it ran has failed, unless a later attempt is reported.
  void WorkerDied(WorkerId worker, const std::string& reason, int64_t now_us);
  // What had not ended never will.
  void JobEnded(JobId job, const std::string& reason, int64_t now_us);

  const Task* Find(TaskId task) const;
  // Newest first.
  template <class Visit>
  void ForEach(Visit&& visit) const {
    for (auto at = by_order_.rbegin(); at != by_order_.rend(); ++at) visit(tasks_.at(at->second));
  }
  const std::map<std::pair<std::string, TaskEvent::Kind>, Counts>& counts() const { return counts_; }
  size_t size() const { return tasks_.size(); }
  uint64_t forgotten() const { return forgotten_; }   // tasks that no longer fit
  uint64_t dropped() const { return dropped_; }       // reports that never came

 private:
  Counts& CountsOf(const Task& task);
  void SetState(Task& task, TaskEvent::State state);
  void Trim();

  Options options_;
  std::unordered_map<TaskId, Task> tasks_;
  std::map<uint64_t, TaskId> by_order_;
  std::deque<uint64_t> old_failures_;
  std::unordered_map<WorkerId, std::unordered_set<TaskId>> running_;
  std::map<std::pair<std::string, TaskEvent::Kind>, Counts> counts_;
  uint64_t next_order_ = 1;
  uint64_t first_order_ = 1;           // older ones are failures that stayed
  uint64_t forgotten_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace argosy::head
