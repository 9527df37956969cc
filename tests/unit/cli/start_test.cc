// The real binary: a local cluster as a program starts it for itself.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/session.h"
#include "runtime/base/id.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"

namespace argosy::cli {
namespace {

// `argosy start --head` in the foreground, with a pipe for its word and one for its life.
class LocalCluster {
 public:
  explicit LocalCluster(std::vector<std::string> extra = {}) {
    root_ = (std::filesystem::temp_directory_path() / ("argosy-start-test-" + NodeId::Random().Short())).string();
    std::filesystem::create_directories(root_);
    int ready[2], life[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(life, O_CLOEXEC) == 0);
    ready_.Reset(ready[0]);
    life_.Reset(life[1]);
    std::vector<std::string> words{ARGOSY_BINARY,    "start",      "--head",        "--port", "0",           "--dashboard-port",
                                   "0",              "--num-cpus", "1",             "--object-store-memory", "64M", "--temp-dir",
                                   root_ + "/sessions", "--token-file", root_ + "/token", "--ready-fd", std::to_string(ready[1]),
                                   "--until-eof-fd", std::to_string(life[0])};
    words.insert(words.end(), extra.begin(), extra.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::fcntl(ready[1], F_SETFD, 0);
      ::fcntl(life[0], F_SETFD, 0);
      ::execv(ARGOSY_BINARY, argv.data());
      _exit(127);
    }
    ::close(ready[1]);
    ::close(life[0]);
    std::string text;
    char buffer[4096];
    pollfd wait{ready_.get(), POLLIN, 0};
    while (::poll(&wait, 1, 60'000) > 0) {
      ssize_t n = ::read(ready_.get(), buffer, sizeof buffer);
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
    }
    said = nlohmann::json::parse(text, nullptr, false);
  }
  ~LocalCluster() {
    End();
    std::filesystem::remove_all(root_);
  }

  // The program ends: its end of the pipe closes.
  void End() { life_.Reset(); Wait(); }
  int Wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void Kill() { ::kill(pid_, SIGKILL); Wait(); }
  std::string Sessions() const { return root_ + "/sessions"; }

  nlohmann::json said;

 private:
  std::string root_;
  UniqueFd ready_;
  UniqueFd life_;
  pid_t pid_ = -1;
};

bool NobodyLives(const std::string& root) {
  for (int i = 0; i < 3000; ++i) {
    if (LiveDaemons(root).empty()) return true;
    ::usleep(10'000);
  }
  return false;
}

TEST_CASE("Start: a program's own cluster says where it is and ends with the program") {
  LocalCluster cluster;
  REQUIRE(cluster.said.is_object());
  INFO(cluster.said.dump());
  REQUIRE(cluster.said.contains("node_socket"));
  CHECK(std::filesystem::exists(cluster.said["node_socket"].get<std::string>()));
  CHECK(std::filesystem::exists(cluster.said["token_file"].get<std::string>()));
  CHECK(LiveDaemons(cluster.Sessions()).size() == 2);
  REQUIRE(NewestHead(cluster.Sessions()).has_value());
  CHECK(NewestHead(cluster.Sessions())->address == cluster.said["address"].get<std::string>());
  cluster.End();
  CHECK(NobodyLives(cluster.Sessions()));
  CHECK(!std::filesystem::exists(cluster.said["session_dir"].get<std::string>()));
}

TEST_CASE("Start: daemons of a foreground start end even when it is killed") {
  LocalCluster cluster;
  REQUIRE(LiveDaemons(cluster.Sessions()).size() == 2);
  cluster.Kill();
  CHECK(NobodyLives(cluster.Sessions()));
}

TEST_CASE("Start: when the head dies, a foreground start ends the node and fails") {
  LocalCluster cluster;
  auto head = NewestHead(cluster.Sessions());
  REQUIRE(head.has_value());
  ::kill(head->pid, SIGKILL);
  CHECK(cluster.Wait() == 1);
  CHECK(NobodyLives(cluster.Sessions()));
}

TEST_CASE("Start: a wrong flag is an error before anything is started") {
  LocalCluster cluster({"--resources", R"({"x":"many"})"});
  REQUIRE(cluster.said.contains("error"));
  CHECK(cluster.said["error"].get<std::string>().find("--resources") != std::string::npos);
  CHECK(cluster.Wait() == 2);
  CHECK(!std::filesystem::exists(cluster.Sessions()));
}

}  // namespace
}  // namespace argosy::cli
