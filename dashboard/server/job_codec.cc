#include "dashboard/server/job_codec.h"

#include <cmath>

#include "dashboard/server/routes.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"

namespace argosy::dashboard {
namespace {

// As Python prints the type: clients' tests compare these words.
std::string PythonType(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "<class 'NoneType'>";
    case Json::value_t::object: return "<class 'dict'>";
    case Json::value_t::array: return "<class 'list'>";
    case Json::value_t::string: return "<class 'str'>";
    case Json::value_t::boolean: return "<class 'bool'>";
    case Json::value_t::number_float: return "<class 'float'>";
    default: return "<class 'int'>";
  }
}

absl::Status WrongType(std::string_view field, std::string_view wanted, const Json& value) {
  return InvalidArgument("TypeError: {} must be {}, got {}", field, wanted, PythonType(value));
}

absl::StatusOr<double> ParseAmount(std::string_view field, const Json& value) {
  if (!value.is_number()) return WrongType(field, "a number", value);
  double amount = value.get<double>();
  if (!std::isfinite(amount) || amount < 0) {
    return InvalidArgument("ValueError: {} must be a finite number that is not negative, got {}", field, value.dump());
  }
  return amount;
}

absl::Status ParseStrings(std::string_view field, const Json& value, google::protobuf::Map<std::string, std::string>& out) {
  if (!value.is_object()) return WrongType(field, "a dict", value);
  for (const auto& [key, entry] : value.items()) {
    if (!entry.is_string()) return InvalidArgument("TypeError: {} values must be strings, got {} for \"{}\"", field, PythonType(entry), key);
    std::string text = entry.get<std::string>();
    // Neither an environment nor a log line can carry one.
    if (key.find('\0') != key.npos || text.find('\0') != text.npos) {
      return InvalidArgument("ValueError: {}: \"{}\" must not contain a zero byte", field, key.substr(0, key.find('\0')));
    }
    out[key] = std::move(text);
  }
  return absl::OkStatus();
}

absl::Status ParseField(const std::string& key, const Json& value, v1::SubmitJobRequest& request) {
  if (key == "entrypoint") {
    if (!value.is_string()) return WrongType(key, "a string", value);
    request.set_entrypoint(value.get<std::string>());
  } else if (key == "submission_id" || key == "job_id") {
    if (!value.is_string()) return WrongType(key, "a string if provided", value);
    ARGOSY_RETURN_IF_ERROR(CheckSubmissionId(value.get<std::string>()));
    // job_id is the old name of submission_id, which wins when both are given.
    if (key == "submission_id" || request.submission_id().empty()) request.set_submission_id(value.get<std::string>());
  } else if (key == "runtime_env") {
    if (!value.is_object()) return WrongType(key, "a dict", value);
    if (value.contains("env_vars") && !value["env_vars"].is_null()) {
      google::protobuf::Map<std::string, std::string> ignored;
      ARGOSY_RETURN_IF_ERROR(ParseStrings("runtime_env[\"env_vars\"]", value["env_vars"], ignored));
    }
    if (value.contains("working_dir") && !value["working_dir"].is_null() && !value["working_dir"].is_string()) {
      return WrongType("runtime_env[\"working_dir\"]", "a string", value["working_dir"]);
    }
    request.set_runtime_env_json(value.dump());
  } else if (key == "metadata") {
    ARGOSY_RETURN_IF_ERROR(ParseStrings(key, value, *request.mutable_metadata()));
  } else if (key == "entrypoint_num_cpus") {
    ARGOSY_ASSIGN_OR_RETURN(double amount, ParseAmount(key, value));
    request.set_entrypoint_num_cpus(amount);
    request.set_has_entrypoint_resources(true);
  } else if (key == "entrypoint_num_gpus") {
    ARGOSY_ASSIGN_OR_RETURN(double amount, ParseAmount(key, value));
    request.set_entrypoint_num_gpus(amount);
    request.set_has_entrypoint_resources(true);
  } else if (key == "entrypoint_memory") {
    if (!value.is_number_integer()) return WrongType(key, "an integer", value);
    ARGOSY_ASSIGN_OR_RETURN(double amount, ParseAmount(key, value));
    request.set_entrypoint_memory(static_cast<uint64_t>(amount));
    request.set_has_entrypoint_resources(true);
  } else if (key == "entrypoint_resources") {
    if (!value.is_object()) return WrongType(key, "a dict", value);
    for (const auto& [name, entry] : value.items()) {
      if (!entry.is_number()) {
        return InvalidArgument("TypeError: entrypoint_resources values must be numbers, got {} for \"{}\"", PythonType(entry), name);
      }
      ARGOSY_ASSIGN_OR_RETURN(double amount, ParseAmount(fmt::format("entrypoint_resources[\"{}\"]", name), entry));
      (*request.mutable_entrypoint_resources())[name] = amount;
    }
    request.set_has_entrypoint_resources(true);
  } else if (key == "entrypoint_label_selector") {
    ARGOSY_RETURN_IF_ERROR(ParseStrings(key, value, *request.mutable_entrypoint_label_selector()));
    request.set_has_entrypoint_resources(true);
  } else {
    return InvalidArgument(
        "TypeError: JobSubmitRequest.__init__() got an unexpected keyword argument '{}'. Accepted are: entrypoint, submission_id, "
        "job_id, runtime_env, metadata, entrypoint_num_cpus, entrypoint_num_gpus, entrypoint_memory, entrypoint_resources, "
        "entrypoint_label_selector",
        key.substr(0, 200));
  }
  return absl::OkStatus();
}

// What a state means when the head has nothing more to say.
std::string DefaultMessage(const v1::JobInfo& job) {
  switch (job.state()) {
    case v1::JobInfo::PENDING: return "Job has not started yet.";
    case v1::JobInfo::RUNNING: return "Job is currently running.";
    case v1::JobInfo::STOPPED: return "Job was intentionally stopped.";
    case v1::JobInfo::SUCCEEDED: return "Job finished successfully.";
    default: return "Job failed.";
  }
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json TimeOrNull(int64_t millis) { return millis == 0 ? Json() : Json(millis); }

std::string HexOf(const std::string& bytes) {
  return internal::ToHex(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

template <class Map>
Json MapJson(const Map& map) {
  Json json = Json::object();
  std::map<std::string, typename Map::mapped_type> sorted(map.begin(), map.end());
  for (const auto& [key, value] : sorted) json[key] = value;
  return json;
}

Json NodeJson(const v1::NodeInfo& node) {
  return {{"id", HexOf(node.node_id())},
          {"name", node.name()},
          {"hostname", node.hostname()},
          {"ip", node.ip()},
          {"alive", node.alive()},
          {"is_head_node", node.is_head_node()},
          {"resources_total", MapJson(node.resources_total())},
          {"resources_available", MapJson(node.resources_available())},
          {"labels", MapJson(node.labels())},
          {"started_time", TimeOrNull(node.started_unix_ms())},
          {"lost_time", TimeOrNull(node.lost_unix_ms())},
          {"lost_reason", TextOrNull(node.lost_reason())},
          {"object_store_used", node.object_store_used()},
          {"object_store_spilled", node.object_store_spilled()},
          {"workers", node.workers()},
          {"pid", node.pid()}};
}

Json ActorJson(const v1::ActorInfo& actor) {
  return {{"id", HexOf(actor.actor_id())},
          {"state", v1::ActorInfo::State_Name(actor.state())},
          {"name", actor.name()},
          {"namespace", actor.namespace_()},
          {"class", actor.class_name()},
          {"node_id", HexOf(actor.worker().node_id())},
          {"job_id", HexOf(actor.job_id())},
          {"restarts", actor.restarts()},
          {"detached", actor.detached()},
          {"resources", MapJson(actor.resources())},
          {"pending_reason", TextOrNull(actor.pending_reason())},
          {"death_reason", TextOrNull(actor.death_reason())}};
}

Json GroupJson(const v1::GroupInfo& group) {
  Json bundles = Json::array();
  for (int i = 0; i < group.spec().bundles_size(); ++i) {
    bundles.push_back({{"resources", MapJson(group.spec().bundles(i).resources())},
                       {"node_id", i < group.bundle_nodes_size() ? HexOf(group.bundle_nodes(i)) : std::string()}});
  }
  return {{"id", HexOf(group.spec().group_id())},
          {"name", group.spec().name()},
          {"strategy", v1::GroupSpec::Strategy_Name(group.spec().strategy())},
          {"state", v1::GroupInfo::State_Name(group.state())},
          {"bundles", std::move(bundles)},
          {"pending_reason", TextOrNull(group.pending_reason())}};
}

}  // namespace

absl::StatusOr<v1::SubmitJobRequest> ParseSubmit(std::string_view body) {
  Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument("the request's body is not JSON; an object with at least \"entrypoint\" is expected");
  if (!json.is_object()) return WrongType("the request's body", "a dict", json);
  v1::SubmitJobRequest request;
  bool has_entrypoint = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "entrypoint") has_entrypoint = true;
    if (value.is_null() && key != "entrypoint") continue;
    ARGOSY_RETURN_IF_ERROR(ParseField(key, value, request));
  }
  if (!has_entrypoint) {
    return InvalidArgument("TypeError: JobSubmitRequest.__init__() missing 1 required positional argument: 'entrypoint'");
  }
  if (request.entrypoint().find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidArgument("ValueError: entrypoint must be a command, got an empty string");
  }
  if (request.entrypoint().find('\0') != std::string::npos) {
    return InvalidArgument("ValueError: entrypoint must not contain a zero byte");
  }
  if (request.runtime_env_json().empty()) request.set_runtime_env_json("{}");
  return request;
}

std::string StateName(v1::JobInfo::State state) { return v1::JobInfo::State_Name(state); }

bool IsTerminal(v1::JobInfo::State state) { return state != v1::JobInfo::PENDING && state != v1::JobInfo::RUNNING; }

Json JobDetails(const v1::JobInfo& job) {
  Json runtime_env = Json::parse(job.runtime_env_json(), nullptr, /*allow_exceptions=*/false);
  if (!runtime_env.is_object()) runtime_env = Json::object();
  std::string driver_id = HexOf(job.driver_job_id());
  Json driver;
  if (!driver_id.empty()) {
    driver = {{"id", driver_id}, {"node_ip_address", job.driver_ip()}, {"pid", std::to_string(job.driver_pid())}};
  }
  return {{"type", job.is_submission() ? "SUBMISSION" : "DRIVER"},
          {"job_id", TextOrNull(driver_id)},
          {"submission_id", job.is_submission() ? TextOrNull(job.submission_id()) : Json()},
          {"driver_info", std::move(driver)},
          {"status", StateName(job.state())},
          {"entrypoint", job.entrypoint()},
          {"message", job.message().empty() ? DefaultMessage(job) : job.message()},
          {"error_type", TextOrNull(job.error_type())},
          {"start_time", TimeOrNull(job.start_unix_ms())},
          {"end_time", TimeOrNull(job.end_unix_ms())},
          {"metadata", MapJson(job.metadata())},
          {"runtime_env", std::move(runtime_env)},
          {"driver_agent_http_address", TextOrNull(job.driver_agent_http_address())},
          {"driver_node_id", TextOrNull(HexOf(job.driver_node_id()))},
          {"driver_exit_code", job.has_exit_code() ? Json(job.driver_exit_code()) : Json()}};
}

Json ClusterJson(const v1::ClusterStatusReply& status, const v1::ListActorsReply& actors, const v1::ListGroupsReply& groups) {
  Json nodes = Json::array(), pending = Json::array(), actor_list = Json::array(), group_list = Json::array();
  for (const v1::NodeInfo& node : status.nodes()) nodes.push_back(NodeJson(node));
  for (const v1::PendingDemand& demand : status.pending()) {
    pending.push_back({{"what", demand.what()},
                       {"count", demand.count()},
                       {"resources", MapJson(demand.resources())},
                       {"label_selector", MapJson(demand.label_selector())},
                       {"explanation", demand.explanation()}});
  }
  for (const v1::ActorInfo& actor : actors.actors()) actor_list.push_back(ActorJson(actor));
  for (const v1::GroupInfo& group : groups.groups()) group_list.push_back(GroupJson(group));
  return {{"cluster_id", status.cluster_id()},
          {"version", status.version()},
          {"session_name", status.session_name()},
          {"head_address", status.head_address()},
          {"dashboard_url", status.dashboard_url()},
          {"started_time", TimeOrNull(status.started_unix_ms())},
          {"jobs_running", status.jobs_running()},
          {"actors_alive", status.actors_alive()},
          {"groups_created", status.groups_created()},
          {"nodes", std::move(nodes)},
          {"pending", std::move(pending)},
          {"actors", std::move(actor_list)},
          {"groups", std::move(group_list)}};
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace argosy::dashboard
