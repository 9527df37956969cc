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
  // The W3C traceparent of the running task (its own span), or of this thread (SetTraceParent); empty: none.
  std::string trace_parent;

  bool WasRestarted() const { return incarnation > 1; }
  // The running task was cancelled: return soon. False outside a task.
  bool IsCancelled() const;
};

RuntimeContext GetRuntimeContext();

// Tasks and calls that this thread submits from now on outside of a task belong to that trace, and what they submit too: each task or call
// is a span. "00-<32 hex digits>-<16 hex digits>-<2 hex digits>", as the HTTP header of that name; empty: to none. Throws
// std::invalid_argument for anything else.
void SetTraceParent(const std::string& traceparent);

}  // namespace argosy
