#include "runtime/node/worker_pool.h"

#include <algorithm>
#include <utility>

namespace argosy::node {

void WorkerPool::AddStarting(WorkerId id, WorkerKey key, absl::Time now) {
  workers_[id] = {.id = id, .key = std::move(key), .state = State::kStarting, .since = now};
}

bool WorkerPool::SetRegistered(WorkerId id, wire::WorkerAddress address, absl::Time now) {
  auto at = workers_.find(id);
  if (at == workers_.end() || at->second.registered || at->second.ending) return false;
  at->second.registered = true;
  at->second.address = std::move(address);
  SetIdle(id, now);
  return true;
}

std::optional<WorkerId> WorkerPool::TakeIdle(const WorkerKey& key, absl::Time now) {
  auto at = idle_.find(key);
  if (at == idle_.end()) return std::nullopt;
  WorkerId id = at->second.back();
  SetBusy(id, now);
  return id;
}

void WorkerPool::SetBusy(WorkerId id, absl::Time now) {
  auto at = workers_.find(id);
  if (at == workers_.end()) return;
  Leave(at->second);
  at->second.state = State::kBusy;
  at->second.since = now;
}

void WorkerPool::SetIdle(WorkerId id, absl::Time now) {
  auto at = workers_.find(id);
  if (at == workers_.end() || at->second.state == State::kIdle) return;
  at->second.state = State::kIdle;
  at->second.since = now;
  if (!at->second.ending) idle_[at->second.key].push_back(id);
}

void WorkerPool::SetEnding(WorkerId id) {
  auto at = workers_.find(id);
  if (at == workers_.end()) return;
  Leave(at->second);
  at->second.ending = true;
}

void WorkerPool::Remove(WorkerId id) {
  auto at = workers_.find(id);
  if (at == workers_.end()) return;
  Leave(at->second);
  workers_.erase(at);
}

void WorkerPool::Leave(const Worker& worker) {
  auto at = idle_.find(worker.key);
  if (at == idle_.end()) return;
  std::erase(at->second, worker.id);
  if (at->second.empty()) idle_.erase(at);
}

const WorkerPool::Worker* WorkerPool::Find(WorkerId id) const {
  auto at = workers_.find(id);
  return at == workers_.end() ? nullptr : &at->second;
}

std::vector<WorkerId> WorkerPool::IdleBefore(absl::Time then) const {
  std::vector<WorkerId> found;
  for (const auto& [key, ids] : idle_) {
    for (WorkerId id : ids) {
      if (workers_.at(id).since <= then) found.push_back(id);
    }
  }
  return found;
}

std::vector<WorkerId> WorkerPool::StartingBefore(absl::Time then) const {
  std::vector<WorkerId> found;
  for (const auto& [id, worker] : workers_) {
    if (!worker.registered && !worker.ending && worker.since <= then) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<WorkerId> WorkerPool::OfJob(JobId job) const {
  std::vector<WorkerId> found;
  for (const auto& [id, worker] : workers_) {
    if (worker.key.job == job) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<WorkerId> WorkerPool::All() const {
  std::vector<WorkerId> found;
  for (const auto& [id, worker] : workers_) found.push_back(id);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace argosy::node
