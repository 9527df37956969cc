#include "scheduler/group_machine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/base/status.h"
#include "scheduler/explain.h"

namespace argosy::scheduler {
namespace {

std::string Join(const std::vector<int>& indices) {
  std::string text;
  for (int index : indices) text += fmt::format("{}{}", text.empty() ? "" : ",", index);
  return text;
}

std::string NameOf(NodeId id, const ClusterView& view) {
  const NodeView* node = view.Find(id);
  return node == nullptr ? id.Short() : node->DisplayName();
}

// So many unlike demands that cannot be placed are remembered in one pass.
constexpr size_t kFailuresMax = 64;

// Bundles by node, in the order of the bundles' indices.
std::map<NodeId, std::vector<int>> ByNode(const std::set<int>& bundles, const std::vector<NodeId>& nodes) {
  std::map<NodeId, std::vector<int>> by_node;
  for (int index : bundles) by_node[nodes[static_cast<size_t>(index)]].push_back(index);
  return by_node;
}

}  // namespace

std::string ToString(const GroupEffect& effect, const ClusterView& view) {
  struct Print {
    const ClusterView& view;
    std::string operator()(const SendPrepare& e) const {
      std::string bundles;
      for (const BundleReservation& b : e.bundles)
        bundles += fmt::format("{}{}: {{{}}}", bundles.empty() ? "" : ", ", b.index, b.resources.ToString());
      return fmt::format("{} <- Prepare{} {} [{}]", NameOf(e.node, view), e.commit ? " and commit" : "", e.group.Short(), bundles);
    }
    std::string operator()(const SendCommit& e) const {
      return fmt::format("{} <- Commit {} [{}]", NameOf(e.node, view), e.group.Short(), Join(e.bundles));
    }
    std::string operator()(const SendReturn& e) const {
      return fmt::format("{} <- Return {} [{}]", NameOf(e.node, view), e.group.Short(), Join(e.bundles));
    }
    std::string operator()(const GroupReady& e) const {
      std::string nodes;
      for (NodeId node : e.nodes) nodes += (nodes.empty() ? "" : ", ") + NameOf(node, view);
      return fmt::format("{} ready: {}", e.group.Short(), nodes);
    }
    std::string operator()(const GroupPending& e) const {
      return fmt::format("{} waits: {}", e.group.Short(), e.explanation);
    }
    std::string operator()(const GroupRemoved& e) const { return fmt::format("{} removed", e.group.Short()); }
    std::string operator()(const GroupRescheduling& e) const {
      return fmt::format("{} lost bundles [{}], placing them again", e.group.Short(), Join(e.bundles));
    }
    std::string operator()(const SetContended& e) const {
      return fmt::format("{} {}", NameOf(e.node, view), e.contended ? "contended" : "no longer contended");
    }
  };
  return std::visit(Print{view}, effect);
}

std::string_view ToString(GroupState state) {
  switch (state) {
    case GroupState::kPending: return "PENDING";
    case GroupState::kPreparing: return "PREPARING";
    case GroupState::kCommitting: return "COMMITTING";
    case GroupState::kReady: return "READY";
    case GroupState::kRescheduling: return "RESCHEDULING";
    case GroupState::kRestored: return "RESTORED";
  }
  return "unknown";
}

struct GroupMachine::Context {
  ClusterView& view;
  Prng& prng;
  absl::Time now;
  std::vector<GroupEffect> effects;
};

std::vector<GroupEffect> GroupMachine::Step(const GroupEvent& event, ClusterView& view, Prng& prng, absl::Time now) {
  now_ = now;
  Context context{view, prng, now, {}};
  std::visit([&](const auto& e) { On(e, context); }, event);
  Gather(context);
  return std::move(context.effects);
}

absl::Status GroupMachine::CheckCreate(const CreateGroup& create) const {
  if (groups_.contains(create.group)) return absl::OkStatus();
  if (groups_.size() >= options_.groups_max) {
    return MakeStatus(absl::StatusCode::kResourceExhausted,
                      "there are {} placement groups already, {} are possible: remove some", groups_.size(),
                      options_.groups_max);
  }
  return CheckGroupDemand(create.demand);
}

absl::Time GroupMachine::NextTick() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [ticket, id] : tickets_) {
    const Group& group = groups_.at(id);
    for (absl::Time at : {group.retry_at, group.gather_again_at, group.gather_since + options_.gather_max}) {
      if (at > now_) next = std::min(next, at);
    }
  }
  return next;
}

const GroupMachine::Group* GroupMachine::Find(GroupId id) const {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : &it->second;
}

std::vector<const GroupMachine::Group*> GroupMachine::Groups() const {
  std::vector<const Group*> groups;
  for (const auto& [id, group] : groups_) groups.push_back(&group);
  return groups;
}

GroupMachine::Group* GroupMachine::InState(GroupId id, uint64_t attempt, GroupState state) {
  auto it = groups_.find(id);
  if (it == groups_.end() || it->second.state != state) return nullptr;
  if (attempt != 0 && attempt != it->second.attempt) return nullptr;
  return &it->second;
}

void GroupMachine::Enqueue(Group& group) {
  const bool partly_placed = std::any_of(group.nodes.begin(), group.nodes.end(), [](NodeId id) { return !id.IsNil(); });
  group.state = partly_placed ? GroupState::kRescheduling : GroupState::kPending;
  tickets_[group.ticket] = group.id;
  group.feasible_at = 0;
  view_version_ = 0;
}

GroupMachine::Group* GroupMachine::Add(GroupId id, const GroupDemand& demand) {
  auto [it, is_new] = groups_.try_emplace(id);
  if (!is_new) return nullptr;
  Group& group = it->second;
  group.id = id;
  group.demand = demand;
  group.nodes.resize(demand.bundles.size());
  group.ticket = next_ticket_++;
  group.retry_delay = options_.retry_first;
  return &group;
}

void GroupMachine::On(const CreateGroup& event, Context&) {
  if (Group* group = Add(event.group, event.demand)) Enqueue(*group);
}

void GroupMachine::On(const RestoreGroup& event, Context&) {
  Group* group = Add(event.group, event.demand);
  if (group == nullptr) return;
  group->state = GroupState::kRestored;
  group->explanation = "waits for the nodes that had its bundles to come back";
}

void GroupMachine::On(const BundleHeld& event, Context& context) {
  auto it = groups_.find(event.group);
  const size_t i = static_cast<size_t>(event.index);
  if (it != groups_.end() && i < it->second.nodes.size()) {
    Group& group = it->second;
    if (group.nodes[i] == event.node) return;
    if (group.state == GroupState::kRestored && group.nodes[i].IsNil() && event.committed &&
        event.resources == group.demand.bundles[i].resources) {
      group.nodes[i] = event.node;
      // What the node reports as free is without its bundles: nothing is taken.
      std::ignore = context.view.SetBundle(event.node, {group.id, event.index}, event.resources);
      if (std::none_of(group.nodes.begin(), group.nodes.end(), [](NodeId id) { return id.IsNil(); })) BecomeReady(group, context);
      return;
    }
  }
  context.effects.push_back(SendReturn{event.node, event.group, {event.index}});
}

void GroupMachine::On(const RestoreSettled&, Context& context) {
  for (auto& [id, group] : groups_) {
    if (group.state != GroupState::kRestored) continue;
    std::vector<int> lost;
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      if (group.nodes[i].IsNil()) lost.push_back(static_cast<int>(i));
    }
    group.explanation.clear();
    Enqueue(group);
    if (lost.size() < group.nodes.size()) context.effects.push_back(GroupRescheduling{id, lost});
  }
}

void GroupMachine::On(const RemoveGroup& event, Context& context) {
  if (auto it = groups_.find(event.group); it != groups_.end()) {
    Group& group = it->second;
    std::set<int> held;
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      if (!group.nodes[i].IsNil()) held.insert(static_cast<int>(i));
    }
    for (const auto& [node, bundles] : ByNode(held, group.nodes)) {
      context.effects.push_back(SendReturn{node, group.id, bundles});
      for (int index : bundles) {
        // A bundle of the attempt in progress is only taken, not shown yet.
        std::ignore = context.view.RemoveBundle(node, {group.id, index});
        std::ignore = context.view.Give(node, group.demand.bundles[static_cast<size_t>(index)].resources);
      }
    }
    tickets_.erase(group.ticket);
    groups_.erase(it);
    view_version_ = 0;
  }
  context.effects.push_back(GroupRemoved{event.group});
}

void GroupMachine::On(const NodePrepared& event, Context& context) {
  Group* group = InState(event.group, event.attempt, GroupState::kPreparing);
  if (group == nullptr || group->waiting_for.erase(event.node) == 0 || !group->waiting_for.empty()) return;
  const std::map<NodeId, std::vector<int>> by_node = ByNode(group->round, group->nodes);
  if (by_node.size() == 1) return BecomeReady(*group, context);
  group->state = GroupState::kCommitting;
  for (const auto& [node, bundles] : by_node) {
    group->waiting_for.insert(node);
    context.effects.push_back(SendCommit{node, group->id, group->attempt, bundles});
  }
}

void GroupMachine::On(const NodeCommitted& event, Context& context) {
  Group* group = InState(event.group, event.attempt, GroupState::kCommitting);
  if (group == nullptr || group->waiting_for.erase(event.node) == 0 || !group->waiting_for.empty()) return;
  BecomeReady(*group, context);
}

void GroupMachine::BecomeReady(Group& group, Context& context) {
  for (int index : group.round) {
    // A node that is lost already refuses; the NodeLost that is on its way then places the bundle again.
    const size_t i = static_cast<size_t>(index);
    std::ignore = context.view.SetBundle(group.nodes[i], {group.id, index}, group.demand.bundles[i].resources);
  }
  group.round.clear();
  group.state = GroupState::kReady;
  group.explanation.clear();
  group.retry_delay = options_.retry_first;
  group.gather_since = absl::InfiniteFuture();
  group.gather_nodes.clear();
  group.gather_again_at = absl::InfinitePast();
  context.effects.push_back(GroupReady{group.id, group.nodes});
}

void GroupMachine::On(const PrepareFailed& event, Context& context) {
  Group* group = InState(event.group, event.attempt, GroupState::kPreparing);
  if (group == nullptr || ByNode(group->round, group->nodes).count(event.node) == 0) return;
  AbortAttempt(*group, event.node, context);
  group->explanation = fmt::format("{} refused: {}", NameOf(event.node, context.view), event.reason);
  context.effects.push_back(GroupPending{group->id, true, group->explanation});
}

void GroupMachine::On(const CommitFailed& event, Context& context) {
  Group* group = InState(event.group, event.attempt, GroupState::kCommitting);
  if (group == nullptr || ByNode(group->round, group->nodes).count(event.node) == 0) return;
  AbortAttempt(*group, event.node, context);
  group->explanation = fmt::format("{} refused: {}", NameOf(event.node, context.view), event.reason);
  context.effects.push_back(GroupPending{group->id, true, group->explanation});
}

void GroupMachine::On(const NodeLost& event, Context& context) {
  gathered_.erase(event.node);
  for (auto& [id, group] : groups_) {
    if (group.gather_nodes.contains(event.node)) group.gather_nodes.clear();
    if (std::find(group.nodes.begin(), group.nodes.end(), event.node) == group.nodes.end()) continue;
    const bool in_attempt = group.state == GroupState::kPreparing || group.state == GroupState::kCommitting;
    std::vector<int> lost;
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      if (group.nodes[i] == event.node && !group.round.contains(static_cast<int>(i)))
        lost.push_back(static_cast<int>(i));
    }
    if (in_attempt) {
      AbortAttempt(group, event.node, context);
      group.retry_at = absl::InfinitePast();   // nobody refused
    }
    for (int index : lost) group.nodes[static_cast<size_t>(index)] = NodeId();
    if (group.state == GroupState::kRestored) continue;
    Enqueue(group);
    if (!lost.empty()) context.effects.push_back(GroupRescheduling{id, lost});
  }
}

void GroupMachine::On(const Tick&, Context&) {}

void GroupMachine::StartAttempt(Group& group, std::vector<NodeId> nodes, Context& context) {
  group.attempt = next_attempt_++;
  group.round.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (group.nodes[i].IsNil()) group.round.insert(static_cast<int>(i));
  }
  group.nodes = std::move(nodes);
  group.state = GroupState::kPreparing;
  group.waiting_for.clear();
  tickets_.erase(group.ticket);
  const std::map<NodeId, std::vector<int>> by_node = ByNode(group.round, group.nodes);
  for (const auto& [node, bundles] : by_node) {
    SendPrepare prepare{node, group.id, group.attempt, {}, by_node.size() == 1};
    for (int index : bundles) {
      const ResourceSet& resources = group.demand.bundles[static_cast<size_t>(index)].resources;
      prepare.bundles.push_back({index, resources});
      std::ignore = context.view.Take(node, resources);   // PlaceGroup chose a node that the view knows
    }
    group.waiting_for.insert(node);
    context.effects.push_back(std::move(prepare));
  }
}

void GroupMachine::AbortAttempt(Group& group, NodeId failed, Context& context) {
  for (const auto& [node, bundles] : ByNode(group.round, group.nodes)) {
    for (int index : bundles)
      std::ignore = context.view.Give(node, group.demand.bundles[static_cast<size_t>(index)].resources);
    if (node != failed) context.effects.push_back(SendReturn{node, group.id, bundles});
  }
  for (int index : group.round) group.nodes[static_cast<size_t>(index)] = NodeId();
  group.round.clear();
  group.waiting_for.clear();
  group.retry_at = context.now + group.retry_delay;
  group.retry_delay = std::min(2 * group.retry_delay, options_.retry_last);
  Enqueue(group);
}

GroupMachine::Failure GroupMachine::Explain(Group& group, const GroupPlaceOptions& options, Context& context) {
  Failure failure{&group.demand};
  if (context.view.size() > options_.explained_nodes_max && context.now < group.explained_at + options_.explain_every &&
      !group.explanation.empty()) {
    failure.feasible = group.feasible;
    if (std::exchange(group.feasible_at, context.view.capacity_version()) != context.view.capacity_version()) {
      GroupPlaceOptions when_idle = options;
      when_idle.ignore_usage = true;
      failure.feasible = PlaceGroup(context.view, group.demand, context.prng, when_idle).has_value();
    }
    return failure;
  }
  group.explained_at = context.now;
  group.feasible_at = context.view.capacity_version();
  const GroupExplanation explanation = ExplainGroup(context.view, group.demand, context.prng, options);
  failure.feasible = explanation.feasible;
  failure.explanation = explanation.ToString();
  return failure;
}

void GroupMachine::Gather(Context& context) {
  const absl::Time now = context.now;
  const bool timer = std::any_of(tickets_.begin(), tickets_.end(), [&](const auto& entry) {
    const Group& group = groups_.at(entry.second);
    auto due = [&](absl::Time at) { return at > last_gathered_at_ && at <= now; };
    return due(group.retry_at) || due(group.gather_again_at) || due(group.gather_since + options_.gather_max);
  });
  if (!timer && view_version_ == context.view.version()) return;
  last_gathered_at_ = now;

  const std::set<NodeId> before = std::exchange(gathered_, {});
  for (NodeId node : before) std::ignore = context.view.SetGathered(node, GroupId());
  bool somebody_gathers = false;
  const std::map<uint64_t, GroupId> waiting = tickets_;
  std::vector<Failure> failures;
  for (const auto& [ticket, id] : waiting) {
    Group& group = groups_.at(id);
    if (now < group.retry_at) continue;
    GroupPlaceOptions options{id, group.nodes, false};
    // Nothing has become free since a group of the same demand was looked at. One that kept nodes before, or has bundles, is not the same.
    const bool ordinary = group.state == GroupState::kPending && group.gather_nodes.empty();
    const Failure* failure = nullptr;
    for (const Failure& known : failures) {
      const bool says_why = !known.explanation.empty() || !group.explanation.empty();
      if (ordinary && says_why && known.while_gathering == somebody_gathers && *known.demand == group.demand) failure = &known;
    }
    Failure own;
    if (failure == nullptr) {
      if (auto nodes = PlaceGroup(context.view, group.demand, context.prng, options)) {
        StartAttempt(group, *std::move(nodes), context);
        continue;
      }
      own = Explain(group, options, context);
      own.while_gathering = somebody_gathers;
      failure = &own;
    }
    const std::string& text = failure->explanation.empty() ? group.explanation : failure->explanation;
    if (text != group.explanation || failure->feasible != group.feasible) {
      group.explanation = text;
      group.feasible = failure->feasible;
      context.effects.push_back(GroupPending{id, group.feasible, group.explanation});
    }
    if (failure == &own && ordinary && failures.size() < kFailuresMax) failures.push_back(std::move(own));
    if (!group.feasible || somebody_gathers || now < group.gather_again_at) continue;
    if (group.gather_since == absl::InfiniteFuture()) group.gather_since = now;
    if (now - group.gather_since >= options_.gather_max) {
      group.gather_since = absl::InfiniteFuture();
      group.gather_nodes.clear();
      group.gather_again_at = now + options_.gather_max;
      tickets_.erase(group.ticket);
      group.ticket = next_ticket_++;
      tickets_[group.ticket] = id;
      continue;
    }
    if (group.gather_nodes.empty()) {
      // Chosen once, so that it does not move while they become free.
      options.ignore_usage = true;
      auto nodes = PlaceGroup(context.view, group.demand, context.prng, options);
      for (size_t i = 0; nodes && i < nodes->size(); ++i) {
        if (group.nodes[i].IsNil()) group.gather_nodes.insert((*nodes)[i]);
      }
    }
    somebody_gathers = true;
    gathered_ = group.gather_nodes;
    for (NodeId node : gathered_) std::ignore = context.view.SetGathered(node, id);
  }
  for (NodeId node : before) {
    if (gathered_.contains(node)) continue;
    std::ignore = context.view.SetContended(node, false);
    context.effects.push_back(SetContended{node, false});
  }
  for (NodeId node : gathered_) {
    if (before.contains(node)) continue;
    std::ignore = context.view.SetContended(node, true);
    context.effects.push_back(SetContended{node, true});
  }
  view_version_ = context.view.version();
}

}  // namespace argosy::scheduler
