#include "train/trainer/channel_transport.h"

#include <algorithm>
#include <functional>

#include "absl/time/clock.h"
#include "argosy/error.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// The API throws; nothing above this module does.
absl::Status StatusOf(const std::function<void()>& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const GetTimeoutError& error) {
    return absl::DeadlineExceededError(error.what());
  } catch (const Error& error) {
    return absl::UnavailableError(error.what());
  }
}

Timeout Until(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return {};
  return Timeout(std::max(absl::ZeroDuration(), deadline - absl::Now()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelTransport>> ChannelTransport::Open(int rank, const std::vector<Endpoint>& endpoints,
                                                                         const std::string& name, absl::Duration timeout) {
  int size = static_cast<int>(endpoints.size());
  absl::Time deadline = absl::Now() + timeout;
  std::vector<Channel> channels(endpoints.size());
  auto pair_name = [&](int low, int high) { return fmt::format("{}/{}-{}", name, low, high); };
  // Connect does not wait for the peer's Accept, so that all connects first and then all accepts cannot wait in a circle.
  for (int peer = 0; peer < rank; ++peer) {
    absl::Status status = StatusOf([&] { channels[peer] = Channel::Connect(endpoints[peer], pair_name(peer, rank), Until(deadline)); });
    if (!status.ok()) return Annotate(status, fmt::format("rank {} connecting to rank {}", rank, peer));
  }
  for (int peer = rank + 1; peer < size; ++peer) {
    absl::Status status = StatusOf([&] { channels[peer] = Channel::Accept(pair_name(rank, peer), Until(deadline)); });
    if (!status.ok()) return Annotate(status, fmt::format("rank {} waiting for rank {}", rank, peer));
  }
  return std::unique_ptr<ChannelTransport>(new ChannelTransport(rank, std::move(channels)));
}

absl::Status ChannelTransport::Send(int peer, std::span<const std::byte> bytes, absl::Time deadline) {
  return StatusOf([&] { channels_[peer].Send(bytes, Until(deadline)); });
}

absl::Status ChannelTransport::Receive(int peer, std::span<std::byte> bytes, absl::Time deadline) {
  return StatusOf([&] { channels_[peer].Receive(bytes, Until(deadline)); });
}

void ChannelTransport::Close(std::string_view reason) {
  for (Channel& channel : channels_) {
    if (channel.IsOpen()) channel.Abort(reason);
  }
}

}  // namespace argosy::train
