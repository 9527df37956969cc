#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace argosy::train {

// Where a CheckpointWriter's bytes go when that is not a folder: a store of objects that appear whole.
//
// Thread:   one at a time.
// Lifetime: destroyed before Commit has succeeded, it takes back what it has sent.
// Failure:  every call says which object; after an error only destruction is useful.
class ObjectSink {
 public:
  virtual ~ObjectSink() = default;
  // A large object, in pieces. Nobody sees it before Commit.
  virtual absl::Status Begin(std::string_view name, int64_t bytes) = 0;
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  virtual absl::Status End() = 0;
  // A small one.
  virtual absl::Status Put(std::string_view name, std::string_view content) = 0;
  // Makes all of them appear, checked, and `manifest` last.
  virtual absl::Status Commit(std::string_view manifest) = 0;
};

}  // namespace argosy::train
