#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "cli/node_flags.h"
#include "cli/session.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/node/node_server.h"
#include "tests/support/catch.h"

namespace argosy::cli {
namespace {

TEST_CASE("Flags: sizes are bytes, or have a unit, and bad ones name the flag") {
  CHECK(*ParseBytes("1000", "--memory") == 1000);
  CHECK(*ParseBytes("4G", "--memory") == 4ull << 30);
  CHECK(*ParseBytes("1.5MiB", "--memory") == 3ull << 19);
  CHECK(*ParseBytes("2kb", "--memory") == 2048);
  for (const char* bad : {"", "G", "4X", "-1", "0", "nan", "1e40"}) {
    INFO(bad);
    CHECK(Message(ParseBytes(bad, "--memory").status()).find("--memory") != std::string::npos);
  }
}

TEST_CASE("Flags: custom resources are a JSON object of amounts") {
  CHECK(ParseResources(R"({"large_cpu_mem": 1, "x": 0.5})")->at("x") == 0.5);
  CHECK(ParseResources("")->empty());
  for (const char* bad : {"x", "[1]", R"({"a":"b"})", R"({"a":-1})", R"({"CPU":1})"}) {
    INFO(bad);
    CHECK(Message(ParseResources(bad).status()).find("--resources") != std::string::npos);
  }
}

TEST_CASE("Flags: a node's flags survive being passed on to its daemon") {
  NodeFlags flags;
  flags.num_cpus = 0;
  flags.memory = "1G";
  flags.labels = "zone=a";
  flags.resources = R"({"x":1})";
  auto options = ToNodeOptions(flags);
  REQUIRE(options.ok());
  CHECK(options->resources.at("CPU") == 0);
  CHECK(options->resources.at("memory") == 1ull << 30);
  CHECK(!options->resources.contains("GPU"));
  CHECK(options->labels.at("zone") == "a");
  std::vector<std::string> arguments = ToArguments(flags);
  CHECK(std::find(arguments.begin(), arguments.end(), "zone=a") != arguments.end());
  CHECK(options->spills);
  CHECK(options->memory_threshold == 0.95);
  flags.spill_dir = "some/folder";
  flags.memory_threshold = 0.5;
  flags.memory_watch_period = 0;
  CHECK(ToNodeOptions(flags)->memory_threshold == 0.5);
  CHECK(ToNodeOptions(flags)->memory_watch_period == absl::ZeroDuration());
  arguments = ToArguments(flags);
  CHECK(std::find(arguments.begin(), arguments.end(), std::filesystem::absolute("some/folder").string()) != arguments.end());
  CHECK(std::find(arguments.begin(), arguments.end(), "--memory-watch-period") != arguments.end());
  CHECK(std::find(arguments.begin(), arguments.end(), "--num-gpus") == arguments.end());
  flags.num_gpus = 0.5;
  CHECK(Message(ToNodeOptions(flags).status()).find("--num-gpus 0.5") != std::string::npos);
  flags.num_gpus = 1;
  flags.labels = "zone";
  CHECK(Message(ToNodeOptions(flags).status()).find("--labels zone") != std::string::npos);
}

TEST_CASE("Flags: what no node can have is an error that names the flag and the value") {
  auto error = [](const NodeFlags& flags) { return std::string(Message(ToNodeOptions(flags).status())); };
  for (double bad : {-1.0, std::nan(""), HUGE_VAL, 1e30, 1e-5}) {
    INFO(bad);
    CHECK(error({.num_cpus = bad}).find("--num-cpus") == 0);
    CHECK(error({.num_gpus = bad}).find("--num-gpus") == 0);
  }
  CHECK(error({.labels = "argosy.io/node-id=x"}).find("argosy.io/node-id is set by the node itself") != std::string::npos);
  CHECK(error({.object_store_memory = "1"}).find("--object-store-memory 1: give at least 4M") == 0);
  CHECK(error({.object_store_memory = "900T"}).find("--object-store-memory 900T") == 0);
  CHECK(error({.memory = "0.1"}).find("--memory 0.1") == 0);
  CHECK(error({.spill_max = "x"}).find("--spill-max x") == 0);
  CHECK(error({.spill_dir = "none", .spill_max = "1G"}).find("--spill-max 1G: nothing is spilled with --spill-dir none") == 0);
  for (double bad : {0.0, -0.5, 1.01, std::nan("")}) CHECK(error({.memory_threshold = bad}).find("--memory-threshold") == 0);
  for (double bad : {-1.0, 3.0, 1e9, std::nan("")}) CHECK(error({.memory_watch_period = bad}).find("--memory-watch-period") == 0);
  CHECK(error({.workers_memory_max = "much"}).find("--workers-memory-max much") == 0);
  CHECK(error({.memory_watch_period = 0.0, .workers_memory_max = "1G"}).find("--workers-memory-max 1G: nothing is watched") == 0);
  CHECK(error({.name = "a\nb"}).find("--node-name") == 0);
  CHECK(error({.name = std::string(5000, 'x')}).find("5000 bytes") != std::string::npos);
  CHECK(error({.name = "\xff\xfe"}).find("--node-name") == 0);
  CHECK(error({.name = "caf\xc3\xa9 1"}).empty());
}

TEST_CASE("Session: the root is absolute, since who reads its paths may stand elsewhere") {
  CHECK(SessionsRoot("some/where") == (std::filesystem::current_path() / "some/where").string());
  CHECK(SessionsRoot("/a/../b") == "/b");
}

TEST_CASE("Session: asking who lives never keeps a daemon from its folder") {
  std::string folder = (std::filesystem::temp_directory_path() / ("argosy-cli-test-" + NodeId::Random().Hex())).string();
  std::filesystem::create_directories(folder);
  REQUIRE(LockDaemonFolder(folder).ok());   // makes the file
  std::atomic<bool> done = false;
  std::atomic<int> seen_locked = 0;
  std::vector<std::thread> askers;
  for (int i = 0; i < 3; ++i) {
    askers.emplace_back([&] {
      while (!done) seen_locked += IsLocked(folder);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(seen_locked == 0);   // two that ask do not take each other for a daemon
  for (int i = 0; i < 50; ++i) CHECK(LockDaemonFolder(folder).ok());
  done = true;
  for (std::thread& asker : askers) asker.join();
  std::filesystem::remove_all(folder);
}

TEST_CASE("Session: a locked folder is a living daemon, a free one is removed") {
  std::string root = (std::filesystem::temp_directory_path() / ("argosy-cli-test-" + NodeId::Random().Hex())).string();
  auto session = MakeSession(root);
  REQUIRE(session.ok());
  auto folder = MakeNodeFolder(*session);
  REQUIRE(folder.ok());
  CHECK(folder->ends_with("/node_1"));
  {
    auto lock = LockDaemonFolder(*folder);
    REQUIRE(lock.ok());
    CHECK(IsLocked(*folder));
    CHECK(LockDaemonFolder(*folder).status().code() == absl::StatusCode::kFailedPrecondition);
    REQUIRE(WriteRecord({.kind = "node", .folder = *folder, .pid = ::getpid(), .name = "n", .socket = "/x"}).ok());
    auto live = LiveDaemons(root);
    REQUIRE(live.size() == 1);
    CHECK(live[0].socket == "/x");
    RemoveStaleSessions(root);
    CHECK(std::filesystem::exists(*session));
    CHECK(!NewestHead(root).has_value());
  }
  CHECK(!IsLocked(*folder));
  CHECK(LiveDaemons(root).empty());
  RemoveStaleSessions(root);
  CHECK(!std::filesystem::exists(*session));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace argosy::cli
