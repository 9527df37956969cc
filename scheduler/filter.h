#pragma once

// The one list of filters that Place runs to choose and Explain runs to tell.

#include <string_view>

#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

enum class Filter {
  kNone,        // usable
  kAlive,       // lost
  kDraining,
  kAffinity,    // another node is asked for
  kGroup,       // holds no bundle of the group that is asked for
  kLabels,
  kResources,   // the node's (or bundle's) total is too small: never
  kFit,         // what is free is too small: not now
};

std::string_view ToString(Filter filter);

// The first filter that rejects `node`, or kNone. A soft NodeAffinity is not a filter here: Place tries its node first.
Filter Check(const NodeView& node, const Demand& demand);
// The same, but for kFit: can the node satisfy the demand once what runs there has ended?
bool CanEverFit(const NodeView& node, const Demand& demand);

}  // namespace argosy::scheduler
