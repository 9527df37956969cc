#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "argosy/channel.h"
#include "train/collective/transport.h"

namespace argosy::train {

// The group's byte streams between actors: one argosy::Channel for each pair of ranks.
//
// Thread:   as Transport says.
// Lifetime: the channels end with it.
// Failure:  what the channels throw, as statuses.
class ChannelTransport : public Transport {
 public:
  // Every rank calls this with the same `endpoints` (one a rank) and `name`; a pair's lower rank accepts, the higher one connects.
  static absl::StatusOr<std::unique_ptr<ChannelTransport>> Open(int rank, const std::vector<Endpoint>& endpoints,
                                                                const std::string& name, absl::Duration timeout);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(channels_.size()); }
  absl::Status Send(int peer, std::span<const std::byte> bytes, absl::Time deadline) override;
  absl::Status Receive(int peer, std::span<std::byte> bytes, absl::Time deadline) override;
  void Close(std::string_view reason) override;

 private:
  ChannelTransport(int rank, std::vector<Channel> channels) : rank_(rank), channels_(std::move(channels)) {}
  int rank_;
  std::vector<Channel> channels_;   // by rank; our own stays closed
};

}  // namespace argosy::train
