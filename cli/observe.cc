// argosy logs, timeline, memory, stack: what goes on in the cluster's processes.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "argosy/v1/head.grpc.pb.h"
#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/head_flags.h"
#include "cli/state_client.h"
#include "runtime/base/file.h"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"

namespace argosy::cli {
namespace {

constexpr uint64_t kChunk = 512 * 1024;
constexpr size_t kTimelineTasksMax = 1'000'000;

// ---- logs -------------------------------------------------------------------------------------------------------------------

struct LogFlags {
  HeadFlags head;
  std::string actor;
  std::string task;
  std::string node;
  std::string worker;
  bool error_stream = false;
  bool follow = false;
  int tail = -1;
};

absl::StatusOr<v1::WorkerLogChunk> Read(const HeadChannel& head, const v1::ReadWorkerLogRequest& request) {
  v1::WorkerLogChunk chunk;
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(30));
  ARGOSY_RETURN_IF_ERROR(OrNoToken(head, rpc::FromGrpc(v1::ClusterService::NewStub(head.channel)->ReadWorkerLog(&context, request, &chunk))));
  return chunk;
}

absl::Status RunLogs(const LogFlags& flags) {
  v1::ReadWorkerLogRequest request;
  int given = 0;
  for (auto [kind, id] : {std::pair{"actor", &flags.actor}, {"task", &flags.task}, {"node", &flags.node}, {"worker", &flags.worker}}) {
    if (id->empty()) continue;
    request.set_kind(kind);
    request.set_id(*id);
    ++given;
  }
  if (given != 1) return InvalidArgument("say whose log: one of --actor ID, --task ID, --node ID, --worker ID (a job's: argosy job logs ID)");
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  request.set_error_stream(flags.error_stream);
  request.set_size_max(kChunk);
  uint64_t offset = 0;
  if (flags.tail >= 0) {
    request.set_from_end(true);
    ARGOSY_ASSIGN_OR_RETURN(v1::WorkerLogChunk chunk, Read(head, request));
    request.set_from_end(false);
    // As many of the last lines as are in the chunk.
    const std::string& data = chunk.data();
    size_t begin = data.size();
    size_t from = data.ends_with('\n') ? data.size() - 1 : data.size();
    for (int lines = 0; lines < flags.tail; ++lines) {
      size_t newline = from == 0 ? std::string::npos : data.rfind('\n', from - 1);
      begin = newline == std::string::npos ? 0 : newline + 1;
      if (newline == std::string::npos) break;
      from = newline;
    }
    offset = chunk.offset() + begin;
  }
  for (;;) {
    request.set_offset(offset);
    ARGOSY_ASSIGN_OR_RETURN(v1::WorkerLogChunk chunk, Read(head, request));
    std::fwrite(chunk.data().data(), 1, chunk.data().size(), stdout);
    std::fflush(stdout);
    offset = chunk.offset() + chunk.data().size();
    if (!chunk.data().empty() && offset < chunk.end()) continue;
    if (!flags.follow) return absl::OkStatus();
    if (!chunk.may_grow()) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
}

// ---- timeline ---------------------------------------------------------------------------------------------------------------

struct TimelineFlags {
  HeadFlags head;
  std::string output;
  std::vector<std::string> filters;
};

absl::Status RunTimeline(const TimelineFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  ARGOSY_ASSIGN_OR_RETURN(StateRows list, ListState(head, {"tasks", flags.filters, kTimelineTasksMax, "", true}));
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  // One row a worker, in a group of its node.
  std::map<std::string, int> nodes;
  std::set<std::pair<int, int64_t>> named;
  size_t shown = 0;
  for (const nlohmann::ordered_json& row : list.rows) {
    if (!row["started_us"].is_number() || !row["pid"].is_number()) continue;
    std::string node = row["node"].is_string() ? row["node"].get<std::string>() : "?";
    auto [at, is_new] = nodes.emplace(node, static_cast<int>(nodes.size()) + 1);
    int process = at->second;
    if (is_new) events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", "node " + node}}}});
    int64_t pid = row["pid"].get<int64_t>();
    if (named.insert({process, pid}).second) {
      events.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", process}, {"tid", pid}, {"args", {{"name", fmt::format("worker pid {}", pid)}}}});
    }
    int64_t started = row["started_us"].get<int64_t>();
    nlohmann::ordered_json arguments{{"task_id", row["task_id"]}, {"state", row["state"]}, {"job_id", row["job_id"]}, {"attempt", row["attempt"]}};
    if (!row["actor_id"].is_null()) arguments["actor_id"] = row["actor_id"];
    if (!row["reason"].is_null()) arguments["error"] = row["reason"];
    if (!row["trace"].is_null()) arguments["trace"] = row["trace"];
    nlohmann::ordered_json event{{"name", row["name"]}, {"cat", row["kind"]}, {"pid", process}, {"tid", pid}, {"ts", started}};
    if (row["ended_us"].is_number()) {
      event["ph"] = "X";
      event["dur"] = std::max<int64_t>(0, row["ended_us"].get<int64_t>() - started);
    } else {
      event["ph"] = "B";   // still running
    }
    if (row["state"] == "FAILED") event["cname"] = "terrible";
    event["args"] = std::move(arguments);
    events.push_back(std::move(event));
    ++shown;
  }
  std::string text = nlohmann::ordered_json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (flags.output == "-") {
    std::printf("%s\n", text.c_str());
  } else {
    ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(flags.output, text));
    std::printf("%zu tasks in %s: open it at https://ui.perfetto.dev or in chrome://tracing\n", shown, flags.output.c_str());
  }
  PrintLeftOut(list, "tasks");
  return absl::OkStatus();
}

// ---- memory -----------------------------------------------------------------------------------------------------------------

struct MemoryFlags {
  HeadFlags head;
  std::vector<std::string> filters;
  size_t limit = 50;
  bool json = false;
};

absl::Status RunMemory(const MemoryFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  ARGOSY_ASSIGN_OR_RETURN(StateRows stores, ListState(head, {"stores", {}, 10'000, "", false}));
  ARGOSY_ASSIGN_OR_RETURN(StateRows objects, ListState(head, {"objects", flags.filters, 10'000, "", true}));
  std::stable_sort(objects.rows.begin(), objects.rows.end(),
                   [](const auto& a, const auto& b) { return a["size"].template get<uint64_t>() > b["size"].template get<uint64_t>(); });
  if (objects.rows.size() > flags.limit) objects.rows.resize(flags.limit);
  if (flags.json) {
    nlohmann::ordered_json json{{"stores", stores.rows},
                                {"objects", objects.rows},
                                {"left_out", objects.matched - std::min<uint64_t>(objects.matched, objects.rows.size())},
                                {"not_kept", objects.missing},
                                {"warnings", objects.warnings}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return absl::OkStatus();
  }
  for (const nlohmann::ordered_json& store : stores.rows) {
    std::printf("node %s: %s of %s used by %llu objects", store["node"].get<std::string>().c_str(), BytesText(store["used"].get<uint64_t>()).c_str(),
                BytesText(store["capacity"].get<uint64_t>()).c_str(), static_cast<unsigned long long>(store["objects"].get<uint64_t>()));
    if (uint64_t spilled = store.value("spilled", uint64_t{0}); spilled > 0) {
      std::printf(", %s of at most %s on disk", BytesText(spilled).c_str(), BytesText(store["spill_max"].get<uint64_t>()).c_str());
    }
    std::printf("\n");
  }
  std::printf("\n");
  if (objects.rows.empty()) std::printf("no objects\n");
  for (const nlohmann::ordered_json& row : objects.rows) {
    std::string where = row["where"].get<std::string>();
    std::printf("%s  %10s  %s%s on %s\n", row["object_id"].get<std::string>().c_str(), BytesText(row["size"].get<uint64_t>()).c_str(),
                row["state"].get<std::string>().c_str(), where.empty() ? "" : (" " + where).c_str(),
                row["node"].is_string() ? row["node"].get<std::string>().c_str() : "?");
    for (const nlohmann::ordered_json& holder : row["held_by"]) {
      std::printf("    %s %s (pid %llu): %lld handles, %lld pins%s\n", holder["is_owner"].get<bool>() ? "owner " : "holder",
                  holder["worker_id"].get<std::string>().substr(0, 8).c_str(), static_cast<unsigned long long>(holder["pid"].get<uint64_t>()),
                  static_cast<long long>(holder["handles"].get<int64_t>()), static_cast<long long>(holder["pins"].get<int64_t>()),
                  holder["borrowers"].get<int64_t>() > 0 ? fmt::format(", {} borrowers", holder["borrowers"].get<int64_t>()).c_str() : "");
    }
  }
  PrintLeftOut(objects, "objects");
  return absl::OkStatus();
}

// ---- stack ------------------------------------------------------------------------------------------------------------------

struct StackFlags {
  HeadFlags head;
  std::string worker;
};

absl::Status RunStack(const StackFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  v1::DumpStacksRequest request;
  request.set_worker_id(flags.worker);
  v1::DumpStacksReply reply;
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(30));
  ARGOSY_RETURN_IF_ERROR(OrNoToken(head, rpc::FromGrpc(v1::ClusterService::NewStub(head.channel)->DumpStacks(&context, request, &reply))));
  std::fwrite(reply.text().data(), 1, reply.text().size(), stdout);
  return absl::OkStatus();
}

}  // namespace

void RegisterLogs(CLI::App& app) {
  auto flags = std::make_shared<LogFlags>();
  CLI::App* command = app.add_subcommand("logs", "What a worker, actor, task or node daemon wrote, wherever it is");
  command->add_option("--actor", flags->actor, "An actor's id (or its first digits) or name");
  command->add_option("--task", flags->task, "A task's id, or its first digits: only what that task printed");
  command->add_option("--node", flags->node, "A node's id, first digits or name: the daemon's own log");
  command->add_option("--worker", flags->worker, "A worker's id, or its first digits");
  command->add_flag("--err", flags->error_stream, "Standard error instead of standard output");
  command->add_option("--tail", flags->tail, "Only so many of the last lines")->check(CLI::Range(0, 1'000'000));
  command->add_flag("--follow,-f", flags->follow, "Go on until it ends");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunLogs(*flags); !status.ok()) Fail(status);
  });
}

void RegisterTimeline(CLI::App& app) {
  auto flags = std::make_shared<TimelineFlags>();
  CLI::App* command = app.add_subcommand("timeline", "Which worker ran what when, as a Chrome trace");
  flags->output = "timeline.json";
  command->add_option("--output,-o", flags->output, "The file; - for standard output")->capture_default_str();
  command->add_option("--filter", flags->filters, "FIELD=VALUE or FIELD!=VALUE of argosy list tasks, such as job_id=...");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunTimeline(*flags); !status.ok()) Fail(status);
  });
}

void RegisterMemory(CLI::App& app) {
  auto flags = std::make_shared<MemoryFlags>();
  CLI::App* command = app.add_subcommand("memory", "Objects by size: where each lies and which processes hold it");
  command->add_option("--filter", flags->filters, "FIELD=VALUE or FIELD!=VALUE of argosy list objects");
  command->add_option("--limit", flags->limit, "Objects at most")->check(CLI::Range(1, 10'000))->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunMemory(*flags); !status.ok()) Fail(status);
  });
}

void RegisterStack(CLI::App& app) {
  auto flags = std::make_shared<StackFlags>();
  CLI::App* command = app.add_subcommand("stack", "Where every thread of a worker or driver is");
  command->add_option("WORKER", flags->worker, "Its id or the first digits of it (argosy list workers)")->required();
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunStack(*flags); !status.ok()) Fail(status);
  });
}

}  // namespace argosy::cli
