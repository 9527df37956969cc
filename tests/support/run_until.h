#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"

namespace argosy::testing {

// Runs the loop until `condition` holds; false when `timeout` passed first.
inline bool RunUntil(async::Loop& loop, const std::function<bool()>& condition, absl::Duration timeout = absl::Seconds(20)) {
  absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    loop.RunFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace argosy::testing
