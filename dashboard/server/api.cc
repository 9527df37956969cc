#include "dashboard/server/api.h"

#include <algorithm>
#include <chrono>

#include "dashboard/server/access.h"
#include "runtime/base/clock.h"

namespace argosy::dashboard {
namespace asio = boost::asio;
namespace {

// The release of the field's client library whose Jobs API this is: clients compare the version to know which fields exist.
constexpr char kApiVersion[] = "4";
constexpr char kRayVersion[] = "2.60.0";
constexpr char kRayCommit[] = "b7f4259e944bf6959f721b106adc366ddfa0c356";

constexpr uint64_t kLogReadMax = 16 << 20;
constexpr int kCookieSeconds = 30 * 24 * 3600;
constexpr std::chrono::milliseconds kWrongTokenPause{300};

Response PlainOk() { return {.content_type = ""}; }

}  // namespace

Response Api::Error(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: return TextResponse(400, Message(status));
    case absl::StatusCode::kNotFound: return TextResponse(404, Message(status));
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return TextResponse(503, fmt::format("The head did not answer: {}", Message(status)));
    default: return TextResponse(500, Message(status));
  }
}

Response Api::JobError(const absl::Status& status, const std::string& id) {
  if (status.code() == absl::StatusCode::kNotFound) return TextResponse(404, fmt::format("Job {} does not exist", id));
  return Error(status);
}

Response Api::NotSubmission(std::string_view act) {
  return TextResponse(400, fmt::format("Can only {} submission type jobs", act));
}

asio::awaitable<absl::StatusOr<v1::JobInfo>> Api::FindJob(std::string id) { return head_.GetJob(std::move(id)); }

asio::awaitable<Response> Api::Handle(Route route, std::string method, std::string body) {
  switch (route.endpoint) {
    case Endpoint::kVersion: return Version();
    case Endpoint::kHealth: return Health();
    case Endpoint::kActivities: return Activities();
    case Endpoint::kJobs: return method == "POST" ? Submit(std::move(body)) : List();
    case Endpoint::kJob: return method == "DELETE" ? Delete(std::move(route.id)) : Details(std::move(route.id));
    case Endpoint::kJobStop: return Stop(std::move(route.id));
    case Endpoint::kJobLogs: return Logs(std::move(route.id));
    case Endpoint::kPackage: return HasPackage(std::move(route.protocol), std::move(route.id));
    case Endpoint::kCluster: return Cluster();
    case Endpoint::kMetrics: return Metrics();
    case Endpoint::kLogIn: return LogIn(std::move(body));
    default: break;
  }
  Response response = TextResponse(404, "404: Not Found");
  if (route.endpoint == Endpoint::kLogOut) {
    response = PlainOk();
    response.headers = {{"Set-Cookie", fmt::format("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", kTokenCookie)}};
  } else if (route.endpoint == Endpoint::kMethodNotAllowed) {
    response = TextResponse(405, "405: Method Not Allowed");
    response.headers = {{"Allow", route.allow}};
  }
  return [](Response ready) -> Answer { co_return ready; }(std::move(response));
}

Api::Answer Api::Version() {
  if (session_name_.empty()) {
    absl::StatusOr<v1::ClusterStatusReply> status = co_await head_.ClusterStatus();
    if (!status.ok()) co_return Error(status.status());
    session_name_ = status->session_name();
  }
  Json json = {{"version", kApiVersion}, {"ray_version", kRayVersion}, {"ray_commit", kRayCommit}, {"session_name", session_name_}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::Health() {
  absl::StatusOr<v1::ClusterStatusReply> status = co_await head_.ClusterStatus();
  if (!status.ok()) co_return Error(status.status());
  co_return TextResponse(200, "success");
}

Api::Answer Api::Metrics() {
  absl::StatusOr<v1::MetricsText> metrics = co_await head_.ReadMetrics();
  if (!metrics.ok()) co_return Error(metrics.status());
  Response response{.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(*metrics->mutable_text())};
  co_return response;
}

Api::Answer Api::Activities() {
  absl::StatusOr<v1::ListJobsReply> jobs = co_await head_.ListJobs();
  if (!jobs.ok()) co_return Error(jobs.status());
  int active = 0;
  int64_t last_end = 0;
  for (const v1::JobInfo& job : jobs->jobs()) {
    if (!IsTerminal(job.state())) ++active;
    last_end = std::max(last_end, job.end_unix_ms());
  }
  double now = static_cast<double>(UnixMillis(Clock::Real().WallNow())) / 1000;
  Json driver = {{"is_active", active > 0 ? "ACTIVE" : "INACTIVE"},
                 {"reason", active > 0 ? Json(fmt::format("Number of active drivers: {}", active)) : Json()},
                 {"timestamp", now},
                 {"last_activity_at", active > 0 ? Json(now) : last_end > 0 ? Json(static_cast<double>(last_end) / 1000) : Json()}};
  Json json = {{"driver", std::move(driver)}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::Submit(std::string body) {
  absl::StatusOr<v1::SubmitJobRequest> request = ParseSubmit(body);
  if (!request.ok()) co_return Error(request.status());
  std::string wanted = request->submission_id();
  absl::StatusOr<v1::SubmitJobReply> reply = co_await head_.SubmitJob(*std::move(request));
  if (reply.status().code() == absl::StatusCode::kAlreadyExists) {
    // 500, because clients look for exactly this status with exactly these words.
    co_return TextResponse(
        500, fmt::format("Job with submission_id {} already exists. Please use a different submission_id.", wanted));
  }
  if (!reply.ok()) co_return Error(reply.status());
  Json json = {{"job_id", reply->submission_id()}, {"submission_id", reply->submission_id()}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::List() {
  absl::StatusOr<v1::ListJobsReply> jobs = co_await head_.ListJobs();
  if (!jobs.ok()) co_return Error(jobs.status());
  Json list = Json::array();
  for (bool submissions : {true, false}) {
    for (const v1::JobInfo& job : jobs->jobs()) {
      if (job.is_submission() == submissions) list.push_back(JobDetails(job));
    }
  }
  co_return JsonResponse(Dump(list));
}

Api::Answer Api::Details(std::string id) {
  absl::StatusOr<v1::JobInfo> job = co_await head_.GetJob(id);
  if (!job.ok()) co_return JobError(job.status(), id);
  co_return JsonResponse(Dump(JobDetails(*job)));
}

Api::Answer Api::Stop(std::string id) {
  absl::StatusOr<v1::JobInfo> job = co_await head_.GetJob(id);
  if (!job.ok()) co_return JobError(job.status(), id);
  if (!job->is_submission()) co_return NotSubmission("stop");
  absl::StatusOr<v1::StopJobReply> reply = co_await head_.StopJob(job->submission_id());
  if (!reply.ok()) co_return JobError(reply.status(), id);
  Json json = {{"stopped", reply->stopped()}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::Delete(std::string id) {
  absl::StatusOr<v1::JobInfo> job = co_await head_.GetJob(id);
  if (!job.ok()) co_return JobError(job.status(), id);
  if (!job->is_submission()) co_return NotSubmission("delete");
  absl::StatusOr<v1::DeleteJobReply> reply = co_await head_.DeleteJob(job->submission_id());
  if (reply.status().code() == absl::StatusCode::kFailedPrecondition) {
    co_return TextResponse(500, fmt::format("Attempted to delete job '{}', but it is in a non-terminal state {}.",
                                            job->submission_id(), StateName(job->state())));
  }
  if (!reply.ok()) co_return JobError(reply.status(), id);
  Json json = {{"deleted", reply->deleted()}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::Logs(std::string id) {
  absl::StatusOr<v1::JobInfo> job = co_await head_.GetJob(id);
  if (!job.ok()) co_return JobError(job.status(), id);
  if (!job->is_submission()) co_return NotSubmission("get logs of");
  uint64_t end = job->log_end();
  uint64_t begin = end > kLogReadMax ? end - kLogReadMax : 0;
  absl::StatusOr<std::string> log = co_await head_.ReadLog(job->submission_id(), begin, end);
  if (!log.ok()) co_return JobError(log.status(), id);
  uint64_t missing = end - std::min<uint64_t>(end, log->size());
  if (missing > 0) {
    *log = fmt::format("[LOG TRUNCATED: the first {} of {} bytes are not shown; follow the log to read what is kept of them]\n",
                       missing, end) + *log;
  }
  Json json = {{"logs", *std::move(log)}};
  co_return JsonResponse(Dump(json));
}

Api::Answer Api::HasPackage(std::string protocol, std::string name) {
  if (absl::Status ok = CheckPackage(protocol, name); !ok.ok()) co_return Error(ok);
  absl::StatusOr<v1::PackageStatus> status = co_await head_.HasPackage(name);
  bool missing = status.ok() ? !status->exists() : status.status().code() == absl::StatusCode::kNotFound;
  if (missing) co_return TextResponse(404, fmt::format("Package {}://{} does not exist", protocol, name));
  if (!status.ok()) co_return Error(status.status());
  co_return PlainOk();
}

Api::Answer Api::Cluster() {
  absl::StatusOr<v1::ClusterStatusReply> status = co_await head_.ClusterStatus();
  if (!status.ok()) co_return Error(status.status());
  absl::StatusOr<v1::ListActorsReply> actors = co_await head_.ListActors();
  if (!actors.ok()) co_return Error(actors.status());
  absl::StatusOr<v1::ListGroupsReply> groups = co_await head_.ListGroups();
  if (!groups.ok()) co_return Error(groups.status());
  co_return JsonResponse(Dump(ClusterJson(*status, *actors, *groups)));
}

Api::Answer Api::LogIn(std::string body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string given;
  if (json.is_object() && json.contains("token") && json["token"].is_string()) given = json["token"].get<std::string>();
  if (token_.IsEmpty()) co_return PlainOk();
  if (given.empty()) co_return TextResponse(400, "the request's body must be {\"token\": \"...\"}");
  if (!token_.Matches(given)) {
    asio::steady_timer pause(co_await asio::this_coro::executor, kWrongTokenPause);
    co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
    co_return TextResponse(403, "Forbidden: Invalid authentication token");
  }
  Response response = PlainOk();
  response.headers = {{"Set-Cookie", fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}", kTokenCookie,
                                                 token_.text(), kCookieSeconds)}};
  co_return response;
}

}  // namespace argosy::dashboard
