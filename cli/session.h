#pragma once

// Session folders: where daemons keep their files, and how commands find daemons.
//
//   <root>/session_<date>_<pid>/          0700, of one user
//     head/    head.json  daemon.lock  head.log  journal.sqlite  packages/  job_logs/
//     node_1/  node.json  daemon.lock  node.log  ...
//
// A daemon holds the lock of its folder while it lives, so a free lock means that nobody is there, whatever its pid file says.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"

namespace argosy::cli {

// --temp-dir when given, else ARGOSY_SESSIONS_DIR, else /tmp/argosy; absolute.
std::string SessionsRoot(const std::string& flag);

// A new folder under the root. The root is made open to all users with the sticky bit, like /tmp itself.
absl::StatusOr<std::string> MakeSession(const std::string& root);

// The next free "node_<n>" of a session; made.
absl::StatusOr<std::string> MakeNodeFolder(const std::string& session);

// Holds the daemon's lock. FailedPrecondition when another process has it.
absl::StatusOr<UniqueFd> LockDaemonFolder(const std::string& folder);
bool IsLocked(const std::string& folder);

// What a daemon says of itself in head.json or node.json.
struct DaemonRecord {
  std::string kind;        // "head" or "node"
  std::string folder;
  pid_t pid = 0;
  std::string name;
  std::string address;     // head: gRPC; node: framed listener
  std::string dashboard;   // head only
  std::string socket;      // node only
  std::string token_file;
  std::string head_address;   // node only: the cluster it belongs to; drivers find their node by it
  std::string bind_ip;        // node only, as the next two: where drivers listen
  uint16_t worker_port_min = 0;
  uint16_t worker_port_max = 0;
};
absl::Status WriteRecord(const DaemonRecord& record);

// Daemons of this user that live under the root, newest session first.
std::vector<DaemonRecord> LiveDaemons(const std::string& root);
// Removes session folders of this user in which no daemon lives.
void RemoveStaleSessions(const std::string& root);

// The address of the newest head of this user on this host.
std::optional<DaemonRecord> NewestHead(const std::string& root);

}  // namespace argosy::cli
