// Local mode: everything runs in the calling process.

#include <unistd.h>

#include <stdexcept>

#include <argosy/argosy.h>

#include "tests/cluster/marks.h"
#include "tests/support/catch.h"

using namespace std::chrono_literals;

namespace {

int Pid(int) { return static_cast<int>(::getpid()); }
std::pair<int, std::string> Both(const std::string& text) { return {static_cast<int>(text.size()), text + text}; }
int Fails(int x) { throw std::out_of_range("index " + std::to_string(x)); }
int TriesUntil(std::string path, int times) {
  int tries = argosy::testing::Mark(path);
  if (tries < times) throw std::runtime_error("again");
  return tries;
}
double SumOf(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += value;
  return sum;
}
int SumRefs(const std::vector<argosy::ObjectRef<int>>& refs) {
  int sum = 0;
  for (int value : argosy::Get(refs)) sum += value;
  return sum;
}
argosy::ObjectRef<int> MakeRef(int x) { return argosy::Put(x); }
argosy::Generator<int> Naturals(std::string ended) {
  struct AtEnd {
    ~AtEnd() { argosy::testing::Mark(path); }
    std::string path;
  } at_end{ended};
  for (int i = 0;; ++i) co_yield i;
}
argosy::Generator<int> Broken() {
  co_yield 1;
  throw std::domain_error("broken");
}

class Keeper {
 public:
  explicit Keeper(int start) : value_(start) {
    if (start < 0) throw std::invalid_argument("negative");
  }
  int Add(int n) { return value_ += n; }
  argosy::Async<int> AddLater(argosy::ObjectRef<int> n) { co_return Add(co_await n); }
  int AddTwice(argosy::Actor<Keeper> self, int n) { return argosy::Get(self.Call<&Keeper::Add>(n)) + Add(n); }
  void Leave() { argosy::Exit(); }

 private:
  int value_;
};

}  // namespace

TEST_CASE("Local: tasks run in this process, with values, refs, several returns and errors") {
  CHECK(argosy::Get(argosy::Task<Pid>().Submit(argosy::Put(1))) == static_cast<int>(::getpid()));
  auto [size, twice] = argosy::Task<Both>().SubmitSplit("abc");
  CHECK(argosy::Get(size) == 3);
  CHECK(argosy::Get(twice) == "abcabc");
  CHECK(argosy::Get(argosy::Task<SumOf>().Submit(argosy::Put(argosy::Array<float>(std::vector<float>{1, 2, 3.5f})))) == 6.5);
  argosy::ObjectRef<int> bad = argosy::Task<Fails>().Submit(4);
  CHECK_THROWS_AS(argosy::Get(bad), argosy::TaskError);
  CHECK_THROWS_AS(argosy::Get(argosy::Task<Pid>().Submit(bad)), argosy::TaskError);
  argosy::testing::MarkFile tries("local-tries");
  CHECK(argosy::Get(argosy::Task<TriesUntil>({.max_retries = 5, .retry_exceptions = argosy::RetryOnAny()}).Submit(tries.path(), 3)) == 3);
  CHECK(argosy::Wait(std::vector{size}, 1, 1ms).ready.size() == 1);
  CHECK(argosy::Map<Pid>(std::vector{1, 2}).size() == 2);
}

TEST_CASE("Local: refs inside values keep their objects") {
  std::vector<argosy::ObjectRef<int>> refs;
  for (int i = 1; i <= 4; ++i) refs.push_back(argosy::Put(i));
  CHECK(argosy::Get(argosy::Task<SumRefs>().Submit(refs)) == 10);
  argosy::ObjectRef<argosy::ObjectRef<int>> outer = argosy::Task<MakeRef>().Submit(7);
  CHECK(argosy::Get(argosy::Get(outer)) == 7);
}

TEST_CASE("Local: actors have state and names, and end") {
  argosy::Actor<Keeper> keeper = argosy::Spawn<Keeper>({.name = "keeper"}, 10);
  CHECK(argosy::Get(keeper.Call<&Keeper::Add>(5)) == 15);
  CHECK(argosy::Get(argosy::GetActor<Keeper>("keeper").Call<&Keeper::AddLater>(argosy::Put(1))) == 16);
  CHECK(argosy::Get(keeper.Call<&Keeper::AddTwice>(keeper, 2)) == 18 + 20);
  CHECK(argosy::Spawn<Keeper>({.name = "keeper", .get_if_exists = true}, 0) == keeper);
  CHECK_THROWS_AS(argosy::Spawn<Keeper>({.name = "keeper"}, 0), argosy::RuntimeError);
  CHECK_THROWS_AS(argosy::Get(keeper.Call<&Keeper::Leave>()), argosy::ActorDiedError);
  CHECK_THROWS_AS(argosy::Get(keeper.Call<&Keeper::Add>(1)), argosy::ActorDiedError);
  CHECK_THROWS_AS(argosy::GetActor<Keeper>("keeper"), argosy::NotFoundError);
  argosy::Actor<Keeper> never = argosy::Spawn<Keeper>({}, -1);
  try {
    argosy::Get(never.Call<&Keeper::Add>(1));
    FAIL("no exception");
  } catch (const argosy::ActorDiedError& error) {
    CHECK(std::string(error.what()).find("negative") != std::string::npos);
  }
}

TEST_CASE("Local: a generator runs beside its reader, and ends with it") {
  argosy::testing::MarkFile ended("local-ended");
  {
    argosy::Stream<int> naturals = argosy::Task<Naturals>({.stream_ahead_max = 3}).Submit(ended.path());
    for (int i = 0; i < 50; ++i) CHECK(naturals.Read(30s) == i);
    CHECK(argosy::testing::Marks(ended) == 0);
  }
  CHECK(argosy::testing::Marks(ended) == 1);
  argosy::Stream<int> broken = argosy::Task<Broken>().Submit();
  CHECK(broken.Read(30s) == 1);
  CHECK_THROWS_AS(broken.Read(30s), argosy::TaskError);
}

TEST_CASE("Local: keys and the context are there, and what needs a cluster says so") {
  CHECK(argosy::kv::Put("a", "1"));
  CHECK_FALSE(argosy::kv::Put("a", "2", {.overwrite = false}));
  CHECK(argosy::kv::Get("a") == "1");
  CHECK(argosy::kv::List("a") == std::vector<std::string>{"a"});
  CHECK(argosy::kv::Delete("a"));
  CHECK(argosy::GetRuntimeContext().node_name == "local");
  CHECK(argosy::Nodes().size() == 1);
  CHECK_THROWS_WITH(argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 1}}}}}),
                    "local mode has no cluster: placement groups, channels and explanations need one");
}
