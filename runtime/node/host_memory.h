#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace argosy::node {

// How much of the host's memory is in use, as the kernel tells it.
struct HostMemory {
  uint64_t total = 0;                         // bytes, as the others
  uint64_t used = 0;                          // cannot be had without swapping
  // Of the control group that is nearest to its end: this process's own, or one that it is inside of. None: none has a limit below the
  // host's memory.
  std::optional<uint64_t> group_limit;
  uint64_t group_used = 0;                    // without what the kernel can drop at once
  std::string group;                          // its path, "/system.slice/argosy.service"
  uint64_t available = 0;                     // what neither the host nor any of those groups is without
  std::optional<double> stalled;              // share of the last 10 s in which all tasks waited for memory, 0 to 1

  // Of whichever is nearer to its end.
  bool group_is_nearer() const;
  double share() const;
  std::string ToString() const;               // "14.9 GiB of the host's 15.6 GiB (95.3%)"
};

// Reads /proc/meminfo, /proc/pressure/memory and the control groups around this process, version 2 or 1, whichever are there: a limit of any
// group that its own lies in holds for it too.
//
// Thread:   any.
// Failure:  Read: NOT_FOUND when /proc/meminfo does not say how much is available. Of the rest what is missing is left out.
class MemoryReader {
 public:
  explicit MemoryReader(std::string proc = "/proc", std::string cgroup = "/sys/fs/cgroup") : proc_(std::move(proc)), cgroup_(std::move(cgroup)) {}

  absl::StatusOr<HostMemory> Read() const;
  // What a process and its children have for themselves, in memory or swapped out; 0 when there is no such process.
  uint64_t OfProcess(uint32_t pid) const;
  // Names the kernel's run: two daemons that read the same share a host.
  std::string BootId() const;

 private:
  uint64_t OfProcess(uint32_t pid, int depth) const;
  void ReadGroups(HostMemory& memory) const;

  std::string proc_;
  std::string cgroup_;
};

}  // namespace argosy::node
