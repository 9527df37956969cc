#include "scheduler/place.h"

#include <chrono>
#include <set>

#include "scheduler/node_index.h"
#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

namespace {

// Places and takes.
std::optional<NodeId> PlaceAndTake(ClusterView& view, const Demand& demand, Prng& prng) {
  std::optional<NodeId> node = Place(view, demand, prng);
  if (node) {
    std::optional<BundleKey> bundle;
    if (auto* affinity = std::get_if<BundleAffinity>(&demand.strategy))
      bundle = view.FitBundle(*node, *affinity, demand.resources);
    REQUIRE(view.Take(*node, demand.resources, bundle).ok());
  }
  return node;
}

GroupDemand Group(GroupStrategy strategy, std::vector<std::map<std::string, double>> bundles) {
  GroupDemand demand{strategy, {}};
  for (const auto& bundle : bundles) demand.bundles.push_back({Res(bundle), {}});
  return demand;
}

std::set<NodeId> Distinct(const std::vector<NodeId>& nodes) { return {nodes.begin(), nodes.end()}; }

}  // namespace

TEST_CASE("Place: fills a node to half, then the next, then spreads over the least used") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 3; ++i) AddNode(view, i, {{"CPU", 4}});
  Demand one = Needs({{"CPU", 1}});
  std::vector<NodeId> first;
  for (int i = 0; i < 6; ++i) first.push_back(*PlaceAndTake(view, one, prng));
  CHECK(first == std::vector<NodeId>{N(1), N(1), N(2), N(2), N(3), N(3)});
  std::set<NodeId> next;
  for (int i = 0; i < 3; ++i) next.insert(*PlaceAndTake(view, one, prng));
  CHECK(next.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(PlaceAndTake(view, one, prng).has_value());
  CHECK_FALSE(Place(view, one, prng).has_value());
}

TEST_CASE("Place: SPREAD takes turns over the nodes even for demands of nothing") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 4; ++i) AddNode(view, i, {{"CPU", 8}});
  for (const Demand& demand : {Needs({{"CPU", 1}}, SpreadStrategy{}), Needs({}, SpreadStrategy{})}) {
    for (int round = 0; round < 2; ++round) {
      std::set<NodeId> used;
      for (int i = 0; i < 4; ++i) used.insert(*PlaceAndTake(view, demand, prng));
      CHECK(used.size() == 4);
    }
  }
}

TEST_CASE("Place: nodes without GPU are preferred for demands without GPU, until they are full") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 8}, {"GPU", 1}});
  AddNode(view, 2, {{"CPU", 2}});
  CHECK(PlaceAndTake(view, Needs({{"CPU", 1}}), prng) == N(2));
  CHECK(PlaceAndTake(view, Needs({{"CPU", 1}}, SpreadStrategy{}), prng) == N(2));
  CHECK(PlaceAndTake(view, Needs({{"CPU", 1}}), prng) == N(1));
  CHECK(PlaceAndTake(view, Needs({{"GPU", 1}}), prng) == N(1));
  CHECK_FALSE(Place(view, Needs({{"GPU", 1}}), prng).has_value());
}

TEST_CASE("Place: labels and custom resources choose among nodes") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 4}}, {{"zone", "a"}});
  AddNode(view, 2, {{"CPU", 4}, {"large_cpu_mem", 1}}, {{"zone", "b"}});
  CHECK(Place(view, Needs({{"CPU", 1}}, {}, "zone=b"), prng) == N(2));
  CHECK(Place(view, Needs({{"CPU", 1}}, {}, "zone!=b"), prng) == N(1));
  CHECK(Place(view, Needs({{"CPU", 1}}, {}, "zone in (b,c)"), prng) == N(2));
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, {}, "zone=c"), prng).has_value());
  CHECK(Place(view, Needs({{"large_cpu_mem", 0.01}}), prng) == N(2));
  CHECK_FALSE(Place(view, Needs({{"large_cpu_mem", 2}}), prng).has_value());
  REQUIRE(view.UpdateLabels(N(1), {{"zone", "c"}}).ok());
  CHECK(Place(view, Needs({{"CPU", 1}}, {}, "zone=c"), prng) == N(1));
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, {}, "zone=a"), prng).has_value());
}

TEST_CASE("Place: hard node affinity waits for its node, soft only while that can serve it") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 1}});
  AddNode(view, 2, {{"CPU", 4}});
  CHECK(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(2), false}), prng) == N(2));
  CHECK_FALSE(Place(view, Needs({{"CPU", 2}}, NodeAffinity{N(1), false}), prng).has_value());
  CHECK(Place(view, Needs({{"CPU", 2}}, NodeAffinity{N(1), true}), prng) == N(2));
  CHECK(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(1), true}), prng) == N(1));
  REQUIRE(view.Take(N(1), Res({{"CPU", 1}})).ok());
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(1), true}), prng).has_value());
  REQUIRE(view.MarkLost(N(1), At(0)).ok());
  CHECK(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(1), true}), prng) == N(2));
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(1), false}), prng).has_value());
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, NodeAffinity{N(7), false}), prng).has_value());
}

TEST_CASE("Place: lost, draining and gathered nodes get nothing new") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 4}});
  REQUIRE(view.SetDraining(N(1), true).ok());
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}), prng).has_value());
  REQUIRE(view.SetDraining(N(1), false).ok());
  CHECK(Place(view, Needs({{"CPU", 1}}), prng).has_value());
  REQUIRE(view.SetGathered(N(1), G(1)).ok());
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}), prng).has_value());
  REQUIRE(view.SetGathered(N(1), GroupId()).ok());
  REQUIRE(view.MarkLost(N(1), At(0)).ok());
  CHECK_FALSE(Place(view, Needs({}), prng).has_value());
}

TEST_CASE("Place: follows the bytes of big arguments while there is room") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 3; ++i) AddNode(view, i, {{"CPU", 2}});
  Demand demand = Needs({{"CPU", 1}});
  demand.locality = {{N(2), 1'000'000}, {N(3), 600'000}, {N(3), 600'000}};
  CHECK(PlaceAndTake(view, demand, prng) == N(3));
  CHECK(PlaceAndTake(view, demand, prng) == N(3));
  CHECK(PlaceAndTake(view, demand, prng) == N(2));
  CHECK(PlaceAndTake(view, demand, prng) == N(2));
  CHECK(PlaceAndTake(view, demand, prng) == N(1));
}

TEST_CASE("Place: bundle affinity spends the bundle, not the node") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 4}});
  AddNode(view, 2, {{"CPU", 4}});
  for (auto [node, index] : {std::pair{N(1), 0}, std::pair{N(2), 1}}) {
    REQUIRE(view.Take(node, Res({{"CPU", 4}})).ok());
    REQUIRE(view.SetBundle(node, {G(1), index}, Res({{"CPU", 4}})).ok());
  }
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}), prng).has_value());
  CHECK(PlaceAndTake(view, Needs({{"CPU", 3}}, BundleAffinity{G(1), 1}), prng) == N(2));
  CHECK_FALSE(Place(view, Needs({{"CPU", 3}}, BundleAffinity{G(1), 1}), prng).has_value());
  CHECK(PlaceAndTake(view, Needs({{"CPU", 3}}, BundleAffinity{G(1), -1}), prng) == N(1));
  CHECK_FALSE(Place(view, Needs({{"CPU", 3}}, BundleAffinity{G(1), -1}), prng).has_value());
  CHECK_FALSE(Place(view, Needs({{"CPU", 1}}, BundleAffinity{G(2), -1}), prng).has_value());
}

TEST_CASE("PlaceGroup: PACK uses few nodes, SPREAD many, the strict ones exactly that") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 3; ++i) AddNode(view, i, {{"CPU", 4}});
  const std::vector<std::map<std::string, double>> three(3, {{"CPU", 1}});
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kPack, three), prng)).size() == 1);
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kStrictPack, three), prng)).size() == 1);
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kSpread, three), prng)).size() == 3);
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kStrictSpread, three), prng)).size() == 3);
  const std::vector<std::map<std::string, double>> five(5, {{"CPU", 1}});
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kPack, five), prng)).size() == 2);
  CHECK_FALSE(PlaceGroup(view, Group(GroupStrategy::kStrictPack, five), prng).has_value());
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kSpread, five), prng)).size() == 3);
  CHECK_FALSE(PlaceGroup(view, Group(GroupStrategy::kStrictSpread, five), prng).has_value());
  const std::vector<std::map<std::string, double>> too_many(13, {{"CPU", 1}});
  CHECK_FALSE(PlaceGroup(view, Group(GroupStrategy::kPack, too_many), prng).has_value());
}

TEST_CASE("PlaceGroup: the bundle with fewest choices gets its node, whatever the order") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 2}, {"GPU", 1}, {"large_cpu_mem", 1}});
  AddNode(view, 2, {{"CPU", 2}, {"GPU", 1}});
  AddNode(view, 3, {{"CPU", 2}, {"GPU", 1}});
  for (GroupStrategy strategy : {GroupStrategy::kPack, GroupStrategy::kSpread, GroupStrategy::kStrictSpread}) {
    for (size_t rank0 : {0u, 2u}) {
      std::vector<std::map<std::string, double>> bundles(3, {{"CPU", 1}, {"GPU", 1}});
      bundles[rank0]["large_cpu_mem"] = 0.01;
      auto nodes = PlaceGroup(view, Group(strategy, bundles), prng);
      REQUIRE(nodes.has_value());
      CHECK((*nodes)[rank0] == N(1));
      CHECK(Distinct(*nodes).size() == 3);
    }
  }
}

TEST_CASE("PlaceGroup: finds a packing that greedy choice misses") {
  ClusterView view;
  Prng prng(1);
  AddNode(view, 1, {{"CPU", 6}});
  AddNode(view, 2, {{"CPU", 6}});
  // 4+2 and 3+3, but not 4 and 3+2.
  auto nodes =
      PlaceGroup(view, Group(GroupStrategy::kSpread, {{{"CPU", 2}}, {{"CPU", 3}}, {{"CPU", 3}}, {{"CPU", 4}}}), prng);
  REQUIRE(nodes.has_value());
  CHECK((*nodes)[0] == (*nodes)[3]);
  CHECK((*nodes)[1] == (*nodes)[2]);
}

TEST_CASE("PlaceGroup: bundles that were placed already keep their nodes") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 3; ++i) AddNode(view, i, {{"CPU", 1}});
  REQUIRE(view.Take(N(1), Res({{"CPU", 1}})).ok());
  GroupPlaceOptions options;
  options.placed = {N(1), NodeId(), NodeId()};
  auto nodes =
      PlaceGroup(view, Group(GroupStrategy::kStrictSpread, {{{"CPU", 1}}, {{"CPU", 1}}, {{"CPU", 1}}}), prng, options);
  REQUIRE(nodes.has_value());
  CHECK((*nodes)[0] == N(1));
  CHECK(Distinct(*nodes).size() == 3);
}

TEST_CASE("Place: a placement looks at few of many nodes") {
  // Counts time, not steps, with a wide margin: 16 times the nodes must cost far less than 16 times as much, full
  // cluster or empty, and when only few nodes have the label that is asked for and most are free.
  enum class World { kEmpty, kFull, kLabels };
  auto seconds_per_place = [](uint64_t nodes, World world) {
    ClusterView view;
    Prng prng(1);
    for (uint64_t i = 1; i <= nodes; ++i) {
      AddNode(view, i, {{"CPU", 4}, {"memory", 1e9}}, {{"zone", i % 4 == 0 ? "a" : "b"}});
      const bool taken = world == World::kFull || (world == World::kLabels && i % 4 == 0);
      if (taken && i != nodes) REQUIRE(view.Take(N(i), Res({{"CPU", 4}})).ok());
    }
    const char* labels = world == World::kLabels ? "zone=a" : "";
    const Demand demand = Needs({{"CPU", 1}}, {}, labels), spread = Needs({{"CPU", 1}}, SpreadStrategy{}, labels);
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 100; ++i) {
        REQUIRE(Place(view, demand, prng).has_value());
        REQUIRE(Place(view, spread, prng).has_value());
      }
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  for (World world : {World::kEmpty, World::kFull, World::kLabels})
    CHECK(seconds_per_place(8192, world) < 5 * seconds_per_place(512, world));
}

TEST_CASE("Place: a shape whose column another took over is still served, and gets one again when it comes often") {
  ClusterViewOptions options;
  options.columns_max = 32;
  options.column_after = 1;
  options.few_without_column = 0;
  ClusterView view(options);
  Prng prng(1);
  for (uint64_t i = 1; i <= 40; ++i) AddNode(view, i, {{"CPU", 64}});
  std::vector<Demand> demands;
  for (int i = 0; i < 100; ++i) demands.push_back(Needs({{"CPU", 1 + 0.1 * i}}));
  for (int round = 0; round < 3; ++round) {
    for (const Demand& demand : demands) CHECK(Place(view, demand, prng) == N(1));
  }
  CHECK(view.index().column_count() == 32);
  // The first ones are asked no more; the last takes the column of one of them.
  for (int i = 0; i < 1000; ++i) CHECK(Place(view, demands.back(), prng) == N(1));
  REQUIRE(view.Take(N(1), Res({{"CPU", 60}})).ok());
  for (const Demand& demand : demands) {
    const std::optional<NodeId> node = Place(view, demand, prng);
    REQUIRE(node.has_value());
    CHECK(node == N(2));
  }
  CHECK(view.index().column_count() == 32);
}

TEST_CASE("PlaceGroup: of many nodes it takes the few that hold most, or one each, and finds the bundle with one choice") {
  ClusterView view;
  Prng prng(1);
  for (uint64_t i = 1; i <= 2000; ++i) AddNode(view, i, {{"CPU", i == 1500 ? 32.0 : 8.0}});
  std::vector<std::map<std::string, double>> bundles(40, {{"CPU", 1}});
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kPack, bundles), prng)) == std::set<NodeId>{N(1), N(1500)});
  CHECK(Distinct(*PlaceGroup(view, Group(GroupStrategy::kSpread, bundles), prng)).size() == 40);
  bundles[7] = {{"CPU", 20}};
  auto nodes = PlaceGroup(view, Group(GroupStrategy::kStrictSpread, bundles), prng);
  REQUIRE(nodes.has_value());
  CHECK((*nodes)[7] == N(1500));
  CHECK(Distinct(*nodes).size() == 40);
}

}  // namespace argosy::scheduler
