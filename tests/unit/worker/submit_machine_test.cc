#include "runtime/worker/submit_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/worker/ids.h"

namespace argosy::worker {
namespace {


wire::ErrorInfo Death() {
  wire::ErrorInfo error;
  error.kind = wire::ErrorInfo::kWorkerDied;
  error.message = "killed";
  return error;
}

struct SubmitFixture {
  SubmitMachine machine;
  SubmitMachine::ShapeId shape = machine.Shape("cpu");
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  SubmitMachine::Effects effects;

  SubmitMachine::Effects Take() { return std::exchange(effects, {}); }
  void Submit(uint64_t n, int retries = 3, int priority = 0, absl::Duration deadline = absl::InfiniteDuration()) {
    machine.Submit(T(n), {shape, retries, priority, now + deadline}, now, effects);
  }
  // A lease for the oldest request of `from`, and what was pushed to it.
  std::vector<SubmitMachine::Push> Grant(const SubmitMachine::Effects& from, uint64_t lease) {
    machine.Granted(from.requests.at(0).request, L(lease), now, effects);
    return Take().pushes;
  }
};

}  // namespace

TEST_CASE("SubmitMachine: one request for each waiting task, a push for each grant, a return when idle") {
  SubmitFixture f;
  f.Submit(1);
  f.Submit(2);
  auto effects = f.Take();
  REQUIRE(effects.requests.size() == 2);
  f.machine.Granted(effects.requests[0].request, L(1), f.now, f.effects);
  auto pushed = f.Take();
  REQUIRE(pushed.pushes.size() == 1);
  CHECK(pushed.pushes[0].task == T(1));
  f.now += absl::Seconds(1);   // a long task: no pipeline
  f.machine.Finished(L(1), T(1), f.now, f.effects);
  auto next = f.Take();
  REQUIRE(next.pushes.size() == 1);
  CHECK(next.pushes[0].task == T(2));
  CHECK(next.cancelled_requests == std::vector<uint64_t>{effects.requests[1].request});
  f.machine.Finished(L(1), T(2), f.now, f.effects);
  f.Take();
  CHECK(f.machine.NextTick() == f.now + SubmitLimits().idle_max);
  f.now = f.machine.NextTick();
  f.machine.Tick(f.now, f.effects);
  REQUIRE(f.Take().returns.size() == 1);
  CHECK(f.machine.leases() == 0);
  // A grant for a request that was called off goes back.
  f.machine.Granted(effects.requests[1].request, L(2), f.now, f.effects);
  CHECK(f.Take().returns.size() == 1);
}

TEST_CASE("SubmitMachine: short tasks are pushed in a pipeline, long ones one by one") {
  auto pushed_after_one_of = [](absl::Duration time) {
    SubmitFixture f;
    for (uint64_t n = 1; n <= 300; ++n) f.Submit(n);
    auto effects = f.Take();
    f.machine.Granted(effects.requests[0].request, L(1), f.now, f.effects);
    CHECK(f.Take().pushes.size() == 1);   // nothing is known yet
    f.now += time;
    f.machine.Finished(L(1), T(1), f.now, f.effects);
    return f.Take().pushes.size();
  };
  CHECK(pushed_after_one_of(absl::Microseconds(10)) == 128);
  CHECK(pushed_after_one_of(absl::Microseconds(200)) == 50);   // of 10 ms
  CHECK(pushed_after_one_of(absl::Milliseconds(20)) == 1);
}

TEST_CASE("SubmitMachine: a lease that others wait for goes back as soon as it has no work, and no sooner") {
  SubmitFixture f;
  f.Submit(1);
  f.Submit(2);
  auto effects = f.Take();
  f.machine.Granted(effects.requests[0].request, L(1), f.now, f.effects);
  f.Take();
  f.machine.Wanted(L(1), f.now, f.effects);
  CHECK(f.Take().returns.empty());
  f.machine.Finished(L(1), T(1), f.now, f.effects);
  auto next = f.Take();
  REQUIRE(next.pushes.size() == 1);   // its own work goes on
  CHECK(next.returns.empty());
  f.machine.Finished(L(1), T(2), f.now, f.effects);
  REQUIRE(f.Take().returns.size() == 1);
  CHECK(f.machine.leases() == 0);
  SECTION("at once when it is idle") {
    f.Submit(3);
    f.machine.Granted(f.Take().requests.at(0).request, L(2), f.now, f.effects);
    f.machine.Finished(L(2), T(3), f.now, f.effects);
    CHECK(f.Take().returns.empty());
    f.machine.Wanted(L(2), f.now, f.effects);
    CHECK(f.Take().returns.size() == 1);
  }
}

TEST_CASE("SubmitMachine: a death uses up a try of the running task only, and fails it when none is left") {
  SubmitFixture f;
  f.Submit(1, 0);
  auto request = f.Take().requests.at(0);
  f.machine.Granted(request.request, L(1), f.now, f.effects);
  f.Take();
  f.now += absl::Microseconds(10);
  f.machine.Finished(L(1), T(1), f.now, f.effects);
  f.Submit(2, 1);
  f.Submit(3, 0);
  CHECK(f.Take().pushes.size() == 2);
  f.machine.WorkerLost(L(1), Death(), f.now, f.effects);
  auto lost = f.Take();
  CHECK(lost.failures.empty());   // 2 has a retry, 3 had not started
  REQUIRE(lost.returns.size() == 1);
  CHECK(lost.returns[0].worker_failed);
  f.machine.Granted(lost.requests.at(0).request, L(2), f.now, f.effects);
  auto again = f.Take();
  REQUIRE_FALSE(again.pushes.empty());
  CHECK(again.pushes[0].task == T(2));
  CHECK(again.pushes[0].attempt == 1);
  f.machine.WorkerLost(L(2), Death(), f.now, f.effects);
  auto dead = f.Take();
  REQUIRE(dead.failures.size() == 1);
  CHECK(dead.failures[0].task == T(2));
  CHECK(dead.failures[0].error.message == "killed (try 2 of 2)");
}

TEST_CASE("SubmitMachine: a handed-back task is pushed elsewhere under a new number, without using a retry") {
  SubmitFixture f;
  f.Submit(1);
  f.machine.Granted(f.Take().requests.at(0).request, L(1), f.now, f.effects);
  f.now += absl::Microseconds(10);
  f.machine.Finished(L(1), T(1), f.now, f.effects);
  f.Submit(2, 0);
  f.Submit(3, 0);
  f.Take();
  f.machine.HandedBack(L(1), T(3), f.now, f.effects);
  auto effects = f.Take();
  CHECK(effects.pushes.empty());   // its worker is blocked: not there again
  f.machine.Granted(effects.requests.at(0).request, L(2), f.now, f.effects);
  auto pushed = f.Take();
  REQUIRE(pushed.pushes.size() == 1);
  CHECK(pushed.pushes[0].lease == L(2));
  CHECK(pushed.pushes[0].attempt == 1);
}

TEST_CASE("SubmitMachine: a recalled lease gets nothing more and goes back after what runs") {
  SubmitFixture f;
  f.Submit(1);
  f.machine.Granted(f.Take().requests.at(0).request, L(1), f.now, f.effects);
  f.Take();
  f.machine.Recalled(L(1), f.now, f.effects);
  f.Submit(2);
  auto effects = f.Take();
  CHECK(effects.pushes.empty());
  CHECK(effects.requests.size() == 1);
  f.machine.Finished(L(1), T(1), f.now, f.effects);
  auto after = f.Take();
  CHECK(after.pushes.empty());
  CHECK(after.returns.size() == 1);
}

TEST_CASE("SubmitMachine: a refusal fails what waits, a head that is away is asked again later") {
  SubmitFixture f;
  f.Submit(1);
  auto request = f.Take().requests.at(0);
  f.machine.Denied(request.request, std::nullopt, f.now, f.effects);
  CHECK(f.Take().requests.empty());
  f.now = f.machine.NextTick();
  f.machine.Tick(f.now, f.effects);
  auto again = f.Take();
  REQUIRE(again.requests.size() == 1);
  wire::ErrorInfo error;
  error.kind = wire::ErrorInfo::kRuntime;
  f.machine.Denied(again.requests[0].request, error, f.now, f.effects);
  CHECK(f.Take().failures.size() == 1);
}

TEST_CASE("SubmitMachine: a waiting task is cancelled at once, a pushed one is not tried again") {
  SubmitFixture f;
  f.Submit(1);
  f.Submit(2);
  auto effects = f.Take();
  f.machine.Granted(effects.requests.at(0).request, L(1), f.now, f.effects);
  f.Take();
  CHECK(f.machine.Cancel(T(2), f.now, f.effects));
  CHECK(f.Take().cancelled_requests.size() == 1);
  CHECK_FALSE(f.machine.Cancel(T(1), f.now, f.effects));
  f.machine.WorkerLost(L(1), Death(), f.now, f.effects);
  auto lost = f.Take();
  REQUIRE(lost.failures.size() == 1);
  CHECK(lost.failures[0].error.kind == wire::ErrorInfo::kCancelled);
}

TEST_CASE("SubmitMachine: few leases are asked for at first, and with every grant twice as many, until none is left") {
  SubmitFixture f;
  for (uint64_t task = 1; task <= 100; ++task) f.Submit(task);
  std::vector<SubmitMachine::Request> requests = f.Take().requests;
  CHECK(requests.size() == 2);
  size_t outstanding = requests.size();
  std::vector<size_t> allowed;
  for (uint64_t lease = 1; lease <= 4; ++lease) {
    f.machine.Granted(requests.at(lease - 1).request, L(lease), f.now, f.effects);
    auto effects = f.Take();
    requests.insert(requests.end(), effects.requests.begin(), effects.requests.end());
    outstanding += effects.requests.size() - 1;
    allowed.push_back(outstanding);
  }
  CHECK(allowed == std::vector<size_t>{4, 8, 16, 16});
  for (uint64_t lease = 1; lease <= 4; ++lease) f.machine.WorkerLost(L(lease), Death(), f.now, f.effects);
  CHECK(f.Take().cancelled_requests.size() == 14);
}

TEST_CASE("SubmitMachine: what waits goes by priority, then in the order in which it came") {
  SubmitFixture f;
  f.Submit(1);
  f.Submit(2, 3, -1);
  f.Submit(3, 3, 5);
  f.Submit(4);
  f.Submit(5, 3, 5);
  CHECK(f.machine.WaitingTask(f.shape) == T(3));
  std::vector<SubmitMachine::Request> requests = f.Take().requests;
  std::vector<TaskId> order;
  for (uint64_t lease = 1; lease <= 5; ++lease) {
    f.machine.Granted(requests.at(lease - 1).request, L(lease), f.now, f.effects);
    auto effects = f.Take();
    order.push_back(effects.pushes.at(0).task);
    requests.insert(requests.end(), effects.requests.begin(), effects.requests.end());
  }
  CHECK(order == std::vector<TaskId>{T(3), T(5), T(1), T(4), T(2)});
  // One that comes back is the first of its priority, not of all.
  f.Submit(6, 3, 1);
  f.Submit(7);
  f.Take();
  f.machine.HandedBack(L(3), T(1), f.now, f.effects);
  f.machine.Cancel(T(6), f.now, f.effects);
  CHECK(f.machine.WaitingTask(f.shape) == T(1));
}

TEST_CASE("SubmitMachine: a task that failed in a way to be tried again waits behind the others, until its tries are used up") {
  SubmitFixture f;
  f.Submit(1, 1);
  CHECK(f.Grant(f.Take(), 1).at(0).task == T(1));
  f.Submit(2);
  f.Take();
  REQUIRE(f.machine.FailedOnce(L(1), T(1), f.now, f.effects));
  auto next = f.Take();
  REQUIRE_FALSE(next.pushes.empty());
  CHECK(next.pushes[0].task == T(2));
  f.machine.Finished(L(1), T(2), f.now, f.effects);
  auto again = f.Take();
  auto pushed = next.pushes.size() > 1 ? next.pushes[1] : again.pushes.at(0);
  CHECK(pushed.task == T(1));
  CHECK(pushed.attempt == 1);
  CHECK_FALSE(f.machine.FailedOnce(L(1), T(1), f.now, f.effects));   // no try is left
  CHECK(f.machine.LeaseOf(T(1)) == L(1));                             // and nothing has changed
}

TEST_CASE("SubmitMachine: when a request's deadline passes, only tasks fail whose own has passed") {
  SubmitFixture f;
  f.Submit(1, 3, 0, absl::Seconds(1));
  auto first = f.Take();
  f.now += absl::Milliseconds(900);
  f.Submit(2, 3, 0, absl::Seconds(1));
  f.Take();
  f.now += absl::Milliseconds(100);
  wire::ErrorInfo error;
  error.kind = wire::ErrorInfo::kUnschedulable;
  f.machine.Denied(first.requests.at(0).request, error, f.now, f.effects);
  auto denied = f.Take();
  REQUIRE(denied.failures.size() == 1);
  CHECK(denied.failures[0].task == T(1));
  CHECK(f.machine.waiting(f.shape) == 1);
}

}  // namespace argosy::worker
