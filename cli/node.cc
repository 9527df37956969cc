// argosy node: a node daemon in the foreground, as `argosy start` runs it in the background.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/node_flags.h"
#include "cli/session.h"
#include "cli/token_flags.h"
#include "runtime/async/loop.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/node/node_server.h"
#include "spdlog/spdlog.h"

namespace argosy::cli {
namespace {

struct NodeCommand {
  NodeFlags node;
  std::string head_address;
  std::string folder;
  bool is_head_node = false;
  TokenFlags token;
  int ready_fd = -1;
  int until_eof_fd = -1;
};

absl::Status RunNode(const NodeCommand& flags) {
  ARGOSY_ASSIGN_OR_RETURN(ResolvedToken token, ResolveToken(flags.token));
  ARGOSY_ASSIGN_OR_RETURN(UniqueFd signals, CatchSignals());
  ARGOSY_ASSIGN_OR_RETURN(node::NodeServerOptions options, ToNodeOptions(flags.node));
  options.head_address = flags.head_address;
  if (const char* devices = std::getenv("CUDA_VISIBLE_DEVICES"); devices != nullptr) options.cuda_visible_devices = devices;
  options.token = token.token;
  options.is_head_node = flags.is_head_node;
  options.executable_dir = std::filesystem::path(OwnExecutable()).parent_path().string();
  std::string folder = flags.folder;
  if (folder.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(std::string session, MakeSession(SessionsRoot("")));
    ARGOSY_ASSIGN_OR_RETURN(folder, MakeNodeFolder(session));
  }
  options.session_dir = folder;
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  ARGOSY_ASSIGN_OR_RETURN(UniqueFd lock, LockDaemonFolder(folder));
  // The daemon's own lock file is inside its folder too; this one tells the commands that the daemon lives.

  async::Loop loop;
  std::unique_ptr<node::NodeServer> server;
  absl::Status ended;
  bool stopping = false;
  bool ready_said = false;
  auto stop = [&](absl::Status why) {
    if (stopping) return;
    stopping = true;
    ended = std::move(why);
    spdlog::info("node stops");
    server->Stop(absl::Seconds(3), [&] { loop.Stop(); });
  };
  node::NodeServer::Callbacks callbacks{
      .registered =
          [&] {
            if (std::exchange(ready_said, true)) return;
            SayReady(flags.ready_fd, {{"node_socket", server->socket_path()},
                                      {"node_id", server->id().Hex()},
                                      {"wire_address", server->wire_address()},
                                      {"agent_address", server->agent_address()}});
          },
      .fatal = [&](const absl::Status& why) { loop.Post([&, why] { stop(why); }); },
      .drained = [&](const std::string&) { loop.Post([&] { stop(absl::OkStatus()); }); },
  };
  ARGOSY_ASSIGN_OR_RETURN(server, node::NodeServer::Start(loop, options, std::move(callbacks)));
  ARGOSY_RETURN_IF_ERROR(WriteRecord({.kind = "node",
                                      .folder = folder,
                                      .pid = ::getpid(),
                                      .name = flags.node.name,
                                      .address = server->wire_address(),
                                      .socket = server->socket_path(),
                                      .token_file = token.file,
                                      .head_address = options.head_address,
                                      .bind_ip = options.bind_ip,
                                      .worker_port_min = options.worker_port_min,
                                      .worker_port_max = options.worker_port_max}));
  async::FdWatch signal_watch(loop, signals.get());
  signal_watch.OnReadable([&] {
    stop(absl::OkStatus());
    return false;
  });
  std::unique_ptr<async::FdWatch> parent_watch;
  if (flags.until_eof_fd >= 0) {
    parent_watch = std::make_unique<async::FdWatch>(loop, flags.until_eof_fd);
    parent_watch->OnReadable([&] {
      stop(absl::OkStatus());
      return false;
    });
  }
  loop.Run();
  parent_watch.reset();
  server.reset();
  return ended;
}

}  // namespace

void RegisterNode(CLI::App& app) {
  auto flags = std::make_shared<NodeCommand>();
  CLI::App* command = app.add_subcommand("node", "Run a node daemon in the foreground (start runs one in the background)");
  command->add_option("--head-address", flags->head_address, "HOST:PORT of the head")->required();
  command->add_option("--folder", flags->folder, "The daemon's own folder (default: a new session)");
  command->add_flag("--head-node", flags->is_head_node, "This node stands beside the head: jobs without demands run here");
  AddNodeFlags(*command, flags->node);
  AddTokenFlags(*command, flags->token);
  command->add_option("--ready-fd", flags->ready_fd)->group("");
  command->add_option("--until-eof-fd", flags->until_eof_fd)->group("");
  command->callback([flags] {
    InitLog({.process = "node"});
    if (absl::Status status = RunNode(*flags); !status.ok()) {
      SayFailed(flags->ready_fd, status);
      Fail(status);
    }
  });
}

}  // namespace argosy::cli
