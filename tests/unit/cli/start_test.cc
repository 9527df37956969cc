// The real binary: a local cluster as a program starts it for itself.

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
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

// Runs a command to its end; what it wrote to both outputs, and its exit code in `code`.
std::string Run(std::vector<std::string> words, int& code) {
  words.insert(words.begin(), ARGOSY_BINARY);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(out[1], STDERR_FILENO);
    ::execv(ARGOSY_BINARY, argv.data());
    _exit(127);
  }
  ::close(out[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(out[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  ::close(out[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return text;
}

TEST_CASE("Start: joining something that accepts and says nothing ends in bounded time, with its address") {
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener, 8) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  std::string root = (std::filesystem::temp_directory_path() / ("argosy-start-test-" + NodeId::Random().Short())).string();
  int code = 0;
  std::string said = Run({"start", "--address", where, "--auth", "none", "--temp-dir", root}, code);
  INFO(said);
  CHECK(code == 1);
  CHECK(said.find("no head answers at " + where) != std::string::npos);
  CHECK(!std::filesystem::exists(root));   // nothing was begun
  ::close(listener);
}

TEST_CASE("Commands: bad words are refused by name, without a crash") {
  int code = 0;
  CHECK(Run({"strat"}, code).find("there is no command strat") != std::string::npos);
  CHECK(code == 2);
  CHECK(Run({"start", "--address", "127.0.0.1:99999", "--auth", "none"}, code).find("the port is 99999") != std::string::npos);
  CHECK(code == 2);
  CHECK(Run({"job", "submit", "--runtime-env-json", R"({"env_vars": 3})", "--env", "A=b", "--", "true"}, code).find("env_vars must be an object") !=
        std::string::npos);
  CHECK(code == 1);
  CHECK(Run({"job", "submit", "--entrypoint-num-cpus", "nan", "--", "true"}, code).find("--entrypoint-num-cpus") != std::string::npos);
  CHECK(code != 0);
  CHECK(Run({"job", "status", ""}, code).find("id is empty") != std::string::npos);
  CHECK(code == 2);
}

}  // namespace
}  // namespace argosy::cli
