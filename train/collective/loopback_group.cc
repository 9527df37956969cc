#include <algorithm>
#include <string>

#include "runtime/base/status.h"
#include "train/collective/group.h"
#include "train/collective/sum.h"

namespace argosy::train {
namespace {

class LoopbackGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Pending AllReduce(std::span<double>, Where) override { return Pending(status_); }
  Pending AllReduce(std::span<float>, Where) override { return Pending(status_); }
  Pending ReduceScatter(ConstElements input, const Cuts&, std::span<float> output, Into into, Where) override {
    if (into == Into::kAdd) {
      internal::Add(input, 0, output);
    } else {
      internal::Put(input, 0, output);
    }
    return Pending(status_);
  }
  Pending AllGather(std::span<const std::byte> own, std::span<std::byte> all, const Cuts&, int64_t, Where) override {
    if (own.data() != all.data()) std::copy(own.begin(), own.end(), all.begin());
    return Pending(status_);
  }
  Pending Broadcast(int, std::span<std::byte>, Where) override { return Pending(status_); }
  Pending Gather(int, std::span<const std::byte> own, std::vector<std::vector<std::byte>>* all, Where) override {
    all->assign(1, std::vector<std::byte>(own.begin(), own.end()));
    return Pending(status_);
  }
  Pending Send(int peer, std::span<const std::byte>, Where) override { return NoPeer(peer); }
  Pending Recv(int peer, std::span<std::byte>, Where) override { return NoPeer(peer); }
  Pending Barrier(Where) override { return Pending(status_); }
  void Abort(std::string_view reason) override {
    if (status_.ok()) status_ = MakeStatus(absl::StatusCode::kAborted, "{}", reason);
  }

 private:
  static Pending NoPeer(int peer) {
    return Pending(absl::Status(InvalidArgument("rank {} in a group of one rank", peer)));
  }

  absl::Status status_;
};

}  // namespace

Cuts CutEvenly(int64_t elements, int ranks) {
  constexpr int64_t kGrain = 64;
  int64_t grains = (elements + kGrain - 1) / kGrain;
  Cuts cuts(ranks + 1);
  for (int r = 0; r <= ranks; ++r) cuts[r] = std::min(elements, grains * r / ranks * kGrain);
  cuts[ranks] = elements;
  return cuts;
}

std::unique_ptr<Group> MakeLoopbackGroup() { return std::make_unique<LoopbackGroup>(); }

}  // namespace argosy::train
