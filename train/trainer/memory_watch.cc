#include "train/trainer/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace argosy::train {

int64_t ProcessMemory() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  int64_t kb = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    long long value;
    if (std::sscanf(line, "RssAnon: %lld kB", &value) == 1 || std::sscanf(line, "RssShmem: %lld kB", &value) == 1) kb += value;
  }
  std::fclose(file);
  return kb * 1024;
}

MemoryWatch::MemoryWatch() : base_(ProcessMemory()), thread_([this] {
  while (!stop_.load()) {
    peak_.store(std::max(peak_.load(), ProcessMemory() - base_));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}) {}

MemoryWatch::~MemoryWatch() {
  stop_.store(true);
  thread_.join();
}

}  // namespace argosy::train
