#pragma once

#include <cstdint>

#include "runtime/base/id.h"

namespace argosy::store {

inline ObjectId Object(uint64_t number) { return ObjectId::FromNumber(number); }

}  // namespace argosy::store
