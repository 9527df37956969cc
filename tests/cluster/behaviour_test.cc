// What the API promises, as stories. Run against a small node daemon (tests/unit/api, also under the sanitizers) and against real
// clusters (tests/cluster); the executable is driver and worker.

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <argosy/argosy.h>

#include "tests/support/catch.h"

using namespace std::chrono_literals;

namespace {

int Square(int x) { return x * x; }
int Fib(int n) {
  if (n < 2) return n;
  argosy::ObjectRef<int> a = argosy::Task<Fib>().Submit(n - 1);
  argosy::ObjectRef<int> b = argosy::Task<Fib>().Submit(n - 2);
  return argosy::Get(a) + argosy::Get(b);
}
void Nothing() {}
std::string Repeat(std::string text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}
int Fails(int x) { throw std::out_of_range("index " + std::to_string(x)); }
argosy::Array<float> Ramp(int n) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0.0f);
  return argosy::Array<float>(std::move(values));
}
double Sum(std::span<const float> values) { return std::accumulate(values.begin(), values.end(), 0.0); }
double SumOfRefs(const std::vector<argosy::ObjectRef<int>>& refs) {
  double sum = 0;
  for (const argosy::ObjectRef<int>& ref : refs) sum += argosy::Get(ref);
  return sum;
}
// A ref in a result: its owner is the worker that made it.
std::vector<argosy::ObjectRef<int>> MakeRefs(int n) {
  std::vector<argosy::ObjectRef<int>> refs;
  for (int i = 0; i < n; ++i) refs.push_back(argosy::Put(i));
  return refs;
}
// Dies the first `times` times it runs, counted in a file.
int DieAtFirst(std::string path, int times) {
  std::ofstream(path, std::ios::app) << "x";
  std::ifstream in(path);
  std::string marks((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (static_cast<int>(marks.size()) <= times) ::kill(::getpid(), SIGKILL);
  return static_cast<int>(marks.size());
}
bool SleepUntilCancelled() {
  while (!argosy::GetRuntimeContext().IsCancelled()) std::this_thread::sleep_for(5ms);
  throw argosy::CancelledError("as asked");
}
int AsInt(bool value) { return value ? 1 : 0; }
int SleepMillis(int millis) {
  std::this_thread::sleep_for(std::chrono::milliseconds(millis));
  return millis;
}

class Counter {
 public:
  explicit Counter(int start) : value_(start) {
    if (start < 0) throw std::invalid_argument("start is " + std::to_string(start));
  }
  int Add(int n) { return value_ += n; }
  int Pid() const { return static_cast<int>(::getpid()); }
  std::vector<int> History() const { return history_; }
  void Note(int n) { history_.push_back(n); }
  bool Restarted() const { return argosy::GetRuntimeContext().WasRestarted(); }
  void Leave() { argosy::Exit(); }
  int Hold(argosy::ObjectRef<int> ref) {
    held_ = ref;
    return 0;
  }
  int Held() { return argosy::Get(held_); }
  void Drop() { held_ = {}; }

 private:
  int value_;
  std::vector<int> history_;
  argosy::ObjectRef<int> held_;
};

// Its constructor throws what is not text.
class Thrower {
 public:
  explicit Thrower(int) { throw std::runtime_error("bytes \xff\xfe"); }
  int Call() { return 0; }
};

class Meeting {
 public:
  explicit Meeting(int) {}
  int MeetAll(int others) {
    ++here_;
    auto deadline = std::chrono::steady_clock::now() + 20s;
    while (here_ < others && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return here_;
  }

 private:
  std::atomic<int> here_ = 0;
};

class Talker {
 public:
  explicit Talker(int) {}
  argosy::Endpoint Where() { return argosy::ThisEndpoint(); }
  // Sends what it has and receives as much, at the same time.
  uint64_t Accepts(std::string name, int bytes) { return Exchange(argosy::Channel::Accept(name, 20s), bytes); }
  uint64_t Connects(argosy::Endpoint peer, std::string name, int bytes) {
    return Exchange(argosy::Channel::Connect(peer, name, 20s), bytes);
  }

 private:
  static uint64_t Exchange(argosy::Channel channel, int bytes) {
    std::vector<std::byte> out(static_cast<size_t>(bytes)), in(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 31);
    std::thread sender([&] { channel.Send(out, 20s); });
    channel.Receive(in, 20s);
    sender.join();
    return in == out ? in.size() : 0;
  }
};

std::string TempPath(const char* name) { return "/tmp/argosy-test-" + std::to_string(::getpid()) + "-" + name; }

}  // namespace

TEST_CASE("Task: values go out and results come back") {
  CHECK(argosy::Get(argosy::Task<Square>().Submit(7)) == 49);
  CHECK(argosy::Get(argosy::Task<Repeat>().Submit("ab", 3)) == "ababab");
  argosy::Get(argosy::Task<Nothing>().Submit());
  std::vector<argosy::ObjectRef<int>> refs;
  for (int i = 0; i < 300; ++i) refs.push_back(argosy::Task<Square>().Submit(i));
  std::vector<int> values = argosy::Get(refs, 60s);
  for (int i = 0; i < 300; ++i) CHECK(values[static_cast<size_t>(i)] == i * i);
}

TEST_CASE("Task: a ref is an argument like any other, also of a task that waits") {
  argosy::ObjectRef<int> nine = argosy::Task<Square>().Submit(3);
  CHECK(argosy::Get(argosy::Task<Square>().Submit(nine)) == 81);
  CHECK(argosy::Get(argosy::Task<Square>().Submit(argosy::Put(5))) == 25);
}

TEST_CASE("Task: an exception arrives with its type, message and place") {
  argosy::ObjectRef<int> bad = argosy::Task<Fails>().Submit(4);
  try {
    argosy::Get(bad);
    FAIL("no exception");
  } catch (const argosy::TaskError& error) {
    CHECK(error.type() == "std::out_of_range");
    CHECK(error.message() == "index 4");
    CHECK(error.where().find("Fails") != std::string::npos);
  }
  // Whatever needs it fails with the same error, without running.
  CHECK_THROWS_AS(argosy::Get(argosy::Task<Square>().Submit(bad)), argosy::TaskError);
}

TEST_CASE("Task: big arrays travel through shared memory in both directions") {
  argosy::ObjectRef<argosy::Array<float>> ramp = argosy::Task<Ramp>().Submit(500'000);
  argosy::Array<float> values = argosy::Get(ramp);
  REQUIRE(values.size() == 500'000);
  CHECK(values[499'999] == 499'999.0f);
  CHECK(argosy::Get(argosy::Task<Sum>().Submit(ramp)) == Approx(500'000.0 * 499'999 / 2));
  argosy::ObjectRef<argosy::Array<float>> put = argosy::Put(values);
  CHECK(argosy::Get(put)[1234] == 1234.0f);
  // The same bytes, mapped: two reads of one object see one address.
  CHECK(argosy::Get(put).data() == argosy::Get(put).data());
  std::vector<float> mine(100'000, 0.5f);
  CHECK(argosy::Get(argosy::Task<Sum>().Submit(std::span<const float>(mine))) == Approx(50'000.0));
}

TEST_CASE("Task: recursion on one CPU ends, since a worker that waits lends its CPU") {
  CHECK(argosy::Get(argosy::Task<Fib>().Submit(8), 110s) == 21);
}

TEST_CASE("Task: a killed worker's task is tried again") {
  std::string path = TempPath("retry");
  CHECK(argosy::Get(argosy::Task<DieAtFirst>().Submit(path, 2), 60s) == 3);
  ::unlink(path.c_str());
}

TEST_CASE("Task: a task that kills its worker too often fails with a typed error") {
  std::string path = TempPath("fail");
  argosy::ObjectRef<int> ref = argosy::Task<DieAtFirst>({.max_retries = 1}).Submit(path, 100);
  try {
    argosy::Get(ref, 60s);
    FAIL("no exception");
  } catch (const argosy::WorkerDiedError& error) {
    CHECK(std::string(error.what()).find("signal 9") != std::string::npos);
    CHECK(std::string(error.what()).find("try 2 of 2") != std::string::npos);
  }
  ::unlink(path.c_str());
}

TEST_CASE("Task: one that no node can run fails with the explanation") {
  CHECK_THROWS_AS(argosy::Get(argosy::Task<Square>({.resources = {{"unobtainium", 1}}, .deadline = 1s}).Submit(1)),
                  argosy::UnschedulableError);
}

TEST_CASE("Get: a deadline passes without losing the value") {
  argosy::ObjectRef<int> slow = argosy::Task<SleepMillis>().Submit(300);
  CHECK_THROWS_AS(argosy::Get(slow, 20ms), argosy::GetTimeoutError);
  CHECK(argosy::Get(slow, 30s) == 300);
}

TEST_CASE("Wait: returns what is there and what is not") {
  argosy::ObjectRef<int> fast = argosy::Put(1);
  argosy::ObjectRef<int> slow = argosy::Task<SleepMillis>().Submit(400);
  argosy::WaitResult<int> result = argosy::Wait(std::vector{slow, fast}, 1, 10s);
  REQUIRE(result.ready.size() == 1);
  CHECK(result.ready[0] == fast);
  CHECK(result.pending[0] == slow);
  CHECK(argosy::Wait(std::vector{slow, fast}, 2, 30s).ready.size() == 2);
  CHECK(argosy::Wait(std::vector{argosy::Task<SleepMillis>().Submit(300)}, 1, 10ms).ready.empty());
}

TEST_CASE("Cancel: a waiting task is dropped and a running one is told") {
  argosy::ObjectRef<bool> running = argosy::Task<SleepUntilCancelled>().Submit();
  argosy::ObjectRef<int> waiting = argosy::Task<AsInt>().Submit(running);   // for its argument
  CHECK_THROWS_AS(argosy::Get(running, 300ms), argosy::GetTimeoutError);
  argosy::Cancel(waiting);
  CHECK_THROWS_AS(argosy::Get(waiting, 10s), argosy::CancelledError);
  argosy::Cancel(running);
  CHECK_THROWS_AS(argosy::Get(running, 10s), argosy::CancelledError);
}

TEST_CASE("Refs: refs inside values and results keep their objects alive and can be read") {
  std::vector<argosy::ObjectRef<int>> refs;
  for (int i = 0; i < 5; ++i) refs.push_back(argosy::Task<Square>().Submit(i));
  CHECK(argosy::Get(argosy::Task<SumOfRefs>().Submit(refs), 30s) == 30);
  argosy::ObjectRef<std::vector<argosy::ObjectRef<int>>> outer = argosy::Task<MakeRefs>().Submit(4);
  std::vector<argosy::ObjectRef<int>> inner = argosy::Get(outer, 30s);
  outer = {};
  REQUIRE(inner.size() == 4);
  CHECK(argosy::Get(inner[3], 30s) == 3);
}

TEST_CASE("Refs: one of the many in a value outlives the value, unused until then or not") {
  using Ints = std::vector<argosy::ObjectRef<int>>;
  argosy::ObjectRef<Ints> outer = argosy::Task<MakeRefs>().Submit(2000);
  argosy::ObjectRef<int> unused, read_by_two, passed, put_again;
  {
    Ints inner = argosy::Get(outer, 30s);
    REQUIRE(inner.size() == 2000);
    unused = inner[1999];
    read_by_two = inner[7];
    passed = inner[30];
    put_again = inner[5];
  }
  outer = {};
  int there = 0;
  std::thread other([&] { there = argosy::Get(read_by_two, 30s); });
  CHECK(argosy::Get(read_by_two, 30s) == 7);
  other.join();
  CHECK(there == 7);
  CHECK(argosy::Get(argosy::Task<Square>().Submit(passed), 30s) == 900);
  passed = {};
  argosy::ObjectRef<Ints> again = argosy::Put(Ints{put_again});
  put_again = {};
  Ints inner_again = argosy::Get(again, 30s);
  again = {};
  CHECK(argosy::Get(argosy::Task<SumOfRefs>().Submit(inner_again), 30s) == 5);
  CHECK(argosy::Get(unused, 30s) == 1999);
}

TEST_CASE("Refs: those in a value of many bytes do not keep it") {
  std::pair<argosy::ObjectRef<int>, std::string> value(argosy::Put(11), std::string(5 << 20, 'x'));
  auto outer = argosy::Put(value);
  argosy::ObjectRef<int> kept = argosy::Get(outer).first;
  value.first = {};
  outer = {};
  CHECK(argosy::Get(kept, 30s) == 11);
}

TEST_CASE("Actor: state, order and a result as an argument") {
  argosy::Actor<Counter> counter = argosy::Spawn<Counter>({.name = "counter"}, 10);
  CHECK(argosy::Get(counter.Call<&Counter::Add>(argosy::Task<Square>().Submit(3)), 30s) == 19);
  std::vector<argosy::ObjectRef<void>> notes;
  for (int i = 0; i < 200; ++i) notes.push_back(counter.Call<&Counter::Note>(i));
  std::vector<int> history = argosy::Get(counter.Call<&Counter::History>(), 30s);
  REQUIRE(history.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(history[static_cast<size_t>(i)] == i);
  argosy::Actor<Counter> same = argosy::GetActor<Counter>("counter");
  CHECK(argosy::Get(same.Call<&Counter::Add>(1)) == 20);
  CHECK_THROWS_AS(argosy::GetActor<Counter>("nobody"), argosy::NotFoundError);
  argosy::Kill(counter);
  CHECK_THROWS_AS(argosy::Get(counter.Call<&Counter::Add>(1), 30s), argosy::ActorDiedError);
}

TEST_CASE("Actor: a constructor's exception is what the calls throw") {
  argosy::Actor<Counter> bad = argosy::Spawn<Counter>({}, -1);
  try {
    argosy::Get(bad.Call<&Counter::Add>(1), 30s);
    FAIL("no exception");
  } catch (const argosy::ActorDiedError& error) {
    CHECK(std::string(error.what()).find("start is -1") != std::string::npos);
  }
}

TEST_CASE("Actor: bytes that are no text, in an exception or a name, cost neither the node nor the cluster") {
  argosy::Actor<Thrower> bad = argosy::Spawn<Thrower>({}, 1);
  try {
    argosy::Get(bad.Call<&Thrower::Call>(), 30s);
    FAIL("no exception");
  } catch (const argosy::ActorDiedError& error) {
    CHECK(std::string(error.what()).find("bytes ") != std::string::npos);
  }
  CHECK(argosy::Get(argosy::Task<Square>().Submit(6), 30s) == 36);
}

TEST_CASE("Actor: options that cannot be are refused by name and value") {
  for (int concurrency : {-1, 0, 1'000'000}) {
    CHECK_THROWS_WITH(argosy::Spawn<Counter>({.max_concurrency = concurrency}, 0),
                      "max_concurrency is " + std::to_string(concurrency) + "; it must be from 1 to 1000");
  }
  CHECK_THROWS_WITH(argosy::Spawn<Counter>({.max_restarts = -2}, 0), "max_restarts is -2; it must be 0 or more, or -1: without bound");
  CHECK_THROWS_WITH(argosy::Task<Square>({.max_retries = -2}).Submit(1), "max_retries is -2; it must be 0 or more, or -1: without bound");
}

TEST_CASE("Actor: restarts after a crash, and calls in flight are repeated when allowed") {
  argosy::Actor<Counter> counter = argosy::Spawn<Counter>({.max_restarts = 1, .max_task_retries = 1}, 5);
  int pid = argosy::Get(counter.Call<&Counter::Pid>(), 30s);
  CHECK_FALSE(argosy::Get(counter.Call<&Counter::Restarted>()));
  ::kill(pid, SIGKILL);
  CHECK(argosy::Get(counter.Call<&Counter::Add>(1), 30s) == 6);   // a new object
  CHECK(argosy::Get(counter.Call<&Counter::Restarted>()));
  ::kill(argosy::Get(counter.Call<&Counter::Pid>()), SIGKILL);
  CHECK_THROWS_AS(argosy::Get(counter.Call<&Counter::Add>(1), 30s), argosy::ActorDiedError);
}

TEST_CASE("Actor: Exit ends it without a restart") {
  argosy::Actor<Counter> counter = argosy::Spawn<Counter>({.max_restarts = 5}, 0);
  CHECK_THROWS_AS(argosy::Get(counter.Call<&Counter::Leave>(), 30s), argosy::ActorDiedError);
  CHECK_THROWS_AS(argosy::Get(counter.Call<&Counter::Add>(1), 30s), argosy::ActorDiedError);
}

TEST_CASE("Actor: a kept ref stays readable after its owner dropped its own") {
  argosy::Actor<Counter> counter = argosy::Spawn<Counter>({}, 0);
  {
    argosy::ObjectRef<int> value = argosy::Task<Square>().Submit(12);
    argosy::Get(counter.Call<&Counter::Hold>(value), 30s);
  }
  CHECK(argosy::Get(counter.Call<&Counter::Held>(), 30s) == 144);
  argosy::Get(counter.Call<&Counter::Drop>());
}

TEST_CASE("Actor: max_concurrency runs calls at the same time") {
  argosy::Actor<Meeting> meeting = argosy::Spawn<Meeting>({.max_concurrency = 3}, 0);
  std::vector<argosy::ObjectRef<int>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(meeting.Call<&Meeting::MeetAll>(3));
  for (int here : argosy::Get(calls, 60s)) CHECK(here == 3);
}

TEST_CASE("Channel: two actors stream to each other at the same time") {
  argosy::Actor<Talker> a = argosy::Spawn<Talker>({}, 0);
  argosy::Actor<Talker> b = argosy::Spawn<Talker>({}, 0);
  argosy::Endpoint where = argosy::Get(a.Call<&Talker::Where>(), 30s);
  argosy::ObjectRef<uint64_t> one = a.Call<&Talker::Accepts>("pair", 8 << 20);
  argosy::ObjectRef<uint64_t> two = b.Call<&Talker::Connects>(where, "pair", 8 << 20);
  CHECK(argosy::Get(one, 60s) == 8u << 20);
  CHECK(argosy::Get(two, 60s) == 8u << 20);
}

TEST_CASE("Channel: the driver may be an end, and a deadline or an abort ends a wait") {
  argosy::Channel out = argosy::Channel::Connect(argosy::ThisEndpoint(), "self", 5s);
  argosy::Channel in = argosy::Channel::Accept("self", 5s);
  std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}}, got{};
  out.Send(sent, 5s);
  in.Receive(got, 5s);
  CHECK(got == sent);
  CHECK_THROWS_AS(in.Receive(got, 30ms), argosy::GetTimeoutError);
  std::thread aborts([&] { in.Abort("enough"); });
  CHECK_THROWS_AS(out.Receive(got, 10s), argosy::Error);
  aborts.join();
  CHECK_THROWS_AS(argosy::Channel::Accept("nobody", 30ms), argosy::GetTimeoutError);
}

TEST_CASE("KV: values are kept by key") {
  CHECK(argosy::kv::Put("a", "1"));
  CHECK_FALSE(argosy::kv::Put("a", "2"));
  CHECK(argosy::kv::Get("a") == "2");
  CHECK_FALSE(argosy::kv::Get("b").has_value());
}
