#include "tests/unit/api/small_node.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "runtime/base/status.h"
#include "runtime/wire/startup.h"

extern char** environ;

namespace argosy::testing {

using wire::ActorInfo;

SmallNode::SmallNode(double cpus) : free_(cpus) {
  char pattern[] = "/tmp/argosy-small-XXXXXX";
  folder_ = ::mkdtemp(pattern);
  std::filesystem::create_directory(folder_ + "/logs");   // where workers note whose prints are whose
  socket_ = folder_ + "/n";
  store::ObjectStoreOptions options;
  options.size = 256u << 20;
  options.door_path = folder_ + "/door";
  auto opened = store::ObjectStore::Open(loop_, options);
  ARGOSY_CHECK(opened.ok(), "{}", Message(opened.status()));
  store_ = std::move(*opened);
  wire::ListenOptions listen;
  listen.self = {wire::Role::kNode, std::string(node_.Bytes())};
  auto listener = wire::Listener::Unix(loop_, socket_, listen, [this](auto connection) { Accept(std::move(connection)); });
  ARGOSY_CHECK(listener.ok(), "{}", Message(listener.status()));
  listener_ = std::move(*listener);
  reaper_ = std::make_unique<async::Timer>(loop_);
  reaper_->Every(absl::Milliseconds(10), [this] { Reap(); });
  thread_ = std::thread([this] { loop_.Run(); });
}

SmallNode::~SmallNode() {
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
  for (auto& worker : workers_) {
    if (worker->dead) continue;
    ::kill(worker->pid, SIGKILL);
    ::waitpid(worker->pid, nullptr, 0);
  }
  reaper_.reset();
  timers_.clear();
  listener_.reset();
  store_.reset();
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

wire::WorkerRegistered SmallNode::About() const {
  wire::WorkerRegistered about;
  about.node = node_;
  about.node_name = "small";
  about.node_ip = "127.0.0.1";
  about.wire_address = "127.0.0.1:1";
  about.session_dir = folder_;
  about.store_door = store_->door_path();
  about.arena_size = store_->arena_size();
  about.job = JobId::FromNumber(1);
  about.ns = "test";
  return about;
}

void SmallNode::Accept(std::shared_ptr<wire::Connection> connection) {
  store::ClientNumber client = store_->AddClient();
  wire::Connection::Handlers handlers;
  handlers.on_request = [this, client](wire::Call call) { OnRequest(std::move(call), client); };
  handlers.on_notice = [this, client](wire::Connection& from, wire::Method method, std::string body) { OnNotice(from, method, body, client); };
  handlers.on_closed = [this, client](absl::Status) { store_->RemoveClient(client); };
  connection->Start(std::move(handlers));
}

SmallNode::Worker* SmallNode::Find(WorkerId id) {
  for (auto& worker : workers_) {
    if (worker->id == id) return worker.get();
  }
  return nullptr;
}

SmallNode::Worker& SmallNode::Spawn(const wire::CodePackage& code) {
  auto worker = std::make_unique<Worker>();
  worker->id = WorkerId::Random();
  worker->number = next_number_++;
  worker->code_id = code.id;
  wire::StartupBlock block;
  block.startup_number = worker->number;
  block.node_socket = socket_;
  block.tcp_host = "127.0.0.1";
  block.worker = worker->id;
  block.node = node_;
  block.worker_socket = folder_ + "/w" + worker->id.Short();
  block.session_dir = folder_;
  block.code = code;
  std::string text = Encode(block);
  int ends[2];
  ARGOSY_CHECK(text.size() < 60'000, "a start-up block of {} bytes does not fit a pipe", text.size());
  ARGOSY_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  ARGOSY_CHECK(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  constexpr int kChildFd = 100;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], kChildFd);
  std::vector<std::string> environment;
  for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
  for (const auto& [variable, value] : code.env_vars) environment.push_back(variable + "=" + value);
  environment.push_back("ARGOSY_WORKER=" + std::to_string(kChildFd));
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  envp.push_back(nullptr);
  char name[] = "worker";
  char* argv[] = {name, nullptr};
  ARGOSY_CHECK(::posix_spawn(&worker->pid, "/proc/self/exe", &actions, nullptr, argv, envp.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[0]);
  ++workers_started_;
  workers_.push_back(std::move(worker));
  int alive = 0;
  for (auto& each : workers_) alive += each->dead ? 0 : 1;
  workers_most_ = std::max(workers_most_.load(), alive);
  return *workers_.back();
}

void SmallNode::Grant() {
  while (!waiting_.empty() && waiting_.front().cpu <= free_ + 1e-9) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    free_ -= next.cpu;
    Worker* idle = nullptr;
    for (auto& worker : workers_) {
      if (worker->registered && !worker->dead && worker->lease.IsNil() && worker->actor.IsNil() && worker->code_id == next.code.id) {
        idle = worker.get();
      }
    }
    if (idle != nullptr) GiveTo(*idle, std::move(next));
    else {
      uint64_t number = Spawn(next.code).number;
      starting_.emplace(number, std::move(next));
    }
  }
}

void SmallNode::GiveTo(Worker& worker, Waiting waiting) {
  worker.lease = LeaseId::Random();
  worker.cpu = waiting.cpu;
  worker.blocked = false;
  worker.holder = *WorkerId::FromBytes(waiting.from->peer().id);
  wire::LeaseGrant grant;
  grant.lease = worker.lease;
  grant.worker = worker.address;
  waiting.call->Answer(grant);
}

void SmallNode::Reap() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    int status = 0;
    if (worker.dead || ::waitpid(worker.pid, &status, WNOHANG) != worker.pid) continue;
    worker.dead = true;
    worker.reason = WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status)) : fmt::format("exit code {}", WEXITSTATUS(status));
    Died(worker);
  }
}

void SmallNode::Died(Worker& worker) {
  if (auto it = starting_.find(worker.number); it != starting_.end()) {
    free_ += it->second.cpu;
    it->second.call->Fail(Internal("the worker did not start: {}", worker.reason));
    starting_.erase(it);
  }
  FreeLease(worker);
  // Nobody wants what the workers do that it held, nor what it waits for. Their leases end with them.
  for (auto& other : workers_) {
    if (other->holder == worker.id && !other->dead) ::kill(other->pid, SIGKILL);
  }
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.from->peer().id == worker.id.Bytes(); });
  if (!worker.actor.IsNil()) {
    Actor& actor = *actors_.at(worker.actor);
    if (!actor.killed && (actor.spec.max_restarts < 0 || actor.restarts < actor.spec.max_restarts)) {
      ++actor.restarts;
      actor.info.state = ActorInfo::kRestarting;
      StartActor(actor);
    } else {
      actor.info.state = ActorInfo::kDead;
      if (actor.info.death_reason.empty()) actor.info.death_reason = worker.reason;
    }
    Changed(actor);
  }
  Grant();
}

void SmallNode::FreeLease(Worker& worker) {
  if (worker.lease.IsNil()) return;
  if (!worker.blocked) free_ += worker.cpu;
  worker.lease = LeaseId();
  worker.holder = WorkerId();
}

void SmallNode::StartActor(Actor& actor) { starting_actors_[Spawn(actor.spec.code).number] = actor.spec.actor; }

void SmallNode::Changed(Actor& actor) {
  auto waiting = std::move(actor.waiting);
  actor.waiting.clear();
  for (auto& [incarnation_min, call] : waiting) {
    bool answer = actor.info.state == ActorInfo::kDead ||
                  (actor.info.state == ActorInfo::kAlive && actor.info.incarnation >= incarnation_min);
    if (answer) call->Answer(actor.info);
    else actor.waiting.emplace_back(incarnation_min, call);
  }
}

void SmallNode::OnRequest(wire::Call call, store::ClientNumber client) {
  switch (call.method()) {
    case wire::Method::kRegisterDriver: return call.Answer(About());
    case wire::Method::kRegisterWorker: {
      auto message = call.As<wire::RegisterWorker>();
      for (auto& worker : workers_) {
        if (worker->number != message->startup_number) continue;
        worker->registered = true;
        worker->address = message->address;
        worker->address.node = node_;
        worker->connection = call.connection();
        call.Answer(About());
        if (auto it = starting_.find(worker->number); it != starting_.end()) {
          Waiting next = std::move(it->second);
          starting_.erase(it);
          return GiveTo(*worker, std::move(next));
        }
        if (auto it = starting_actors_.find(worker->number); it != starting_actors_.end()) {
          Actor& actor = *actors_.at(it->second);
          starting_actors_.erase(it);
          worker->actor = actor.spec.actor;
          wire::BecomeActor become;
          become.spec = actor.spec;
          become.incarnation = actor.info.incarnation + 1;
          worker->connection->Request(become, [this, id = actor.spec.actor, address = worker->address, incarnation = become.incarnation](
                                                  absl::StatusOr<wire::BecomeActorReply> reply) {
            Actor& made = *actors_.at(id);
            if (!reply.ok()) return;   // its death is noticed by itself
            made.info.incarnation = incarnation;
            made.info.worker = address;
            made.info.state = reply->error ? ActorInfo::kDead : ActorInfo::kAlive;
            if (reply->error) {
              made.info.constructor_failed = true;
              made.info.death_reason = "its constructor threw " + reply->error->type + ": " + reply->error->message;
              made.killed = true;
            }
            Changed(made);
          });
        }
        return;
      }
      return call.Fail(NotFound("no such worker"));
    }
    case wire::Method::kRequestLease: {
      auto message = call.As<wire::RequestLease>();
      for (const auto& [name, amount] : message->demand.resources) {
        if (name != "CPU") return call.Fail(absl::DeadlineExceededError("no node has " + name));
      }
      Waiting waiting{message->request_id, message->demand.resources["CPU"], nullptr, call.connection(), std::move(message->code)};
      waiting.call = std::make_shared<wire::Call>(std::move(call));
      waiting_.push_back(std::move(waiting));
      return Grant();
    }
    case wire::Method::kWorkerFate: {
      auto message = call.As<wire::WorkerFate>();
      auto shared = std::make_shared<wire::Call>(std::move(call));
      timers_.push_back(std::make_unique<async::Timer>(loop_));
      auto answer = [this, shared, id = message->worker] {
        Reap();
        wire::WorkerFateReply reply;
        Worker* worker = Find(id);
        reply.dead = worker == nullptr || worker->dead;
        reply.reason = worker == nullptr ? "unknown" : worker->reason;
        shared->Answer(reply);
      };
      timers_.back()->After(absl::Milliseconds(50), answer);
      return;
    }
    case wire::Method::kCreateObject: {
      auto message = call.As<wire::CreateObject>();
      auto shared = std::make_shared<wire::Call>(std::move(call));
      store::CreateRequest request;
      request.object = message->object;
      request.size = message->size;
      request.client = client;
      request.owner = message->owner.worker;
      return store_->Create(request, [shared](absl::StatusOr<store::Place> place) {
        if (!place.ok()) return shared->Fail(place.status());
        wire::ObjectPlace reply;
        reply.offset = place->offset;
        reply.size = place->size;
        shared->Answer(reply);
      });
    }
    case wire::Method::kSealObject: {
      absl::Status status = store_->Seal(call.As<wire::SealObject>()->object, client);
      return status.ok() ? call.Answer(wire::Empty()) : call.Fail(status);
    }
    case wire::Method::kGetObject: {
      absl::StatusOr<store::Place> place = store_->Pin(call.As<wire::GetObject>()->object, client);
      if (!place.ok()) return call.Fail(place.status());
      wire::ObjectPlace reply;
      reply.offset = place->offset;
      reply.size = place->size;
      return call.Answer(reply);
    }
    case wire::Method::kContainsObject: {
      wire::ContainsObjectReply reply;
      reply.local = store_->Contains(call.As<wire::ContainsObject>()->object);
      return call.Answer(reply);
    }
    case wire::Method::kCreateActor: {
      auto message = call.As<wire::CreateActor>();
      for (auto& [id, actor] : actors_) {
        if (!message->spec.name.empty() && actor->spec.name == message->spec.name && actor->info.state != ActorInfo::kDead) {
          if (message->spec.get_if_exists) return call.Answer(actor->info);
          return call.Fail(absl::AlreadyExistsError("an actor of that name exists"));
        }
      }
      auto actor = std::make_unique<Actor>();
      actor->spec = message->spec;
      actor->info.actor = message->spec.actor;
      actor->info.name = message->spec.name;
      actor->info.max_task_retries = message->spec.max_task_retries;
      actor->info.max_pending_calls = message->spec.max_pending_calls;
      actor->info.fail_when_full = message->spec.fail_when_full;
      call.Answer(actor->info);
      StartActor(*actor);
      actors_[actor->spec.actor] = std::move(actor);
      return;
    }
    case wire::Method::kResolveActor: {
      auto message = call.As<wire::ResolveActor>();
      Actor* found = nullptr;
      for (auto& [id, actor] : actors_) {
        if (message->actor.IsNil() ? actor->spec.name == message->name : id == message->actor) found = actor.get();
      }
      if (found == nullptr) return call.Fail(NotFound("no such actor"));
      if (message->wait_seconds == 0) return call.Answer(found->info);
      found->waiting.emplace_back(message->incarnation_min, std::make_shared<wire::Call>(std::move(call)));
      return Changed(*found);
    }
    case wire::Method::kKillActor: {
      auto message = call.As<wire::KillActor>();
      auto it = actors_.find(message->actor);
      if (it == actors_.end()) return call.Fail(NotFound("no such actor"));
      it->second->killed = message->no_restart;
      if (message->no_restart) it->second->info.death_reason = message->reason;
      for (auto& worker : workers_) {
        if (worker->actor == message->actor && !worker->dead) ::kill(worker->pid, SIGKILL);
      }
      return call.Answer(wire::Empty());
    }
    case wire::Method::kKvPut: {
      auto message = call.As<wire::KvPut>();
      wire::KvPutReply reply;
      reply.added = !kv_.contains(message->key);
      if (reply.added || message->overwrite) kv_[message->key] = message->value;
      return call.Answer(reply);
    }
    case wire::Method::kKvGet: {
      wire::KvGetReply reply;
      if (auto it = kv_.find(call.As<wire::KvGet>()->key); it != kv_.end()) reply.value = it->second;
      return call.Answer(reply);
    }
    default: return call.Fail(absl::UnimplementedError("the small node does not do this"));
  }
}

void SmallNode::OnNotice(wire::Connection& connection, wire::Method method, const std::string& body, store::ClientNumber client) {
  WorkerId from = *WorkerId::FromBytes(connection.peer().id);
  switch (method) {
    case wire::Method::kReturnLease: {
      auto message = *Decode<wire::ReturnLease>(body);
      for (auto& worker : workers_) {
        if (worker->lease != message.lease) continue;
        FreeLease(*worker);
        if (message.worker_failed) ::kill(worker->pid, SIGKILL);
      }
      return Grant();
    }
    case wire::Method::kCancelLeaseRequest: {
      auto message = *Decode<wire::CancelLeaseRequest>(body);
      for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
        if (it->request != message.request_id) continue;
        it->call->Fail(absl::CancelledError("called off"));
        waiting_.erase(it);
        return;
      }
      return;
    }
    case wire::Method::kWorkerBlocked:
    case wire::Method::kWorkerUnblocked: {
      Worker* worker = Find(from);
      if (worker == nullptr || worker->lease.IsNil()) return;
      bool blocked = method == wire::Method::kWorkerBlocked;
      if (worker->blocked == blocked) return;
      worker->blocked = blocked;
      free_ += blocked ? worker->cpu : -worker->cpu;
      return Grant();
    }
    case wire::Method::kReleaseObject: store_->Release(Decode<wire::ReleaseObject>(body)->object, client); return;
    case wire::Method::kAbortObject: (void)store_->Abort(Decode<wire::AbortObject>(body)->object, client); return;
    case wire::Method::kDeleteObjects:
      if (auto message = Decode<wire::DeleteObjects>(body); message.ok()) {
        for (ObjectId object : message->objects) store_->Delete(object);
      }
      return;
    case wire::Method::kActorExiting:
      if (Worker* worker = Find(from); worker != nullptr && !worker->actor.IsNil()) {
        actors_.at(worker->actor)->killed = true;
        actors_.at(worker->actor)->info.death_reason = Decode<wire::ActorExiting>(body)->reason;
      }
      return;
    default: return;
  }
}

}  // namespace argosy::testing
