#include "runtime/node/lease_machine.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::node {

LeaseMachine::LeaseMachine(LeaseMachineOptions options) : options_(std::move(options)), ledger_(options_.total) {}

std::vector<LeaseEffect> LeaseMachine::Step(const LeaseEvent& event, absl::Time now) {
  Context context{now, {}};
  std::visit([&](const auto& e) { On(e, context); }, event);
  return std::move(context.effects);
}

bool LeaseMachine::BelongsHere(const scheduler::Demand& demand) const {
  if (!demand.labels.Matches(options_.labels)) return false;
  if (auto* bundle = std::get_if<scheduler::BundleAffinity>(&demand.strategy)) {
    for (const auto& [key, held] : ledger_.Bundles()) {
      if (key.group != bundle->group || !held.committed) continue;
      if (bundle->bundle_index >= 0 && key.index != bundle->bundle_index) continue;
      if (held.total.Contains(demand.resources)) return true;
    }
    return false;
  }
  if (auto* node = std::get_if<scheduler::NodeAffinity>(&demand.strategy)) {
    if (node->node != options_.node) return false;
  } else if (std::holds_alternative<scheduler::SpreadStrategy>(demand.strategy)) {
    return false;
  }
  // The node that has the most of its arguments is the better one.
  int64_t here = 0;
  int64_t elsewhere = 0;
  for (const scheduler::Locality& locality : demand.locality) {
    if (locality.node == options_.node) here += locality.bytes;
    else elsewhere = std::max(elsewhere, locality.bytes);
  }
  if (head_connected_ && elsewhere > here) return false;
  return ledger_.CouldEverGrant(demand.resources);
}

absl::StatusOr<scheduler::Granted> LeaseMachine::Grant(LeaseId lease, const scheduler::Demand& demand) {
  std::optional<scheduler::BundleAffinity> bundle;
  if (auto* affinity = std::get_if<scheduler::BundleAffinity>(&demand.strategy)) bundle = *affinity;
  return ledger_.Grant(lease, demand.resources, bundle);
}

void LeaseMachine::On(const LeaseAsked& event, Context& context) {
  // A repeat joins the first.
  if (forwarded_.contains(event.request_id)) return;
  for (const LeaseAsked& waiting : waiting_) {
    if (waiting.request_id == event.request_id) return;
  }
  if (TryGrantHere(event, context)) return;
  ForwardOrWait(event, context);
}

bool LeaseMachine::TryGrantHere(const LeaseAsked& request, Context& context) {
  if (contended_ && head_connected_) return false;
  if (!BelongsHere(request.parsed)) return false;
  // Those that asked before and wait at the head come first, but for ones of jobs with less priority.
  for (const auto& [id, other] : forwarded_) {
    if (other.parsed.job_priority >= request.parsed.job_priority && BelongsHere(other.parsed)) return false;
  }
  return GrantHere(request, context);
}

bool LeaseMachine::GrantHere(const LeaseAsked& request, Context& context) {
  if (pool_.size() >= options_.workers_max) return false;
  absl::StatusOr<scheduler::Granted> granted = Grant(request.new_lease, request.parsed);
  if (!granted.ok()) return false;
  Lease lease;
  lease.id = request.new_lease;
  lease.source = Source::kLocal;
  lease.job = request.job;
  lease.holder = request.holder;
  lease.local_request = request.request_id;
  lease.retriable = request.parsed.retriable;
  lease.job_priority = request.parsed.job_priority;
  for (int gpu : granted->gpu_indices()) lease.gpu_ids.push_back(static_cast<uint32_t>(gpu));
  if (request.head_was_asked) context.effects.push_back(WithdrawForwarded{request.request_id});
  AttachWorker(std::move(lease), request.code, request.new_worker, context);
  return true;
}

void LeaseMachine::EndWaiting(const LeaseAsked& request, absl::Status status, Context& context) {
  if (request.head_was_asked) context.effects.push_back(WithdrawForwarded{request.request_id});
  context.effects.push_back(AnswerRequest{request.request_id, std::move(status)});
}

void LeaseMachine::EndWaitingIf(const std::function<bool(const LeaseAsked& request)>& ends, const char* why, Context& context) {
  auto end = [&](const LeaseAsked& request) {
    if (!ends(request)) return false;
    EndWaiting(request, absl::CancelledError(why), context);
    return true;
  };
  std::erase_if(waiting_, end);
  std::erase_if(forwarded_, [&](const auto& item) { return end(item.second); });
}

void LeaseMachine::ForwardOrWait(const LeaseAsked& request, Context& context) {
  if (waiting() >= options_.waiting_max) {
    context.effects.push_back(AnswerRequest{
        request.request_id, MakeStatus(absl::StatusCode::kResourceExhausted, "{} lease requests wait on this node already", waiting())});
    return;
  }
  if (head_connected_) {
    LeaseAsked& forwarded = forwarded_.emplace(request.request_id, request).first->second;
    forwarded.number = next_number_++;
    context.effects.push_back(ForwardRequest{request});
    forwarded.head_was_asked = true;
    if (BelongsHere(request.parsed)) AskForIdle(request, context);
    return;
  }
  WaitHere(request);
  for (auto& [id, lease] : leases_) {
    bool gives_way = lease.holder != request.holder && lease.job_priority <= request.parsed.job_priority;
    if (lease.source == Source::kLocal && lease.held && gives_way) Recall(lease, context);
  }
}

void LeaseMachine::WaitHere(LeaseAsked request) {
  auto later = [](const LeaseAsked& a, const LeaseAsked& b) {
    if (a.parsed.job_priority != b.parsed.job_priority) return a.parsed.job_priority > b.parsed.job_priority;
    return a.job == b.job && a.parsed.priority > b.parsed.priority;
  };
  auto at = waiting_.end();
  while (at != waiting_.begin() && later(request, *std::prev(at))) --at;
  waiting_.insert(at, std::move(request));
}

void LeaseMachine::AttachWorker(Lease lease, const wire::CodePackage& code, WorkerId new_worker, Context& context) {
  lease.since = context.now;
  WorkerKey key{lease.job, code.id, lease.gpu_ids};
  std::optional<WorkerId> worker;
  // An actor's worker is its own from the start: nothing of a task before it is left in it.
  if (lease.source != Source::kActor) {
    worker = pool_.TakeIdle(key, context.now);
    for (WorkerId id : worker ? std::vector<WorkerId>() : pool_.OfJob(lease.job)) {
      const WorkerPool::Worker* other = pool_.Find(id);
      if (!other->registered && !other->ending && other->key == key && !lease_of_worker_.contains(id)) {
        worker = id;
        break;
      }
    }
  }
  if (!worker) {
    worker = new_worker;
    pool_.AddStarting(new_worker, key, context.now);
    context.effects.push_back(SpawnWorker{new_worker, lease.job, code, lease.gpu_ids});
  }
  lease.worker = *worker;
  lease_of_worker_[*worker] = lease.id;
  Lease& kept = leases_[lease.id] = std::move(lease);
  if (pool_.Find(*worker)->registered) AnswerHeld(kept, context);
}

void LeaseMachine::AnswerHeld(Lease& lease, Context& context) {
  lease.held = true;
  pool_.SetBusy(lease.worker, context.now);
  const wire::WorkerAddress& address = pool_.Find(lease.worker)->address;
  switch (lease.source) {
    case Source::kLocal:
      context.effects.push_back(AnswerRequest{lease.local_request, wire::LeaseGrant{lease.id, address, lease.gpu_ids}});
      AskForWaiting(lease.holder, context);
      break;
    case Source::kHead: {
      LeaseResult result{.request_id = lease.head_request, .lease = lease.id, .granted = true, .worker = address, .gpu_ids = lease.gpu_ids};
      context.effects.push_back(AnswerHead{std::move(result)});
      break;
    }
    case Source::kActor: {
      const Actor& actor = actors_.at(lease.actor);
      context.effects.push_back(ConstructActor{lease.worker, actor.spec, actor.incarnation, lease.gpu_ids});
      break;
    }
    case Source::kEntrypoint: break;
  }
}

void LeaseMachine::AnswerFailed(const Lease& lease, const std::string& reason, Context& context, bool environment_failed) {
  if (lease.source == Source::kLocal) {
    absl::Status status = environment_failed ? NotFound("{}", reason) : FailedPrecondition("{}", reason);
    context.effects.push_back(AnswerRequest{lease.local_request, std::move(status)});
  } else if (lease.source == Source::kHead) {
    LeaseResult result{.request_id = lease.head_request, .lease = lease.id, .granted = false, .refusal = reason};
    result.environment_failed = environment_failed;
    context.effects.push_back(AnswerHead{std::move(result)});
  }
}

LeaseMachine::Lease LeaseMachine::Take(LeaseId id) {
  Lease lease = std::move(leases_.extract(id).mapped());
  if (!lease.worker.IsNil()) lease_of_worker_.erase(lease.worker);
  ledger_.Release(id);
  return lease;
}

LeaseId LeaseMachine::LeaseOfWorker(WorkerId worker) const {
  auto at = lease_of_worker_.find(worker);
  return at == lease_of_worker_.end() ? LeaseId() : at->second;
}

void LeaseMachine::Kill(WorkerId worker, const std::string& reason, Context& context) {
  const WorkerPool::Worker* known = pool_.Find(worker);
  if (known == nullptr || known->ending) return;
  pool_.SetEnding(worker);
  context.effects.push_back(KillWorker{worker, reason});
}

void LeaseMachine::Recall(Lease& lease, Context& context) {
  if (lease.recalled || !lease.held || lease.source == Source::kActor || lease.source == Source::kEntrypoint) return;
  lease.recalled = true;
  // Whoever gets it decides: the holder pushes nothing more. A holder of another node is not ours to tell; its leased worker is, and hands
  // back what it has not started.
  context.effects.push_back(TellRecalled{lease.holder, lease.id});
  context.effects.push_back(TellRecalled{lease.worker, lease.id});
}

void LeaseMachine::AskForIdle(const LeaseAsked& request, Context& context) {
  for (auto& [id, lease] : leases_) {
    if (!lease.held || lease.wanted || lease.recalled || lease.holder == request.holder) continue;
    if (lease.source != Source::kLocal && lease.source != Source::kHead) continue;
    lease.wanted = true;
    context.effects.push_back(TellRecalled{lease.holder, lease.id, true});
  }
}

void LeaseMachine::AskForWaiting(WorkerId holder, Context& context) {
  for (const auto& [id, other] : forwarded_) {
    if (other.holder != holder && BelongsHere(other.parsed)) return AskForIdle(other, context);
  }
}

void LeaseMachine::On(const LeaseCancelled& event, Context& context) {
  auto waits = std::find_if(waiting_.begin(), waiting_.end(), [&](const LeaseAsked& waiting) { return waiting.request_id == event.request_id; });
  if (waits != waiting_.end()) {
    EndWaiting(*waits, absl::CancelledError("cancelled"), context);
    waiting_.erase(waits);
    return;
  }
  if (auto forwarded = forwarded_.extract(event.request_id); !forwarded.empty()) {
    return EndWaiting(forwarded.mapped(), absl::CancelledError("cancelled"), context);
  }
  for (auto& [id, lease] : leases_) {
    if (lease.source != Source::kLocal || lease.held || lease.local_request != event.request_id) continue;
    // Its worker goes on starting, for the next who asks.
    Take(id);
    context.effects.push_back(AnswerRequest{event.request_id, absl::CancelledError("cancelled")});
    return Pump(context);
  }
}

void LeaseMachine::On(const ForwardAnswered& event, Context& context) {
  auto request = forwarded_.extract(event.request_id);
  if (request.empty()) {
    // Cancelled, or its holder is gone: nobody takes what came.
    if (event.grant.ok()) context.effects.push_back(ReturnForwarded{event.grant->lease, event.grant->worker.node, false});
    return;
  }
  LeaseAsked& asked = request.mapped();
  if (event.grant.ok()) {
    if (event.grant->worker.node != options_.node) remote_[event.grant->lease] = {asked.holder, asked.job, event.grant->worker.node};
    // Its holder may be recalled by name.
    if (auto at = leases_.find(event.grant->lease); at != leases_.end()) at->second.holder = asked.holder;
    context.effects.push_back(AnswerRequest{event.request_id, event.grant});
    return AskForWaiting(asked.holder, context);
  }
  // The head is away: what fits is granted here, the rest asks again when it is back.
  if (event.grant.status().code() == absl::StatusCode::kUnavailable && context.now < asked.deadline) {
    asked.head_was_asked = true;
    if (!head_connected_ && TryGrantHere(asked, context)) return;
    WaitHere(std::move(asked));
    return;
  }
  asked.head_was_asked = MayHaveHappened(event.grant.status());
  EndWaiting(asked, event.grant.status(), context);
}

void LeaseMachine::On(const HeadGrants& event, Context& context) {
  const GrantLease& grant = event.grant;
  if (auto at = leases_.find(grant.lease); at != leases_.end()) {
    // A repeat changes nothing; its answer may have been lost.
    at->second.head_request = grant.request_id;
    if (at->second.held) AnswerHeld(at->second, context);
    return;
  }
  absl::StatusOr<scheduler::Granted> granted =
      pool_.size() >= options_.workers_max
          ? absl::StatusOr<scheduler::Granted>(Unavailable("{} workers run on this node", pool_.size()))
          : Grant(grant.lease, event.parsed);
  if (!granted.ok()) {
    bool no_room = granted.status().code() == absl::StatusCode::kUnavailable;
    LeaseResult result{.request_id = grant.request_id, .lease = grant.lease, .granted = false,
                       .refusal = no_room ? "no room" : Message(granted.status()), .retry_elsewhere = true};
    context.effects.push_back(AnswerHead{std::move(result)});
    return;
  }
  Lease lease;
  lease.id = grant.lease;
  lease.source = Source::kHead;
  lease.job = grant.job;
  lease.holder = grant.holder;
  lease.head_request = grant.request_id;
  lease.retriable = event.parsed.retriable;
  lease.job_priority = event.parsed.job_priority;
  for (int gpu : granted->gpu_indices()) lease.gpu_ids.push_back(static_cast<uint32_t>(gpu));
  AttachWorker(std::move(lease), grant.code, event.new_worker, context);
}

void LeaseMachine::On(const LeaseReturned& event, Context& context) {
  auto at = leases_.find(event.lease);
  if (at == leases_.end()) {
    if (auto remote = remote_.extract(event.lease); !remote.empty()) {
      context.effects.push_back(ReturnForwarded{event.lease, remote.mapped().node, event.worker_failed});
    }
    return;
  }
  if (at->second.source == Source::kActor || at->second.source == Source::kEntrypoint) return;
  Lease lease = Take(event.lease);
  if (lease.source == Source::kHead && lease.held && head_connected_) ended_.push_back(event.lease);
  if (!lease.held) AnswerFailed(lease, "the lease was released before its worker had started", context);
  if (event.worker_failed) Kill(lease.worker, "its lease's holder gave it up as failed", context);
  else if (lease.held) pool_.SetIdle(lease.worker, context.now);
  Pump(context);
}

void LeaseMachine::On(const RecallAsked& event, Context& context) {
  auto at = leases_.find(event.lease);
  if (at == leases_.end()) return;
  at->second.recalled = false;   // the head repeats itself when it must
  Recall(at->second, context);
}

void LeaseMachine::On(const ContendedSet& event, Context& context) {
  contended_ = event.contended;
  for (auto& [id, lease] : leases_) {
    if (!contended_) lease.recalled = false;
    else if (lease.source == Source::kLocal && lease.job_priority <= event.job_priority) Recall(lease, context);
  }
  PumpForwarded(context);
}

void LeaseMachine::On(const HeadSet& event, Context& context) {
  head_connected_ = event.connected;
  ended_.clear();   // the head has compared what is held
  if (!head_connected_) {
    contended_ = false;
    return;
  }
  for (LeaseAsked& request : std::exchange(waiting_, {})) {
    if (!TryGrantHere(request, context)) ForwardOrWait(request, context);
  }
}

void LeaseMachine::On(const WorkerRegistered& event, Context& context) {
  if (!pool_.SetRegistered(event.worker, event.address, context.now)) return;
  if (LeaseId id = LeaseOfWorker(event.worker); !id.IsNil()) AnswerHeld(leases_.at(id), context);
}

void LeaseMachine::On(const WorkerEnded& event, Context& context) {
  pool_.Remove(event.worker);
  if (LeaseId id = LeaseOfWorker(event.worker); !id.IsNil()) {
    Lease lease = Take(id);
    if (!lease.held) AnswerFailed(lease, event.reason, context, event.environment_failed);
    if (lease.source == Source::kActor) {
      Actor actor = std::move(actors_.extract(lease.actor).mapped());
      ActorEnded ended{.actor = lease.actor, .incarnation = actor.incarnation, .reason = actor.reason.empty() ? event.reason : actor.reason,
                       .constructor_failed = actor.constructor_failed, .intended = actor.intended};
      context.effects.push_back(ReportEnded{std::move(ended)});
    }
  }
  On(HolderGone{event.worker}, context);
  Pump(context);
}

void LeaseMachine::On(const HolderGone& event, Context& context) {
  EndWaitingIf([&](const LeaseAsked& request) { return request.holder == event.holder; }, "who asked is gone", context);
  for (auto& [id, lease] : leases_) {
    // Nobody wants what its task returns. The lease goes with the worker.
    if (lease.holder == event.holder && lease.source != Source::kActor) Kill(lease.worker, "the holder of its lease is gone", context);
  }
  std::erase_if(remote_, [&](const auto& item) {
    if (item.second.holder != event.holder) return false;
    context.effects.push_back(ReturnForwarded{item.first, item.second.node, true});
    return true;
  });
}

void LeaseMachine::On(const WorkerBlockedSet& event, Context& context) {
  LeaseId id = LeaseOfWorker(event.worker);
  if (id.IsNil()) return;
  if (event.blocked) {
    ledger_.ReleaseCpu(id);
    Pump(context);
  } else {
    ledger_.ReacquireCpu(id);
  }
}

void LeaseMachine::On(const ActorAsked& event, Context& context) {
  const StartActor& start = event.start;
  const ActorId id = start.spec.actor;
  if (auto at = actors_.find(id); at != actors_.end()) {
    Actor& actor = at->second;
    if (actor.incarnation == start.incarnation) {
      if (actor.alive) context.effects.push_back(ReportStarted{{id, actor.incarnation, pool_.Find(actor.worker)->address}});
      return;
    }
    if (actor.incarnation > start.incarnation) return;   // an old message
    // The head moved on: the older incarnation must end before the new one starts here.
    Kill(actor.worker, "a newer incarnation of its actor starts", context);
    context.effects.push_back(ReportEnded{{.actor = id, .incarnation = start.incarnation, .reason = "an older incarnation still runs here",
                                           .retry_elsewhere = true}});
    return;
  }
  scheduler::Demand held = event.parsed;
  held.resources = event.held;
  absl::StatusOr<scheduler::Granted> granted = Grant(start.lease, held);
  if (!granted.ok()) {
    context.effects.push_back(ReportEnded{
        {.actor = id, .incarnation = start.incarnation, .reason = Message(granted.status()), .retry_elsewhere = true}});
    return;
  }
  Actor& actor = actors_[id];
  actor.spec = start.spec;
  actor.incarnation = start.incarnation;
  actor.lease = start.lease;
  actor.worker = event.new_worker;
  Lease lease;
  lease.id = start.lease;
  lease.source = Source::kActor;
  lease.job = start.spec.job;
  lease.actor = id;
  lease.retriable = start.spec.max_restarts != 0;
  for (int gpu : granted->gpu_indices()) lease.gpu_ids.push_back(static_cast<uint32_t>(gpu));
  AttachWorker(std::move(lease), start.spec.code, event.new_worker, context);
}

void LeaseMachine::On(const ActorConstructed& event, Context& context) {
  auto at = actors_.find(event.actor);
  if (at == actors_.end() || at->second.incarnation != event.incarnation) return;
  Actor& actor = at->second;
  if (event.error.empty()) {
    actor.alive = true;
    context.effects.push_back(ReportStarted{{event.actor, event.incarnation, pool_.Find(actor.worker)->address}});
    return;
  }
  actor.constructor_failed = true;
  actor.reason = event.error;
  Kill(actor.worker, "the constructor of its actor failed", context);
}

void LeaseMachine::On(const ActorStopAsked& event, Context& context) {
  auto at = actors_.find(event.stop.actor);
  if (at == actors_.end() || at->second.incarnation != event.stop.incarnation) {
    context.effects.push_back(ReportEnded{{.actor = event.stop.actor, .incarnation = event.stop.incarnation, .reason = event.stop.reason,
                                           .intended = event.stop.no_restart}});
    return;
  }
  at->second.intended = event.stop.no_restart;
  if (at->second.reason.empty()) at->second.reason = event.stop.reason;
  Kill(at->second.worker, event.stop.reason, context);
}

void LeaseMachine::On(const ActorExitAnnounced& event, Context& context) {
  LeaseId id = LeaseOfWorker(event.worker);
  if (id.IsNil() || leases_.at(id).source != Source::kActor) return;
  Actor& actor = actors_.at(leases_.at(id).actor);
  actor.intended = true;
  if (actor.reason.empty()) actor.reason = event.reason.empty() ? "it asked to exit" : event.reason;
}

void LeaseMachine::On(const JobGone& event, Context& context) {
  EndWaitingIf([&](const LeaseAsked& request) { return request.job == event.job; }, "the job has ended", context);
  // The head ends the leases of a job everywhere by itself.
  std::erase_if(remote_, [&](const auto& item) { return item.second.job == event.job; });
  for (WorkerId worker : pool_.OfJob(event.job)) {
    LeaseId id = LeaseOfWorker(worker);
    if (!id.IsNil() && leases_.at(id).source == Source::kActor) {
      Actor& actor = actors_.at(leases_.at(id).actor);
      if (actor.spec.detached) continue;
      actor.intended = true;
      if (actor.reason.empty()) actor.reason = fmt::format("its job has ended: {}", event.reason);
    }
    Kill(worker, fmt::format("its job has ended: {}", event.reason), context);
  }
}

void LeaseMachine::On(const BundleReturned& event, Context& context) {
  for (LeaseId id : ledger_.ReturnBundle(event.bundle)) {
    auto at = leases_.find(id);
    if (at != leases_.end()) Kill(at->second.worker, fmt::format("{} was removed", event.bundle.ToString()), context);
  }
  Pump(context);
}

void LeaseMachine::On(const Tick&, Context& context) {
  for (WorkerId worker : pool_.StartingBefore(context.now - options_.worker_start_timeout)) {
    Kill(worker, fmt::format("it did not register within {}", absl::FormatDuration(options_.worker_start_timeout)), context);
  }
  for (WorkerId worker : pool_.IdleBefore(context.now - options_.worker_idle_timeout)) {
    pool_.SetEnding(worker);
    context.effects.push_back(RetireWorker{worker, "idle"});
  }
  std::erase_if(waiting_, [&](const LeaseAsked& request) {
    if (request.deadline > context.now) return false;
    EndWaiting(request, absl::DeadlineExceededError("nothing became free on this node, and the head could not be reached, within the deadline"),
               context);
    return true;
  });
}

void LeaseMachine::Pump(Context& context) {
  PumpForwarded(context);
  if (waiting_.empty()) return;
  std::deque<LeaseAsked> rest;
  // One refusal a shape is enough: the others of it cannot fit either.
  std::set<scheduler::Shape> refused;
  for (LeaseAsked& request : std::exchange(waiting_, {})) {
    scheduler::Shape shape = request.parsed.GetShape();
    if (!refused.contains(shape) && TryGrantHere(request, context)) continue;
    refused.insert(std::move(shape));
    rest.push_back(std::move(request));
  }
  for (LeaseAsked& request : waiting_) rest.push_back(std::move(request));
  waiting_ = std::move(rest);
}

void LeaseMachine::PumpForwarded(Context& context) {
  if (contended_ || !head_connected_) return;
  std::vector<const LeaseAsked*> as_they_came;
  for (const auto& [id, request] : forwarded_) {
    if (BelongsHere(request.parsed)) as_they_came.push_back(&request);
  }
  // Jobs of a higher priority before all others.
  std::sort(as_they_came.begin(), as_they_came.end(), [](const LeaseAsked* a, const LeaseAsked* b) {
    if (a->parsed.job_priority != b->parsed.job_priority) return a->parsed.job_priority > b->parsed.job_priority;
    return a->number < b->number;
  });
  // A job has the turns that its requests have come for, and gives them to its most urgent ones.
  std::map<JobId, std::vector<const LeaseAsked*>> of_job;   // the first at the end
  for (auto at = as_they_came.rbegin(); at != as_they_came.rend(); ++at) of_job[(*at)->job].push_back(*at);
  for (auto& [job, requests] : of_job) {
    std::stable_sort(requests.begin(), requests.end(), [](const LeaseAsked* a, const LeaseAsked* b) { return a->parsed.priority < b->parsed.priority; });
  }
  // One refusal a shape is enough: the others of it cannot fit either.
  std::set<scheduler::Shape> refused;
  std::vector<JobId> turns;
  for (const LeaseAsked* request : as_they_came) turns.push_back(request->job);
  for (JobId job : turns) {
    const LeaseAsked& first = *of_job[job].back();
    of_job[job].pop_back();
    scheduler::Shape shape = first.parsed.GetShape();
    if (!refused.contains(shape) && GrantHere(first, context)) forwarded_.erase(std::string(first.request_id));
    else refused.insert(std::move(shape));
  }
}

absl::StatusOr<std::vector<uint32_t>> LeaseMachine::GrantEntrypoint(LeaseId lease, const scheduler::Demand& demand) {
  ARGOSY_ASSIGN_OR_RETURN(scheduler::Granted granted, Grant(lease, demand));
  Lease& kept = leases_[lease];
  kept.id = lease;
  kept.source = Source::kEntrypoint;
  kept.held = true;
  kept.gpu_ids.clear();
  for (int gpu : granted.gpu_indices()) kept.gpu_ids.push_back(static_cast<uint32_t>(gpu));
  return kept.gpu_ids;
}

std::vector<LeaseEffect> LeaseMachine::ReleaseEntrypoint(LeaseId lease, absl::Time now) {
  Context context{now, {}};
  if (auto at = leases_.find(lease); at != leases_.end() && at->second.source == Source::kEntrypoint) {
    Take(lease);
    Pump(context);
  }
  return std::move(context.effects);
}

std::vector<HeldLease> LeaseMachine::HeldLeases() const {
  std::vector<HeldLease> held;
  for (const auto& [id, lease] : leases_) {
    if (!lease.held || lease.source == Source::kActor || lease.source == Source::kEntrypoint) continue;
    const scheduler::Granted* granted = ledger_.Find(id);
    const WorkerPool::Worker* worker = pool_.Find(lease.worker);
    if (granted != nullptr && worker != nullptr) held.push_back({id, worker->address, granted->resources});
  }
  std::sort(held.begin(), held.end(), [](const HeldLease& a, const HeldLease& b) { return a.lease < b.lease; });
  return held;
}

std::vector<LeaseMachine::InUse> LeaseMachine::WorkersInUse() const {
  std::vector<InUse> in_use;
  for (const auto& [id, lease] : leases_) {
    if (lease.held) in_use.push_back({lease.worker, lease.job, lease.retriable, lease.since});
  }
  return in_use;
}

std::vector<HeldActor> LeaseMachine::HeldActors() const {
  std::vector<HeldActor> held;
  for (const auto& [id, actor] : actors_) {
    const WorkerPool::Worker* worker = pool_.Find(actor.worker);
    if (actor.alive && worker != nullptr) held.push_back({id, actor.incarnation, worker->address});
  }
  std::sort(held.begin(), held.end(), [](const HeldActor& a, const HeldActor& b) { return a.actor < b.actor; });
  return held;
}

}  // namespace argosy::node
