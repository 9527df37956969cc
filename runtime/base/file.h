#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace argosy {

// The whole file. NotFound, PermissionDenied, ... with the path in the message.
absl::StatusOr<std::string> ReadFile(const std::string& path);

struct WriteFileOptions {
  unsigned mode = 0644;
  bool sync = false;  // fsync the file and its folder before returning
};

// Replaces `path` at once: temporary name in the same folder, then rename. A crash leaves the old file or the new one.
absl::Status WriteFileAtomic(const std::string& path, std::string_view content, WriteFileOptions options = {});

// Like mkdir -p; new folders get `mode`.
absl::Status MakeDirectories(const std::string& path, unsigned mode = 0755);

}  // namespace argosy
