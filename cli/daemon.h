#pragma once

// Starting daemons, and what a daemon's main does besides its work.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/token.h"
#include "runtime/base/unique_fd.h"

namespace argosy::cli {

struct DaemonStart {
  std::vector<std::string> arguments;   // after "argosy"; --token-fd, --ready-fd and --until-eof-fd are added
  Token token;                          // given by descriptor
  std::string log_file;                 // standard output and error go there
  int until_eof_fd = -1;                // the daemon ends when this descriptor reaches end of file; -1: it lives on by itself
  absl::Duration ready_timeout = absl::Seconds(60);
};

struct StartedDaemon {
  pid_t pid = 0;
  nlohmann::json ready;                 // what it said when it was ready
};

// Starts this executable in a session of its own and waits until it says that it is ready. The error is the daemon's own words,
// or names its log.
absl::StatusOr<StartedDaemon> StartDaemon(const DaemonStart& start);

// The daemon's side: one JSON line into `fd`, then the descriptor is closed. A negative one is ignored.
void SayReady(int fd, const nlohmann::json& line);
void SayFailed(int fd, const absl::Status& status);

// The token from a descriptor that is closed then.
absl::StatusOr<Token> ReadTokenFd(int fd);

// Blocks SIGINT and SIGTERM for all threads that are made from now on; call before the first one. The descriptor can be read
// when one came.
absl::StatusOr<UniqueFd> CatchSignals();
// Returns true when a signal came or `until_eof_fd` (if any) reached end of file, false when one of `children` ended.
bool WaitForEnd(int signal_fd, int until_eof_fd, const std::vector<pid_t>& children = {});
// SIGTERM, then SIGKILL after `grace`; returns when the child has ended.
void StopChild(pid_t child, absl::Duration grace);

// Prints "argosy: message" and ends the command with exit code 1 (2: a flag is wrong).
[[noreturn]] void Fail(const absl::Status& status);

std::string OwnExecutable();

}  // namespace argosy::cli
