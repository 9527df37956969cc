#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/base/unique_fd.h"

namespace argosy::node {

// Answers GET /healthz and the health paths that the field's probes use with "success", anything else with 404.
//
// Thread:   the loop's.
// Failure:  Start: the port is taken. A slow or bad peer is closed.
class HealthServer {
 public:
  // `ip` is an IPv4 address. Port 0: any free one.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(async::Loop& loop, const std::string& ip, uint16_t port);
  ~HealthServer();
  uint16_t port() const { return port_; }

 private:
  struct Peer;
  HealthServer(async::Loop& loop, UniqueFd listener, uint16_t port);
  void Accept();

  async::Loop& loop_;
  UniqueFd listener_;
  uint16_t port_;
  std::unordered_map<int, std::unique_ptr<Peer>> peers_;   // by descriptor; at most kPeersMax
  std::unique_ptr<async::FdWatch> watch_;
};

}  // namespace argosy::node
