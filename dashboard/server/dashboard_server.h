#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/limits.h"
#include "runtime/base/token.h"

namespace grpc {
class Channel;
}

namespace argosy {

struct DashboardLimits {
  size_t connections_max = 512;
  uint32_t header_bytes_max = 32 << 10;
  uint64_t body_bytes_max = 4 << 20;                // of every request but a package
  uint64_t package_bytes_max = kPackageBytesMax;
  std::chrono::seconds idle_timeout{75};            // between requests, and for the head of one
  std::chrono::seconds stalled_timeout{60};         // a body or an answer that does not move
  std::chrono::seconds ping_period{20};             // on followed logs, so that proxies keep them open
};

struct DashboardOptions {
  std::string host = "127.0.0.1";
  uint16_t port = kDashboardPort;                   // 0: any free
  Token token;                                      // empty: authentication is off
  std::string web_dir;                              // the built page; see FindWebDirectory
  DashboardLimits limits;
};

// Where the built page is: `override` when given, else <folder of the executable>/../share/argosy/web, else where the source tree
// of this build has it.
std::string FindWebDirectory(const std::string& override, const std::string& executable);

// Serves the Jobs HTTP API, the page and its data. Knows the head only through the channel.
//
// Thread:   one of its own; Start, Stop and the getters from any other.
// Lifetime: Stop returns when every connection and every call to the head has ended; the destructor stops.
// Failure:  Start says why it cannot listen. While the head does not answer, requests get 503 and followed logs are cut without
//           a closing frame, so that nobody takes them for complete.
class DashboardServer {
 public:
  static absl::StatusOr<std::unique_ptr<DashboardServer>> Start(DashboardOptions options, std::shared_ptr<grpc::Channel> head);
  ~DashboardServer();

  uint16_t port() const;
  std::string url() const;   // "http://127.0.0.1:8265"
  void Stop();

 private:
  class Impl;
  explicit DashboardServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy
