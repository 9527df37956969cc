// argosy head: the head process in the foreground, as `argosy start --head` runs it in the background.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/session.h"
#include "cli/token_flags.h"
#include "dashboard/server/dashboard_server.h"
#include "runtime/base/file.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/head/head_server.h"
#include "spdlog/spdlog.h"

namespace argosy::cli {
namespace {

struct HeadCommand {
  std::string session_dir;
  std::string node_ip = "127.0.0.1";
  std::string bind_ip;
  uint16_t port = kHeadPort;
  std::string dashboard_host = "127.0.0.1";
  uint16_t dashboard_port = kDashboardPort;
  std::string web_dir;
  TokenFlags token;
  int ready_fd = -1;
  int until_eof_fd = -1;
};

absl::Status RunHead(const HeadCommand& flags) {
  ARGOSY_ASSIGN_OR_RETURN(ResolvedToken token, ResolveToken(flags.token));
  ARGOSY_ASSIGN_OR_RETURN(UniqueFd signals, CatchSignals());
  std::string session = flags.session_dir;
  if (session.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(session, MakeSession(SessionsRoot("")));
  }
  std::string folder = session + "/head";
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  ARGOSY_ASSIGN_OR_RETURN(UniqueFd lock, LockDaemonFolder(folder));
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<head::HeadServer> head,
                          head::HeadServer::Start({.bind_ip = flags.bind_ip.empty() ? flags.node_ip : flags.bind_ip,
                                                   .advertised_ip = flags.node_ip,
                                                   .port = flags.port,
                                                   .token = token.token,
                                                   .session_dir = session,
                                                   .session_name = std::filesystem::path(session).filename().string()}));
  DashboardOptions options{.host = flags.dashboard_host,
                           .port = flags.dashboard_port,
                           .token = token.token,
                           .web_dir = FindWebDirectory(flags.web_dir, OwnExecutable())};
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<DashboardServer> dashboard, DashboardServer::Start(options, head->LocalChannel()));
  head->SetDashboardUrl(dashboard->url());
  ARGOSY_RETURN_IF_ERROR(WriteRecord({.kind = "head",
                                      .folder = folder,
                                      .pid = ::getpid(),
                                      .address = head->address(),
                                      .dashboard = dashboard->url(),
                                      .token_file = token.file}));
  if (token.token.IsEmpty()) spdlog::warn("authentication is off: whoever reaches these ports controls the cluster");
  spdlog::info("head {} is ready, dashboard {}", head->address(), dashboard->url());
  SayReady(flags.ready_fd, {{"address", head->address()}, {"dashboard", dashboard->url()}, {"session_dir", session}});
  WaitForEnd(signals.get(), flags.until_eof_fd);
  spdlog::info("head stops");
  dashboard->Stop();
  head->Stop(absl::Seconds(1));
  return absl::OkStatus();
}

}  // namespace

void RegisterHead(CLI::App& app) {
  auto flags = std::make_shared<HeadCommand>();
  CLI::App* command = app.add_subcommand("head", "Run a head in the foreground (start --head runs one in the background)");
  command->add_option("--session-dir", flags->session_dir, "Session folder; a head started on an old one goes on from its journal");
  command->add_option("--node-ip", flags->node_ip, "Address to listen on and to be joined at")->capture_default_str();
  command->add_option("--bind-ip", flags->bind_ip, "Address to listen on, when it is another than --node-ip");
  command->add_option("--port", flags->port, "gRPC port; 0: any free")->capture_default_str();
  command->add_option("--dashboard-host", flags->dashboard_host, "Address of the dashboard and Jobs API")->capture_default_str();
  command->add_option("--dashboard-port", flags->dashboard_port, "Port of the dashboard and Jobs API; 0: any free")->capture_default_str();
  command->add_option("--web-dir", flags->web_dir, "Folder of the built page");
  AddTokenFlags(*command, flags->token);
  flags->token.create = true;
  command->add_option("--ready-fd", flags->ready_fd)->group("");
  command->add_option("--until-eof-fd", flags->until_eof_fd)->group("");
  command->callback([flags] {
    InitLog({.process = "head"});
    if (absl::Status status = RunHead(*flags); !status.ok()) {
      SayFailed(flags->ready_fd, status);
      Fail(status);
    }
  });
}

}  // namespace argosy::cli
