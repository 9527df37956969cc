#pragma once

#include "absl/time/time.h"

namespace argosy {

// Where processes read the time. The pure cores never do: `now` is passed to them.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; only differences mean anything.
  virtual absl::Time Now() const = 0;
  // The calendar's time, for what people read.
  virtual absl::Time WallNow() const = 0;

  static const Clock& Real();
};

// Milliseconds since the epoch, as the Jobs API writes times.
int64_t UnixMillis(absl::Time wall_time);

}  // namespace argosy
