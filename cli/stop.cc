// argosy stop: ends this user's daemons on this host, and what they ran.

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/session.h"
#include "runtime/base/status.h"

namespace argosy::cli {
namespace {

struct StopFlags {
  std::string temp_dir;
  double grace_seconds = 10;
};

// A process that cannot be mistaken for a later one with the same number.
class Process {
 public:
  explicit Process(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  bool exists() const { return fd_.ok(); }
  void Signal(int signal) const { ::syscall(SYS_pidfd_send_signal, fd_.get(), signal, nullptr, 0); }
  bool WaitEnd(std::chrono::milliseconds timeout) const {
    pollfd wait{fd_.get(), POLLIN, 0};
    return ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(timeout.count(), 0))) > 0;
  }

 private:
  UniqueFd fd_;
};

// Processes of this user that were started by one of the nodes: workers and entrypoints have the node's socket in their environment.
std::vector<pid_t> ProcessesOf(const std::vector<DaemonRecord>& nodes) {
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (dirent* entry = ::readdir(proc)) {
    pid_t pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (pid <= 1 || pid == ::getpid()) continue;
    std::string folder = std::string("/proc/") + entry->d_name;
    struct stat info;
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid != ::getuid()) continue;
    std::ifstream file(folder + "/environ", std::ios::binary);
    std::string environment{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    environment.insert(environment.begin(), '\0');
    for (const DaemonRecord& node : nodes) {
      std::string mark = std::string("\0ARGOSY_NODE_SOCKET=", 20) + node.socket + std::string("\0", 1);
      if (!node.socket.empty() && environment.find(mark) != std::string::npos) {
        found.push_back(pid);
        break;
      }
    }
  }
  ::closedir(proc);
  return found;
}

absl::Status RunStop(const StopFlags& flags) {
  std::string root = SessionsRoot(flags.temp_dir);
  std::vector<DaemonRecord> daemons = LiveDaemons(root);
  // Nodes first, so that they still reach the head with the last bytes of their jobs' logs.
  std::stable_sort(daemons.begin(), daemons.end(), [](const auto& a, const auto& b) { return a.kind > b.kind; });
  std::vector<DaemonRecord> nodes;
  size_t killed = 0;
  for (const char* kind : {"node", "head"}) {
    std::vector<std::pair<DaemonRecord, Process>> running;
    for (const DaemonRecord& daemon : daemons) {
      if (daemon.kind != kind) continue;
      Process process(daemon.pid);
      // The lock says that the daemon lives, and the handle was taken while it did.
      if (!process.exists() || !IsLocked(daemon.folder)) continue;
      process.Signal(SIGTERM);
      running.emplace_back(daemon, std::move(process));
    }
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(flags.grace_seconds * 1000));
    for (auto& [daemon, process] : running) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (!process.WaitEnd(left)) {
        process.Signal(SIGKILL);
        process.WaitEnd(std::chrono::seconds(10));
        ++killed;
        std::printf("%s %d did not end within %g s and was killed\n", kind, daemon.pid, flags.grace_seconds);
      } else {
        std::printf("stopped %s %d (%s)\n", kind, daemon.pid, daemon.address.c_str());
      }
      if (daemon.kind == "node") nodes.push_back(daemon);
    }
  }
  for (pid_t pid : ProcessesOf(nodes)) {
    Process process(pid);
    if (!process.exists()) continue;
    process.Signal(SIGKILL);
    process.WaitEnd(std::chrono::seconds(10));
  }
  RemoveStaleSessions(root);
  if (daemons.empty()) std::printf("nothing of this user runs under %s\n", root.c_str());
  return absl::OkStatus();
}

}  // namespace

void RegisterStop(CLI::App& app) {
  auto flags = std::make_shared<StopFlags>();
  CLI::App* command = app.add_subcommand("stop", "End this user's heads and nodes on this host, and the jobs that they run");
  command->add_option("--temp-dir", flags->temp_dir, "Where session folders are (default: ARGOSY_SESSIONS_DIR, else /tmp/argosy)");
  command->add_option("--grace", flags->grace_seconds, "Seconds to wait before killing")->capture_default_str();
  command->callback([flags] {
    if (absl::Status status = RunStop(*flags); !status.ok()) Fail(status);
  });
}

}  // namespace argosy::cli
