#include "runtime/node/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <string_view>

#include "runtime/base/file.h"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

constexpr int kDepthMax = 8;   // of children of children

// Of the text's line "name: value unit" or "name value". Looked for instead of reading all lines, as this is done several times a second.
std::optional<uint64_t> Field(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    size_t value = at + name.size();
    if (value < text.size() && text[value] == ':') ++value;
    size_t digit = text.find_first_not_of(" \t", value);
    if (digit == value || digit == std::string_view::npos) continue;   // a longer name
    uint64_t number = 0;
    if (std::from_chars(text.data() + digit, text.data() + text.size(), number).ec == std::errc()) return number;
  }
  return std::nullopt;
}

// Empty when it is not there.
std::string Text(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  return text.ok() ? *std::move(text) : std::string();
}

std::optional<uint64_t> Number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;   // "max", or no such file
}

}  // namespace

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
  const std::string info = Text(proc_ + "/meminfo");
  const uint64_t total = Field(info, "MemTotal").value_or(0);
  const std::optional<uint64_t> available = Field(info, "MemAvailable");
  if (total == 0 || !available) {
    return NotFound("{}/meminfo does not say how much memory is available", proc_);
  }
  memory.total = total * 1024;
  memory.used = memory.total - std::min(memory.total, *available * 1024);

  struct Group { const char* limit; const char* used; const char* stat; const char* droppable; };
  for (const Group& group : {Group{"/memory.max", "/memory.current", "/memory.stat", "inactive_file"},
                             Group{"/memory/memory.limit_in_bytes", "/memory/memory.usage_in_bytes", "/memory/memory.stat", "total_inactive_file"}}) {
    std::optional<uint64_t> limit = Number(cgroup_ + group.limit);
    std::optional<uint64_t> used = Number(cgroup_ + group.used);
    if (!limit || !used || *limit == 0 || *limit >= memory.total) continue;
    uint64_t droppable = Field(Text(cgroup_ + group.stat), group.droppable).value_or(0);
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
  const std::string status = Text(folder + "/status");
  // Without shared memory, which the object store's mapping is.
  std::optional<uint64_t> resident = Field(status, "RssAnon");
  if (!resident) resident = Field(status, "VmRSS");
  uint64_t kilobytes = resident.value_or(0) + Field(status, "VmSwap").value_or(0);
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
