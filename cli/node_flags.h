#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}
namespace argosy::node {
struct NodeServerOptions;
}

namespace argosy::cli {

// What a node has, as flags say it.
struct NodeFlags {
  std::optional<double> num_cpus;   // not given: found out
  std::optional<double> num_gpus;
  std::string memory;               // bytes, or with K M G T (powers of 1024)
  std::string resources;            // JSON object of custom amounts
  std::string labels;               // k=v,k=v
  std::string object_store_memory;
  std::string spill_dir;            // "none": nothing is spilled
  std::string spill_max;            // bytes, as memory
  std::optional<double> memory_threshold;
  std::optional<double> memory_watch_period;   // ms; 0: off
  std::string workers_memory_max;   // bytes, as memory
  std::string name;
  std::string ip;
  std::string bind_ip;
  std::string worker_ports;         // "MIN-MAX"
  uint16_t wire_port = 0;
  uint16_t agent_port = 0;
};

void AddNodeFlags(CLI::App& command, NodeFlags& flags);
// Every error names the flag, its value and what would be right. `ip` empty stays empty.
absl::StatusOr<node::NodeServerOptions> ToNodeOptions(const NodeFlags& flags);
// The flags again, for a daemon that is started with them.
std::vector<std::string> ToArguments(const NodeFlags& flags);

// "1073741824", "1024M", "1GiB". Error names `flag`.
absl::StatusOr<uint64_t> ParseBytes(const std::string& text, const char* flag);
absl::StatusOr<std::map<std::string, double>> ParseResources(const std::string& text);

}  // namespace argosy::cli
