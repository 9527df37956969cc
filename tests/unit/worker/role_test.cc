#include "runtime/worker/role.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/catch.h"

namespace argosy::worker {

TEST_CASE("Role: operations of many threads run one at a time and each thread's in order") {
  async::Loop loop;
  LoopRole role(loop);
  role.StartStandby();
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::vector<int>> seen(kThreads);
  std::atomic<int> count = 0, in_time = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        role.Do([&, t, i] {
          seen[static_cast<size_t>(t)].push_back(i);
          ++count;
        });
      }
      // Assertions are the main thread's: Catch has no locks.
      if (role.Await([&] { return count == kThreads * kEach; }, absl::Now() + absl::Seconds(30))) ++in_time;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(in_time == kThreads);
  for (const std::vector<int>& order : seen) {
    REQUIRE(order.size() == kEach);
    for (int i = 0; i < kEach; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  }
  role.Stop();
}

TEST_CASE("Role: what may wait runs in its thread's order, soon, whoever leads") {
  async::Loop loop;
  std::atomic<int> sleeps = 0, on_the_spot = 0;
  LoopRole role(loop, {.before_sleep = [&] { ++sleeps; }, .after_operation = [&] { ++on_the_spot; }});
  std::vector<int> order;
  // Nobody leads and there is no standby: it lies there until the next operation.
  role.DoLater([&] { order.push_back(1); });
  role.DoLater([&] { order.push_back(2); });
  CHECK(order.empty());
  role.Do([&] { order.push_back(3); });
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK(on_the_spot == 1);
  // A crowd is not left to grow.
  for (int i = 0; i < 2000; ++i) role.DoLater([&] { order.push_back(4); });
  CHECK(order.size() > 1000);
  role.Do([] {});
  CHECK(order.size() == 2003);
  // A leader that sleeps wakes for it, long before its sleep's own end after a second (a busy machine may be late now and then).
  bool woken = false;
  for (int i = 0; i < 10 && !woken; ++i) {
    std::atomic<bool> done = false, in_time = false;
    int before = sleeps;
    std::thread leader([&] { in_time = role.Await([&] { return done.load(); }, absl::Now() + absl::Seconds(30)); });
    while (sleeps == before) std::this_thread::yield();
    absl::Time begin = absl::Now();
    role.DoLater([&] { done = true; });
    leader.join();
    CHECK(in_time);
    woken = absl::Now() - begin < absl::Milliseconds(500);
  }
  CHECK(woken);
  // Nor does it need anybody to wait, once there is a standby.
  role.StartStandby();
  std::atomic<bool> later = false;
  role.DoLater([&] { later = true; });
  absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!later && absl::Now() < deadline) std::this_thread::yield();
  CHECK(later);
  role.Stop();
}

TEST_CASE("Role: the standby runs the loop while nobody waits, and gives it back to who does") {
  async::Loop loop;
  LoopRole role(loop);
  role.StartStandby();
  std::atomic<bool> done = false;
  loop.Post([&] { done = true; });   // nobody calls Await
  absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!done && absl::Now() < deadline) std::this_thread::yield();
  CHECK(done);
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> answered = false;
    role.Do([&] { loop.Post([&] { answered = true; }); });
    CHECK(role.Await([&] { return answered.load(); }, absl::Now() + absl::Seconds(20)));
  }
  CHECK_FALSE(role.Await([] { return false; }, absl::Now() + absl::Milliseconds(5)));
  role.Stop();
}

}  // namespace argosy::worker
