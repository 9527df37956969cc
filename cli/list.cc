// argosy list, get, summary: what there is, row by row.

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <string_view>

#include "cli/command.h"
#include "cli/daemon.h"
#include "cli/head_flags.h"
#include "cli/state_client.h"
#include "runtime/base/status.h"

namespace argosy::cli {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"nodes", "actors", "tasks", "objects", "workers", "placement-groups", "jobs"};

struct ListFlags {
  HeadFlags head;
  std::string kind;
  std::string id;
  std::vector<std::string> filters;
  size_t limit = 100;
  bool json = false;
  bool detail = false;
};

std::string Kinds() {
  std::string text;
  for (std::string_view kind : kKinds) text += (text.empty() ? "" : ", ") + std::string(kind);
  return text;
}

// "actor" means "actors", and "placement_groups" "placement-groups", as users of other tools write them.
absl::StatusOr<std::string> KindOf(std::string kind) {
  std::replace(kind.begin(), kind.end(), '_', '-');
  for (std::string_view known : kKinds) {
    if (kind == known || kind + "s" == known) return std::string(known);
  }
  return InvalidArgument("there is nothing of kind {}; there are {}", kind, Kinds());
}

void PrintJson(const StateRows& list) {
  nlohmann::ordered_json json{{"rows", list.rows},
                              {"shown", list.rows.size()},
                              {"left_out", list.matched - std::min<uint64_t>(list.matched, list.rows.size())},
                              {"not_kept", list.missing},
                              {"warnings", list.warnings}};
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

absl::Status RunList(const ListFlags& flags, const std::string& kind) {
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  ARGOSY_ASSIGN_OR_RETURN(StateRows list, ListState(head, {kind, flags.filters, flags.limit, "", flags.detail}));
  if (flags.json) {
    PrintJson(list);
    return absl::OkStatus();
  }
  if (list.rows.empty()) std::printf("no %s%s\n", flags.kind.c_str(), flags.filters.empty() ? "" : " that match");
  PrintTable(list.rows);
  PrintLeftOut(list, flags.kind.c_str());
  return absl::OkStatus();
}

absl::Status RunGet(const ListFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(std::string kind, KindOf(flags.kind));
  ARGOSY_ASSIGN_OR_RETURN(HeadChannel head, ConnectHead(flags.head));
  ARGOSY_ASSIGN_OR_RETURN(StateRows list, ListState(head, {kind, {}, 20, flags.id, true}));
  for (const std::string& warning : list.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  if (list.rows.empty()) return NotFound("there is no {} with the id or name {}; argosy list {} shows what there is", flags.kind, flags.id, kind);
  // One object may lie on several nodes; of anything else an id names one.
  if (list.rows.size() > 1 && kind != "objects") {
    return InvalidArgument("{} of the {} have an id or name that begins with {}; give more of it", list.matched, kind, flags.id);
  }
  for (const nlohmann::ordered_json& row : list.rows) {
    if (flags.json) {
      std::printf("%s\n", row.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
      continue;
    }
    for (const auto& [key, value] : row.items()) {
      std::string text = value.is_null() ? "-" : value.is_string() ? value.get<std::string>() : value.dump();
      std::printf("%-20s %s\n", key.c_str(), text.c_str());
    }
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterList(CLI::App& app) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = app.add_subcommand("list", "Lists nodes, actors, tasks, objects, workers, placement-groups or jobs, and why something is pending");
  command->add_option("KIND", flags->kind, Kinds())->required();
  command->add_option("--filter", flags->filters, "FIELD=VALUE or FIELD!=VALUE, such as state=RUNNING, labels.zone=a; several: all must hold");
  command->add_option("--limit", flags->limit, "Rows at most")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->add_flag("--detail", flags->detail, "All fields");
  command->add_flag("--json", flags->json, "Print JSON, with the counts of what is left out");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    absl::StatusOr<std::string> kind = KindOf(flags->kind);
    if (!kind.ok()) Fail(kind.status());
    flags->kind = *kind;
    if (absl::Status status = RunList(*flags, *kind); !status.ok()) Fail(status);
  });
}

void RegisterGet(CLI::App& app) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = app.add_subcommand("get", "Everything about one node, actor, task, object, worker, placement-group or job");
  command->add_option("KIND", flags->kind, Kinds())->required();
  command->add_option("ID", flags->id, "Its id or the first digits of it, or its name")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  AddHeadFlags(*command, flags->head);
  command->callback([flags] {
    if (absl::Status status = RunGet(*flags); !status.ok()) Fail(status);
  });
}

void RegisterSummary(CLI::App& app) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = app.add_subcommand("summary", "Counts of tasks by function and state");
  CLI::App* tasks = command->add_subcommand("tasks", "How many are pending, running, finished and failed, of each function");
  command->require_subcommand(1);
  flags->kind = "functions";
  tasks->add_option("--filter", flags->filters, "FIELD=VALUE or FIELD!=VALUE, such as name=Square");
  tasks->add_option("--limit", flags->limit, "Rows at most")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  tasks->add_flag("--json", flags->json, "Print JSON");
  AddHeadFlags(*tasks, flags->head);
  tasks->callback([flags] {
    if (absl::Status status = RunList(*flags, "task-summary"); !status.ok()) Fail(status);
  });
}

}  // namespace argosy::cli
