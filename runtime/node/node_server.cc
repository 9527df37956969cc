#include "runtime/node/node_server.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/codec.h"
#include "runtime/base/file.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/node/client_table.h"
#include "runtime/node/cluster_client.h"
#include "runtime/node/demand_codec.h"
#include "runtime/node/evacuation.h"
#include "runtime/node/gpus.h"
#include "runtime/node/head_link.h"
#include "runtime/node/health_server.h"
#include "runtime/node/job_runner.h"
#include "runtime/node/lease_service.h"
#include "runtime/node/memory_watch.h"
#include "runtime/node/observer.h"
#include "runtime/node/package_cache.h"
#include "runtime/node/worker_prints.h"
#include "runtime/node/worker_service.h"
#include "runtime/store/object_store.h"
#include "runtime/transfer/code_files.h"
#include "runtime/transfer/object_mover.h"
#include "runtime/transfer/peers.h"
#include "runtime/wire/address.h"
#include "runtime/wire/connection.h"

namespace argosy::node {
namespace {

constexpr size_t kSocketPathMax = 107;
// "/w-0123456789abcdef" and the like.
constexpr size_t kSocketNameMax = 20;

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

uint64_t FreeOnDisk(const std::string& folder) {
  std::error_code error;
  std::filesystem::space_info space = std::filesystem::space(folder, error);
  return error ? 0 : space.available;
}

// Nothing is won by writing there what memory has no room for.
bool IsInMemory(const std::string& folder) {
  struct statfs info;
  return ::statfs(folder.c_str(), &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

// CPUs this process may use: its affinity mask and its cgroup's quota.
double AvailableCpus() {
  double cpus = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && period > 0) cpus = std::min(cpus, std::max(1.0, std::floor(quota / period)));
  return cpus;
}

}  // namespace

struct NodeServer::Impl {
  Impl(async::Loop& loop, NodeServerOptions options, Callbacks callbacks)
      : loop(loop), options(std::move(options)), callbacks(std::move(callbacks)), heartbeat(loop), stop_poll(loop), drain_poll(loop) {}
  ~Impl();

  absl::Status Start();
  absl::Status OpenSession();
  absl::Status FindResources();
  void MakeServices();
  Registration MakeRegistration();
  void OnRegistered(const Registered& registered);
  void OnRejected(const Rejected& rejected);
  void OnMessage(FromHead message);
  void Answer(const AskedNode& asked);
  void Drain(const DrainNode& drain);
  void LeaveWhenIdle();
  // This node was declared dead: whatever ran here is void.
  void StartOver(const std::string& reason);
  void Stop(absl::Duration grace, std::function<void()> done);

  async::Loop& loop;
  NodeServerOptions options;
  Callbacks callbacks;
  NodeId id = NodeId::Random();
  int64_t started_unix_ms = UnixMillis(Clock::Real().WallNow());
  ResourceSet total;
  std::string socket_dir;
  bool own_socket_dir = false;      // outside the session folder
  UniqueFd lock;
  uint64_t heartbeat_number = 0;
  bool stopping = false;
  std::optional<std::string> draining;   // why
  absl::Time drain_deadline = absl::InfiniteFuture();
  bool left = false;

  ClientTable clients;
  std::unique_ptr<store::ObjectStore> store;
  std::unique_ptr<transfer::Peers> peers;
  std::unique_ptr<transfer::ObjectMover> mover;
  std::unique_ptr<transfer::CodeFiles> code_files;
  std::unique_ptr<HeadLink> head;
  std::unique_ptr<ClusterClient> cluster;
  std::unique_ptr<PackageCache> packages;
  std::unique_ptr<WorkerPrints> prints;
  std::unique_ptr<LeaseService> leases;
  std::unique_ptr<MemoryWatch> memory;
  std::unique_ptr<WorkerService> workers;
  std::unique_ptr<Observer> observer;
  std::unique_ptr<Evacuation> evacuation;   // since this node was first drained
  std::unique_ptr<JobRunner> jobs;
  std::unique_ptr<HealthServer> health;
  std::unique_ptr<wire::Listener> unix_listener;
  std::unique_ptr<wire::Listener> tcp_listener;
  std::string agent_address;
  std::string wire_address;
  std::string socket_path;
  async::Timer heartbeat;
  async::Timer stop_poll;
  async::Timer drain_poll;
};

NodeServer::Impl::~Impl() {
  heartbeat.Cancel();
  stop_poll.Cancel();
  drain_poll.Cancel();
  unix_listener.reset();
  tcp_listener.reset();
  health.reset();
  jobs.reset();
  evacuation.reset();
  observer.reset();
  workers.reset();
  memory.reset();
  leases.reset();
  prints.reset();
  packages.reset();
  cluster.reset();
  head.reset();
  std::error_code ignored;
  if (own_socket_dir) std::filesystem::remove_all(socket_dir, ignored);
}

absl::Status NodeServer::Impl::OpenSession() {
  if (options.session_dir.empty()) return InvalidArgument("a node daemon needs a session folder");
  std::error_code error;
  options.session_dir = std::filesystem::absolute(options.session_dir, error).lexically_normal().string();
  while (options.session_dir.size() > 1 && options.session_dir.back() == '/') options.session_dir.pop_back();
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(options.session_dir, 0700));
  std::string lock_path = options.session_dir + "/lock";
  lock.Reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.ok()) return ErrnoStatus(errno, lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition("the session folder {} belongs to a daemon that runs", options.session_dir);
  }
  std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) return ErrnoStatus(errno, lock_path);
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(options.session_dir + "/logs", 0700));
  socket_dir = options.session_dir + "/sock";
  if (socket_dir.size() + kSocketNameMax > kSocketPathMax) {
    char pattern[] = "/tmp/argosy-XXXXXX";
    if (::mkdtemp(pattern) == nullptr) return ErrnoStatus(errno, "a folder for sockets in /tmp");
    socket_dir = pattern;
    own_socket_dir = true;
  }
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(socket_dir, 0700));
  struct stat info;
  if (::stat(socket_dir.c_str(), &info) != 0) return ErrnoStatus(errno, socket_dir);
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return FailedPrecondition("the folder {} must belong to this user alone (mode 0700)", socket_dir);
  }
  return absl::OkStatus();
}

absl::Status NodeServer::Impl::FindResources() {
  if (!options.resources.contains(kCpu)) options.resources[kCpu] = AvailableCpus();
  if (std::vector<Gpu> gpus = FindGpus(options.cuda_visible_devices); !gpus.empty()) {
    // A number that was given may be of fewer, or of more: then the rest is called by number.
    if (options.gpu_devices.empty()) {
      for (const Gpu& gpu : gpus) options.gpu_devices.push_back(gpu.device);
    }
    options.resources.emplace(kGpu, static_cast<double>(gpus.size()));
    if (std::string type = AcceleratorType(gpus.front().name); !type.empty()) options.labels.emplace("argosy.io/accelerator-type", type);
    spdlog::info("{} GPUs: {}{}", gpus.size(), gpus.front().name.empty() ? "of a name that is not known" : gpus.front().name,
                 gpus.front().memory == 0 ? "" : fmt::format(", {:.0f} GiB each", static_cast<double>(gpus.front().memory) / 0x1p30));
  }
  options.resources.emplace(kGpu, 0.0);
  uint64_t memory = 0;
  if (absl::StatusOr<HostMemory> host = options.memory_reader.Read(); host.ok()) memory = host->available;
  else spdlog::warn("how much memory there is cannot be read: {}", Message(host.status()));
  if (options.object_store_bytes == 0) options.object_store_bytes = std::max<uint64_t>(memory / 10 * 3, 64 << 20);
  if (!options.resources.contains(kMemory)) {
    options.resources[kMemory] = static_cast<double>(memory - std::min(memory, options.object_store_bytes));
  }
  options.resources[kObjectStoreMemory] = static_cast<double>(options.object_store_bytes);
  ARGOSY_ASSIGN_OR_RETURN(total, ResourceSet::FromMap(options.resources));
  if (options.name.empty()) options.name = HostName();
  options.labels["argosy.io/node-id"] = id.Hex();
  options.labels.emplace("argosy.io/hostname", HostName());
  return absl::OkStatus();
}

absl::Status NodeServer::Impl::Start() {
  ARGOSY_RETURN_IF_ERROR(OpenSession());
  ARGOSY_RETURN_IF_ERROR(FindResources());
  if (options.executable_dir.empty()) {
    std::error_code error;
    options.executable_dir = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  }
  store::ObjectStoreOptions objects{.size = options.object_store_bytes, .door_path = socket_dir + "/store"};
  if (options.spills) {
    std::string folder = options.spill_dir;
    if (folder.empty()) folder = IsInMemory(options.session_dir) ? "/var/tmp" : options.session_dir + "/spill";
    if (IsInMemory(folder)) spdlog::warn("objects are spilled to {}, which is memory too: --spill-dir names a folder on a disk", folder);
    absl::StatusOr<std::unique_ptr<store::SpillFile>> file = store::SpillFile::Open(folder);
    if (file.ok()) {
      objects.spill_disk = std::move(*file);
      objects.spill_max = options.spill_bytes_max > 0 ? options.spill_bytes_max : FreeOnDisk(folder) / 10 * 9;
    } else if (!options.spill_dir.empty()) {
      return file.status();
    } else {
      spdlog::warn("objects are not spilled when memory has no room for them: {}", Message(file.status()));
    }
  }
  ARGOSY_ASSIGN_OR_RETURN(store, store::ObjectStore::Open(loop, objects));
  const std::string bind_ip = options.bind_ip.empty() ? options.ip : options.bind_ip;
  wire::Identity self{wire::Role::kNode, std::string(id.Bytes())};
  wire::ListenOptions listen{.self = self, .token = options.token};
  auto accepted = [this](std::shared_ptr<wire::Connection> connection) {
    if (stopping) return connection->Close(Unavailable("the node daemon stops"));
    workers->Accept(std::move(connection));
  };
  ARGOSY_ASSIGN_OR_RETURN(tcp_listener, wire::Listener::Tcp(loop, bind_ip, options.wire_port, listen, accepted));
  ARGOSY_ASSIGN_OR_RETURN(unix_listener, wire::Listener::Unix(loop, socket_dir + "/node", listen, accepted));
  ARGOSY_ASSIGN_OR_RETURN(health, HealthServer::Start(loop, bind_ip, options.agent_port));
  wire_address = wire::JoinHostPort(options.ip, tcp_listener->port());
  socket_path = unix_listener->address();
  agent_address = wire::JoinHostPort(options.ip, health->port());
  peers = std::make_unique<transfer::Peers>(loop, wire::ConnectOptions{.self = self, .token = options.token});
  code_files = std::make_unique<transfer::CodeFiles>(loop, *peers, transfer::CodeFilesOptions{.folder = options.session_dir + "/code"});
  cluster = std::make_unique<ClusterClient>(loop, ClusterClientOptions{.address = options.head_address, .token = options.token});
  packages = std::make_unique<PackageCache>(loop, *cluster, options.session_dir + "/packages");
  head = std::make_unique<HeadLink>(loop, HeadLinkOptions{.address = options.head_address, .token = options.token},
                                    HeadLink::Callbacks{
                                        .registration = [this] { return MakeRegistration(); },
                                        .registered = [this](const Registered& registered) { OnRegistered(registered); },
                                        .rejected = [this](const Rejected& rejected) { OnRejected(rejected); },
                                        .lost = [this] { leases->SetHeadConnected(false); },
                                        .message = [this](FromHead message) { OnMessage(std::move(message)); },
                                        .refused =
                                            [this](const absl::Status& why) {
                                              if (callbacks.fatal) callbacks.fatal(why);
                                            },
                                    });
  prints = std::make_unique<WorkerPrints>(loop, WorkerPrintsOptions{.session_dir = options.session_dir, .node_name = options.name},
                                          [this](JobPrints shown) {
                                            // Without a stream the live view has a gap; the files have everything.
                                            if (workers && !workers->ShowPrints(shown)) (void)head->SendNow(std::move(shown));
                                          });
  MakeServices();
  jobs = std::make_unique<JobRunner>(
      JobRunner::Parts{
          .loop = loop,
          .packages = *packages,
          .send = [this](ToHead message) { head->Send(std::move(message)); },
          .send_now = [this](ToHead message) { return head->SendNow(std::move(message)); },
          .grant = [this](LeaseId lease, const wire::Demand& demand) -> absl::StatusOr<std::vector<uint32_t>> {
            ARGOSY_ASSIGN_OR_RETURN(scheduler::Demand parsed, ParseDemand(demand));
            ARGOSY_ASSIGN_OR_RETURN(std::vector<uint32_t> gpu_ids, leases->machine().GrantEntrypoint(lease, parsed));
            leases->Apply({});   // reports what is left
            return gpu_ids;
          },
          .release = [this](LeaseId lease) { leases->Apply(leases->machine().ReleaseEntrypoint(lease, Clock::Real().Now())); },
      },
      JobRunnerOptions{.log_dir = options.session_dir + "/logs",
                       .head_address = options.head_address,
                       .node_socket = socket_path,
                       .executable_dir = options.executable_dir,
                       .gpu_devices = options.gpu_devices});
  head->Start();
  spdlog::info("node {} ({}): {} at {}, session {}", options.name, id.Short(), total.ToString(), wire_address, options.session_dir);
  return absl::OkStatus();
}

void NodeServer::Impl::MakeServices() {
  prints->Clear();
  prints->SetNode(id);
  mover = std::make_unique<transfer::ObjectMover>(loop, *store, *peers, transfer::ObjectMoverOptions{.self = id});
  WorkerProcessesOptions processes;
  processes.log_dir = options.session_dir + "/logs";
  processes.socket_dir = socket_dir;
  processes.gpu_devices = options.gpu_devices;
  processes.startup.node_socket = socket_path;
  processes.startup.token = options.token.text();
  processes.startup.tcp_host = options.bind_ip.empty() ? options.ip : options.bind_ip;
  processes.startup.tcp_advertised = options.bind_ip.empty() ? "" : options.ip;
  processes.startup.tcp_port_min = options.worker_port_min;
  processes.startup.tcp_port_max = options.worker_port_max;
  processes.node_name = options.name;
  processes.startup.node = id;
  processes.startup.session_dir = options.session_dir;
  leases = std::make_unique<LeaseService>(
      LeaseService::Parts{.loop = loop, .head = *head, .cluster = *cluster, .code_files = *code_files, .packages = *packages, .store = *store,
                          .clients = clients, .prints = *prints},
      LeaseMachineOptions{.node = id,
                          .total = total,
                          .labels = options.labels,
                          .worker_start_timeout = options.worker_start_timeout,
                          .worker_idle_timeout = options.worker_idle_timeout},
      std::move(processes));
  memory = std::make_unique<MemoryWatch>(MemoryWatch::Parts{.loop = loop, .cluster = *cluster, .leases = *leases, .peers = *peers},
                                         MemoryWatchOptions{.threshold = options.memory_threshold,
                                                            .period = options.memory_watch_period,
                                                            .workers_max = options.workers_memory_max,
                                                            .hostname = HostName(),
                                                            .self = id,
                                                            .node_name = options.name,
                                                            .reader = options.memory_reader});
  wire::WorkerRegistered self;
  self.node = id;
  self.node_name = options.name;
  self.node_ip = options.ip;
  self.wire_address = wire_address;
  self.session_dir = options.session_dir;
  self.store_door = store->door_path();
  self.arena_size = store->arena_size();
  self.head_address = options.head_address;
  self.code_source_address = wire_address;
  self.token = options.token.text();
  self.tcp_host = options.ip;
  workers = std::make_unique<WorkerService>(WorkerService::Parts{.loop = loop,
                                                                 .head = *head,
                                                                 .cluster = *cluster,
                                                                 .leases = *leases,
                                                                 .memory = *memory,
                                                                 .store = *store,
                                                                 .mover = *mover,
                                                                 .code_files = *code_files,
                                                                 .packages = *packages,
                                                                 .clients = clients,
                                                                 .prints = *prints},
                                            std::move(self), socket_dir);
  observer = std::make_unique<Observer>(
      Observer::Parts{.loop = loop, .leases = *leases, .store = *store, .clients = clients, .prints = *prints}, options.session_dir);
}

Registration NodeServer::Impl::MakeRegistration() {
  Registration registration;
  registration.node.node = id;
  registration.node.name = options.name;
  registration.node.ip = options.ip;
  registration.node.wire_address = wire_address;
  registration.node.resources_total = total.ToMap();
  registration.node.resources_available = leases->machine().ledger().Available().ToMap();
  registration.node.labels = options.labels;
  registration.node.is_head_node = options.is_head_node;
  registration.agent_address = agent_address;
  registration.hostname = HostName();
  registration.pid = static_cast<uint32_t>(::getpid());
  registration.started_unix_ms = started_unix_ms;
  registration.leases = leases->machine().HeldLeases();
  registration.actors = leases->machine().HeldActors();
  registration.job_submission_ids = jobs->SubmissionIds();
  registration.bundles = leases->HeldBundles();
  registration.draining = draining;
  return registration;
}

void NodeServer::Impl::OnRegistered(const Registered& registered) {
  spdlog::info("registered at the head {} of cluster {} (epoch {})", options.head_address, registered.cluster_id, registered.epoch);
  double seconds = registered.heartbeat_seconds > 0 ? registered.heartbeat_seconds : absl::ToDoubleSeconds(kHeartbeatPeriod);
  heartbeat.Every(absl::Seconds(seconds), [this] {
    head->SendNow(Heartbeat{++heartbeat_number, store->used(), static_cast<uint32_t>(leases->workers()), store->table().spilled_bytes()});
  });
  head->SendNow(leases->Resources());
  // A head that has restarted knows the drivers no more; for any other a repeat changes nothing.
  workers->ReportDrivers();
  leases->SetHeadConnected(true);
  memory->SetCluster(registered.cluster_id);
  jobs->OnStream();
  if (callbacks.registered) callbacks.registered();
}

void NodeServer::Impl::OnRejected(const Rejected& rejected) {
  // The head's answer to NodeLeft.
  if (left) {
    if (callbacks.drained) callbacks.drained(*draining);
    return;
  }
  if (!rejected.declared_dead) {
    if (callbacks.fatal) callbacks.fatal(FailedPrecondition("the head refused this node: {}", rejected.reason));
    return;
  }
  StartOver(rejected.reason);
}

void NodeServer::Impl::StartOver(const std::string& reason) {
  spdlog::error("the head had declared this node dead ({}): its workers are killed, and it registers under a new id", reason);
  jobs->KillAll();
  workers->CloseAll("its node was declared dead by the head");
  evacuation.reset();
  observer.reset();
  workers.reset();
  memory.reset();
  leases.reset();   // kills the workers
  mover.reset();
  id = NodeId::Random();
  options.labels["argosy.io/node-id"] = id.Hex();
  MakeServices();
  head->Restart();
}

void NodeServer::Impl::OnMessage(FromHead message) {
  struct Visitor {
    Impl& impl;
    void operator()(const Registered&) {}
    void operator()(const Rejected&) {}
    void operator()(const GrantLease& m) { impl.leases->OnMessage(m); }
    void operator()(const ReleaseLease& m) { impl.leases->Step(LeaseReturned{m.lease, m.worker_failed}); }
    void operator()(const RecallLease& m) { impl.leases->Step(RecallAsked{m.lease}); }
    void operator()(const PrepareBundles& m) { impl.leases->OnMessage(m); }
    void operator()(const CommitBundles& m) { impl.leases->OnMessage(m); }
    void operator()(const ReturnBundles& m) {
      for (int index : m.indices) impl.leases->Step(BundleReturned{{m.group, index}});
    }
    void operator()(const StartActor& m) { impl.leases->OnMessage(m); }
    void operator()(const StopActor& m) { impl.leases->Step(ActorStopAsked{m}); }
    void operator()(const OtherNodeLost& m) { impl.workers->TellNodeLost(m.node); }
    void operator()(const JobEnded& m) {
      impl.leases->Step(JobGone{m.job, m.reason});
      impl.workers->JobGone(m.job);
      impl.store->JobGone(m.job);
    }
    void operator()(const StartJob& m) { impl.jobs->Start(m); }
    void operator()(const StopJob& m) { impl.jobs->Stop(m); }
    void operator()(const JobLogAck& m) { impl.jobs->OnAck(m); }
    void operator()(const JobExitAck& m) { impl.jobs->OnExitAck(m); }
    void operator()(const NodeContended& m) { impl.leases->Step(ContendedSet{m.contended, m.job_priority}); }
    void operator()(const JobPrints& m) { (void)impl.workers->ShowPrints(m); }
    void operator()(const PrintsFlushed& m) { impl.workers->OnPrintsFlushed(m.job); }
    void operator()(const MutePrints& m) { impl.prints->Mute(m.job); }
    void operator()(const AskedNode& m) { impl.Answer(m); }
    void operator()(const DrainNode& m) { impl.Drain(m); }
  };
  if (stopping && (std::holds_alternative<GrantLease>(message) || std::holds_alternative<StartActor>(message) ||
                   std::holds_alternative<StartJob>(message) || std::holds_alternative<PrepareBundles>(message))) {
    return;   // the end of the stream says the rest
  }
  std::visit(Visitor{*this}, message);
}

void NodeServer::Impl::Drain(const DrainNode& drain) {
  if (left) return;
  if (drain.undo) {
    draining.reset();
    drain_poll.Cancel();   // what moves at this moment arrives all the same
    spdlog::info("this node is not drained any more");
    return;
  }
  draining = drain.reason;
  drain_deadline = drain.deadline_seconds > 0 ? Clock::Real().Now() + absl::Seconds(drain.deadline_seconds) : absl::InfiniteFuture();
  spdlog::info("this node is drained ({}): it takes nothing new, and ends {}", *draining,
               drain.deadline_seconds > 0 ? fmt::format("when nothing runs here any more, or in {:.0f} s", drain.deadline_seconds)
                                          : "when nothing runs here any more");
  // Kept when it is drained again: answers of objects on their way still come.
  if (!evacuation) {
    evacuation = std::make_unique<Evacuation>(
        Evacuation::Parts{.loop = loop, .cluster = *cluster, .store = *store, .mover = *mover, .peers = *peers},
        Evacuation::Options{.self = id, .wire_address = wire_address, .lives_here = [this](WorkerId worker) {
                              return clients.Find(worker) != nullptr || leases->machine().pool().Find(worker) != nullptr;
                            }});
  }
  drain_poll.Every(absl::Milliseconds(100), [this] { LeaveWhenIdle(); });
}

void NodeServer::Impl::LeaveWhenIdle() {
  bool idle = leases->machine().HeldLeases().empty() && leases->machine().HeldActors().empty() && leases->machine().waiting() == 0 &&
              jobs->running() == 0 && workers->drivers() == 0;
  // Objects move while tasks still run, and what those leave behind at the end.
  if (evacuation) evacuation->Step();
  bool empty = evacuation == nullptr || evacuation->done();
  if ((!(idle && empty) && Clock::Real().Now() < drain_deadline) || !head->is_registered()) return;
  left = true;
  stopping = true;
  spdlog::info("this node leaves the cluster: {}; {} objects were moved to other nodes{}", idle && empty ? "nothing runs here any more" : "the time it was given is over",
               evacuation ? evacuation->moved() : 0, empty ? "" : ", and not all");
  head->Send(NodeLeft{fmt::format("it was drained ({})", *draining)});
  // Without an answer it ends all the same, and the head's time-out says the rest.
  drain_poll.After(absl::Seconds(3), [this] {
    if (callbacks.drained) callbacks.drained(*draining);
  });
}

void NodeServer::Impl::Answer(const AskedNode& asked) {
  if (!asked.question) {
    return head->Send(NodeAnswer{asked.number, MakeStatus(absl::StatusCode::kUnimplemented, "node {} does not know this question", options.name)});
  }
  observer->Answer(*asked.question, [this, number = asked.number](absl::StatusOr<std::string> body) {
    head->Send(NodeAnswer{number, std::move(body)});
  });
}

void NodeServer::Impl::Stop(absl::Duration grace, std::function<void()> done) {
  stopping = true;
  unix_listener.reset();
  tcp_listener.reset();
  const absl::Time deadline = Clock::Real().Now() + grace;
  jobs->StopAll(grace, [this, deadline, done = std::move(done)] {
    // Workers leave when their connection ends; whatever is left after the grace is killed when the daemon is destroyed.
    workers->CloseAll("the node daemon stops");
    stop_poll.Every(absl::Milliseconds(20), [this, deadline, done] {
      if (leases->workers() > 0 && Clock::Real().Now() < deadline) return;
      stop_poll.Cancel();
      loop.Post(done);
    });
  });
}

NodeServer::NodeServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeServer::~NodeServer() = default;

absl::StatusOr<std::unique_ptr<NodeServer>> NodeServer::Start(async::Loop& loop, NodeServerOptions options, Callbacks callbacks) {
  auto impl = std::make_unique<Impl>(loop, std::move(options), std::move(callbacks));
  ARGOSY_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<NodeServer>(new NodeServer(std::move(impl)));
}

void NodeServer::Stop(absl::Duration grace, std::function<void()> done) { impl_->Stop(grace, std::move(done)); }
NodeId NodeServer::id() const { return impl_->id; }
const std::string& NodeServer::wire_address() const { return impl_->wire_address; }
const std::string& NodeServer::socket_path() const { return impl_->socket_path; }
const std::string& NodeServer::agent_address() const { return impl_->agent_address; }

}  // namespace argosy::node
