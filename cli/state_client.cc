#include "cli/state_client.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "argosy/v1/head.grpc.pb.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"

namespace argosy::cli {
namespace {

constexpr size_t kPage = 5000;
constexpr size_t kCellMax = 100;

std::string Plain(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

std::string Cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "-";
  std::string text;
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) text += (text.empty() ? "" : ",") + key + "=" + Plain(inner);
  } else {
    text = Plain(value);
  }
  if (text.empty()) return "-";
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text.size() <= kCellMax ? text : text.substr(0, kCellMax - 3) + "...";
}

}  // namespace

absl::StatusOr<StateRows> ListState(const HeadChannel& head, const StateRequest& request) {
  v1::ListStateRequest message;
  message.set_kind(request.kind);
  message.set_id(request.id);
  message.set_detail(request.detail);
  for (const std::string& filter : request.filters) {
    size_t equals = filter.find('=');
    bool negative = equals != std::string::npos && equals > 0 && filter[equals - 1] == '!';
    if (equals == std::string::npos || equals == (negative ? 1u : 0u)) {
      return InvalidArgument("--filter {}: want FIELD=VALUE or FIELD!=VALUE, such as state=RUNNING", filter);
    }
    v1::StateFilter* out = message.add_filters();
    out->set_key(filter.substr(0, equals - (negative ? 1 : 0)));
    out->set_value(filter.substr(equals + 1));
    out->set_not_equal(negative);
  }
  StateRows list;
  auto stub = v1::ClusterService::NewStub(head.channel);
  for (;;) {
    message.set_offset(static_cast<uint32_t>(list.rows.size()));
    message.set_limit(static_cast<uint32_t>(std::min(kPage, request.limit - list.rows.size())));
    v1::ListStateReply reply;
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(30));
    ARGOSY_RETURN_IF_ERROR(OrNoToken(head, rpc::FromGrpc(stub->ListState(&context, message, &reply))));
    for (const std::string& row : reply.rows()) {
      nlohmann::ordered_json parsed = nlohmann::ordered_json::parse(row, nullptr, false);
      if (!parsed.is_object()) return Internal("the head sent a row that is not JSON: {}", row.substr(0, 200));
      list.rows.push_back(std::move(parsed));
    }
    list.matched = reply.matched();
    list.missing = reply.missing();
    list.warnings.assign(reply.warnings().begin(), reply.warnings().end());
    if (reply.rows_size() < static_cast<int>(kPage) || list.rows.size() >= request.limit || list.rows.size() >= list.matched) return list;
  }
}

void PrintTable(const std::vector<nlohmann::ordered_json>& rows) {
  if (rows.empty()) return;
  std::vector<std::string> names;
  std::vector<size_t> widths;
  for (const auto& [key, value] : rows.front().items()) {
    names.push_back(key);
    widths.push_back(key.size());
  }
  std::vector<std::vector<std::string>> lines;
  for (const nlohmann::ordered_json& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) {
      line.push_back(row.contains(names[i]) ? Cell(row[names[i]]) : "-");
      widths[i] = std::max(widths[i], line.back().size());
    }
  }
  auto print = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      text += cells[i];
      if (i + 1 < cells.size()) text += std::string(widths[i] - cells[i].size() + 2, ' ');
    }
    std::printf("%s\n", text.c_str());
  };
  std::vector<std::string> head;
  for (std::string name : names) {
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    head.push_back(name);
  }
  print(head);
  for (const std::vector<std::string>& line : lines) print(line);
}

void PrintLeftOut(const StateRows& list, const char* what) {
  std::fflush(stdout);
  uint64_t left_out = list.matched - std::min<uint64_t>(list.matched, list.rows.size());
  if (left_out > 0) std::fprintf(stderr, "%llu more %s are not shown: --limit N, --filter FIELD=VALUE\n", static_cast<unsigned long long>(left_out), what);
  if (list.missing > 0) std::fprintf(stderr, "%llu older or smaller %s are not kept or listed\n", static_cast<unsigned long long>(list.missing), what);
  for (const std::string& warning : list.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
}

}  // namespace argosy::cli
