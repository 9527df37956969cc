#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "argosy/argosy.h"
#include "train/trainer/finetune.h"
#include "train/trainer/rank_worker.h"

namespace argosy::train {

// A rank is gone, or did not answer the others: the run can go on with new ranks. Every other error would come again.
bool IsRankLost(const absl::Status& status);

struct RankSetOptions {
  ScalingConfig scaling;
  int32_t ranks = 1;
  std::string name;
  absl::Duration timeout = absl::InfiniteDuration();   // to be placed
  // Called every few seconds while the ranks wait for room, with the reason; false gives up.
  std::function<bool(const std::string& reason)> waiting;
};

// The training actors of a run, between one failure and the next, from the driver's side.
//
// Thread:   the driver's one.
// Lifetime: destroying it kills the actors and gives their bundles back.
// Failure:  a call of all ranks ends with the first error; see IsRankLost.
class RankSet {
 public:
  // DeadlineExceeded with the scheduler's reason when they cannot be placed in time, Cancelled when `waiting` gave up.
  static absl::StatusOr<std::unique_ptr<RankSet>> Start(const RankSetOptions& options);
  ~RankSet();

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  const std::vector<RankHello>& hellos() const { return hellos_; }
  // What rank `rank` holds.
  const Resources& resources(int32_t rank) const { return bundles_[rank].resources; }

  // The method on every rank with the same arguments; one result a rank.
  template <auto Method, class... A>
  auto CallAll(const A&... arguments) {
    std::vector<decltype(ranks_[0].template Call<Method>(arguments...))> refs;
    for (const Actor<RankWorker>& rank : ranks_) refs.push_back(rank.Call<Method>(arguments...));
    return Collect(refs);
  }
  template <auto Method, class... A>
  auto CallRank0(const A&... arguments) {
    return Collect(std::vector{ranks_[0].Call<Method>(arguments...)});
  }

 private:
  // Statuses of the ranks that failed, in the order in which that was seen.
  struct Failures {
    std::vector<absl::Status> own;    // their own fault
    std::vector<absl::Status> lost;   // died, or lost another
    bool Any() const { return !own.empty() || !lost.empty(); }
    // The one to report, when `silent` ranks have not ended.
    absl::Status Reason(const std::vector<size_t>& silent) const;
  };
  static void Note(Failures& failures, const std::function<void()>& get);

  // After the first failure the others get a while to end too: the reason is with the rank that failed first, not with the one that
  // is heard first, and a lost node is known as lost when its rank's call ends.
  static constexpr absl::Duration kSettle = absl::Seconds(15);

  template <class T>
  static absl::StatusOr<std::vector<T>> Collect(const std::vector<ObjectRef<T>>& refs) {
    Failures failures;
    absl::Time end = absl::InfiniteFuture();
    std::vector<ObjectRef<T>> pending = refs;
    while (!pending.empty()) {
      WaitResult<T> result = end == absl::InfiniteFuture() ? Wait(pending) : Wait(pending, 1, std::max(absl::ZeroDuration(), end - absl::Now()));
      if (result.ready.empty()) break;
      for (const ObjectRef<T>& ref : result.ready) Note(failures, [&] { Get(ref); });
      pending = std::move(result.pending);
      if (!failures.own.empty()) break;
      if (failures.Any() && end == absl::InfiniteFuture()) end = absl::Now() + kSettle;
    }
    if (failures.Any()) {
      std::vector<size_t> silent;
      for (size_t i = 0; i < refs.size(); ++i) {
        if (std::find(pending.begin(), pending.end(), refs[i]) != pending.end()) silent.push_back(i);
      }
      return failures.Reason(silent);
    }
    return Get(refs);
  }

  RankSet() = default;
  PlacementGroup group_;
  std::vector<Bundle> bundles_;
  std::vector<Actor<RankWorker>> ranks_;
  std::vector<RankHello> hellos_;
};

}  // namespace argosy::train
