#include <unistd.h>

#include <algorithm>
#include <filesystem>

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
  flags.num_gpus = 0.5;
  CHECK(Message(ToNodeOptions(flags).status()).find("--num-gpus 0.5") != std::string::npos);
  flags.num_gpus = 1;
  flags.labels = "zone";
  CHECK(Message(ToNodeOptions(flags).status()).find("--labels zone") != std::string::npos);
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
