// A driver that does one thing for others to look at: what its workers print, list, hold. Its first argument says which.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <argosy/argosy.h>

int Speak(std::string text) {
  std::printf("%s\n", text.c_str());
  return 0;
}

int Whisper(std::string text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::cout << "no newline";
  return 0;
}

int Flood(int megabytes) {
  std::string line(1023, 'x');
  for (int i = 0; i < megabytes * 1024; ++i) std::puts(line.c_str());
  std::puts("the last line");
  return 0;
}

int Die(std::string text) {
  std::printf("%s\n", text.c_str());
  std::abort();
}

__attribute__((noinline)) int LoopUntilThere(const std::string& path) {
  std::printf("waiting\n");
  while (::access(path.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return 1;
}
int WaitsFor(std::string path) { return LoopUntilThere(path); }

int Square(int x) {
  std::printf("square of %d\n", x);
  return x * x;
}
int Throws(std::string text) { throw std::runtime_error(text); }
std::string Big(int bytes) { return std::string(static_cast<size_t>(bytes), 'b'); }
// One line in a file for each task that ran, in the order in which they ran.
int Work(std::string path, std::string line, int millis) {
  std::this_thread::sleep_for(std::chrono::milliseconds(millis));
  FILE* file = std::fopen(path.c_str(), "a");
  std::fprintf(file, "%s\n", line.c_str());
  std::fclose(file);
  return 0;
}
int Needs(std::string, int) { return 0; }

int Counts(int rows) {
  static argosy::metrics::Counter counter("rows_read", "Rows read");
  static argosy::metrics::Gauge gauge("depth");
  static argosy::metrics::Histogram seconds("load_seconds", {0.1, 1}, "How long it took");
  counter.Increment(rows, {{"table", "orders"}});
  gauge.Set(rows);
  seconds.Observe(0.5);
  return 0;
}

std::string Inner() { return argosy::GetRuntimeContext().trace_parent; }
std::string Outer() { return argosy::GetRuntimeContext().trace_parent + " " + argosy::Get(argosy::Task<Inner>().Submit()); }

class Speaker {
 public:
  explicit Speaker(std::string word) : word_(std::move(word)) { std::printf("made %s\n", word_.c_str()); }
  int Say(int n) {
    std::printf("%s %d\n", word_.c_str(), n);
    return n;
  }

 private:
  std::string word_;
};

namespace {

void Prints() {
  argosy::Get(argosy::Task<Speak>().Submit(std::string("from here")));
  argosy::Get(argosy::Task<Whisper>().Submit(std::string("an error")));
  argosy::Get(argosy::Task<Speak>({.resources = {{"away", 1}}}).Submit(std::string("from there")));
  argosy::Actor<Speaker> speaker = argosy::Spawn<Speaker>({}, std::string("number"));
  for (int i = 0; i < 3; ++i) argosy::Get(speaker.Call<&Speaker::Say>(i));
  try {
    argosy::Get(argosy::Task<Die>({.max_retries = 0}).Submit(std::string("last words")));
  } catch (const argosy::Error&) {
    std::puts("it died");
  }
}

// Leaves tasks in every state, an actor and objects, says so, and goes on until the file is there.
__attribute__((noinline)) void Hold(const std::string& until) {
  std::vector<argosy::ObjectRef<int>> squares;
  for (int i = 0; i < 5; ++i) squares.push_back(argosy::Task<Square>().Submit(i));
  argosy::Get(squares);
  try {
    argosy::Get(argosy::Task<Throws>().Submit(std::string("a bad day")));
  } catch (const argosy::TaskError&) {
  }
  argosy::Actor<Speaker> speaker = argosy::Spawn<Speaker>({.name = "keeper", .ns = "observed"}, std::string("number"));
  argosy::Get(speaker.Call<&Speaker::Say>(7));
  argosy::ObjectRef<std::string> big = argosy::Task<Big>().Submit(3 << 20);
  argosy::Get(big);
  argosy::ObjectRef<int> running = argosy::Task<WaitsFor>({.name = "the-running-one"}).Submit(until);
  argosy::ObjectRef<int> impossible = argosy::Task<Needs>({.name = "the-impossible-one", .resources = {{"submarine", 1}}}).Submit(std::string(), 1);
  argosy::ObjectRef<int> behind = argosy::Task<Needs>({.name = "the-one-behind"}).Submit(std::string(), impossible);
  std::puts("ready");
  std::fflush(stdout);
  argosy::Get(running);
}

// A placement group and an actor inside it; then waits for the file, and uses both again.
void HoldGroup(const std::string& until) {
  argosy::PlacementGroup group = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 1}}}}, .name = "kept"});
  group.Ready();
  argosy::Actor<Speaker> inside = argosy::Spawn<Speaker>({.name = "inside", .resources = {{"CPU", 1}}, .placement_group = group.id()}, std::string("still"));
  argosy::Get(inside.Call<&Speaker::Say>(1));
  std::puts("ready");
  std::fflush(stdout);
  LoopUntilThere(until);
  group.Ready();
  argosy::Get(inside.Call<&Speaker::Say>(2));
  argosy::Kill(inside);
  argosy::Remove(group);
}

void WorkInOrder(const std::string& path, const std::string& line, int count, int millis) {
  std::vector<argosy::ObjectRef<int>> done;
  for (int i = 0; i < count; ++i) done.push_back(argosy::Task<Work>().Submit(path, line, millis));
  argosy::Get(done);
}

std::string ReadsHere(std::string name) {
  std::ifstream file(name);
  std::string words;
  std::getline(file, words);
  return argosy::GetRuntimeContext().node_name + " reads " + words;
}
void ReadsEverywhere(const std::string& name) {
  for (argosy::Resources resources : {argosy::Resources{{"CPU", 1}}, argosy::Resources{{"CPU", 1}, {"away", 1}}}) {
    std::printf("%s\n", argosy::Get(argosy::Task<ReadsHere>({.resources = resources}).Submit(name)).c_str());
  }
}

// What each call says after the daemon of this process was killed.
std::string Said(const std::function<void()>& call) {
  try {
    call();
    return "no error";
  } catch (const argosy::NodeDiedError& error) {
    return std::string("NodeDiedError: ") + error.what();
  } catch (const argosy::Error& error) {
    return std::string("another error: ") + error.what();
  }
}
argosy::ObjectRef<std::string> MakesOne(int bytes) { return argosy::Task<Big>().Submit(bytes); }
argosy::Generator<int> Counting(std::string until) {
  co_yield 1;
  LoopUntilThere(until);
  co_yield 2;
}
int Sleeps(std::string until) { return LoopUntilThere(until); }

void Orphan(const std::string& until, const std::string& killed) {
  const argosy::Resources away{{"CPU", 1}, {"away", 1}};
  argosy::ObjectRef<std::string> small = argosy::Task<Big>().Submit(10), large = argosy::Task<Big>().Submit(1'000'000);
  argosy::Wait(std::vector{small, large}, 2);
  argosy::Get(small);
  argosy::ObjectRef<int> local = argosy::Task<Sleeps>({.resources = {{"CPU", 0.1}}}).Submit(until);
  argosy::ObjectRef<int> remote = argosy::Task<Sleeps>({.resources = away}).Submit(until);
  argosy::Actor<Speaker> actor = argosy::Spawn<Speaker>({.resources = {{"away", 0.1}}}, std::string("orphan"));
  argosy::Get(actor.Call<&Speaker::Say>(1));
  argosy::Stream<int> stream = argosy::Task<Counting>({.resources = {{"CPU", 0.1}}}).Submit(until);
  stream.Read();
  // Its owner is a worker of the daemon's.
  argosy::ObjectRef<std::string> borrowed = argosy::Get(argosy::Task<MakesOne>({.resources = {{"CPU", 0.1}}}).Submit(1'000'000));
  std::string waited;
  std::thread waiting([&] { waited = Said([&] { argosy::Get(local); }); });
  std::puts("ready");
  std::fflush(stdout);
  LoopUntilThere(killed);
  waiting.join();
  auto say = [](const char* what, const std::string& said) { std::printf("%s: %s\n", what, said.c_str()); };
  say("blocked Get", waited);
  say("Get of a task elsewhere", Said([&] { argosy::Get(remote); }));
  say("a stream", Said([&] { stream.Read(); }));
  say("a large value", Said([&] { argosy::Get(large); }));
  say("a borrowed value", Said([&] { argosy::Get(borrowed); }));
  say("a small value", Said([&] { argosy::Get(small); }));
  say("Submit", Said([&] { argosy::Get(argosy::Task<Big>().Submit(1)); }));
  say("Put", Said([&] { argosy::Put(std::string(1'000'000, 'x')); }));
  say("Spawn", Said([&] { argosy::Get(argosy::Spawn<Speaker>({}, std::string("late")).Call<&Speaker::Say>(1)); }));
  say("Nodes", Said([] { argosy::Nodes(); }));
  say("kv", Said([] { argosy::kv::Get("key"); }));
  say("a group", Said([] { argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 1}}}}}).Ready(); }));
}

std::string WhereAmI() { return argosy::GetRuntimeContext().node_name; }
int SizeOf(const std::string& text) { return static_cast<int>(text.size()); }
class Roamer {
 public:
  std::string Where() { return WhereAmI(); }
};

class Till {
 public:
  int Add() { return ++count_; }

 private:
  int count_ = 0;
};
// A job that leaves an actor behind, and one that finds it. Errors are printed by their types.
void Detached(const std::string& what, const std::string& ns, const std::string& name, bool ends) {
  try {
    argosy::Actor<Till> till = what == "detach" ? argosy::Spawn<Till>({.name = name, .ns = ns, .detached = true}) : argosy::GetActor<Till>(name, ns);
    std::printf("counts %d\n", argosy::Get(till.Call<&Till::Add>()));
    if (ends) argosy::Kill(till);
  } catch (const argosy::NotFoundError& error) {
    std::printf("NotFoundError: %s\n", error.what());
  } catch (const argosy::RuntimeError& error) {
    std::printf("RuntimeError: %s\n", error.what());
  }
}

// On three hosts, of which the link of one is cut when `cut` is there.
void Hosts(const std::string& cut) {
  std::map<std::string, argosy::NodeId> ids;
  for (const argosy::Node& node : argosy::Nodes()) {
    ids[node.name] = node.id;
    std::printf("node %s at %s\n", node.name.c_str(), node.ip.c_str());
  }
  for (const char* node : {"b", "c"}) {
    std::printf("task on %s\n", argosy::Get(argosy::Task<WhereAmI>({.strategy = argosy::OnNode{ids[node]}}).Submit()).c_str());
  }
  argosy::Actor<Roamer> roamer =
      argosy::Spawn<Roamer>({.resources = {{"roam", 1}}, .max_restarts = -1, .max_task_retries = -1});
  std::string home = argosy::Get(roamer.Call<&Roamer::Where>());
  std::string other = home == "b" ? "c" : "b";
  // Made where the actor is, read where it is not, and here.
  argosy::ObjectRef<std::string> made = argosy::Task<Big>({.strategy = argosy::OnNode{ids[home], true}, .max_retries = -1}).Submit(5'000'000);
  std::printf("%s has %d bytes\n", other.c_str(), argosy::Get(argosy::Task<SizeOf>({.strategy = argosy::OnNode{ids[other]}}).Submit(made)));
  std::printf("the driver has %d bytes\n", SizeOf(argosy::Get(made)));
  argosy::ObjectRef<std::string> lost = argosy::Task<Big>({.strategy = argosy::OnNode{ids[home], true}, .max_retries = -1}).Submit(6'000'000);
  argosy::Wait(std::vector{lost}, 1);
  std::printf("actor on %s\n", home.c_str());
  std::fflush(stdout);
  if (cut.empty()) return;
  LoopUntilThere(cut);
  std::printf("actor again on %s\n", argosy::Get(roamer.Call<&Roamer::Where>(), std::chrono::seconds(90)).c_str());
  std::printf("made again: %d bytes\n", SizeOf(argosy::Get(lost, std::chrono::seconds(90))));
}

void Trace() {
  argosy::SetTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  std::printf("trace %s\n", argosy::Get(argosy::Task<Outer>().Submit()).c_str());
  argosy::SetTraceParent("");
  std::printf("without %s.\n", argosy::Get(argosy::Task<Inner>().Submit()).c_str());
  try {
    argosy::SetTraceParent("00-nonsense");
  } catch (const std::invalid_argument& error) {
    std::printf("refused: %s\n", error.what());
  }
}

void Metrics() {
  argosy::metrics::Counter submitted("tasks_submitted");
  for (int rows : {3, 4}) {
    argosy::Get(argosy::Task<Counts>().Submit(rows));
    submitted.Increment();
  }
  for (const char* name : {"", "9lives", "argosy_tasks", "a-b"}) {
    try {
      argosy::metrics::Counter wrong{name};
      std::printf("accepted %s\n", name);
    } catch (const std::invalid_argument&) {
    }
  }
  try {
    argosy::metrics::Gauge taken("tasks_submitted");
    std::puts("accepted another kind");
  } catch (const std::invalid_argument& error) {
    std::printf("refused: %s\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  std::string what = argc > 1 ? argv[1] : "";
  if (what == "prints") Prints();
  if (what == "metrics") Metrics();
  if (what == "trace") Trace();
  if (what == "hold") Hold(argv[2]);
  if (what == "group") HoldGroup(argv[2]);
  if (what == "work") WorkInOrder(argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5]));
  if (what == "reads") ReadsEverywhere(argv[2]);
  if (what == "orphan") Orphan(argv[2], argv[3]);
  if (what == "hosts") Hosts(argc > 2 ? argv[2] : "");
  if (what == "detach" || what == "find") Detached(what, argv[2], argv[3], argc > 4);
  if (what == "flood") argosy::Get(argosy::Task<Flood>().Submit(std::atoi(argv[2])));
  std::puts("done");
  return 0;
}
