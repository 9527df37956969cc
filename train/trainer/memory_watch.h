#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace argosy::train {

// The process's own memory: anonymous and shared pages, in bytes; files that are merely cached are not counted.
int64_t ProcessMemory();

// Looks at ProcessMemory a hundred times a second and keeps the highest value above what it was at the start.
//
// Thread:   any asks; it has one of its own.
// Lifetime: from construction, which takes the base value, to destruction.
class MemoryWatch {
 public:
  MemoryWatch();
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;

  int64_t PeakBytes() const { return peak_.load(); }

 private:
  const int64_t base_;
  std::atomic<int64_t> peak_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace argosy::train
