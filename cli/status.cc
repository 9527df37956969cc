// argosy status: nodes, what waits and why, jobs.


#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "argosy/v1/head.grpc.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/head_flags.h"
#include "nlohmann/json.hpp"
#include "runtime/base/id.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"

namespace argosy::cli {
namespace {

struct StatusFlags {
  HeadFlags head;
  bool json = false;
};

bool IsBytes(const std::string& resource) { return resource == "memory" || resource == "object_store_memory"; }

std::string AmountText(const std::string& resource, double amount) {
  if (!IsBytes(resource)) return fmt::format("{:g}", amount);
  if (amount >= 0x1p30) return fmt::format("{:.1f} GiB", amount / 0x1p30);
  return fmt::format("{:.0f} MiB", amount / 0x1p20);
}

nlohmann::json ToJson(const google::protobuf::Map<std::string, double>& map) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : map) json[key] = value;
  return json;
}
nlohmann::json ToJson(const google::protobuf::Map<std::string, std::string>& map) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, value] : map) json[key] = value;
  return json;
}
std::string Hex(const std::string& id) {
  auto parsed = NodeId::FromBytes(id);
  return parsed ? parsed->Hex() : "";
}

void PrintText(const v1::ClusterStatusReply& status, const v1::ListJobsReply& jobs) {
  size_t alive = 0;
  for (const v1::NodeInfo& node : status.nodes()) alive += node.alive();
  std::printf("cluster %s (%s), dashboard %s\n", status.head_address().c_str(), status.session_name().c_str(), status.dashboard_url().c_str());
  std::printf("nodes: %zu alive, %zu lost\n", alive, static_cast<size_t>(status.nodes_size()) - alive);
  for (const v1::NodeInfo& node : status.nodes()) {
    std::string line = fmt::format("  {} ({}, {})", node.name(), Hex(node.node_id()).substr(0, 8), node.ip());
    if (!node.alive()) line += " LOST: " + node.lost_reason();
    if (node.is_head_node()) line += " beside the head";
    std::printf("%s\n", line.c_str());
    if (!node.alive()) continue;
    std::map<std::string, double> total(node.resources_total().begin(), node.resources_total().end());
    for (const auto& [name, amount] : total) {
      auto free = node.resources_available().find(name);
      double used = amount - (free == node.resources_available().end() ? 0 : free->second);
      std::printf("    %s: %s of %s used\n", name.c_str(), AmountText(name, used).c_str(), AmountText(name, amount).c_str());
    }
    if (node.object_store_spilled() > 0) {
      std::printf("    objects on disk: %s\n", AmountText("memory", static_cast<double>(node.object_store_spilled())).c_str());
    }
    std::map<std::string, std::string> labels(node.labels().begin(), node.labels().end());
    std::string text;
    for (const auto& [key, value] : labels) text += (text.empty() ? "" : ", ") + key + "=" + value;
    if (!text.empty()) std::printf("    labels: %s\n", text.c_str());
  }
  std::printf("waiting: %s\n", status.pending_size() == 0 ? "nothing" : "");
  for (const v1::PendingDemand& pending : status.pending()) {
    std::printf("  %u x %s: %s\n", pending.count(), pending.what().c_str(), pending.explanation().c_str());
  }
  std::printf("actors: %u alive; placement groups: %u; jobs running: %u\n", status.actors_alive(), status.groups_created(), status.jobs_running());
  for (const v1::JobInfo& job : jobs.jobs()) {
    if (job.state() != v1::JobInfo::PENDING && job.state() != v1::JobInfo::RUNNING) continue;
    std::string name = job.is_submission() ? job.submission_id() : "driver " + Hex(job.driver_job_id()).substr(0, 8);
    std::printf("  %s %s: %s\n", v1::JobInfo::State_Name(job.state()).c_str(), name.c_str(), job.entrypoint().substr(0, 100).c_str());
  }
}

void PrintJson(const v1::ClusterStatusReply& status, const v1::ListJobsReply& jobs) {
  nlohmann::json json{{"cluster_id", status.cluster_id()},
                      {"address", status.head_address()},
                      {"dashboard", status.dashboard_url()},
                      {"session", status.session_name()},
                      {"version", status.version()},
                      {"started_unix_ms", status.started_unix_ms()},
                      {"actors_alive", status.actors_alive()},
                      {"placement_groups", status.groups_created()},
                      {"jobs_running", status.jobs_running()},
                      {"nodes", nlohmann::json::array()},
                      {"pending", nlohmann::json::array()},
                      {"jobs", nlohmann::json::array()}};
  for (const v1::NodeInfo& node : status.nodes()) {
    json["nodes"].push_back({{"node_id", Hex(node.node_id())},
                             {"name", node.name()},
                             {"ip", node.ip()},
                             {"alive", node.alive()},
                             {"lost_reason", node.lost_reason()},
                             {"is_head_node", node.is_head_node()},
                             {"resources_total", ToJson(node.resources_total())},
                             {"resources_available", ToJson(node.resources_available())},
                             {"labels", ToJson(node.labels())},
                             {"workers", node.workers()},
                             {"object_store_used", node.object_store_used()},
                             {"object_store_spilled", node.object_store_spilled()},
                             {"pid", node.pid()}});
  }
  for (const v1::PendingDemand& pending : status.pending()) {
    json["pending"].push_back({{"what", pending.what()},
                               {"count", pending.count()},
                               {"resources", ToJson(pending.resources())},
                               {"label_selector", ToJson(pending.label_selector())},
                               {"explanation", pending.explanation()}});
  }
  for (const v1::JobInfo& job : jobs.jobs()) {
    json["jobs"].push_back({{"submission_id", job.submission_id()},
                            {"driver_job_id", Hex(job.driver_job_id())},
                            {"state", v1::JobInfo::State_Name(job.state())},
                            {"entrypoint", job.entrypoint()},
                            {"message", job.message()}});
  }
  // What users named may hold any bytes; the output is valid JSON all the same.
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

absl::Status RunStatus(const StatusFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  const std::shared_ptr<grpc::Channel>& channel = head.channel;
  v1::ClusterStatusReply status;
  v1::ListJobsReply jobs;
  {
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(10));
    grpc::Status got = v1::ClusterService::NewStub(channel)->ClusterStatus(&context, v1::Empty(), &status);
    ARGOSY_RETURN_IF_ERROR(OrNoToken(head, rpc::FromGrpc(got)));
  }
  {
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(10));
    ARGOSY_RETURN_IF_ERROR(rpc::FromGrpc(v1::JobService::NewStub(channel)->ListJobs(&context, v1::ListJobsRequest(), &jobs)));
  }
  if (flags.json) PrintJson(status, jobs);
  else PrintText(status, jobs);
  return absl::OkStatus();
}

}  // namespace

void RegisterStatus(CLI::App& app) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand("status", "Nodes with their resources, what waits and why, jobs");
  command->add_flag("--json", flags->json, "Print JSON");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunStatus(*flags); !status.ok()) Fail(status);
  });
}

}  // namespace argosy::cli
