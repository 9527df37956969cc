#include "tests/scenario/scheduler_world.h"

#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <variant>

#include "runtime/base/status.h"
#include "scheduler/explain.h"
#include "scheduler/place.h"

namespace argosy::scenario {

using namespace scheduler;

namespace {

// A malformed command is the test's mistake: the runner reports it as such.
[[noreturn]] void Bad(const std::string& what) { throw std::invalid_argument(what); }

template <class T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Bad(Message(value.status()));
  return *std::move(value);
}

void Must(const absl::Status& status) {
  if (!status.ok()) Bad(Message(status));
}

// "CPU=1 job=j select zone=a" taken apart.
struct Words {
  std::vector<std::string> plain;
  std::map<std::string, std::string> options;   // job, strategy, node, softly, group
  std::map<std::string, double> amounts;
  std::string tail;   // after `select` or `label`
};

Words Read(std::istringstream& in) {
  Words words;
  for (std::string word; in >> word;) {
    if (word == "select" || word == "label") {
      std::getline(in >> std::ws, words.tail);
      break;
    }
    size_t equals = word.find('=');
    if (equals == std::string::npos) {
      words.plain.push_back(word);
      continue;
    }
    std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "job" || key == "strategy" || key == "node" || key == "softly" || key == "group")
      words.options[key] = value;
    else words.amounts[key] = std::stod(value);
  }
  return words;
}

void ReplaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Ids whose short form is unique, so that it can be replaced by the name.
template <class Id>
Id NamedId(const char* prefix, uint64_t number) {
  return *Id::FromHex(fmt::format("{}{:04x}{:024x}", prefix, number, 0));
}

}  // namespace

void SchedulerWorld::Say(const std::string& text) {
  std::string line = text;
  for (const auto& [name, id] : group_ids_) ReplaceAll(line, id.Short(), name);
  for (const auto& [name, node] : nodes_) ReplaceAll(line, node.id.Short(), name);
  said_ += line + "\n";
}

SchedulerWorld::Node* SchedulerWorld::NodeById(NodeId id) {
  for (auto& [name, node] : nodes_) {
    if (node.id == id) return &node;
  }
  return nullptr;
}

void SchedulerWorld::Report(Node& node) {
  const NodeView* seen = view_.Find(node.id);
  if (seen == nullptr || !seen->alive) return;
  Must(view_.UpdateAvailable(node.id, node.ledger.Available()));
  for (const auto& [key, bundle] : node.ledger.Bundles()) {
    if (bundle.committed) std::ignore = view_.UpdateBundleAvailable(node.id, key, bundle.available);
  }
}

void SchedulerWorld::StepGroups(const GroupEvent& event) {
  for (const GroupEffect& effect : groups_.Step(event, view_, prng_, now_)) {
    Say(scheduler::ToString(effect, view_));
    NodeId to;
    if (auto* prepare = std::get_if<SendPrepare>(&effect)) to = prepare->node;
    if (auto* commit = std::get_if<SendCommit>(&effect)) to = commit->node;
    if (auto* give = std::get_if<SendReturn>(&effect)) to = give->node;
    Node* node = to.IsNil() ? nullptr : NodeById(to);
    if (node == nullptr) continue;
    node->orders.push_back(effect);
  }
  // Each answer is a step of its own, after all effects of this one.
  for (auto& [name, node] : nodes_) {
    while (!node.held && !node.orders.empty()) {
      GroupEffect order = node.orders.front();
      node.orders.erase(node.orders.begin());
      Deliver(node, order);
    }
  }
}

void SchedulerWorld::Deliver(Node& node, const GroupEffect& order) {
  const NodeView* seen = view_.Find(node.id);
  if (seen == nullptr || !seen->alive) return;
  if (auto* prepare = std::get_if<SendPrepare>(&order)) {
    absl::Status status;
    for (const BundleReservation& bundle : prepare->bundles) {
      if (status.ok()) status = node.ledger.PrepareBundle({prepare->group, bundle.index}, bundle.resources);
    }
    for (const BundleReservation& bundle : prepare->bundles) {
      if (status.ok() && prepare->commit) status = node.ledger.CommitBundle({prepare->group, bundle.index});
    }
    if (!status.ok()) {
      for (const BundleReservation& bundle : prepare->bundles) node.ledger.ReturnBundle({prepare->group, bundle.index});
    }
    Report(node);
    if (status.ok()) StepGroups(NodePrepared{node.id, prepare->group, prepare->attempt});
    else StepGroups(PrepareFailed{node.id, prepare->group, prepare->attempt, Message(status)});
  } else if (auto* commit = std::get_if<SendCommit>(&order)) {
    absl::Status status;
    for (int bundle : commit->bundles) {
      if (status.ok()) status = node.ledger.CommitBundle({commit->group, bundle});
    }
    if (status.ok()) StepGroups(NodeCommitted{node.id, commit->group, commit->attempt});
    else StepGroups(CommitFailed{node.id, commit->group, commit->attempt, Message(status)});
  } else if (auto* give = std::get_if<SendReturn>(&order)) {
    for (int bundle : give->bundles) {
      for (LeaseId lease : node.ledger.ReturnBundle({give->group, bundle})) {
        for (auto it = tasks_.begin(); it != tasks_.end();) {
          if (it->second.running && it->second.lease == lease) {
            Say(fmt::format("{} dies with its bundle", it->first));
            it = tasks_.erase(it);
          } else {
            ++it;
          }
        }
      }
    }
    Report(node);
  }
}

void SchedulerWorld::Start(const std::string& name, const Demand& demand, NodeId id) {
  Node& node = *NodeById(id);
  std::optional<BundleAffinity> bundle;
  if (auto* affinity = std::get_if<BundleAffinity>(&demand.strategy)) bundle = *affinity;
  std::optional<BundleKey> spent;
  if (bundle) spent = view_.FitBundle(id, *bundle, demand.resources);
  Must(view_.Take(id, demand.resources, spent));
  Task& task = tasks_[name];
  const LeaseId lease = LeaseId::FromNumber(next_id_++);
  absl::StatusOr<Granted> granted = node.ledger.Grant(lease, demand.resources, bundle);
  Report(node);
  if (!granted.ok()) {
    // A stale placement: the node has said what is free, and the head places again.
    Say(fmt::format("{} refused by {}: {}", name, view_.Find(id)->DisplayName(), Message(granted.status())));
    DemandQueue::Request request;
    request.id = next_id_++;
    request.demand = demand;
    Must(queue_.Add(request));
    requests_[request.id] = name;
    task.request = request.id;
    return;
  }
  std::string devices;
  for (int index : granted->gpu_indices()) devices += fmt::format("{}{}", devices.empty() ? " GPU " : ",", index);
  std::string where = granted->bundle ? fmt::format(" bundle {}", granted->bundle->index) : "";
  Say(fmt::format("{} runs on {}{}{}", name, view_.Find(id)->DisplayName(), where, devices));
  task = {lease, view_.Find(id)->DisplayName(), true, 0};
}

void SchedulerWorld::Serve() {
  StepGroups(Tick{});
  queue_.ServeAll([&](const Demand& demand) { return Place(view_, demand, prng_); },
                  [&](const DemandQueue::Served& served) {
                    std::string name = requests_.at(served.id);
                    requests_.erase(served.id);
                    Start(name, served.demand, served.node);
                  });
}

std::string SchedulerWorld::Run(const std::string& line) {
  said_.clear();
  std::istringstream in(line);
  std::string command;
  in >> command;
  auto node_named = [&](const std::string& name) -> Node& {
    auto it = nodes_.find(name);
    if (it == nodes_.end()) Bad("no node " + name);
    return it->second;
  };
  auto demand_of = [&](const Words& words) {
    Demand demand{Must(ResourceSet::FromMap(words.amounts)), Must(LabelSelector::Parse(words.tail)), {}, {}};
    for (const auto& [key, value] : words.options) {
      if (key == "strategy" && value == "SPREAD") demand.strategy = SpreadStrategy{};
      else if (key == "node") demand.strategy = NodeAffinity{node_named(value).id, false};
      else if (key == "softly") demand.strategy = NodeAffinity{node_named(value).id, true};
      else if (key == "group") {
        size_t slash = value.find('/');
        demand.strategy = BundleAffinity{group_ids_.at(value.substr(0, slash)),
                                         slash == std::string::npos ? -1 : std::stoi(value.substr(slash + 1))};
      } else if (key != "job") Bad("option " + key + "=" + value);
    }
    return demand;
  };

  if (command == "add-node") {
    Words words = Read(in);
    const std::string& name = words.plain.at(0);
    const NodeId id = NamedId<NodeId>("abcd", next_id_++);
    ResourceSet total = Must(ResourceSet::FromMap(words.amounts));
    Must(view_.AddNode(id, name, total, Must(ParseLabels(words.tail))));
    nodes_.insert_or_assign(name, Node{id, NodeLedger(total), false, {}});
    Serve();
  } else if (command == "lose-node") {
    std::string name;
    in >> name;
    Node& node = node_named(name);
    Must(view_.MarkLost(node.id, now_));
    for (auto it = tasks_.begin(); it != tasks_.end();) {
      if (it->second.running && it->second.node == name) {
        Say(fmt::format("{} dies with {}", it->first, name));
        it = tasks_.erase(it);
      } else {
        ++it;
      }
    }
    StepGroups(NodeLost{node.id});
    Serve();
  } else if (command == "submit") {
    Words words = Read(in);
    const std::string& name = words.plain.at(0);
    DemandQueue::Request request;
    request.id = next_id_++;
    const std::string job = words.options.contains("job") ? words.options["job"] : "job";
    if (!jobs_.contains(job)) jobs_[job] = JobId::FromNumber(next_id_++);
    request.job = jobs_[job];
    request.demand = demand_of(words);
    request.added_at = now_;
    Demand demand = request.demand;
    Must(queue_.Add(request));
    requests_[request.id] = name;
    tasks_[name] = {LeaseId(), "", false, request.id};
    Serve();
    if (tasks_.contains(name) && !tasks_[name].running)
      Say(fmt::format("{} waits: {}", name, Explain(view_, demand, now_).ToString()));
  } else if (command == "end" || command == "block" || command == "unblock") {
    std::string name;
    in >> name;
    auto it = tasks_.find(name);
    if (it == tasks_.end() || !it->second.running) Bad(name + " does not run");
    Node& node = node_named(it->second.node);
    if (command == "end") {
      node.ledger.Release(it->second.lease);
      tasks_.erase(it);
    } else if (command == "block") {
      node.ledger.ReleaseCpu(it->second.lease);
    } else {
      node.ledger.ReacquireCpu(it->second.lease);
    }
    Report(node);
    Serve();
  } else if (command == "local") {
    Words words = Read(in);
    Node& node = node_named(words.plain.at(0));
    const LeaseId lease = LeaseId::FromNumber(next_id_++);
    absl::StatusOr<Granted> granted = node.ledger.Grant(lease, Must(ResourceSet::FromMap(words.amounts)));
    Say(fmt::format("{} {}", words.plain.at(1),
                    granted.ok() ? "runs on " + words.plain[0] : "refused: " + Message(granted.status())));
    if (granted.ok()) tasks_[words.plain.at(1)] = {lease, words.plain[0], true, 0};
  } else if (command == "report") {
    std::string name;
    in >> name;
    Report(node_named(name));
    Serve();
  } else if (command == "group") {
    std::string name, strategy, rest;
    in >> name >> strategy;
    std::getline(in, rest);
    CreateGroup create{NamedId<GroupId>("dcba", next_id_++), {}};
    group_ids_[name] = create.group;
    std::optional<GroupStrategy> parsed = ParseGroupStrategy(strategy);
    if (!parsed) Bad("strategy " + strategy);
    create.demand.strategy = *parsed;
    std::istringstream parts(rest);
    for (std::string part; std::getline(parts, part, '|');) {
      size_t star = part.find('*');
      int count = star == std::string::npos ? 1 : std::stoi(part);
      std::istringstream bundle(star == std::string::npos ? part : part.substr(star + 1));
      Words words = Read(bundle);
      for (int i = 0; i < count; ++i)
        create.demand.bundles.push_back(
            {Must(ResourceSet::FromMap(words.amounts)), Must(LabelSelector::Parse(words.tail))});
    }
    Must(groups_.CheckCreate(create));
    StepGroups(create);
    Serve();
  } else if (command == "remove-group") {
    std::string name;
    in >> name;
    StepGroups(RemoveGroup{group_ids_.at(name)});
    Serve();
  } else if (command == "explain") {
    Say(Explain(view_, demand_of(Read(in)), now_).ToString());
  } else if (command == "hold") {
    std::string name;
    in >> name;
    node_named(name).held = true;
  } else if (command == "deliver") {
    std::string name;
    in >> name;
    node_named(name).held = false;
    Serve();
    StepGroups(Tick{});
  } else if (command == "after") {
    double seconds = 0;
    in >> seconds;
    now_ += absl::Seconds(seconds);
    Serve();
  } else if (command == "show") {
    for (const NodeView* node : view_.Nodes()) {
      std::string bundles;
      for (const auto& [key, bundle] : node->bundles) {
        bundles += fmt::format("; {}/{}: {} free of {}", key.group.Short(), key.index, bundle.available.ToString(),
                               bundle.total.ToString());
      }
      Say(fmt::format("{}: {}{}{}", node->DisplayName(),
                      node->alive ? node->available.ToString() + " free of " + node->total.ToString() : "lost", bundles,
                      node->contended ? "; contended" : ""));
    }
  } else {
    Bad("unknown command " + command);
  }
  return std::exchange(said_, {});
}

}  // namespace argosy::scenario
