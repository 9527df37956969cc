#include "runtime/node/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <vector>

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

// The path and those of all that it is in, the innermost first. One that leads outside (of a namespace) is nothing below the root.
std::vector<std::string> PathAndParents(std::string path) {
  std::vector<std::string> paths;
  if (path.find("..") == std::string::npos && path.starts_with('/')) {
    while (path.size() > 1) {
      paths.push_back(path);
      path.resize(path.rfind('/'));
    }
  }
  paths.emplace_back();
  return paths;
}

// This process's group in one hierarchy, from the text of /proc/self/cgroup. `controller`: of version 1; empty: version 2.
std::string GroupPath(std::string_view text, std::string_view controller) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);   // "4:memory,cpu:/path" or "0::/path"
    at = end + 1;
    size_t first = line.find(':');
    size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    std::string names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    bool found = controller.empty() ? line.substr(0, first) == "0" && names == ",," : names.find(fmt::format(",{},", controller)) != names.npos;
    if (found) return std::string(line.substr(second + 1));
  }
  return "/";
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
  return fmt::format("{} of the {}'s {} ({:.1f}%)", BytesText(group_is_nearer() ? group_used : used), group_is_nearer() ? group.empty() ? "control group" : "control group " + group : "host",
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

  memory.available = std::min(memory.total, *available * 1024);
  ReadGroups(memory);

  std::ifstream pressure(proc_ + "/pressure/memory");
  for (std::string line; std::getline(pressure, line);) {
    double average = 0;
    if (std::sscanf(line.c_str(), "full avg10=%lf", &average) == 1) memory.stalled = average / 100;
  }
  return memory;
}

void MemoryReader::ReadGroups(HostMemory& memory) const {
  struct Hierarchy { const char* root; const char* controller; const char* limit; const char* used; const char* droppable; };
  const std::string groups = Text(proc_ + "/self/cgroup");
  for (const Hierarchy& hierarchy :
       {Hierarchy{"", "", "/memory.max", "/memory.current", "inactive_file"},
        Hierarchy{"/unified", "", "/memory.max", "/memory.current", "inactive_file"},
        Hierarchy{"/memory", "memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"}}) {
    for (const std::string& path : PathAndParents(GroupPath(groups, hierarchy.controller))) {
      const std::string folder = cgroup_ + hierarchy.root + path;
      std::optional<uint64_t> limit = Number(folder + hierarchy.limit);
      if (!limit || *limit == 0 || *limit >= memory.total) continue;
      std::optional<uint64_t> used = Number(folder + hierarchy.used);
      if (!used) continue;
      *used -= std::min(*used, Field(Text(folder + "/memory.stat"), hierarchy.droppable).value_or(0));
      memory.available = std::min(memory.available, *limit - std::min(*limit, *used));
      if (memory.group_limit && static_cast<double>(*used) / static_cast<double>(*limit) <=
                                    static_cast<double>(memory.group_used) / static_cast<double>(*memory.group_limit)) {
        continue;
      }
      memory.group_limit = limit;
      memory.group_used = *used;
      memory.group = path;
    }
  }
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
