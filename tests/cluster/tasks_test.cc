// What the API promises of tasks beyond the first steps (behaviour_test.cc): tries, several returns, cancelling.

#include <cstdlib>
#include <map>
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

struct Busy : std::runtime_error { using std::runtime_error::runtime_error; };

int BusyAtFirst(std::string path, int times) {
  int tries = Mark(path);
  if (tries <= times) throw Busy("try " + std::to_string(tries));
  return tries;
}
int Wrong(std::string path) {
  Mark(path);
  throw std::logic_error("wrong");
}

std::pair<int, int> Divide(int a, int b) {
  if (b == 0) throw std::domain_error("by zero");
  return {a / b, a % b};
}
std::tuple<std::string, argosy::Array<float>, int> Mixed(int n) {
  return {"text", argosy::Array<float>(std::vector<float>(static_cast<size_t>(n), 1.5f)), n};
}
int Twice(int x) { return 2 * x; }

int UntilCancelled(std::string started, std::string cancelled) {
  Mark(started);
  while (!argosy::GetRuntimeContext().IsCancelled()) std::this_thread::sleep_for(2ms);
  Mark(cancelled);
  throw argosy::CancelledError("as asked");
}
int ParentOf(std::string started, std::string cancelled, int depth) {
  if (depth == 0) return UntilCancelled(started, cancelled);
  return argosy::Get(argosy::Task<ParentOf>().Submit(started, cancelled, depth - 1));
}

std::map<std::string, std::string> Variables(std::vector<std::string> names) {
  std::map<std::string, std::string> values;
  for (const std::string& name : names) {
    if (const char* value = std::getenv(name.c_str())) values[name] = value;
  }
  return values;
}
std::map<std::string, std::string> VariablesBelow(std::vector<std::string> names, std::map<std::string, std::string> more) {
  return argosy::Get(argosy::Task<Variables>({.env_vars = more}).Submit(names));
}
class Room {
 public:
  std::map<std::string, std::string> Seen(std::vector<std::string> names) { return Variables(names); }
};

class Desk {
 public:
  std::array<int, 3> Three(int n) { return {n, n + 1, n + 2}; }
  int Holds(std::string started, std::string cancelled) { return UntilCancelled(started, cancelled); }
  int Touch(std::string path) { return Mark(path); }
};

}  // namespace

TEST_CASE("Task: environment variables of its own, and of what it submits") {
  using Seen = std::map<std::string, std::string>;
  const std::vector<std::string> names{"COLOUR", "SHAPE"};
  const Seen red{{"COLOUR", "red"}}, blue{{"COLOUR", "blue"}}, both{{"COLOUR", "red"}, {"SHAPE", "round"}};
  auto first = argosy::Task<Variables>({.env_vars = red}).Submit(names);
  auto second = argosy::Task<Variables>({.env_vars = blue}).Submit(names);
  auto third = argosy::Task<Variables>().Submit(names);
  CHECK(argosy::Get(first) == red);
  CHECK(argosy::Get(second) == blue);
  CHECK(argosy::Get(third).empty());
  // The workers of before are used again, each for its own.
  CHECK(argosy::Get(argosy::Task<Variables>({.env_vars = red}).Submit(names)) == red);
  CHECK(argosy::Get(argosy::Task<Variables>().Submit(names)).empty());
  CHECK(argosy::Get(argosy::Task<VariablesBelow>({.env_vars = red}).Submit(names, Seen())) == red);
  CHECK(argosy::Get(argosy::Task<VariablesBelow>({.env_vars = red}).Submit(names, Seen{{"SHAPE", "round"}})) == both);
  CHECK(argosy::Get(argosy::Task<VariablesBelow>({.env_vars = red}).Submit(names, blue)) == blue);
}

TEST_CASE("Actor: environment variables of its own") {
  const std::map<std::string, std::string> red{{"COLOUR", "red"}};
  argosy::Actor<Room> room = argosy::Spawn<Room>({.env_vars = red});
  argosy::Actor<Room> plain = argosy::Spawn<Room>({});
  CHECK(argosy::Get(room.Call<&Room::Seen>(std::vector<std::string>{"COLOUR"})) == red);
  CHECK(argosy::Get(plain.Call<&Room::Seen>(std::vector<std::string>{"COLOUR"})).empty());
  argosy::Kill(room);
  argosy::Kill(plain);
}

TEST_CASE("Task and actor: a variable that cannot be set is refused by its name") {
  auto submit = [](const char* name, std::string value) { argosy::Task<Variables>({.env_vars = {{name, std::move(value)}}}).Submit(std::vector<std::string>()); };
  CHECK_THROWS_WITH(submit("A=B", "1"), "env_vars: \"A=B\" cannot be a variable's name; it must have characters, and no '=' among them");
  CHECK_THROWS_WITH(submit("", "1"), "env_vars: \"\" cannot be a variable's name; it must have characters, and no '=' among them");
  CHECK_THROWS_WITH(submit("COLOUR", std::string("r\0d", 3)), "env_vars: the value of COLOUR has a zero byte, which ends it");
  CHECK_THROWS_WITH(submit("ARGOSY_WORKER", "1"), "env_vars: ARGOSY_WORKER is Argosy's own; choose a name that does not begin with ARGOSY_");
  CHECK_THROWS_WITH(argosy::Spawn<Room>({.env_vars = {{"A=B", "1"}}}),
                    "env_vars: \"A=B\" cannot be a variable's name; it must have characters, and no '=' among them");
}

TEST_CASE("Task: an exception of a chosen type is tried again, and one of another type is not") {
  MarkFile path("busy"), never("busy-never"), wrong_path("wrong");
  argosy::Task<BusyAtFirst> patient({.max_retries = 3, .retry_exceptions = argosy::RetryOn<std::runtime_error>()});   // a base of Busy
  CHECK(argosy::Get(patient.Submit(path.path(), 2), 60s) == 3);
  CHECK_THROWS_AS(argosy::Get(argosy::Task<BusyAtFirst>().Submit(never.path(), 2), 60s), argosy::TaskError);
  CHECK(Marks(never) == 1);
  argosy::Task<Wrong> wrong({.retry_exceptions = argosy::RetryOn<Busy, std::out_of_range>()});
  CHECK_THROWS_AS(argosy::Get(wrong.Submit(wrong_path.path()), 60s), argosy::TaskError);
  CHECK(Marks(wrong_path) == 1);
}

TEST_CASE("Task: when its tries are used up the last exception is the result") {
  MarkFile path("used-up");
  try {
    argosy::Get(argosy::Task<BusyAtFirst>({.max_retries = 2, .retry_exceptions = argosy::RetryOnAny()}).Submit(path.path(), 100), 60s);
    FAIL("no exception");
  } catch (const argosy::TaskError& error) {
    CHECK(error.message() == "try 3");
  }
  CHECK(Marks(path) == 3);
}

TEST_CASE("Task: the elements of a tuple can be objects of their own") {
  auto [quotient, remainder] = argosy::Task<Divide>().SubmitSplit(17, 5);
  CHECK(argosy::Get(quotient, 30s) == 3);
  CHECK(argosy::Get(argosy::Task<Twice>().Submit(remainder), 30s) == 4);   // each is an argument by itself
  auto [text, array, number] = argosy::Task<Mixed>().SubmitSplit(200'000);
  CHECK(argosy::Get(text, 30s) == "text");
  CHECK(argosy::Get(array, 30s)[199'999] == 1.5f);
  CHECK(argosy::Get(number) == 200'000);
  CHECK(argosy::Get(argosy::Task<Divide>().Submit(17, 5), 30s) == std::pair(3, 2));   // or stay one
  auto [bad, too] = argosy::Task<Divide>().SubmitSplit(1, 0);
  CHECK_THROWS_AS(argosy::Get(bad, 30s), argosy::TaskError);
  CHECK_THROWS_AS(argosy::Get(too, 30s), argosy::TaskError);
  argosy::Actor<Desk> desk = argosy::Spawn<Desk>({});
  std::array<argosy::ObjectRef<int>, 3> three = desk.CallSplit<&Desk::Three>(7);
  CHECK(argosy::Get(three[2], 30s) == 9);
}

TEST_CASE("Cancel: the tasks that a cancelled task submitted are cancelled too, and theirs") {
  MarkFile started("child-started"), cancelled("child-cancelled");
  argosy::ObjectRef<int> parent = argosy::Task<ParentOf>().Submit(started.path(), cancelled.path(), 2);
  REQUIRE(MarksBecome(started, 1));
  argosy::Cancel(parent);
  CHECK_THROWS_AS(argosy::Get(parent, 30s), argosy::CancelledError);   // it was blocked in Get
  CHECK(MarksBecome(cancelled, 1));
}

TEST_CASE("Cancel: force ends the processes of a task and of its children") {
  MarkFile started("force-started"), cancelled("force-cancelled");
  argosy::ObjectRef<int> parent = argosy::Task<ParentOf>().Submit(started.path(), cancelled.path(), 1);
  REQUIRE(MarksBecome(started, 1));
  argosy::Cancel(parent, {.force = true});
  CHECK_THROWS_AS(argosy::Get(parent, 30s), argosy::CancelledError);
  CHECK(argosy::Get(argosy::Task<Twice>().Submit(4), 60s) == 8);   // the CPUs are free again
}

TEST_CASE("Cancel: a call in an actor's queue is dropped while the one before it still runs") {
  MarkFile started("call-started"), cancelled("call-cancelled"), touched("touched");
  argosy::Actor<Desk> desk = argosy::Spawn<Desk>({});
  argosy::ObjectRef<int> first = desk.Call<&Desk::Holds>(started.path(), cancelled.path());
  REQUIRE(MarksBecome(started, 1));
  argosy::ObjectRef<int> second = desk.Call<&Desk::Touch>(touched.path());
  argosy::ObjectRef<int> third = desk.Call<&Desk::Touch>(touched.path());
  argosy::Cancel(second);
  CHECK_THROWS_AS(argosy::Get(second, 30s), argosy::CancelledError);
  CHECK_FALSE(first.IsReady());
  argosy::Cancel(first);
  CHECK_THROWS_AS(argosy::Get(first, 30s), argosy::CancelledError);
  CHECK(argosy::Get(third, 30s) == 1);
}
