#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/id.h"

namespace argosy {

// Where the calling code runs.
class RuntimeContext {
 public:
  NodeId node_id;
  std::string node_name;
  std::string node_ip;
  JobId job_id;
  WorkerId worker_id;
  TaskId task_id;              // nil outside a task or call
  ActorId actor_id;            // nil outside an actor
  std::string ns;
  std::string session_dir;
  std::string head_address;
  std::vector<uint32_t> gpu_ids;
  uint64_t incarnation = 0;    // of the actor; 1 is its first start

  bool WasRestarted() const { return incarnation > 1; }
  // The running task was cancelled: return soon. False outside a task.
  bool IsCancelled() const;
};

RuntimeContext GetRuntimeContext();

}  // namespace argosy
