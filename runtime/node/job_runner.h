#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/node/job_log.h"
#include "runtime/node/package_cache.h"
#include "runtime/node/process.h"
#include "runtime/node/types.h"

namespace argosy::node {

struct JobRunnerOptions {
  std::string log_dir;
  std::string head_address;
  std::string node_socket;
  std::string executable_dir;                            // put first in PATH
  std::vector<std::string> gpu_devices;                  // as WorkerProcessesOptions
  absl::Duration ship_period = absl::Milliseconds(50);   // how often logs are looked at
  size_t jobs_max = 10'000;
};

// The entrypoints of submitted jobs: fetches their packages, runs them in a session of their own, ships their logs, stops them.
//
//   preparing --> running --> exited, its log on its way --> told to the head --acknowledged--> gone
//
// Thread:   the loop's.
// Lifetime: the parts outlive it; destroying it kills the entrypoints.
// Failure:  what keeps an entrypoint from starting is sent as JobStartFailed with the error type that clients know.
class JobRunner {
 public:
  struct Parts {
    async::Loop& loop;
    PackageCache& packages;
    std::function<void(ToHead)> send;        // kept until there is a stream
    std::function<bool(ToHead)> send_now;    // false: there is no stream
    // The lease of a job that asked for resources.
    std::function<absl::StatusOr<std::vector<uint32_t>>(LeaseId, const wire::Demand&)> grant;   // the GPUs
    std::function<void(LeaseId)> release;
  };
  JobRunner(Parts parts, JobRunnerOptions options);
  ~JobRunner();

  void Start(const StartJob& message);       // a repeat changes nothing
  void Stop(const StopJob& message);
  void OnAck(const JobLogAck& message);
  void OnExitAck(const JobExitAck& message);
  // A stream begins: what was not acknowledged is sent again.
  void OnStream();
  std::vector<std::string> SubmissionIds() const;
  // Ends all entrypoints: SIGTERM, SIGKILL after `grace`; `done` when none is left.
  void StopAll(absl::Duration grace, std::function<void()> done);
  void KillAll();
  size_t running() const;

 private:
  enum class State { kPreparing, kRunning, kExited, kReported };
  struct Job {
    StartJob start;
    State state = State::kPreparing;
    std::optional<JobLog> log;
    std::unique_ptr<Process> process;
    std::vector<std::string> module_folders;
    std::string working_dir;
    size_t packages_left = 0;
    bool stop_asked = false;
    bool lease_held = false;
    std::vector<uint32_t> gpu_ids;
    ProcessEnd end;
    std::unique_ptr<async::Timer> kill_timer;
  };
  using JobPointer = std::shared_ptr<Job>;

  void Prepare(const JobPointer& job);
  void OnPackage(const JobPointer& job, absl::StatusOr<std::string> folder, std::function<void(std::string)> take);
  void Launch(const JobPointer& job);
  void OnEnd(const JobPointer& job, const ProcessEnd& end);
  void Fail(const JobPointer& job, const std::string& message, const std::string& error_type, bool retry_elsewhere = false);
  void SignalTree(Job& job, int signal);
  void Ship();
  void ReportExit(Job& job);
  void Release(Job& job);
  void CheckStopped();

  Parts parts_;
  JobRunnerOptions options_;
  std::map<std::string, JobPointer> jobs_;
  async::Timer ship_timer_;
  std::function<void()> stopped_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
