#include "runtime/head/job_machine.h"

#include <algorithm>

#include "runtime/base/job_priority.h"
#include "runtime/base/status.h"

namespace argosy::head {
namespace {

constexpr size_t kNameMax = 256;
constexpr size_t kEntrypointMax = 1 << 20;
constexpr char kRunningMessage[] = "Job is currently running.";
constexpr char kStoppedMessage[] = "Job was intentionally stopped.";
constexpr char kSucceededMessage[] = "Job finished successfully.";

bool HasRuntimeEnv(const std::string& json) { return !json.empty() && json != "{}"; }

}  // namespace

struct JobMachine::Context {
  int64_t now_unix_ms;
  std::vector<JobEffect> effects;
};

std::string PendingMessage(const JobRecord& job) {
  std::string message = "Job has not started yet.";
  if (job.has_resources) message += " It may be waiting for resources (CPUs, GPUs, memory, custom resources) to become available.";
  if (HasRuntimeEnv(job.runtime_env_json)) message += " It may be waiting for the runtime environment to be set up.";
  return message;
}

absl::Status JobMachine::CheckSubmit(const JobRecord& job) const {
  if (jobs_.contains(job.name)) {
    return MakeStatus(absl::StatusCode::kAlreadyExists,
                      "Job with submission_id {} already exists. Please use a different submission_id.", job.name);
  }
  if (job.name.empty() || job.name.size() > kNameMax) {
    return InvalidArgument("submission_id has {} characters; 1 to {} are allowed", job.name.size(), kNameMax);
  }
  for (char c : job.name) {
    // The name is also a file's name and part of a URL.
    if (!(std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.') || job.name.front() == '.') {
      return InvalidArgument("submission_id \"{}\": use letters, digits, - and _ and . (not first)", job.name);
    }
  }
  if (job.entrypoint.find_first_not_of(" \t\r\n") == std::string::npos) return InvalidArgument("entrypoint is empty: give the command to run");
  if (job.entrypoint.size() > kEntrypointMax) {
    return InvalidArgument("entrypoint has {} bytes; at most {} are allowed", job.entrypoint.size(), kEntrypointMax);
  }
  if (auto at = job.metadata.find(kJobPriorityMetadata); at != job.metadata.end() && !ParseJobPriority(at->second)) {
    return InvalidArgument("metadata {} is \"{}\": want a whole number from -{} to {}", kJobPriorityMetadata, at->second, kJobPriorityMax, kJobPriorityMax);
  }
  return absl::OkStatus();
}

std::vector<JobEffect> JobMachine::Step(const JobEvent& event, int64_t now_unix_ms) {
  Context context{now_unix_ms, {}};
  std::visit([&](const auto& e) { On(e, context); }, event);
  return std::move(context.effects);
}

void JobMachine::Restore(JobRecord job) {
  next_order_ = std::max(next_order_, job.order + 1);
  if (!job.driver_job.IsNil()) drivers_[job.driver_job] = job.name;
  std::string name = job.name;
  jobs_[name] = std::move(job);
}

absl::Status JobMachine::Delete(const std::string& name) {
  const JobRecord* job = Find(name);
  if (job == nullptr) return NotFound("Job {} does not exist", name);
  if (!job->is_submission) return InvalidArgument("Can only delete submission type jobs");
  if (!IsTerminal(job->state)) {
    return FailedPrecondition("Attempted to delete job '{}', but it is in a non-terminal state {}.", name,
                              job->state == JobState::kPending ? "PENDING" : "RUNNING");
  }
  drivers_.erase(job->driver_job);
  jobs_.erase(std::string(job->name));
  return absl::OkStatus();
}

const JobRecord* JobMachine::Find(const std::string& name) const {
  if (auto id = JobId::FromHex(name)) {
    auto driver = drivers_.find(*id);
    if (driver != drivers_.end()) return &jobs_.at(driver->second);
  }
  auto at = jobs_.find(name);
  return at == jobs_.end() ? nullptr : &at->second;
}

std::vector<const JobRecord*> JobMachine::All() const {
  std::vector<const JobRecord*> all;
  for (const auto& [name, job] : jobs_) all.push_back(&job);
  std::sort(all.begin(), all.end(), [](const JobRecord* a, const JobRecord* b) {
    return a->is_submission != b->is_submission ? a->is_submission : a->order < b->order;
  });
  return all;
}

std::vector<std::string> JobMachine::Waiting() const {
  std::vector<std::string> waiting;
  for (const JobRecord* job : All()) {
    if (job->state == JobState::kPending && job->node.IsNil()) waiting.push_back(job->name);
  }
  return waiting;
}

std::vector<std::string> JobMachine::Overdue(int64_t now_unix_ms) const {
  std::vector<std::string> overdue;
  for (const auto& [name, job] : jobs_) {
    if (job.state == JobState::kPending && now_unix_ms - job.start_unix_ms >= absl::ToInt64Milliseconds(options_.start_timeout)) {
      overdue.push_back(name);
    }
  }
  return overdue;
}

size_t JobMachine::running_count() const {
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& j) { return j.second.state == JobState::kRunning; }));
}

std::vector<std::string> JobMachine::TrimDrivers() {
  std::vector<std::string> trimmed;
  size_t ended = 0;
  std::vector<const JobRecord*> all = All();
  for (auto job = all.rbegin(); job != all.rend(); ++job) {
    if ((*job)->is_submission || !IsTerminal((*job)->state)) continue;
    if (++ended > options_.ended_drivers_max) trimmed.push_back((*job)->name);
  }
  for (const std::string& name : trimmed) {
    drivers_.erase(jobs_.at(name).driver_job);
    jobs_.erase(name);
  }
  return trimmed;
}

JobRecord* JobMachine::FindLive(const std::string& name) {
  auto at = jobs_.find(name);
  return at == jobs_.end() || IsTerminal(at->second.state) ? nullptr : &at->second;
}

void JobMachine::Finish(JobRecord& job, JobState state, std::string message, std::string error_type, Context& context) {
  bool waiting = job.state == JobState::kPending && job.node.IsNil();
  job.state = state;
  job.message = std::move(message);
  job.error_type = std::move(error_type);
  job.end_unix_ms = context.now_unix_ms;
  stopping_.erase(job.name);
  if (waiting) context.effects.push_back(DropJobNode{job.name});
  context.effects.push_back(SaveJob{job.name});
  context.effects.push_back(JobFinished{job.name});
}

void JobMachine::On(const JobSubmitted& event, Context& context) {
  JobRecord job = event.job;
  job.state = JobState::kPending;
  job.message = PendingMessage(job);
  job.start_unix_ms = context.now_unix_ms;
  job.order = next_order_++;
  std::string name = job.name;
  if (!jobs_.emplace(name, std::move(job)).second) return;
  context.effects.push_back(SaveJob{name});
  context.effects.push_back(WantJobNode{name});
}

void JobMachine::On(const JobPlaced& event, Context& context) {
  JobRecord* job = FindLive(event.name);
  if (job == nullptr || !job->node.IsNil()) return;
  job->node = event.node;
  job->node_name = event.node_name;
  job->node_ip = event.node_ip;
  job->agent_address = event.agent_address;
  job->lease = event.lease;
  // Saved before it is sent, so that a restarted head knows where the entrypoint may be running.
  context.effects.push_back(SaveJob{job->name});
  context.effects.push_back(SendStartJob{job->name});
}

void JobMachine::On(const JobStarted& event, Context& context) {
  JobRecord* job = FindLive(event.submission_id);
  if (job == nullptr || job->state == JobState::kRunning) return;
  job->state = JobState::kRunning;
  job->message = kRunningMessage;
  job->driver_pid = event.pid;
  context.effects.push_back(SaveJob{job->name});
}

void JobMachine::On(const JobStartFailed& event, Context& context) {
  JobRecord* job = FindLive(event.submission_id);
  if (job == nullptr || job->state == JobState::kRunning) return;
  if (event.retry_elsewhere && !stopping_.contains(job->name)) {
    job->node = NodeId();
    job->lease = LeaseId();
    context.effects.push_back(SaveJob{job->name});
    context.effects.push_back(WantJobNode{job->name});
    return;
  }
  if (stopping_.contains(job->name)) return Finish(*job, JobState::kStopped, kStoppedMessage, "", context);
  Finish(*job, JobState::kFailed, event.message, event.error_type.empty() ? kErrorStartFailure : event.error_type, context);
}

void JobMachine::On(const JobExitSeen& event, Context& context) {
  JobRecord* job = FindLive(event.exited.submission_id);
  if (job == nullptr) return;
  job->has_exit_code = true;
  job->exit_code = event.exited.signal != 0 ? -event.exited.signal : event.exited.exit_code;
  if (event.exited.stopped || (stopping_.contains(job->name) && job->exit_code != 0)) {
    return Finish(*job, JobState::kStopped, kStoppedMessage, "", context);
  }
  if (job->exit_code == 0) return Finish(*job, JobState::kSucceeded, kSucceededMessage, "", context);
  std::string message = fmt::format("Job entrypoint command failed with exit code {}", job->exit_code);
  if (event.log_tail.empty()) message += ". No logs available.";
  else message += ", last available logs (truncated to 20,000 chars):\n" + event.log_tail;
  Finish(*job, JobState::kFailed, std::move(message), kErrorCommand, context);
}

void JobMachine::On(const JobStopAsked& event, Context& context) {
  const JobRecord* found = Find(event.name);
  JobRecord* job = found == nullptr ? nullptr : FindLive(found->name);
  if (job == nullptr) return;
  if (job->node.IsNil()) return Finish(*job, JobState::kStopped, kStoppedMessage, "", context);
  stopping_.insert(job->name);
  context.effects.push_back(SendStopJob{job->name, job->node});
}

void JobMachine::On(const JobNodeLost& event, Context& context) {
  for (auto& [name, job] : jobs_) {
    if (IsTerminal(job.state) || job.node != event.node) continue;
    if (!job.is_submission) {
      Finish(job, JobState::kFailed, fmt::format("The driver's node {} was lost: {}.", job.node_name, event.reason), kErrorDied, context);
    } else if (stopping_.contains(name)) {
      Finish(job, JobState::kStopped, kStoppedMessage, "", context);
    } else {
      Finish(job, JobState::kFailed, fmt::format("The node {} that ran the job was lost: {}.", job.node_name, event.reason), kErrorDied, context);
    }
  }
}

void JobMachine::On(const JobNodeRejoined& event, Context& context) {
  for (auto& [name, job] : jobs_) {
    if (IsTerminal(job.state) || job.node != event.node || !job.is_submission) continue;
    if (event.jobs.contains(name)) {
      if (job.state == JobState::kPending) {
        job.state = JobState::kRunning;
        job.message = kRunningMessage;
        context.effects.push_back(SaveJob{name});
      }
      if (stopping_.contains(name)) context.effects.push_back(SendStopJob{name, job.node});
    } else if (job.state == JobState::kPending) {
      // The node keeps an entrypoint until its end is acknowledged, so one that it does not know never started.
      context.effects.push_back(SendStartJob{name});
    } else {
      Finish(job, JobState::kFailed, fmt::format("The node {} no longer knows the job; it ended without an exit status.", job.node_name),
             kErrorDied, context);
    }
  }
}

void JobMachine::On(const DriverJoined& event, Context& context) {
  if (auto at = jobs_.find(event.submission_id); !event.submission_id.empty() && at != jobs_.end()) {
    // The first driver of an entrypoint names the job; an entrypoint may run several one after the other.
    at->second.driver_job = event.job;
    at->second.driver_pid = event.pid;
    drivers_[event.job] = at->first;
    context.effects.push_back(SaveJob{at->first});
    return;
  }
  if (drivers_.contains(event.job)) return;   // said again after a reconnect
  JobRecord job;
  job.name = event.job.Hex();
  job.is_submission = false;
  job.state = JobState::kRunning;
  job.message = kRunningMessage;
  job.entrypoint = event.entrypoint;
  job.start_unix_ms = context.now_unix_ms;
  job.driver_job = event.job;
  job.driver_pid = event.pid;
  job.node = event.driver.node;
  job.order = next_order_++;
  std::string name = job.name;
  drivers_[event.job] = name;
  jobs_[name] = std::move(job);
  context.effects.push_back(SaveJob{name});
}

void JobMachine::On(const DriverLeft& event, Context& context) {
  auto driver = drivers_.find(event.job);
  if (driver == drivers_.end()) return;
  JobRecord* job = FindLive(driver->second);
  if (job == nullptr || job->is_submission) return;   // a submitted job ends with its entrypoint
  Finish(*job, JobState::kSucceeded, event.reason.empty() ? kSucceededMessage : event.reason, "", context);
}

void JobMachine::On(const JobTimedOut& event, Context& context) {
  JobRecord* job = FindLive(event.name);
  if (job == nullptr || job->state != JobState::kPending) return;
  std::string message = fmt::format("Job did not start within {} seconds.", absl::ToInt64Seconds(options_.start_timeout));
  if (!event.why.empty()) message += " " + event.why;
  if (!job->node.IsNil()) context.effects.push_back(SendStopJob{job->name, job->node});
  Finish(*job, JobState::kFailed, std::move(message), kErrorStartTimeout, context);
}

}  // namespace argosy::head
