#include "runtime/worker/stacks.h"

#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/catch.h"

namespace argosy::worker {
namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool waiting = false;
  bool open = false;
};

// Not exported, and not inlined: its name has to come from the executable's own symbols.
__attribute__((noinline)) void WaitsForTheGate(Gate& gate) {
  std::unique_lock lock(gate.mutex);
  gate.waiting = true;
  gate.changed.notify_all();
  gate.changed.wait(lock, [&] { return gate.open; });
}

}  // namespace

TEST_CASE("AllStacks: every thread is listed with the functions it is in, and goes on") {
  Gate gate;
  std::thread waiter([&] { WaitsForTheGate(gate); });
  {
    std::unique_lock lock(gate.mutex);
    gate.changed.wait(lock, [&] { return gate.waiting; });
  }
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<std::string> text = AllStacks(absl::Seconds(10));
    REQUIRE(text.ok());
    INFO(*text);
    CHECK(text->find("WaitsForTheGate") != std::string::npos);
    CHECK(text->find(", main") != std::string::npos);
    CHECK(text->find("AllStacks") != std::string::npos);
  }
  {
    std::lock_guard lock(gate.mutex);
    gate.open = true;
    gate.changed.notify_all();
  }
  waiter.join();
}

TEST_CASE("AllStacks: a thread that blocks every signal is said not to answer, and does no harm later") {
  std::atomic<bool> blocked = false;
  std::atomic<bool> leave = false;
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    blocked = true;
    while (!leave) std::this_thread::yield();
    pthread_sigmask(SIG_UNBLOCK, &all, nullptr);   // the late signal comes now
  });
  while (!blocked) std::this_thread::yield();
  absl::StatusOr<std::string> text = AllStacks(absl::Milliseconds(200));
  REQUIRE(text.ok());
  CHECK(text->find("did not answer") != std::string::npos);
  leave = true;
  deaf.join();
}

TEST_CASE("AllStacks: a program that uses the signal itself keeps it") {
  struct sigaction own {};
  own.sa_handler = [](int) {};
  struct sigaction before {};
  REQUIRE(::sigaction(SIGRTMAX - 2, &own, &before) == 0);
  CHECK_FALSE(AllStacks(absl::Seconds(1)).ok());
  struct sigaction after {};
  REQUIRE(::sigaction(SIGRTMAX - 2, &before, &after) == 0);
  CHECK(after.sa_handler == own.sa_handler);
}

}  // namespace argosy::worker
