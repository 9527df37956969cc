#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/base/token.h"

namespace grpc {
class Channel;
}

namespace argosy::head {

struct HeadServerOptions {
  std::string bind_ip = "127.0.0.1";
  std::string advertised_ip;                 // in the address that others join with; empty: bind_ip
  uint16_t port = kHeadPort;                 // 0: any free
  Token token;                               // empty: authentication is off
  std::string session_dir;                   // holds head/: journal, packages, job logs; a head that starts on it goes on from there
  std::string session_name;
  absl::Duration heartbeat = kHeartbeatPeriod;
  absl::Duration node_timeout = kNodeTimeout;
  absl::Duration job_start_timeout = kJobStartTimeout;
};

// The head: its gRPC server, its loop (one thread owns all state) and its disk loop.
//
// Thread:   any.
// Lifetime: channels from LocalChannel end with it.
// Failure:  Start: the port is taken, the session folder is another head's, the journal is of another version or damaged.
class HeadServer {
 public:
  static absl::StatusOr<std::unique_ptr<HeadServer>> Start(HeadServerOptions options);
  ~HeadServer();

  uint16_t port() const;
  std::string address() const;   // host:port to join with
  // For parts of this process; calls carry the token.
  std::shared_ptr<grpc::Channel> LocalChannel();
  // What ClusterStatus says, once it is known.
  void SetDashboardUrl(const std::string& url);
  // Answers what it can within `grace`, commits the journal, returns when all threads have ended. Nodes and their work go on.
  void Stop(absl::Duration grace);

 private:
  struct Impl;
  explicit HeadServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy::head
