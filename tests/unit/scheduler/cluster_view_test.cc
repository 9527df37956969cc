#include "scheduler/cluster_view.h"

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

TEST_CASE("ClusterView: a node is there until it is removed, and a lost one is not alive") {
  ClusterView view;
  AddNode(view, 1, {{"CPU", 4}}, {{"zone", "a"}});
  AddNode(view, 2, {{"CPU", 2}});
  CHECK(view.size() == 2);
  CHECK(view.Total() == Res({{"CPU", 6}}));
  CHECK(view.Find(N(1))->labels.at("zone") == "a");
  CHECK_FALSE(view.AddNode(N(1), "again", Res({{"CPU", 1}}), {}).ok());

  REQUIRE(view.MarkLost(N(2), At(5)).ok());
  CHECK(view.alive_count() == 1);
  CHECK(view.Find(N(2))->lost_at == At(5));
  CHECK(view.Total() == Res({{"CPU", 4}}));
  CHECK_FALSE(view.AddNode(N(2), "n2", Res({{"CPU", 1}}), {}).ok());
  REQUIRE(view.RemoveNode(N(2)).ok());
  CHECK(view.Find(N(2)) == nullptr);
  CHECK(absl::IsNotFound(view.RemoveNode(N(2))));
  CHECK(absl::IsNotFound(view.UpdateAvailable(N(9), {})));
  REQUIRE(view.Nodes().size() == 1);
}

TEST_CASE("ClusterView: Take may go below zero, Give stops at the total, a report replaces both") {
  ClusterView view;
  AddNode(view, 1, {{"CPU", 4}});
  REQUIRE(view.Take(N(1), Res({{"CPU", 3}})).ok());
  CHECK(view.Find(N(1))->available == Res({{"CPU", 1}}));
  CHECK(view.Find(N(1))->Utilization() == 7500);
  REQUIRE(view.Take(N(1), Res({{"CPU", 3}})).ok());
  CHECK(view.Find(N(1))->available.Get("CPU").raw() == -2 * Amount::kUnit);
  CHECK(view.Available().IsEmpty());
  REQUIRE(view.UpdateAvailable(N(1), Res({{"CPU", 2}})).ok());
  CHECK(view.Available() == Res({{"CPU", 2}}));
  REQUIRE(view.Give(N(1), Res({{"CPU", 3}})).ok());
  CHECK(view.Find(N(1))->available == Res({{"CPU", 4}}));
}

TEST_CASE("ClusterView: a bundle's resources are its own, and end with it or its node") {
  ClusterView view;
  AddNode(view, 1, {{"CPU", 4}});
  REQUIRE(view.Take(N(1), Res({{"CPU", 2}})).ok());
  REQUIRE(view.SetBundle(N(1), {G(1), 0}, Res({{"CPU", 2}})).ok());
  CHECK(view.FindBundle({G(1), 0})->id == N(1));
  REQUIRE(view.Take(N(1), Res({{"CPU", 1}}), BundleKey{G(1), 0}).ok());
  CHECK(view.Find(N(1))->available == Res({{"CPU", 2}}));
  CHECK(view.FitBundle(N(1), {G(1), -1}, Res({{"CPU", 1}})) == BundleKey{G(1), 0});
  CHECK_FALSE(view.FitBundle(N(1), {G(1), -1}, Res({{"CPU", 2}})).has_value());
  CHECK_FALSE(view.FitBundle(N(1), {G(1), 1}, Res({{"CPU", 1}})).has_value());
  CHECK(view.RemoveBundle(N(1), {G(1), 0}) == Res({{"CPU", 2}}));
  CHECK_FALSE(view.RemoveBundle(N(1), {G(1), 0}).has_value());
  CHECK(view.BundlesOf(G(1)) == nullptr);

  REQUIRE(view.SetBundle(N(1), {G(2), 3}, Res({{"CPU", 2}})).ok());
  REQUIRE(view.MarkLost(N(1), At(1)).ok());
  CHECK(view.FindBundle({G(2), 3}) == nullptr);
}

TEST_CASE("ClusterView: its version tells whether anything changed") {
  ClusterView view;
  AddNode(view, 1, {{"CPU", 4}});
  uint64_t before = view.version();
  REQUIRE(view.Take(N(1), Res({{"CPU", 1}})).ok());
  CHECK(view.version() > before);
  before = view.version();
  CHECK(view.Find(N(1)) != nullptr);
  CHECK(view.version() == before);
}

}  // namespace argosy::scheduler
