#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/wire/messages.h"

namespace argosy::node {

// What a worker can be used for: it was started with this code, for this job, and sees these GPUs.
struct WorkerKey {
  JobId job;
  std::string code_id;
  std::vector<uint32_t> gpu_ids;
  friend auto operator<=>(const WorkerKey&, const WorkerKey&) = default;
};

// The node's worker processes: none is started before it is needed; an idle one is used again for the same job, code and GPUs, the one
// that was used last first, and ends when it was idle for long.
//
// Thread:   its owner's.
// Failure:  unknown workers are none, or change nothing.
class WorkerPool {
 public:
  enum class State { kStarting, kIdle, kBusy };
  struct Worker {
    WorkerId id;
    WorkerKey key;
    State state = State::kStarting;
    absl::Time since;                 // of the state
    wire::WorkerAddress address;      // once it has registered
    bool registered = false;
    bool ending = false;              // told to leave, or killed: never used again
  };

  void AddStarting(WorkerId id, WorkerKey key, absl::Time now);
  // The address is known from now on. A starting worker becomes idle. False when it is unknown or has registered before.
  bool SetRegistered(WorkerId id, wire::WorkerAddress address, absl::Time now);
  // Takes an idle worker of `key`.
  std::optional<WorkerId> TakeIdle(const WorkerKey& key, absl::Time now);
  void SetBusy(WorkerId id, absl::Time now);
  void SetIdle(WorkerId id, absl::Time now);
  void SetEnding(WorkerId id);
  void Remove(WorkerId id);

  const Worker* Find(WorkerId id) const;
  std::vector<WorkerId> IdleBefore(absl::Time then) const;
  std::vector<WorkerId> StartingBefore(absl::Time then) const;
  std::vector<WorkerId> OfJob(JobId job) const;
  std::vector<WorkerId> All() const;
  size_t size() const { return workers_.size(); }

 private:
  void Leave(const Worker& worker);   // the idle list, if it is in one

  std::unordered_map<WorkerId, Worker> workers_;
  std::map<WorkerKey, std::vector<WorkerId>> idle_;   // last used last
};

}  // namespace argosy::node
