#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "runtime/base/id.h"

namespace argosy::worker {

// Knows which finished tasks of this worker can be run again, should their results be lost, and what that takes to remember. A task stays
// as long as somebody may want one of its results: directly, or as the argument of another task that is kept. What is kept has a bound;
// above it the task that was kept first goes.
//
// Thread:   the worker loop; pure state.
// Lifetime: the worker's.
// Failure:  an unknown task is ignored.
class LineageTable {
 public:
  struct Effects {
    std::vector<TaskId> forgotten;        // nobody wants a result any more
    std::vector<TaskId> dropped;          // over the bound: its results cannot be made again
    std::vector<ObjectId> arguments;      // of tasks that went: each is needed by one task less
  };

  explicit LineageTable(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // `results`: how many of them somebody may want. `arguments`: objects of this worker that another run needs.
  void Keep(TaskId task, uint64_t bytes, uint32_t results, std::vector<ObjectId> arguments, Effects& effects);
  // It runs again: forgets it, and says what its arguments were.
  std::vector<ObjectId> Take(TaskId task);
  // Nobody will want one of its results any more.
  void ResultGone(TaskId task, Effects& effects);

  bool Knows(TaskId task) const { return tasks_.contains(task); }
  size_t size() const { return tasks_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  struct Entry {
    uint64_t bytes = 0;
    uint32_t results = 0;
    std::vector<ObjectId> arguments;
    std::list<TaskId>::iterator order;
  };
  std::vector<ObjectId> Remove(TaskId task);

  uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::unordered_map<TaskId, Entry> tasks_;
  std::list<TaskId> order_;               // as they were kept
};

}  // namespace argosy::worker
