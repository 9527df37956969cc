#include "tests/cluster/cluster.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"

extern char** environ;

namespace argosy::testing {

Cluster::Cluster(const std::vector<std::string>& flags) {
  char pattern[] = "/tmp/argosy-cluster-XXXXXX";
  folder_ = ::mkdtemp(pattern);
  ::setenv("ARGOSY_SESSIONS_DIR", folder_.c_str(), 1);
  ::setenv("HOME", folder_.c_str(), 1);
  ::unsetenv("ARGOSY_ADDRESS");
  ::unsetenv("ARGOSY_NODE_SOCKET");
  ::unsetenv("ARGOSY_AUTH_TOKEN");
  std::vector<std::string> arguments{"start", "--head", "--port", "0", "--dashboard-port", "0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  nlohmann::json ready = nlohmann::json::parse(Start(arguments), nullptr, false);
  ARGOSY_CHECK(ready.is_object() && ready.contains("node_socket"), "the head did not start");
  address_ = ready["address"].get<std::string>();
  node_socket_ = ready["node_socket"].get<std::string>();
}

Cluster::~Cluster() {
  while (!parts_.empty()) {
    ::close(parts_.back().alive);
    while (::waitpid(parts_.back().pid, nullptr, 0) < 0 && errno == EINTR) {}
    parts_.pop_back();
  }
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

void Cluster::Join(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments{"start", "--address", address_};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::string line = Start(arguments);
  ARGOSY_CHECK(nlohmann::json::parse(line, nullptr, false).contains("node_socket"), "a node did not start: {}", line);
}

std::string Cluster::Start(const std::vector<std::string>& arguments) {
  const char* binary = std::getenv("ARGOSY_BINARY");
  ARGOSY_CHECK(binary != nullptr, "ARGOSY_BINARY names the argosy program");
  int ready[2], alive[2];
  ARGOSY_CHECK(::pipe2(ready, O_CLOEXEC) == 0 && ::pipe2(alive, O_CLOEXEC) == 0);
  constexpr int kReadyFd = 100, kAliveFd = 101;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ready[1], kReadyFd);
  posix_spawn_file_actions_adddup2(&actions, alive[0], kAliveFd);
  std::vector<std::string> words{binary};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--ready-fd", std::to_string(kReadyFd), "--until-eof-fd", std::to_string(kAliveFd)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Part part;
  ARGOSY_CHECK(::posix_spawn(&part.pid, binary, &actions, nullptr, argv.data(), environ) == 0, "{} cannot be started", binary);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ready[1]);
  ::close(alive[0]);
  part.alive = alive[1];
  parts_.push_back(part);
  std::string text;
  char bytes[4096];
  while (text.find('\n') == std::string::npos) {
    ssize_t n = ::read(ready[0], bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
  }
  ::close(ready[0]);
  return text;
}

}  // namespace argosy::testing
