// What the API promises of actors beyond the first steps (behaviour_test.cc): coroutines, concurrency groups, bounds, ends, names.

#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include <argosy/argosy.h>

#include "tests/cluster/marks.h"
#include "tests/support/catch.h"

using namespace std::chrono_literals;
using argosy::testing::Mark;
using argosy::testing::MarkFile;
using argosy::testing::Marks;
using argosy::testing::MarksBecome;

namespace {

int Squared(int x) { return x * x; }
int WhenMarked(std::string path, int value) {
  if (!MarksBecome(path, 1)) throw std::runtime_error("nobody marked it");
  return value;
}
int Breaks() { throw std::domain_error("broken"); }

class Waiter {
 public:
  // Waits for the value without holding the thread.
  argosy::Async<int> PlusOne(argosy::ObjectRef<int> later) {
    ++waiting_;
    int value = co_await later;
    --waiting_;
    co_return value + 1;
  }
  argosy::Async<int> SumLater(std::vector<argosy::ObjectRef<int>> refs, const std::string& text) {
    int sum = 0;
    for (int value : co_await refs) sum += value;
    co_return sum + co_await Inner(argosy::Put(100)) + static_cast<int>(text.size());
  }
  argosy::Async<void> Touches(std::string path, argosy::ObjectRef<int> later) {
    co_await later;
    Mark(path);
  }
  // Its own call of another method of this actor, which has one thread.
  argosy::Async<int> AsksItself(argosy::Actor<Waiter> self) { co_return co_await self.Call<&Waiter::Waiting>() + 1000; }
  argosy::Async<int> Sleeps(int millis) {
    co_await argosy::SleepFor(std::chrono::milliseconds(millis));
    co_return millis;
  }
  argosy::Async<void> Leaves() {
    co_await argosy::SleepFor(1ms);
    argosy::Exit();
  }
  int Waiting() { return waiting_; }

 private:
  argosy::Async<int> Inner(argosy::ObjectRef<int> ref) { co_return co_await ref; }
  int waiting_ = 0;
};

// A coroutine as a plain task waits on its thread.
argosy::Async<int> AsTask(argosy::ObjectRef<int> ref) {
  co_await argosy::SleepFor(1ms);
  co_return 2 * co_await ref;
}

class Shelf {
 public:
  // Until somebody puts.
  int Take() {
    auto deadline = std::chrono::steady_clock::now() + 60s;
    while (value_ == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return value_.exchange(0);
  }
  void Lay(int value) { value_ = value; }
  int Look() { return value_; }
  int Hold(std::string started, std::string go) {
    Mark(started);
    return WhenMarked(go, Marks(started));
  }

 private:
  std::atomic<int> value_ = 0;
};

class Base {
 public:
  int Wait(std::string started, std::string go) {
    Mark(started);
    return WhenMarked(go, 1);
  }
};
class Derived : public Base {
 public:
  int Answer() { return 42; }
};

class Named {
 public:
  explicit Named(int id) : id_(id) {}
  int Id() { return id_; }

 private:
  int id_;
};

}  // namespace

TEST_CASE("Coroutine: many calls wait at the same time in an actor with one thread") {
  MarkFile go("coroutine-go");
  argosy::Actor<Waiter> waiter = argosy::Spawn<Waiter>({});
  // It is there before the task, which would keep the only CPU of a node of one from being free for placing it.
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 0);
  argosy::ObjectRef<int> later = argosy::Task<WhenMarked>().Submit(go.path(), 5);
  std::vector<argosy::ObjectRef<int>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(waiter.Call<&Waiter::PlusOne>(later));   // a ref is wanted: it is passed as one
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 20);
  CHECK(argosy::Wait(calls, 1, 1ms).ready.empty());
  Mark(go);
  for (int value : argosy::Get(calls, 60s)) CHECK(value == 6);
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 0);
}

TEST_CASE("Coroutine: co_await takes several refs, other coroutines, calls to its own actor, and time") {
  argosy::Actor<Waiter> waiter = argosy::Spawn<Waiter>({});
  std::vector<argosy::ObjectRef<int>> refs;
  for (int i = 1; i <= 4; ++i) refs.push_back(argosy::Task<Squared>().Submit(i));
  CHECK(argosy::Get(waiter.Call<&Waiter::SumLater>(refs, "four"), 60s) == 1 + 4 + 9 + 16 + 100 + 4);
  CHECK(argosy::Get(waiter.Call<&Waiter::AsksItself>(waiter), 60s) == 1000);
  CHECK(argosy::Get(waiter.Call<&Waiter::Sleeps>(20), 60s) == 20);
  CHECK(argosy::Get(argosy::Task<AsTask>().Submit(refs[3]), 60s) == 32);
}

TEST_CASE("Coroutine: what the ref failed with is thrown where it is awaited") {
  argosy::Actor<Waiter> waiter = argosy::Spawn<Waiter>({});
  try {
    argosy::Get(waiter.Call<&Waiter::PlusOne>(argosy::Task<Breaks>().Submit()), 60s);
    FAIL("no exception");
  } catch (const argosy::TaskError& error) {
    CHECK(std::string(error.what()).find("broken") != std::string::npos);
  }
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 1);   // the actor lives on
}

TEST_CASE("Coroutine: a call that waits is cancelled where it waits") {
  MarkFile go("cancel-go"), touched("cancel-touched");
  argosy::Actor<Waiter> waiter = argosy::Spawn<Waiter>({});
  // It is there before the task, which would keep the only CPU of a node of one from being free for placing it.
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 0);
  argosy::ObjectRef<int> later = argosy::Task<WhenMarked>().Submit(go.path(), 5);
  argosy::ObjectRef<void> call = waiter.Call<&Waiter::Touches>(touched.path(), later);
  CHECK(argosy::Get(waiter.Call<&Waiter::Waiting>(), 60s) == 0);   // it has started, and waits
  argosy::Cancel(call);
  CHECK_THROWS_AS(argosy::Get(call, 60s), argosy::CancelledError);
  Mark(go);
  CHECK(argosy::Get(later, 60s) == 5);
  CHECK(argosy::Get(waiter.Call<&Waiter::PlusOne>(later), 60s) == 6);
  CHECK(Marks(touched) == 0);
}

TEST_CASE("Actor: the methods of a concurrency group have threads of their own") {
  argosy::Actor<Shelf> shelf =
      argosy::Spawn<Shelf>({.concurrency_groups = {{.name = "take", .max_concurrency = 2, .methods = argosy::Methods<&Shelf::Take>()}}});
  argosy::ObjectRef<int> taken = shelf.Call<&Shelf::Take>();
  CHECK(argosy::Get(shelf.Call<&Shelf::Look>(), 60s) == 0);   // while Take waits
  argosy::Get(shelf.Call<&Shelf::Lay>(7), 60s);
  CHECK(argosy::Get(taken, 60s) == 7);
  // A call may choose the group itself; the default one is busy.
  MarkFile started("group-started"), go("group-go");
  argosy::ObjectRef<int> held = shelf.Call<&Shelf::Hold>(started.path(), go.path());
  REQUIRE(MarksBecome(started, 1));
  CHECK(argosy::Get(shelf.CallWith<&Shelf::Look>({.concurrency_group = "take"}), 60s) == 0);
  CHECK_FALSE(held.IsReady());
  Mark(go);
  CHECK(argosy::Get(held, 60s) == 1);
  try {
    argosy::Get(shelf.CallWith<&Shelf::Look>({.concurrency_group = "give"}), 60s);
    FAIL("no exception");
  } catch (const argosy::RuntimeError& error) {
    CHECK(std::string(error.what()).find("no concurrency group \"give\"; it has: \"take\"") != std::string::npos);
  }
  CHECK(argosy::Get(shelf.Call<&Shelf::Look>(), 60s) == 0);   // and the calls behind it go on
}

TEST_CASE("Actor: a group's method may be one of a base class") {
  MarkFile started("base-started"), go("base-go");
  argosy::Actor<Derived> derived =
      argosy::Spawn<Derived>({.concurrency_groups = {{.name = "wait", .methods = argosy::Methods<&Base::Wait>()}}});
  argosy::ObjectRef<int> waits = derived.Call<&Base::Wait>(started.path(), go.path());
  REQUIRE(MarksBecome(started, 1));
  CHECK(argosy::Get(derived.Call<&Derived::Answer>(), 60s) == 42);
  Mark(go);
  CHECK(argosy::Get(waits, 60s) == 1);
}

TEST_CASE("Actor: with max_pending_calls unanswered a caller waits, or is refused when it wants that") {
  MarkFile started("full-started"), go("full-go");
  argosy::Actor<Shelf> shelf = argosy::Spawn<Shelf>({.max_pending_calls = 3, .fail_when_full = true});
  std::vector<argosy::ObjectRef<int>> calls;
  calls.push_back(shelf.Call<&Shelf::Hold>(started.path(), go.path()));
  calls.push_back(shelf.Call<&Shelf::Look>());
  calls.push_back(shelf.Call<&Shelf::Look>());
  try {
    shelf.Call<&Shelf::Look>();
    FAIL("no exception");
  } catch (const argosy::PendingCallsLimitError& error) {
    CHECK(std::string(error.what()).find("3 calls to the actor are unanswered, and max_pending_calls is 3") != std::string::npos);
  }
  Mark(go);
  argosy::Get(calls, 60s);
  CHECK(argosy::Get(shelf.Call<&Shelf::Look>(), 60s) == 0);

  MarkFile again("full-again"), then("full-then");
  argosy::Actor<Shelf> patient = argosy::Spawn<Shelf>({.max_pending_calls = 1});
  argosy::ObjectRef<int> first = patient.Call<&Shelf::Hold>(again.path(), then.path());
  std::atomic<bool> called = false;
  std::thread caller([&] {
    argosy::ObjectRef<int> second = patient.Call<&Shelf::Look>();
    called = true;
    argosy::Get(second, 60s);
  });
  REQUIRE(MarksBecome(again, 1));
  CHECK_FALSE(called);
  Mark(then);
  argosy::Get(first, 60s);
  caller.join();
  CHECK(called);
}

TEST_CASE("Actor: Terminate ends it after the calls before, and lets what runs finish") {
  MarkFile started("end-started"), go("end-go");
  argosy::Actor<Shelf> shelf = argosy::Spawn<Shelf>({.max_restarts = 3, .max_concurrency = 2});
  argosy::ObjectRef<int> held = shelf.Call<&Shelf::Hold>(started.path(), go.path());
  REQUIRE(MarksBecome(started, 1));
  // One that is received and has not started is run too.
  argosy::Actor<Shelf> queued = argosy::Spawn<Shelf>({.concurrency_groups = {{.name = "hold", .methods = argosy::Methods<&Shelf::Hold>()}}});
  argosy::ObjectRef<int> before = queued.Call<&Shelf::Hold>(started.path(), go.path());
  REQUIRE(MarksBecome(started, 2));
  argosy::ObjectRef<int> behind = queued.Call<&Shelf::Hold>(started.path(), go.path());
  argosy::Terminate(queued);
  argosy::Terminate(shelf);
  CHECK(argosy::Wait(std::vector{held, before, behind}, 1, 100ms).ready.empty());
  Mark(go);
  CHECK(argosy::Get(held, 60s) > 0);
  CHECK(argosy::Get(before, 60s) > 0);
  CHECK(argosy::Get(behind, 60s) > 0);
  CHECK_THROWS_AS(argosy::Get(shelf.Call<&Shelf::Look>(), 60s), argosy::ActorDiedError);
  CHECK_THROWS_AS(argosy::Get(queued.Call<&Shelf::Look>(), 60s), argosy::ActorDiedError);
  argosy::Actor<Waiter> waiter = argosy::Spawn<Waiter>({.max_restarts = 3});
  CHECK_THROWS_AS(argosy::Get(waiter.Call<&Waiter::Leaves>(), 60s), argosy::ActorDiedError);   // Exit in a coroutine
}

TEST_CASE("Actor: of one name there is one, and get_if_exists finds it") {
  argosy::Actor<Named> first = argosy::Spawn<Named>({.name = "the-one"}, 1);
  argosy::Actor<Named> same = argosy::Spawn<Named>({.name = "the-one", .get_if_exists = true}, 2);
  CHECK(first == same);
  CHECK(argosy::Get(same.Call<&Named::Id>(), 60s) == 1);
  CHECK_THROWS_AS(argosy::Spawn<Named>({.name = "the-one"}, 3), argosy::Error);
  argosy::Kill(first);
}

TEST_CASE("Actor: groups and bounds that cannot be are refused by name and value") {
  CHECK_THROWS_WITH(argosy::Spawn<Shelf>({.max_pending_calls = 0}), "max_pending_calls is 0; it must be 1 or more");
  CHECK_THROWS_WITH(argosy::Spawn<Shelf>({.concurrency_groups = {{.name = "a"}, {.name = "a"}}}), "two concurrency groups are named \"a\"");
  CHECK_THROWS_WITH(argosy::Spawn<Shelf>({.concurrency_groups = {{.name = "a", .max_concurrency = 0}}}),
                    "max_concurrency of concurrency group \"a\" is 0; it must be from 1 to 1000");
  CHECK_THROWS_WITH(argosy::Spawn<Shelf>({.max_concurrency = 600, .concurrency_groups = {{.name = "a", .max_concurrency = 600}}}),
                    "max_concurrency of the actor and its concurrency groups add up to 1200 threads; 1000 are possible");
}
