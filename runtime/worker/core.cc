#include "runtime/worker/core.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/wire/address.h"
#include "runtime/worker/execution.h"

namespace argosy::worker {

using wire::ErrorInfo;

ErrorInfo MakeError(ErrorInfo::Kind kind, std::string message) {
  ErrorInfo error;
  error.kind = kind;
  error.message = std::move(message);
  return error;
}

namespace {

// On any free port, or on a free one of the range, which processes of one host share: each begins at another place.
absl::StatusOr<std::unique_ptr<wire::Listener>> ListenTcp(async::Loop& loop, const CoreOptions& options, const wire::ListenOptions& listen,
                                                          const wire::Listener::Accepted& accept) {
  if (options.tcp_port_min == 0) return wire::Listener::Tcp(loop, options.tcp_host, 0, listen, accept);
  uint32_t ports = uint32_t{options.tcp_port_max} - options.tcp_port_min + 1;
  uint32_t first = static_cast<uint32_t>(::getpid()) % ports;
  for (uint32_t i = 0; i < ports; ++i) {
    uint16_t port = static_cast<uint16_t>(options.tcp_port_min + (first + i) % ports);
    absl::StatusOr<std::unique_ptr<wire::Listener>> listener = wire::Listener::Tcp(loop, options.tcp_host, port, listen, accept);
    if (listener.ok()) return listener;
  }
  return absl::ResourceExhaustedError(ToAbsl(fmt::format("every port from {} to {} is taken: give a wider --worker-ports", options.tcp_port_min,
                                                         options.tcp_port_max)));
}

}  // namespace

Cell::~Cell() {
  if (!counted_.load(std::memory_order_acquire)) return;
  if (std::shared_ptr<Core> core = core_.lock()) core->DropHandle(id_);
}

void Cell::BeCounted() const {
  static std::mutex mutex;
  std::shared_ptr<Core> core = core_.lock();
  std::shared_ptr<ObjectState> state = core ? core->StateOf(id_, *owner_) : std::make_shared<ObjectState>(id_, *owner_);
  std::shared_ptr<const void> leans_on;
  {
    std::lock_guard lock(mutex);
    if (counted_.load(std::memory_order_acquire)) return;
    state_ = state;
    leans_on = std::move(leans_on_);
    counted_.store(true, std::memory_order_release);
  }
  // What it leant on goes after it has a count of its own.
  if (core) core->AdoptLater(std::move(state), std::move(leans_on));
}

Core::Core(CoreOptions options)
    : options_(std::move(options)), references_(options_.worker), lineage_(options_.lineage_bytes_max) {
  lanes_.emplace_back();
}

Core::~Core() {
  role_.Stop();
  if (stack_thread_.joinable()) stack_thread_.join();
  for (std::thread& thread : extra_threads_) {
    if (thread.joinable()) thread.join();
  }
}

absl::StatusOr<std::shared_ptr<Core>> Core::Start(CoreOptions options) {
  std::shared_ptr<Core> core(new Core(std::move(options)));
  if (absl::Status status = core->Open(); !status.ok()) {
    core->Shutdown();
    return status;
  }
  core->role_.StartStandby();
  return core;
}

absl::Status Core::Open() {
  address_.worker = options_.worker;
  address_.unix_path = options_.worker_socket;
  wire::Identity self;
  self.role = options_.is_driver ? wire::Role::kDriver : wire::Role::kWorker;
  self.id = std::string(options_.worker.Bytes());
  wire::ListenOptions listen;
  listen.self = self;
  listen.token = options_.token;
  auto accept = [this](std::shared_ptr<wire::Connection> connection) { Accept(std::move(connection)); };
  ARGOSY_ASSIGN_OR_RETURN(unix_listener_, wire::Listener::Unix(loop_, options_.worker_socket, listen, accept));
  absl::StatusOr<std::unique_ptr<wire::Listener>> tcp = ListenTcp(loop_, options_, listen, accept);
  if (tcp.ok()) {
    tcp_listener_ = std::move(*tcp);
    address_.tcp = options_.tcp_advertised.empty() ? tcp_listener_->address() : wire::JoinHostPort(options_.tcp_advertised, tcp_listener_->port());
  } else {
    spdlog::warn("workers of other hosts cannot reach this one: {}", Message(tcp.status()));
  }

  wire::ConnectOptions connect;
  connect.self = self;
  connect.token = options_.token;
  struct Slot { std::atomic<bool> done = false; absl::Status status; };
  auto slot = std::make_shared<Slot>();
  auto registered = [this, slot](absl::StatusOr<wire::WorkerRegistered> reply) {
    if (reply.ok()) node_ = std::move(*reply);
    slot->status = reply.status();
    slot->done = true;
  };
  role_.Do([&] {
    wire::ConnectUnix(loop_, options_.node_socket, connect,
                      [this, slot, registered](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
      if (!connection.ok()) {
        slot->status = connection.status();
        slot->done = true;
        return;
      }
      node_connection_ = *connection;
      wire::Connection::Handlers handlers;
      handlers.on_request = [this](wire::Call call) { OnNodeRequest(std::move(call)); };
      handlers.on_notice = [this](wire::Connection&, wire::Method method, std::string body) { OnNodeNotice(method, body); };
      handlers.on_closed = [this](absl::Status why) { OnNodeClosed(why); };
      node_connection_->UseOutbox(&outbox_);
      node_connection_->Start(std::move(handlers));
      if (options_.is_driver) {
        wire::RegisterDriver message;
        message.submission_id = options_.submission_id;
        message.pid = static_cast<uint32_t>(::getpid());
        message.address = address_;
        message.entrypoint = options_.entrypoint;
        message.ns = options_.ns;
        message.quiet = options_.printed == nullptr;
        node_connection_->Request(message, registered);
      } else {
        wire::RegisterWorker message;
        message.startup_number = options_.startup_number;
        message.pid = static_cast<uint32_t>(::getpid());
        message.address = address_;
        node_connection_->Request(message, registered);
      }
    });
  });
  if (!role_.Await([&] { return slot->done.load(); }, absl::Now() + absl::Seconds(30))) {
    return Unavailable("the node daemon at {} did not answer within 30 s", options_.node_socket);
  }
  if (!slot->status.ok()) return Annotate(slot->status, fmt::format("node daemon at {}", options_.node_socket));
  address_.node = node_.node;
  if (!options_.is_driver && !node_.session_dir.empty()) {
    auto names = wire::PrintedNames::Create(wire::PrintedNamesPath(node_.session_dir, options_.worker.Hex()));
    if (names.ok()) printed_names_ = std::move(*names);
    else spdlog::warn("what this worker prints is shown without names: {}", Message(names.status()));
  }
  if (options_.code.source_address.empty()) {
    options_.code.source_address = node_.code_source_address.empty() ? node_.wire_address : node_.code_source_address;
  }
  PeerPool::Options peers;
  peers.connect = connect;
  peers.outbox = &outbox_;
  peers.node = node_.node;
  peers.on_closed = [](WorkerId) {};
  role_.Do([&] {
    peers_ = std::make_unique<PeerPool>(loop_, std::move(peers));
    tick_ = std::make_unique<async::Timer>(loop_);
  });
  return absl::OkStatus();
}

void Core::Shutdown() {
  if (closed_.exchange(true)) return;
  // Closing runs on the loop; what is closed finishes in turns of its own.
  auto done = std::make_shared<std::atomic<bool>>(false);
  role_.Do([this, done] {
    unix_listener_.reset();
    tcp_listener_.reset();
    tick_.reset();
    timers_.clear();
    SendReports();
    if (peers_) peers_->CloseAll();
    for (const std::weak_ptr<wire::Connection>& weak : accepted_) {
      if (auto connection = weak.lock()) connection->Close(absl::CancelledError("the driver ends"));
    }
    if (node_connection_) node_connection_->Close(absl::CancelledError("the driver ends"));
    loop_.Post([done] { *done = true; });
  });
  role_.Await([&] { return done->load(); }, absl::Now() + absl::Seconds(2));
  role_.Do([this] {
    loop_.Poll();
    peers_.reset();
    node_connection_.reset();
  });
  role_.Stop();
  if (!options_.worker_socket.empty()) ::unlink(options_.worker_socket.c_str());
}

void Core::After(absl::Duration delay, std::function<void()> function) {
  uint64_t number = next_timer_++;
  auto timer = std::make_unique<async::Timer>(loop_);
  async::Timer* raw = timer.get();
  timers_.emplace(number, std::move(timer));
  raw->After(delay, [this, number, function = std::move(function)] {
    auto keep = std::move(timers_.at(number));
    timers_.erase(number);
    function();
  });
}

// ---- connections ------------------------------------------------------------------------------------------------------------

void Core::Accept(std::shared_ptr<wire::Connection> connection) {
  std::erase_if(accepted_, [](const std::weak_ptr<wire::Connection>& weak) { return weak.expired(); });
  accepted_.push_back(connection);
  wire::Connection::Handlers handlers;
  handlers.on_request = [this](wire::Call call) { OnWorkerRequest(std::move(call)); };
  handlers.on_notice = [this](wire::Connection& from, wire::Method method, std::string body) { OnWorkerNotice(from, method, body); };
  std::optional<WorkerId> peer = WorkerId::FromBytes(connection->peer().id);
  handlers.on_closed = [this, peer](absl::Status) {
    if (closed_ || !peer) return;
    std::vector<WorkerId> borrowers = references_.Borrowers();
    if (std::find(borrowers.begin(), borrowers.end(), *peer) == borrowers.end()) return;
    wire::WorkerAddress address;
    address.worker = *peer;
    if (auto it = nodes_of_workers_.find(*peer); it != nodes_of_workers_.end()) address.node = it->second;
    AskFate(address, [](const wire::WorkerFateReply&) {});
  };
  connection->UseOutbox(&outbox_);
  connection->Start(std::move(handlers));
}

void Core::OnNodeRequest(wire::Call call) {
  if (call.method() == wire::Method::kBecomeActor) return OnBecomeActor(std::move(call));
  if (call.method() == wire::Method::kFlushReports) {
    SendReports();
    return call.Answer(wire::Empty());
  }
  if (call.method() == wire::Method::kListReferences) return OnListReferences(std::move(call));
  if (call.method() == wire::Method::kDumpStacks) return OnDumpStacks(std::move(call));
  if (call.method() == wire::Method::kPrinted && options_.printed) {
    absl::StatusOr<wire::Printed> message = call.As<wire::Printed>();
    if (!message.ok()) return call.Fail(message.status());
    options_.printed(std::move(message->prints));
    return call.Answer(wire::Empty());
  }
  call.Fail(absl::UnimplementedError("a worker does not know this request"));
}

void Core::OnNodeNotice(wire::Method method, const std::string& body) {
  if (method == wire::Method::kExitWorker) {
    absl::StatusOr<wire::ExitWorker> message = Decode<wire::ExitWorker>(body);
    LeaveProcess(message.ok() ? message->reason : "told to leave");
  }
  if (method == wire::Method::kNodeLost) {
    absl::StatusOr<wire::NodeLost> message = Decode<wire::NodeLost>(body);
    if (message.ok() && peers_) peers_->CloseNode(message->node);
    return;
  }
  if (method == wire::Method::kLeaseRecalled) {
    absl::StatusOr<wire::LeaseRecalled> message = Decode<wire::LeaseRecalled>(body);
    if (!message.ok()) return;
    SubmitMachine::Effects effects;
    if (message->when_idle) submit_.Wanted(message->lease, absl::Now(), effects);
    else submit_.Recalled(message->lease, absl::Now(), effects);
    Apply(std::move(effects));
  }
}

void Core::OnNodeClosed(const absl::Status& why) {
  if (closed_) return;
  if (!options_.is_driver) LeaveProcess("the node daemon is gone");
  spdlog::error("the connection to the node daemon broke: {}", Message(why));
  node_connection_.reset();
  node_gone_ = true;
  ErrorInfo error = MakeError(ErrorInfo::kNodeDied, kNodeGone);
  std::vector<TaskId> tasks;
  for (const auto& [task, record] : tasks_) tasks.push_back(task);
  for (TaskId task : tasks) FailTask(task, error);
}

void Core::OnWorkerRequest(wire::Call call) {
  switch (call.method()) {
    case wire::Method::kPushTask: return OnPush(std::move(call));
    case wire::Method::kGetOwnedObject: return OnGetOwned(std::move(call));
    case wire::Method::kStreamItem: return OnStreamItem(std::move(call));
    case wire::Method::kObjectMoved: return OnObjectMoved(std::move(call));
    case wire::Method::kAddBorrower: {
      absl::StatusOr<wire::AddBorrower> message = call.As<wire::AddBorrower>();
      if (!message.ok()) return call.Fail(message.status());
      nodes_of_workers_[message->borrower.worker] = message->borrower.node;
      references_.AddBorrower(message->object, message->borrower.worker);
      return call.Answer(wire::Empty());
    }
    case wire::Method::kOpenChannel: {
      absl::StatusOr<wire::OpenChannel> message = call.As<wire::OpenChannel>();
      if (!message.ok()) return call.Fail(message.status());
      std::shared_ptr<wire::Connection> connection = call.connection();
      if (!connection) return;
      constexpr size_t kWaitingMax = 1024;
      std::lock_guard lock(channels_mutex_);
      if (channels_.size() >= kWaitingMax) {
        return call.Fail(absl::ResourceExhaustedError("too many channels wait to be accepted here"));
      }
      call.Answer(wire::Empty());
      wire::Connection::Detached detached = connection->Detach();
      channels_[message->channel].push_back({std::move(detached.fd), std::move(detached.unread)});
      ++channels_arrived_;
      return;
    }
    default: return call.Fail(absl::UnimplementedError("a worker does not know this request"));
  }
}

void Core::OnWorkerNotice(wire::Connection& connection, wire::Method method, const std::string& body) {
  if (method == wire::Method::kReleaseBorrow) {
    absl::StatusOr<wire::ReleaseBorrow> message = Decode<wire::ReleaseBorrow>(body);
    if (!message.ok()) return;
    ReferenceMachine::Effects effects;
    references_.ReleaseBorrow(message->object, message->borrower, effects);
    Apply(std::move(effects));
  } else if (method == wire::Method::kCancelTask) {
    if (absl::StatusOr<wire::CancelTask> message = Decode<wire::CancelTask>(body); message.ok()) OnCancel(*message);
  }
}

void Core::AskFate(const wire::WorkerAddress& worker, std::function<void(const wire::WorkerFateReply&)> done) {
  wire::WorkerFate question;
  question.worker = worker.worker;
  question.node = worker.node;
  question.wait_seconds = 2;
  NodeRequest(question, [this, worker, done = std::move(done)](absl::StatusOr<wire::WorkerFateReply> reply) {
    if (closed_) return;
    if (!reply.ok()) {
      if (node_connection_ == nullptr) return done({.dead = true, .reason = kNodeGone, .node_lost = true});
      return After(absl::Milliseconds(500), [this, worker, done] { AskFate(worker, done); });
    }
    if (reply->dead) {
      ReferenceMachine::Effects effects;
      references_.BorrowerDied(worker.worker, effects);
      Apply(std::move(effects));
      nodes_of_workers_.erase(worker.worker);
      callers_.erase(worker.worker);
    }
    done(*reply);
  });
}

void Core::LeaveProcess(const std::string& why) {
  SendReports();
  // What was answered is on its way; what user code printed must be seen. Destructors of user objects do not run: other threads may
  // still be in user code.
  outbox_.Flush();
  for (const std::weak_ptr<wire::Connection>& weak : accepted_) {
    if (auto connection = weak.lock()) connection->Close(absl::CancelledError(ToAbsl(why)), true);
  }
  if (node_connection_) node_connection_->Close(absl::CancelledError(ToAbsl(why)), true);
  if (!options_.worker_socket.empty()) ::unlink(options_.worker_socket.c_str());
  std::fflush(nullptr);
  ::_exit(0);
}

// ---- channels ---------------------------------------------------------------------------------------------------------------

std::optional<ChannelEnd> Core::AcceptChannel(const std::string& name, absl::Time deadline) {
  for (;;) {
    uint64_t arrived = channels_arrived_.load();
    {
      std::lock_guard lock(channels_mutex_);
      auto it = channels_.find(name);
      if (it != channels_.end()) {
        ChannelEnd end = std::move(it->second.front());
        it->second.pop_front();
        if (it->second.empty()) channels_.erase(it);
        return end;
      }
    }
    if (!AwaitBlocking([&] { return channels_arrived_.load() != arrived || current_cancelled(); }, deadline)) return std::nullopt;
    if (current_cancelled()) return std::nullopt;
  }
}

absl::StatusOr<ChannelEnd> Core::OpenChannel(const wire::WorkerAddress& peer, const std::string& name, absl::Time deadline) {
  struct Slot { std::atomic<bool> done = false; absl::StatusOr<ChannelEnd> end = absl::UnknownError(""); };
  for (;;) {
    auto slot = std::make_shared<Slot>();
    auto finish = [slot](absl::StatusOr<ChannelEnd> end) {
      slot->end = std::move(end);
      slot->done.store(true, std::memory_order_release);
    };
    role_.Do([this, peer, name, finish] {
      if (!peers_) return finish(absl::UnavailableError("the runtime has ended"));
      peers_->ConnectAlone(peer, [this, name, finish](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
        if (!connection.ok()) return finish(connection.status());
        std::shared_ptr<wire::Connection> open = *connection;
        open->Start({});
        wire::OpenChannel message;
        message.channel = name;
        message.from = options_.worker;
        open->Request(message, [open, finish](absl::StatusOr<wire::Empty> reply) {
          if (!reply.ok()) {
            open->Close(absl::CancelledError("no channel"));
            return finish(reply.status());
          }
          wire::Connection::Detached detached = open->Detach();
          finish(ChannelEnd{std::move(detached.fd), std::move(detached.unread)});
        });
      });
    });
    if (!AwaitBlocking([&] { return slot->done.load(std::memory_order_acquire); }, deadline)) {
      return absl::DeadlineExceededError("the peer did not take the channel in time");
    }
    if (slot->end.ok() || !absl::IsUnavailable(slot->end.status())) return std::move(slot->end);
    // Nobody listens there (yet, or any more): only the deadline, or the peer's known death, ends this.
    struct Death { std::atomic<int> known = 0; std::string reason; };
    auto death = std::make_shared<Death>();
    role_.Do([this, peer, death] {
      AskFate(peer, [death](const wire::WorkerFateReply& fate) {
        death->reason = fate.reason;
        death->known.store(fate.dead ? 2 : 1, std::memory_order_release);
      });
    });
    if (!AwaitBlocking([&] { return death->known.load(std::memory_order_acquire) != 0; }, deadline)) {
      return absl::DeadlineExceededError("the peer did not take the channel in time");
    }
    if (death->known == 2) return Unavailable("the peer's process is dead: {}", death->reason);
  }
}

}  // namespace argosy::worker
