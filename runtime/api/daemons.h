#pragma once

// Starting the `argosy` program's daemons, for local clusters and tests, and what a node daemon writes about itself.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace argosy::internal {

// An `argosy start` that ends with this object.
class DaemonProcess {
 public:
  DaemonProcess() = default;
  DaemonProcess(pid_t pid, UniqueFd alive) : pid_(pid), alive_(std::move(alive)) {}
  DaemonProcess(DaemonProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), alive_(std::move(other.alive_)) {}
  DaemonProcess& operator=(DaemonProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(alive_, other.alive_);
    return *this;
  }
  ~DaemonProcess() { End(); }

  // Tells it to end, and waits.
  void End();

 private:
  pid_t pid_ = -1;
  UniqueFd alive_;   // it ends at end of file here
};

struct StartedDaemons {
  DaemonProcess process;
  std::string address;         // of the head
  std::string node_socket;
  std::string dashboard_url;
};

// Runs the program with these arguments (`start ...`) and waits until it is ready. Throws RuntimeError.
StartedDaemons StartDaemons(const std::vector<std::string>& arguments);

// What a node daemon says of itself in node.json of its session folder.
struct NodeFile {
  std::string head_address;
  std::string node_socket;
  std::string ip;
  std::string bind_ip;
  uint16_t worker_port_min = 0;
  uint16_t worker_port_max = 0;
  std::string token_file;
  pid_t pid = 0;
};
// None when it is not there or is no such file.
std::optional<NodeFile> ReadNodeFile(const std::filesystem::path& path);
// That of the daemon with this socket, which is in the folder `sock` of the node's own.
std::optional<NodeFile> NodeFileOf(const std::string& node_socket);

}  // namespace argosy::internal
