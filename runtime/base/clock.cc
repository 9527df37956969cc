#include "runtime/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace argosy {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

int64_t UnixMillis(absl::Time wall_time) { return absl::ToUnixMillis(wall_time); }

}  // namespace argosy
