#include "runtime/node/demand_codec.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <variant>

#include "runtime/base/status.h"
#include "scheduler/label_selector.h"

namespace argosy::node {

absl::StatusOr<scheduler::Demand> ParseDemand(const wire::Demand& demand) {
  scheduler::Demand parsed;
  ARGOSY_ASSIGN_OR_RETURN(parsed.resources, ResourceSet::FromMap(demand.resources));
  ARGOSY_ASSIGN_OR_RETURN(parsed.labels, scheduler::LabelSelector::FromMap(demand.label_selector));
  if (std::holds_alternative<wire::SpreadStrategy>(demand.strategy)) {
    parsed.strategy = scheduler::SpreadStrategy{};
  } else if (auto* node = std::get_if<wire::NodeAffinity>(&demand.strategy)) {
    parsed.strategy = scheduler::NodeAffinity{node->node, node->soft};
  } else if (auto* bundle = std::get_if<wire::BundleAffinity>(&demand.strategy)) {
    if (bundle->bundle_index < -1) return InvalidArgument("bundle index {}: want -1 (any) or a number from 0", bundle->bundle_index);
    parsed.strategy = scheduler::BundleAffinity{bundle->group, bundle->bundle_index};
  }
  for (const wire::ObjectLocation& location : demand.locality) {
    uint64_t bytes = std::min<uint64_t>(location.size, std::numeric_limits<int64_t>::max() / 1024);
    parsed.locality.push_back({location.node, static_cast<int64_t>(bytes)});
  }
  parsed.priority = demand.priority;
  parsed.retriable = demand.retriable;
  parsed.job_priority = demand.job_priority;
  return parsed;
}

absl::StatusOr<ResourceSet> ActorResources(const wire::ActorSpec& spec) {
  ARGOSY_ASSIGN_OR_RETURN(ResourceSet held, ResourceSet::FromMap(spec.running_resources));
  ARGOSY_ASSIGN_OR_RETURN(ResourceSet placement, ResourceSet::FromMap(spec.placement.resources));
  for (const auto& [name, amount] : placement.amounts()) {
    if (name != kCpu && held.Get(name) < amount) held.Set(name, amount);
  }
  return held;
}

}  // namespace argosy::node
