#include "runtime/head/placement.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {


WaitEntry Entry(const std::string& key, double cpus, absl::Time deadline = absl::InfiniteFuture()) {
  WaitEntry entry{WaitKind::kLease, key, "tasks", JobId::FromNumber(1)};
  entry.demand.resources = *ResourceSet::FromMap({{"CPU", cpus}});
  entry.deadline = deadline;
  return entry;
}

scheduler::ClusterView View(double cpus) {
  scheduler::ClusterView view;
  REQUIRE(view.AddNode(kNode, "n1", *ResourceSet::FromMap({{"CPU", cpus}}), {}).ok());
  return view;
}

TEST_CASE("Placement: what fits is placed and taken from the view, the rest waits with a reason") {
  scheduler::ClusterView view = View(2);
  Placement placement;
  Prng prng(1);
  for (const char* key : {"a", "b", "c"}) REQUIRE(placement.Add(Entry(key, 1), kT0).ok());
  auto placed = placement.Serve(view, prng, kT0);
  REQUIRE(placed.size() == 2);
  CHECK(placed[0].node == kNode);
  CHECK(view.Find(kNode)->available.Get("CPU").IsZero());
  CHECK(placement.size() == 1);
  auto summaries = placement.Summaries(view, kT0, 10);
  REQUIRE(summaries.size() == 1);
  CHECK(summaries[0].count == 1);
  CHECK(summaries[0].explanation.find("CPU") != std::string::npos);
  REQUIRE(view.Give(kNode, *ResourceSet::FromMap({{"CPU", 1}})).ok());
  CHECK(placement.Serve(view, prng, kT0).size() == 1);
}

TEST_CASE("Placement: within a job what has a higher priority is placed first, also after a refusal") {
  scheduler::ClusterView view = View(1);
  Placement placement;
  Prng prng(1);
  auto add = [&](const std::string& key, int priority) {
    WaitEntry entry = Entry(key, 1);
    entry.demand.priority = priority;
    REQUIRE(placement.Add(entry, kT0).ok());
  };
  add("low", -1);
  add("normal", 0);
  add("high", 7);
  std::string order;
  for (int i = 0; i < 4; ++i) {
    auto placed = placement.Serve(view, prng, kT0);
    REQUIRE(placed.size() == 1);
    order += placed[0].entry.key + " ";
    REQUIRE(view.Give(kNode, *ResourceSet::FromMap({{"CPU", 1}})).ok());
    if (i == 0) placement.AddLater(placed[0].entry, kT0);   // the node had no room
  }
  CHECK(order == "high high normal low ");
}

TEST_CASE("Placement: a refused request waits until its time and is then served") {
  scheduler::ClusterView view = View(2);
  Placement placement;
  Prng prng(1);
  placement.AddLater(Entry("a", 1), kT0 + absl::Milliseconds(25));
  CHECK(placement.NextTime() == kT0 + absl::Milliseconds(25));
  CHECK(placement.Serve(view, prng, kT0).empty());
  CHECK(placement.Serve(view, prng, kT0 + absl::Milliseconds(25)).size() == 1);
  placement.AddLater(Entry("b", 1), kT0 + absl::Seconds(1));
  CHECK(placement.Cancel(WaitKind::kLease, "b"));
  CHECK(!placement.Cancel(WaitKind::kLease, "b"));
  CHECK(placement.NextTime() == absl::InfiniteFuture());
}

TEST_CASE("Placement: a deadline that passes gives the request back with why it waited") {
  scheduler::ClusterView view = View(1);
  Placement placement;
  REQUIRE(placement.Add(Entry("a", 8, kT0 + absl::Seconds(1)), kT0).ok());
  CHECK(placement.Expire(view, kT0).empty());
  auto overdue = placement.Expire(view, kT0 + absl::Seconds(1));
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].explanation.find("CPU: 8") != std::string::npos);
  CHECK(placement.size() == 0);
}

TEST_CASE("Placement: a removed group takes the requests for its bundles with it") {
  Placement placement;
  WaitEntry entry = Entry("a", 1);
  entry.demand.strategy = scheduler::BundleAffinity{GroupId::FromNumber(5), 0};
  REQUIRE(placement.Add(entry, kT0).ok());
  REQUIRE(placement.Add(Entry("b", 1), kT0).ok());
  CHECK(placement.TakeGroup(GroupId::FromNumber(5)).size() == 1);
  CHECK(placement.size() == 1);
}

TEST_CASE("Placement: shapes that waited long enough are named with their jobs") {
  Placement placement;
  REQUIRE(placement.Add(Entry("a", 1), kT0).ok());
  CHECK(placement.Waiting(absl::Seconds(1), kT0, 10).empty());
  auto waiting = placement.Waiting(absl::Seconds(1), kT0 + absl::Seconds(1), 10);
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].jobs == std::vector<JobId>{JobId::FromNumber(1)});
}

}  // namespace
}  // namespace argosy::head
