#pragma once

// A job's priority among jobs that wait for the same nodes: higher ones first, equal ones in turns.

#include <charconv>
#include <optional>
#include <string_view>

namespace argosy {

inline constexpr int kJobPriorityMax = 1000;   // and -1000
// Where a submitted job's metadata has it, and where its entrypoint finds it.
inline constexpr char kJobPriorityMetadata[] = "argosy.priority";
inline constexpr char kJobPriorityVariable[] = "ARGOSY_JOB_PRIORITY";

// A whole number in the range, or none.
inline std::optional<int> ParseJobPriority(std::string_view text) {
  int priority = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), priority);
  if (error != std::errc() || end != text.data() + text.size() || priority < -kJobPriorityMax || priority > kJobPriorityMax) return std::nullopt;
  return priority;
}

}  // namespace argosy
