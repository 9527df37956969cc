#pragma once

// Status helpers. Debian 12's Abseil has its own string_view, so only std types appear in our signatures: these are the adapters.

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "spdlog/fmt/fmt.h"

namespace argosy {

inline absl::string_view ToAbsl(std::string_view text) { return absl::string_view(text.data(), text.size()); }
inline std::string_view ToStd(absl::string_view text) { return std::string_view(text.data(), text.size()); }

// The message alone, without the code's name.
inline std::string Message(const absl::Status& status) { return std::string(ToStd(status.message())); }

template <class... Args>
absl::Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(code, ToAbsl(fmt::format(format, std::forward<Args>(args)...)));
}
template <class... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}
template <class... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kNotFound, format, std::forward<Args>(args)...);
}
template <class... Args>
absl::Status Unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}
template <class... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kFailedPrecondition, format, std::forward<Args>(args)...);
}
template <class... Args>
absl::Status Internal(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInternal, format, std::forward<Args>(args)...);
}

// Whether what was asked of another process may have been done although the call ended so: what a broken or called-off call leaves open.
bool MayHaveHappened(const absl::Status& status);

// "<what>: <strerror>" with the code that fits the errno. `saved_errno` is read by the caller right after the failing call.
absl::Status ErrnoStatus(int saved_errno, std::string_view what);

// The same status with "context: " put before its message.
absl::Status Annotate(const absl::Status& status, std::string_view context);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& detail);
inline std::string CheckDetail() { return {}; }
template <class... Args>
std::string CheckDetail(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace internal
}  // namespace argosy

// For what may not happen. A peer, a disk or a user can never trip it. ARGOSY_CHECK(cond) or ARGOSY_CHECK(cond, "format {}", x).
#define ARGOSY_CHECK(condition, ...)                                              \
  do {                                                                            \
    if (!(condition)) [[unlikely]]                                                \
      ::argosy::internal::CheckFailed(__FILE__, __LINE__, #condition,             \
                                      ::argosy::internal::CheckDetail(__VA_ARGS__)); \
  } while (false)

#define ARGOSY_RETURN_IF_ERROR(expression)                          \
  do {                                                              \
    if (::absl::Status argosy_status_ = (expression); !argosy_status_.ok()) return argosy_status_; \
  } while (false)

#define ARGOSY_CONCAT_INNER(a, b) a##b
#define ARGOSY_CONCAT(a, b) ARGOSY_CONCAT_INNER(a, b)
#define ARGOSY_ASSIGN_OR_RETURN(left, expression) \
  ARGOSY_ASSIGN_OR_RETURN_INNER(ARGOSY_CONCAT(argosy_status_or_, __LINE__), left, expression)
#define ARGOSY_ASSIGN_OR_RETURN_INNER(temporary, left, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) return std::move(temporary).status();       \
  left = std::move(temporary).value()
