#include "runtime/head/demand_record.h"

#include "runtime/base/status.h"

namespace argosy::head {

DemandRecord ToRecord(const scheduler::Demand& demand) {
  DemandRecord record{demand.resources.ToMap(), demand.labels.ToMap()};
  record.priority = demand.priority;
  record.job_priority = demand.job_priority;
  if (std::holds_alternative<scheduler::SpreadStrategy>(demand.strategy)) record.kind = DemandRecord::Kind::kSpread;
  if (const auto* node = std::get_if<scheduler::NodeAffinity>(&demand.strategy)) {
    record.kind = DemandRecord::Kind::kNode;
    record.node = node->node;
    record.soft = node->soft;
  }
  if (const auto* bundle = std::get_if<scheduler::BundleAffinity>(&demand.strategy)) {
    record.kind = DemandRecord::Kind::kBundle;
    record.group = bundle->group;
    record.bundle_index = bundle->bundle_index;
  }
  return record;
}

absl::StatusOr<scheduler::Demand> FromRecord(const DemandRecord& record) {
  scheduler::Demand demand;
  ARGOSY_ASSIGN_OR_RETURN(demand.resources, ResourceSet::FromMap(record.resources));
  ARGOSY_ASSIGN_OR_RETURN(demand.labels, scheduler::LabelSelector::FromMap(record.label_selector));
  demand.priority = record.priority;
  demand.job_priority = record.job_priority;
  switch (record.kind) {
    case DemandRecord::Kind::kDefault: break;
    case DemandRecord::Kind::kSpread: demand.strategy = scheduler::SpreadStrategy(); break;
    case DemandRecord::Kind::kNode: demand.strategy = scheduler::NodeAffinity{record.node, record.soft}; break;
    case DemandRecord::Kind::kBundle: demand.strategy = scheduler::BundleAffinity{record.group, record.bundle_index}; break;
  }
  return demand;
}

}  // namespace argosy::head
