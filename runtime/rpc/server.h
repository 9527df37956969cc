#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/token.h"

namespace grpc {
class Channel;
class Server;
class Service;
}  // namespace grpc

namespace argosy::rpc {

struct ServerOptions {
  std::string bind_ip = "127.0.0.1";
  uint16_t port = 0;                          // 0: any free
  Token token;                                // empty: authentication is off
  std::vector<grpc::Service*> services;       // outlive the server; each checks the token with a CallGate (see call.h)
};

// True for 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const std::string& ip);

// A listening gRPC server.
//
// Thread:   any.
// Lifetime: Stop before the services go.
// Failure:  Start refuses to bind wider than loopback without a token, and names the port that is taken.
class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();

  uint16_t port() const { return port_; }
  // A channel to this server's own port; its calls carry the token.
  std::shared_ptr<grpc::Channel> LocalChannel();
  // Refuses new calls, cancels what still runs after `grace`, returns when the last handler is done.
  void Stop(absl::Duration grace);

 private:
  Server() = default;

  Token token_;
  std::string local_address_;   // host:port
  uint16_t port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace argosy::rpc
