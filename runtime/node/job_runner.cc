#include "runtime/node/job_runner.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/id.h"
#include "runtime/base/job_priority.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/wire/startup.h"

namespace argosy::node {
namespace {

// What clients of the Jobs API compare with.
constexpr char kRuntimeEnvFailure[] = "RUNTIME_ENV_SETUP_FAILURE";
constexpr char kCommandStartError[] = "JOB_ENTRYPOINT_COMMAND_START_ERROR";
constexpr char kStartFailure[] = "JOB_SUPERVISOR_ACTOR_START_FAILURE";

// Chunks of one job that are sent in one turn.
constexpr int kChunksATurn = 8;

// A name for files: the id when it is plain, else its hex.
std::string FileName(const std::string& id) {
  bool plain = id.size() <= 120 && std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  if (plain) return id;
  return "x" + internal::ToHex(reinterpret_cast<const unsigned char*>(id.data()), std::min<size_t>(id.size(), 100));
}

// The parts of a runtime_env that this node cannot set up, or empty.
std::string Unsupported(const nlohmann::json& runtime_env) {
  std::string names;
  for (const char* field : {"pip", "uv", "conda", "container", "image_uri", "py_executable", "java_jars", "nsight"}) {
    auto at = runtime_env.find(field);
    if (at == runtime_env.end() || at->is_null() || (at->is_structured() && at->empty()) || (at->is_string() && at->get<std::string>().empty())) {
      continue;
    }
    names += (names.empty() ? "" : ", ") + std::string(field);
  }
  return names;
}

}  // namespace

JobRunner::JobRunner(Parts parts, JobRunnerOptions options) : parts_(std::move(parts)), options_(std::move(options)), ship_timer_(parts_.loop) {}

JobRunner::~JobRunner() {
  alive_.reset();
  KillAll();
}

void JobRunner::Start(const StartJob& message) {
  if (auto at = jobs_.find(message.submission_id); at != jobs_.end()) {
    if (at->second->state == State::kRunning) {
      parts_.send(JobStarted{message.submission_id, static_cast<uint32_t>(at->second->process->pid())});
    }
    return;
  }
  auto job = std::make_shared<Job>();
  job->start = message;
  if (jobs_.size() >= options_.jobs_max) {
    return Fail(job, fmt::format("{} jobs run on this node already", jobs_.size()), kStartFailure, true);
  }
  if (!message.lease.IsNil()) {
    absl::StatusOr<std::vector<uint32_t>> gpu_ids = parts_.grant(message.lease, message.demand);
    if (!gpu_ids.ok()) return Fail(job, Message(gpu_ids.status()), kStartFailure, true);
    job->gpu_ids = std::move(*gpu_ids);
    job->lease_held = true;
  }
  // A node without jobs does not wake up for their logs.
  if (jobs_.empty()) ship_timer_.Every(options_.ship_period, [this] { Ship(); });
  jobs_[message.submission_id] = job;
  Prepare(job);
}

void JobRunner::Prepare(const JobPointer& job) {
  nlohmann::json runtime_env = nlohmann::json::parse(job->start.runtime_env_json.empty() ? "{}" : job->start.runtime_env_json, nullptr, false);
  if (runtime_env.is_discarded() || !runtime_env.is_object()) {
    return Fail(job, "runtime_env setup failed: it is not a JSON object", kRuntimeEnvFailure);
  }
  if (std::string names = Unsupported(runtime_env); !names.empty()) {
    return Fail(job, fmt::format("runtime_env setup failed: this node cannot set up {}; it sets up working_dir, py_modules and env_vars", names),
                kRuntimeEnvFailure);
  }
  std::vector<std::string> uris = job->start.py_modules_uris;
  job->module_folders.resize(uris.size());
  job->packages_left = uris.size() + (job->start.working_dir_uri.empty() ? 0 : 1);
  if (job->packages_left == 0) return Launch(job);
  if (!job->start.working_dir_uri.empty()) {
    parts_.packages.Get(job->start.working_dir_uri, [this, weak = std::weak_ptr<bool>(alive_), job](absl::StatusOr<std::string> folder) {
      if (!weak.expired()) OnPackage(job, std::move(folder), [job](std::string path) { job->working_dir = std::move(path); });
    });
  }
  for (size_t i = 0; i < uris.size(); ++i) {
    parts_.packages.Get(uris[i], [this, weak = std::weak_ptr<bool>(alive_), job, i](absl::StatusOr<std::string> folder) {
      if (!weak.expired()) OnPackage(job, std::move(folder), [job, i](std::string path) { job->module_folders[i] = std::move(path); });
    });
  }
}

void JobRunner::OnPackage(const JobPointer& job, absl::StatusOr<std::string> folder, std::function<void(std::string)> take) {
  if (job->state != State::kPreparing || !jobs_.contains(job->start.submission_id)) return;
  if (!folder.ok()) return Fail(job, fmt::format("runtime_env setup failed: {}", Message(folder.status())), kRuntimeEnvFailure);
  take(std::move(*folder));
  if (--job->packages_left == 0) Launch(job);
}

void JobRunner::Launch(const JobPointer& job) {
  const StartJob& start = job->start;
  const std::string& id = start.submission_id;
  absl::StatusOr<JobLog> log = JobLog::Create(fmt::format("{}/job-{}.log", options_.log_dir, FileName(id)));
  if (!log.ok()) return Fail(job, Message(log.status()), kStartFailure);
  job->log = std::move(*log);
  if (absl::Status written = job->log->Append(fmt::format("Running entrypoint for job {}: {}\n", id, start.entrypoint)); !written.ok()) {
    return Fail(job, Message(written), kStartFailure);
  }

  ProcessOptions options;
  options.executable = "/bin/sh";
  options.argv = {"/bin/sh", "-c", start.entrypoint};
  options.env = ChildEnvironment();
  std::map<std::string, std::string>& env = options.env;
  nlohmann::json runtime_env = nlohmann::json::parse(start.runtime_env_json.empty() ? "{}" : start.runtime_env_json, nullptr, false);
  nlohmann::json metadata = {{"job_submission_id", id}, {"job_name", id}};
  for (const auto& [key, value] : start.metadata) metadata[key] = value;
  nlohmann::json config = {{"runtime_env", runtime_env}, {"metadata", metadata}};
  env["PYTHONUNBUFFERED"] = "1";
  for (const auto& [name, value] : start.env_vars) env[name] = value;
  std::string python_path;
  for (const std::string& folder : job->module_folders) python_path += folder + ":";
  if (!job->working_dir.empty()) python_path += job->working_dir + ":";
  if (!python_path.empty()) {
    python_path.pop_back();
    std::string& inherited = env["PYTHONPATH"];
    inherited = inherited.empty() ? python_path : python_path + ":" + inherited;
  }
  std::string& path = env["PATH"];
  if (path.empty()) path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  if (!options_.executable_dir.empty()) path = options_.executable_dir + ":" + path;
  env["RAY_ADDRESS"] = options_.head_address;
  env["RAY_JOB_CONFIG_JSON_ENV_VAR"] = config.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  env["ARGOSY_ADDRESS"] = options_.head_address;
  env["ARGOSY_NODE_SOCKET"] = options_.node_socket;
  env["ARGOSY_JOB_SUBMISSION_ID"] = id;
  if (!start.working_dir_uri.empty()) env[wire::kWorkingDirVariable] = start.working_dir_uri;
  if (auto priority = start.metadata.find(kJobPriorityMetadata); priority != start.metadata.end()) env[kJobPriorityVariable] = priority->second;
  if (job->lease_held) env["CUDA_VISIBLE_DEVICES"] = GpuDevices(job->gpu_ids, options_.gpu_devices);
  options.working_dir = job->working_dir;
  options.stdout_fd = job->log->append_fd();
  options.stderr_fd = job->log->append_fd();
  options.own_session = true;
  absl::StatusOr<std::unique_ptr<Process>> process =
      Process::Start(parts_.loop, options, [this, weak = std::weak_ptr<Job>(job)](const ProcessEnd& end) {
        if (JobPointer job = weak.lock()) OnEnd(job, end);
      });
  if (!process.ok()) return Fail(job, Message(process.status()), kCommandStartError);
  job->process = std::move(*process);
  job->state = State::kRunning;
  spdlog::info("job {} runs as process {}: {}", id, job->process->pid(), start.entrypoint);
  parts_.send(JobStarted{id, static_cast<uint32_t>(job->process->pid())});
}

void JobRunner::Fail(const JobPointer& job, const std::string& message, const std::string& error_type, bool retry_elsewhere) {
  spdlog::warn("job {} was not started: {}", job->start.submission_id, message);
  if (job->log) job->log->Remove();
  Release(*job);
  jobs_.erase(job->start.submission_id);
  parts_.send(JobStartFailed{job->start.submission_id, message, error_type, retry_elsewhere});
  CheckStopped();
}

void JobRunner::OnEnd(const JobPointer& job, const ProcessEnd& end) {
  spdlog::info("job {} {}", job->start.submission_id, end.ToString());
  // Whatever of its session is left ends with it: nothing may write after the end was told.
  for (pid_t pid : ProcessesOfSession(job->process->pid())) ::kill(pid, SIGKILL);
  job->end = end;
  job->state = State::kExited;
  job->kill_timer = nullptr;
  Release(*job);
  CheckStopped();
  Ship();
}

void JobRunner::Release(Job& job) {
  if (std::exchange(job.lease_held, false)) parts_.release(job.start.lease);
}

void JobRunner::Stop(const StopJob& message) {
  auto at = jobs_.find(message.submission_id);
  if (at == jobs_.end()) return;
  JobPointer job = at->second;
  if (job->state == State::kPreparing) {
    Release(*job);
    job->stop_asked = true;
    job->end.signal = SIGTERM;
    job->state = State::kReported;   // nothing was run, so there is no log to ship
    return ReportExit(*job);
  }
  if (job->state != State::kRunning || job->stop_asked) return;
  job->stop_asked = true;
  SignalTree(*job, SIGTERM);
  job->kill_timer = std::make_unique<async::Timer>(parts_.loop);
  job->kill_timer->After(absl::Seconds(std::clamp(message.grace_seconds, 0.0, 3600.0)), [this, weak = std::weak_ptr<Job>(job)] {
    if (JobPointer job = weak.lock()) SignalTree(*job, SIGKILL);
  });
}

void JobRunner::SignalTree(Job& job, int signal) {
  if (!job.process || !job.process->is_running()) return;
  std::vector<pid_t> pids = ProcessesOfSession(job.process->pid());
  if (pids.empty()) return job.process->Signal(signal);   // it has not made its session so far
  for (pid_t pid : pids) ::kill(pid, signal);
}

void JobRunner::Ship() {
  if (jobs_.empty()) return ship_timer_.Cancel();
  std::vector<JobPointer> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  for (const JobPointer& job : jobs) {
    if (!job->log || job->state == State::kReported) continue;
    for (int i = 0; i < kChunksATurn; ++i) {
      absl::StatusOr<JobLog::Chunk> chunk = job->log->Next();
      if (!chunk.ok()) {
        spdlog::error("the log of job {} cannot be read: {}", job->start.submission_id, Message(chunk.status()));
        break;
      }
      if (chunk->data.empty()) break;
      if (!parts_.send_now(JobLogBytes{job->start.submission_id, chunk->offset, std::move(chunk->data)})) {
        job->log->Rewind();
        break;
      }
    }
    if (job->state != State::kExited) continue;
    absl::StatusOr<bool> shipped = job->log->IsShipped();
    // A log that cannot be read will not get better: the end is told all the same.
    if (shipped.ok() && !*shipped) continue;
    job->state = State::kReported;
    ReportExit(*job);
  }
}

void JobRunner::ReportExit(Job& job) {
  JobExited exited{job.start.submission_id, job.end.signal == 0 ? job.end.exit_code : 0, job.end.signal, job.stop_asked};
  // When there is no stream, the next one begins with it.
  parts_.send_now(std::move(exited));
}

void JobRunner::OnAck(const JobLogAck& message) {
  auto at = jobs_.find(message.submission_id);
  if (at == jobs_.end() || !at->second->log) return;
  at->second->log->Acknowledge(message.end);
  if (at->second->state == State::kExited) Ship();
}

void JobRunner::OnExitAck(const JobExitAck& message) {
  auto at = jobs_.find(message.submission_id);
  if (at == jobs_.end() || at->second->state != State::kReported) return;
  if (at->second->log) at->second->log->Remove();
  jobs_.erase(at);
}

void JobRunner::OnStream() {
  for (const auto& [id, job] : jobs_) {
    if (job->log) job->log->Rewind();
    if (job->state == State::kReported) ReportExit(*job);
    else if (job->state == State::kRunning) parts_.send_now(JobStarted{id, static_cast<uint32_t>(job->process->pid())});
  }
  Ship();
}

std::vector<std::string> JobRunner::SubmissionIds() const {
  std::vector<std::string> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  return ids;
}

size_t JobRunner::running() const {
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& item) { return item.second->state == State::kRunning; }));
}

void JobRunner::StopAll(absl::Duration grace, std::function<void()> done) {
  stopped_ = std::move(done);
  for (const auto& [id, job] : jobs_) {
    if (job->state == State::kRunning) Stop({id, absl::ToDoubleSeconds(grace)});
  }
  CheckStopped();
}

void JobRunner::CheckStopped() {
  if (stopped_ && running() == 0) std::exchange(stopped_, nullptr)();
}

void JobRunner::KillAll() {
  for (const auto& [id, job] : jobs_) {
    SignalTree(*job, SIGKILL);
    job->process = nullptr;   // waits for it
  }
  jobs_.clear();
}

}  // namespace argosy::node
