#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace argosy::testing {

// A real cluster on this machine, made by the `argosy` program (ARGOSY_BINARY), in a temporary folder; it ends with this object.
class Cluster {
 public:
  // The head with a node daemon beside it; `flags` are the node's, such as {"--num-cpus", "1"}.
  explicit Cluster(const std::vector<std::string>& flags);
  ~Cluster();
  void Join(const std::vector<std::string>& flags);

  const std::string& head_address() const { return address_; }
  const std::string& node_socket() const { return node_socket_; }   // of the head's node

 private:
  struct Part { pid_t pid = -1; int alive = -1; };
  // Starts `argosy start ...` and returns the line it says when it is ready.
  std::string Start(const std::vector<std::string>& arguments);

  std::string folder_;
  std::string address_;
  std::string node_socket_;
  std::vector<Part> parts_;
};

}  // namespace argosy::testing
