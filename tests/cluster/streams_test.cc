// What the API promises of generators and streams.

#include <signal.h>
#include <unistd.h>

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

argosy::Generator<int> CountTo(int n) {
  for (int i = 1; i <= n; ++i) co_yield i;
}
// Its second value comes when the reader has marked `go`.
argosy::Generator<int> InSteps(std::string go) {
  co_yield 1;
  if (!MarksBecome(go, 1)) throw std::runtime_error("nobody marked it");
  co_yield 2;
}
struct Marking {
  explicit Marking(std::string path) : path(std::move(path)) {}
  ~Marking() { Mark(path); }
  std::string path;
};
argosy::Generator<int> Endless(std::string made, std::string ended) {
  Marking at_the_end(ended);
  for (int i = 0;; ++i) {
    Mark(made);
    co_yield i;
  }
}
argosy::Generator<int> FailsAfter(int n) {
  for (int i = 1; i <= n; ++i) co_yield i;
  throw std::out_of_range("no more");
}
argosy::Generator<argosy::Array<float>> Blocks(int count, int size) {
  for (int i = 0; i < count; ++i) co_yield argosy::Array<float>(std::vector<float>(static_cast<size_t>(size), static_cast<float>(i)));
}
argosy::Generator<int> DiesOnce(std::string path, int at, int n) {
  for (int i = 0; i < n; ++i) {
    if (i == at && Mark(path) == 1) ::kill(::getpid(), SIGKILL);
    co_yield i;
  }
}
argosy::Generator<argosy::ObjectRef<int>> Refs(int n) {
  for (int i = 0; i < n; ++i) co_yield argosy::Put(i * i);
}
float First(const argosy::Array<float>& values) { return values[0]; }
int SumOfStream(int n) {
  int sum = 0;
  for (const argosy::ObjectRef<int>& item : argosy::Task<CountTo>().Submit(n)) sum += argosy::Get(item);
  return sum;
}

class Source {
 public:
  argosy::Generator<std::string> Lines(const std::string& prefix, int n) {
    for (int i = 0; i < n; ++i) co_yield prefix + std::to_string(next_++);
  }

 private:
  int next_ = 0;
};

}  // namespace

TEST_CASE("Stream: values come in order, while the generator runs, and then the end") {
  argosy::Stream<int> counted = argosy::Task<CountTo>().Submit(300);
  int expected = 0;
  for (const argosy::ObjectRef<int>& item : counted) CHECK(argosy::Get(item) == ++expected);
  CHECK(expected == 300);
  CHECK_FALSE(counted.Next(10s).has_value());   // the end stays

  MarkFile go("stream-go");
  argosy::Stream<int> steps = argosy::Task<InSteps>().Submit(go.path());
  CHECK(steps.Read(60s) == 1);
  CHECK_THROWS_AS(steps.Read(50ms), argosy::GetTimeoutError);   // and loses nothing
  Mark(go);
  CHECK(steps.Read(60s) == 2);
  CHECK_FALSE(steps.Read(60s).has_value());
}

TEST_CASE("Stream: a generator waits when as many values are unread as may be") {
  for (int ahead_max : {1, 4, 7}) {
    MarkFile made("stream-made"), ended("stream-ended");
    argosy::Stream<int> stream = argosy::Task<Endless>({.stream_ahead_max = ahead_max}).Submit(made.path(), ended.path());
    // It makes one more than may be unread, and waits with it.
    REQUIRE(MarksBecome(made, ahead_max + 1));
    CHECK(argosy::Get(argosy::Task<SumOfStream>().Submit(100), 60s) == 5050);   // much could have been made meanwhile
    CHECK(Marks(made) == ahead_max + 1);
    for (int i = 0; i < 20; ++i) CHECK(stream.Read(60s) == i);
    REQUIRE(MarksBecome(made, 20 + ahead_max + 1));
    CHECK(Marks(made) == 20 + ahead_max + 1);
    CHECK(Marks(ended) == 0);
    // Who reads no more ends it.
    stream = {};
    CHECK(MarksBecome(ended, 1));
  }
}

TEST_CASE("Stream: an exception comes after the values before it") {
  argosy::Stream<int> stream = argosy::Task<FailsAfter>().Submit(3);
  for (int i = 1; i <= 3; ++i) CHECK(stream.Read(60s) == i);
  try {
    stream.Read(60s);
    FAIL("no exception");
  } catch (const argosy::TaskError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "no more");
  }
}

TEST_CASE("Stream: large values go through shared memory, and each can be an argument") {
  argosy::Stream<argosy::Array<float>> blocks = argosy::Task<Blocks>({.stream_ahead_max = 2}).Submit(6, 100'000);
  std::vector<argosy::ObjectRef<float>> firsts;
  for (const argosy::ObjectRef<argosy::Array<float>>& block : blocks) firsts.push_back(argosy::Task<First>().Submit(block));
  CHECK(argosy::Get(firsts, 60s) == std::vector<float>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("Stream: a generator whose process dies runs again, and no value is read twice") {
  MarkFile died("stream-died");
  argosy::Stream<int> stream = argosy::Task<DiesOnce>().Submit(died.path(), 5, 40);
  for (int i = 0; i < 40; ++i) CHECK(stream.Read(60s) == i);
  CHECK_FALSE(stream.Read(60s).has_value());
  CHECK(Marks(died) == 2);

  MarkFile again("stream-died-for-good");
  // It goes on to value 1 only after value 0 was read; value 1 may be lost with the process.
  argosy::Stream<int> lost = argosy::Task<DiesOnce>({.max_retries = 0, .stream_ahead_max = 1}).Submit(again.path(), 2, 40);
  CHECK(lost.Read(60s) == 0);
  auto read_on = [&] {
    while (lost.Read(60s) == 1) {
    }
  };
  CHECK_THROWS_AS(read_on(), argosy::WorkerDiedError);
}

TEST_CASE("Stream: refs inside values stay good after the generator has ended") {
  std::vector<argosy::ObjectRef<int>> refs;
  argosy::Stream<argosy::ObjectRef<int>> stream = argosy::Task<Refs>().Submit(5);
  while (std::optional<argosy::ObjectRef<int>> ref = stream.Read(60s)) refs.push_back(*ref);
  REQUIRE(refs.size() == 5);
  for (int i = 0; i < 5; ++i) CHECK(argosy::Get(refs[static_cast<size_t>(i)], 60s) == i * i);
}

TEST_CASE("Stream: an actor's method can be a generator, and a task can read one") {
  argosy::Actor<Source> source = argosy::Spawn<Source>({});
  argosy::Stream<std::string> lines = source.Call<&Source::Lines>("line ", 3);
  CHECK(lines.Read(60s) == "line 0");
  CHECK(lines.Read(60s) == "line 1");
  CHECK(lines.Read(60s) == "line 2");
  CHECK_FALSE(lines.Read(60s).has_value());
  CHECK(source.Call<&Source::Lines>("again ", 1).Read(60s) == "again 3");
  CHECK(argosy::Get(argosy::Task<SumOfStream>().Submit(50), 60s) == 1275);
}

TEST_CASE("Stream: a bound that cannot be is refused by name and value") {
  CHECK_THROWS_WITH(argosy::Task<CountTo>({.stream_ahead_max = 0}).Submit(1), "stream_ahead_max is 0; it must be from 1 to 10000");
}
