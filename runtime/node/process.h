#pragma once

// Starting child processes and learning of their end.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/base/unique_fd.h"

namespace argosy::node {

struct ProcessOptions {
  std::string executable;                      // a path
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;      // all of it
  std::string working_dir;                     // empty: the daemon's
  int stdin_fd = -1;                           // -1: /dev/null
  int stdout_fd = -1;
  int stderr_fd = -1;
  int inherited_fd = -1;                       // becomes descriptor 3; -1: none
  bool own_session = false;                    // else a process group of its own
  bool die_with_parent = true;                 // SIGKILL when the thread that starts it ends
};

// How a process ended.
struct ProcessEnd {
  int exit_code = 0;     // when signal is 0
  int signal = 0;
  // "exited with code 1", "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

// A child process (and its process group), watched by a pidfd.
//
// Thread:   the loop's.
// Lifetime: destroying it kills the process group when it still runs, and waits for the process.
// Failure:  Start: the kernel's; an executable that cannot be run ends with code 127 and says why in its standard error.
class Process {
 public:
  using Ended = std::function<void(const ProcessEnd& end)>;
  static absl::StatusOr<std::unique_ptr<Process>> Start(async::Loop& loop, const ProcessOptions& options, Ended ended);
  ~Process();

  pid_t pid() const { return pid_; }
  bool is_running() const { return running_; }
  // To the whole group.
  void Signal(int signal);

 private:
  Process(async::Loop& loop, pid_t pid, UniqueFd pidfd, Ended ended);
  bool Reap(bool wait);

  async::Loop& loop_;
  pid_t pid_;
  UniqueFd pidfd_;
  Ended ended_;
  ProcessEnd end_;
  bool running_ = true;
  std::unique_ptr<async::FdWatch> watch_;
};

// Tells when a process that is not our child ends.
class ProcessWatch {
 public:
  // Null when the process is not there, or cannot be seen.
  static std::unique_ptr<ProcessWatch> Make(async::Loop& loop, pid_t pid, std::function<void()> ended);
  ~ProcessWatch();

 private:
  ProcessWatch(async::Loop& loop, UniqueFd pidfd, std::function<void()> ended);
  UniqueFd pidfd_;
  std::unique_ptr<async::FdWatch> watch_;
};

// The live processes of a session, and their descendants.
std::vector<pid_t> ProcessesOfSession(pid_t session);

// The value of CUDA_VISIBLE_DEVICES: the names of the GPUs, or their numbers where `devices` is shorter.
std::string GpuDevices(const std::vector<uint32_t>& gpu_ids, const std::vector<std::string>& devices);

// This process's environment, without what children must not see.
std::map<std::string, std::string> ChildEnvironment();

}  // namespace argosy::node
