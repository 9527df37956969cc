// What is made of tasks and actors for application developers: Map, ActorPool, Queue.

#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include <argosy/argosy.h>

#include "tests/cluster/marks.h"
#include "tests/support/catch.h"

using namespace std::chrono_literals;
using argosy::testing::Mark;
using argosy::testing::MarkFile;
using argosy::testing::Marks;

namespace {

int Cubed(int x) {
  if (x == 13) throw std::invalid_argument("thirteen");
  return x * x * x;
}
void MarkIt(const std::string& path) { Mark(path); }

class Desk2 {
 public:
  int Slow(int millis) {
    std::this_thread::sleep_for(std::chrono::milliseconds(millis));
    if (busy_.exchange(true)) throw std::logic_error("two calls at a time");
    busy_ = false;
    return millis;
  }
  void Note(const std::string& path) { Mark(path); }

 private:
  std::atomic<bool> busy_ = false;
};

int PutMany(argosy::Queue<int> queue, int first, int count) {
  for (int i = 0; i < count; ++i) queue.Put(first + i);
  return count;
}
std::vector<int> TakeMany(argosy::Queue<int> queue, int count) {
  std::vector<int> taken;
  while (static_cast<int>(taken.size()) < count) taken.push_back(*queue.Take());
  return taken;
}

}  // namespace

TEST_CASE("Map: results are in the order of the inputs, and no more than the bound are in flight") {
  std::vector<int> inputs(100);
  std::iota(inputs.begin(), inputs.end(), 100);
  std::vector<int> cubes = argosy::Map<Cubed>(inputs, {.in_flight_max = 7});
  REQUIRE(cubes.size() == 100);
  for (size_t i = 0; i < 100; ++i) CHECK(cubes[i] == inputs[i] * inputs[i] * inputs[i]);
  CHECK(argosy::Map<Cubed>(std::vector<int>()).empty());
  CHECK_THROWS_AS(argosy::Map<Cubed>(std::vector{1, 13, 2}), argosy::TaskError);
  CHECK_THROWS_WITH(argosy::Map<Cubed>(std::vector{1}, {.in_flight_max = 0}), "in_flight_max is 0; it must be 1 or more");
  MarkFile path("map-marks");
  argosy::Map<MarkIt>(std::vector(5, path.path()));
  CHECK(Marks(path) == 5);
}

TEST_CASE("ActorPool: whichever actor is free gets the next input, and each has one call at a time") {
  std::vector<argosy::Actor<Desk2>> desks;
  for (int i = 0; i < 3; ++i) desks.push_back(argosy::Spawn<Desk2>({.max_concurrency = 2}));
  argosy::ActorPool<Desk2> pool(desks);
  std::vector<int> millis;
  for (int i = 0; i < 30; ++i) millis.push_back(i % 7);
  CHECK(pool.Map<&Desk2::Slow>(millis) == millis);
  std::set<size_t> seen;
  MarkFile path("pool-marks");
  pool.ForEach<&Desk2::Note>(std::vector(10, path.path()), [&](size_t index) { seen.insert(index); });
  CHECK(seen.size() == 10);
  CHECK(Marks(path) == 10);
  CHECK_THROWS_WITH(argosy::ActorPool<Desk2>(std::vector<argosy::Actor<Desk2>>()), "an ActorPool needs at least one actor");
}

TEST_CASE("Queue: items come out in the order in which they went in, in another process") {
  argosy::Queue<int> queue = argosy::MakeQueue<int>({.size_max = 5});
  argosy::ObjectRef<int> put = argosy::Task<PutMany>().Submit(queue, 0, 40);
  argosy::ObjectRef<std::vector<int>> taken = argosy::Task<TakeMany>().Submit(queue, 40);
  std::vector<int> expected(40);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(argosy::Get(taken, 60s) == expected);
  CHECK(argosy::Get(put, 60s) == 40);
  CHECK(queue.Size() == 0);
  queue.Shutdown();
}

TEST_CASE("Queue: when it is full Put waits, when it is empty Take does, and a cancelled Take takes nothing") {
  argosy::Queue<int> queue = argosy::MakeQueue<int>({.size_max = 2});
  CHECK(queue.Put(1, 10s));
  CHECK(queue.Put(2, 10s));
  CHECK_FALSE(queue.Put(3, 50ms));
  CHECK(queue.Size() == 2);
  CHECK(queue.Take(10s) == 1);
  CHECK(queue.Take(10s) == 2);
  CHECK_FALSE(queue.Take(50ms).has_value());
  // Answered by the actor, so that its wait is over then.
  argosy::ObjectRef<std::optional<int>> waits = queue.actor().Call<&argosy::internal::QueueActor<int>::Take>(60.0);
  CHECK(queue.Size() == 0);
  argosy::Cancel(waits);
  CHECK_THROWS_AS(argosy::Get(waits, 60s), argosy::CancelledError);
  CHECK(queue.Put(4, 10s));
  CHECK(queue.Take(30s) == 4);
}
