#include "runtime/worker/actor_call_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/worker/ids.h"

namespace argosy::worker {
namespace {


wire::ActorInfo Alive(uint64_t incarnation, int max_task_retries = 0) {
  wire::ActorInfo info;
  info.state = wire::ActorInfo::kAlive;
  info.incarnation = incarnation;
  info.max_task_retries = max_task_retries;
  return info;
}

struct ActorFixture {
  ActorCallMachine machine{"counter"};
  ActorCallMachine::Effects effects;
  ActorCallMachine::Effects Take() { return std::exchange(effects, {}); }
  void Call(uint64_t n) {
    machine.Submit(T(n), effects);
    machine.ArgumentsReady(T(n), effects);
  }
};

}  // namespace

TEST_CASE("ActorCallMachine: calls wait for the actor, then for their turn") {
  ActorFixture f;
  f.machine.Submit(T(1), f.effects);
  CHECK(f.Take().resolve == 0u);
  f.Call(2);
  f.machine.Resolved(Alive(1), f.effects);
  CHECK(f.Take().sends.empty());   // the first one's argument is not there
  f.machine.ArgumentsReady(T(1), f.effects);
  auto sends = f.Take().sends;
  REQUIRE(sends.size() == 2);
  CHECK(sends[0].task == T(1));
  CHECK(sends[0].sequence == 0);
  CHECK(sends[1].sequence == 1);
}

TEST_CASE("ActorCallMachine: after a broken connection the same numbers are sent again") {
  ActorFixture f;
  f.Call(1);
  f.Call(2);
  f.machine.Resolved(Alive(1), f.effects);
  f.machine.Answered(T(1));
  f.Take();
  f.machine.Broken(1, f.effects);
  f.machine.Broken(1, f.effects);   // every call of the connection says so
  CHECK(f.Take().ask_fate);
  f.Call(3);
  CHECK(f.Take().sends.empty());
  f.machine.Fate(1, false, "", f.effects);
  auto sends = f.Take().sends;
  REQUIRE(sends.size() == 2);
  CHECK(sends[0].task == T(2));
  CHECK(sends[0].sequence == 1);
  CHECK(sends[0].attempt == 0);
  CHECK(sends[1].sequence == 2);
}

TEST_CASE("ActorCallMachine: after a death what was in flight fails, or is repeated when allowed; the rest goes to the next incarnation") {
  for (int retries : {0, 1}) {
    ActorFixture f;
    f.Call(1);
    f.machine.Resolved(Alive(1, retries), f.effects);
    f.Take();
    f.machine.Broken(1, f.effects);
    f.machine.Fate(1, true, "killed by signal 9", f.effects);
    CHECK(f.Take().resolve == 2u);
    f.Call(2);
    f.machine.Resolved(Alive(2, retries), f.effects);
    auto effects = f.Take();
    if (retries == 0) {
      REQUIRE(effects.failures.size() == 1);
      CHECK(effects.failures[0].error.kind == wire::ErrorInfo::kActorUnavailable);
      REQUIRE(effects.sends.size() == 1);
      CHECK(effects.sends[0].task == T(2));
    } else {
      CHECK(effects.failures.empty());
      REQUIRE(effects.sends.size() == 2);
      CHECK(effects.sends[0].task == T(1));
      CHECK(effects.sends[0].attempt == 1);
    }
    CHECK(effects.sends[0].sequence == 0);
    CHECK(effects.sends[0].incarnation == 2);
  }
}

TEST_CASE("ActorCallMachine: a dead actor fails every call with the reason, now and later") {
  ActorFixture f;
  f.Call(1);
  wire::ActorInfo dead;
  dead.state = wire::ActorInfo::kDead;
  dead.death_reason = "out of luck";
  f.machine.Resolved(dead, f.effects);
  auto effects = f.Take();
  REQUIRE(effects.failures.size() == 1);
  CHECK(effects.failures[0].error.kind == wire::ErrorInfo::kActorDied);
  CHECK(effects.failures[0].error.message.find("out of luck") != std::string::npos);
  f.Call(2);
  CHECK(f.Take().failures.size() == 1);
}

TEST_CASE("ActorCallMachine: news of an older incarnation changes nothing") {
  ActorFixture f;
  f.Call(1);
  f.machine.Resolved(Alive(3), f.effects);
  f.Take();
  f.machine.Broken(2, f.effects);
  f.machine.Fate(2, true, "", f.effects);
  f.machine.Stale(1, f.effects);
  auto effects = f.Take();
  CHECK_FALSE(effects.ask_fate);
  CHECK_FALSE(effects.resolve.has_value());
}

}  // namespace argosy::worker
