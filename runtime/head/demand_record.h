#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/head/types.h"

namespace argosy::head {

// A demand as the journal keeps it.
struct DemandRecord {
  enum class Kind : uint8_t { kDefault, kSpread, kNode, kBundle };
  ResourceMap resources;
  StringMap label_selector;
  Kind kind = Kind::kDefault;
  NodeId node;
  bool soft = false;
  GroupId group;
  int32_t bundle_index = -1;
  int32_t priority = 0;
  int32_t job_priority = 0;
};

DemandRecord ToRecord(const scheduler::Demand& demand);
// Error names the resource or label that is wrong.
absl::StatusOr<scheduler::Demand> FromRecord(const DemandRecord& record);

}  // namespace argosy::head
