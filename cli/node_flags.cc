#include "cli/node_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "nlohmann/json.hpp"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"
#include "runtime/node/node_server.h"
#include "runtime/rpc/utf8.h"
#include "scheduler/label_selector.h"

namespace argosy::cli {
namespace {

constexpr double kCpusMax = 100'000;
constexpr double kGpusMax = 10'000;
constexpr uint64_t kObjectStoreBytesMin = 4 << 20;   // two extents
constexpr double kBytesMax = 0x1p49;                 // 512 TiB: the largest that an amount of a resource holds
constexpr size_t kNodeNameMax = 255;
constexpr std::string_view kNodeIdLabel = "argosy.io/node-id";

}  // namespace

void AddNodeFlags(CLI::App& command, NodeFlags& flags) {
  command.add_option("--num-cpus", flags.num_cpus, "CPUs to offer (default: all of this host)");
  command.add_option("--num-gpus", flags.num_gpus, "GPUs to offer (default: all of this host)");
  command.add_option("--memory", flags.memory, "Memory to offer: bytes, or with K, M, G, T (default: what is available)");
  command.add_option("--resources", flags.resources, "Custom amounts as JSON, e.g. '{\"large_cpu_mem\": 1}'");
  command.add_option("--labels", flags.labels, "Facts about the node: k=v,k=v");
  command.add_option("--object-store-memory", flags.object_store_memory, "Size of the object store: bytes, or with K, M, G, T");
  command.add_option("--spill-dir", flags.spill_dir, "Folder for objects that the full store has no room for; none: they are not written to disk (default: in the session's folder, or /var/tmp when that is in memory)");
  command.add_option("--spill-max", flags.spill_max, "Bytes that may be spilled to disk, or with K, M, G, T (default: 90% of what is free there)");
  command.add_option("--memory-threshold", flags.memory_threshold, "Share of the host's memory from which the newest work that can be run again is ended (default: 0.95)");
  command.add_option("--memory-watch-period", flags.memory_watch_period, "Milliseconds between looks at the host's memory; 0: it is not watched (default: 250)");
  command.add_option("--workers-memory-max", flags.workers_memory_max, "Memory that the node's workers may take together: bytes, or with K, M, G, T (default: no bound)");
  command.add_option("--node-name", flags.name, "Name for people (default: the host's)");
  command.add_option("--node-ip", flags.ip, "Address of this node (default: the one by which it reaches the head)");
  command.add_option("--bind-ip", flags.bind_ip, "Address to listen on, when it is another than --node-ip: 0.0.0.0, or one behind a translation");
  command.add_option("--worker-ports", flags.worker_ports, "MIN-MAX: ports for workers and drivers, as other hosts reach them (default: any free)");
  command.add_option("--node-port", flags.wire_port, "Port for workers and other nodes; 0: any free")->capture_default_str();
  command.add_option("--agent-port", flags.agent_port, "Port of the health endpoint; 0: any free")->capture_default_str();
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& text, const char* flag) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  std::string unit(end == nullptr ? "" : end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  else if (unit.ends_with("B")) unit.resize(unit.size() - 1);
  double factor = unit.empty() ? 1 : unit == "K" ? 0x1p10 : unit == "M" ? 0x1p20 : unit == "G" ? 0x1p30 : unit == "T" ? 0x1p40 : 0;
  if (end == text.c_str() || factor == 0 || !(value * factor >= 1) || value * factor > kBytesMax) {
    return InvalidArgument("{} {}: give a number of bytes from 1 to 512T, or one with K, M, G or T, e.g. 4G", flag, text);
  }
  return static_cast<uint64_t>(value * factor);
}

absl::StatusOr<std::map<std::string, double>> ParseResources(const std::string& text) {
  std::map<std::string, double> amounts;
  if (text.empty()) return amounts;
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return InvalidArgument("--resources {}: give a JSON object, e.g. '{{\"large_cpu_mem\": 1}}'", text);
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number()) return InvalidArgument("--resources {}: the amount of {} must be a number, not {}", text, name, value.dump());
    if (name == kCpu || name == kGpu || name == kMemory || name == kObjectStoreMemory) {
      const char* flag = name == kCpu ? "--num-cpus" : name == kGpu ? "--num-gpus" : name == kMemory ? "--memory" : "--object-store-memory";
      return InvalidArgument("--resources {}: use {} for {}", text, flag, name);
    }
    amounts[name] = value.get<double>();
  }
  if (absl::StatusOr<ResourceSet> set = ResourceSet::FromMap(amounts); !set.ok()) return Annotate(set.status(), "--resources " + text);
  return amounts;
}

absl::StatusOr<node::NodeServerOptions> ToNodeOptions(const NodeFlags& flags) {
  node::NodeServerOptions options;
  ARGOSY_ASSIGN_OR_RETURN(options.resources, ParseResources(flags.resources));
  if (flags.num_cpus) {
    // Above this no host is, and a slip of the finger is likely. Less than a ten-thousandth would be counted as none.
    double cpus = *flags.num_cpus;
    if (!(cpus >= 0 && cpus <= kCpusMax) || (cpus > 0 && cpus < 1e-4)) {
      return InvalidArgument("--num-cpus {}: give a number from 0 to {}", cpus, kCpusMax);
    }
    options.resources[kCpu] = cpus;
  }
  if (flags.num_gpus) {
    double gpus = *flags.num_gpus;
    if (!(gpus >= 0 && gpus <= kGpusMax) || gpus != std::floor(gpus)) {
      return InvalidArgument("--num-gpus {}: give a whole number from 0 to {}", gpus, kGpusMax);
    }
    options.resources[kGpu] = gpus;
  }
  if (!flags.memory.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(uint64_t bytes, ParseBytes(flags.memory, "--memory"));
    options.resources[kMemory] = static_cast<double>(bytes);
  }
  if (!flags.object_store_memory.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(options.object_store_bytes, ParseBytes(flags.object_store_memory, "--object-store-memory"));
    if (options.object_store_bytes < kObjectStoreBytesMin) {
      return InvalidArgument("--object-store-memory {}: give at least {}M", flags.object_store_memory, kObjectStoreBytesMin >> 20);
    }
  }
  options.spills = flags.spill_dir != "none";
  if (options.spills) options.spill_dir = flags.spill_dir;
  if (!flags.spill_max.empty()) {
    if (!options.spills) return InvalidArgument("--spill-max {}: nothing is spilled with --spill-dir none; leave one of them out", flags.spill_max);
    ARGOSY_ASSIGN_OR_RETURN(options.spill_bytes_max, ParseBytes(flags.spill_max, "--spill-max"));
  }
  if (flags.memory_threshold) {
    if (!(*flags.memory_threshold > 0 && *flags.memory_threshold <= 1)) {
      return InvalidArgument("--memory-threshold {}: give a share above 0 and up to 1, e.g. 0.95", *flags.memory_threshold);
    }
    options.memory_threshold = *flags.memory_threshold;
  }
  if (flags.memory_watch_period) {
    double millis = *flags.memory_watch_period;
    if (!(millis == 0 || (millis >= 10 && millis <= 60'000))) {
      return InvalidArgument("--memory-watch-period {}: give 10 to 60000 milliseconds, or 0 to switch it off", millis);
    }
    options.memory_watch_period = absl::Milliseconds(millis);
  }
  if (!flags.workers_memory_max.empty()) {
    if (options.memory_watch_period == absl::ZeroDuration()) {
      return InvalidArgument("--workers-memory-max {}: nothing is watched with --memory-watch-period 0; leave one of them out", flags.workers_memory_max);
    }
    ARGOSY_ASSIGN_OR_RETURN(options.workers_memory_max, ParseBytes(flags.workers_memory_max, "--workers-memory-max"));
  }
  absl::StatusOr<scheduler::Labels> labels = scheduler::ParseLabels(flags.labels);
  if (!labels.ok()) return Annotate(labels.status(), "--labels " + flags.labels);
  for (const auto& [key, value] : *labels) {
    if (key == kNodeIdLabel) return InvalidArgument("--labels {}: {} is set by the node itself; choose another key", flags.labels, key);
  }
  options.labels = *labels;
  if (flags.name.size() > kNodeNameMax) {
    return InvalidArgument("--node-name {}...: its {} bytes are too many; give at most {}", flags.name.substr(0, 20), flags.name.size(), kNodeNameMax);
  }
  if (std::any_of(flags.name.begin(), flags.name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return InvalidArgument("--node-name \"{}\": give a name without line breaks and other control characters", flags.name);
  }
  if (!rpc::IsUtf8(flags.name)) return InvalidArgument("--node-name: its {} bytes are not UTF-8 text", flags.name.size());
  options.name = flags.name;
  if (!flags.ip.empty()) options.ip = flags.ip;
  options.bind_ip = flags.bind_ip;
  if (flags.ip == "0.0.0.0" || flags.ip == "::") {
    return InvalidArgument("--node-ip {}: others must reach this node at it; use --bind-ip to listen on every address", flags.ip);
  }
  if (!flags.worker_ports.empty()) {
    unsigned min = 0;
    unsigned max = 0;
    int used = 0;
    if (std::sscanf(flags.worker_ports.c_str(), "%5u-%5u%n", &min, &max, &used) != 2 || static_cast<size_t>(used) != flags.worker_ports.size() || min < 1 ||
        max > 65535 || min > max) {
      return InvalidArgument("--worker-ports {}: give MIN-MAX, ports from 1 to 65535, e.g. 20000-20999", flags.worker_ports);
    }
    options.worker_port_min = static_cast<uint16_t>(min);
    options.worker_port_max = static_cast<uint16_t>(max);
  }
  options.wire_port = flags.wire_port;
  options.agent_port = flags.agent_port;
  return options;
}

std::vector<std::string> ToArguments(const NodeFlags& flags) {
  std::vector<std::string> arguments;
  auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  if (flags.num_cpus) add("--num-cpus", fmt::format("{}", *flags.num_cpus));
  if (flags.num_gpus) add("--num-gpus", fmt::format("{}", *flags.num_gpus));
  add("--memory", flags.memory);
  add("--resources", flags.resources);
  add("--labels", flags.labels);
  add("--object-store-memory", flags.object_store_memory);
  // The daemon may stand in another folder.
  add("--spill-dir", flags.spill_dir.empty() || flags.spill_dir == "none" ? flags.spill_dir : std::filesystem::absolute(flags.spill_dir).string());
  add("--spill-max", flags.spill_max);
  if (flags.memory_threshold) add("--memory-threshold", fmt::format("{}", *flags.memory_threshold));
  if (flags.memory_watch_period) add("--memory-watch-period", fmt::format("{}", *flags.memory_watch_period));
  add("--workers-memory-max", flags.workers_memory_max);
  add("--node-name", flags.name);
  add("--node-ip", flags.ip);
  add("--bind-ip", flags.bind_ip);
  add("--worker-ports", flags.worker_ports);
  add("--node-port", std::to_string(flags.wire_port));
  add("--agent-port", std::to_string(flags.agent_port));
  return arguments;
}

}  // namespace argosy::cli
