#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/prng.h"
#include "runtime/head/types.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand_queue.h"

namespace argosy::head {

// What a request for a node is for.
enum class WaitKind { kLease, kActor, kJob };

// One that waits for a node.
struct WaitEntry {
  WaitKind kind = WaitKind::kLease;
  std::string key;                 // the lease request's id, the actor's id (raw bytes), the job's name
  std::string what;                // for people: "tasks", "actor counter", "job raysubmit_..."
  JobId job;
  scheduler::Demand demand;
  absl::Time deadline = absl::InfiniteFuture();
};

// One demand and how many wait with it, for status.
struct PendingSummary {
  std::string what;
  ResourceMap resources;
  StringMap label_selector;
  uint32_t count = 0;
  std::string explanation;
};

// What waits for a node: leases, actors and jobs in one queue, so that they take turns.
//
// Thread:   the head's loop.
// Failure:  ResourceExhausted when 100,000 wait already.
class Placement {
 public:
  using Key = std::pair<WaitKind, std::string>;
  struct Placed { WaitEntry entry; NodeId node; std::optional<scheduler::BundleKey> bundle; };
  struct Overdue { WaitEntry entry; std::string explanation; };

  // The same key again is not added twice.
  absl::Status Add(WaitEntry entry, absl::Time now);
  // A node refused it: it waits again, from `until` on, so that the node's own report can come first.
  void AddLater(WaitEntry entry, absl::Time until);
  bool Cancel(WaitKind kind, const std::string& key);
  // Everything that can be placed now; each placement is taken from the view.
  std::vector<Placed> Serve(scheduler::ClusterView& view, Prng& prng, absl::Time now);
  // Those whose deadline has passed, with why they waited.
  std::vector<Overdue> Expire(const scheduler::ClusterView& view, absl::Time now);
  // Those that asked for a bundle of the group: it is gone.
  std::vector<WaitEntry> TakeGroup(GroupId group);

  std::optional<std::string> Explain(WaitKind kind, const std::string& key, const scheduler::ClusterView& view, absl::Time now) const;
  // Tasks by shape, actors and jobs one by one; the first `lines_max`.
  std::vector<PendingSummary> Summaries(const scheduler::ClusterView& view, absl::Time now, size_t lines_max) const;
  // Shapes that waited at least `age`, or that a job of a priority above 0 waits for, with the jobs that wait, for recall.
  struct WaitingShape { scheduler::Shape shape; std::vector<JobId> jobs; int job_priority = 0; };   // the highest
  std::vector<WaitingShape> Waiting(absl::Duration age, absl::Time now, size_t shapes_max) const;
  size_t size() const { return entries_.size(); }
  // When Serve or Expire has something to do even if nothing happens.
  absl::Time NextTime() const;

 private:
  struct Entry { WaitEntry entry; absl::Time added_at; absl::Time not_before; };

  scheduler::DemandQueue queue_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::map<Key, uint64_t> by_key_;
  std::multimap<absl::Time, uint64_t> later_;     // not in the queue until then
  uint64_t next_number_ = 1;
};

}  // namespace argosy::head
