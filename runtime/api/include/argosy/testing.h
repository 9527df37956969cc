#pragma once

// For tests of an application. Link argosy::testing.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "argosy/options.h"

namespace argosy::testing {

struct NodeOptions {
  std::string name;                              // node-0, node-1, ... when empty
  double num_cpus = 1;
  double num_gpus = 0;                           // amounts to schedule by; no device is needed
  Resources resources;                           // custom ones
  std::map<std::string, std::string> labels;
  uint64_t object_store_memory = 256u << 20;     // bytes
  std::vector<std::string> flags;                // more, as `argosy start` takes them: {"--spill-dir", "none"}
};

// A real cluster of several nodes on this machine: a head, a daemon for each node, worker processes of this program.
//
//   int main(int argc, char** argv) {
//     argosy::testing::Cluster cluster({{.num_cpus = 2}, {.name = "large", .resources = {{"large_cpu_mem", 1}}}});
//     argosy::Runtime runtime = argosy::Connect(argc, argv, cluster.connect_options());
//     ...
//   }
//
// In a worker process, which runs main too, it does nothing. Needs the `argosy` program: ARGOSY_BINARY, beside this program, or in PATH.
//
// Thread:   one at a time; make it before other threads run, since it sets environment variables (ARGOSY_SESSIONS_DIR, HOME), so that no
//           other cluster of this user is found and no file is left.
// Lifetime: the cluster ends with it. Connect after it, and let the Runtime go before it.
// Failure:  throws RuntimeError.
class Cluster {
 public:
  // The first node is beside the head.
  explicit Cluster(const std::vector<NodeOptions>& nodes = {NodeOptions()});
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  void AddNode(const NodeOptions& node);
  // As a host that loses its power: the daemon and its workers are gone at once. The head notices after its node time-out (10 s).
  void KillNode(const std::string& name);

  const std::string& address() const;            // of the head
  ConnectOptions connect_options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;                   // null in a worker
};

}  // namespace argosy::testing
