#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/head/types.h"

namespace argosy::head {

enum class JobState : uint8_t { kPending, kRunning, kStopped, kSucceeded, kFailed };
inline bool IsTerminal(JobState state) { return state >= JobState::kStopped; }

// The strings that clients of the Jobs API compare with.
inline constexpr char kErrorStartTimeout[] = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT";
inline constexpr char kErrorStartFailure[] = "JOB_SUPERVISOR_ACTOR_START_FAILURE";
inline constexpr char kErrorDied[] = "JOB_SUPERVISOR_ACTOR_DIED";
inline constexpr char kErrorCommand[] = "JOB_ENTRYPOINT_COMMAND_ERROR";
inline constexpr char kErrorCommandStart[] = "JOB_ENTRYPOINT_COMMAND_START_ERROR";
inline constexpr char kErrorRuntimeEnv[] = "RUNTIME_ENV_SETUP_FAILURE";

// What the journal keeps of a job. Fields may only be added at the end.
struct JobRecord {
  std::string name;               // the submission id, or the driver's job id in hex when it was started by hand
  bool is_submission = true;
  JobState state = JobState::kPending;
  std::string entrypoint;
  std::string message;
  std::string error_type;
  int64_t start_unix_ms = 0;
  int64_t end_unix_ms = 0;
  StringMap metadata;
  std::string runtime_env_json;
  bool has_resources = false;     // runs on the node that fits, else on the head's
  ResourceMap resources;
  StringMap label_selector;
  NodeId node;                    // nil until placed
  std::string node_name;
  std::string node_ip;
  std::string agent_address;
  LeaseId lease;                  // nil without resources
  bool has_exit_code = false;
  int32_t exit_code = 0;          // -signal when a signal ended it
  JobId driver_job;
  uint32_t driver_pid = 0;
  uint64_t order = 0;             // of submission
};

struct JobSubmitted { JobRecord job; };
struct JobPlaced { std::string name; NodeId node; std::string node_name; std::string node_ip; std::string agent_address; LeaseId lease; };
struct JobExitSeen { JobExited exited; std::string log_tail; };
struct JobStopAsked { std::string name; };
struct JobNodeLost { NodeId node; std::string reason; };
// `jobs`: what the node still has. A job that it should have and has not was lost or never started.
struct JobNodeRejoined { NodeId node; std::set<std::string> jobs; };
// An overdue job is given up; `why` says what it waited for.
struct JobTimedOut { std::string name; std::string why; };

using JobEvent = std::variant<JobSubmitted, JobPlaced, JobStarted, JobStartFailed, JobExitSeen, JobStopAsked, JobNodeLost, JobNodeRejoined,
                              DriverJoined, DriverLeft, JobTimedOut>;

// Wants a node; answered by JobPlaced.
struct WantJobNode { std::string name; };
struct DropJobNode { std::string name; };   // wants none any more
struct SendStartJob { std::string name; };
struct SendStopJob { std::string name; NodeId node; };
struct SaveJob { std::string name; };
// The entrypoint has ended, or never will start: its log is complete.
struct JobFinished { std::string name; };
using JobEffect = std::variant<WantJobNode, DropJobNode, SendStartJob, SendStopJob, SaveJob, JobFinished>;

// The life of submitted jobs and of drivers started by hand:
//
//   PENDING --placed, started--> RUNNING --exited--> SUCCEEDED | FAILED | STOPPED
//
// A terminal state never changes. An entrypoint is started at most once: when its node is lost with it, it failed.
//
// Thread:   the head's loop.
// Failure:  events for unknown or ended jobs change nothing.
class JobMachine {
 public:
  struct Options {
    absl::Duration start_timeout = kJobStartTimeout;
    size_t ended_drivers_max = 1000;   // drivers started by hand that stay listed
  };
  JobMachine() : JobMachine(Options{}) {}
  explicit JobMachine(Options options) : options_(options) {}

  // ALREADY_EXISTS for a name that is taken; InvalidArgument for a bad one, an empty entrypoint, too long texts.
  absl::Status CheckSubmit(const JobRecord& job) const;
  std::vector<JobEffect> Step(const JobEvent& event, int64_t now_unix_ms);
  // From the journal.
  void Restore(JobRecord job);
  // FAILED_PRECONDITION while it runs.
  absl::Status Delete(const std::string& name);

  // By a driver's job id in hex, or by submission id.
  const JobRecord* Find(const std::string& name) const;
  // Submitted jobs first, oldest first.
  std::vector<const JobRecord*> All() const;
  // Pending jobs that were placed nowhere yet.
  std::vector<std::string> Waiting() const;
  // Asked to stop, not ended yet.
  bool IsStopping(const std::string& name) const { return stopping_.contains(name); }
  // Pending jobs whose start time-out has passed.
  std::vector<std::string> Overdue(int64_t now_unix_ms) const;
  size_t running_count() const;
  // Ended drivers beyond the bound, forgotten now; the caller erases them from the journal.
  std::vector<std::string> TrimDrivers();

 private:
  struct Context;
  void On(const JobSubmitted& event, Context& context);
  void On(const JobPlaced& event, Context& context);
  void On(const JobStarted& event, Context& context);
  void On(const JobStartFailed& event, Context& context);
  void On(const JobExitSeen& event, Context& context);
  void On(const JobStopAsked& event, Context& context);
  void On(const JobNodeLost& event, Context& context);
  void On(const JobNodeRejoined& event, Context& context);
  void On(const DriverJoined& event, Context& context);
  void On(const DriverLeft& event, Context& context);
  void On(const JobTimedOut& event, Context& context);

  JobRecord* FindLive(const std::string& name);
  void Finish(JobRecord& job, JobState state, std::string message, std::string error_type, Context& context);

  Options options_;
  std::map<std::string, JobRecord> jobs_;
  std::map<JobId, std::string> drivers_;   // job ids of drivers -> name
  std::set<std::string> stopping_;         // asked to stop, not ended yet
  uint64_t next_order_ = 0;
};

std::string PendingMessage(const JobRecord& job);

}  // namespace argosy::head
