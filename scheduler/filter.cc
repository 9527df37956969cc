#include "scheduler/filter.h"

#include <variant>

namespace argosy::scheduler {
namespace {

// Is one of the bundles that `affinity` names on `node`, and does `fits` accept one of them?
template <class Fits>
bool AnyBundle(const NodeView& node, const BundleAffinity& affinity, Fits fits) {
  if (affinity.bundle_index >= 0) {
    auto it = node.bundles.find({affinity.group, affinity.bundle_index});
    return it != node.bundles.end() && fits(it->second);
  }
  for (auto it = node.bundles.lower_bound({affinity.group, 0});
       it != node.bundles.end() && it->first.group == affinity.group; ++it) {
    if (fits(it->second)) return true;
  }
  return false;
}

}  // namespace

std::string_view ToString(Filter filter) {
  switch (filter) {
    case Filter::kNone: return "none";
    case Filter::kAlive: return "alive";
    case Filter::kDraining: return "draining";
    case Filter::kAffinity: return "affinity";
    case Filter::kGroup: return "group";
    case Filter::kLabels: return "labels";
    case Filter::kResources: return "resources";
    case Filter::kGathered: return "gathered";
    case Filter::kFit: return "fit";
  }
  return "unknown";
}

Demand Resolve(const ClusterView& view, const Demand& demand) {
  Demand resolved = demand;
  const auto* affinity = std::get_if<NodeAffinity>(&demand.strategy);
  if (affinity == nullptr || !affinity->soft) return resolved;
  resolved.strategy = NodeAffinity{affinity->node, false};
  const NodeView* node = view.Find(affinity->node);
  if (node == nullptr || !CanEverFit(*node, resolved)) resolved.strategy = DefaultStrategy{};
  return resolved;
}

Filter Check(const NodeView& node, const Demand& demand, GroupId gathering) {
  if (!node.alive) return Filter::kAlive;
  if (node.draining) return Filter::kDraining;
  const auto* bundle = std::get_if<BundleAffinity>(&demand.strategy);
  if (const auto* affinity = std::get_if<NodeAffinity>(&demand.strategy);
      affinity != nullptr && affinity->node != node.id) {
    return Filter::kAffinity;
  }
  if (bundle != nullptr && !AnyBundle(node, *bundle, [](const BundleView&) { return true; })) return Filter::kGroup;
  if (!demand.labels.Matches(node.labels)) return Filter::kLabels;
  if (bundle != nullptr) {
    if (!AnyBundle(node, *bundle, [&](const BundleView& view) { return view.total.Contains(demand.resources); }))
      return Filter::kResources;
    if (!AnyBundle(node, *bundle, [&](const BundleView& view) { return view.available.Contains(demand.resources); }))
      return Filter::kFit;
    return Filter::kNone;
  }
  if (!node.total.Contains(demand.resources)) return Filter::kResources;
  if (!node.gathered_for.IsNil() && node.gathered_for != gathering) return Filter::kGathered;
  if (!node.available.Contains(demand.resources)) return Filter::kFit;
  return Filter::kNone;
}

bool CanEverFit(const NodeView& node, const Demand& demand) {
  Filter filter = Check(node, demand);
  return filter == Filter::kNone || filter == Filter::kGathered || filter == Filter::kFit;
}

}  // namespace argosy::scheduler
