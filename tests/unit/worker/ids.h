#pragma once

#include <cstdint>

#include "runtime/base/id.h"

namespace argosy::worker {

inline TaskId T(uint64_t n) { return TaskId::FromNumber(n); }
inline LeaseId L(uint64_t n) { return LeaseId::FromNumber(n); }
inline ObjectId O(uint64_t n) { return ObjectId::FromNumber(n); }

}  // namespace argosy::worker
