#pragma once

// Why a demand waits, in words and figures. Runs the same filters as Place, over all nodes, when somebody asks.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"
#include "scheduler/filter.h"
#include "scheduler/place.h"

namespace argosy::scheduler {

struct Explanation {
  struct Reason {
    Filter filter = Filter::kNone;
    std::string text;       // "lack large_cpu_mem"
    std::string text_one;   // the same said of one node: "lacks large_cpu_mem"
    std::vector<NodeId> nodes;
    std::string nearest;   // "gpu-1 has GPU: 1, large_cpu_mem: 0": the rejected node that came closest
  };

  std::string demand;               // "CPU: 1, GPU: 1; labels zone=a"
  size_t nodes = 0;                 // all that were looked at, lost ones too
  std::vector<NodeId> usable;       // those that Place chooses from
  bool feasible = false;            // usable, or would be if what runs there ended
  std::vector<Reason> reasons;      // by filter, then most nodes first
  std::vector<std::string> hints;   // unknown resource or label keys, with "did you mean"

  // "needs GPU: 1, large_cpu_mem: 1; 3 nodes: 2 lack large_cpu_mem (nearest: gpu-1 has GPU: 1), 1 is busy
  // (big has GPU: 0 of 1 free); waits until something ends"
  std::string ToString() const;
};

// Why nodes were not used, grouped by filter and reason, nearest first. Agrees with Place (a test asserts it): Place
// finds a node exactly when `usable` is not empty. With `now` it says how long ago nodes were lost. `gathering` is the
// group for which the demand is asked.
Explanation Explain(const ClusterView& view, const Demand& demand, absl::Time now = absl::InfinitePast(),
                    GroupId gathering = {});

struct GroupExplanation {
  std::string demand;
  bool usable = false;     // PlaceGroup finds nodes
  bool feasible = false;   // ... or would, if everything that runs ended
  std::string summary;     // the reason that concerns the bundles together; empty when a bundle alone is the reason
  struct Bundle {
    int count = 0;   // equal bundles are explained once
    Explanation explanation;
  };
  std::vector<Bundle> bundles;   // the kinds of bundle that no node can take now; all kinds when the summary says why
  std::string ToString() const;
};

GroupExplanation ExplainGroup(const ClusterView& view, const GroupDemand& demand, Prng& prng,
                              const GroupPlaceOptions& options = {}, absl::Time now = absl::InfinitePast());

}  // namespace argosy::scheduler
