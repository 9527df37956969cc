#pragma once

// filter (alive, affinity, resources, labels) -> fit (available) -> score -> pick.

#include <optional>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/prng.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

// The node to use, or none. Cost grows slower than the number of nodes. The caller then takes the demand from the view
// (ClusterView::Take; for a BundleAffinity, with the bundle that FitBundle names).
//
// Score: the node with most bytes of the demand's arguments; else nodes without GPU for demands without GPU; else by
// strategy:
//   default   the first node (in the order of joining) that is used less than half; then the least used one, ties at
//   random SPREAD    the node that was taken from longest ago, ties at random
std::optional<NodeId> Place(const ClusterView& view, const Demand& demand, Prng& prng);

struct GroupPlaceOptions {
  // Who asks: nodes that are kept for another group are not used.
  GroupId group;
  // Bundles that are placed already: a node for each bundle of the demand, nil for those to place. Empty: all are to be
  // placed.
  std::vector<NodeId> placed;
  // Place as if nothing ran: what the group would use if everything became free.
  bool ignore_usage = false;
};

// A node for each bundle, all or nothing; bundles that were placed already keep theirs. When it finds none there may
// still be a placement that only a full search would find (bin packing): it tries bundles from the largest to the
// smallest.
std::optional<std::vector<NodeId>> PlaceGroup(const ClusterView& view, const GroupDemand& demand, Prng& prng,
                                              const GroupPlaceOptions& options = {});

}  // namespace argosy::scheduler
