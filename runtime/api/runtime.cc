#include "argosy/runtime.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "runtime/api/daemons.h"
#include "runtime/api/driver_prints.h"
#include "runtime/api/local.h"
#include "runtime/api/metric_registry.h"
#include "runtime/api/process.h"
#include "runtime/base/file.h"
#include "runtime/base/job_priority.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/wire/startup.h"

namespace argosy {

namespace fs = std::filesystem;

// Owns the connection, and the local cluster when this process started one.
struct Runtime::Impl {
  std::shared_ptr<worker::Core> core;
  std::shared_ptr<internal::DriverPrints> prints;
  std::string head_address;
  std::string dashboard_url;
  internal::DaemonProcess cluster;
  bool is_local = false;

  ~Impl() { Shutdown(); }

  void Shutdown() {
    if (core) {
      // What workers printed before the results that this driver has seen is shown before it ends, and what they ran is reported.
      (void)core->CallNode(wire::FlushPrints{}, absl::Now() + absl::Seconds(2));
      internal::MetricRegistry::Process().OnChange(nullptr);
      internal::SetCurrentCore(nullptr);
      core->Shutdown();
      core.reset();
      if (prints) prints->Stop();
    }
    cluster.End();
    if (is_local) internal::SetLocal(nullptr);
    is_local = false;
  }
};

Runtime::Runtime(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;
Runtime::~Runtime() = default;
const std::string& Runtime::head_address() const { return impl_->head_address; }
const std::string& Runtime::dashboard_url() const { return impl_->dashboard_url; }
void Runtime::Shutdown() { impl_->Shutdown(); }

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool TakeMetrics(ProcessMetrics* metrics) { return internal::MetricRegistry::Process().TakeChanged(metrics); }

void ListenToMetrics(const std::shared_ptr<worker::Core>& core) {
  internal::MetricRegistry::Process().OnChange([weak = std::weak_ptr<worker::Core>(core)] {
    if (auto core = weak.lock()) core->MetricsChanged();
  });
}

// ---- workers ----------------------------------------------------------------------------------------------------------------

[[noreturn]] void ServeAsWorker(int fd) {
  std::string text;
  char bytes[4096];
  for (;;) {
    ssize_t n = ::read(fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
  }
  ::close(fd);
  ::unsetenv(wire::kStartupVariable);
  absl::StatusOr<wire::StartupBlock> block = Decode<wire::StartupBlock>(text);
  if (!block.ok()) {
    spdlog::error("the start-up block cannot be read: {}", Message(block.status()));
    ::_exit(2);
  }
  worker::CoreOptions options;
  options.worker = block->worker;
  options.node_socket = block->node_socket;
  options.token = Token(block->token);
  if (!block->tcp_host.empty()) options.tcp_host = block->tcp_host;
  options.tcp_advertised = block->tcp_advertised;
  options.tcp_port_min = block->tcp_port_min;
  options.tcp_port_max = block->tcp_port_max;
  options.worker_socket = block->worker_socket;
  options.startup_number = block->startup_number;
  options.code = std::move(block->code);
  options.executor = internal::MakeExecutor();
  options.metrics = TakeMetrics;
  absl::StatusOr<std::shared_ptr<worker::Core>> core = worker::Core::Start(std::move(options));
  if (!core.ok()) {
    spdlog::error("the worker cannot start: {}", Message(core.status()));
    ::_exit(2);
  }
  internal::SetCurrentCore(*core);
  ListenToMetrics(*core);
  (*core)->Serve();
}

// ---- drivers ----------------------------------------------------------------------------------------------------------------

using internal::NodeFile;

// The rest of what is known about the daemon with this socket.
NodeFile WithNodeFile(const NodeFile& node) {
  std::optional<NodeFile> file = internal::NodeFileOf(node.node_socket);
  if (!file) return node;
  if (!node.head_address.empty()) file->head_address = node.head_address;
  return *file;
}

std::string SessionsRoot() {
  std::string root = Environment("ARGOSY_SESSIONS_DIR");
  return root.empty() ? "/tmp/argosy" : root;
}

bool IsAlive(pid_t pid) { return pid <= 0 || ::kill(pid, 0) == 0 || errno == EPERM; }

// In the order in which they were started: of a cluster's nodes on this host the first is the one beside the head, if it is here.
std::vector<NodeFile> LocalNodes() {
  std::vector<std::pair<std::string, NodeFile>> found;
  std::error_code error;
  for (const fs::directory_entry& session : fs::directory_iterator(SessionsRoot(), error)) {
    if (!session.path().filename().string().starts_with("session_")) continue;
    std::error_code inner;
    for (const fs::directory_entry& folder : fs::directory_iterator(session.path(), inner)) {
      if (!folder.path().filename().string().starts_with("node")) continue;
      std::optional<NodeFile> node = internal::ReadNodeFile(folder.path() / "node.json");
      if (node && IsAlive(node->pid)) found.emplace_back(session.path().filename().string(), std::move(*node));
    }
  }
  // Names of sessions hold the time and a process's number, which may have a digit more.
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.size(), std::string_view(a.first)) < std::pair(b.first.size(), std::string_view(b.first));
  });
  std::vector<NodeFile> nodes;
  for (auto& [session, node] : found) nodes.push_back(std::move(node));
  return nodes;
}

// "localhost:6379" and "127.0.0.1:6379" are the same head; one that listens on every address is reached by any of this host.
bool SameAddress(const std::string& a, const std::string& b) {
  auto split = [](const std::string& text) {
    size_t colon = text.rfind(':');
    std::string host = text.substr(0, colon);
    if (host == "localhost" || host == "0.0.0.0" || host.empty()) host = "127.0.0.1";
    return std::pair(host, colon == std::string::npos ? std::string("6379") : text.substr(colon + 1));
  };
  return split(a) == split(b);
}

NodeFile FindNode(const std::string& address) {
  std::vector<NodeFile> nodes = LocalNodes();
  std::string heads;
  for (const NodeFile& node : nodes) {
    if (address == "auto" || SameAddress(node.head_address, address)) return node;
    heads += (heads.empty() ? "" : ", ") + node.head_address;
  }
  throw RuntimeError(fmt::format(
      "no node daemon of the cluster at {} runs on this host (looked in {}; {}). Start one with: argosy start --address {}", address,
      SessionsRoot(), heads.empty() ? "no daemon runs here" : "found daemons of " + heads, address));
}

// For TCP between workers; the daemon's Unix socket checks the user instead.
Token DriverToken(std::string file) {
  std::string text = Environment("ARGOSY_AUTH_TOKEN");
  if (!text.empty()) return Token(text);
  std::string home = Environment("HOME");
  if (file.empty() && !home.empty()) file = DefaultTokenPath(home);
  if (file.empty()) return Token();
  absl::StatusOr<Token> token = ReadToken(file);
  return token.ok() ? *token : Token();
}

// Starts `argosy start --head`, which lives until this process lets go of it.
NodeFile StartLocalCluster(Runtime::Impl& impl, const ConnectOptions& options) {
  std::vector<std::string> arguments{"start", "--head", "--port", "0", "--dashboard-port", "0"};
  if (options.num_cpus) {
    arguments.push_back("--num-cpus");
    arguments.push_back(fmt::format("{}", *options.num_cpus));
  }
  internal::StartedDaemons started = internal::StartDaemons(arguments);
  impl.cluster = std::move(started.process);
  NodeFile node;
  node.node_socket = started.node_socket;
  node.head_address = started.address;
  impl.dashboard_url = started.dashboard_url;
  return node;
}

int JobPriority(const ConnectOptions& options) {
  if (options.priority) {
    if (std::abs(*options.priority) <= kJobPriorityMax) return *options.priority;
    throw RuntimeError(fmt::format("priority is {}; it must be from -{} to {}", *options.priority, kJobPriorityMax, kJobPriorityMax));
  }
  std::string text = Environment(kJobPriorityVariable);
  if (text.empty()) return 0;
  std::optional<int> priority = ParseJobPriority(text);
  if (priority) return *priority;
  throw RuntimeError(fmt::format("{} is \"{}\"; it must be a whole number from -{} to {}", kJobPriorityVariable, text, kJobPriorityMax, kJobPriorityMax));
}

}  // namespace

Runtime Connect(int argc, char** argv, ConnectOptions options) {
  internal::CheckFunctions();
  if (std::string fd = Environment(wire::kStartupVariable); !fd.empty()) {
    InitLog({.process = "worker", .file = "", .level = "info"});
    // A file makes C's output wait for a full buffer; whoever looks on wants lines.
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
    ServeAsWorker(std::atoi(fd.c_str()));
  }
  auto impl = std::make_unique<Runtime::Impl>();
  NodeFile node;
  node.node_socket = Environment("ARGOSY_NODE_SOCKET");
  std::string address = options.address.empty() ? Environment("ARGOSY_ADDRESS") : options.address;
  if (address == "local") {
    internal::SetLocal(std::make_shared<internal::LocalRuntime>(options.ns));
    impl->is_local = true;
    impl->head_address = address;
    return Runtime(std::move(impl));
  }
  if (!node.node_socket.empty() && options.address.empty()) {
    node = WithNodeFile(node);
  } else if (!address.empty()) {
    node = FindNode(address);
  } else {
    node = WithNodeFile(StartLocalCluster(*impl, options));
  }

  worker::CoreOptions core_options;
  core_options.is_driver = true;
  core_options.worker = WorkerId::Random();
  core_options.node_socket = node.node_socket;
  core_options.token = DriverToken(node.token_file);
  if (!node.ip.empty()) core_options.tcp_host = node.bind_ip.empty() ? node.ip : node.bind_ip;
  if (!node.bind_ip.empty()) core_options.tcp_advertised = node.ip;
  core_options.tcp_port_min = node.worker_port_min;
  core_options.tcp_port_max = node.worker_port_max;
  core_options.worker_socket = (fs::path(node.node_socket).parent_path() / fmt::format("d{}", core_options.worker.Short())).string();
  core_options.submission_id = Environment("ARGOSY_JOB_SUBMISSION_ID");
  for (int i = 0; i < argc; ++i) core_options.entrypoint += (i == 0 ? "" : " ") + std::string(argv[i]);
  core_options.ns = options.ns;
  core_options.code = internal::MakeCodePackage(argc, argv, options.env_vars);
  core_options.code.job_priority = JobPriority(options);
  core_options.executor = internal::MakeExecutor();
  core_options.metrics = TakeMetrics;
  core_options.lineage_bytes_max = options.lineage_bytes_max;
  std::string shown = Environment("ARGOSY_LOG_TO_DRIVER");
  if (!shown.empty() && shown != "0" && shown != "1") {
    throw RuntimeError(fmt::format("ARGOSY_LOG_TO_DRIVER is \"{}\": 1 shows what workers print, 0 does not", shown));
  }
  if (options.log_to_driver && shown != "0") {
    impl->prints = std::make_shared<internal::DriverPrints>();
    core_options.printed = [prints = impl->prints](JobPrints lines) { prints->Add(std::move(lines)); };
  }
  absl::StatusOr<std::shared_ptr<worker::Core>> core = worker::Core::Start(std::move(core_options));
  if (!core.ok()) throw RuntimeError(fmt::format("cannot join the cluster: {}", Message(core.status())));
  impl->core = *core;
  // A submitted job's workers run in the package that its entrypoint runs in.
  if (options.working_dir.empty()) options.working_dir = Environment(wire::kWorkingDirVariable);
  (*core)->UseEnvironment(internal::EnvironmentOf(core->get(), {}, options.working_dir, options.library_path));
  if (impl->prints) impl->prints->SetNode((*core)->node().node);
  impl->head_address = node.head_address.empty() ? (*core)->node().head_address : node.head_address;
  internal::SetCurrentCore(*core);
  ListenToMetrics(*core);
  return Runtime(std::move(impl));
}

}  // namespace argosy
