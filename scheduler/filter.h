#pragma once

// The one list of filters that Place runs to choose and Explain runs to tell.

#include <string_view>

#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

enum class Filter {
  kNone,    // usable
  kAlive,   // lost
  kDraining,
  kAffinity,   // another node is asked for
  kGroup,      // holds no bundle of the group that is asked for
  kLabels,
  kResources,   // the node's (or bundle's) total is too small: never
  kGathered,    // kept for a group that gathers
  kFit,         // what is free is too small: not now
};

std::string_view ToString(Filter filter);

// The demand with a soft NodeAffinity decided: hard while its node lives and could ever satisfy it, else the default
// strategy.
Demand Resolve(const ClusterView& view, const Demand& demand);

// The first filter that rejects `node`, or kNone, for a resolved demand. `gathering` may use the nodes that are kept
// for it.
Filter Check(const NodeView& node, const Demand& demand, GroupId gathering = {});
// The same, but for kGathered and kFit: can the node satisfy the demand once what runs there has ended?
bool CanEverFit(const NodeView& node, const Demand& demand);

}  // namespace argosy::scheduler
