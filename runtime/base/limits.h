#pragma once

// Bounds and defaults that more than one part must agree on. Each part's own settings live in that part.

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace argosy {

inline constexpr uint16_t kHeadPort = 6379;
inline constexpr uint16_t kDashboardPort = 8265;
inline constexpr uint16_t kNodeAgentPort = 52365;

// Values up to this size travel inside messages and live in their owner's heap; larger ones live in the object store.
inline constexpr size_t kInlineResultMax = 100 * 1024;

inline constexpr int kTaskRetriesDefault = 3;
// What a process keeps of finished tasks, so that lost results can be made again: bytes.
inline constexpr size_t kLineageBytesMax = 256ull << 20;
inline constexpr size_t kPendingCallsMax = 10'000;
inline constexpr size_t kFrameBytesMax = 64ull << 20;
inline constexpr size_t kPackageBytesMax = 512ull << 20;

inline constexpr absl::Duration kHeartbeatPeriod = absl::Seconds(1);
inline constexpr absl::Duration kNodeTimeout = absl::Seconds(10);
inline constexpr absl::Duration kJobStopGrace = absl::Seconds(3);
inline constexpr absl::Duration kJobStartTimeout = absl::Seconds(900);

// What a wire or gRPC peer must match: equal major, or a refusal that names both.
inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 0;
inline constexpr char kVersion[] = "0.1.0";

}  // namespace argosy
