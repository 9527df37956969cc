// What needs more than one node, or exactly one.

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <set>
#include <thread>

#include <argosy/argosy.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace std::chrono_literals;

namespace {

std::string WhereAmI() { return argosy::GetRuntimeContext().node_name; }

std::string WhereAmIAfter(int millis) {
  std::this_thread::sleep_for(std::chrono::milliseconds(millis));
  return WhereAmI();
}

argosy::Array<int> Numbers(int n) {
  std::vector<int> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return argosy::Array<int>(std::move(values));
}
int64_t Total(const argosy::Array<int>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

std::string WhereIs(const argosy::Array<int>&) { return WhereAmI(); }

int DeepFib(int n) {
  if (n < 2) return n;
  argosy::ObjectRef<int> a = argosy::Task<DeepFib>().Submit(n - 1);
  argosy::ObjectRef<int> b = argosy::Task<DeepFib>().Submit(n - 2);
  return argosy::Get(a) + argosy::Get(b);
}

class Peer {
 public:
  explicit Peer(int) {}
  std::string Node() { return WhereAmI(); }
  argosy::Endpoint Where() { return argosy::ThisEndpoint(); }
  uint64_t Receives(std::string name, int bytes) {
    argosy::Channel channel = argosy::Channel::Accept(name, 30s);
    std::vector<std::byte> in(static_cast<size_t>(bytes));
    channel.Receive(in, 30s);
    uint64_t sum = 0;
    for (std::byte b : in) sum += static_cast<uint64_t>(b);
    std::byte done{1};
    channel.Send(std::span(&done, 1), 30s);
    return sum;
  }
  uint64_t Sends(argosy::Endpoint peer, std::string name, int bytes) {
    // Two hosts share no Unix socket: this is the path that a channel between them takes.
    peer.unix_path.clear();
    argosy::Channel channel = argosy::Channel::Connect(peer, name, 30s);
    std::vector<std::byte> out(static_cast<size_t>(bytes));
    uint64_t sum = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::byte>(i % 251);
      sum += static_cast<uint64_t>(out[i]);
    }
    channel.Send(out, 30s);
    std::byte done{};
    channel.Receive(std::span(&done, 1), 30s);
    return sum;
  }
};

// What a worker finds in its environment.
struct Surroundings {
  std::string node;
  int pid = 0;
  std::string word;    // in word.txt of the working directory
  int number = 0;      // of the library that is found by name; 0: none
};
Surroundings LookAround() {
  Surroundings seen{WhereAmI(), ::getpid()};
  std::ifstream("word.txt") >> seen.word;
  if (void* library = ::dlopen("libargosy_test_number.so", RTLD_NOW | RTLD_LOCAL)) {
    seen.number = reinterpret_cast<int (*)()>(::dlsym(library, "ArgosyTestNumber"))();
    ::dlclose(library);
  }
  return seen;
}
Surroundings LookAroundBelow() { return argosy::Get(argosy::Task<LookAround>({.resources = {{"CPU", 1}, {"second", 1}}}).Submit(), 60s); }
class Resident {
 public:
  Surroundings Looks() { return LookAround(); }
};

// A folder to run in: a word, and a library in lib/.
void Furnish(const std::filesystem::path& folder, const std::string& word) {
  std::filesystem::create_directories(folder / "lib");
  std::ofstream(folder / "word.txt") << word;
  std::filesystem::copy_file(ARGOSY_TEST_LIBRARY, folder / "lib" / "libargosy_test_number.so");
}

template <class Error>
std::string TextOf(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another kind of error: ") + error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("Runtime environment: a task or actor runs in the package of a folder, on every node, and its loader finds what is there", "[three]") {
  argosy::testing::TemporaryFolder folder;
  const std::string one = folder.path() + "/one", two = folder.path() + "/two";
  Furnish(one, "first");
  Furnish(two, "second");
  for (const char* node : {"second", "third"}) {
    argosy::TaskOptions options{.resources = {{"CPU", 1}, {node, 1}}};
    Surroundings plain = argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s);
    CHECK(plain.word.empty());
    CHECK(plain.number == 0);
    options.working_dir = one;
    Surroundings seen = argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s);
    CHECK(seen.node == node);
    CHECK(seen.word == "first");
    CHECK(seen.number == 0);
    CHECK(seen.pid != plain.pid);
    // The same environment: the same worker. Another: another.
    CHECK(argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s).pid == seen.pid);
    options.library_path = {"lib"};
    Surroundings with_library = argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s);
    CHECK(with_library.word == "first");
    CHECK(with_library.number == 42);
    CHECK(with_library.pid != seen.pid);
    options.working_dir.clear();
    options.library_path = {two + "/lib"};   // of the host
    Surroundings elsewhere = argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s);
    CHECK(elsewhere.word.empty());
    CHECK(elsewhere.number == 42);
  }
  // What a task submits runs where it does, but for what says otherwise.
  argosy::TaskOptions below{.resources = {{"CPU", 1}, {"third", 1}}, .working_dir = two, .library_path = {"lib"}};
  Surroundings inner = argosy::Get(argosy::Task<LookAroundBelow>(below).Submit(), 60s);
  CHECK(inner.node == "second");
  CHECK(inner.word == "second");
  CHECK(inner.number == 42);
  argosy::Actor<Resident> resident = argosy::Spawn<Resident>({.resources = {{"third", 1}}, .working_dir = two, .library_path = {"lib"}});
  Surroundings of_actor = argosy::Get(resident.Call<&Resident::Looks>(), 60s);
  CHECK(of_actor.node == "third");
  CHECK(of_actor.word == "second");
  CHECK(of_actor.number == 42);
  argosy::Kill(resident);
}

TEST_CASE("Runtime environment: what is not there is a typed error that names the node and what it misses", "[three]") {
  const char* package = "gcs://_ray_pkg_0123456789abcdef.zip";
  argosy::TaskOptions options{.resources = {{"CPU", 1}, {"second", 1}}, .working_dir = package};
  std::string text = TextOf<argosy::RuntimeEnvError>([&] { argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s); });
  INFO(text);
  CHECK(text.find("node second cannot set up the working directory gcs://_ray_pkg_0123456789abcdef.zip: the head at ") != std::string::npos);
  CHECK(text.find("package _ray_pkg_0123456789abcdef.zip does not exist") != std::string::npos);
  std::string of_actor = TextOf<argosy::ActorDiedError>([&] {
    argosy::Actor<Resident> resident = argosy::Spawn<Resident>({.resources = {{"second", 1}}, .working_dir = package});
    argosy::Get(resident.Call<&Resident::Looks>(), 60s);
  });
  INFO(of_actor);
  CHECK(of_actor.find("node second cannot set up the working directory gcs://_ray_pkg_0123456789abcdef.zip") != std::string::npos);
  std::string no_folder = TextOf<argosy::RuntimeEnvError>([&] { argosy::Task<LookAround>({.working_dir = "/no/such/folder"}).Submit(); });
  INFO(no_folder);
  CHECK(no_folder.find("working_dir /no/such/folder: working directory /no/such/folder: No such file") != std::string::npos);
  options.working_dir.clear();
  options.library_path = {"/no/such/libraries"};
  std::string no_libraries = TextOf<argosy::RuntimeEnvError>([&] { argosy::Get(argosy::Task<LookAround>(options).Submit(), 60s); });
  INFO(no_libraries);
  CHECK(no_libraries.find("node second has no folder /no/such/libraries of library_path") != std::string::npos);
  CHECK_THROWS_WITH(argosy::Task<LookAround>({.working_dir = "s3://bucket"}).Submit(),
                    "working_dir is \"s3://bucket\"; it must be a folder, or the gcs://NAME of an uploaded package");
  CHECK_THROWS_WITH(argosy::Task<LookAround>({.library_path = {"a:b"}}).Submit(),
                    "library_path: \"a:b\" cannot be a folder of it; it must have characters, and no ':' among them");
}

TEST_CASE("Cluster: three nodes are listed with what they have", "[three]") {
  std::map<std::string, argosy::Node> nodes;
  for (const argosy::Node& node : argosy::Nodes()) nodes[node.name] = node;
  REQUIRE(nodes.size() == 3);
  CHECK(nodes["second"].resources["second"] == 4);
  CHECK(nodes["third"].resources["large_cpu_mem"] == 1);
  CHECK(nodes["third"].labels["zone"] == "c");
}

TEST_CASE("Placement: a custom resource, a label and an affinity each choose the node", "[three]") {
  CHECK(argosy::Get(argosy::Task<WhereAmI>({.resources = {{"CPU", 1}, {"second", 1}}}).Submit(), 60s) == "second");
  CHECK(argosy::Get(argosy::Task<WhereAmI>({.resources = {{"large_cpu_mem", 0.01}}}).Submit(), 60s) == "third");
  CHECK(argosy::Get(argosy::Task<WhereAmI>({.label_selector = {{"zone", "b"}}}).Submit(), 60s) == "second");
  for (const argosy::Node& node : argosy::Nodes()) {
    CHECK(argosy::Get(argosy::Task<WhereAmI>({.strategy = argosy::OnNode{node.id}}).Submit(), 60s) == node.name);
  }
}

TEST_CASE("Objects: one larger than the inline limit crosses nodes", "[three]") {
  argosy::ObjectRef<argosy::Array<int>> made = argosy::Task<Numbers>({.resources = {{"second", 1}}}).Submit(1'000'000);
  CHECK(argosy::Get(argosy::Task<Total>({.resources = {{"third", 1}}}).Submit(made), 60s) == 499'999'500'000);
  argosy::Array<int> here = argosy::Get(made, 60s);
  CHECK(Total(here) == 499'999'500'000);
  argosy::ObjectRef<argosy::Array<int>> put = argosy::Put(here);
  CHECK(argosy::Get(argosy::Task<Total>({.resources = {{"second", 1}}}).Submit(put), 60s) == 499'999'500'000);
}

TEST_CASE("Objects: a task runs where its big argument lies, also while others of its kind run elsewhere", "[three]") {
  argosy::ObjectRef<argosy::Array<int>> there = argosy::Task<Numbers>({.resources = {{"second", 1}}}).Submit(2'000'000);
  argosy::ObjectRef<argosy::Array<int>> elsewhere = argosy::Task<Numbers>({.resources = {{"third", 1}}}).Submit(2'000'000);
  argosy::Wait(std::vector{there, elsewhere}, 2, 60s);
  for (int i = 0; i < 3; ++i) {
    argosy::ObjectRef<std::string> one = argosy::Task<WhereIs>().Submit(there);
    argosy::ObjectRef<std::string> other = argosy::Task<WhereIs>().Submit(elsewhere);
    CHECK(argosy::Get(one, 60s) == "second");
    CHECK(argosy::Get(other, 60s) == "third");
  }
}

TEST_CASE("Channel: a stream between actors on two nodes, over TCP", "[three]") {
  argosy::Actor<Peer> a = argosy::Spawn<Peer>({.resources = {{"second", 1}}}, 0);
  argosy::Actor<Peer> b = argosy::Spawn<Peer>({.resources = {{"third", 1}}}, 0);
  CHECK(argosy::Get(a.Call<&Peer::Node>(), 60s) == "second");
  CHECK(argosy::Get(b.Call<&Peer::Node>(), 60s) == "third");
  argosy::Endpoint where = argosy::Get(a.Call<&Peer::Where>(), 60s);
  argosy::ObjectRef<uint64_t> in = a.Call<&Peer::Receives>("bulk", 16 << 20);
  argosy::ObjectRef<uint64_t> out = b.Call<&Peer::Sends>(where, "bulk", 16 << 20);
  CHECK(argosy::Get(in, 60s) == argosy::Get(out, 60s));
}

TEST_CASE("Groups: bundles are reserved together, and an actor runs in its bundle", "[three]") {
  argosy::PlacementGroup group = argosy::CreatePlacementGroup(
      {.bundles = {{.resources = {{"second", 1}}}, {.resources = {{"third", 1}}}}, .strategy = argosy::GroupStrategy::kSpread});
  group.Ready(60s);
  CHECK(group.BundleNodes().size() == 2);
  argosy::Actor<Peer> actor =
      argosy::Spawn<Peer>({.resources = {{"third", 1}}, .placement_group = group.id(), .bundle_index = 1}, 0);
  CHECK(argosy::Get(actor.Call<&Peer::Node>(), 60s) == "third");
  argosy::Kill(actor);
  argosy::Remove(group);

  argosy::PlacementGroup never = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"unobtainium", 1}}}}});
  CHECK_FALSE(never.Wait(100ms));
  CHECK_THROWS_AS(never.Ready(100ms), argosy::UnschedulableError);
  argosy::Remove(never);
}

TEST_CASE("Groups: each bundle's label selector chooses its node, whatever the strategy", "[three]") {
  std::map<argosy::NodeId, std::string> names;
  for (const argosy::Node& node : argosy::Nodes()) names[node.id] = node.name;
  for (argosy::GroupStrategy strategy : {argosy::GroupStrategy::kPack, argosy::GroupStrategy::kSpread, argosy::GroupStrategy::kStrictSpread}) {
    argosy::PlacementGroup group = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 1}}, .label_selector = {{"zone", "c"}}},
                                                                             {.resources = {{"CPU", 1}}, .label_selector = {{"zone", "b"}}}},
                                                                 .strategy = strategy});
    group.Ready(60s);
    std::vector<argosy::NodeId> nodes = group.BundleNodes();
    REQUIRE(nodes.size() == 2);
    CHECK(names[nodes[0]] == "third");
    CHECK(names[nodes[1]] == "second");
    argosy::Remove(group);
  }
  // No one node is in both zones: it waits, and says which condition no node meets.
  argosy::PlacementGroup apart = argosy::CreatePlacementGroup(
      {.bundles = {{.resources = {{"CPU", 1}}, .label_selector = {{"zone", "b"}}}, {.resources = {{"CPU", 1}}, .label_selector = {{"zone", "c"}}}},
       .strategy = argosy::GroupStrategy::kStrictPack});
  CHECK_FALSE(apart.Wait(100ms));
  argosy::Remove(apart);
  argosy::PlacementGroup nowhere =
      argosy::CreatePlacementGroup({.bundles = {{.resources = {{"CPU", 1}}, .label_selector = {{"zone", "nowhere"}}}}});
  std::string text = TextOf<argosy::UnschedulableError>([&] { nowhere.Ready(100ms); });
  INFO(text);
  CHECK(text.find("zone=nowhere") != std::string::npos);
  argosy::Remove(nowhere);
}

TEST_CASE("Groups: one may be used and removed before anyone has waited for it, and the first use says what is wrong with it", "[three]") {
  for (int i = 0; i < 20; ++i) {
    argosy::PlacementGroup unawaited = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", 2.5}}}}});
    if (i % 2 == 0) {
      argosy::Actor<Peer> peer = argosy::Spawn<Peer>({.resources = {{"second", 1}}, .placement_group = unawaited.id(), .bundle_index = 0}, 0);
      CHECK(argosy::Get(peer.Call<&Peer::Node>(), 60s) == "second");
    }
    argosy::Remove(unawaited);
    CHECK_THROWS_AS(unawaited.Ready(60s), argosy::Error);
  }
  argosy::PlacementGroup wrong = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", -1}}}}});
  for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
           [&] { wrong.Ready(60s); }, [&] { wrong.id(); }, [&] { wrong.Wait(0s); }}) {
    std::string what;
    try {
      use();
    } catch (const argosy::Error& error) {
      what = error.what();
    }
    INFO(what);
    CHECK(what.find("second") != std::string::npos);
  }
  // One whose text cannot be sent fails alone, though all go to the head together.
  std::vector<argosy::PlacementGroup> together;
  for (int i = 0; i < 5; ++i) {
    together.push_back(argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", 0.5}}, .label_selector = {{"zone", i % 2 == 0 ? "!a" : "bad \xff"}}}}}));
  }
  for (int i = 0; i < 5; ++i) {
    std::string what;
    try {
      together[i].Ready(60s);
      argosy::Remove(together[i]);
    } catch (const std::exception& error) {
      what = error.what();
    }
    INFO(i << ": " << what);
    CHECK(what.empty() == (i % 2 == 0));
    if (i % 2 == 1) CHECK(what.find("UTF-8") != std::string::npos);
  }
}

TEST_CASE("Groups: what a removed group held is free for the next, and nobody waits for a removed one", "[three]") {
  // Each needs all there is: every one waits for the removal of the one before.
  for (int i = 0; i < 50; ++i) {
    argosy::PlacementGroup group = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", 2.5}}}}});
    group.Ready(60s);
    CHECK(group.BundleNodes().size() == 1);
    argosy::Remove(group);
    CHECK_THROWS_AS(group.Ready(60s), argosy::Error);
    argosy::Remove(group);   // once more does nothing
  }
  argosy::PlacementGroup first = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", 2.5}}}}});
  argosy::PlacementGroup second = argosy::CreatePlacementGroup({.bundles = {{.resources = {{"second", 2.5}}}}});
  first.Ready(60s);   // the first is served first, though nothing was awaited between them
  CHECK_FALSE(second.Wait(100ms));
  argosy::Remove(first);
  second.Ready(60s);
  argosy::Remove(second);
}

TEST_CASE("Placement: spread tasks that keep their workers busy use every node", "[three]") {
  argosy::Task<WhereAmIAfter> spread({.strategy = argosy::Spread{}});
  std::vector<argosy::ObjectRef<std::string>> refs;
  for (int i = 0; i < 6; ++i) refs.push_back(spread.Submit(500));
  std::set<std::string> seen;
  for (const std::string& node : argosy::Get(refs, 60s)) seen.insert(node);
  CHECK(seen.size() == 3);
}

TEST_CASE("Task: fib(12) by recursion ends on a node with one CPU", "[one]") {
  CHECK(argosy::Get(argosy::Task<DeepFib>().Submit(12), 240s) == 144);
}
