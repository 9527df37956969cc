#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/base/observation.h"
#include "runtime/base/unique_fd.h"
#include "runtime/wire/printed_names.h"

namespace argosy::node {

struct WorkerPrintsOptions {
  std::string session_dir;
  std::string node_name;
  absl::Duration period = absl::Milliseconds(100);
  uint64_t bytes_a_period = 64 * 1024;       // of one worker's stream
  uint64_t job_bytes_a_period = 256 * 1024;  // of all workers of one job
  uint64_t behind_max = 1 << 20;             // a stream further behind than this is skipped up to its newest part
  size_t line_max = 16 * 1024;               // a line without an end is cut here
};

// Reads what this node's workers print, as whole lines, for the drivers of their jobs. The files stay the record; this is the live view:
// who prints faster than the bounds has the oldest skipped, with a count. The kernel tells which files were written (inotify), so that
// workers that print nothing cost nothing.
//
// Thread:   the loop's.
// Lifetime: the loop outlives it.
// Failure:  a file that cannot be read shows nothing, and the log says so. Without inotify (its instances are bounded for a user) every
//           file is looked at each period.
class WorkerPrints {
 public:
  using Show = std::function<void(JobPrints prints)>;
  WorkerPrints(async::Loop& loop, WorkerPrintsOptions options, Show show);

  void SetNode(NodeId node) { node_ = node; }
  void Add(WorkerId worker, JobId job, uint32_t pid);
  // Shows the rest, also a last line without an end.
  void Ended(WorkerId worker);
  // Shows what the job's workers have written by now.
  void Flush(JobId job);
  // Nobody looks at this job.
  void Mute(JobId job);
  void Clear();

 private:
  struct Stream {
    UniqueFd file;
    uint64_t shown = 0;       // offset of the first byte that was not shown
    uint64_t skipped = 0;     // bytes before that, since the last message
  };
  struct Worker {
    JobId job;
    uint32_t pid = 0;
    Stream streams[2];        // output, error
    std::optional<wire::PrintedNames> names;
  };
  // Turns follow each other by `period` while there is something to read; then the next written file starts them again.
  void StartTurns();
  void WaitForWrites();
  void Poll();
  void NoteWritten();
  // Adds at most `budget` bytes of lines; with `all` also a line without an end.
  uint64_t Read(WorkerId id, Worker& worker, bool is_error, uint64_t budget, bool all, JobPrints& prints);
  void AddNamed(WorkerId id, Worker& worker, bool is_error, std::string text, JobPrints& prints);
  void ReadAll(WorkerId id, Worker& worker, JobPrints& prints);

  async::Loop& loop_;
  WorkerPrintsOptions options_;
  Show show_;
  NodeId node_;
  std::map<WorkerId, Worker> workers_;
  WorkerId first_;           // of the last turn
  std::set<WorkerId> unread_;   // may have written since they were read
  std::set<JobId> muted_;
  async::Timer timer_;
  bool polling_ = false;
  UniqueFd inotify_;
  std::optional<async::FdWatch> watch_;   // of inotify_; empty: there is none
};

}  // namespace argosy::node
