#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace argosy::worker {

// Where every thread of this process is, innermost call first, with the names of functions as far as the executable and its libraries
// have them. Each thread is interrupted by a signal (SIGRTMAX - 2) for it: sleeps and polls of user code may end early with EINTR, as
// under a debugger.
//
// Thread:   any, one at a time: others get UNAVAILABLE.
// Failure:  a thread that does not answer within `wait` (it blocks the signal, or is stuck in the kernel) is listed with its kernel state.
absl::StatusOr<std::string> AllStacks(absl::Duration wait);

}  // namespace argosy::worker
