#include "runtime/api/daemons.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "argosy/error.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace argosy::internal {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FindBinary() {
  std::string given = Environment("ARGOSY_BINARY");
  if (!given.empty()) return given;
  std::error_code error;
  std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "argosy";
  if (!error && ::access(beside.c_str(), X_OK) == 0) return beside.string();
  std::string path = Environment("PATH");
  for (size_t at = 0; at <= path.size();) {
    size_t end = std::min(path.find(':', at), path.size());
    std::string candidate = path.substr(at, end - at) + "/argosy";
    if (end > at && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    at = end + 1;
  }
  throw RuntimeError("no cluster address was given, and the program `argosy` that would start a local cluster was not found: set "
                     "ARGOSY_BINARY, put it beside this program or into PATH, or set ARGOSY_ADDRESS to a running cluster");
}

}  // namespace

void DaemonProcess::End() {
  alive_.Reset();
  if (pid_ <= 0) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
}

StartedDaemons StartDaemons(const std::vector<std::string>& words) {
  std::string binary = FindBinary();
  int ready[2], alive[2];
  if (::pipe2(ready, O_CLOEXEC) != 0 || ::pipe2(alive, O_CLOEXEC) != 0) throw RuntimeError("no pipe for the local cluster");
  UniqueFd ready_read(ready[0]), ready_write(ready[1]), alive_read(alive[0]), alive_write(alive[1]);
  std::vector<std::string> arguments{binary};
  arguments.insert(arguments.end(), words.begin(), words.end());
  arguments.insert(arguments.end(), {"--ready-fd", std::to_string(ready_write.get()), "--until-eof-fd", std::to_string(alive_read.get())});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = ::fork();
  if (pid < 0) throw RuntimeError("the local cluster cannot be started: fork failed");
  if (pid == 0) {
    // Only async-signal-safe calls here. Its own group: Ctrl-C ends the driver, and the driver's end ends the cluster.
    ::setpgid(0, 0);
    ::fcntl(ready_write.get(), F_SETFD, 0);
    ::fcntl(alive_read.get(), F_SETFD, 0);
    int null = ::open("/dev/null", O_RDWR);
    if (null >= 0) {
      ::dup2(null, 0);
      ::dup2(null, 1);
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  StartedDaemons started;
  started.process = DaemonProcess(pid, std::move(alive_write));
  ready_write.Reset();
  alive_read.Reset();
  std::string text;
  char bytes[4096];
  while (text.find('\n') == std::string::npos) {
    ssize_t n = ::read(ready_read.get(), bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("node_socket")) {
    std::string command = binary;
    for (const std::string& word : words) command += " " + word;
    throw RuntimeError(fmt::format("the cluster did not start ({}{})", command, text.empty() ? "; its messages are above" : ": it said: " + text));
  }
  started.node_socket = json["node_socket"].get<std::string>();
  started.address = json.value("address", "");
  started.dashboard_url = json.value("dashboard", "");
  return started;
}

std::optional<NodeFile> ReadNodeFile(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadFile(path.string());
  if (!text.ok()) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  NodeFile node;
  auto field = [&](const char* name) { return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : std::string(); };
  node.head_address = field("head_address");
  node.node_socket = field("socket");
  std::string address = field("address");
  node.ip = address.substr(0, address.rfind(':'));
  if (node.ip.starts_with('[') && node.ip.ends_with(']')) node.ip = node.ip.substr(1, node.ip.size() - 2);
  node.bind_ip = field("bind_ip");
  auto port = [&](const char* name) { return json.contains(name) && json[name].is_number_unsigned() ? json[name].get<uint16_t>() : uint16_t{0}; };
  node.worker_port_min = port("worker_port_min");
  node.worker_port_max = port("worker_port_max");
  node.token_file = field("token_file");
  if (json.contains("pid") && json["pid"].is_number_integer()) node.pid = json["pid"].get<pid_t>();
  if (node.node_socket.empty()) return std::nullopt;
  return node;
}

std::optional<NodeFile> NodeFileOf(const std::string& node_socket) {
  std::optional<NodeFile> file = ReadNodeFile(std::filesystem::path(node_socket).parent_path().parent_path() / "node.json");
  if (file && file->node_socket != node_socket) file.reset();
  return file;
}

}  // namespace argosy::internal
