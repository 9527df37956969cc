// Jobs of the head's core.

#include <algorithm>

#include "runtime/base/codec.h"
#include "runtime/base/job_priority.h"
#include "runtime/base/overloaded.h"
#include "runtime/base/status.h"
#include "runtime/head/head_core.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

constexpr int kTailLines = 10;
constexpr uint64_t kTailBytes = 20'000;

// The letters that cannot be mistaken for each other, as clients expect them in generated ids.
std::string GeneratedName() {
  constexpr char kLetters[] = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ123456789";
  std::string name = "raysubmit_";
  unsigned char bytes[16];
  internal::FillRandom(bytes, sizeof bytes);
  for (unsigned char byte : bytes) name += kLetters[byte % (sizeof kLetters - 1)];
  return name;
}

absl::StatusOr<scheduler::Demand> DemandOf(const JobRecord& job) {
  scheduler::Demand demand;
  ARGOSY_ASSIGN_OR_RETURN(demand.resources, ResourceSet::FromMap(job.resources));
  ARGOSY_ASSIGN_OR_RETURN(demand.labels, scheduler::LabelSelector::FromMap(job.label_selector));
  if (auto at = job.metadata.find(kJobPriorityMetadata); at != job.metadata.end()) demand.job_priority = ParseJobPriority(at->second).value_or(0);
  return demand;
}

}  // namespace

void HeadCore::SubmitJob(JobRecord job, Done<std::string> done) {
  if (job.name.empty()) {
    do {
      job.name = GeneratedName();
    } while (jobs_.Find(job.name) != nullptr);
  }
  if (absl::Status status = jobs_.CheckSubmit(job); !status.ok()) return done(status);
  if (absl::StatusOr<scheduler::Demand> demand = DemandOf(job); !demand.ok()) return done(Annotate(demand.status(), "entrypoint resources"));
  std::string name = job.name;
  StepJobs(JobSubmitted{std::move(job)});
  journal_.Write({}, [name, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(status);
    done(name);
  });
}

std::string HeadCore::JobMessage(const JobRecord& job) const {
  if (job.state != JobState::kPending) return job.message;
  if (!job.node.IsNil()) return fmt::format("{} It is being started on node {}.", job.message, job.node_name);
  if (auto reason = placement_.Explain(WaitKind::kJob, job.name, view_, Now())) return fmt::format("{} Now: {}.", job.message, *reason);
  if (nodes_.alive_count() == 0) return job.message + " Now: the cluster has no nodes; start one with `argosy start --address HOST:PORT`.";
  return job.message + " Now: waits for the head's node to join.";
}

absl::StatusOr<bool> HeadCore::StopJob(const std::string& name) {
  const JobRecord* job = jobs_.Find(name);
  if (job == nullptr) return NotFound("Job {} does not exist", name);
  if (!job->is_submission) return InvalidArgument("Can only stop submission type jobs");
  if (IsTerminal(job->state)) return false;
  StepJobs(JobStopAsked{job->name});
  return true;
}

void HeadCore::DeleteJob(const std::string& name, DoneStatus done) {
  const JobRecord* job = jobs_.Find(name);
  std::string own_name = job == nullptr ? name : job->name;
  if (absl::Status status = jobs_.Delete(own_name); !status.ok()) return done(status);
  logs_.Erase(own_name);
  NotifyJob(own_name);
  journal_.Write({{"job", own_name, "", true}}, std::move(done));
}

uint64_t HeadCore::WatchJob(const std::string& name, std::function<void()> changed) {
  uint64_t watch = next_waiter_++;
  job_watchers_[name][watch] = std::move(changed);
  return watch;
}

void HeadCore::UnwatchJob(const std::string& name, uint64_t watch) {
  auto at = job_watchers_.find(name);
  if (at == job_watchers_.end()) return;
  at->second.erase(watch);
  if (at->second.empty()) job_watchers_.erase(at);
}

void HeadCore::NotifyJob(const std::string& name) {
  auto at = job_watchers_.find(name);
  if (at == job_watchers_.end()) return;
  auto ready = std::move(at->second);
  job_watchers_.erase(at);
  for (auto& [watch, changed] : ready) changed();
}

void HeadCore::PlaceHeadNodeJobs() {
  if (head_node_jobs_.empty()) return;
  std::vector<std::string> names(head_node_jobs_.begin(), head_node_jobs_.end());
  for (const std::string& name : names) {
    const NodeTable::Node* node = nodes_.HeadNode();
    if (node == nullptr && Now() - std::max(head_node_jobs_since_[name], started_) > options_.node_timeout) {
      // A head without a node of its own: the first node that joined stands in.
      for (const NodeTable::Node* other : nodes_.All()) {
        if (other->alive && other->connected) {
          node = other;
          break;
        }
      }
    }
    if (node == nullptr || !node->connected) continue;
    head_node_jobs_.erase(name);
    head_node_jobs_since_.erase(name);
    const NodeDescription& description = node->description;
    StepJobs(JobPlaced{name, description.id, description.name, description.ip, "http://" + description.agent_address, LeaseId()});
  }
}

void HeadCore::Run(std::vector<JobEffect> effects) {
  for (JobEffect& effect : effects) {
    std::visit(Overloaded{
                   [&](WantJobNode& e) {
                     const JobRecord* job = jobs_.Find(e.name);
                     if (job == nullptr) return;
                     if (!job->has_resources) {
                       head_node_jobs_.insert(e.name);
                       head_node_jobs_since_[e.name] = Now();
                     } else if (absl::StatusOr<scheduler::Demand> demand = DemandOf(*job); demand.ok()) {
                       placement_.AddLater({WaitKind::kJob, e.name, "job " + e.name, JobId(), std::move(*demand)}, Now());
                     }
                     SchedulePass();
                   },
                   [&](DropJobNode& e) {
                     head_node_jobs_.erase(e.name);
                     head_node_jobs_since_.erase(e.name);
                     placement_.Cancel(WaitKind::kJob, e.name);
                   },
                   [&](SendStartJob& e) {
                     // Only after its placement is on disk: a restarted head must know where the entrypoint may run.
                     journal_.Write({}, [this, name = e.name](absl::Status status) {
                       const JobRecord* job = jobs_.Find(name);
                       if (!status.ok() || job == nullptr || job->state != JobState::kPending || job->node.IsNil()) return;
                       if (jobs_.IsStopping(name)) return StepJobs(JobStartFailed{name, "", "", false});
                       StartJob start{job->name, job->entrypoint, job->runtime_env_json, job->metadata, job->lease, {}};
                       if (job->has_resources) {
                         if (absl::StatusOr<scheduler::Demand> demand = DemandOf(*job); demand.ok()) start.demand = std::move(*demand);
                       }
                       spdlog::info("job {} starts on node {}", name, job->node_name);
                       Send(job->node, std::move(start));
                     });
                   },
                   [&](SendStopJob& e) { Send(e.node, head::StopJob{e.name, absl::ToDoubleSeconds(kJobStopGrace)}); },
                   [&](SaveJob& e) {
                     const JobRecord* job = jobs_.Find(e.name);
                     if (job != nullptr) journal_.Write({{"job", job->name, Encode(*job)}});
                   },
                   [&](JobFinished& e) {
                     const JobRecord* job = jobs_.Find(e.name);
                     if (job != nullptr) spdlog::info("job {} ended: {}", e.name, job->message.substr(0, job->message.find('\n')));
                     for (const std::string& name : jobs_.TrimDrivers()) journal_.Write({{"job", name, "", true}});
                     NotifyJob(e.name);
                   },
               },
               effect);
  }
}

void HeadCore::On(NodeId node, JobStarted message) {
  const JobRecord* job = jobs_.Find(message.submission_id);
  if (job == nullptr || job->node != node) return;
  StepJobs(message);
}

void HeadCore::On(NodeId node, JobStartFailed message) {
  const JobRecord* job = jobs_.Find(message.submission_id);
  if (job == nullptr || job->node != node) return;
  StepJobs(message);
}

void HeadCore::On(NodeId node, JobExited message) {
  std::string name = message.submission_id;
  const JobRecord* job = jobs_.Find(name);
  if (job == nullptr || IsTerminal(job->state) || job->node != node) return Send(node, JobExitAck{name});
  logs_.Tail(name, kTailLines, kTailBytes, [this, node, name, message](std::string tail) {
    StepJobs(JobExitSeen{message, std::move(tail)});
    journal_.Write({}, [this, node, name](absl::Status status) {
      if (status.ok()) Send(node, JobExitAck{name});
    });
  });
}

void HeadCore::On(NodeId node, JobLogBytes message) {
  std::string name = message.submission_id;
  const JobRecord* job = jobs_.Find(name);
  if (job == nullptr || job->node != node) {
    // A deleted or moved job: let the node drop the bytes.
    return Send(node, JobLogAck{name, message.offset + message.data.size()});
  }
  logs_.Append(name, message.offset, std::move(message.data), [this, node, name](absl::StatusOr<uint64_t> end) {
    if (!end.ok()) {
      spdlog::error("job {}: its log cannot be written: {}", name, Message(end.status()));
      return;   // not acknowledged: the node keeps the bytes and sends them again
    }
    Send(node, JobLogAck{name, *end});
    NotifyJob(name);
  });
}

}  // namespace argosy::head
