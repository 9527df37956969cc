// argosy drain: a node takes nothing new, and leaves when nothing runs there any more.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "argosy/v1/head.grpc.pb.h"
#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/head_flags.h"
#include "cli/state_client.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"

namespace argosy::cli {
namespace {

struct DrainFlags {
  HeadFlags head;
  std::string node;
  std::string reason;
  double deadline_seconds = 0;
  bool undo = false;
  bool wait = false;
};

absl::Status RunDrain(const DrainFlags& flags) {
  if (flags.undo && flags.wait) return InvalidArgument("--undo and --wait exclude each other");
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  v1::DrainNodeRequest request;
  request.set_node(flags.node);
  request.set_reason(flags.reason);
  request.set_deadline_seconds(flags.deadline_seconds);
  request.set_undo(flags.undo);
  v1::DrainNodeReply reply;
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(30));
  ARGOSY_RETURN_IF_ERROR(OrNoToken(head, rpc::FromGrpc(v1::ClusterService::NewStub(head.channel)->DrainNode(&context, request, &reply))));
  if (flags.undo) {
    std::printf("node %s works again\n", reply.name().c_str());
    return absl::OkStatus();
  }
  std::printf("node %s takes nothing new and leaves when nothing runs there any more", reply.name().c_str());
  if (flags.deadline_seconds > 0) std::printf(", after %g s at the latest", flags.deadline_seconds);
  std::printf("\n");
  std::fflush(stdout);
  while (flags.wait) {
    ARGOSY_ASSIGN_OR_RETURN(StateRows list, ListState(head, {"nodes", {}, 1, reply.node_id(), true}));
    // Of nodes lost long ago nothing is kept.
    if (list.rows.empty() || list.rows.front()["state"] == "LOST") {
      std::printf("node %s has left\n", reply.name().c_str());
      break;
    }
    if (list.rows.front()["state"] != "DRAINING") return FailedPrecondition("node {} works again: somebody took the drain back", reply.name());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDrain(CLI::App& app) {
  auto flags = std::make_shared<DrainFlags>();
  CLI::App* command = app.add_subcommand("drain", "Takes a node out: nothing new is placed there, and it leaves when what runs there has ended");
  command->add_option("NODE", flags->node, "Its id, the first digits of it, or its name")->required();
  command->add_option("--reason", flags->reason, "Why, for those who look");
  command->add_option("--deadline", flags->deadline_seconds, "Seconds after which it leaves whatever runs there; 0: none")->capture_default_str();
  command->add_flag("--wait", flags->wait, "Return when it has left");
  command->add_flag("--undo", flags->undo, "Let it work again");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunDrain(*flags); !status.ok()) Fail(status);
  });
}

}  // namespace argosy::cli
