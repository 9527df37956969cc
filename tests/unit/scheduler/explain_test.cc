#include "scheduler/explain.h"

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

namespace {

ClusterView Unequal() {
  ClusterView view;
  REQUIRE(view.AddNode(N(1), "gpu-1", Res({{"CPU", 2}, {"GPU", 1}}), {{"zone", "a"}}).ok());
  REQUIRE(view.AddNode(N(2), "gpu-2", Res({{"CPU", 2}, {"GPU", 1}}), {{"zone", "a"}}).ok());
  REQUIRE(view.AddNode(N(3), "big", Res({{"CPU", 2}, {"GPU", 1}, {"large_cpu_mem", 1}}), {{"zone", "b"}}).ok());
  return view;
}

}  // namespace

TEST_CASE("Explain: groups nodes by reason, with counts and the nearest") {
  ClusterView view = Unequal();
  REQUIRE(view.Take(N(3), Res({{"GPU", 1}})).ok());
  Explanation explanation = Explain(view, Needs({{"GPU", 1}, {"large_cpu_mem", 1}}));
  CHECK(explanation.feasible);
  CHECK(explanation.usable.empty());
  CHECK(explanation.ToString() ==
        "needs GPU: 1, large_cpu_mem: 1; 3 nodes: 2 lack large_cpu_mem (nearest: gpu-1 has GPU: 1), 1 is busy (big has "
        "GPU: 0 of 1 free); "
        "waits until something ends");
}

TEST_CASE("Explain: says what no node can ever satisfy, and what was probably meant") {
  ClusterView view = Unequal();
  Explanation explanation = Explain(view, Needs({{"large_cpu_men", 1}}));
  CHECK_FALSE(explanation.feasible);
  CHECK(explanation.ToString() ==
        "needs large_cpu_men: 1; 3 nodes: 3 lack large_cpu_men (nearest: gpu-1 has none of it); "
        "no node has the resource large_cpu_men (did you mean large_cpu_mem?); no node can ever satisfy it, waits for "
        "one to join");
  CHECK(Explain(view, Needs({{"gpu", 1}})).hints ==
        std::vector<std::string>{"no node has the resource gpu (did you mean GPU?)"});
  CHECK(Explain(view, Needs({{"TPU-v5", 1}})).hints ==
        std::vector<std::string>{"no node has the resource TPU-v5 (known: CPU, GPU, large_cpu_mem)"});
  CHECK(Explain(view, Needs({}, {}, "zona=a")).hints ==
        std::vector<std::string>{"no node has the label zona (did you mean zone?)"});
  CHECK(Explain(view, Needs({}, {}, "zone=west")).hints ==
        std::vector<std::string>{"no node has zone=west (known: a, b)"});
  CHECK(Explain(view, Needs({{"GPU", 2}})).ToString() ==
        "needs GPU: 2; 3 nodes: 3 have too little GPU (nearest: gpu-1 has GPU: 1); no node can ever satisfy it, waits "
        "for one to join");
}

TEST_CASE("Explain: every filter has its words") {
  ClusterView view = Unequal();
  CHECK(Explain(view, Needs({{"CPU", 1}})).ToString() == "needs CPU: 1; 3 nodes: 3 are usable");
  CHECK(Explain(view, Needs({{"CPU", 1}}, {}, "zone=b,large exists")).ToString() ==
        "needs CPU: 1; labels large exists, zone=b; 3 nodes: 2 do not match large exists and zone=b (nearest: gpu-1 "
        "has no large, zone=a), "
        "1 does not match large exists (big has no large); no node has the label large (known: zone); no node can ever "
        "satisfy it, "
        "waits for one to join");
  REQUIRE(view.MarkLost(N(1), At(10)).ok());
  REQUIRE(view.SetDraining(N(2), true).ok());
  REQUIRE(view.SetGathered(N(3), G(7)).ok());
  CHECK(Explain(view, Needs({{"CPU", 1}}), At(13.5)).ToString() ==
        "needs CPU: 1; 3 nodes: 1 is lost (gpu-1 was lost 3.5 s ago), 1 is draining (gpu-2), "
        "1 is kept for group 00000000, which gathers its bundles; waits until something ends");
  Explanation affinity = Explain(view, Needs({{"CPU", 1}}, NodeAffinity{N(9), false}));
  CHECK_FALSE(affinity.feasible);
  CHECK(affinity.hints == std::vector<std::string>{"node 00000000 is not known"});
  CHECK(Explain(ClusterView(), Needs({{"CPU", 1}})).ToString() ==
        "needs CPU: 1; the cluster has no nodes; no node can ever satisfy it, waits for one to join");
}

TEST_CASE("Explain: a bundle that is full is named") {
  ClusterView view = Unequal();
  REQUIRE(view.SetBundle(N(1), {G(1), 0}, Res({{"CPU", 1}})).ok());
  REQUIRE(view.Take(N(1), Res({{"CPU", 1}}), BundleKey{G(1), 0}).ok());
  Explanation busy = Explain(view, Needs({{"CPU", 1}}, BundleAffinity{G(1), -1}));
  CHECK(busy.feasible);
  CHECK(busy.reasons.back().nearest == "bundle 0 on gpu-1 has CPU: 0 of 1 free");
  CHECK_FALSE(Explain(view, Needs({{"CPU", 2}}, BundleAffinity{G(1), -1})).feasible);
  CHECK(Explain(view, Needs({{"CPU", 1}}, BundleAffinity{G(2), -1})).hints ==
        std::vector<std::string>{"group 00000000 holds no bundle"});
}

TEST_CASE("ExplainGroup: says which bundle cannot be placed, or why not together") {
  ClusterView view = Unequal();
  Prng prng(1);
  auto group = [](GroupStrategy strategy, std::vector<std::map<std::string, double>> bundles) {
    GroupDemand demand{strategy, {}};
    for (const auto& bundle : bundles) demand.bundles.push_back({Res(bundle), {}});
    return demand;
  };
  GroupExplanation fits = ExplainGroup(view, group(GroupStrategy::kPack, {{{"GPU", 1}}, {{"GPU", 1}}}), prng);
  CHECK(fits.usable);
  CHECK(fits.ToString() == "PACK of 2 bundles: 2 x {GPU: 1}; fits now");

  GroupExplanation alone =
      ExplainGroup(view, group(GroupStrategy::kPack, {{{"GPU", 1}}, {{"GPU", 1}, {"large_cpu_mem", 2}}}), prng);
  CHECK_FALSE(alone.feasible);
  CHECK(alone.ToString() ==
        "PACK of 2 bundles: 1 x {GPU: 1}, 1 x {GPU: 1, large_cpu_mem: 2}; one bundle needs GPU: 1, large_cpu_mem: 2; 3 "
        "nodes: 2 lack "
        "large_cpu_mem (nearest: gpu-1 has GPU: 1), 1 has too little large_cpu_mem (big has GPU: 1, large_cpu_mem: 1); "
        "the nodes of the cluster can never satisfy it, waits for one to join");

  CHECK(ExplainGroup(view,
                     group(GroupStrategy::kStrictSpread, std::vector<std::map<std::string, double>>(4, {{"CPU", 1}})),
                     prng)
            .summary == "each bundle needs a node of its own: 4 bundles, 3 nodes can take one now");
  CHECK(
      ExplainGroup(view, group(GroupStrategy::kPack, std::vector<std::map<std::string, double>>(4, {{"GPU", 1}})), prng)
          .summary == "each bundle fits alone, but not all together: GPU: 3 of 4 free");
  CHECK(ExplainGroup(view, group(GroupStrategy::kStrictPack, {{{"CPU", 2}}, {{"CPU", 2}}}), prng).summary ==
        "all bundles on one node: needs CPU: 4; 3 nodes: 3 have too little CPU (nearest: gpu-1 has CPU: 2)");

  REQUIRE(view.Take(N(2), Res({{"GPU", 1}})).ok());
  GroupExplanation busy = ExplainGroup(
      view, group(GroupStrategy::kPack, std::vector<std::map<std::string, double>>(3, {{"GPU", 1}})), prng);
  CHECK(busy.feasible);
  CHECK_FALSE(busy.usable);
  CHECK(busy.summary == "each bundle fits alone, but not all together: GPU: 2 of 3 free");
}

}  // namespace argosy::scheduler
