#pragma once

#include <memory>
#include <string>

#include "argosy/options.h"

namespace argosy {

// The process's connection to its cluster; one at a time. Destroying it ends the job's work (a local cluster ends with it).
class Runtime {
 public:
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;
  ~Runtime();

  const std::string& head_address() const;
  const std::string& dashboard_url() const;   // empty unless this process started the cluster
  void Shutdown();

  struct Impl;
  explicit Runtime(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// Joins a cluster: the node daemon named by ARGOSY_NODE_SOCKET; else the cluster at `options.address` or ARGOSY_ADDRESS, through a node
// daemon of it on this host; else a local cluster is started that ends with this process. The address "local" means no cluster at all:
// everything runs in this process, as a debugger likes it. In a worker process this serves tasks and does
// not return: code before it runs in every worker. Throws RuntimeError.
Runtime Connect(int argc, char** argv, ConnectOptions options = {});

}  // namespace argosy
