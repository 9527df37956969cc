#include "runtime/node/host_memory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/base/status.h"

namespace argosy::node {
namespace {

constexpr int kDepthMax = 8;   // of children of children

// The numbers of a file of lines "name: value unit", or "name value".
std::map<std::string, uint64_t> Numbers(const std::string& path) {
  std::map<std::string, uint64_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    if (name.ends_with(':')) name.pop_back();
    numbers[name] = value;
  }
  return numbers;
}

std::optional<uint64_t> Number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;   // "max", or no such file
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  if (bytes >= 1ull << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / 0x1p30);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
}

bool HostMemory::group_is_nearer() const {
  return group_limit && static_cast<double>(group_used) / static_cast<double>(*group_limit) > static_cast<double>(used) / static_cast<double>(total);
}

double HostMemory::share() const {
  return group_is_nearer() ? static_cast<double>(group_used) / static_cast<double>(*group_limit)
                           : static_cast<double>(used) / static_cast<double>(total);
}

std::string HostMemory::ToString() const {
  return fmt::format("{} of the {}'s {} ({:.1f}%)", BytesText(group_is_nearer() ? group_used : used), group_is_nearer() ? "control group" : "host",
                     BytesText(group_is_nearer() ? *group_limit : total), share() * 100);
}

absl::StatusOr<HostMemory> MemoryReader::Read() const {
  HostMemory memory;
  std::map<std::string, uint64_t> info = Numbers(proc_ + "/meminfo");
  if (!info.contains("MemTotal") || !info.contains("MemAvailable") || info["MemTotal"] == 0) {
    return NotFound("{}/meminfo does not say how much memory is available", proc_);
  }
  memory.total = info["MemTotal"] * 1024;
  memory.used = memory.total - std::min(memory.total, info["MemAvailable"] * 1024);

  struct Group { const char* limit; const char* used; const char* stat; const char* droppable; };
  for (const Group& group : {Group{"/memory.max", "/memory.current", "/memory.stat", "inactive_file"},
                             Group{"/memory/memory.limit_in_bytes", "/memory/memory.usage_in_bytes", "/memory/memory.stat", "total_inactive_file"}}) {
    std::optional<uint64_t> limit = Number(cgroup_ + group.limit);
    std::optional<uint64_t> used = Number(cgroup_ + group.used);
    if (!limit || !used || *limit == 0 || *limit >= memory.total) continue;
    uint64_t droppable = Numbers(cgroup_ + group.stat)[group.droppable];
    memory.group_limit = limit;
    memory.group_used = *used - std::min(*used, droppable);
    break;
  }

  std::ifstream pressure(proc_ + "/pressure/memory");
  for (std::string line; std::getline(pressure, line);) {
    double average = 0;
    if (std::sscanf(line.c_str(), "full avg10=%lf", &average) == 1) memory.stalled = average / 100;
  }
  return memory;
}

uint64_t MemoryReader::OfProcess(uint32_t pid) const { return OfProcess(pid, 0); }

uint64_t MemoryReader::OfProcess(uint32_t pid, int depth) const {
  const std::string folder = fmt::format("{}/{}", proc_, pid);
  std::map<std::string, uint64_t> status = Numbers(folder + "/status");
  // Without shared memory, which the object store's mapping is.
  uint64_t kilobytes = (status.contains("RssAnon") ? status["RssAnon"] : status["VmRSS"]) + status["VmSwap"];
  uint64_t bytes = kilobytes * 1024;
  std::ifstream children(fmt::format("{}/task/{}/children", folder, pid));
  for (uint32_t child = 0; depth < kDepthMax && children >> child;) bytes += OfProcess(child, depth + 1);
  return bytes;
}

std::string MemoryReader::BootId() const {
  std::ifstream file(proc_ + "/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace argosy::node
