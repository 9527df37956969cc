#include "runtime/head/actor_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {

const ActorId kActor = ActorId::FromNumber(1);
const WorkerId kWorker = WorkerId::FromNumber(4);
const WorkerId kOwner = WorkerId::FromNumber(5);

ActorRecord Spec(int max_restarts = 0) {
  ActorRecord actor;
  actor.id = kActor;
  actor.job = kJob;
  actor.class_name = "Counter";
  actor.name = "counter";
  actor.name_space = "ns";
  actor.owner = kOwner;
  actor.max_restarts = max_restarts;
  actor.placement.resources = {{"CPU", 1}};
  return actor;
}

template <class T>
const T* Find(const std::vector<ActorEffect>& effects) {
  for (const ActorEffect& effect : effects) {
    if (const T* found = std::get_if<T>(&effect)) return found;
  }
  return nullptr;
}

std::vector<ActorEffect> Place(ActorMachine& actors) {
  return actors.Step(ActorPlaced{kActor, kNode, std::nullopt, *ResourceSet::FromMap({{"CPU", 1}}), LeaseId::FromNumber(1)});
}

ActorMachine Alive(int max_restarts = 0) {
  ActorMachine actors;
  actors.Step(ActorCreated{Spec(max_restarts)});
  Place(actors);
  actors.Step(ActorStarted{kActor, 1, {kWorker, kNode}});
  return actors;
}

TEST_CASE("ActorMachine: an actor is placed, started, and gives back what only placing needed") {
  ActorMachine actors;
  CHECK(Find<WantActorNode>(actors.Step(ActorCreated{Spec()})));
  auto effects = Place(actors);
  REQUIRE(Find<SendStartActor>(effects));
  CHECK(Find<SendStartActor>(effects)->incarnation == 1);
  effects = actors.Step(ActorStarted{kActor, 1, {kWorker, kNode}});
  REQUIRE(Find<FreeActorResources>(effects));
  CHECK(Find<FreeActorResources>(effects)->resources.Get("CPU") == Amount::FromInt(1));
  CHECK(actors.Find(kActor)->state == ActorState::kAlive);
  CHECK(actors.FindName("ns", "counter")->id == kActor);
  CHECK(actors.FindName("other", "counter") == nullptr);
}

TEST_CASE("ActorMachine: a taken name is refused with both sides, and free again after death") {
  ActorMachine actors = Alive();
  ActorRecord other = Spec();
  other.id = ActorId::FromNumber(9);
  other.class_name = "Timer";
  absl::Status status = actors.CheckCreate(other);
  CHECK(status.code() == absl::StatusCode::kAlreadyExists);
  CHECK(std::string(status.message()).find("Counter") != std::string::npos);
  CHECK(std::string(status.message()).find("Timer") != std::string::npos);
  actors.Step(ActorKilled{kActor, true, "enough"});
  CHECK(actors.CheckCreate(other).ok());
  CHECK(actors.Find(kActor)->death_reason == "enough");
}

TEST_CASE("ActorMachine: a dead worker restarts the actor up to max_restarts, each start a new incarnation") {
  ActorMachine actors = Alive(1);
  auto effects = actors.Step(ActorEnded{kActor, 1, "killed by signal 9"});
  CHECK(Find<WantActorNode>(effects));
  CHECK(actors.Find(kActor)->state == ActorState::kRestarting);
  effects = Place(actors);
  CHECK(Find<SendStartActor>(effects)->incarnation == 2);
  CHECK(actors.Step(ActorEnded{kActor, 1, "late"}).empty());   // of the first incarnation
  actors.Step(ActorStarted{kActor, 2, {kWorker, kNode}});
  actors.Step(ActorEnded{kActor, 2, "killed again"});
  CHECK(actors.Find(kActor)->state == ActorState::kDead);
  CHECK(actors.Find(kActor)->death_reason.find("max_restarts=1") != std::string::npos);
}

TEST_CASE("ActorMachine: a constructor that threw, or an intended exit, is the end whatever max_restarts says") {
  ActorMachine actors = Alive(-1);
  actors.Step(ActorEnded{kActor, 1, "exit asked", false, false, true});
  CHECK(actors.Find(kActor)->state == ActorState::kDead);
  ActorMachine failing;
  failing.Step(ActorCreated{Spec(-1)});
  Place(failing);
  failing.Step(ActorEnded{kActor, 1, "bad argument", false, true, false});
  CHECK(failing.Find(kActor)->state == ActorState::kDead);
  CHECK(failing.Find(kActor)->constructor_failed);
}

TEST_CASE("ActorMachine: a refused start is placed again and is no restart") {
  ActorMachine actors;
  actors.Step(ActorCreated{Spec()});
  Place(actors);
  auto effects = actors.Step(ActorEnded{kActor, 1, "no room", true});
  CHECK(Find<WantActorNode>(effects));
  CHECK(Find<FreeActorResources>(effects));
  CHECK(actors.Find(kActor)->state == ActorState::kPending);
  CHECK(actors.Find(kActor)->restarts == 0);
}

TEST_CASE("ActorMachine: refusals are counted until a start succeeds, so that a node is not asked in a hot loop") {
  ActorMachine actors;
  actors.Step(ActorCreated{Spec()});
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
    Place(actors);
    auto effects = actors.Step(ActorEnded{kActor, attempt, "no room", true});
    REQUIRE(Find<WantActorNode>(effects));
    CHECK(Find<WantActorNode>(effects)->refusals == attempt);
  }
  Place(actors);
  actors.Step(ActorStarted{kActor, 4, {}});
  auto effects = actors.Step(ActorEnded{kActor, 4, "no room", true});
  REQUIRE(Find<WantActorNode>(effects));
  CHECK(Find<WantActorNode>(effects)->refusals == 1);
}

TEST_CASE("ActorMachine: a lost node restarts what ran there and places again what was only starting") {
  ActorMachine actors = Alive(0);
  actors.Step(ActorNodeLost{kNode, "n1", "no heartbeat for 10.0 s"});
  CHECK(actors.Find(kActor)->state == ActorState::kDead);
  CHECK(actors.Find(kActor)->death_reason.find("n1") != std::string::npos);
  ActorMachine starting;
  starting.Step(ActorCreated{Spec(0)});
  Place(starting);
  CHECK(Find<WantActorNode>(starting.Step(ActorNodeLost{kNode, "n1", "x"})));
  CHECK(starting.Find(kActor)->state == ActorState::kPending);
}

TEST_CASE("ActorMachine: actors end with their job or owner, detached ones do not") {
  ActorMachine actors = Alive(-1);
  auto effects = actors.Step(ActorJobEnded{kJob, "driver left"});
  REQUIRE(Find<SendStopActor>(effects));
  CHECK(Find<SendStopActor>(effects)->no_restart);
  CHECK(actors.Find(kActor)->state == ActorState::kDead);
  ActorMachine owned = Alive(-1);
  owned.Step(ActorOwnerDied{kOwner, "exit 1"});
  CHECK(owned.Find(kActor)->state == ActorState::kDead);
  ActorMachine detached;
  ActorRecord spec = Spec();
  spec.detached = true;
  detached.Step(ActorCreated{spec});
  CHECK(detached.Step(ActorJobEnded{kJob, ""}).empty());
  CHECK(detached.Step(ActorOwnerDied{kOwner, ""}).empty());
}

TEST_CASE("ActorMachine: after a rejoin what the node lacks is started or restarted, what it should not have is stopped") {
  ActorMachine actors = Alive(1);
  auto effects = actors.Step(ActorNodeRejoined{kNode, {{kActor, 1, {kWorker, kNode}}, {ActorId::FromNumber(8), 1, {kWorker, kNode}}}});
  REQUIRE(Find<SendStopActor>(effects));
  CHECK(Find<SendStopActor>(effects)->actor == ActorId::FromNumber(8));
  CHECK(actors.Find(kActor)->state == ActorState::kAlive);
  actors.Step(ActorNodeRejoined{kNode, {}});
  CHECK(actors.Find(kActor)->state == ActorState::kRestarting);
}

TEST_CASE("ActorMachine: a kill that allows a restart stops the worker and restarts") {
  ActorMachine actors = Alive(1);
  auto effects = actors.Step(ActorKilled{kActor, false, "kick"});
  REQUIRE(Find<SendStopActor>(effects));
  CHECK(!Find<SendStopActor>(effects)->no_restart);
  actors.Step(ActorEnded{kActor, 1, "kick"});
  CHECK(actors.Find(kActor)->state == ActorState::kRestarting);
}

}  // namespace
}  // namespace argosy::head
