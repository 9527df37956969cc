#pragma once

// The node daemon: owns one node's resources, workers and object store.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/base/token.h"
#include "runtime/node/host_memory.h"

namespace argosy::node {

struct NodeServerOptions {
  std::string name;                          // for people; empty: the host's name
  std::string ip = "127.0.0.1";              // where other nodes and workers reach this one
  std::string bind_ip;                       // what its listeners, and its workers', bind to; empty: ip
  uint16_t worker_port_min = 0;              // of its workers; 0: any free ports
  uint16_t worker_port_max = 0;
  uint16_t wire_port = 0;                    // framed connections; 0: any free
  uint16_t agent_port = 0;                   // health over HTTP; 0: any free
  std::string head_address;                  // host:port of the head's gRPC
  Token token;
  // Amounts by name. CPU, GPU and memory are found out when missing; object_store_memory is set from the next field.
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels; // node id, host name are added
  // What CUDA_VISIBLE_DEVICES calls this node's GPUs, in order; empty: "0", "1", ...
  std::vector<std::string> gpu_devices;
  std::optional<std::string> cuda_visible_devices;   // of this process: which GPUs are found out
  uint64_t object_store_bytes = 0;           // 0: 30% of the memory that is available now
  std::string spill_dir;                     // where objects go when memory is full; empty: "spill" in the session folder, or /var/tmp when that is in memory
  bool spills = true;
  uint64_t spill_bytes_max = 0;              // 0: 90% of what is free there now
  std::string session_dir;                   // made when missing, with mode 0700; locked while the daemon lives
  std::string executable_dir;                // of the argosy binary: put first in a job's PATH; empty: this process's
  bool is_head_node = false;
  double memory_threshold = 0.95;            // share of the host's memory from which work is ended
  absl::Duration memory_watch_period = absl::Milliseconds(250);   // zero: memory is not watched
  uint64_t workers_memory_max = 0;           // bytes that this node's workers may take together; 0: no bound
  MemoryReader memory_reader = MemoryReader();
  absl::Duration worker_start_timeout = absl::Seconds(60);
  absl::Duration worker_idle_timeout = absl::Seconds(60);
};

// Thread:   made, started and destroyed by the thread that owns `loop` (before or after Run), or on the loop.
// Lifetime: outlives nothing; destroying it kills its workers and its jobs' entrypoints.
// Failure:  Start: the session folder is locked by another daemon, a port is taken, the arena, or the spill file in the folder that was
//           given, cannot be made. A head that cannot be reached is not one: the daemon keeps trying (`registered` tells).
//           PERMISSION_DENIED from the head (wrong token) or a refused version ends it: `fatal` is called once.
class NodeServer {
 public:
  struct Callbacks {
    std::function<void()> registered;                        // each time the head has taken this node
    std::function<void(const absl::Status& why)> fatal;      // cannot go on; stop the loop
    std::function<void(const std::string& why)> drained;     // it has left the cluster, as it was asked to; stop the loop
  };
  static absl::StatusOr<std::unique_ptr<NodeServer>> Start(async::Loop& loop, NodeServerOptions options, Callbacks callbacks);
  ~NodeServer();
  // Refuses new work, ends workers and entrypoints (SIGTERM, then SIGKILL after `grace`), then calls `done` on the loop.
  void Stop(absl::Duration grace, std::function<void()> done);

  NodeId id() const;
  const std::string& wire_address() const;   // host:port
  const std::string& socket_path() const;    // Unix socket for this host's drivers (ARGOSY_NODE_SOCKET)
  const std::string& agent_address() const;  // host:port

 private:
  struct Impl;
  explicit NodeServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy::node
