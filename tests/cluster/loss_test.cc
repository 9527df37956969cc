// Objects of a node that dies: made again by their tasks, or an error that says why not.

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "tests/cluster/loss.h"
#include "tests/cluster/marks.h"
#include "tests/support/catch.h"

using namespace std::chrono_literals;
using argosy::testing::LossyCluster;
using argosy::testing::Mark;
using argosy::testing::MarkFile;
using argosy::testing::Marks;

namespace {

constexpr int kMany = 100'000;   // ints: more than travels inline

argosy::Array<int> Filled(int value) { return argosy::Array<int>(std::vector<int>(kMany, value)); }

argosy::Array<int> MarkedFill(const std::string& path, int value) {
  Mark(path);
  return Filled(value);
}
argosy::Array<int> Plus(const std::string& path, const argosy::Array<int>& values, int more) {
  Mark(path);
  std::vector<int> sums(values.begin(), values.end());
  for (int& sum : sums) sum += more;
  return argosy::Array<int>(std::move(sums));
}
std::pair<argosy::Array<int>, argosy::Array<int>> TwoFills(const std::string& path, int value) {
  Mark(path);
  return {Filled(value), Filled(value + 1)};
}
std::string Text(const std::string&, int value) { return std::string(200'000, static_cast<char>('a' + value)); }
int64_t Total(const argosy::Array<int>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }
int64_t TotalOf(const std::vector<argosy::ObjectRef<argosy::Array<int>>>& refs) {
  int64_t total = 0;
  for (const auto& ref : refs) total += Total(argosy::Get(ref));
  return total;
}
argosy::Array<int> SumInside(const std::string& path, const std::vector<argosy::ObjectRef<argosy::Array<int>>>& refs) {
  Mark(path);
  return Filled(static_cast<int>(TotalOf(refs) / kMany));
}

// Takes the MiB that are asked of this run, for as long as `until` is not marked (if it is given). Without, a run that takes much waits to be ended.
int Hoard(const std::string& path, const std::vector<int>& mebibytes, const std::string& until) {
  size_t run = static_cast<size_t>(Mark(path)) - 1;
  int mine = mebibytes.at(std::min(run, mebibytes.size() - 1));
  std::string hoard(static_cast<size_t>(mine) << 20, 'x');
  auto deadline = std::chrono::steady_clock::now() + 60s;
  bool waits = !until.empty() || mine > 300;
  while (waits && std::chrono::steady_clock::now() < deadline && (until.empty() || Marks(until) == 0)) std::this_thread::sleep_for(5ms);
  return hoard[hoard.size() / 2] == 'x' ? mine : -1;
}

class Maker {
 public:
  argosy::Array<int> Make(int value) { return Filled(value); }
  std::string Node() { return argosy::GetRuntimeContext().node_name; }
};

template <class T>
std::string WhyLost(const argosy::ObjectRef<T>& ref) {
  try {
    argosy::Get(ref, 90s);
  } catch (const argosy::ObjectLostError& error) {
    return error.what();
  } catch (const argosy::Error& error) {
    return std::string("another error: ") + error.what();
  }
  return "not lost";
}

void CheckSays(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  for (const std::string& part : parts) CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("Loss: what was on a node that died is made again by its tasks, once, with all that they need") {
  argosy::NodeId doomed = LossyCluster::Add({.name = "doomed", .num_cpus = 2, .resources = {{"doomed", 1}}});
  argosy::TaskOptions there{.strategy = argosy::OnNode{.node = doomed, .soft = true}};
  MarkFile one("loss-one"), first("loss-first"), second("loss-second"), third("loss-third"), two("loss-two"), inside("loss-inside"),
      again("loss-again");

  // What is kept of tasks is bounded to 1 MiB here: the first of these is forgotten by the time the last is kept.
  argosy::ObjectRef<std::string> forgotten = argosy::Task<Text>(there).Submit(std::string(90'000, 'x'), 0);
  argosy::Wait(std::vector{forgotten}, 1, 60s);
  std::vector<argosy::ObjectRef<std::string>> fillers;
  for (int i = 1; i <= 12; ++i) fillers.push_back(argosy::Task<Text>(there).Submit(std::string(90'000, 'x'), i));
  argosy::Wait(fillers, fillers.size(), 60s);
  fillers.clear();

  argosy::ObjectRef<argosy::Array<int>> single = argosy::Task<MarkedFill>(there).Submit(one.path(), 3);
  // Of the chain only the end is held; what is between was deleted when its last reader had ended.
  argosy::ObjectRef<argosy::Array<int>> end;
  {
    argosy::ObjectRef<argosy::Array<int>> start = argosy::Task<MarkedFill>(there).Submit(first.path(), 1);
    argosy::ObjectRef<argosy::Array<int>> middle = argosy::Task<Plus>(there).Submit(second.path(), start, 10);
    end = argosy::Task<Plus>(there).Submit(third.path(), middle, 100);
  }
  auto [left, right] = argosy::Task<TwoFills>(there).SubmitSplit(two.path(), 7);
  argosy::ObjectRef<argosy::Array<int>> of_refs;
  {
    std::vector<argosy::ObjectRef<argosy::Array<int>>> parts;
    for (int i = 1; i <= 3; ++i) parts.push_back(argosy::Task<MarkedFill>(there).Submit(inside.path(), i));
    of_refs = argosy::Task<SumInside>(there).Submit(again.path(), parts);
  }

  // What cannot be made again.
  argosy::TaskOptions no_tries = there;
  no_tries.max_retries = 0;
  argosy::ObjectRef<argosy::Array<int>> untried = argosy::Task<Filled>(no_tries).Submit(1);
  argosy::Actor<Maker> maker = argosy::Spawn<Maker>({.strategy = argosy::OnNode{doomed}});
  argosy::ObjectRef<argosy::Array<int>> of_actor = maker.Call<&Maker::Make>(1);
  argosy::ObjectRef<argosy::Array<int>> of_put;
  MarkFile put_run("loss-put");
  {
    argosy::ObjectRef<argosy::Array<int>> put = argosy::Put(Filled(5));
    of_put = argosy::Task<Plus>(there).Submit(put_run.path(), put, 1);
  }
  argosy::ObjectRef<argosy::Array<int>> held_put = argosy::Put(Filled(5));
  MarkFile held_run("loss-held");
  argosy::ObjectRef<argosy::Array<int>> of_held_put = argosy::Task<Plus>(there).Submit(held_run.path(), held_put, 1);

  std::vector<argosy::ObjectRef<argosy::Array<int>>> all{single, end, left, right, of_refs, untried, of_actor, of_put, of_held_put};
  REQUIRE(argosy::Wait(all, all.size(), 120s).ready.size() == all.size());
  LossyCluster::cluster->KillNode("doomed");

  // Several readers at once, in this process and in others, and it runs once more.
  std::vector<argosy::ObjectRef<int64_t>> readers;
  for (int i = 0; i < 3; ++i) readers.push_back(argosy::Task<Total>().Submit(single));
  std::vector<int64_t> totals(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < totals.size(); ++i) threads.emplace_back([&, i] { totals[i] = Total(argosy::Get(single, 90s)); });
  for (std::thread& thread : threads) thread.join();
  for (int64_t total : totals) CHECK(total == 3 * kMany);
  for (int64_t total : argosy::Get(readers, 90s)) CHECK(total == 3 * kMany);
  CHECK(Marks(one) == 2);

  CHECK(Total(argosy::Get(end, 90s)) == 111 * kMany);
  CHECK(Marks(first) == 2);
  CHECK(Marks(second) == 2);
  CHECK(Marks(third) == 2);

  CHECK(Total(argosy::Get(left, 90s)) == 7 * kMany);
  CHECK(Total(argosy::Get(right, 90s)) == 8 * kMany);
  CHECK(Marks(two) == 2);

  CHECK(Total(argosy::Get(of_refs, 90s)) == 6 * kMany);
  CHECK(Marks(inside) == 6);
  CHECK(Marks(again) == 2);

  CHECK(Total(argosy::Get(of_held_put, 90s)) == 6 * kMany);

  CheckSays(WhyLost(forgotten), {"not rebuildable", "limited to 1 MiB"});
  CheckSays(WhyLost(untried), {"not rebuildable", "no tries left", "which is lost"});
  CheckSays(WhyLost(of_actor), {"not rebuildable", "result of an actor's call"});
  CheckSays(WhyLost(of_put), {"not rebuildable", "stored by Put"});
}

TEST_CASE("Loss: each time it is made again uses up a try") {
  MarkFile runs("loss-tries");
  argosy::ObjectRef<argosy::Array<int>> ref;
  // Read only on such nodes, so that no copy is left elsewhere.
  argosy::TaskOptions there{.resources = {{"frail", 1}}};
  for (int loss = 0; loss < 2; ++loss) {
    std::string name = "frail-" + std::to_string(loss);
    LossyCluster::Add({.name = name, .num_cpus = 1, .resources = {{"frail", 4}}});
    if (loss == 0) ref = argosy::Task<MarkedFill>({.resources = {{"frail", 1}}, .max_retries = 1}).Submit(runs.path(), 2);
    // The second time it is made on the new node, while its reader waits there.
    CHECK(argosy::Get(argosy::Task<Total>(there).Submit(ref), 90s) == 2 * kMany);
    CHECK(Marks(runs) == loss + 1);
    LossyCluster::cluster->KillNode(name);
  }
  LossyCluster::Add({.name = "frail-2", .num_cpus = 1, .resources = {{"frail", 4}}});
  CheckSays(WhyLost(argosy::Task<Total>(there).Submit(ref)), {"not rebuildable", "no tries left"});
  LossyCluster::cluster->KillNode("frail-2");
}

TEST_CASE("Loss: tasks that begin while their argument is made again lend their CPUs to that") {
  argosy::NodeId brief = LossyCluster::Add({.name = "brief", .num_cpus = 1});
  MarkFile runs("brief-runs"), started("brief-started"), until("brief-until");
  argosy::ObjectRef<argosy::Array<int>> ref =
      argosy::Task<MarkedFill>({.strategy = argosy::OnNode{.node = brief, .soft = true}}).Submit(runs.path(), 4);
  REQUIRE(argosy::Wait(std::vector{ref}, 1, 60s).ready.size() == 1);
  // All CPUs that will be left are taken; behind these wait readers, and last, when the loss is known, whoever makes it again.
  argosy::TaskOptions here{.strategy = argosy::OnNode{.node = LossyCluster::IdOf("first")}};
  std::vector<argosy::ObjectRef<int>> holders;
  for (int i = 0; i < 2; ++i) holders.push_back(argosy::Task<Hoard>(here).Submit(started.path(), std::vector<int>{1}, until.path()));
  REQUIRE(argosy::testing::MarksBecome(started, 2));
  std::vector<argosy::ObjectRef<int64_t>> readers;
  for (int i = 0; i < 3; ++i) readers.push_back(argosy::Task<Total>(here).Submit(ref));
  LossyCluster::cluster->KillNode("brief");
  int64_t total = 0;
  std::thread reader([&] { total = Total(argosy::Get(ref, 90s)); });
  CHECK(LossyCluster::BecomesTrue([] { return LossyCluster::Argosy("list tasks --filter state=PENDING").find("MarkedFill") != std::string::npos; }));
  argosy::testing::Mark(until);
  reader.join();
  CHECK(total == 4 * kMany);
  for (int64_t read : argosy::Get(readers, 90s)) CHECK(read == 4 * kMany);
  argosy::Get(holders, 60s);
  CHECK(Marks(runs) == 2);
}

TEST_CASE("Drain: a node that is drained moves its objects to others before it leaves, and nothing runs twice") {
  LossyCluster::Add({.name = "heir", .num_cpus = 1, .resources = {{"heir", 1}}});
  argosy::NodeId leaver = LossyCluster::Add({.name = "leaver", .num_cpus = 1, .resources = {{"leaver", 4}}, .object_store_memory = 8u << 20});
  argosy::TaskOptions there{.strategy = argosy::OnNode{.node = leaver, .soft = true}};
  MarkFile runs("drain-runs");
  std::vector<argosy::ObjectRef<argosy::Array<int>>> refs;
  // More than its memory holds: what is on its disk moves too.
  for (int i = 0; i < 30; ++i) refs.push_back(argosy::Task<MarkedFill>(there).Submit(runs.path(), i));
  argosy::TaskOptions no_tries = there;
  no_tries.max_retries = 0;
  for (int i = 30; i < 33; ++i) refs.push_back(argosy::Task<MarkedFill>(no_tries).Submit(runs.path(), i));
  REQUIRE(argosy::Wait(refs, refs.size(), 120s).ready.size() == refs.size());
  argosy::ObjectRef<argosy::Array<int>> dropped = argosy::Task<MarkedFill>(there).Submit(runs.path(), 99);
  argosy::Wait(std::vector{dropped}, 1, 60s);
  dropped = {};
  REQUIRE(LossyCluster::Argosy("drain leaver --wait").find("has left") != std::string::npos);
  CHECK_FALSE(LossyCluster::IsAlive("leaver"));
  for (size_t i = 0; i < refs.size(); ++i) CHECK(Total(argosy::Get(refs[i], 90s)) == static_cast<int64_t>(i) * kMany);
  CHECK(Marks(runs) == 34);
}

TEST_CASE("Drain: objects move while a task still runs there; what came after it was undone moves when it begins again") {
  argosy::NodeId busy = LossyCluster::Add({.name = "busy", .num_cpus = 2});
  argosy::TaskOptions there{.strategy = argosy::OnNode{.node = busy}, .max_retries = 0};
  MarkFile runs("busy-runs"), started("busy-started"), until("busy-until");
  argosy::ObjectRef<int> holder = argosy::Task<Hoard>(there).Submit(started.path(), std::vector<int>{1}, until.path());
  REQUIRE(argosy::testing::MarksBecome(started, 1));
  std::vector<argosy::ObjectRef<argosy::Array<int>>> refs;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 5; ++i) refs.push_back(argosy::Task<MarkedFill>(there).Submit(runs.path(), 5 * round + i));
    REQUIRE(argosy::Wait(refs, refs.size(), 60s).ready.size() == refs.size());
    REQUIRE_FALSE(LossyCluster::Argosy("drain busy").empty());
    auto is_empty = [] {
      std::string said = LossyCluster::Argosy("memory");
      std::size_t line = said.find("node busy: ");
      return line != std::string::npos && said.substr(line, said.find('\n', line) - line).find("used by 0 objects") != std::string::npos;
    };
    REQUIRE(LossyCluster::BecomesTrue(is_empty));
    if (round == 0) REQUIRE_FALSE(LossyCluster::Argosy("drain busy --undo").empty());
  }
  CHECK(LossyCluster::IsAlive("busy"));
  argosy::testing::Mark(until);
  CHECK(argosy::Get(holder, 60s) == 1);
  CHECK(LossyCluster::BecomesTrue([] { return !LossyCluster::IsAlive("busy"); }));
  for (size_t i = 0; i < refs.size(); ++i) CHECK(Total(argosy::Get(refs[i], 90s)) == static_cast<int64_t>(i) * kMany);
  CHECK(Marks(runs) == 10);
}

TEST_CASE("Memory: a worker that takes more than the node's workers may is ended, with its use in the error, and tried again") {
  LossyCluster::Add({.name = "tight", .num_cpus = 4, .resources = {{"tight", 4}},
                     .flags = {"--workers-memory-max", "300M", "--memory-watch-period", "50"}});
  argosy::TaskOptions there{.resources = {{"tight", 1}}};
  MarkFile modest_runs("memory-modest"), hog_runs("memory-hog"), once_runs("memory-once"), done("memory-done");
  argosy::TaskOptions once = there;
  once.max_retries = 0;
  // Older, and not to be run again: it is left alone.
  argosy::ObjectRef<int> modest = argosy::Task<Hoard>(once).Submit(modest_runs.path(), std::vector<int>{20}, done.path());
  REQUIRE(argosy::testing::MarksBecome(modest_runs, 1));
  argosy::ObjectRef<int> hog = argosy::Task<Hoard>(there).Submit(hog_runs.path(), std::vector<int>{500, 500, 10}, std::string());
  CHECK(argosy::Get(hog, 120s) == 10);
  CHECK(Marks(hog_runs) == 3);
  try {
    argosy::Get(argosy::Task<Hoard>(once).Submit(once_runs.path(), std::vector<int>{500}, std::string()), 120s);
    FAIL("it was not ended");
  } catch (const argosy::OutOfMemoryError& error) {
    CheckSays(error.what(), {"memory ran short", "it used ", "MiB", "may take 300.0 MiB", "--workers-memory-max", "Hoard"});
  }
  Mark(done);
  CHECK(argosy::Get(modest, 60s) == 20);
  CHECK(Marks(modest_runs) == 1);
  LossyCluster::cluster->KillNode("tight");
}

TEST_CASE("Memory: one daemon watches the host for all, and ends work of each; retries go on until they are used up", "[short]") {
  MarkFile here("short-here"), there("short-there"), never("short-never");
  for (const auto& [node, path] : {std::pair("first", here.path()), std::pair("second", there.path())}) {
    argosy::TaskOptions options{.strategy = argosy::OnNode{LossyCluster::IdOf(node)}, .max_retries = 1};
    try {
      argosy::Get(argosy::Task<Hoard>(options).Submit(path, std::vector<int>{50}, never.path()), 120s);
      FAIL("it was not ended");
    } catch (const argosy::OutOfMemoryError& error) {
      // In a container with less memory than its host that is what runs short.
      bool in_group = std::string(error.what()).find("of the control group's ") != std::string::npos;
      CheckSays(error.what(), {"memory ran short", "it used ", in_group ? "of the control group's " : "of the host's ",
                               "work is ended from 0.1%", "try 2 of 2"});
    }
    CHECK(Marks(path) <= 2);   // a try may end before it has marked anything
  }
  int watching = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::getenv("ARGOSY_SESSIONS_DIR"))) {
    if (entry.path().filename() != "node.log") continue;
    std::ifstream log(entry.path());
    for (std::string line; std::getline(log, line);) watching += line.find("watches this host's memory") != std::string::npos;
  }
  CHECK(watching == 1);
}

TEST_CASE("Spill: three times the store's size is put and read back, on this node and on another") {
  constexpr int kInts = 1 << 20;   // 4 MiB
  std::vector<argosy::ObjectRef<argosy::Array<int>>> refs;
  for (int i = 0; i < 48; ++i) refs.push_back(argosy::Put(argosy::Array<int>(std::vector<int>(kInts, i))));
  LossyCluster::Add({.name = "reader", .num_cpus = 1, .resources = {{"reader", 1}}});
  std::vector<argosy::ObjectRef<int64_t>> totals;
  for (const auto& ref : refs) totals.push_back(argosy::Task<Total>({.resources = {{"reader", 1}}}).Submit(ref));
  for (size_t i = 0; i < refs.size(); ++i) {
    CHECK(Total(argosy::Get(refs[i], 60s)) == static_cast<int64_t>(i) * kInts);
    CHECK(argosy::Get(totals[i], 60s) == static_cast<int64_t>(i) * kInts);
  }
  LossyCluster::cluster->KillNode("reader");
}

TEST_CASE("Groups: the bundle of a node that died is reserved again elsewhere, and its actor restarts there") {
  for (const char* name : {"g1", "g2", "g3"}) LossyCluster::Add({.name = name, .num_cpus = 1, .resources = {{"g", 1}}});
  argosy::PlacementGroup group = argosy::CreatePlacementGroup(
      {.bundles = {{.resources = {{"g", 1}}}, {.resources = {{"g", 1}}}}, .strategy = argosy::GroupStrategy::kStrictSpread});
  group.Ready(60s);
  std::vector<argosy::NodeId> before = group.BundleNodes();
  argosy::Actor<Maker> actor = argosy::Spawn<Maker>(
      {.resources = {{"g", 1}}, .placement_group = group.id(), .bundle_index = 0, .max_restarts = 1, .max_task_retries = -1});
  std::string first = argosy::Get(actor.Call<&Maker::Node>(), 60s);
  CHECK(LossyCluster::IdOf(first) == before.at(0));
  LossyCluster::cluster->KillNode(first);
  // Its process may answer once more before it notices.
  std::string second = first;
  for (auto deadline = std::chrono::steady_clock::now() + 90s; second == first && std::chrono::steady_clock::now() < deadline;) {
    second = argosy::Get(actor.Call<&Maker::Node>(), 90s);
  }
  REQUIRE(second != first);
  group.Ready(60s);
  std::vector<argosy::NodeId> after = group.BundleNodes();
  CHECK(after.at(0) == LossyCluster::IdOf(second));
  CHECK(after.at(1) == before.at(1));
  argosy::Kill(actor);
  argosy::Remove(group);
  for (const char* name : {"g1", "g2", "g3"}) {
    if (name != first) LossyCluster::cluster->KillNode(name);
  }
}
