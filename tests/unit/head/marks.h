#pragma once

// The job, the node and the moment that the tests of the head's machines speak of.

#include "absl/time/time.h"
#include "runtime/base/id.h"

namespace argosy::head {

inline const JobId kJob = JobId::FromNumber(7);
inline const NodeId kNode = NodeId::FromNumber(1);
inline const absl::Time kT0 = absl::FromUnixSeconds(1000);

}  // namespace argosy::head
