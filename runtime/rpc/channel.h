#pragma once

// Channels whose every call carries the cluster token.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/token.h"

namespace argosy::rpc {

inline constexpr int kMessageBytesMax = 64 << 20;

struct ChannelOptions {
  std::string address;   // host:port
  Token token;
  // How soon a broken connection is tried again, at most.
  absl::Duration reconnect_max = absl::Seconds(1);
};

// Connects when first used; calls fail with UNAVAILABLE while nobody listens there. An own connection, not one shared with other
// channels to the same address.
std::shared_ptr<grpc::Channel> OpenChannel(const ChannelOptions& options);

// Waits until the head at the channel's other end can be reached. Unavailable names `address`.
absl::Status WaitConnected(grpc::Channel& channel, const std::string& address, absl::Duration timeout);

void SetDeadline(grpc::ClientContext& context, absl::Duration from_now);

}  // namespace argosy::rpc
