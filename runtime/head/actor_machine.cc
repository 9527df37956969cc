#include "runtime/head/actor_machine.h"

#include <algorithm>
#include <functional>

#include "runtime/base/status.h"

namespace argosy::head {

const char* ToString(ActorState state) {
  switch (state) {
    case ActorState::kPending: return "PENDING";
    case ActorState::kAlive: return "ALIVE";
    case ActorState::kRestarting: return "RESTARTING";
    case ActorState::kDead: return "DEAD";
  }
  return "UNKNOWN";
}

std::vector<ActorEffect> ActorMachine::Step(const ActorEvent& event) {
  Context context;
  std::visit([&](const auto& e) { On(e, context); }, event);
  return std::move(context.effects);
}

absl::Status ActorMachine::CheckCreate(const ActorRecord& actor) const {
  if (actors_.size() - dead_.size() >= options_.actors_max) {
    return absl::ResourceExhaustedError(ToAbsl(fmt::format("{} actors live already: end some first", options_.actors_max)));
  }
  if (actor.name.empty()) return absl::OkStatus();
  const ActorRecord* other = FindName(actor.name_space, actor.name);
  if (other == nullptr || other->id == actor.id) return absl::OkStatus();
  return MakeStatus(absl::StatusCode::kAlreadyExists,
                    "actor name \"{}\" in namespace \"{}\" is taken by actor {} (class {}, {}, job {}); the new one is class {} of job {}: "
                    "choose another name, or set get_if_exists",
                    actor.name, actor.name_space, other->id.Short(), other->class_name, ToString(other->state), other->job.Short(),
                    actor.class_name, actor.job.Short());
}

const ActorRecord* ActorMachine::Find(ActorId id) const {
  auto at = actors_.find(id);
  return at == actors_.end() ? nullptr : &at->second.record;
}

const ActorRecord* ActorMachine::FindName(const std::string& name_space, const std::string& name) const {
  auto at = names_.find({name_space, name});
  return at == names_.end() ? nullptr : Find(at->second);
}

std::vector<const ActorRecord*> ActorMachine::All(bool include_dead) const {
  std::vector<const ActorRecord*> all;
  for (const auto& [id, actor] : actors_) {
    if (include_dead || actor.record.state != ActorState::kDead) all.push_back(&actor.record);
  }
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  return all;
}

size_t ActorMachine::alive_count() const {
  return static_cast<size_t>(
      std::count_if(actors_.begin(), actors_.end(), [](const auto& a) { return a.second.record.state == ActorState::kAlive; }));
}

std::vector<ActorId> ActorMachine::Select(const std::function<bool(const ActorRecord&)>& predicate) const {
  std::vector<ActorId> selected;
  for (const auto& [id, actor] : actors_) {
    if (actor.record.state != ActorState::kDead && predicate(actor.record)) selected.push_back(id);
  }
  std::sort(selected.begin(), selected.end());
  return selected;
}

void ActorMachine::Restore(ActorRecord record) {
  if (!record.name.empty()) names_[{record.name_space, record.name}] = record.id;
  ActorId id = record.id;
  actors_[id].record = std::move(record);
}

ActorMachine::Actor* ActorMachine::FindLive(ActorId id) {
  auto at = actors_.find(id);
  return at == actors_.end() || at->second.record.state == ActorState::kDead ? nullptr : &at->second;
}

void ActorMachine::Leave(Actor& actor, bool free, Context& context) {
  if (free && !actor.taken.IsEmpty()) context.effects.push_back(FreeActorResources{actor.record.node, actor.taken, actor.bundle});
  actor.taken = ResourceSet();
  actor.bundle.reset();
  actor.record.node = NodeId();
  actor.record.worker = WorkerAddress();
}

void ActorMachine::Die(Actor& actor, std::string reason, Context& context) {
  ActorRecord& record = actor.record;
  record.state = ActorState::kDead;
  record.death_reason = std::move(reason);
  if (!record.name.empty()) names_.erase({record.name_space, record.name});
  dead_.push_back(record.id);
  context.effects.push_back(ActorChanged{record.id});
  if (dead_.size() > options_.dead_max) {
    actors_.erase(dead_.front());
    dead_.pop_front();
  }
}

void ActorMachine::Kill(Actor& actor, const std::string& reason, Context& context) {
  ActorRecord& record = actor.record;
  if (record.node.IsNil()) context.effects.push_back(DropActorNode{record.id});
  else context.effects.push_back(SendStopActor{record.node, record.id, record.incarnation, true, reason});
  Leave(actor, true, context);
  Die(actor, reason, context);
}

void ActorMachine::RestartOrDie(Actor& actor, const std::string& reason, Context& context) {
  ActorRecord& record = actor.record;
  if (record.max_restarts >= 0 && record.restarts >= static_cast<uint32_t>(record.max_restarts)) {
    std::string why = reason;
    if (record.max_restarts > 0) why += fmt::format(" (restarted {} times already, max_restarts={})", record.restarts, record.max_restarts);
    return Die(actor, std::move(why), context);
  }
  ++record.restarts;
  record.state = ActorState::kRestarting;
  record.death_reason = reason;
  context.effects.push_back(ActorChanged{record.id});
  context.effects.push_back(WantActorNode{record.id});
}

void ActorMachine::On(const ActorCreated& event, Context& context) {
  auto [at, added] = actors_.try_emplace(event.actor.id);
  if (!added) return;
  at->second.record = event.actor;
  at->second.record.state = ActorState::kPending;
  if (!event.actor.name.empty()) names_[{event.actor.name_space, event.actor.name}] = event.actor.id;
  context.effects.push_back(ActorChanged{event.actor.id});
  context.effects.push_back(WantActorNode{event.actor.id});
}

void ActorMachine::On(const ActorPlaced& event, Context& context) {
  Actor* actor = FindLive(event.actor);
  if (actor == nullptr || !actor->record.node.IsNil()) {
    context.effects.push_back(FreeActorResources{event.node, event.placed, event.bundle});
    return;
  }
  actor->record.node = event.node;
  actor->record.lease = event.lease;
  ++actor->record.incarnation;
  actor->bundle = event.bundle;
  actor->taken = event.placed;
  context.effects.push_back(ActorChanged{event.actor});
  context.effects.push_back(SendStartActor{event.node, event.actor, actor->record.incarnation});
}

void ActorMachine::On(const ActorStarted& event, Context& context) {
  Actor* actor = FindLive(event.actor);
  if (actor == nullptr || actor->record.incarnation != event.incarnation) {
    context.effects.push_back(SendStopActor{event.worker.node, event.actor, event.incarnation, true, "it was ended while it started"});
    return;
  }
  ActorRecord& record = actor->record;
  if (record.state == ActorState::kAlive) return;
  record.state = ActorState::kAlive;
  record.worker = event.worker;
  record.death_reason.clear();
  actor->refusals = 0;
  // What only placing needed is free again.
  ResourceSet running;
  if (auto parsed = ResourceSet::FromMap(record.running_resources); parsed.ok()) running = *parsed;
  ResourceSet surplus;
  for (const auto& [name, amount] : actor->taken.amounts()) {
    if (amount > running.Get(name)) surplus.Set(name, amount - running.Get(name));
  }
  if (!surplus.IsEmpty()) {
    context.effects.push_back(FreeActorResources{record.node, surplus, actor->bundle});
    actor->taken.Subtract(surplus);
  }
  context.effects.push_back(ActorChanged{record.id});
}

void ActorMachine::On(const ActorEnded& event, Context& context) {
  Actor* actor = FindLive(event.actor);
  if (actor == nullptr || actor->record.incarnation != event.incarnation || actor->record.node.IsNil()) return;
  Leave(*actor, true, context);
  if (event.retry_elsewhere) {
    context.effects.push_back(ActorChanged{event.actor});
    context.effects.push_back(WantActorNode{event.actor, ++actor->refusals});
    return;
  }
  actor->record.constructor_failed = event.constructor_failed;
  if (event.constructor_failed || event.intended) return Die(*actor, event.reason, context);
  RestartOrDie(*actor, event.reason, context);
}

void ActorMachine::On(const ActorKilled& event, Context& context) {
  Actor* actor = FindLive(event.actor);
  if (actor == nullptr) return;
  std::string reason = event.reason.empty() ? "it was killed" : event.reason;
  bool restartable = actor->record.max_restarts < 0 || actor->record.restarts < static_cast<uint32_t>(actor->record.max_restarts);
  if (event.no_restart || !restartable) return Kill(*actor, reason, context);
  if (actor->record.node.IsNil()) return;   // it is about to be started anyway
  context.effects.push_back(SendStopActor{actor->record.node, event.actor, actor->record.incarnation, false, reason});
}

void ActorMachine::On(const ActorUnplaceable& event, Context& context) {
  Actor* actor = FindLive(event.actor);
  if (actor == nullptr || !actor->record.node.IsNil()) return;
  Die(*actor, event.reason, context);
}

void ActorMachine::On(const ActorNodeLost& event, Context& context) {
  for (ActorId id : Select([&](const ActorRecord& record) { return record.owner_node == event.node && !record.detached; })) {
    if (actors_.at(id).record.node == event.node) Leave(actors_.at(id), false, context);
    Kill(actors_.at(id), fmt::format("its owner's node {} was lost: {}", event.node_name, event.reason), context);
  }
  for (ActorId id : Select([&](const ActorRecord& record) { return record.node == event.node; })) {
    Actor& actor = actors_.at(id);
    bool starting = actor.record.worker.worker.IsNil();
    Leave(actor, false, context);
    if (starting) {
      // It never ran, so this is not a restart.
      context.effects.push_back(ActorChanged{id});
      context.effects.push_back(WantActorNode{id});
    } else {
      RestartOrDie(actor, fmt::format("its node {} was lost: {}", event.node_name, event.reason), context);
    }
  }
}

void ActorMachine::On(const ActorNodeRejoined& event, Context& context) {
  std::map<ActorId, const HeldActor*> held;
  for (const HeldActor& actor : event.held) held[actor.actor] = &actor;
  for (ActorId id : Select([&](const ActorRecord& record) { return record.node == event.node; })) {
    Actor& actor = actors_.at(id);
    auto at = held.find(id);
    bool has = at != held.end() && at->second->incarnation == actor.record.incarnation;
    if (has && !at->second->worker.worker.IsNil()) {
      HeldActor copy = *at->second;
      On(ActorStarted{id, copy.incarnation, copy.worker}, context);
    } else if (!has && actor.record.state == ActorState::kAlive) {
      Leave(actor, true, context);
      RestartOrDie(actor, "its worker ended while the node was not connected", context);
    } else if (!has) {
      context.effects.push_back(SendStartActor{event.node, id, actor.record.incarnation});   // the order was lost on the way
    }
  }
  for (const HeldActor& actor : event.held) {
    const ActorRecord* record = Find(actor.actor);
    bool ours = record != nullptr && record->state != ActorState::kDead && record->node == event.node && record->incarnation == actor.incarnation;
    if (!ours) context.effects.push_back(SendStopActor{event.node, actor.actor, actor.incarnation, true, "the head has ended or moved it"});
  }
}

void ActorMachine::On(const ActorJobEnded& event, Context& context) {
  for (ActorId id : Select([&](const ActorRecord& record) { return record.job == event.job && !record.detached; })) {
    Kill(actors_.at(id), "its job has ended: " + (event.reason.empty() ? std::string("the driver left") : event.reason), context);
  }
}

void ActorMachine::On(const ActorOwnerDied& event, Context& context) {
  if (event.worker.IsNil()) return;
  for (ActorId id : Select([&](const ActorRecord& record) { return record.owner == event.worker && !record.detached; })) {
    Kill(actors_.at(id), "its owner, worker " + event.worker.Short() + ", ended: " + event.reason, context);
  }
}

}  // namespace argosy::head
