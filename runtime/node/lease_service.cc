#include "runtime/node/lease_service.h"

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/node/demand_codec.h"

namespace argosy::node {
namespace {

constexpr size_t kDeadRememberedMax = 10'000;
constexpr absl::Duration kReportPeriod = absl::Milliseconds(20);
constexpr absl::Duration kReportPeriodAwaited = absl::Milliseconds(1);
constexpr absl::Duration kTick = absl::Milliseconds(250);
// A worker leaves when its connection to the daemon ends; one that does not is killed after this.
constexpr absl::Duration kLeaveTime = absl::Seconds(3);
constexpr absl::Duration kFatePoll = absl::Milliseconds(500);

absl::Time Now() { return Clock::Real().Now(); }

}  // namespace

LeaseService::LeaseService(Parts parts, LeaseMachineOptions machine, WorkerProcessesOptions processes)
    : parts_(parts), node_(machine.node), machine_(std::move(machine)), report_timer_(parts.loop), tick_timer_(parts.loop),
      processes_(parts.loop, parts.code_files, parts.packages, std::move(processes), [this](const WorkerProcesses::End& end) { OnWorkerEnded(end); }) {
  tick_timer_.Every(kTick, [this] {
    Step(Tick{});
    const absl::Time now = Now();
    std::erase_if(fate_questions_, [&](const std::shared_ptr<FateQuestion>& question) {
      if (now < question->until) return false;
      question->call->Answer(wire::WorkerFateReply{});
      return true;
    });
  });
}

LeaseService::~LeaseService() { alive_.reset(); }

void LeaseService::Step(const LeaseEvent& event) {
  Apply(machine_.Step(event, Now()));
}

void LeaseService::Apply(const std::vector<LeaseEffect>& effects) {
  for (const LeaseEffect& effect : effects) std::visit([this](const auto& e) { Run(e); }, effect);
  ReportResourcesSoon();
}

void LeaseService::RequestLease(const Client& client, wire::Call call) {
  absl::StatusOr<wire::RequestLease> request = call.As<wire::RequestLease>();
  if (!request.ok()) return call.Fail(request.status());
  absl::StatusOr<scheduler::Demand> parsed = ParseDemand(request->demand);
  if (!parsed.ok()) return call.Fail(parsed.status());
  if (request->request_id.size() != 16) return call.Fail(InvalidArgument("a request id has 16 bytes, not {}", request->request_id.size()));
  if (request->code.files.empty()) return call.Fail(InvalidArgument("a lease needs the code package of its worker"));
  auto shared = std::make_shared<wire::Call>(std::move(call));
  if (auto [at, is_new] = requests_.emplace(request->request_id, shared); !is_new) {
    // A repeat after a reconnect: this one is answered instead.
    at->second = std::move(shared);
    return;
  }
  LeaseAsked asked;
  asked.request_id = request->request_id;
  asked.holder = client.worker;
  asked.job = client.job;
  asked.demand = std::move(request->demand);
  asked.parsed = std::move(*parsed);
  asked.code = std::move(request->code);
  if (request->deadline_seconds > 0) asked.deadline = Now() + absl::Seconds(request->deadline_seconds);
  asked.new_lease = LeaseId::Random();
  asked.new_worker = WorkerId::Random();
  Step(asked);
}

std::optional<WorkerId> LeaseService::CheckRegistration(const wire::RegisterWorker& message) {
  std::optional<WorkerId> worker = processes_.Register(message.startup_number, message.pid);
  if (!worker || *worker != message.address.worker) return std::nullopt;
  return worker;
}

void LeaseService::OnRegistered(WorkerId worker, const wire::WorkerAddress& address) {
  if (const WorkerPool::Worker* known = machine_.pool().Find(worker)) parts_.prints.Add(worker, known->key.job, processes_.Pid(worker));
  Step(WorkerRegistered{worker, address});
}

void LeaseService::OnMessage(const GrantLease& message) {
  absl::StatusOr<scheduler::Demand> parsed = ParseDemand(message.demand);
  if (!parsed.ok()) {
    return parts_.head.Send(LeaseResult{.request_id = message.request_id, .lease = message.lease, .refusal = Message(parsed.status())});
  }
  Step(HeadGrants{message, std::move(*parsed), WorkerId::Random()});
}

void LeaseService::OnMessage(const PrepareBundles& message) {
  scheduler::NodeLedger& ledger = machine_.ledger();
  absl::Status status;
  for (const BundleToPrepare& bundle : message.bundles) {
    if (status.ok()) status = ledger.PrepareBundle({message.group, bundle.index}, bundle.resources);
  }
  for (const BundleToPrepare& bundle : message.bundles) {
    if (status.ok() && message.commit) status = ledger.CommitBundle({message.group, bundle.index});
  }
  // Nobody can use a bundle of an attempt that is not over, so no lease ends here.
  for (const BundleToPrepare& bundle : message.bundles) {
    if (!status.ok()) ledger.ReturnBundle({message.group, bundle.index});
  }
  parts_.head.Send(BundlesPrepared{message.group, message.attempt, status.ok(), Message(status)});
  ReportResourcesSoon();
}

void LeaseService::OnMessage(const CommitBundles& message) {
  absl::Status status;
  for (int index : message.indices) {
    if (status.ok()) status = machine_.ledger().CommitBundle({message.group, index});
  }
  for (int index : message.indices) {
    if (!status.ok()) Step(BundleReturned{{message.group, index}});
  }
  parts_.head.Send(BundlesCommitted{message.group, message.attempt, status.ok(), Message(status)});
  ReportResourcesSoon();
}

void LeaseService::OnMessage(const StartActor& message) {
  absl::StatusOr<scheduler::Demand> parsed = ParseDemand(message.spec.placement);
  absl::StatusOr<ResourceSet> held = ActorResources(message.spec);
  if (!parsed.ok() || !held.ok() || message.spec.code.files.empty()) {
    std::string reason = !parsed.ok() ? Message(parsed.status()) : !held.ok() ? Message(held.status()) : "it has no code package";
    return parts_.head.Send(ActorEnded{.actor = message.spec.actor, .incarnation = message.incarnation, .reason = reason, .intended = true});
  }
  Step(ActorAsked{message, std::move(*parsed), std::move(*held), WorkerId::Random()});
}

void LeaseService::SetHeadConnected(bool connected) {
  Step(HeadSet{connected});
  if (!connected) return;
  reported_version_ = 0;   // the head knows nothing of what is free
  ReportResourcesSoon();
}

void LeaseService::Run(const SpawnWorker& effect) {
  spdlog::debug("starting worker {} for job {}", effect.worker.Short(), effect.job.Short());
  processes_.Start(effect.worker, effect.code, effect.gpu_ids);
}

void LeaseService::Run(const AnswerRequest& effect) {
  auto request = requests_.extract(effect.request_id);
  if (request.empty()) return;
  if (effect.grant.ok()) request.mapped()->Answer(*effect.grant);
  else request.mapped()->Fail(effect.grant.status());
}

void LeaseService::Run(const ForwardRequest& effect) {
  const LeaseAsked& asked = effect.request;
  ClusterClient::LeaseCall call;
  call.request_id = asked.request_id;
  call.job = asked.job;
  call.holder = asked.holder;
  call.holder_node = node_;
  call.demand = asked.demand;
  call.code = asked.code;
  if (asked.deadline != absl::InfiniteFuture()) {
    call.deadline_seconds = std::max(0.001, absl::ToDoubleSeconds(asked.deadline - Now()));
  }
  parts_.cluster.RequestLease(call, [this, weak = std::weak_ptr<bool>(alive_), id = asked.request_id](absl::StatusOr<wire::LeaseGrant> grant) {
    if (!weak.expired()) Step(ForwardAnswered{id, std::move(grant)});
  });
}

void LeaseService::Run(const WithdrawForwarded& effect) { parts_.cluster.WithdrawLease(effect.request_id); }
void LeaseService::Run(const AnswerHead& effect) { parts_.head.Send(effect.result); }
void LeaseService::Run(const ReturnForwarded& effect) { parts_.cluster.ReturnLease(effect.lease, effect.node, effect.worker_failed); }

void LeaseService::Run(const TellRecalled& effect) {
  if (auto client = parts_.clients.Find(effect.to)) client->connection->Notify(wire::LeaseRecalled{effect.lease, effect.when_idle});
}

void LeaseService::Run(const ConstructActor& effect) {
  auto client = parts_.clients.Find(effect.worker);
  if (client == nullptr) return processes_.Kill(effect.worker, "its connection to the node broke before it had become an actor");
  wire::BecomeActor become{effect.spec, effect.incarnation, effect.gpu_ids};
  client->connection->Request(become, [this, weak = std::weak_ptr<bool>(alive_), actor = effect.spec.actor, incarnation = effect.incarnation,
                                       worker = effect.worker](absl::StatusOr<wire::BecomeActorReply> reply) {
    if (weak.expired()) return;
    // A broken connection: its worker's end tells the rest.
    if (!reply.ok()) return processes_.Kill(worker, fmt::format("it could not become an actor: {}", Message(reply.status())));
    std::string error;
    if (reply->error) {
      error = reply->error->type.empty() ? reply->error->message : reply->error->type + ": " + reply->error->message;
      if (error.empty()) error = "the constructor failed";
    }
    Step(ActorConstructed{actor, incarnation, error});
  });
}

void LeaseService::Run(const ReportStarted& effect) { parts_.head.Send(effect.started); }
void LeaseService::Run(const ReportEnded& effect) { parts_.head.Send(effect.ended); }
void LeaseService::Run(const KillWorker& effect) { processes_.Kill(effect.worker, effect.reason); }

void LeaseService::Run(const RetireWorker& effect) {
  // It may own objects that others still use, and leaves when it can.
  processes_.ExpectEnd(effect.worker, effect.reason);
  if (auto client = parts_.clients.Find(effect.worker)) client->connection->Notify(wire::ExitWorker{effect.reason});
}

void LeaseService::OnWorkerEnded(const WorkerProcesses::End& end) {
  spdlog::info("worker {} ended: {}", end.worker.Short(), end.reason);
  parts_.prints.Ended(end.worker);   // its last words come before the news of its end
  RememberDead(end.worker, end.reason, end.out_of_memory);
  parts_.head.Send(WorkerDied{end.worker, end.reason, end.exit_code, end.out_of_memory});
  Step(WorkerEnded{end.worker, end.reason, end.environment_failed});
  if (auto client = parts_.clients.Find(end.worker)) client->connection->Close(Unavailable("the worker ended"));
  lost_.erase(end.worker);
  parts_.store.OwnerGone(end.worker);
}

void LeaseService::OnDriverEnded(WorkerId driver, JobId job, const std::string& reason) {
  RememberDead(driver, reason);
  parts_.head.Send(WorkerDied{driver, reason, 0});
  Step(JobGone{job, reason});
  Step(HolderGone{driver});
  parts_.store.OwnerGone(driver);
  parts_.store.JobGone(job);
}

void LeaseService::OnConnectionLost(WorkerId worker) {
  if (machine_.pool().Find(worker) == nullptr) return;
  auto timer = std::make_unique<async::Timer>(parts_.loop);
  timer->After(kLeaveTime, [this, worker] { processes_.Kill(worker, "it closed its connection to the node and did not leave"); });
  lost_[worker] = std::move(timer);
}

void LeaseService::RememberDead(WorkerId worker, const std::string& reason, bool out_of_memory) {
  const wire::WorkerFateReply fate{.dead = true, .reason = reason, .out_of_memory = out_of_memory};
  if (!dead_.emplace(worker, fate).second) return;
  dead_order_.push_back(worker);
  if (dead_order_.size() > kDeadRememberedMax) {
    dead_.erase(dead_order_.front());
    dead_order_.pop_front();
  }
  std::erase_if(fate_questions_, [&](const std::shared_ptr<FateQuestion>& question) {
    if (question->worker != worker) return false;
    question->call->Answer(fate);
    return true;
  });
}

void LeaseService::WorkerFate(wire::Call call) {
  absl::StatusOr<wire::WorkerFate> request = call.As<wire::WorkerFate>();
  if (!request.ok()) return call.Fail(request.status());
  auto question = std::make_shared<FateQuestion>();
  question->worker = request->worker;
  question->node = request->node;
  question->until = Now() + absl::Seconds(std::clamp(request->wait_seconds, 0.0, 3600.0));
  question->call = std::make_shared<wire::Call>(std::move(call));
  if (request->node != node_ && !request->node.IsNil()) return AskHeadAboutFate(std::move(question));
  if (auto at = dead_.find(request->worker); at != dead_.end()) {
    return question->call->Answer(at->second);
  }
  bool known = machine_.pool().Find(request->worker) != nullptr || parts_.clients.Find(request->worker) != nullptr;
  if (!known) return question->call->Answer(wire::WorkerFateReply{.dead = true, .reason = "this node does not know it (any more)"});
  if (question->until <= Now()) return question->call->Answer(wire::WorkerFateReply{});
  fate_questions_.push_back(std::move(question));
}

void LeaseService::AskHeadAboutFate(std::shared_ptr<FateQuestion> question) {
  parts_.cluster.WorkerFate(question->worker, question->node,
                            [this, weak = std::weak_ptr<bool>(alive_), question](absl::StatusOr<wire::WorkerFateReply> fate) {
    if (weak.expired()) return;
    if (!fate.ok()) return question->call->Fail(fate.status());
    if (fate->dead || Now() + kFatePoll >= question->until) return question->call->Answer(*fate);
    auto timer = std::make_shared<async::Timer>(parts_.loop);
    timer->After(kFatePoll, [this, weak, question, timer] {
      if (!weak.expired()) AskHeadAboutFate(question);
    });
  });
}

ResourceUpdate LeaseService::Resources() {
  ResourceUpdate update;
  update.version = ++update_number_;
  update.available = machine_.ledger().Available();
  update.waiting_requests = static_cast<uint32_t>(machine_.waiting());
  for (const auto& [key, bundle] : machine_.ledger().Bundles()) {
    if (bundle.committed) update.bundles.push_back({key, bundle.available});
  }
  return update;
}

std::vector<HeldBundle> LeaseService::HeldBundles() const {
  std::vector<HeldBundle> held;
  for (const auto& [key, bundle] : machine_.ledger().Bundles()) held.push_back({key, bundle.committed, bundle.total});
  return held;
}

void LeaseService::ReportResourcesSoon() {
  if (!parts_.head.is_registered()) return;
  const bool changed = machine_.ledger().version() != reported_version_;
  if (!changed && machine_.waiting() == reported_waiting_) return;
  // What waits at the head for this node's resources would wait a whole period for what was freed.
  const bool awaited = changed && (machine_.waiting() > 0 || machine_.contended());
  const absl::Time at = awaited ? reported_at_ + kReportPeriodAwaited : Now() + kReportPeriod;
  if (report_at_ <= at) return;
  report_at_ = at;
  report_timer_.After(std::max(at - Now(), absl::ZeroDuration()), [this] {
    report_at_ = absl::InfiniteFuture();
    reported_at_ = Now();
    reported_version_ = machine_.ledger().version();
    reported_waiting_ = machine_.waiting();
    ResourceUpdate update = Resources();
    update.ended_leases = machine_.TakeEnded();
    parts_.head.SendNow(std::move(update));   // without a stream the next registration says what is held
  });
}

}  // namespace argosy::node
