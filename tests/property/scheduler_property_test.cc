// Random operations against naive oracles. Every case prints its seed; the seeds are fixed.

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <variant>

#include "scheduler/demand_queue.h"
#include "scheduler/explain.h"
#include "scheduler/filter.h"
#include "scheduler/group_machine.h"
#include "scheduler/ledger.h"
#include "scheduler/node_index.h"
#include "scheduler/place.h"
#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

namespace {

ResourceSet RandomResources(Prng& prng, bool may_be_empty) {
  static const std::vector<std::map<std::string, double>> kKinds = {{{"CPU", 1}},
                                                                    {{"CPU", 2}},
                                                                    {{"CPU", 0.5}},
                                                                    {{"GPU", 1}},
                                                                    {{"GPU", 0.5}},
                                                                    {{"GPU", 2}},
                                                                    {{"CPU", 1}, {"GPU", 1}},
                                                                    {{"memory", 100}},
                                                                    {{"CPU", 1}, {"memory", 300}},
                                                                    {{"large_cpu_mem", 0.01}},
                                                                    {{"CPU", 1}, {"large_cpu_mem", 1}},
                                                                    {{"CPU", 16}},
                                                                    {{"TPU", 1}},
                                                                    {}};
  return Res(kKinds[prng.Below(kKinds.size() - !may_be_empty)]);
}

ResourceSet RandomNode(Prng& prng) {
  std::map<std::string, double> total = {{"CPU", static_cast<double>(prng.Below(9))}};
  if (prng.Below(3) == 0) total["GPU"] = static_cast<double>(1 + prng.Below(3));
  if (prng.Below(2) == 0) total["memory"] = 1000;
  if (prng.Below(4) == 0) total["large_cpu_mem"] = 1;
  return Res(total);
}

Labels RandomLabels(Prng& prng) {
  Labels labels;
  if (prng.Below(3) != 0) labels["zone"] = std::string(1, static_cast<char>('a' + prng.Below(3)));
  if (prng.Below(3) == 0) labels["accelerator-type"] = prng.Below(2) == 0 ? "H100" : "A100";
  return labels;
}

LabelSelector RandomSelector(Prng& prng) {
  static const char* kTexts[] = {"",
                                 "",
                                 "",
                                 "zone=a",
                                 "zone!=a",
                                 "zone in (a,b)",
                                 "zone not in (a,b)",
                                 "zone exists",
                                 "zone=a,accelerator-type exists",
                                 "rack=1"};
  return Select(kTexts[prng.Below(std::size(kTexts))]);
}

// What NodeLedger promises, by the shortest code: who holds what, summed anew each time.
struct LedgerOracle {
  struct Lease {
    ResourceSet resources;
    std::vector<DeviceShare> devices;
    std::optional<BundleKey> bundle;
    bool cpu_released = false;
  };
  struct Bundle {
    ResourceSet total;
    bool committed = false;
  };
  std::map<LeaseId, Lease> leases;
  std::map<BundleKey, Bundle> bundles;

  // What leases of `bundle` (none: outside bundles) and bundles hold.
  std::map<std::string, int64_t> Used(std::optional<BundleKey> bundle) const {
    std::map<std::string, int64_t> used;
    for (const auto& [id, lease] : leases) {
      if (lease.bundle != bundle) continue;
      for (const auto& [name, amount] : lease.resources.amounts()) {
        if (name != kCpu || !lease.cpu_released) used[name] += amount.raw();
      }
    }
    if (!bundle) {
      for (const auto& [key, held] : bundles) {
        for (const auto& [name, amount] : held.total.amounts()) used[name] += amount.raw();
      }
    }
    return used;
  }
  bool Fits(const ResourceSet& total, std::optional<BundleKey> bundle, const ResourceSet& wanted) const {
    auto used = Used(bundle);
    return std::all_of(wanted.amounts().begin(), wanted.amounts().end(), [&](const auto& entry) {
      return total.Get(entry.first).raw() - used[entry.first] >= entry.second.raw();
    });
  }
};

}  // namespace

TEST_CASE("NodeLedger agrees with a naive oracle under random operations and spends nothing twice") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    const ResourceSet total = Res({{"CPU", 4}, {"GPU", 3}, {"memory", 1000}, {"large_cpu_mem", 1}});
    NodeLedger ledger(total);
    LedgerOracle oracle;
    for (int step = 0; step < 200; ++step) {
      const LeaseId lease = L(1 + prng.Below(12));
      const BundleKey key{G(1 + prng.Below(2)), static_cast<int>(prng.Below(3))};
      const ResourceSet wanted = RandomResources(prng, true);
      switch (prng.Below(8)) {
        case 0:
        case 1:
        case 2: {
          std::optional<BundleAffinity> affinity;
          if (prng.Below(3) == 0) affinity = BundleAffinity{key.group, prng.Below(2) == 0 ? -1 : key.index};
          const bool held_before = oracle.leases.contains(lease);
          absl::StatusOr<Granted> granted = ledger.Grant(lease, wanted, affinity);
          if (held_before) {
            if (granted.ok()) REQUIRE(granted->resources == oracle.leases[lease].resources);
            break;
          }
          bool fits = false;
          if (!affinity) {
            fits = oracle.Fits(total, std::nullopt, wanted);
          } else {
            for (const auto& [k, bundle] : oracle.bundles) {
              if (k.group != affinity->group || (affinity->bundle_index >= 0 && k.index != affinity->bundle_index))
                continue;
              fits |= bundle.committed && oracle.Fits(bundle.total, k, wanted);
            }
          }
          if (granted.ok()) {
            REQUIRE(fits);
            REQUIRE(granted->bundle.has_value() == affinity.has_value());
            Amount gpu;
            for (const DeviceShare& share : granted->devices) gpu += share.amount;
            REQUIRE(gpu == wanted.Get(kGpu));
            oracle.leases[lease] = {wanted, granted->devices, granted->bundle, false};
          } else {
            // It may be stricter than the sums only where a GPU share does not fit one device.
            REQUIRE((!fits || !wanted.Get(kGpu).IsZero()));
            if (fits) REQUIRE(absl::IsUnavailable(granted.status()));
          }
          break;
        }
        case 3: REQUIRE(ledger.Release(lease) == (oracle.leases.erase(lease) == 1)); break;
        case 4: {
          auto it = oracle.leases.find(lease);
          REQUIRE(ledger.ReleaseCpu(lease) == (it != oracle.leases.end()));
          if (it != oracle.leases.end()) it->second.cpu_released = true;
          break;
        }
        case 5: {
          auto it = oracle.leases.find(lease);
          REQUIRE(ledger.ReacquireCpu(lease) == (it != oracle.leases.end()));
          if (it != oracle.leases.end()) it->second.cpu_released = false;
          break;
        }
        case 6: {
          const bool known = oracle.bundles.contains(key);
          const bool same = known && oracle.bundles[key].total == wanted;
          const bool fits = oracle.Fits(total, std::nullopt, wanted);
          absl::Status prepared = ledger.PrepareBundle(key, wanted);
          if (known) REQUIRE(prepared.ok() == same);
          else if (prepared.ok()) REQUIRE(fits);
          else REQUIRE((!fits || !wanted.Get(kGpu).IsZero()));
          if (prepared.ok() && !known) oracle.bundles[key] = {wanted, false};
          if (prng.Below(4) != 0) {
            REQUIRE(ledger.CommitBundle(key).ok() == oracle.bundles.contains(key));
            if (oracle.bundles.contains(key)) oracle.bundles[key].committed = true;
          }
          break;
        }
        case 7: {
          std::vector<LeaseId> dead;
          for (const auto& [id, held] : oracle.leases) {
            if (held.bundle == key) dead.push_back(id);
          }
          if (prng.Below(2) == 0) break;
          REQUIRE(ledger.ReturnBundle(key) == dead);
          for (LeaseId id : dead) oracle.leases.erase(id);
          oracle.bundles.erase(key);
          break;
        }
      }
      // The amounts agree everywhere, and no device is shared out beyond what it is.
      auto check = [&](const ResourceSet& all, const ResourceSet& available, std::optional<BundleKey> bundle) {
        auto used = oracle.Used(bundle);
        for (const auto& [name, amount] : all.amounts()) {
          REQUIRE(available.Get(name).raw() == std::max<int64_t>(0, amount.raw() - used[name]));
          if (name != kCpu) REQUIRE(used[name] <= amount.raw());
        }
      };
      check(total, ledger.Available(), std::nullopt);
      REQUIRE(ledger.Bundles().size() == oracle.bundles.size());
      for (const auto& [k, bundle] : ledger.Bundles()) {
        REQUIRE(bundle.committed == oracle.bundles.at(k).committed);
        check(bundle.total, bundle.available, k);
      }
      std::map<int, int64_t> devices;
      for (const auto& [id, held] : oracle.leases) {
        for (const DeviceShare& share : held.devices) devices[share.device] += share.amount.raw();
      }
      for (const auto& [device, used] : devices) {
        REQUIRE(device < 3);
        REQUIRE(used <= Amount::kUnit);
      }
      REQUIRE(ledger.Leases().size() == oracle.leases.size());
    }
    for (LeaseId lease : ledger.Leases()) ledger.Release(lease);
    for (const auto& [key, bundle] : ledger.Bundles()) ledger.ReturnBundle(key);
    REQUIRE(ledger.Available() == total);
  }
}

TEST_CASE("Place finds a node exactly when a look at every node, and Explain, find one") {
  size_t by_column = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    // By lists, bounds and columns: shapes that come again get a column, sometimes at once, sometimes one that another had.
    const bool come_again = seed % 2 == 0;
    ClusterViewOptions options;
    options.columns_max = seed % 6 == 0 ? 1 : 256;
    options.column_after = seed % 4 == 0 ? 1 : 3;
    options.few_without_column = seed % 3 == 0 ? 8 : 0;
    ClusterView view(options);
    uint64_t next_node = 1;
    const size_t nodes = 1 + prng.Below(seed % 4 == 0 ? 150 : 12);   // beyond the short lists too
    std::vector<std::pair<ResourceSet, LabelSelector>> kinds;
    for (int i = 0; i < 8; ++i) kinds.push_back({RandomResources(prng, true), RandomSelector(prng)});
    for (size_t i = 0; i < nodes; ++i, ++next_node)
      REQUIRE(view.AddNode(N(next_node), "", RandomNode(prng), RandomLabels(prng)).ok());
    for (int step = 0; step < 120; ++step) {
      const NodeId some = N(1 + prng.Below(next_node - 1));
      switch (prng.Below(12)) {
        case 0: std::ignore = view.MarkLost(some, At(step)); break;
        case 1: std::ignore = view.RemoveNode(some); break;
        case 2: std::ignore = view.SetDraining(some, prng.Below(2) == 0); break;
        case 3: std::ignore = view.SetGathered(some, prng.Below(2) == 0 ? G(9) : GroupId()); break;
        case 4: std::ignore = view.UpdateLabels(some, RandomLabels(prng)); break;
        case 5: REQUIRE(view.AddNode(N(next_node++), "", RandomNode(prng), RandomLabels(prng)).ok()); break;
        case 6:
          std::ignore = view.SetBundle(some, {G(1 + prng.Below(2)), static_cast<int>(prng.Below(4))},
                                       RandomResources(prng, false));
          break;
        case 7: std::ignore = view.RemoveBundle(some, {G(1 + prng.Below(2)), static_cast<int>(prng.Below(4))}); break;
        case 8: {
          if (const NodeView* node = view.Find(some)) std::ignore = view.UpdateAvailable(some, node->total);
          break;
        }
        default: break;
      }
      Demand demand{RandomResources(prng, true), RandomSelector(prng), {}, {}};
      if (come_again) std::tie(demand.resources, demand.labels) = kinds[prng.Below(kinds.size())];
      switch (prng.Below(7)) {
        case 0: demand.strategy = SpreadStrategy{}; break;
        case 1: demand.strategy = NodeAffinity{N(1 + prng.Below(next_node)), false}; break;
        case 2: demand.strategy = NodeAffinity{N(1 + prng.Below(next_node)), true}; break;
        case 3: demand.strategy = BundleAffinity{G(1 + prng.Below(2)), static_cast<int>(prng.Below(4)) - 1}; break;
        case 4: demand.locality = {{some, 1'000'000}, {N(1), 500'000}}; break;
        default: break;
      }
      std::optional<NodeId> placed = Place(view, demand, prng);
      const Explanation explanation = Explain(view, demand, At(step));
      INFO("step " << step << ": " << explanation.ToString());
      REQUIRE(placed.has_value() == !explanation.usable.empty());

      // The oracle looks at every node by itself.
      auto fits = [&](const NodeView& node, bool now) {
        if (!node.alive || node.draining || !demand.labels.Matches(node.labels)) return false;
        if (auto* bundle = std::get_if<BundleAffinity>(&demand.strategy)) {
          return std::any_of(node.bundles.begin(), node.bundles.end(), [&](const auto& entry) {
            if (entry.first.group != bundle->group ||
                (bundle->bundle_index >= 0 && entry.first.index != bundle->bundle_index))
              return false;
            return (now ? entry.second.available : entry.second.total).Contains(demand.resources);
          });
        }
        if (now && !node.gathered_for.IsNil()) return false;
        return node.total.Contains(demand.resources) && (!now || node.available.Contains(demand.resources));
      };
      std::set<NodeId> able, able_when_idle;
      for (const NodeView* node : view.Nodes()) {
        if (fits(*node, true)) able.insert(node->id);
        if (fits(*node, false)) able_when_idle.insert(node->id);
      }
      if (auto* affinity = std::get_if<NodeAffinity>(&demand.strategy);
          affinity != nullptr && (!affinity->soft || able_when_idle.contains(affinity->node))) {
        for (std::set<NodeId>* set : {&able, &able_when_idle})
          std::erase_if(*set, [&](NodeId id) { return id != affinity->node; });
      }
      REQUIRE(std::set<NodeId>(explanation.usable.begin(), explanation.usable.end()) == able);
      REQUIRE(explanation.feasible == !able_when_idle.empty());
      size_t counted = explanation.usable.size();
      for (const Explanation::Reason& reason : explanation.reasons) counted += reason.nodes.size();
      REQUIRE(counted == view.size());
      if (!placed) continue;
      REQUIRE(able.contains(*placed));

      // Score: GPU nodes only when no other is able, and SPREAD takes the one that was used longest ago.
      const NodeView& node = *view.Find(*placed);
      const bool plain = std::holds_alternative<DefaultStrategy>(demand.strategy) ||
                         std::holds_alternative<SpreadStrategy>(demand.strategy);
      if (plain && demand.locality.empty() && demand.resources.Get(kGpu).IsZero()) {
        const bool others =
            std::any_of(able.begin(), able.end(), [&](NodeId id) { return view.Find(id)->total.Get(kGpu).IsZero(); });
        REQUIRE(node.total.Get(kGpu).IsZero() == others);
      }
      if (plain && demand.locality.empty()) {
        for (NodeId id : able) {
          const NodeView& other = *view.Find(id);
          if (other.total.Get(kGpu).IsZero() != node.total.Get(kGpu).IsZero()) continue;
          if (std::holds_alternative<SpreadStrategy>(demand.strategy)) {
            REQUIRE(node.last_taken <= other.last_taken);
          } else if (node.Utilization() >= 5000) {
            REQUIRE(node.Utilization() <= other.Utilization());
          } else {
            REQUIRE((other.Utilization() >= 5000 || node.order <= other.order));
          }
        }
      }
      if (!std::holds_alternative<BundleAffinity>(demand.strategy)) {
        REQUIRE(view.Take(*placed, demand.resources).ok());
      } else {
        auto bundle = view.FitBundle(*placed, std::get<BundleAffinity>(demand.strategy), demand.resources);
        REQUIRE(bundle.has_value());
        REQUIRE(view.Take(*placed, demand.resources, bundle).ok());
      }
    }
    by_column += view.index().column_count();
  }
  CHECK(by_column > 200);
}

TEST_CASE("Place takes the same nodes from the same seed, and as good ones by columns as by a search") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    // One view has a column for every shape, one learns them as they come, one has none.
    std::vector<ClusterView> views;
    for (uint32_t column_after : {1u, 1u, 3u, std::numeric_limits<uint32_t>::max()}) {
      ClusterViewOptions options;
      options.column_after = column_after;
      options.few_without_column = 0;
      views.emplace_back(options);
    }
    Prng prng(seed), first(seed), second(seed), other(seed);
    for (uint64_t i = 1; i <= 200; ++i) {
      const ResourceSet total = RandomNode(prng);
      const Labels labels = RandomLabels(prng);
      for (ClusterView& view : views) REQUIRE(view.AddNode(N(i), "", total, labels).ok());
    }
    std::vector<std::pair<NodeId, ResourceSet>> taken;
    for (int step = 0; step < 400; ++step) {
      Demand demand{RandomResources(prng, true), RandomSelector(prng), {}, {}};
      if (prng.Below(4) == 0) demand.strategy = SpreadStrategy{};
      const std::optional<NodeId> node = Place(views[0], demand, first);
      REQUIRE(Place(views[1], demand, second) == node);
      for (size_t v : {2, 3}) {
        // Ties may fall otherwise; what decides is equal.
        const std::optional<NodeId> another = Place(views[v], demand, other);
        REQUIRE(another.has_value() == node.has_value());
        if (!node) continue;
        const NodeView &a = *views[0].Find(*node), &b = *views[v].Find(*another);
        REQUIRE(a.total.Get(kGpu).IsZero() == b.total.Get(kGpu).IsZero());
        if (std::holds_alternative<SpreadStrategy>(demand.strategy)) REQUIRE(a.last_taken == b.last_taken);
        else if (a.Utilization() < 5000) REQUIRE(*node == *another);
        else REQUIRE(a.Utilization() == b.Utilization());
      }
      if (!node) continue;
      for (ClusterView& view : views) REQUIRE(view.Take(*node, demand.resources).ok());
      taken.emplace_back(*node, demand.resources);
      if (prng.Below(3) != 0) continue;
      const size_t at = prng.Below(taken.size());
      for (ClusterView& view : views) REQUIRE(view.Give(taken[at].first, taken[at].second).ok());
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(at));
    }
    REQUIRE(views[0].index().column_count() > 50);
    REQUIRE(views[3].index().column_count() == 0);
  }
}

TEST_CASE("PlaceGroup finds a placement exactly when trying every assignment does, and ExplainGroup agrees") {
  int found = 0, not_found = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    ClusterView view;
    const size_t nodes = 1 + prng.Below(4);
    for (size_t i = 1; i <= nodes; ++i) {
      REQUIRE(view.AddNode(N(i), "", RandomNode(prng), RandomLabels(prng)).ok());
      if (prng.Below(3) == 0) std::ignore = view.Take(N(i), Res({{"CPU", 1}}));
    }
    GroupDemand demand;
    demand.strategy = static_cast<GroupStrategy>(prng.Below(4));
    const size_t bundles = 1 + prng.Below(4);
    for (size_t i = 0; i < bundles; ++i) {
      demand.bundles.push_back(
          {RandomResources(prng, false), prng.Below(4) == 0 ? RandomSelector(prng) : LabelSelector()});
    }
    std::vector<NodeId> choice(bundles);
    auto valid = [&] {
      std::map<NodeId, ResourceSet> wanted;
      for (size_t i = 0; i < bundles; ++i) {
        if (!demand.bundles[i].labels.Matches(view.Find(choice[i])->labels)) return false;
        wanted[choice[i]].Add(demand.bundles[i].resources);
      }
      if (demand.strategy == GroupStrategy::kStrictPack && wanted.size() != 1) return false;
      if (demand.strategy == GroupStrategy::kStrictSpread && wanted.size() != bundles) return false;
      return std::all_of(wanted.begin(), wanted.end(),
                         [&](const auto& entry) { return view.Find(entry.first)->available.Contains(entry.second); });
    };
    std::function<bool(size_t)> any = [&](size_t i) {
      if (i == bundles) return valid();
      for (size_t n = 1; n <= nodes; ++n) {
        choice[i] = N(n);
        if (any(i + 1)) return true;
      }
      return false;
    };
    const bool possible = any(0);
    auto placed = PlaceGroup(view, demand, prng);
    GroupExplanation explanation = ExplainGroup(view, demand, prng);
    INFO(explanation.ToString());
    REQUIRE(placed.has_value() == possible);
    REQUIRE(explanation.usable == possible);
    if (possible) REQUIRE(explanation.feasible);
    else REQUIRE(!explanation.ToString().empty());
    if (placed) {
      choice = *placed;
      REQUIRE(valid());
    }
    ++(possible ? found : not_found);
  }
  // Both happen often enough to mean something.
  CHECK(found > 80);
  CHECK(not_found > 80);
}

TEST_CASE("GroupMachine and ledgers: groups are all or nothing, whatever is refused, lost, reordered or removed") {
  size_t ready_seen = 0, rescheduled_seen = 0, refused_seen = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    ClusterView view;
    GroupMachine machine;
    absl::Time now = At(0);
    std::map<NodeId, NodeLedger> ledgers;
    std::map<NodeId, std::vector<GroupEffect>> streams;   // to each node, in order
    std::map<NodeId, std::vector<GroupEvent>> answers;    // from each node, in order
    std::map<GroupId, std::vector<NodeId>> ready;
    std::set<GroupId> removed;
    uint64_t next_node = 1, next_group = 1, next_lease = 1;
    std::map<NodeId, std::vector<LeaseId>> local;

    auto add_node = [&] {
      const NodeId id = N(next_node++);
      const ResourceSet total = Res({{"CPU", static_cast<double>(1 + prng.Below(4))}});
      REQUIRE(view.AddNode(id, "", total, {}).ok());
      ledgers.emplace(id, NodeLedger(total));
    };
    auto step = [&](const GroupEvent& event) {
      for (const GroupEffect& effect : machine.Step(event, view, prng, now)) {
        if (auto* e = std::get_if<SendPrepare>(&effect)) streams[e->node].push_back(effect);
        else if (auto* c = std::get_if<SendCommit>(&effect)) streams[c->node].push_back(effect);
        else if (auto* r = std::get_if<SendReturn>(&effect)) streams[r->node].push_back(effect);
        else if (auto* done = std::get_if<GroupReady>(&effect)) {
          ++ready_seen;
          ready[done->group] = done->nodes;
          // Every bundle is held by its node at the moment the group is ready.
          for (size_t i = 0; i < done->nodes.size(); ++i) {
            REQUIRE(ledgers.contains(done->nodes[i]));
            auto bundle = ledgers.at(done->nodes[i]).FindBundle({done->group, static_cast<int>(i)});
            REQUIRE(bundle.has_value());
            REQUIRE(bundle->committed);
          }
        } else if (auto* again = std::get_if<GroupRescheduling>(&effect)) {
          ++rescheduled_seen;
          ready.erase(again->group);
        } else if (auto* gone = std::get_if<GroupRemoved>(&effect)) {
          ready.erase(gone->group);
        }
      }
    };
    // The node carries out its next order.
    auto deliver = [&](NodeId id) {
      std::vector<GroupEffect>& stream = streams[id];
      if (stream.empty()) return;
      GroupEffect order = stream.front();
      stream.erase(stream.begin());
      if (!ledgers.contains(id)) return;
      NodeLedger& ledger = ledgers.at(id);
      if (auto* e = std::get_if<SendPrepare>(&order)) {
        absl::Status status;
        for (const BundleReservation& bundle : e->bundles) {
          if (status.ok()) status = ledger.PrepareBundle({e->group, bundle.index}, bundle.resources);
        }
        for (const BundleReservation& bundle : e->bundles) {
          if (status.ok() && e->commit) REQUIRE(ledger.CommitBundle({e->group, bundle.index}).ok());
        }
        if (!status.ok()) {
          ++refused_seen;
          for (const BundleReservation& bundle : e->bundles) ledger.ReturnBundle({e->group, bundle.index});
          answers[id].push_back(PrepareFailed{id, e->group, e->attempt, Message(status)});
        } else {
          answers[id].push_back(NodePrepared{id, e->group, e->attempt});
        }
      } else if (auto* c = std::get_if<SendCommit>(&order)) {
        absl::Status status;
        for (int bundle : c->bundles) {
          if (status.ok()) status = ledger.CommitBundle({c->group, bundle});
        }
        if (status.ok()) answers[id].push_back(NodeCommitted{id, c->group, c->attempt});
        else answers[id].push_back(CommitFailed{id, c->group, c->attempt, Message(status)});
      } else if (auto* r = std::get_if<SendReturn>(&order)) {
        for (int bundle : r->bundles) ledger.ReturnBundle({r->group, bundle});
      }
    };
    auto answer = [&](NodeId id) {
      if (answers[id].empty()) return;
      GroupEvent event = answers[id].front();
      answers[id].erase(answers[id].begin());
      if (ledgers.contains(id)) step(event);
    };
    auto report = [&](NodeId id) {
      if (ledgers.contains(id)) REQUIRE(view.UpdateAvailable(id, ledgers.at(id).Available()).ok());
    };
    auto settle = [&] {
      for (bool busy = true; busy;) {
        busy = false;
        for (uint64_t n = 1; n < next_node; ++n) {
          while (!streams[N(n)].empty()) deliver(N(n)), busy = true;
          while (!answers[N(n)].empty()) answer(N(n)), busy = true;
        }
      }
    };

    for (int i = 0; i < 4; ++i) add_node();
    for (int i = 0; i < 250; ++i) {
      now += absl::Milliseconds(prng.Below(500));
      const NodeId some = N(1 + prng.Below(next_node - 1));
      switch (prng.Below(12)) {
        case 0: {
          GroupDemand demand{static_cast<GroupStrategy>(prng.Below(4)), {}};
          for (size_t b = 0, n = 1 + prng.Below(3); b < n; ++b)
            demand.bundles.push_back({Res({{"CPU", static_cast<double>(1 + prng.Below(2))}}), {}});
          step(CreateGroup{G(next_group++), demand});
          break;
        }
        case 1:
          if (next_group > 1 && prng.Below(2) == 0) {
            const GroupId group = G(1 + prng.Below(next_group - 1));
            removed.insert(group);
            step(RemoveGroup{group});
          }
          break;
        case 2:
          if (prng.Below(3) == 0) {
            // Most often one that a group uses.
            const NodeId lost = ready.empty() ? some : ready.begin()->second.front();
            if (!ledgers.contains(lost)) break;
            ledgers.erase(lost);
            local.erase(lost);
            REQUIRE(view.MarkLost(lost, now).ok());
            step(NodeLost{lost});
            add_node();
          }
          break;
        case 3: step(Tick{}); break;
        case 4: {
          // Local work that the head has not heard of: its placements become stale.
          if (!ledgers.contains(some)) break;
          const LeaseId lease = L(next_lease++);
          if (ledgers.at(some).Grant(lease, Res({{"CPU", 1}})).ok()) local[some].push_back(lease);
          break;
        }
        case 5:
          if (!local[some].empty()) {
            ledgers.at(some).Release(local[some].back());
            local[some].pop_back();
          }
          break;
        case 6: report(some); break;
        case 7:
        case 8: deliver(some); break;
        default: answer(some); break;
      }
      // No node has given out more than it has.
      for (auto& [id, ledger] : ledgers) {
        ResourceSet held;
        for (const auto& [key, bundle] : ledger.Bundles()) held.Add(bundle.total);
        for (LeaseId lease : local[id]) held.Add(ledger.Find(lease)->resources);
        REQUIRE(ledger.total().Contains(held));
      }
    }
    // When all is quiet each group holds all of its bundles or, but for what was lost under it, none; removed groups
    // hold nothing.
    for (int round = 0; round < 5; ++round) {
      settle();
      for (uint64_t n = 1; n < next_node; ++n) report(N(n));
      now += absl::Seconds(20);
      step(Tick{});
    }
    settle();
    for (const GroupMachine::Group* group : machine.Groups()) {
      REQUIRE((group->state == GroupState::kReady || group->state == GroupState::kPending ||
               group->state == GroupState::kRescheduling));
      for (size_t i = 0; i < group->nodes.size(); ++i) {
        const BundleKey key{group->id, static_cast<int>(i)};
        size_t holders = 0;
        for (auto& [id, ledger] : ledgers) holders += ledger.FindBundle(key).has_value();
        REQUIRE(holders == (group->nodes[i].IsNil() ? 0 : 1));
        if (!group->nodes[i].IsNil()) REQUIRE(view.FindBundle(key)->id == group->nodes[i]);
      }
      const size_t placed = static_cast<size_t>(
          std::count_if(group->nodes.begin(), group->nodes.end(), [](NodeId id) { return !id.IsNil(); }));
      if (group->state == GroupState::kReady) REQUIRE(placed == group->nodes.size());
      if (group->state == GroupState::kPending) REQUIRE(placed == 0);
      if (group->state != GroupState::kReady) REQUIRE(!group->explanation.empty());
    }
    for (auto& [id, ledger] : ledgers) {
      for (const auto& [key, bundle] : ledger.Bundles()) REQUIRE_FALSE(removed.contains(key.group));
    }
    // Once every rival has gone, whatever the cluster can hold is served.
    for (auto& [id, leases] : local) {
      for (LeaseId lease : leases) ledgers.at(id).Release(lease);
      leases.clear();
    }
    while (machine.size() > 1) step(RemoveGroup{machine.Groups().back()->id});
    settle();
    for (uint64_t n = 1; n < next_node; ++n) report(N(n));
    now += absl::Seconds(60);
    step(Tick{});
    settle();
    for (const GroupMachine::Group* group : machine.Groups())
      REQUIRE((group->state == GroupState::kReady || !group->feasible));
  }
  CHECK(ready_seen > 200);
  CHECK(rescheduled_seen >= 20);
  CHECK(refused_seen > 100);
}

TEST_CASE(
    "DemandQueue serves every request once, each job's in order, and no job twice while another waits with a placeable "
    "shape") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    DemandQueue queue;
    struct Waiting {
      JobId job;
      uint64_t order;
      bool placeable;
    };
    std::map<uint64_t, Waiting> waiting;
    // By the number of servings: when a job was served last, and since when it waits without a break for something that
    // can be placed.
    std::map<JobId, uint64_t> last_served, placeable_since;
    auto placeable = [&](JobId job) {
      return std::any_of(waiting.begin(), waiting.end(),
                         [&](const auto& entry) { return entry.second.placeable && entry.second.job == job; });
    };
    uint64_t next = 1, turn = 0;
    auto can_place = [](const Demand& demand) { return demand.resources.Get(kGpu).IsZero(); };
    for (int step = 0; step < 300; ++step) {
      if (prng.Below(2) == 0) {
        DemandQueue::Request request;
        request.id = next++;
        request.job = J(1 + prng.Below(4));
        request.demand.resources = RandomResources(prng, true);
        if (can_place(request.demand) && !placeable(request.job)) placeable_since[request.job] = turn;
        waiting[request.id] = {request.job, request.id, can_place(request.demand)};
        REQUIRE(queue.Add(request).ok());
      } else if (prng.Below(8) == 0 && next > 1) {
        const uint64_t id = 1 + prng.Below(next - 1);
        REQUIRE(queue.Cancel(id).has_value() == (waiting.erase(id) == 1));
      } else {
        auto served = queue.NextServable([&](const Demand& demand) -> std::optional<NodeId> {
          if (!can_place(demand)) return std::nullopt;
          return N(1);
        });
        const bool any =
            std::any_of(waiting.begin(), waiting.end(), [](const auto& entry) { return entry.second.placeable; });
        REQUIRE(served.has_value() == any);
        if (!served) continue;
        const Waiting request = waiting.at(served->id);
        waiting.erase(served->id);
        REQUIRE(request.placeable);
        for (const auto& [id, other] : waiting) {
          if (other.placeable && other.job == request.job) REQUIRE(request.order < other.order);
        }
        for (uint64_t j = 1; j <= 4; ++j) {
          if (J(j) == request.job || !placeable(J(j)) || !last_served.contains(request.job)) continue;
          if (placeable_since[J(j)] < last_served[request.job]) REQUIRE(last_served[J(j)] > last_served[request.job]);
        }
        last_served[request.job] = ++turn;
      }
      REQUIRE(queue.size() == waiting.size());
    }
  }
}

}  // namespace argosy::scheduler
