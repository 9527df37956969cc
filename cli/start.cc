// argosy start: a head with its node, or a node that joins a head.

#include <arpa/inet.h>
#include <netdb.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <grpcpp/channel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/node_flags.h"
#include "cli/session.h"
#include "cli/token_flags.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/node/node_server.h"
#include "runtime/rpc/channel.h"

namespace argosy::cli {
namespace {

struct StartFlags {
  bool head = false;
  std::string address;
  uint16_t port = kHeadPort;
  std::string dashboard_host = "127.0.0.1";
  uint16_t dashboard_port = kDashboardPort;
  std::string web_dir;
  std::string temp_dir;
  bool block = false;
  NodeFlags node;
  TokenFlags token;
  int ready_fd = -1;
  int until_eof_fd = -1;
};

void Print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The local address by which this host reaches `address`. No packet is sent: connecting a datagram socket only picks the route.
absl::StatusOr<std::string> LocalIpTowards(const std::string& address) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidArgument("--address {}: give HOST:PORT, e.g. 127.0.0.1:{}", address, kHeadPort);
  }
  std::string host = address.substr(0, colon);
  std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int number = 0;
  if (auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
      error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535) {
    return InvalidArgument("--address {}: the port is {}; give a number from 1 to 65535", address, port);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return InvalidArgument("--address {}: {}", address, ::gai_strerror(error));
  }
  std::string result;
  for (addrinfo* at = found; at != nullptr && result.empty(); at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    char text[128];
    if (!fd.ok() || ::connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0) continue;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    if (::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) result = text;
  }
  ::freeaddrinfo(found);
  if (result.empty()) return Unavailable("--address {}: this host has no route to it", address);
  return result;
}

// The daemons that this command started; ended by it when it cannot go on, or when it was told to stay until the end.
class Started {
 public:
  ~Started() { Stop(); }
  void Add(pid_t pid) { pids_.push_back(pid); }
  void Keep() { pids_.clear(); }
  const std::vector<pid_t>& pids() const { return pids_; }
  // The node before its head: the last started first.
  void Stop() {
    for (auto pid = pids_.rbegin(); pid != pids_.rend(); ++pid) StopChild(*pid, absl::Seconds(15));
    pids_.clear();
  }

 private:
  std::vector<pid_t> pids_;
};

bool EndedWell(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child && info.si_code == CLD_EXITED &&
         info.si_status == 0;
}

absl::Status RunStart(StartFlags flags) {
  if (flags.head == !flags.address.empty()) {
    return InvalidArgument("give --head to start a cluster, or --address HOST:PORT to join one{}", flags.head ? ", not both" : "");
  }
  ARGOSY_RETURN_IF_ERROR(ToNodeOptions(flags.node).status());   // before anything is started
  bool foreground = flags.block || flags.ready_fd >= 0 || flags.until_eof_fd >= 0;
  // In the foreground the daemons end with this process, however it ends: they hold a pipe whose other end is ours.
  UniqueFd signals;
  UniqueFd life_read, life_write;
  if (foreground) {
    ARGOSY_ASSIGN_OR_RETURN(signals, CatchSignals());
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
    life_read.Reset(fds[0]);
    life_write.Reset(fds[1]);
  }
  std::error_code unreadable;   // says no as well
  if (!flags.web_dir.empty() && !std::filesystem::exists(std::filesystem::path(flags.web_dir) / "index.html", unreadable)) {
    return InvalidArgument("--web-dir {}: there is no index.html; give the folder of the built page", flags.web_dir);
  }
  flags.token.create = flags.head;
  ARGOSY_ASSIGN_OR_RETURN(ResolvedToken token, ResolveToken(flags.token));
  if (!flags.head) {
    if (flags.node.ip.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(flags.node.ip, LocalIpTowards(flags.address));
    }
    // The node itself would try again for ever, as it must when a head that it knows is away.
    std::shared_ptr<grpc::Channel> channel = rpc::OpenChannel({.address = flags.address, .token = token.token});
    ARGOSY_RETURN_IF_ERROR(Annotate(rpc::WaitConnected(*channel, flags.address, absl::Seconds(10)), "--address " + flags.address));
  }
  std::string root = SessionsRoot(flags.temp_dir);
  RemoveStaleSessions(root);
  ARGOSY_ASSIGN_OR_RETURN(std::string session, MakeSession(root));
  bool quiet = flags.ready_fd >= 0;

  std::string address = flags.address;
  std::string dashboard;
  Started started;
  std::vector<std::string> token_arguments;
  if (token.token.IsEmpty()) token_arguments = {"--auth", "none"};
  else if (!token.file.empty()) token_arguments = {"--token-file", token.file};
  if (flags.head) {
    if (flags.node.ip.empty()) flags.node.ip = "127.0.0.1";
    DaemonStart head{.arguments = {"head", "--session-dir", session, "--node-ip", flags.node.ip, "--port", std::to_string(flags.port),
                                   "--dashboard-host", flags.dashboard_host, "--dashboard-port", std::to_string(flags.dashboard_port)},
                     .token = token.token,
                     .log_file = session + "/head.log",
                     .until_eof_fd = life_read.get()};
    if (!flags.node.bind_ip.empty()) head.arguments.insert(head.arguments.end(), {"--bind-ip", flags.node.bind_ip});
    if (!flags.web_dir.empty()) head.arguments.insert(head.arguments.end(), {"--web-dir", flags.web_dir});
    head.arguments.insert(head.arguments.end(), token_arguments.begin(), token_arguments.end());
    ARGOSY_ASSIGN_OR_RETURN(StartedDaemon daemon, StartDaemon(head));
    started.Add(daemon.pid);
    address = daemon.ready.value("address", "");
    dashboard = daemon.ready.value("dashboard", "");
    if (!quiet) Print(fmt::format("head started: pid {}, {}", daemon.pid, address));
  }

  ARGOSY_ASSIGN_OR_RETURN(std::string folder, MakeNodeFolder(session));
  DaemonStart node{.arguments = {"node", "--head-address", address, "--folder", folder},
                   .token = token.token,
                   .log_file = folder + "/node.log",
                   .until_eof_fd = life_read.get()};
  if (flags.head) node.arguments.push_back("--head-node");
  for (const std::string& argument : ToArguments(flags.node)) node.arguments.push_back(argument);
  node.arguments.insert(node.arguments.end(), token_arguments.begin(), token_arguments.end());
  ARGOSY_ASSIGN_OR_RETURN(StartedDaemon daemon, StartDaemon(node));
  started.Add(daemon.pid);
  std::string socket = daemon.ready.value("node_socket", "");
  if (!quiet) Print(fmt::format("node started: pid {}, folder {}", daemon.pid, folder));

  if (flags.ready_fd >= 0) {
    SayReady(flags.ready_fd, {{"address", address},
                              {"dashboard", dashboard},
                              {"node_socket", socket},
                              {"session_dir", session},
                              {"token_file", token.file}});
  } else {
    if (flags.head) {
      Print("dashboard: " + dashboard);
      if (token.token.IsEmpty()) Print("token: none, authentication is OFF: whoever reaches these ports controls the cluster");
      else Print("token: " + (token.file.empty() ? std::string("from ARGOSY_AUTH_TOKEN") : token.file));
      Print("join it with: argosy start --address " + address);
      Print("submit a job: argosy job submit --address " + dashboard + " -- CMD...");
    } else {
      Print("joined: " + address);
    }
    Print("stop with: argosy stop");
  }
  if (!foreground) {
    started.Keep();
    return absl::OkStatus();
  }
  if (!quiet) Print("running until interrupted");
  bool asked = WaitForEnd(signals.get(), flags.until_eof_fd, started.pids());
  // A node that was drained ends without an error.
  bool drained = !asked && std::any_of(started.pids().begin(), started.pids().end(), EndedWell);
  started.Stop();
  if (!asked && !drained) return Unavailable("a daemon ended by itself; the logs are in {}", session);   // kept for whoever looks into it
  RemoveStaleSessions(root);
  return absl::OkStatus();
}

}  // namespace

void RegisterStart(CLI::App& app) {
  auto flags = std::make_shared<StartFlags>();
  CLI::App* command = app.add_subcommand("start", "Start a cluster on this host (--head), or join one (--address)");
  command->add_flag("--head", flags->head, "Start a head and a node beside it");
  command->add_option("--address", flags->address, "Join the head at HOST:PORT");
  command->add_option("--port", flags->port, "The head's gRPC port; 0: any free")->capture_default_str();
  command->add_option("--dashboard-host", flags->dashboard_host, "Address of the dashboard and Jobs API")->capture_default_str();
  command->add_option("--dashboard-port", flags->dashboard_port, "Port of the dashboard and Jobs API; 0: any free")->capture_default_str();
  command->add_option("--web-dir", flags->web_dir, "Folder of the built page");
  command->add_option("--temp-dir", flags->temp_dir, "Where session folders are made (default: ARGOSY_SESSIONS_DIR, else /tmp/argosy)");
  command->add_flag("--block", flags->block, "Stay in the foreground; the daemons end with this command");
  AddNodeFlags(*command, flags->node);
  AddTokenFlags(*command, flags->token);
  command->add_option("--ready-fd", flags->ready_fd)->group("");
  command->add_option("--until-eof-fd", flags->until_eof_fd)->group("");
  command->callback([flags] {
    if (absl::Status status = RunStart(*flags); !status.ok()) {
      SayFailed(flags->ready_fd, status);
      Fail(status);
    }
  });
}

}  // namespace argosy::cli
