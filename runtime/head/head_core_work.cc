// Leases, actors and placement groups of the head's core.

#include <algorithm>

#include "runtime/base/codec.h"
#include "runtime/base/overloaded.h"
#include "runtime/base/status.h"
#include "runtime/head/head_core.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

// After a node refused, its own report of what is free is on the way (at most 20 ms behind).
constexpr absl::Duration kRefusedDelay = absl::Milliseconds(25);
constexpr absl::Duration kRefusedDelayMax = absl::Seconds(1);
// For the nodes of a new group to answer.
constexpr absl::Duration kCreateWait = absl::Milliseconds(100);

std::string Key(ActorId actor) { return std::string(actor.Bytes()); }
std::string Key(GroupId group) { return std::string(group.Bytes()); }

// What the journal keeps of a placement group; where its bundles are is the nodes' to say. Fields may only be added at the end.
struct GroupRow {
  struct Bundle { ResourceMap resources; StringMap labels; };
  GroupId id;
  std::string name;
  JobId job;
  bool detached = false;
  uint8_t strategy = 0;
  std::vector<Bundle> bundles;
  uint64_t order = 0;   // of creation
};

}  // namespace

// ---- leases -------------------------------------------------------------------------------------------------------------------

uint64_t HeadCore::RequestLease(LeaseRequest request, Done<LeaseMachine::Lease> done) {
  uint64_t waiter = next_waiter_++;
  lease_waiters_[request.id][waiter] = std::move(done);
  StepLeases(LeaseAsked{std::move(request)});
  SchedulePass();
  return waiter;
}

void HeadCore::CancelLease(const std::string& request, uint64_t waiter) {
  auto at = lease_waiters_.find(request);
  if (at == lease_waiters_.end()) return;
  auto found = at->second.find(waiter);
  if (found == at->second.end()) return;
  Done<LeaseMachine::Lease> done = std::move(found->second);
  at->second.erase(found);
  bool last = at->second.empty();
  if (last) lease_waiters_.erase(at);
  done(absl::CancelledError("the caller gave up"));
  if (last) StepLeases(LeaseCancelled{request});
}

void HeadCore::WithdrawLease(const std::string& request) {
  StepLeases(LeaseWithdrawn{request});
  SchedulePass();
}

void HeadCore::ReturnLease(LeaseId lease, NodeId node, bool worker_failed) {
  StepLeases(LeaseReturned{lease, node, worker_failed});
  SchedulePass();
}

void HeadCore::AnswerLease(const std::string& request, const absl::StatusOr<LeaseMachine::Lease>& result) {
  auto at = lease_waiters_.find(request);
  if (at == lease_waiters_.end()) return;
  auto waiters = std::move(at->second);
  lease_waiters_.erase(at);
  for (auto& [number, done] : waiters) done(result);
}

void HeadCore::Run(std::vector<LeaseEffect> effects) {
  for (LeaseEffect& effect : effects) {
    std::visit(
        Overloaded{
            [&](WantLeaseNode& e) {
              const LeaseRequest* request = leases_.FindRequest(e.request);
              if (request == nullptr) return;
              WaitEntry entry{WaitKind::kLease, e.request, "tasks", request->job, request->demand, request->deadline};
              if (e.refused) {
                placement_.AddLater(std::move(entry), Now() + kRefusedDelay);
              } else if (absl::Status added = placement_.Add(std::move(entry), Now()); !added.ok()) {
                AnswerLease(e.request, added);
                StepLeases(LeaseCancelled{e.request});
              }
              SchedulePass();
            },
            [&](DropLeaseNode& e) { placement_.Cancel(WaitKind::kLease, e.request); },
            [&](SendGrant& e) {
              const LeaseMachine::Lease* lease = leases_.Find(e.lease);
              if (lease == nullptr) return;
              // The request number on the wire is only for the node's log: the lease id says which.
              Send(e.node, GrantLease{next_waiter_++, e.lease, lease->request.job, lease->request.demand, lease->request.code, lease->request.holder});
            },
            [&](SendRelease& e) { Send(e.node, ReleaseLease{e.lease, e.worker_failed}); },
            [&](SendRecall& e) { Send(e.node, RecallLease{e.lease}); },
            [&](LeaseReady& e) {
              const LeaseMachine::Lease* lease = leases_.Find(e.lease);
              if (lease != nullptr) AnswerLease(e.request, *lease);
            },
            [&](LeaseFailed& e) { AnswerLease(e.request, e.status); },
            [&](FreeResources& e) {
              (void)view_.Give(e.node, e.resources, e.bundle);
              SchedulePass();
            },
        },
        effect);
  }
}

// ---- actors -------------------------------------------------------------------------------------------------------------------

void HeadCore::CreateActor(ActorRecord actor, bool get_if_exists, Done<ActorId> done) {
  if (actors_.Find(actor.id) != nullptr) return done(actor.id);   // said again
  if (get_if_exists && !actor.name.empty()) {
    if (const ActorRecord* other = actors_.FindName(actor.name_space, actor.name)) return done(other->id);
  }
  if (absl::Status status = actors_.CheckCreate(actor); !status.ok()) return done(status);
  if (auto demand = FromRecord(actor.placement); !demand.ok()) return done(demand.status());
  ActorId id = actor.id;
  bool acknowledged = !actor.name.empty() || actor.detached;
  StepActors(ActorCreated{std::move(actor)});
  if (!acknowledged) return done(id);
  // An empty write comes after the actor's own in the journal's order.
  journal_.Write({}, [id, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(status);
    done(id);
  });
}

void HeadCore::Resolve(const ResolveActor& resolve, Done<ActorId> done) {
  ActorId id = resolve.actor;
  if (id.IsNil()) {
    const ActorRecord* named = actors_.FindName(resolve.name_space, resolve.name);
    if (named == nullptr) {
      return done(NotFound("no actor is named \"{}\" in namespace \"{}\"", resolve.name, resolve.name_space));
    }
    id = named->id;
  }
  const ActorRecord* actor = actors_.Find(id);
  if (actor == nullptr) return done(NotFound("actor {} is unknown: it ended long ago, or was never created", id.Short()));
  bool known = actor->state == ActorState::kDead || (actor->state == ActorState::kAlive && actor->incarnation >= resolve.incarnation_min);
  if (known || resolve.wait <= absl::ZeroDuration()) return done(id);
  TickSoon();
  actor_waiters_.emplace(id, Waiter<ActorId>{resolve.incarnation_min, Now() + resolve.wait, std::move(done)});
}

void HeadCore::AnswerActorWaiters(ActorId id, bool all_overdue) {
  const ActorRecord* actor = actors_.Find(id);
  std::vector<Done<ActorId>> ready;
  for (auto at = actor_waiters_.lower_bound(id); at != actor_waiters_.end() && at->first == id;) {
    const Waiter<ActorId>& waiter = at->second;
    bool known = actor == nullptr || actor->state == ActorState::kDead ||
                 (actor->state == ActorState::kAlive && actor->incarnation >= waiter.incarnation_min);
    if (known || (all_overdue && waiter.deadline <= Now())) {
      ready.push_back(std::move(at->second.done));
      at = actor_waiters_.erase(at);
    } else {
      ++at;
    }
  }
  for (Done<ActorId>& done : ready) done(id);
}

absl::Status HeadCore::KillActor(ActorId actor, bool no_restart, const std::string& reason) {
  if (actors_.Find(actor) == nullptr) return NotFound("actor {} is unknown", actor.Short());
  StepActors(ActorKilled{actor, no_restart, reason});
  return absl::OkStatus();
}

std::string HeadCore::ActorPendingReason(const ActorRecord& actor) const {
  if (actor.state != ActorState::kPending && actor.state != ActorState::kRestarting) return "";
  if (!actor.node.IsNil()) {
    const NodeTable::Node* node = nodes_.Find(actor.node);
    return fmt::format("starting on node {}", node == nullptr ? actor.node.Short() : node->description.name);
  }
  return placement_.Explain(WaitKind::kActor, Key(actor.id), view_, Now()).value_or("");
}

void HeadCore::Run(std::vector<ActorEffect> effects) {
  for (ActorEffect& effect : effects) {
    std::visit(
        Overloaded{
            [&](WantActorNode& e) {
              const ActorRecord* actor = actors_.Find(e.actor);
              if (actor == nullptr || actor->state == ActorState::kDead) return;
              absl::StatusOr<scheduler::Demand> demand = FromRecord(actor->placement);
              if (!demand.ok()) return StepActors(ActorUnplaceable{e.actor, Message(demand.status())});
              if (const auto* bundle = std::get_if<scheduler::BundleAffinity>(&demand->strategy);
                  bundle != nullptr && !group_specs_.contains(bundle->group)) {
                return StepActors(ActorUnplaceable{e.actor, fmt::format("placement group {} does not exist", bundle->group.Short())});
              }
              WaitEntry entry{WaitKind::kActor, Key(e.actor), "actor " + (actor->name.empty() ? actor->class_name : actor->name), actor->job,
                              std::move(*demand)};
              if (actor->start_timeout_seconds > 0) entry.deadline = Now() + absl::Seconds(actor->start_timeout_seconds);
              if (actor->incarnation > 0) {
                // A node that goes on refusing what the view says it has room for is asked less and less often.
                placement_.AddLater(std::move(entry), Now() + std::min(kRefusedDelayMax, kRefusedDelay * (1u << std::min(e.refusals, 10u))));
              } else if (absl::Status added = placement_.Add(std::move(entry), Now()); !added.ok()) {
                StepActors(ActorUnplaceable{e.actor, Message(added)});
              }
              SchedulePass();
            },
            [&](DropActorNode& e) { placement_.Cancel(WaitKind::kActor, Key(e.actor)); },
            [&](SendStartActor& e) {
              const ActorRecord* actor = actors_.Find(e.actor);
              if (actor != nullptr) Send(e.node, StartActor{actor->spec, e.incarnation, actor->lease});
            },
            [&](SendStopActor& e) { Send(e.node, StopActor{e.actor, e.incarnation, e.no_restart, e.reason}); },
            [&](ActorChanged& e) {
              const ActorRecord* actor = actors_.Find(e.actor);
              if (actor == nullptr || actor->state == ActorState::kDead) {
                if (actor != nullptr) spdlog::info("actor {} ({}) is dead: {}", actor->id.Short(), actor->class_name, actor->death_reason);
                journal_.Write({{"actor", Key(e.actor), "", true}});
              } else {
                journal_.Write({{"actor", Key(e.actor), Encode(*actor)}});
              }
              AnswerActorWaiters(e.actor, false);
            },
            [&](FreeActorResources& e) {
              (void)view_.Give(e.node, e.resources, e.bundle);
              SchedulePass();
            },
        },
        effect);
  }
}

// ---- placement groups ---------------------------------------------------------------------------------------------------------

absl::StatusOr<GroupView> HeadCore::ViewGroup(GroupId id) const {
  auto spec = group_specs_.find(id);
  const scheduler::GroupMachine::Group* group = groups_.Find(id);
  if (spec == group_specs_.end() || group == nullptr) return NotFound("placement group {} does not exist, or was removed", id.Short());
  GroupView view{spec->second};
  view.nodes = group->nodes;
  switch (group->state) {
    case scheduler::GroupState::kReady: view.state = GroupView::State::kCreated; break;
    case scheduler::GroupState::kRescheduling: view.state = GroupView::State::kRescheduling; break;
    default: view.state = GroupView::State::kPending;
  }
  if (view.state != GroupView::State::kCreated) view.pending_reason = group->explanation;
  return view;
}

absl::Status HeadCore::RestoreGroups(const std::vector<Journal::Row>& rows) {
  std::map<uint64_t, GroupSpec> specs;
  for (const Journal::Row& row : rows) {
    if (row.table != "group") continue;
    ARGOSY_ASSIGN_OR_RETURN(GroupRow group, Decode<GroupRow>(row.value));
    GroupSpec spec{group.id, group.name, group.job, group.detached, {static_cast<scheduler::GroupStrategy>(group.strategy), {}}};
    for (const GroupRow::Bundle& bundle : group.bundles) {
      scheduler::BundleDemand demand;
      ARGOSY_ASSIGN_OR_RETURN(demand.resources, ResourceSet::FromMap(bundle.resources));
      ARGOSY_ASSIGN_OR_RETURN(demand.labels, scheduler::LabelSelector::FromMap(bundle.labels));
      spec.demand.bundles.push_back(std::move(demand));
    }
    // Its job's end was written before the group's own.
    const JobRecord* job = spec.detached ? nullptr : jobs_.Find(spec.job.Hex());
    if (job != nullptr && IsTerminal(job->state)) journal_.Write({{"group", row.key, "", true}});
    else specs[group.order] = std::move(spec);
  }
  for (auto& [order, spec] : specs) {
    next_group_order_ = order + 1;
    StepGroups(scheduler::RestoreGroup{spec.id, spec.demand});
    group_specs_[spec.id] = std::move(spec);
  }
  return absl::OkStatus();
}

void HeadCore::CreateGroup(GroupSpec spec, Done<GroupView> done) {
  GroupId id = spec.id;
  std::vector<Journal::Change> changes;
  if (!group_specs_.contains(id)) {
    scheduler::CreateGroup create{id, spec.demand};
    if (absl::Status status = groups_.CheckCreate(create); !status.ok()) return done(status);
    GroupRow row{id, spec.name, spec.job, spec.detached, static_cast<uint8_t>(spec.demand.strategy), {}, next_group_order_++};
    for (const scheduler::BundleDemand& bundle : spec.demand.bundles) row.bundles.push_back({bundle.resources.ToMap(), bundle.labels.ToMap()});
    changes.push_back({"group", Key(id), Encode(row)});
    group_specs_[id] = std::move(spec);
    StepGroups(create);
    SchedulePass();
  }
  // Its nodes are asked while the journal is written. A repeat's empty write comes after the first's own.
  journal_.Write(std::move(changes), [this, id, done = std::move(done)](absl::Status status) mutable {
    if (!status.ok()) {
      RemoveGroup(id);
      return done(status);
    }
    const scheduler::GroupMachine::Group* group = groups_.Find(id);
    // The answer of a node that is on its way is worth waiting for: it saves the caller a question.
    if (group != nullptr && !group->waiting_for.empty()) AwaitGroup(id, kCreateWait, std::move(done));
    else done(ViewGroup(id));
  });
}

void HeadCore::WaitGroup(GroupId id, absl::Duration wait, Done<GroupView> done) {
  absl::StatusOr<GroupView> view = ViewGroup(id);
  if (!view.ok() || view->state == GroupView::State::kCreated || wait <= absl::ZeroDuration()) return done(std::move(view));
  AwaitGroup(id, wait, std::move(done));
}

void HeadCore::AwaitGroup(GroupId id, absl::Duration wait, Done<GroupView> done) {
  TickSoon();
  group_waiters_.emplace(id, Waiter<GroupView>{0, Now() + wait, std::move(done)});
}

void HeadCore::AnswerGroupWaiters(GroupId id, bool all_overdue) {
  absl::StatusOr<GroupView> view = ViewGroup(id);
  std::vector<Done<GroupView>> ready;
  for (auto at = group_waiters_.lower_bound(id); at != group_waiters_.end() && at->first == id;) {
    if (!view.ok() || view->state == GroupView::State::kCreated || (all_overdue && at->second.deadline <= Now())) {
      ready.push_back(std::move(at->second.done));
      at = group_waiters_.erase(at);
    } else {
      ++at;
    }
  }
  for (Done<GroupView>& done : ready) done(view);
}

void HeadCore::RemoveGroup(GroupId id, DoneStatus done) {
  if (group_specs_.contains(id)) {
    StepGroups(scheduler::RemoveGroup{id});
    FinishGroup(id);
  }
  if (done) journal_.Write({}, std::move(done));   // behind the group's own
}

void HeadCore::FinishGroup(GroupId id) {
  if (group_specs_.erase(id) == 0) return;
  journal_.Write({{"group", Key(id), "", true}});
  std::string reason = fmt::format("placement group {} was removed", id.Short());
  for (const WaitEntry& entry : placement_.TakeGroup(id)) {
    if (entry.kind == WaitKind::kLease) StepLeases(LeaseRefused{entry.key, reason});
    if (entry.kind == WaitKind::kActor) StepActors(ActorUnplaceable{*ActorId::FromBytes(entry.key), reason});
  }
  StepLeases(LeaseGroupRemoved{id});
  AnswerGroupWaiters(id, false);
  SchedulePass();
}

std::vector<GroupView> HeadCore::Groups() const {
  std::vector<GroupView> groups;
  for (const auto& [id, spec] : group_specs_) {
    if (absl::StatusOr<GroupView> view = ViewGroup(id); view.ok()) groups.push_back(std::move(*view));
  }
  return groups;
}

void HeadCore::Run(std::vector<scheduler::GroupEffect> effects) {
  for (scheduler::GroupEffect& effect : effects) {
    std::visit(
        Overloaded{
            [&](scheduler::SendPrepare& e) {
              PrepareBundles prepare{e.group, e.attempt, {}, e.commit};
              for (scheduler::BundleReservation& bundle : e.bundles) prepare.bundles.push_back({bundle.index, std::move(bundle.resources)});
              Send(e.node, std::move(prepare));
            },
            [&](scheduler::SendCommit& e) { Send(e.node, CommitBundles{e.group, e.attempt, std::move(e.bundles)}); },
            [&](scheduler::SendReturn& e) { Send(e.node, ReturnBundles{e.group, std::move(e.bundles)}); },
            [&](scheduler::GroupReady& e) {
              spdlog::info("placement group {} is ready", e.group.Short());
              AnswerGroupWaiters(e.group, false);
              SchedulePass();
            },
            [&](scheduler::GroupPending& e) { spdlog::info("placement group {} waits: {}", e.group.Short(), e.explanation); },
            [&](scheduler::GroupRemoved& e) { FinishGroup(e.group); },
            [&](scheduler::GroupRescheduling& e) {
              spdlog::warn("placement group {} lost {} bundles with their node", e.group.Short(), e.bundles.size());
            },
            [&](scheduler::SetContended& e) {
              group_contended_[e.node] = e.contended;
              TickSoon();   // it is told to the node there
            },
        },
        effect);
  }
}

void HeadCore::On(NodeId node, BundlesPrepared message) {
  if (message.ok) StepGroups(scheduler::NodePrepared{node, message.group, message.attempt});
  else StepGroups(scheduler::PrepareFailed{node, message.group, message.attempt, message.reason});
  SchedulePass();
}

void HeadCore::On(NodeId node, BundlesCommitted message) {
  if (message.ok) StepGroups(scheduler::NodeCommitted{node, message.group, message.attempt});
  else StepGroups(scheduler::CommitFailed{node, message.group, message.attempt, message.reason});
  SchedulePass();
}

}  // namespace argosy::head
