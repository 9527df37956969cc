#include "scheduler/group_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

namespace {

// A machine and its view; collects effects.
struct Head {
  ClusterView view;
  Prng prng{1};
  GroupMachine machine;
  absl::Time now = At(0);

  std::vector<GroupEffect> Step(const GroupEvent& event) { return machine.Step(event, view, prng, now); }

  // Answers yes to everything until nothing is asked any more; what is not an order to a node.
  std::vector<GroupEffect> Settle(std::vector<GroupEffect> effects) {
    std::vector<GroupEffect> said;
    for (size_t i = 0; i < effects.size(); ++i) {
      std::vector<GroupEffect> next;
      if (auto* prepare = std::get_if<SendPrepare>(&effects[i]))
        next = Step(NodePrepared{prepare->node, prepare->group, prepare->attempt});
      else if (auto* commit = std::get_if<SendCommit>(&effects[i]))
        next = Step(NodeCommitted{commit->node, commit->group, commit->attempt});
      else said.push_back(effects[i]);
      effects.insert(effects.end(), next.begin(), next.end());
    }
    return said;
  }
};

GroupDemand Bundles(GroupStrategy strategy, int count, const std::map<std::string, double>& amounts) {
  GroupDemand demand{strategy, {}};
  for (int i = 0; i < count; ++i) demand.bundles.push_back({Res(amounts), {}});
  return demand;
}

template <class T>
std::vector<T> Only(const std::vector<GroupEffect>& effects) {
  std::vector<T> found;
  for (const GroupEffect& effect : effects) {
    if (auto* e = std::get_if<T>(&effect)) found.push_back(*e);
  }
  return found;
}

}  // namespace

TEST_CASE("GroupMachine: prepares on every node, then commits, then is ready and shown in the view") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  AddNode(head.view, 2, {{"CPU", 1}});
  auto prepares = Only<SendPrepare>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kSpread, 2, {{"CPU", 1}})}));
  REQUIRE(prepares.size() == 2);
  CHECK(head.view.Available().IsEmpty());
  CHECK(head.Step(NodePrepared{prepares[0].node, G(1), prepares[0].attempt}).empty());
  CHECK(head.Step(NodePrepared{prepares[0].node, G(1), prepares[0].attempt}).empty());
  auto commits = Only<SendCommit>(head.Step(NodePrepared{prepares[1].node, G(1), prepares[1].attempt}));
  REQUIRE(commits.size() == 2);
  CHECK(head.Step(NodeCommitted{commits[0].node, G(1), commits[0].attempt}).empty());
  auto ready = Only<GroupReady>(head.Step(NodeCommitted{commits[1].node, G(1), commits[1].attempt}));
  REQUIRE(ready.size() == 1);
  CHECK(head.view.FindBundle({G(1), 0})->id == ready[0].nodes[0]);
  CHECK(head.machine.Find(G(1))->state == GroupState::kReady);

  auto removed = head.Step(RemoveGroup{G(1)});
  CHECK(Only<SendReturn>(removed).size() == 2);
  CHECK(Only<GroupRemoved>(removed).size() == 1);
  CHECK(head.view.Available() == Res({{"CPU", 2}}));
  CHECK(Only<GroupRemoved>(head.Step(RemoveGroup{G(1)})).size() == 1);
}

TEST_CASE("GroupMachine: a refused prepare returns all, and the group is tried again after a delay") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  AddNode(head.view, 2, {{"CPU", 1}});
  auto prepares = Only<SendPrepare>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kSpread, 2, {{"CPU", 1}})}));
  REQUIRE(prepares.size() == 2);
  head.Step(NodePrepared{prepares[0].node, G(1), prepares[0].attempt});
  auto failed = head.Step(PrepareFailed{prepares[1].node, G(1), prepares[1].attempt, "CPU: 0 of 1 free"});
  auto returns = Only<SendReturn>(failed);
  REQUIRE(returns.size() == 1);
  CHECK(returns[0].node == prepares[0].node);
  REQUIRE(Only<GroupPending>(failed).size() == 1);
  CHECK(head.view.Available() == Res({{"CPU", 2}}));
  // The late answer of the attempt that is over changes nothing.
  CHECK(head.Step(NodePrepared{prepares[1].node, G(1), prepares[1].attempt}).empty());

  CHECK(head.machine.NextTick() == At(0.1));
  head.now = At(0.05);
  CHECK(head.Step(Tick{}).empty());
  head.now = At(0.1);
  auto again = head.Step(Tick{});
  CHECK(Only<SendPrepare>(again).size() == 2);
  CHECK(Only<SendPrepare>(again)[0].attempt > prepares[0].attempt);
  CHECK(Only<GroupReady>(head.Settle(again)).size() == 1);
}

TEST_CASE("GroupMachine: a node that forgot its prepared bundles starts the attempt again") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  AddNode(head.view, 2, {{"CPU", 1}});
  auto prepares = Only<SendPrepare>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kPack, 2, {{"CPU", 1}})}));
  REQUIRE(prepares.size() == 2);
  head.Step(NodePrepared{prepares[0].node, G(1)});
  auto commit = Only<SendCommit>(head.Step(NodePrepared{prepares[1].node, G(1)})).at(0);
  CHECK(Only<GroupPending>(head.Step(CommitFailed{commit.node, G(1), commit.attempt, "not prepared here"})).size() ==
        1);
  head.now = At(1);
  CHECK(Only<GroupReady>(head.Settle(head.Step(Tick{}))).size() == 1);
}

TEST_CASE("GroupMachine: bundles on one node are prepared and committed by one order") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 2}});
  auto prepare = Only<SendPrepare>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kPack, 2, {{"CPU", 1}})})).at(0);
  CHECK(prepare.commit);
  CHECK(prepare.bundles.size() == 2);
  auto refused = head.Step(PrepareFailed{prepare.node, G(1), prepare.attempt, "CPU: 0 of 1 free"});
  CHECK(Only<SendReturn>(refused).empty());
  head.now = At(1);
  prepare = Only<SendPrepare>(head.Step(Tick{})).at(0);
  auto said = head.Step(NodePrepared{prepare.node, G(1), prepare.attempt});
  CHECK(Only<SendCommit>(said).empty());
  CHECK(Only<GroupReady>(said).size() == 1);
  CHECK(head.view.FindBundle({G(1), 1})->id == N(1));
}

TEST_CASE("GroupMachine: of many waiting groups that ask for the same one is looked at, and each is served in its turn") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  REQUIRE(head.view.Take(N(1), Res({{"CPU", 1}})).ok());
  for (uint64_t g = 1; g <= 50; ++g) {
    auto said = Only<GroupPending>(head.Step(CreateGroup{G(g), Bundles(GroupStrategy::kPack, 1, {{"CPU", 1}})}));
    REQUIRE(said.size() == 1);
    CHECK(said[0].group == G(g));
    CHECK(said[0].feasible);
    CHECK(!said[0].explanation.empty());
  }
  REQUIRE(head.view.Give(N(1), Res({{"CPU", 1}})).ok());
  std::vector<GroupEffect> effects = head.Step(Tick{});
  for (uint64_t g = 1; g <= 50; ++g) {
    auto ready = Only<GroupReady>(head.Settle(std::move(effects)));
    REQUIRE(ready.size() == 1);
    CHECK(ready[0].group == G(g));
    if (g < 50) CHECK(!head.machine.Find(G(g + 1))->explanation.empty());
    effects = head.Step(RemoveGroup{G(g)});
  }
}

TEST_CASE("GroupMachine: a lost node's bundles are placed again, the others stay") {
  Head head;
  for (uint64_t i = 1; i <= 3; ++i) AddNode(head.view, i, {{"CPU", 1}});
  auto ready = Only<GroupReady>(
                   head.Settle(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kStrictSpread, 2, {{"CPU", 1}})})))
                   .at(0);
  REQUIRE(head.view.MarkLost(ready.nodes[0], head.now).ok());
  auto lost = head.Step(NodeLost{ready.nodes[0]});
  REQUIRE(Only<GroupRescheduling>(lost).size() == 1);
  CHECK(Only<GroupRescheduling>(lost)[0].bundles == std::vector<int>{0});
  auto again = Only<GroupReady>(head.Settle(lost));
  REQUIRE(again.size() == 1);
  CHECK(again[0].nodes[1] == ready.nodes[1]);
  CHECK(again[0].nodes[0] != ready.nodes[0]);
  CHECK(again[0].nodes[0] != again[0].nodes[1]);

  // With no node left for it the group waits, and keeps what it has.
  REQUIRE(head.view.MarkLost(again[0].nodes[0], head.now).ok());
  auto pending = Only<GroupPending>(head.Settle(head.Step(NodeLost{again[0].nodes[0]})));
  REQUIRE(pending.size() == 1);
  CHECK_FALSE(pending[0].feasible);
  CHECK(head.machine.Find(G(1))->state == GroupState::kRescheduling);
  CHECK(head.view.FindBundle({G(1), 1})->id == ready.nodes[1]);
}

TEST_CASE("GroupMachine: a node lost while it prepares ends the attempt") {
  Head head;
  for (uint64_t i = 1; i <= 3; ++i) AddNode(head.view, i, {{"CPU", 1}});
  auto prepares =
      Only<SendPrepare>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kStrictSpread, 2, {{"CPU", 1}})}));
  REQUIRE(head.view.MarkLost(prepares[0].node, head.now).ok());
  auto effects = head.Step(NodeLost{prepares[0].node});
  REQUIRE(Only<SendReturn>(effects).size() == 1);
  CHECK(Only<SendReturn>(effects)[0].node == prepares[1].node);
  CHECK(Only<SendPrepare>(effects).size() == 2);
  CHECK(Only<GroupRescheduling>(effects).empty());
  CHECK(Only<GroupReady>(head.Settle(effects)).size() == 1);
}

TEST_CASE("GroupMachine: the first that waits keeps its nodes for a bounded time, then lets others try") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 4}});
  REQUIRE(head.view.Take(N(1), Res({{"CPU", 1}})).ok());
  auto first = head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kPack, 1, {{"CPU", 4}})});
  REQUIRE(Only<SetContended>(first).size() == 1);
  CHECK(head.view.Find(N(1))->contended);
  CHECK_FALSE(Place(head.view, Needs({{"CPU", 1}}), head.prng).has_value());
  // A small group that came later stays off the node.
  auto second = head.Step(CreateGroup{G(2), Bundles(GroupStrategy::kPack, 1, {{"CPU", 1}})});
  CHECK(Only<SendPrepare>(second).empty());
  CHECK(head.machine.NextTick() == At(10));
  head.now = At(10);
  auto tick = head.Step(Tick{});
  CHECK(Only<SetContended>(tick).size() == 1);
  REQUIRE(Only<SendPrepare>(tick).size() == 1);
  CHECK(Only<SendPrepare>(tick)[0].group == G(2));
  head.Settle(tick);
  // Everything ends: the first is served.
  head.Step(RemoveGroup{G(2)});
  REQUIRE(head.view.UpdateAvailable(N(1), Res({{"CPU", 4}})).ok());
  CHECK(Only<GroupReady>(head.Settle(head.Step(Tick{}))).size() == 1);
}

TEST_CASE("GroupMachine: a group that nothing can satisfy says so once and holds nobody up") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  auto never = Only<GroupPending>(head.Step(CreateGroup{G(1), Bundles(GroupStrategy::kPack, 1, {{"CPU", 9}})}));
  REQUIRE(never.size() == 1);
  CHECK_FALSE(never[0].feasible);
  CHECK(head.Step(Tick{}).empty());
  CHECK(Only<GroupReady>(head.Settle(head.Step(CreateGroup{G(2), Bundles(GroupStrategy::kPack, 1, {{"CPU", 1}})})))
            .size() == 1);
  AddNode(head.view, 2, {{"CPU", 9}});
  CHECK(Only<GroupReady>(head.Settle(head.Step(Tick{}))).size() == 1);
}

TEST_CASE("GroupMachine: bad demands and too many groups are refused") {
  GroupMachine machine(GroupMachine::Options{.groups_max = 1});
  ClusterView view;
  Prng prng(1);
  CHECK_FALSE(machine.CheckCreate({G(1), {}}).ok());
  CreateGroup create{G(1), Bundles(GroupStrategy::kPack, 1, {{"CPU", 1}})};
  REQUIRE(machine.CheckCreate(create).ok());
  machine.Step(create, view, prng, At(0));
  CHECK(machine.CheckCreate(create).ok());
  create.group = G(2);
  CHECK(machine.CheckCreate(create).code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("GroupMachine: a restored group takes back the bundles that its nodes hold, and places only what is gone") {
  Head head;
  for (uint64_t n = 1; n <= 3; ++n) AddNode(head.view, n, {{"CPU", 1}});
  const ResourceSet cpu = Res({{"CPU", 1}});
  head.Step(RestoreGroup{G(1), Bundles(GroupStrategy::kStrictSpread, 2, {{"CPU", 1}})});
  head.Step(RestoreGroup{G(2), Bundles(GroupStrategy::kPack, 1, {{"CPU", 1}})});
  CHECK(Only<SendPrepare>(head.Step(Tick{})).empty());
  CHECK(head.machine.Find(G(1))->state == GroupState::kRestored);
  CHECK_FALSE(head.machine.Find(G(1))->explanation.empty());

  // The node's report of what is free comes without its bundles.
  REQUIRE(head.view.UpdateAvailable(N(2), ResourceSet()).ok());
  CHECK(head.Step(BundleHeld{N(2), G(1), 1, cpu, true}).empty());
  CHECK(head.view.FindBundle({G(1), 1})->id == N(2));
  CHECK(head.view.Find(N(2))->available.IsEmpty());
  // Not twice, not what was only prepared, not of another size, not of unknown groups.
  CHECK(Only<SendReturn>(head.Step(BundleHeld{N(3), G(1), 1, cpu, true})).size() == 1);
  CHECK(Only<SendReturn>(head.Step(BundleHeld{N(3), G(1), 0, cpu, false})).size() == 1);
  CHECK(Only<SendReturn>(head.Step(BundleHeld{N(3), G(1), 0, Res({{"CPU", 0.5}}), true})).size() == 1);
  CHECK(Only<SendReturn>(head.Step(BundleHeld{N(3), G(9), 0, cpu, true})).size() == 1);
  CHECK(Only<SendReturn>(head.Step(BundleHeld{N(3), G(1), 7, cpu, true})).size() == 1);

  auto ready = Only<GroupReady>(head.Step(BundleHeld{N(3), G(2), 0, cpu, true}));
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].group == G(2));

  // The third node never had it: its bundle is placed again, the other stays where it is.
  REQUIRE(head.view.UpdateAvailable(N(3), ResourceSet()).ok());
  auto settled = head.Step(RestoreSettled{});
  CHECK(Only<GroupRescheduling>(settled).at(0).bundles == std::vector<int>{0});
  ready = Only<GroupReady>(head.Settle(settled));
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].nodes == std::vector<NodeId>{N(1), N(2)});
}

TEST_CASE("GroupMachine: a restored group whose nodes are lost or that had none is placed like a new one") {
  Head head;
  AddNode(head.view, 1, {{"CPU", 1}});
  AddNode(head.view, 2, {{"CPU", 1}});
  head.Step(RestoreGroup{G(1), Bundles(GroupStrategy::kPack, 2, {{"CPU", 1}})});
  REQUIRE(head.view.UpdateAvailable(N(1), ResourceSet()).ok());
  head.Step(BundleHeld{N(1), G(1), 0, Res({{"CPU", 1}}), true});
  REQUIRE(head.view.MarkLost(N(1), head.now).ok());
  head.Step(NodeLost{N(1)});
  CHECK(head.machine.Find(G(1))->state == GroupState::kRestored);
  head.Step(RestoreSettled{});
  CHECK(head.machine.Find(G(1))->state == GroupState::kPending);
  AddNode(head.view, 3, {{"CPU", 1}});
  CHECK(Only<GroupReady>(head.Settle(head.Step(Tick{}))).size() == 1);
  CHECK(Only<GroupReady>(head.Step(RestoreSettled{})).empty());   // said again: nothing is restored any more
}

}  // namespace argosy::scheduler
