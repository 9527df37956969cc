// The scheduler alone, in one thread, on simulated nodes:
//
//   build/release/bench/scheduler_bench [--only PATTERN] [--seconds S] [--json FILE]
//
// A decision is Place with ClusterView::Take; the node is given back later, and that counts into the rate too. The same seed gives the same
// decisions: the digest of a run says whether two versions agree. Rates are by the thread's own time; p50, p99 and max are by the clock, so max has
// what else ran on the machine in it.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/scheduler/world.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "runtime/head/actor_machine.h"
#include "runtime/head/demand_record.h"
#include "runtime/head/placement.h"
#include "scheduler/explain.h"
#include "scheduler/group_machine.h"
#include "scheduler/place.h"

namespace {

using argosy::GroupId;
using argosy::JobId;
using argosy::NodeId;
using argosy::Prng;
using argosy::ResourceSet;
using argosy::scheduler::ClusterView;
using argosy::scheduler::Demand;
using Steady = std::chrono::steady_clock;

constexpr size_t kShapes = 100;
constexpr size_t kSizes[] = {10, 100, 1'000, 10'000};

double Since(Steady::time_point begin) { return std::chrono::duration<double>(Steady::now() - begin).count(); }

// Seconds that this thread has run: rates are by these, so that other work on the machine does not count.
double Worked() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
};

class Table {
 public:
  explicit Table(const std::string& only) : only_(only), pattern_(only) {}
  bool Wants(const std::string& name) const { return only_.empty() || std::regex_search(name, pattern_); }
  void Add(const std::string& name, double value, const std::string& unit) {
    std::printf("%-58s %14.6g %s\n", name.c_str(), value, unit.c_str());
    std::fflush(stdout);
    rows_.push_back({name, value, unit});
  }
  void WriteJson(const std::string& path) const {
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : rows_) rows.push_back({{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
    std::ofstream(path) << rows.dump(2) << "\n";
  }

 private:
  std::string only_;
  std::regex pattern_;
  std::vector<Row> rows_;
};

// Places demands in a cluster and remembers them, oldest first.
class Churn {
 public:
  Churn(size_t nodes, size_t shapes) : view_(argosy::bench::MakeCluster(nodes, 1)), demands_(argosy::bench::MakeDemands(shapes, 2)), prng_(3) {
    cpus_ = view_.Total().Get(argosy::kCpu).ToDouble();
  }

  // One decision for a shape at random. What Place alone took is noted.
  bool Place() {
    const Demand& demand = demands_[prng_.Below(demands_.size())];
    const auto begin = Steady::now();
    const std::optional<NodeId> node = argosy::scheduler::Place(view_, demand, prng_);
    nanoseconds_.push_back(static_cast<float>(std::chrono::duration<double, std::nano>(Steady::now() - begin).count()));
    digest_ = digest_ * 1'099'511'628'211u + (node ? node->Hash() : 0);
    if (!node) return false;
    (void)view_.Take(*node, demand.resources);   // Place chose a node of the view
    used_ += demand.resources.Get(argosy::kCpu).ToDouble();
    running_.push_back({*node, &demand});
    return true;
  }
  void GiveOldest() {
    const auto& [node, demand] = running_.front();
    (void)view_.Give(node, demand->resources);
    used_ -= demand->resources.Get(argosy::kCpu).ToDouble();
    running_.pop_front();
  }
  double used() const { return used_ / cpus_; }
  bool idle() const { return running_.empty(); }
  ClusterView& view() { return view_; }
  const std::vector<Demand>& demands() const { return demands_; }
  uint64_t digest() const { return digest_; }

  // Decisions until `seconds` have passed, or `done` says so; what they took is reported under `name`.
  void Measure(Table& table, const std::string& name, double seconds, const std::function<bool()>& step) {
    nanoseconds_.clear();
    const auto begin = Steady::now();
    const double before = Worked();
    bool more = true;
    while (more && Since(begin) < seconds) {
      for (int i = 0; i < 64 && more; ++i) more = step();
    }
    const double took = Worked() - before;
    std::sort(nanoseconds_.begin(), nanoseconds_.end());
    auto quantile = [&](double q) { return nanoseconds_[static_cast<size_t>(q * static_cast<double>(nanoseconds_.size() - 1))] / 1e3; };
    table.Add(name, static_cast<double>(nanoseconds_.size()) / took, "/s");
    table.Add(name + " p50", quantile(0.5), "us");
    table.Add(name + " p99", quantile(0.99), "us");
    table.Add(name + " max, by the clock", quantile(1), "us");
  }

 private:
  ClusterView view_;
  std::vector<Demand> demands_;
  Prng prng_;
  double cpus_ = 0, used_ = 0;
  std::deque<std::pair<NodeId, const Demand*>> running_;
  std::vector<float> nanoseconds_;
  uint64_t digest_ = 1;
};

// A third of the CPUs, seven tenths, and all that fits: nodes are packed, spread, and searched for the last free places.
void Decisions(Table& table, double seconds) {
  for (size_t nodes : kSizes) {
    const std::string name = fmt::format("decisions, {} nodes", nodes);
    if (!table.Wants(name)) continue;
    Churn churn(nodes, kShapes);
    auto steady_at = [&](double share) {
      return [&churn, share] {
        while (churn.used() > share && !churn.idle()) churn.GiveOldest();
        churn.Place();
        return true;
      };
    };
    churn.Measure(table, name + ", from empty", 20 * seconds, [&] {
      churn.Place();
      return churn.used() < 0.33;
    });
    churn.Measure(table, name + ", a third used", seconds, steady_at(0.33));
    for (const auto begin = Steady::now(); churn.used() < 0.7 && Since(begin) < 20 * seconds;) churn.Place();
    churn.Measure(table, name + ", 70% used", seconds, steady_at(0.7));
    // Until nothing has found a place for a while.
    int refused = 0;
    for (const auto begin = Steady::now(); refused < 1000 && Since(begin) < 20 * seconds;) refused = churn.Place() ? 0 : refused + 1;
    churn.Measure(table, name + ", full", seconds, [&] {
      if (!churn.Place()) churn.GiveOldest();
      return true;
    });
  }
}

// Demands that no index knows: each has an amount of its own.
void UnlikeDemands(Table& table, double seconds) {
  for (size_t nodes : kSizes) {
    const std::string name = fmt::format("decisions of 10,000 shapes, {} nodes", nodes);
    if (!table.Wants(name)) continue;
    Churn churn(nodes, 10'000);
    churn.Measure(table, name, seconds, [&] {
      while (churn.used() > 0.7 && !churn.idle()) churn.GiveOldest();
      churn.Place();
      return true;
    });
  }
}

void SameSeedSameDecisions(Table& table) {
  if (!table.Wants("digest")) return;
  uint64_t digests[2];
  for (uint64_t& digest : digests) {
    Churn churn(1'000, kShapes);
    for (int i = 0; i < 20'000; ++i) {
      while (churn.used() > 0.7 && !churn.idle()) churn.GiveOldest();
      churn.Place();
    }
    digest = churn.digest();
  }
  ARGOSY_CHECK(digests[0] == digests[1], "two runs from one seed differ: {:x} and {:x}", digests[0], digests[1]);
  std::printf("digest of 20,000 decisions on 1,000 nodes: %016llx\n", static_cast<unsigned long long>(digests[0]));
}

// As the head does it: what waits, by shape and job, is served in turns.
void HeadPlacement(Table& table, double seconds) {
  for (size_t nodes : kSizes) {
    const std::string name = fmt::format("head placement, {} nodes, 4 jobs", nodes);
    if (!table.Wants(name)) continue;
    ClusterView view = argosy::bench::MakeCluster(nodes, 1);
    const std::vector<Demand> demands = argosy::bench::MakeDemands(kShapes, 2);
    const double cpus = view.Total().Get(argosy::kCpu).ToDouble();
    argosy::head::Placement placement;
    Prng prng(3);
    std::deque<argosy::head::Placement::Placed> running;
    double used = 0;
    uint64_t key = 0, placed = 0;
    double worst_pass = 0;
    const auto begin = Steady::now();
    const double before = Worked();
    while (Since(begin) < seconds) {
      for (int i = 0; i < 100 && placement.size() < 1'000; ++i, ++key) {
        argosy::head::WaitEntry entry{argosy::head::WaitKind::kLease, std::to_string(key), "tasks", JobId::FromNumber(key % 4),
                                      demands[prng.Below(demands.size())]};
        (void)placement.Add(std::move(entry), absl::UnixEpoch());   // a key is new, and so few fit the queue
      }
      const double pass = Worked();
      for (argosy::head::Placement::Placed& one : placement.Serve(view, prng, absl::UnixEpoch())) {
        used += one.entry.demand.resources.Get(argosy::kCpu).ToDouble();
        running.push_back(std::move(one));
        ++placed;
      }
      worst_pass = std::max(worst_pass, Worked() - pass);
      while (used > 0.7 * cpus || (placement.size() >= 1'000 && !running.empty())) {
        const argosy::head::Placement::Placed& one = running.front();
        (void)view.Give(one.node, one.entry.demand.resources, one.bundle);
        used -= one.entry.demand.resources.Get(argosy::kCpu).ToDouble();
        running.pop_front();
        if (running.empty() || used < 0.5 * cpus) break;
      }
    }
    table.Add(name, static_cast<double>(placed) / (Worked() - before), "/s");
    table.Add(name + ", worst pass", worst_pass * 1e3, "ms");
  }
}

void Explaining(Table& table, double seconds) {
  const std::string name = "explanations, 10000 nodes";
  if (!table.Wants(name)) return;
  ClusterView view = argosy::bench::MakeCluster(10'000, 1);
  const std::vector<Demand> demands = argosy::bench::MakeDemands(kShapes, 2);
  size_t count = 0, length = 0;
  const auto begin = Steady::now();
  const double before = Worked();
  for (; Since(begin) < seconds; ++count) length += argosy::scheduler::Explain(view, demands[count % kShapes]).ToString().size();
  ARGOSY_CHECK(length > 0, "nothing was said");
  table.Add(name, static_cast<double>(count) / (Worked() - before), "/s");
}

void Memory(Table& table) {
  if (!table.Wants("bytes per node")) return;
  const int64_t before = argosy::bench::HeapBytes();
  ClusterView view = argosy::bench::MakeCluster(10'000, 1);
  table.Add("bytes per node, of 10000", static_cast<double>(argosy::bench::HeapBytes() - before) / 10'000, "B");
  Prng prng(3);
  for (int round = 0; round < 20; ++round) {
    for (const Demand& demand : argosy::bench::MakeDemands(kShapes, 2)) (void)argosy::scheduler::Place(view, demand, prng);
  }
  table.Add("bytes per node, after 100 shapes", static_cast<double>(argosy::bench::HeapBytes() - before) / 10'000, "B");
}

// 100,000 actors, from ActorCreated to ActorStarted.
void Actors(Table& table, size_t nodes, size_t count) {
  const std::string name = fmt::format("{} actors on {} nodes", count, nodes);
  if (!table.Wants(name)) return;
  namespace head = argosy::head;
  ClusterView view = argosy::bench::MakeCluster(nodes, 1);
  head::ActorMachine actors({.actors_max = count});
  head::Placement placement;
  Prng prng(3);
  Demand demand;
  demand.resources = *ResourceSet::FromMap({{"CPU", 1}});
  const head::DemandRecord record = head::ToRecord(demand);
  const int64_t before = argosy::bench::HeapBytes();
  size_t started = 0;
  const double start = Worked();
  auto run = [&](const std::vector<head::ActorEffect>& effects) {
    for (const head::ActorEffect& effect : effects) {
      if (const auto* want = std::get_if<head::WantActorNode>(&effect)) {
        const head::ActorRecord* actor = actors.Find(want->actor);
        (void)placement.Add({head::WaitKind::kActor, std::string(want->actor.Bytes()), "actor", actor->job, *head::FromRecord(actor->placement)},
                            absl::UnixEpoch());
      }
    }
  };
  for (size_t created = 0; created < count;) {
    for (int i = 0; i < 100 && created < count; ++i, ++created) {
      head::ActorRecord actor;
      actor.id = argosy::ActorId::FromNumber(created + 1);
      actor.job = JobId::FromNumber(created % 4);
      actor.class_name = "Worker";
      actor.placement = record;
      actor.spec = std::string(200, 'x');
      run(actors.Step(head::ActorCreated{std::move(actor)}));
    }
    for (head::Placement::Placed& one : placement.Serve(view, prng, absl::UnixEpoch())) {
      const argosy::ActorId id = *argosy::ActorId::FromBytes(one.entry.key);
      // It runs with no CPU of its own, as the default is; so all find a place.
      run(actors.Step(head::ActorPlaced{id, one.node, one.bundle, one.entry.demand.resources, {}}));
      run(actors.Step(head::ActorStarted{id, 1, {{}, one.node, "", ""}}));
      (void)view.Give(one.node, one.entry.demand.resources, one.bundle);
      ++started;
    }
  }
  const double took = Worked() - start;
  ARGOSY_CHECK(started == count, "{} of {} actors started", started, count);
  table.Add(name, static_cast<double>(count) / took, "/s");
  table.Add("bytes per actor", static_cast<double>(argosy::bench::HeapBytes() - before) / static_cast<double>(count), "B");
}

// Groups whose nodes agree to everything at once; the machine's own work is what is left.
class Groups {
 public:
  explicit Groups(size_t nodes) : view_(argosy::bench::MakeCluster(nodes, 1)) {}

  // Seconds from creating the group until it is ready (or waits).
  double Create(size_t number, argosy::scheduler::GroupDemand demand) {
    const double before = Worked();
    Step(argosy::scheduler::CreateGroup{GroupId::FromNumber(number), std::move(demand)});
    return Worked() - before;
  }
  void Remove(size_t number) { Step(argosy::scheduler::RemoveGroup{GroupId::FromNumber(number)}); }
  size_t ready() const { return ready_; }
  ClusterView& view() { return view_; }

 private:
  void Step(const argosy::scheduler::GroupEvent& event) {
    std::deque<argosy::scheduler::GroupEvent> events{event};
    while (!events.empty()) {
      for (const argosy::scheduler::GroupEffect& effect : machine_.Step(events.front(), view_, prng_, absl::UnixEpoch())) {
        if (const auto* prepare = std::get_if<argosy::scheduler::SendPrepare>(&effect))
          events.push_back(argosy::scheduler::NodePrepared{prepare->node, prepare->group, prepare->attempt});
        else if (const auto* commit = std::get_if<argosy::scheduler::SendCommit>(&effect))
          events.push_back(argosy::scheduler::NodeCommitted{commit->node, commit->group, commit->attempt});
        else if (std::holds_alternative<argosy::scheduler::GroupReady>(effect)) ++ready_;
      }
      events.pop_front();
    }
  }

  ClusterView view_;
  argosy::scheduler::GroupMachine machine_;
  Prng prng_{3};
  size_t ready_ = 0;
};

void ManyGroups(Table& table, size_t nodes, size_t count, size_t bundles, double seconds) {
  using argosy::scheduler::GroupStrategy;
  for (GroupStrategy strategy : {GroupStrategy::kPack, GroupStrategy::kSpread, GroupStrategy::kStrictPack, GroupStrategy::kStrictSpread}) {
    const std::string name = fmt::format("{} groups of {} bundles, {} nodes, {}", count, bundles, nodes, argosy::scheduler::ToString(strategy));
    if (!table.Wants(name)) continue;
    Groups groups(nodes);
    const int64_t before = argosy::bench::HeapBytes();
    double worst = 0;
    size_t created = 0;
    const auto begin = Steady::now();
    const double start = Worked();
    while (created < count && Since(begin) < seconds) {
      ++created;
      worst = std::max(worst, groups.Create(created, argosy::bench::MakeGroup(created, strategy, bundles)));
    }
    const double took = Worked() - start;
    if (created < count) std::printf("stopped after %zu of %zu groups\n", created, count);
    table.Add(name, static_cast<double>(created) / took, "/s");
    table.Add(name + ", worst", worst * 1e3, "ms");
    table.Add(name + ", ready", static_cast<double>(groups.ready()), "groups");
    table.Add(name + ", bytes per group", static_cast<double>(argosy::bench::HeapBytes() - before) / static_cast<double>(created), "B");
  }
  const std::string name = fmt::format("small group made and removed, {} nodes", nodes);
  if (!table.Wants(name)) return;
  Groups groups(nodes);
  size_t made = 0;
  const auto begin = Steady::now();
  const double start = Worked();
  for (; Since(begin) < std::min(seconds, 0.5); ++made) {
    groups.Create(made + 1, argosy::bench::MakeGroup(1, GroupStrategy::kPack, 1));
    groups.Remove(made + 1);
  }
  table.Add(name, static_cast<double>(made) / (Worked() - start), "/s");
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json;
  double seconds = 0.5;
  CLI::App app("The scheduler alone, on simulated nodes");
  app.add_option("--only", only, "Run what this regular expression finds");
  app.add_option("--seconds", seconds, "For each row")->check(CLI::PositiveNumber);
  app.add_option("--json", json, "Write the rows {name, value, unit} to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    std::regex check(only);
  } catch (const std::regex_error& error) {
    std::fprintf(stderr, "--only %s: %s\n", only.c_str(), error.what());
    return 2;
  }
  Table table(only);
  Decisions(table, seconds);
  UnlikeDemands(table, seconds);
  SameSeedSameDecisions(table);
  HeadPlacement(table, seconds);
  Explaining(table, seconds);
  Memory(table);
  Actors(table, 10'000, 100'000);
  ManyGroups(table, 10'000, 1'000, 100, 40 * seconds);
  if (!json.empty()) table.WriteJson(json);
  return 0;
}
