#pragma once

// Starting the `argosy` program's daemons, for local clusters and tests.

#include <sys/types.h>

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

}  // namespace argosy::internal
