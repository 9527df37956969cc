#include "runtime/node/worker_service.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

// Where nodes tell each other the namespaces of jobs.
constexpr char kJobNamespaces[] = "argosy.job.namespaces";
// A driver whose connection broke comes back within this time, or has left.
constexpr absl::Duration kDriverGrace = absl::Seconds(1);
// Prints on their way to a driver that does not take them: more is dropped, with a count.
constexpr size_t kPrintsUnderWayMax = 8 << 20;
// Of other nodes, whose prints come over the head.
constexpr absl::Duration kFlushWait = absl::Milliseconds(1500);

}  // namespace

WorkerService::WorkerService(Parts parts, wire::WorkerRegistered self, std::string socket_dir)
    : parts_(parts), self_(std::move(self)), socket_dir_(std::move(socket_dir)), groups_(parts.cluster) {}

WorkerService::~WorkerService() {
  alive_.reset();
  CloseAll("the node daemon stops");
}

void WorkerService::CloseAll(const std::string& reason) {
  for (const ClientPointer& client : parts_.clients.All()) {
    client->connection->Close(Unavailable("{}", reason));
    parts_.clients.Remove(client);
  }
}

void WorkerService::Accept(std::shared_ptr<wire::Connection> connection) {
  ClientPointer client = parts_.clients.Add(connection, parts_.store.AddClient());
  std::weak_ptr<bool> weak = alive_;
  connection->Start({
      .on_request = [this, weak, client](wire::Call call) { if (!weak.expired()) OnRequest(client, std::move(call)); },
      .on_notice = [this, weak, client](wire::Connection&, wire::Method method, std::string body) {
        if (!weak.expired()) OnNotice(client, method, body);
      },
      .on_closed = [this, weak, client](absl::Status) { if (!weak.expired()) OnClosed(client); },
  });
}

template <class Message, class Forward>
void WorkerService::Forwarded(wire::Call call, Forward&& forward) {
  absl::StatusOr<Message> message = call.As<Message>();
  if (!message.ok()) return call.Fail(message.status());
  auto shared = std::make_shared<wire::Call>(std::move(call));
  forward(*message, [shared](absl::StatusOr<typename Message::Reply> reply) {
    if (reply.ok()) shared->Answer(*reply);
    else shared->Fail(reply.status());
  });
}

void WorkerService::OnRequest(const ClientPointer& client, wire::Call call) {
  using wire::Method;
  ClusterClient& cluster = parts_.cluster;
  switch (call.method()) {
    case Method::kRegisterWorker: return RegisterWorker(client, std::move(call));
    case Method::kRegisterDriver: return RegisterDriver(client, std::move(call));
    case Method::kPullObject: return parts_.mover.ServePull(std::move(call));
    case Method::kPullBytes: return parts_.mover.ServeBytes(std::move(call));
    case Method::kReadCodeFile: return parts_.code_files.ServeRead(std::move(call));
    default: break;
  }
  if (client->connection->peer().role == wire::Role::kNode) {
    if (call.method() == Method::kAdoptObject) return AdoptObject(std::move(call));
    if (call.method() == Method::kMemoryUse) return parts_.memory.OnMemoryUse(std::move(call));
  }
  if (!client->registered) return call.Fail(FailedPrecondition("register as a worker or driver first"));
  switch (call.method()) {
    case Method::kRequestLease: return parts_.leases.RequestLease(*client, std::move(call));
    case Method::kWorkerFate: return parts_.leases.WorkerFate(std::move(call));
    case Method::kCreateObject: return CreateObject(client, std::move(call));
    case Method::kSealObject: return SealObject(client, std::move(call));
    case Method::kGetObject: return GetObject(client, std::move(call));
    case Method::kContainsObject: {
      absl::StatusOr<wire::ContainsObject> message = call.As<wire::ContainsObject>();
      if (!message.ok()) return call.Fail(message.status());
      return call.Answer(wire::ContainsObjectReply{parts_.store.Contains(message->object)});
    }
    case Method::kCreateActor: return CreateActor(client, std::move(call));
    case Method::kResolveActor:
      return Forwarded<wire::ResolveActor>(std::move(call), [&](const auto& m, auto done) { cluster.ResolveActor(m, done); });
    case Method::kKillActor:
      return Forwarded<wire::KillActor>(std::move(call), [&](const auto& m, auto done) { cluster.KillActor(m, done); });
    case Method::kListActors:
      return Forwarded<wire::ListActors>(std::move(call), [&](const auto& m, auto done) { cluster.ListActors(m, done); });
    case Method::kCreateGroup:
      return Forwarded<wire::CreateGroup>(std::move(call), [&](const auto& m, auto done) { groups_.Create(m, client->job, done); });
    case Method::kWaitGroup:
      return Forwarded<wire::WaitGroup>(std::move(call), [&](const auto& m, auto done) { groups_.Wait(m, done); });
    case Method::kRemoveGroup:
      return Forwarded<wire::RemoveGroup>(std::move(call), [&](const auto& m, auto done) { groups_.Remove(m, done); });
    case Method::kFlushPrints: return FlushPrints(client, std::move(call));
    case Method::kKvPut: return Forwarded<wire::KvPut>(std::move(call), [&](const auto& m, auto done) { cluster.KvPut(m, done); });
    case Method::kKvGet: return Forwarded<wire::KvGet>(std::move(call), [&](const auto& m, auto done) { cluster.KvGet(m, done); });
    case Method::kKvDelete: return Forwarded<wire::KvDelete>(std::move(call), [&](const auto& m, auto done) { cluster.KvDelete(m, done); });
    case Method::kKvList: return Forwarded<wire::KvList>(std::move(call), [&](const auto& m, auto done) { cluster.KvList(m, done); });
    case Method::kListNodes: return Forwarded<wire::ListNodes>(std::move(call), [&](const auto&, auto done) { cluster.ListNodes(done); });
    case Method::kUploadFolder:
      return Forwarded<wire::UploadFolder>(std::move(call), [&](const auto& m, auto done) { parts_.packages.Upload(m.path, done); });
    case Method::kExplain:
      return Forwarded<wire::Explain>(std::move(call), [&](const auto& m, auto done) { cluster.Explain(m.demand, done); });
    default:
      return call.Fail(MakeStatus(absl::StatusCode::kUnimplemented, "a node daemon does not answer method {}", static_cast<int>(call.method())));
  }
}

void WorkerService::TellNodeLost(NodeId node) {
  for (const ClientPointer& client : parts_.clients.All()) {
    if (client->registered) client->connection->Notify(wire::NodeLost{node});
  }
}

void WorkerService::OnNotice(const ClientPointer& client, wire::Method method, const std::string& body) {
  using wire::Method;
  auto read = [&]<class Message>(Message message) -> std::optional<Message> {
    absl::StatusOr<Message> decoded = Decode<Message>(body);
    if (decoded.ok()) return std::move(*decoded);
    spdlog::warn("a notice {} was ignored: {}", static_cast<int>(method), argosy::Message(decoded.status()));
    return std::nullopt;
  };
  if (method == Method::kDropObject) {
    if (auto message = read(wire::DropObject{})) parts_.mover.ServeDrop(*message);
    return;
  }
  if (method == Method::kEndForMemory && client->connection->peer().role == wire::Role::kNode) {
    if (auto message = read(wire::EndForMemory{})) parts_.memory.OnEndForMemory(*message);
    return;
  }
  if (!client->registered) return spdlog::warn("a notice {} from a process that has not registered was ignored", static_cast<int>(method));
  switch (method) {
    case Method::kCancelLeaseRequest:
      if (auto message = read(wire::CancelLeaseRequest{})) parts_.leases.Step(LeaseCancelled{message->request_id});
      return;
    case Method::kReturnLease:
      if (auto message = read(wire::ReturnLease{})) parts_.leases.Step(LeaseReturned{message->lease, message->worker_failed});
      return;
    case Method::kWorkerBlocked: return parts_.leases.Step(WorkerBlockedSet{client->worker, true});
    case Method::kWorkerUnblocked: return parts_.leases.Step(WorkerBlockedSet{client->worker, false});
    case Method::kAbortObject:
      if (auto message = read(wire::AbortObject{})) {
        if (absl::Status status = parts_.store.Abort(message->object, client->store_client); !status.ok()) {
          spdlog::debug("{}", argosy::Message(status));
        }
      }
      return;
    case Method::kReleaseObject:
      if (auto message = read(wire::ReleaseObject{})) parts_.store.Release(message->object, client->store_client);
      return;
    case Method::kDeleteObjects:
      if (auto message = read(wire::DeleteObjects{})) DeleteObjects(*message);
      return;
    case Method::kReportTasks:
      // As it is: what it says is between the process and the head.
      if (!parts_.head.SendIfRoom(CarriedTaskEvents{body, task_events_dropped_})) ++task_events_dropped_;
      else task_events_dropped_ = 0;
      return;
    case Method::kReportMetrics:
      (void)parts_.head.SendIfRoom(CarriedMetrics{body});   // the next report says it all again
      return;
    case Method::kActorExiting:
      if (auto message = read(wire::ActorExiting{})) parts_.leases.Step(ActorExitAnnounced{client->worker, message->reason});
      return;
    default: return spdlog::warn("a node daemon takes no notice {}", static_cast<int>(method));
  }
}

void WorkerService::OnClosed(const ClientPointer& client) {
  parts_.store.RemoveClient(client->store_client);
  bool newest = parts_.clients.Find(client->worker) == client;
  parts_.clients.Remove(client);
  if (!client->registered || !newest) return;
  if (!client->is_driver) return parts_.leases.OnConnectionLost(client->worker);
  auto at = drivers_.find(client->job);
  if (at == drivers_.end()) return;
  Driver& driver = at->second;
  driver.connected = false;
  driver.grace = std::make_unique<async::Timer>(parts_.loop);
  driver.grace->After(kDriverGrace, [this, job = client->job] { DriverEnded(job, "the driver disconnected"); });
}

void WorkerService::RegisterWorker(const ClientPointer& client, wire::Call call) {
  absl::StatusOr<wire::RegisterWorker> message = call.As<wire::RegisterWorker>();
  if (!message.ok()) return call.Fail(message.status());
  std::optional<WorkerId> worker = parts_.leases.CheckRegistration(*message);
  const WorkerPool::Worker* known = worker ? parts_.leases.machine().pool().Find(*worker) : nullptr;
  if (known == nullptr || known->ending) {
    return call.Fail(MakeStatus(absl::StatusCode::kPermissionDenied, "this daemon has not started a worker with start-up number {} and pid {}",
                                message->startup_number, message->pid));
  }
  client->worker = *worker;
  client->job = known->key.job;
  client->address = message->address;
  client->address.node = self_.node;
  auto answer = [this, weak = std::weak_ptr<bool>(alive_), client,
                 shared = std::make_shared<wire::Call>(std::move(call))](const std::string& ns) {
    if (weak.expired() || !client->connection->is_open()) return;
    wire::WorkerRegistered reply = self_;
    reply.job = client->job;
    reply.ns = ns;
    parts_.clients.SetRegistered(client);
    shared->Answer(reply);
    parts_.leases.OnRegistered(client->worker, client->address);
  };
  if (auto at = drivers_.find(client->job); at != drivers_.end()) return answer(at->second.ns);
  if (auto at = namespaces_.find(client->job); at != namespaces_.end()) return answer(at->second);
  // The driver is on another node, which has told the head.
  wire::KvGet get{kJobNamespaces, client->job.Hex()};
  parts_.cluster.KvGet(get, [this, weak = std::weak_ptr<bool>(alive_), client, answer](absl::StatusOr<wire::KvGetReply> reply) {
    if (weak.expired()) return;
    std::string ns = reply.ok() ? reply->value.value_or("") : "";
    if (reply.ok()) {
      if (namespaces_.size() > 10'000) namespaces_.clear();
      namespaces_[client->job] = ns;
    }
    answer(ns);
  });
}

DriverJoined WorkerService::Joined(const Driver& driver) const {
  return {driver.job, driver.submission_id, driver.address, driver.pid, driver.entrypoint, driver.ns, driver.quiet};
}

void WorkerService::RegisterDriver(const ClientPointer& client, wire::Call call) {
  absl::StatusOr<wire::RegisterDriver> message = call.As<wire::RegisterDriver>();
  if (!message.ok()) return call.Fail(message.status());
  if (message->address.worker.IsNil()) return call.Fail(InvalidArgument("a driver needs a worker id of its own"));
  if (client->registered) return call.Fail(FailedPrecondition("this connection has registered already"));
  JobId job = message->job;
  auto at = drivers_.find(job);
  if (!job.IsNil() && at == drivers_.end()) {
    return call.Fail(NotFound("job {} is not (or no longer) on this node", job.Hex()));
  }
  if (job.IsNil()) {
    job = JobId::Random();
    at = drivers_.emplace(job, Driver{}).first;
    Driver& driver = at->second;
    driver.job = job;
    driver.submission_id = message->submission_id;
    driver.entrypoint = message->entrypoint;
    driver.ns = message->ns;
    driver.quiet = message->quiet;
    if (driver.quiet) parts_.prints.Mute(job);
    driver.watch = ProcessWatch::Make(parts_.loop, static_cast<pid_t>(message->pid), [this, weak = std::weak_ptr<bool>(alive_), job] {
      // Not from inside the watch, which ends with the driver's entry.
      if (weak.expired()) return;
      parts_.loop.Post([this, weak, job] { if (!weak.expired()) DriverEnded(job, "the driver's process ended"); });
    });
    if (!driver.ns.empty()) {
      wire::KvPut put{kJobNamespaces, job.Hex(), driver.ns, true};
      parts_.cluster.KvPut(put, [](absl::StatusOr<wire::KvPutReply> reply) {
        if (!reply.ok()) spdlog::warn("the job's namespace was not stored: {}", argosy::Message(reply.status()));
      });
    }
  } else if (at->second.worker != message->address.worker) {
    return call.Fail(MakeStatus(absl::StatusCode::kPermissionDenied, "job {} has another driver", job.Hex()));
  }
  Driver& driver = at->second;
  driver.worker = message->address.worker;
  driver.address = message->address;
  driver.address.node = self_.node;
  driver.pid = message->pid;
  driver.connected = true;
  driver.grace = nullptr;
  client->worker = driver.worker;
  client->job = job;
  client->is_driver = true;
  client->address = driver.address;
  client->pid = driver.pid;
  parts_.clients.SetRegistered(client);
  wire::WorkerRegistered reply = self_;
  reply.job = job;
  reply.ns = driver.ns;
  reply.worker_socket = socket_dir_ + "/d-" + driver.worker.Hex().substr(0, 16);
  call.Answer(reply);
  parts_.head.Send(Joined(driver));
}

void WorkerService::ReportDrivers() {
  for (const auto& [job, driver] : drivers_) parts_.head.Send(Joined(driver));
}

bool WorkerService::ShowPrints(JobPrints prints) {
  auto at = drivers_.find(prints.job);
  if (at == drivers_.end()) return false;
  Driver& driver = at->second;
  auto client = parts_.clients.Find(driver.worker);
  if (driver.quiet || client == nullptr) return true;
  size_t size = 0;
  for (const PrintedLines& lines : prints.lines) size += lines.text.size() + 200;
  if (driver.prints_under_way + size > kPrintsUnderWayMax) {
    for (const PrintedLines& lines : prints.lines) driver.prints_dropped += lines.skipped + lines.text.size();
    return true;
  }
  if (!prints.lines.empty()) prints.lines.front().skipped += std::exchange(driver.prints_dropped, 0);
  driver.prints_under_way += size;
  client->connection->Request(wire::Printed{std::move(prints)}, [this, weak = std::weak_ptr<bool>(alive_), job = driver.job,
                                                                 size](absl::StatusOr<wire::Empty>) {
    if (weak.expired()) return;
    if (auto driver = drivers_.find(job); driver != drivers_.end()) driver->second.prints_under_way -= size;
  });
  return true;
}

void WorkerService::FlushPrints(const ClientPointer& client, wire::Call call) {
  auto at = drivers_.find(client->job);
  if (!client->is_driver || at == drivers_.end()) return call.Fail(FailedPrecondition("only a driver is shown what workers print"));
  Driver& driver = at->second;
  auto shared = std::make_shared<wire::Call>(std::move(call));
  if (!parts_.head.SendNow(node::FlushPrints{client->job})) {
    parts_.prints.Flush(client->job);
    return shared->Answer(wire::Empty{});
  }
  driver.flushes.push_back(std::move(shared));
  driver.flush_timer = std::make_unique<async::Timer>(parts_.loop);
  driver.flush_timer->After(kFlushWait, [this, job = client->job] { OnPrintsFlushed(job); });
}

void WorkerService::OnPrintsFlushed(JobId job) {
  auto at = drivers_.find(job);
  if (at == drivers_.end()) return;
  if (at->second.flush_timer) at->second.flush_timer->Cancel();
  for (const std::shared_ptr<wire::Call>& call : std::exchange(at->second.flushes, {})) call->Answer(wire::Empty{});
}

void WorkerService::DriverEnded(JobId job, const std::string& reason) {
  auto driver = drivers_.extract(job);
  if (driver.empty()) return;
  spdlog::info("job {} ended: {}", job.Short(), reason);
  parts_.head.Send(DriverLeft{job, reason});
  WorkerId worker = driver.mapped().worker;
  if (auto client = parts_.clients.Find(worker)) client->connection->Close(Unavailable("{}", reason));
  parts_.leases.OnDriverEnded(worker, job, reason);
  // A driver that was killed leaves the name of its socket behind. Only a name in our own folder is ours to remove.
  const std::string& socket = driver.mapped().address.unix_path;
  if (std::filesystem::path(socket).parent_path() == socket_dir_ && std::filesystem::path(socket).filename().string().starts_with("d")) {
    ::unlink(socket.c_str());
  }
  wire::KvDelete remove{kJobNamespaces, job.Hex()};
  if (!driver.mapped().ns.empty()) parts_.cluster.KvDelete(remove, [](absl::StatusOr<wire::KvDeleteReply>) {});
}

void WorkerService::CreateObject(const ClientPointer& client, wire::Call call) {
  absl::StatusOr<wire::CreateObject> message = call.As<wire::CreateObject>();
  if (!message.ok()) return call.Fail(message.status());
  store::CreateRequest request{.object = message->object, .size = message->size, .client = client->store_client,
                               .owner = message->owner.worker, .job = client->job, .owner_tcp = message->owner.tcp};
  auto shared = std::make_shared<wire::Call>(std::move(call));
  parts_.store.Create(request, [shared](absl::StatusOr<store::Place> place) {
    if (place.ok()) shared->Answer(wire::ObjectPlace{place->offset, place->size});
    else shared->Fail(place.status());
  });
}

void WorkerService::SealObject(const ClientPointer& client, wire::Call call) {
  absl::StatusOr<wire::SealObject> message = call.As<wire::SealObject>();
  if (!message.ok()) return call.Fail(message.status());
  absl::Status status = parts_.store.Seal(message->object, client->store_client);
  if (status.ok()) call.Answer(wire::Empty{});
  else call.Fail(status);
}

// From a node that leaves.
void WorkerService::AdoptObject(wire::Call call) {
  absl::StatusOr<wire::AdoptObject> message = call.As<wire::AdoptObject>();
  if (!message.ok()) return call.Fail(message.status());
  auto shared = std::make_shared<wire::Call>(std::move(call));
  parts_.mover.Pull(message->object, {message->from}, message->job,
                    [this, weak = std::weak_ptr<bool>(alive_), shared, adopt = *message](absl::Status status) {
    if (weak.expired()) return;
    if (status.ok()) status = parts_.store.Adopt(adopt.object, adopt.owner, adopt.owner_tcp);
    if (!status.ok()) return shared->Fail(status);
    shared->Answer(wire::ObjectLocation{self_.node, self_.wire_address, adopt.from.size});
  });
}

struct WorkerService::Getting {
  Getting(async::Loop& loop, wire::Call call) : call(std::move(call)), deadline(loop) {}
  ClientPointer client;
  wire::GetObject message;
  wire::Call call;
  bool pulled = false;
  bool done = false;
  async::Timer deadline;
};

void WorkerService::GetObject(const ClientPointer& client, wire::Call call) {
  absl::StatusOr<wire::GetObject> message = call.As<wire::GetObject>();
  if (!message.ok()) return call.Fail(message.status());
  auto getting = std::make_shared<Getting>(parts_.loop, std::move(call));
  getting->client = client;
  getting->message = std::move(*message);
  if (getting->message.deadline_seconds > 0) {
    getting->deadline.After(absl::Seconds(getting->message.deadline_seconds), [weak = std::weak_ptr<Getting>(getting)] {
      auto getting = weak.lock();
      if (!getting || getting->done) return;
      getting->done = true;
      getting->call.Fail(MakeStatus(absl::StatusCode::kDeadlineExceeded, "object {} did not arrive within {} s",
                                    getting->message.object.Hex(), getting->message.deadline_seconds));
    });
  }
  TryGet(getting);
}

void WorkerService::TryGet(const std::shared_ptr<Getting>& getting) {
  if (getting->done || !getting->client->connection->is_open()) return;
  const ObjectId object = getting->message.object;
  std::weak_ptr<bool> weak = alive_;
  absl::StatusOr<store::Place> place = parts_.store.Pin(object, getting->client->store_client);
  auto finish = [&](const absl::Status& error) {
    getting->done = true;
    getting->deadline.Cancel();
    if (error.ok()) getting->call.Answer(wire::ObjectPlace{place->offset, place->size});
    else getting->call.Fail(error);
  };
  if (place.ok()) return finish(absl::OkStatus());
  if (parts_.store.IsSpilled(object)) {
    return parts_.store.WhenHere(object, [this, weak, getting](absl::Status status) {
      if (weak.expired() || getting->done) return;
      if (status.ok()) return TryGet(getting);
      getting->done = true;
      getting->deadline.Cancel();
      getting->call.Fail(status);
    });
  }
  if (parts_.store.IsBeingCreated(object)) {
    return parts_.store.WhenCreated(object, [this, weak, getting](bool sealed) {
      // From its own turn: the store is in the middle of the change.
      if (!weak.expired()) parts_.loop.Post([this, weak, getting] { if (!weak.expired()) TryGet(getting); });
    });
  }
  // Of the copy here; it is asked for again.
  if (getting->pulled) return finish(Unavailable("object {} was evicted as soon as it had arrived", object.Hex()));
  parts_.mover.Pull(object, getting->message.locations, getting->client->job, [this, weak, getting](absl::Status status) {
    if (weak.expired() || getting->done) return;
    getting->pulled = true;
    if (status.ok()) return TryGet(getting);
    getting->done = true;
    getting->deadline.Cancel();
    getting->call.Fail(status);
  });
}

void WorkerService::DeleteObjects(const wire::DeleteObjects& message) {
  for (ObjectId object : message.objects) parts_.store.Delete(object);
  parts_.mover.DropElsewhere(message.objects, message.locations);
}

void WorkerService::CreateActor(const ClientPointer& client, wire::Call call) {
  Forwarded<wire::CreateActor>(std::move(call), [&](wire::CreateActor& message, auto done) {
    if (message.spec.job.IsNil()) message.spec.job = client->job;
    parts_.cluster.CreateActor(message.spec, done);
  });
}

}  // namespace argosy::node
