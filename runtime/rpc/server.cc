#include "runtime/rpc/server.h"

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>

#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"

namespace argosy::rpc {

bool IsLoopback(const std::string& ip) { return ip.starts_with("127.") || ip == "::1" || ip == "localhost"; }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (options.token.IsEmpty() && !IsLoopback(options.bind_ip)) {
    return InvalidArgument("binding to {} without a cluster token would let anyone use the cluster: keep 127.0.0.1 or give a token",
                           options.bind_ip);
  }
  std::string host = options.bind_ip.find(':') != std::string::npos ? "[" + options.bind_ip + "]" : options.bind_ip;
  std::string address = fmt::format("{}:{}", host, options.port);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);   // a taken port is an error, not a second server
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Unavailable("cannot listen on {}: the port is taken or the address is not this host's; choose another, or 0 for any free port",
                       address);
  }
  std::unique_ptr<Server> result(new Server());
  result->token_ = options.token;
  result->port_ = static_cast<uint16_t>(port);
  if (options.bind_ip == "0.0.0.0") host = "127.0.0.1";
  if (options.bind_ip == "::") host = "[::1]";
  result->local_address_ = fmt::format("{}:{}", host, port);
  result->server_ = std::move(server);
  return result;
}

Server::~Server() { Stop(absl::ZeroDuration()); }

std::shared_ptr<grpc::Channel> Server::LocalChannel() { return OpenChannel({.address = local_address_, .token = token_}); }

void Server::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(absl::ToInt64Milliseconds(grace)));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace argosy::rpc
