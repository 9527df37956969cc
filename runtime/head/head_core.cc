#include "runtime/head/head_core.h"

#include <algorithm>

#include "runtime/base/codec.h"
#include "runtime/base/job_priority.h"
#include "runtime/base/status.h"
#include "scheduler/explain.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kTickIdle = absl::Seconds(1);   // while nothing waits
constexpr absl::Duration kEndingKept = absl::Seconds(15);
constexpr size_t kEndingsMax = 100'000;
constexpr size_t kDeadWorkersMax = 100'000;
constexpr size_t kPendingLinesMax = 100;
constexpr absl::Duration kContendedAfter = absl::Milliseconds(100);
constexpr absl::Duration kRecallPeriod = absl::Seconds(1);
constexpr size_t kContendedShapesMax = 100;

bool IsEnding(const ToNode& message) {
  // Not ReturnBundles: a node that rejoins says what it holds, and the same bundle may have been placed there again since.
  return std::holds_alternative<ReleaseLease>(message) || std::holds_alternative<StopActor>(message) ||
         std::holds_alternative<JobEnded>(message) || std::holds_alternative<head::StopJob>(message) || std::holds_alternative<OtherNodeLost>(message);
}

// What the journal keeps of a node.
struct NodeRow {
  NodeDescription description;
  bool alive = true;
  int64_t lost_unix_ms = 0;
  std::string lost_reason;
};

std::string KvRowKey(const std::string& name_space, const std::string& key) { return name_space + '\0' + key; }

}  // namespace

HeadCore::HeadCore(Options options, Journal& journal, JobLogs& logs, async::Loop& loop, const Clock& clock)
    : options_(std::move(options)),
      journal_(journal),
      logs_(logs),
      loop_(loop),
      clock_(clock),
      prng_(options_.seed),
      started_unix_ms_(UnixMillis(clock.WallNow())),
      started_(clock.Now()),
      nodes_({.timeout = options_.node_timeout}),
      jobs_({.start_timeout = options_.job_start_timeout}),
      pass_timer_(loop),
      tick_timer_(loop) {}

HeadCore::~HeadCore() = default;

absl::Status HeadCore::Restore(const std::vector<Journal::Row>& rows) {
  uint64_t restarts = 0;
  for (const Journal::Row& row : rows) {
    if (row.table == "meta" && row.key == "restarts") restarts = std::strtoull(row.value.c_str(), nullptr, 10) + 1;
    if (row.table == "meta" && row.key == "cluster_id") cluster_id_ = row.value;
  }
  if (cluster_id_.empty()) cluster_id_ = NodeId::Random().Hex();
  // Epochs grow over restarts too.
  nodes_ = NodeTable({.timeout = options_.node_timeout, .first_epoch = (restarts << 32) + 1});
  for (const Journal::Row& row : rows) {
    if (row.table == "kv") {
      size_t cut = row.key.find('\0');
      if (cut == std::string::npos) return Internal("journal: kv row without a namespace");
      kv_bytes_ += row.key.size() + row.value.size();
      kv_[{row.key.substr(0, cut), row.key.substr(cut + 1)}] = row.value;
    } else if (row.table == "package") {
      packages_[row.key] = std::strtoull(row.value.c_str(), nullptr, 10);
    } else if (row.table == "job") {
      ARGOSY_ASSIGN_OR_RETURN(JobRecord job, Decode<JobRecord>(row.value));
      if (!IsTerminal(job.state) && !job.driver_job.IsNil()) drivers_[job.driver_job].driver.node = job.node;
      jobs_.Restore(std::move(job));
    } else if (row.table == "actor") {
      ARGOSY_ASSIGN_OR_RETURN(ActorRecord actor, Decode<ActorRecord>(row.value));
      actors_.Restore(std::move(actor));
    } else if (row.table == "node") {
      ARGOSY_ASSIGN_OR_RETURN(NodeRow node, Decode<NodeRow>(row.value));
      nodes_.Restore(node.description, node.alive, node.lost_unix_ms, node.lost_reason, Now());
      AddToView(node.description, ResourceSet());
      if (!node.alive) (void)view_.MarkLost(node.description.id, Now());
    }
  }
  ARGOSY_RETURN_IF_ERROR(RestoreGroups(rows));
  journal_.Write({{"meta", "cluster_id", cluster_id_}, {"meta", "restarts", std::to_string(restarts)}});
  for (const std::string& name : jobs_.Waiting()) Run({WantJobNode{name}});
  for (const ActorRecord* actor : actors_.All(false)) {
    if (actor->node.IsNil()) Run({WantActorNode{actor->id}});
  }
  if (restarts > 0) {
    spdlog::info("restored from the journal: {} jobs, {} nodes expected, {} actors, {} placement groups, {} keys, {} packages",
                 jobs_.All().size(), nodes_.alive_count(), actors_.All(false).size(), group_specs_.size(), kv_.size(), packages_.size());
  }
  return absl::OkStatus();
}

void HeadCore::Start() {
  Tick();
  SchedulePass();
}

void HeadCore::SetAddresses(std::string head_address, std::string dashboard_url) {
  options_.head_address = std::move(head_address);
  options_.dashboard_url = std::move(dashboard_url);
}

// ---- nodes --------------------------------------------------------------------------------------------------------------------

void HeadCore::AddToView(const NodeDescription& description, const ResourceSet& available) {
  ResourceSet total;
  if (auto parsed = ResourceSet::FromMap(description.total); parsed.ok()) total = *parsed;
  if (view_.Find(description.id) == nullptr) {
    (void)view_.AddNode(description.id, description.name, total, description.labels);
  } else {
    (void)view_.UpdateLabels(description.id, description.labels);
  }
  (void)view_.UpdateAvailable(description.id, available);
}

void HeadCore::SaveNode(NodeId id) {
  const NodeTable::Node* node = nodes_.Find(id);
  NodeRow row{node->description, node->alive, node->lost_unix_ms, node->lost_reason};
  journal_.Write({{"node", std::string(id.Bytes()), Encode(row)}});
}

absl::StatusOr<uint64_t> HeadCore::Register(const Registration& registration, std::shared_ptr<NodeLink> link) {
  NodeId id = registration.node.id;
  NodeTable::Admitted admitted = nodes_.Register(registration.node, Now());
  if (admitted.admission == NodeTable::Admission::kDeclaredDead) {
    const NodeTable::Node* node = nodes_.Find(id);
    std::string reason = fmt::format("node {} was declared dead ({}): end its workers and register under a new id", id.Short(), node->lost_reason);
    spdlog::warn("refused: {}", reason);
    link->Send(Rejected{reason, true});
    link->Close();
    return FailedPrecondition("{}", reason);
  }
  NodeState& state = node_states_[id];
  if (state.link != nullptr) state.link->Close();
  state.link = std::move(link);
  bool rejoined = admitted.admission == NodeTable::Admission::kRejoined;
  Send(id, Registered{cluster_id_, admitted.epoch, absl::ToDoubleSeconds(options_.heartbeat), absl::ToDoubleSeconds(options_.node_timeout)});
  AddToView(registration.node, registration.available);
  SaveNode(id);
  spdlog::info("node {} ({}) {}: {}{}", registration.node.name, id.Short(), rejoined ? "rejoined" : "joined", view_.Find(id)->total.ToString(),
               registration.node.labels.empty() ? "" : "; labels " + scheduler::LabelsToString(registration.node.labels));
  // What it was told to end while nobody listened.
  for (const auto& [when, message] : state.endings) state.link->Send(message);
  if (state.contended) state.link->Send(NodeContended{true, state.contended_for});
  // A drain outlives a restart of the head in the node, and a broken stream here.
  if (registration.draining && !draining_.contains(id)) {
    draining_[id] = *registration.draining;
  } else if (draining_.contains(id) && !registration.draining) {
    state.link->Send(DrainNode{draining_[id], 0, false});
  }
  (void)view_.SetDraining(id, draining_.contains(id));

  LeaseNodeRejoined leases{id, {}};
  for (const HeldLease& lease : registration.leases) leases.held.insert(lease.lease);
  if (rejoined) StepLeases(leases);
  StepActors(ActorNodeRejoined{id, registration.actors});
  StepJobs(JobNodeRejoined{id, std::set<std::string>(registration.jobs.begin(), registration.jobs.end())});
  for (const std::string& name : registration.jobs) {
    const JobRecord* job = jobs_.Find(name);
    if (job == nullptr || IsTerminal(job->state)) Send(id, head::StopJob{name, absl::ToDoubleSeconds(kJobStopGrace)});
    else Send(id, JobLogAck{name, logs_.End(name)});   // the node sends from there on
  }
  // Bundles that the groups do not have there are free again; answers that were lost on the way count as failures, and are tried again.
  std::vector<scheduler::GroupEvent> unanswered;
  for (const scheduler::GroupMachine::Group* group : groups_.Groups()) {
    if (!group->waiting_for.contains(id)) continue;
    constexpr char kWhy[] = "the node's stream broke";
    if (group->state == scheduler::GroupState::kCommitting) unanswered.push_back(scheduler::CommitFailed{id, group->id, group->attempt, kWhy});
    else unanswered.push_back(scheduler::PrepareFailed{id, group->id, group->attempt, kWhy});
  }
  for (const scheduler::GroupEvent& event : unanswered) StepGroups(event);
  for (const HeldBundle& held : registration.bundles) {
    StepGroups(scheduler::BundleHeld{id, held.bundle.group, held.bundle.index, held.resources, held.committed});
  }
  SchedulePass();
  return admitted.epoch;
}

void HeadCore::OnNodeMessage(NodeId node, uint64_t epoch, FromNode message) {
  if (!nodes_.Heard(node, epoch, Now())) return;
  std::visit([&](auto&& m) { On(node, std::move(m)); }, std::move(message));
}

void HeadCore::OnNodeDisconnected(NodeId node, uint64_t epoch) {
  const NodeTable::Node* known = nodes_.Find(node);
  if (known == nullptr || known->epoch != epoch) return;
  nodes_.Disconnected(node, epoch);
  node_states_[node].link = nullptr;
  questions_.NodeGone(node, "its stream broke");
  if (known->alive) spdlog::warn("node {} disconnected; it has {} to come back", known->description.name, absl::FormatDuration(options_.node_timeout));
}

void HeadCore::Send(NodeId node, ToNode message) {
  auto at = node_states_.find(node);
  if (at == node_states_.end()) {
    // A node that has not rejoined yet after the head's restart is told when it does.
    const NodeTable::Node* known = nodes_.Find(node);
    if (known == nullptr || !known->alive) return;
    at = node_states_.try_emplace(node).first;
  }
  NodeState& state = at->second;
  if (IsEnding(message)) {
    while (!state.endings.empty() && ((state.link != nullptr && Now() - state.endings.front().first > kEndingKept) || state.endings.size() >= kEndingsMax)) {
      state.endings.pop_front();
    }
    state.endings.emplace_back(Now(), message);
  }
  if (state.link != nullptr) state.link->Send(message);
}

void HeadCore::Broadcast(const ToNode& message) {
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive) Send(node->description.id, message);
  }
}

void HeadCore::LoseNode(NodeId id) {
  const NodeTable::Node* node = nodes_.Find(id);
  std::string name = node->description.name;
  std::string reason = node->lost_reason;
  spdlog::warn("node {} ({}) is lost: {}", name, id.Short(), reason);
  if (auto at = node_states_.find(id); at != node_states_.end()) {
    if (at->second.link != nullptr) {
      at->second.link->Send(Rejected{fmt::format("node {} was declared dead ({})", id.Short(), reason), true});
      at->second.link->Close();
    }
    node_states_.erase(at);
  }
  questions_.NodeGone(id, "it is lost");
  SaveNode(id);
  (void)view_.MarkLost(id, Now());
  group_contended_.erase(id);
  draining_.erase(id);
  StepLeases(LeaseNodeLost{id});
  StepActors(ActorNodeLost{id, name, reason});
  StepGroups(scheduler::NodeLost{id});
  StepJobs(JobNodeLost{id, reason});
  std::vector<JobId> ended;
  for (const auto& [job, driver] : drivers_) {
    if (driver.driver.node == id) ended.push_back(job);
  }
  for (JobId job : ended) EndJob(job, fmt::format("the driver's node {} was lost: {}", name, reason));
  Broadcast(OtherNodeLost{id});
  for (NodeId gone : nodes_.TrimLost()) {
    (void)view_.RemoveNode(gone);
    journal_.Write({{"node", std::string(gone.Bytes()), "", true}});
  }
  SchedulePass();
}

void HeadCore::EndJob(JobId job, const std::string& reason) {
  drivers_.erase(job);
  prints_flow_.erase(job);
  metrics_.JobEnded(job);
  tasks_.JobEnded(job, reason, NowUnixMicros());
  StepLeases(LeaseJobEnded{job});
  StepActors(ActorJobEnded{job, reason});
  std::vector<GroupId> groups;
  for (const auto& [id, spec] : group_specs_) {
    if (spec.job == job && !spec.detached) groups.push_back(id);
  }
  for (GroupId group : groups) RemoveGroup(group);
  Broadcast(JobEnded{job, reason});
  SchedulePass();
}

void HeadCore::EndOrphanedJobs() {
  next_orphans_ = Now() + options_.node_timeout;
  std::set<JobId> orphaned, of_detached;
  auto look = [&](JobId job, bool detached) {
    if (detached) of_detached.insert(job);
    else if (!job.IsNil() && !drivers_.contains(job)) orphaned.insert(job);
  };
  for (const ActorRecord* actor : actors_.All(false)) look(actor->job, actor->detached);
  for (const auto& [id, spec] : group_specs_) {
    if (!spec.detached) look(spec.job, false);
  }
  // What a detached actor makes has the job that made the actor.
  for (JobId job : of_detached) orphaned.erase(job);
  std::swap(orphaned, orphaned_jobs_);
  // The second time: a driver's own message may be on its way still.
  for (JobId job : orphaned) {
    if (orphaned_jobs_.erase(job) > 0) EndJob(job, "its driver is gone");
  }
}

void HeadCore::On(NodeId node, Heartbeat message) { nodes_.SetLoad(node, message); }

void HeadCore::On(NodeId node, ResourceReport message) {
  for (LeaseId lease : message.ended_leases) StepLeases(LeaseEndedAtNode{node, lease});
  if (!nodes_.AcceptVersion(node, message.version)) return;
  (void)view_.UpdateAvailable(node, message.available);
  for (const BundleAvailable& bundle : message.bundles) (void)view_.UpdateBundleAvailable(node, bundle.bundle, bundle.available);
  SchedulePass();
}

void HeadCore::On(NodeId node, LeaseResult message) {
  message.worker.node = node;
  StepLeases(LeaseAnswered{node, std::move(message)});
}

void HeadCore::On(NodeId node, ActorStarted message) {
  message.worker.node = node;
  StepActors(message);
}

void HeadCore::On(NodeId node, ActorEnded message) { StepActors(message); }

void HeadCore::On(NodeId node, WorkerDied message) {
  if (dead_workers_.emplace(message.worker, message).second) {
    dead_workers_order_.push_back(message.worker);
    if (dead_workers_order_.size() > kDeadWorkersMax) {
      dead_workers_.erase(dead_workers_order_.front());
      dead_workers_order_.pop_front();
    }
  }
  metrics_.WorkerDied(message.worker);
  tasks_.WorkerDied(message.worker, message.reason, NowUnixMicros());
  StepLeases(LeaseWorkerDied{message.worker});
  StepActors(ActorOwnerDied{message.worker, message.reason});
}

void HeadCore::On(NodeId node, DriverJoined message) {
  message.driver.node = node;
  drivers_[message.job] = message;
  spdlog::info("driver of job {} joined on node {}", message.job.Short(), nodes_.Find(node)->description.name);
  StepJobs(message);
}

void HeadCore::On(NodeId node, DriverLeft message) {
  spdlog::info("driver of job {} left: {}", message.job.Short(), message.reason);
  StepJobs(message);
  EndJob(message.job, message.reason);
}

// ---- placing ------------------------------------------------------------------------------------------------------------------

void HeadCore::SchedulePass() {
  TickSoon();
  if (pass_posted_) return;
  pass_posted_ = true;
  loop_.Post([this] {
    pass_posted_ = false;
    Pass();
  });
}

void HeadCore::Pass() {
  StepGroups(scheduler::Tick{});
  for (Placement::Overdue& overdue : placement_.Expire(view_, Now())) {
    const std::string& key = overdue.entry.key;
    if (overdue.entry.kind == WaitKind::kLease) {
      StepLeases(LeaseTimedOut{key, overdue.explanation});
    } else if (overdue.entry.kind == WaitKind::kActor) {
      StepActors(ActorUnplaceable{*ActorId::FromBytes(key), "it was not started within its start time-out: " + overdue.explanation});
    }
  }
  PlaceHeadNodeJobs();
  for (Placement::Placed& placed : placement_.Serve(view_, prng_, Now())) {
    LeaseId lease = LeaseId::Random();
    switch (placed.entry.kind) {
      case WaitKind::kLease:
        StepLeases(LeasePlaced{placed.entry.key, placed.node, placed.bundle, lease});
        break;
      case WaitKind::kActor:
        StepActors(ActorPlaced{*ActorId::FromBytes(placed.entry.key), placed.node, placed.bundle, placed.entry.demand.resources, lease});
        break;
      case WaitKind::kJob: {
        const NodeDescription& node = nodes_.Find(placed.node)->description;
        StepJobs(JobPlaced{placed.entry.key, placed.node, node.name, node.ip, "http://" + node.agent_address, lease});
        break;
      }
    }
  }
  ArmTimer();
}

void HeadCore::ArmTimer() {
  absl::Time next = std::min(placement_.NextTime(), groups_.NextTick());
  if (next == absl::InfiniteFuture()) return pass_timer_.Cancel();
  pass_timer_.After(std::max(next - Now(), absl::Milliseconds(1)), [this] { Pass(); });
}

void HeadCore::Tick() {
  questions_.Expire(Now());
  for (NodeId node : nodes_.Expire(Now(), NowMillis())) LoseNode(node);
  for (const std::string& name : jobs_.Overdue(NowMillis())) {
    const JobRecord* job = jobs_.Find(name);
    std::string why = JobMessage(*job);
    StepJobs(JobTimedOut{name, why});
  }
  if (!head_node_jobs_.empty()) PlaceHeadNodeJobs();
  if (settling_) {
    const std::vector<const NodeTable::Node*> nodes = nodes_.All();
    settling_ = std::any_of(nodes.begin(), nodes.end(), [](const NodeTable::Node* node) { return node->alive && !node->connected; });
    if (!settling_) {
      StepGroups(scheduler::RestoreSettled{});
      next_orphans_ = Now() + options_.node_timeout;   // nodes tell their drivers when they have joined
    }
  }
  if (!settling_ && Now() >= next_orphans_) EndOrphanedJobs();
  std::vector<ActorId> actors;
  for (const auto& [id, waiter] : actor_waiters_) {
    if (waiter.deadline <= Now() && (actors.empty() || actors.back() != id)) actors.push_back(id);
  }
  for (ActorId id : actors) AnswerActorWaiters(id, true);
  std::vector<GroupId> groups;
  for (const auto& [id, waiter] : group_waiters_) {
    if (waiter.deadline <= Now() && (groups.empty() || groups.back() != id)) groups.push_back(id);
  }
  for (GroupId id : groups) AnswerGroupWaiters(id, true);
  UpdateContention();
  ticks_slowly_ = !settling_ && actor_waiters_.empty() && group_waiters_.empty() && questions_.size() == 0 && placement_.size() == 0 && head_node_jobs_.empty();
  tick_timer_.After(ticks_slowly_ ? kTickIdle : kTick, [this] { Tick(); });
}

void HeadCore::TickSoon() {
  if (std::exchange(ticks_slowly_, false)) tick_timer_.After(kTick, [this] { Tick(); });
}

void HeadCore::UpdateContention() {
  // What a group gathers, and what drains, is given back by all.
  std::map<NodeId, int> contended;
  for (const auto& [node, is] : group_contended_) {
    if (is) contended[node] = kJobPriorityMax;
  }
  for (const auto& [node, why] : draining_) contended[node] = kJobPriorityMax;   // grants nothing by itself
  for (const Placement::WaitingShape& waiting : placement_.Waiting(kContendedAfter, Now(), kContendedShapesMax)) {
    const scheduler::Shape& shape = waiting.shape;
    if (std::holds_alternative<scheduler::BundleAffinity>(shape.strategy)) continue;   // inside a bundle only its own leases count
    const auto* affinity = std::get_if<scheduler::NodeAffinity>(&shape.strategy);
    std::vector<LeaseMachine::RecallNode> nodes;
    for (const scheduler::NodeView* node : view_.Nodes()) {
      if (!node->alive || !node->total.Contains(shape.resources) || !shape.labels.Matches(node->labels)) continue;
      if (affinity != nullptr && !affinity->soft && affinity->node != node->id) continue;
      int& highest = contended.try_emplace(node->id, waiting.job_priority).first->second;
      highest = std::max(highest, waiting.job_priority);
      nodes.push_back({node->id, node->available});
    }
    Run(leases_.Recall(shape, waiting.jobs, waiting.job_priority, nodes, kRecallPeriod, Now()));
  }
  for (auto& [id, state] : node_states_) {
    auto at = contended.find(id);
    const bool is = at != contended.end();
    const int job_priority = is ? at->second : 0;
    if (state.contended == is && state.contended_for == job_priority) continue;
    state.contended = is;
    state.contended_for = job_priority;
    (void)view_.SetContended(id, is);
    if (state.link != nullptr) state.link->Send(NodeContended{is, job_priority});
  }
}

std::vector<PendingSummary> HeadCore::Pending() const {
  std::vector<PendingSummary> pending = placement_.Summaries(view_, Now(), kPendingLinesMax);
  for (const std::string& name : head_node_jobs_) {
    pending.push_back({"job " + name, {}, {}, 1, "needs the head's node; it has not joined"});
  }
  for (const scheduler::GroupMachine::Group* group : groups_.Groups()) {
    if (group->state == scheduler::GroupState::kReady) continue;
    auto spec = group_specs_.find(group->id);
    std::string name = spec == group_specs_.end() || spec->second.name.empty() ? group->id.Short() : spec->second.name;
    ResourceSet total;
    for (const scheduler::BundleDemand& bundle : group->demand.bundles) total.Add(bundle.resources);
    pending.push_back({"group " + name, total.ToMap(), {}, 1, group->explanation});
    if (pending.size() >= 2 * kPendingLinesMax) break;
  }
  return pending;
}

std::pair<bool, std::string> HeadCore::Explain(const scheduler::Demand& demand) const {
  scheduler::Explanation explanation = scheduler::Explain(view_, demand, Now());
  return {!explanation.usable.empty(), explanation.ToString()};
}

WorkerFate HeadCore::Fate(WorkerId worker, NodeId node) const {
  if (auto at = dead_workers_.find(worker); at != dead_workers_.end()) return {true, at->second.reason, false, at->second.out_of_memory};
  if (node.IsNil()) return {};
  const NodeTable::Node* known = nodes_.Find(node);
  if (known == nullptr) return {true, "its node " + node.Short() + " is not of this cluster, or was lost long ago", true};
  if (!known->alive) return {true, "its node " + known->description.name + " was lost: " + known->lost_reason, true};
  return {};
}

// ---- key-value store and packages ---------------------------------------------------------------------------------------------

void HeadCore::KvPut(const std::string& name_space, const std::string& key, std::string value, bool overwrite, Done<bool> added) {
  if (name_space.find('\0') != std::string::npos) return added(InvalidArgument("a namespace cannot contain a zero byte"));
  auto at = kv_.find({name_space, key});
  bool is_new = at == kv_.end();
  if (!is_new && !overwrite) return added(false);
  uint64_t before = is_new ? 0 : name_space.size() + 1 + key.size() + at->second.size();
  uint64_t after = name_space.size() + 1 + key.size() + value.size();
  if (kv_bytes_ - before + after > options_.kv_bytes_max) {
    return added(absl::ResourceExhaustedError(
        ToAbsl(fmt::format("the key-value store holds {} of at most {} bytes: delete keys first", kv_bytes_, options_.kv_bytes_max))));
  }
  kv_bytes_ = kv_bytes_ - before + after;
  Journal::Change change{"kv", KvRowKey(name_space, key), value};
  kv_[{name_space, key}] = std::move(value);
  journal_.Write({std::move(change)}, [is_new, added = std::move(added)](absl::Status status) {
    if (!status.ok()) return added(status);
    added(is_new);
  });
}

const std::string* HeadCore::KvGet(const std::string& name_space, const std::string& key) const {
  auto at = kv_.find({name_space, key});
  return at == kv_.end() ? nullptr : &at->second;
}

void HeadCore::KvDelete(const std::string& name_space, const std::string& key, Done<bool> deleted) {
  auto at = kv_.find({name_space, key});
  if (at == kv_.end()) return deleted(false);
  kv_bytes_ -= name_space.size() + 1 + key.size() + at->second.size();
  kv_.erase(at);
  journal_.Write({{"kv", KvRowKey(name_space, key), "", true}}, [deleted = std::move(deleted)](absl::Status status) {
    if (!status.ok()) return deleted(status);
    deleted(true);
  });
}

std::vector<std::string> HeadCore::KvList(const std::string& name_space, const std::string& prefix) const {
  std::vector<std::string> keys;
  for (auto at = kv_.lower_bound({name_space, prefix}); at != kv_.end(); ++at) {
    if (at->first.first != name_space || !at->first.second.starts_with(prefix)) break;
    keys.push_back(at->first.second);
  }
  return keys;
}

std::optional<uint64_t> HeadCore::FindPackage(const std::string& name) const {
  auto at = packages_.find(name);
  return at == packages_.end() ? std::nullopt : std::optional<uint64_t>(at->second);
}

void HeadCore::PackageStored(const std::string& name, uint64_t size, DoneStatus done) {
  journal_.Write({{"package", name, std::to_string(size)}}, [this, name, size, done = std::move(done)](absl::Status status) {
    if (status.ok()) packages_[name] = size;
    done(status);
  });
}

}  // namespace argosy::head
