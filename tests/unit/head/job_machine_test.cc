#include "runtime/head/job_machine.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {

constexpr int64_t kStartMs = 1'700'000'000'000;

JobRecord Job(const std::string& name) {
  JobRecord job;
  job.name = name;
  job.entrypoint = "true";
  return job;
}

template <class T>
bool Has(const std::vector<JobEffect>& effects) {
  for (const JobEffect& effect : effects) {
    if (std::holds_alternative<T>(effect)) return true;
  }
  return false;
}

void Place(JobMachine& jobs, const std::string& name) { jobs.Step(JobPlaced{name, kNode, "n1", "10.0.0.1", "", LeaseId()}, kStartMs); }

TEST_CASE("JobMachine: a job goes from PENDING over RUNNING to SUCCEEDED with the messages that clients know") {
  JobMachine jobs;
  auto effects = jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  CHECK(Has<WantJobNode>(effects));
  CHECK(jobs.Find("a")->message == "Job has not started yet.");
  effects = jobs.Step(JobPlaced{"a", kNode, "n1", "10.0.0.1", "", LeaseId()}, kStartMs + 1);
  CHECK(Has<SendStartJob>(effects));
  CHECK(Has<SaveJob>(effects));
  jobs.Step(JobStarted{"a", 42}, kStartMs + 2);
  CHECK(jobs.Find("a")->state == JobState::kRunning);
  CHECK(jobs.Find("a")->message == "Job is currently running.");
  effects = jobs.Step(JobExitSeen{{"a", 0}, ""}, kStartMs + 3);
  CHECK(Has<JobFinished>(effects));
  CHECK(jobs.Find("a")->state == JobState::kSucceeded);
  CHECK(jobs.Find("a")->message == "Job finished successfully.");
  CHECK(jobs.Find("a")->start_unix_ms == kStartMs);
  CHECK(jobs.Find("a")->end_unix_ms == kStartMs + 3);
}

TEST_CASE("JobMachine: what a pending job may wait for depends on what it asked") {
  JobRecord job = Job("a");
  job.has_resources = true;
  job.runtime_env_json = R"({"working_dir":"gcs://x.zip"})";
  CHECK(PendingMessage(job) ==
        "Job has not started yet. It may be waiting for resources (CPUs, GPUs, memory, custom resources) to become available. It may be waiting "
        "for the runtime environment to be set up.");
}

TEST_CASE("JobMachine: a failing entrypoint fails with its exit code and last lines") {
  JobMachine jobs;
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  Place(jobs, "a");
  jobs.Step(JobStarted{"a", 1}, kStartMs);
  jobs.Step(JobExitSeen{{"a", 0, 9}, "tail"}, kStartMs);
  CHECK(jobs.Find("a")->exit_code == -9);
  CHECK(jobs.Find("a")->message == "Job entrypoint command failed with exit code -9, last available logs (truncated to 20,000 chars):\ntail");
  jobs.Step(JobSubmitted{Job("b")}, kStartMs);
  Place(jobs, "b");
  jobs.Step(JobExitSeen{{"b", 2}, ""}, kStartMs);
  CHECK(jobs.Find("b")->message == "Job entrypoint command failed with exit code 2. No logs available.");
}

TEST_CASE("JobMachine: a terminal state never changes") {
  JobMachine jobs;
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  Place(jobs, "a");
  jobs.Step(JobExitSeen{{"a", 0}, ""}, kStartMs);
  CHECK(jobs.Step(JobExitSeen{{"a", 1}, ""}, kStartMs).empty());
  CHECK(jobs.Step(JobStopAsked{"a"}, kStartMs).empty());
  CHECK(jobs.Step(JobStarted{"a", 1}, kStartMs).empty());
  CHECK(jobs.Step(JobNodeLost{kNode, "gone"}, kStartMs).empty());
  CHECK(jobs.Find("a")->state == JobState::kSucceeded);
}

TEST_CASE("JobMachine: a job that waits is stopped at once, one that runs by its node") {
  JobMachine jobs;
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  CHECK(Has<DropJobNode>(jobs.Step(JobStopAsked{"a"}, kStartMs)));
  CHECK(jobs.Find("a")->state == JobState::kStopped);
  jobs.Step(JobSubmitted{Job("b")}, kStartMs);
  Place(jobs, "b");
  jobs.Step(JobStarted{"b", 1}, kStartMs);
  CHECK(Has<SendStopJob>(jobs.Step(JobStopAsked{"b"}, kStartMs)));
  CHECK(jobs.Find("b")->state == JobState::kRunning);
  jobs.Step(JobExitSeen{{"b", 0, 15, false}, ""}, kStartMs);
  CHECK(jobs.Find("b")->state == JobState::kStopped);
}

TEST_CASE("JobMachine: a refused start is placed again, a failed one fails with its error type") {
  JobMachine jobs;
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  Place(jobs, "a");
  CHECK(Has<WantJobNode>(jobs.Step(JobStartFailed{"a", "no room", "", true}, kStartMs)));
  CHECK(jobs.Waiting() == std::vector<std::string>{"a"});
  Place(jobs, "a");
  jobs.Step(JobStartFailed{"a", "no such file", kErrorRuntimeEnv, false}, kStartMs);
  CHECK(jobs.Find("a")->state == JobState::kFailed);
  CHECK(jobs.Find("a")->error_type == "RUNTIME_ENV_SETUP_FAILURE");
}

TEST_CASE("JobMachine: a job that did not start in time fails, and its node is told") {
  JobMachine jobs({.start_timeout = absl::Seconds(900)});
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  CHECK(jobs.Overdue(kStartMs + 899'999).empty());
  REQUIRE(jobs.Overdue(kStartMs + 900'000).size() == 1);
  jobs.Step(JobTimedOut{"a", "It waited for GPU."}, kStartMs + 900'000);
  CHECK(jobs.Find("a")->error_type == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT");
  CHECK(jobs.Find("a")->message == "Job did not start within 900 seconds. It waited for GPU.");
}

TEST_CASE("JobMachine: a node that rejoins without a job that was sent gets it again; a running one is lost") {
  JobMachine jobs;
  for (const char* name : {"sent", "runs", "kept"}) {
    jobs.Step(JobSubmitted{Job(name)}, kStartMs);
    Place(jobs, name);
  }
  jobs.Step(JobStarted{"runs", 1}, kStartMs);
  auto effects = jobs.Step(JobNodeRejoined{kNode, {"kept"}}, kStartMs);
  CHECK(Has<SendStartJob>(effects));
  CHECK(jobs.Find("sent")->state == JobState::kPending);
  CHECK(jobs.Find("runs")->state == JobState::kFailed);
  CHECK(jobs.Find("kept")->state == JobState::kRunning);
}

TEST_CASE("JobMachine: a driver started by hand is listed until it leaves, and found by its job id") {
  JobMachine jobs({.ended_drivers_max = 1});
  JobId first = JobId::FromNumber(1), second = JobId::FromNumber(2);
  for (JobId id : {first, second}) {
    jobs.Step(DriverJoined{id, "", {WorkerId(), kNode}, 7, "./a.out"}, kStartMs);
    CHECK(jobs.Find(id.Hex())->state == JobState::kRunning);
    jobs.Step(DriverLeft{id, ""}, kStartMs);
    CHECK(jobs.Find(id.Hex())->state == JobState::kSucceeded);
  }
  CHECK(jobs.TrimDrivers() == std::vector<std::string>{first.Hex()});
  CHECK(jobs.Find(first.Hex()) == nullptr);
  CHECK(jobs.Delete(second.Hex()).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("JobMachine: a submitted job is found by its driver's id too, and cannot be deleted while it runs") {
  JobMachine jobs;
  jobs.Step(JobSubmitted{Job("a")}, kStartMs);
  Place(jobs, "a");
  jobs.Step(JobStarted{"a", 1}, kStartMs);
  JobId driver = JobId::FromNumber(9);
  jobs.Step(DriverJoined{driver, "a", {}, 7}, kStartMs);
  REQUIRE(jobs.Find(driver.Hex()) != nullptr);
  CHECK(jobs.Find(driver.Hex())->name == "a");
  jobs.Step(DriverLeft{driver, ""}, kStartMs);
  CHECK(jobs.Find("a")->state == JobState::kRunning);
  CHECK(jobs.Delete("a").code() == absl::StatusCode::kFailedPrecondition);
  CHECK(jobs.Delete("b").code() == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace argosy::head
