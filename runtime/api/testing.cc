#include "argosy/testing.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "argosy/error.h"
#include "nlohmann/json.hpp"
#include "runtime/api/daemons.h"
#include "runtime/base/status.h"
#include "runtime/wire/startup.h"

namespace argosy::testing {

struct Cluster::Impl {
  std::string folder;
  std::string address;
  std::vector<internal::DaemonProcess> processes;
  std::map<std::string, std::string> sockets;    // node's name -> its socket

  ~Impl() {
    while (!processes.empty()) processes.pop_back();
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  }

  void Start(std::vector<std::string> arguments, NodeOptions node) {
    if (node.name.empty()) node.name = fmt::format("node-{}", sockets.size());
    if (sockets.contains(node.name)) throw RuntimeError(fmt::format("two nodes are named \"{}\"", node.name));
    auto add = [&](const char* flag, std::string value) { arguments.insert(arguments.end(), {flag, std::move(value)}); };
    add("--node-name", node.name);
    add("--num-cpus", fmt::format("{}", node.num_cpus));
    if (node.num_gpus > 0) add("--num-gpus", fmt::format("{}", node.num_gpus));
    if (!node.resources.empty()) add("--resources", nlohmann::json(node.resources).dump());
    std::string labels;
    for (const auto& [key, value] : node.labels) labels += (labels.empty() ? "" : ",") + key + "=" + value;
    if (!labels.empty()) add("--labels", labels);
    add("--object-store-memory", std::to_string(node.object_store_memory));
    arguments.insert(arguments.end(), node.flags.begin(), node.flags.end());
    internal::StartedDaemons started = internal::StartDaemons(arguments);
    processes.push_back(std::move(started.process));
    sockets[node.name] = started.node_socket;
    if (address.empty()) address = started.address;
  }
};

Cluster::Cluster(const std::vector<NodeOptions>& nodes) {
  if (std::getenv(wire::kStartupVariable) != nullptr) return;
  if (nodes.empty()) throw RuntimeError("a test cluster needs at least one node");
  impl_ = std::make_unique<Impl>();
  char pattern[] = "/tmp/argosy-cluster-XXXXXX";
  if (::mkdtemp(pattern) == nullptr) throw RuntimeError("no temporary folder can be made in /tmp");
  impl_->folder = pattern;
  ::setenv("ARGOSY_SESSIONS_DIR", pattern, 1);
  ::setenv("HOME", pattern, 1);
  for (const char* name : {"ARGOSY_ADDRESS", "ARGOSY_NODE_SOCKET", "ARGOSY_AUTH_TOKEN"}) ::unsetenv(name);
  impl_->Start({"start", "--head", "--port", "0", "--dashboard-port", "0"}, nodes.front());
  for (size_t i = 1; i < nodes.size(); ++i) AddNode(nodes[i]);
}

Cluster::~Cluster() = default;

void Cluster::AddNode(const NodeOptions& node) {
  if (impl_) impl_->Start({"start", "--address", impl_->address}, node);
}

void Cluster::KillNode(const std::string& name) {
  if (!impl_) return;
  auto it = impl_->sockets.find(name);
  if (it == impl_->sockets.end()) throw RuntimeError(fmt::format("the test cluster has no node \"{}\"", name));
  std::optional<internal::NodeFile> file = internal::NodeFileOf(it->second);
  if (!file || file->pid <= 0) throw RuntimeError(fmt::format("no node.json says which process node \"{}\" is ({})", name, it->second));
  ::kill(file->pid, SIGKILL);
}

const std::string& Cluster::address() const {
  static const std::string none;
  return impl_ ? impl_->address : none;
}

ConnectOptions Cluster::connect_options() const {
  ConnectOptions options;
  options.address = address();
  return options;
}

}  // namespace argosy::testing
