#include "runtime/base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace argosy {

bool MayHaveHappened(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal: return true;
    default: return false;
  }
}

absl::Status ErrnoStatus(int saved_errno, std::string_view what) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  switch (saved_errno) {
    case ENOENT: case ESRCH: code = absl::StatusCode::kNotFound; break;
    case EEXIST: case EADDRINUSE: code = absl::StatusCode::kAlreadyExists; break;
    case EACCES: case EPERM: code = absl::StatusCode::kPermissionDenied; break;
    case EINVAL: case ENAMETOOLONG: case ENOTDIR: case EISDIR: code = absl::StatusCode::kInvalidArgument; break;
    case ENOSPC: case ENOMEM: case EMFILE: case ENFILE: case EDQUOT: code = absl::StatusCode::kResourceExhausted; break;
    case ECONNREFUSED: case ECONNRESET: case EPIPE: case ENOTCONN: case ENETUNREACH: case EHOSTUNREACH: case EAGAIN:
      code = absl::StatusCode::kUnavailable;
      break;
    case ETIMEDOUT: code = absl::StatusCode::kDeadlineExceeded; break;
    default: break;
  }
  return MakeStatus(code, "{}: {}", what, std::strerror(saved_errno));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), ToAbsl(fmt::format("{}: {}", context, Message(status))));
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, condition, detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace internal
}  // namespace argosy
