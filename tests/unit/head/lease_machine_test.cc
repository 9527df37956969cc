#include "runtime/head/lease_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {

const LeaseId kLease = LeaseId::FromNumber(3);

LeaseRequest Request(const std::string& id, double cpus = 1, JobId job = kJob) {
  LeaseRequest request;
  request.id = id;
  request.job = job;
  request.holder = WorkerId::FromNumber(50);
  request.holder_node = NodeId::FromNumber(9);
  request.demand.resources = *ResourceSet::FromMap({{"CPU", cpus}});
  return request;
}

template <class T>
const T* Find(const std::vector<LeaseEffect>& effects) {
  for (const LeaseEffect& effect : effects) {
    if (const T* found = std::get_if<T>(&effect)) return found;
  }
  return nullptr;
}

LeaseResult Granted(LeaseId lease) {
  LeaseResult result;
  result.lease = lease;
  result.granted = true;
  result.worker.worker = WorkerId::FromNumber(70);
  return result;
}

// A machine with one held lease.
LeaseMachine Held(const std::string& id = "r", LeaseId lease = kLease) {
  LeaseMachine machine;
  machine.Step(LeaseAsked{Request(id)}, kT0);
  machine.Step(LeasePlaced{id, kNode, std::nullopt, lease}, kT0);
  machine.Step(LeaseAnswered{kNode, Granted(lease)}, kT0);
  return machine;
}

TEST_CASE("LeaseMachine: a request is placed, granted, answered and returned") {
  LeaseMachine machine;
  CHECK(Find<WantLeaseNode>(machine.Step(LeaseAsked{Request("r")}, kT0)));
  CHECK(machine.Step(LeaseAsked{Request("r")}, kT0).empty());   // joins the first
  auto effects = machine.Step(LeasePlaced{"r", kNode, std::nullopt, kLease}, kT0);
  REQUIRE(Find<SendGrant>(effects));
  CHECK(Find<SendGrant>(effects)->node == kNode);
  effects = machine.Step(LeaseAnswered{kNode, Granted(kLease)}, kT0);
  REQUIRE(Find<LeaseReady>(effects));
  CHECK(machine.Find(kLease)->worker.worker == WorkerId::FromNumber(70));
  CHECK(Find<LeaseReady>(machine.Step(LeaseAsked{Request("r")}, kT0)));   // a repeat after the answer gets the same
  effects = machine.Step(LeaseReturned{kLease, kNode, true}, kT0);
  REQUIRE(Find<SendRelease>(effects));
  CHECK(Find<SendRelease>(effects)->worker_failed);
  CHECK(Find<FreeResources>(effects));
  CHECK(machine.size() == 0);
}

TEST_CASE("LeaseMachine: a node without room makes the request wait again, any other refusal ends it") {
  for (bool room : {true, false}) {
    LeaseMachine machine;
    machine.Step(LeaseAsked{Request("r")}, kT0);
    machine.Step(LeasePlaced{"r", kNode, std::nullopt, kLease}, kT0);
    LeaseResult refused;
    refused.lease = kLease;
    refused.refusal = room ? "no room" : "glibc 2.36 is older than 2.41";
    auto effects = machine.Step(LeaseAnswered{kNode, refused}, kT0);
    CHECK(Find<FreeResources>(effects));
    if (room) {
      REQUIRE(Find<WantLeaseNode>(effects));
      CHECK(Find<WantLeaseNode>(effects)->refused);
    } else {
      REQUIRE(Find<LeaseFailed>(effects));
      CHECK(Find<LeaseFailed>(effects)->status.message().find("glibc") != std::string::npos);
    }
  }
}

TEST_CASE("LeaseMachine: a caller that gave up while the node granted does not keep the worker") {
  LeaseMachine machine;
  machine.Step(LeaseAsked{Request("r")}, kT0);
  machine.Step(LeasePlaced{"r", kNode, std::nullopt, kLease}, kT0);
  CHECK(machine.Step(LeaseCancelled{"r"}, kT0).empty());
  CHECK(Find<SendRelease>(machine.Step(LeaseAnswered{kNode, Granted(kLease)}, kT0)));
  CHECK(machine.size() == 0);
  machine.Step(LeaseAsked{Request("s")}, kT0);
  CHECK(Find<DropLeaseNode>(machine.Step(LeaseCancelled{"s"}, kT0)));
}

TEST_CASE("LeaseMachine: a request that is withdrawn leaves nothing, whatever state it had reached") {
  SECTION("it waits") {
    LeaseMachine machine;
    machine.Step(LeaseAsked{Request("r")}, kT0);
    auto effects = machine.Step(LeaseWithdrawn{"r"}, kT0);
    CHECK(Find<DropLeaseNode>(effects));
    REQUIRE(Find<LeaseFailed>(effects));
    CHECK(Find<LeaseFailed>(effects)->status.code() == absl::StatusCode::kCancelled);
  }
  SECTION("a node is granting it") {
    LeaseMachine machine;
    machine.Step(LeaseAsked{Request("r")}, kT0);
    machine.Step(LeasePlaced{"r", kNode, std::nullopt, kLease}, kT0);
    auto effects = machine.Step(LeaseWithdrawn{"r"}, kT0);
    CHECK(Find<SendRelease>(effects));
    CHECK(Find<FreeResources>(effects));
    CHECK(Find<LeaseFailed>(effects));
    CHECK(machine.size() == 0);
  }
  SECTION("it was granted, and the answer was lost on the way to its holder") {
    LeaseMachine machine;
    machine.Step(LeaseAsked{Request("r")}, kT0);
    machine.Step(LeasePlaced{"r", kNode, std::nullopt, kLease}, kT0);
    REQUIRE(Find<LeaseReady>(machine.Step(LeaseAnswered{kNode, Granted(kLease)}, kT0)));
    CHECK(machine.Step(LeaseCancelled{"r"}, kT0).empty());   // its caller may ask again for the same
    auto effects = machine.Step(LeaseWithdrawn{"r"}, kT0);
    REQUIRE(Find<SendRelease>(effects));
    CHECK_FALSE(Find<SendRelease>(effects)->worker_failed);
    CHECK(Find<FreeResources>(effects));
    CHECK(machine.size() == 0);
    CHECK(machine.Step(LeaseWithdrawn{"r"}, kT0).empty());
  }
  SECTION("the withdrawal overtakes it") {
    LeaseMachine machine;
    CHECK(machine.Step(LeaseWithdrawn{"r"}, kT0).empty());
    auto effects = machine.Step(LeaseAsked{Request("r")}, kT0);
    CHECK_FALSE(Find<WantLeaseNode>(effects));
    REQUIRE(Find<LeaseFailed>(effects));
    CHECK(Find<LeaseFailed>(effects)->status.code() == absl::StatusCode::kCancelled);
  }
}

TEST_CASE("LeaseMachine: a lost node's grants are placed again, its holders' leases are returned") {
  LeaseMachine machine = Held();
  machine.Step(LeaseAsked{Request("q")}, kT0);
  machine.Step(LeasePlaced{"q", kNode, std::nullopt, LeaseId::FromNumber(4)}, kT0);
  auto effects = machine.Step(LeaseNodeLost{kNode}, kT0);
  REQUIRE(Find<WantLeaseNode>(effects));
  CHECK(Find<WantLeaseNode>(effects)->request == "q");
  CHECK(machine.Find(kLease) == nullptr);
  LeaseMachine other = Held();
  CHECK(Find<SendRelease>(other.Step(LeaseNodeLost{NodeId::FromNumber(9)}, kT0)));   // the holder's node
}

TEST_CASE("LeaseMachine: a holder's death and a job's end return what they had") {
  LeaseMachine machine = Held();
  CHECK(Find<SendRelease>(machine.Step(LeaseWorkerDied{WorkerId::FromNumber(50)}, kT0)));
  machine = Held();
  auto effects = machine.Step(LeaseWorkerDied{WorkerId::FromNumber(70)}, kT0);   // the leased worker itself: its node knows
  CHECK(!Find<SendRelease>(effects));
  CHECK(Find<FreeResources>(effects));
  machine = Held();
  machine.Step(LeaseAsked{Request("w")}, kT0);
  effects = machine.Step(LeaseJobEnded{kJob}, kT0);
  CHECK(Find<SendRelease>(effects));
  CHECK(Find<LeaseFailed>(effects));
  CHECK(machine.size() == 0);
}

TEST_CASE("LeaseMachine: a rejoined node gets unanswered grants again and forgets ended leases") {
  LeaseMachine machine = Held();
  machine.Step(LeaseAsked{Request("q")}, kT0);
  machine.Step(LeasePlaced{"q", kNode, std::nullopt, LeaseId::FromNumber(4)}, kT0);
  auto effects = machine.Step(LeaseNodeRejoined{kNode, {}}, kT0);
  CHECK(Find<FreeResources>(effects));
  REQUIRE(Find<SendGrant>(effects));
  CHECK(Find<SendGrant>(effects)->lease == LeaseId::FromNumber(4));
  CHECK(machine.size() == 1);
}

TEST_CASE("LeaseMachine: a lease that its holder returned at the node is gone, and the node's report has what it held") {
  LeaseMachine machine = Held();
  CHECK(machine.Step(LeaseEndedAtNode{NodeId::FromNumber(99), kLease}, kT0).empty());   // not that node's
  CHECK(machine.size() == 1);
  CHECK(machine.Step(LeaseEndedAtNode{kNode, kLease}, kT0).empty());
  CHECK(machine.size() == 0);
  // It would be recalled for ever in place of those that are held.
  CHECK(machine.Recall({*ResourceSet::FromMap({{"CPU", 1}}), {}, {}}, {JobId::FromNumber(8)}, 0, {{kNode, ResourceSet()}}, absl::Seconds(1), kT0).empty());
}

TEST_CASE("LeaseMachine: recall asks for as much as the waiting demand needs, once a period, and never for its own shape") {
  LeaseMachine machine = Held();
  scheduler::Shape two{*ResourceSet::FromMap({{"CPU", 1}}), {}, {}};
  std::vector<LeaseMachine::RecallNode> nodes{{kNode, ResourceSet()}};
  CHECK(machine.Recall(two, {kJob}, 0, nodes, absl::Seconds(1), kT0).empty());                    // same job, same shape
  CHECK(machine.Recall({*ResourceSet::FromMap({{"CPU", 5}}), {}, {}}, {kJob}, 0, nodes, absl::Seconds(1), kT0).empty());   // would not suffice
  CHECK(machine.Recall(two, {JobId::FromNumber(8)}, -1, nodes, absl::Seconds(1), kT0).empty());   // a job of less priority
  auto effects = machine.Recall(two, {JobId::FromNumber(8)}, 0, nodes, absl::Seconds(1), kT0);
  REQUIRE(effects.size() == 1);
  CHECK(Find<SendRecall>(effects)->lease == kLease);
  CHECK(machine.Recall(two, {JobId::FromNumber(8)}, 0, nodes, absl::Seconds(1), kT0 + absl::Milliseconds(999)).empty());
  CHECK(machine.Recall(two, {JobId::FromNumber(8)}, 0, nodes, absl::Seconds(1), kT0 + absl::Seconds(1)).size() == 1);
}

}  // namespace
}  // namespace argosy::head
