#include "train/trainer/rank_set.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "runtime/base/status.h"
#include "train/trainer/progress.h"

namespace argosy::train {
namespace {

constexpr absl::StatusCode kLost = absl::StatusCode::kUnavailable;

}  // namespace

bool IsRankLost(const absl::Status& status) { return status.code() == kLost; }

absl::StatusOr<std::unique_ptr<RankSet>> RankSet::Start(const RankSetOptions& options) {
  const ScalingConfig& scaling = options.scaling;
  std::unique_ptr<RankSet> set(new RankSet());
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    Bundle bundle{.resources = scaling.resources_per_worker, .label_selector = scaling.label_selector};
    if (rank == 0) {
      for (const auto& [name, amount] : scaling.trainer_resources) bundle.resources[name] += amount;
    }
    set->bundles_.push_back(std::move(bundle));
  }
  set->group_ = CreatePlacementGroup({.bundles = set->bundles_, .strategy = GroupStrategy::kPack, .name = options.name});
  const absl::Time deadline = options.timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : absl::Now() + options.timeout;
  absl::Time next_word = absl::Now() + absl::Seconds(2);
  // Short waits: a signal to the driver is seen in between.
  while (!set->group_.Wait(std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Milliseconds(250)))) {
    bool over = absl::Now() >= deadline;
    if (!over && absl::Now() < next_word) {
      if (options.waiting && !options.waiting("")) return absl::CancelledError("stopped while the workers waited to be placed");
      continue;
    }
    std::string reason = set->group_.PendingReason();
    if (over) return absl::DeadlineExceededError(ToAbsl(reason));
    next_word = absl::Now() + absl::Seconds(10);
    if (options.waiting && !options.waiting(reason)) return absl::CancelledError("stopped while the workers waited to be placed");
  }
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    set->ranks_.push_back(Spawn<RankWorker>({.resources = set->bundles_[rank].resources, .placement_group = set->group_.id(),
                                             .bundle_index = rank}, rank, options.ranks));
  }
  ARGOSY_ASSIGN_OR_RETURN(set->hellos_, set->CallAll<&RankWorker::Hello>());
  return set;
}

RankSet::~RankSet() {
  try {
    for (const Actor<RankWorker>& rank : ranks_) Kill(rank);
    if (!group_.id().IsNil()) Remove(group_);
  } catch (const std::exception&) {
    // The cluster is gone, and the actors with it.
  }
}

absl::Status RankSet::Failures::Reason(const std::vector<size_t>& silent) const {
  if (!own.empty()) return own.front();
  if (silent.empty()) return lost.front();
  // A rank that hangs says nothing; who waited for it says in what.
  for (size_t rank : silent) {
    for (const absl::Status& status : lost) {
      if (Message(status).find(fmt::format("rank {} in ", rank)) == std::string::npos) continue;
      return MakeStatus(kLost, "rank {} does not answer: {}", rank, Message(status));
    }
  }
  return MakeStatus(kLost, "rank {} does not answer: {}", fmt::join(silent, ", "), Message(lost.front()));
}

void RankSet::Note(Failures& failures, const std::function<void()>& get) {
  try {
    get();
  } catch (const TaskError& error) {
    // A rank's own message names the rank, and the node where that matters.
    bool lost = error.type().ends_with("PeerLost");
    absl::Status status = MakeStatus(lost ? kLost : absl::StatusCode::kInternal, "{}", error.message());
    (lost ? failures.lost : failures.own).push_back(std::move(status));
  } catch (const ActorDiedError& error) {
    // Before those that only heard of it.
    failures.lost.insert(failures.lost.begin(), MakeStatus(kLost, "{}", error.what()));
  } catch (const Error& error) {
    failures.lost.push_back(MakeStatus(kLost, "{}", error.what()));
  }
}

}  // namespace argosy::train
