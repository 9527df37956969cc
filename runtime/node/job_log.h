#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"

namespace argosy::node {

// One job's log file: the job appends to it, ranges of it are shipped to the head, and what the head has is punched out, so that offsets
// never change and the disk holds only what is on its way.
//
// Thread:   its owner's.
// Failure:  what the disk says.
class JobLog {
 public:
  struct Options {
    uint64_t chunk_bytes = 256 * 1024;
    uint64_t unacknowledged_max = 4ull << 20;
  };
  static absl::StatusOr<JobLog> Create(const std::string& path, Options options);
  static absl::StatusOr<JobLog> Create(const std::string& path) { return Create(path, Options{}); }

  // For the job: opened for appending.
  int append_fd() const { return append_.get(); }
  absl::Status Append(const std::string& text);

  struct Chunk { uint64_t offset = 0; std::string data; };
  // The next bytes to ship; empty when there are none, or enough are on their way.
  absl::StatusOr<Chunk> Next();
  // The head has every byte before `end`.
  void Acknowledge(uint64_t end);
  // The stream broke: what was not acknowledged is shipped again.
  void Rewind() { sent_ = acknowledged_; }
  // All that was written so far is acknowledged.
  absl::StatusOr<bool> IsShipped() const;
  uint64_t acknowledged() const { return acknowledged_; }
  // No further writer; frees the space, once all is shipped.
  void Remove();

 private:
  JobLog(std::string path, UniqueFd append, UniqueFd file, Options options)
      : path_(std::move(path)), append_(std::move(append)), file_(std::move(file)), options_(options) {}

  std::string path_;
  UniqueFd append_;
  UniqueFd file_;
  Options options_;
  uint64_t sent_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t punched_ = 0;
};

}  // namespace argosy::node
