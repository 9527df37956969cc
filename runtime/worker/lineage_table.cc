#include "runtime/worker/lineage_table.h"

#include <utility>

namespace argosy::worker {

std::vector<ObjectId> LineageTable::Remove(TaskId task) {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return {};
  bytes_ -= it->second.bytes;
  order_.erase(it->second.order);
  std::vector<ObjectId> arguments = std::move(it->second.arguments);
  tasks_.erase(it);
  return arguments;
}

void LineageTable::Keep(TaskId task, uint64_t bytes, uint32_t results, std::vector<ObjectId> arguments, Effects& effects) {
  if (results == 0 || tasks_.contains(task)) {
    effects.arguments.insert(effects.arguments.end(), arguments.begin(), arguments.end());
    return;
  }
  Entry& entry = tasks_[task];
  entry.bytes = bytes;
  entry.results = results;
  entry.arguments = std::move(arguments);
  entry.order = order_.insert(order_.end(), task);
  bytes_ += bytes;
  while (bytes_ > bytes_max_) {
    TaskId oldest = order_.front();
    effects.dropped.push_back(oldest);
    for (ObjectId argument : Remove(oldest)) effects.arguments.push_back(argument);
  }
}

std::vector<ObjectId> LineageTable::Take(TaskId task) { return Remove(task); }

void LineageTable::ResultGone(TaskId task, Effects& effects) {
  auto it = tasks_.find(task);
  if (it == tasks_.end() || --it->second.results > 0) return;
  effects.forgotten.push_back(task);
  for (ObjectId argument : Remove(task)) effects.arguments.push_back(argument);
}

}  // namespace argosy::worker
