#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/id.h"

namespace argosy {

// How long something may take: std::chrono or absl durations; none means without end.
class Timeout {
 public:
  Timeout() = default;
  Timeout(absl::Duration duration) : duration_(duration) {}
  template <class Rep, class Period>
  Timeout(std::chrono::duration<Rep, Period> duration) : duration_(absl::FromChrono(duration)) {}

  absl::Duration duration() const { return duration_; }
  bool IsInfinite() const { return duration_ == absl::InfiniteDuration(); }

 private:
  absl::Duration duration_ = absl::InfiniteDuration();
};

// Where a task or an actor may run.
struct DefaultPlacement {};                                   // packed until nodes are half full, then spread
struct Spread {};                                             // over as many nodes as possible
struct OnNode { NodeId node; bool soft = false; };            // there; soft: elsewhere when it has no room
using Placement = std::variant<DefaultPlacement, Spread, OnNode>;

using Resources = std::map<std::string, double>;              // {{"CPU", 1}, {"GPU", 1}}
using LabelSelector = std::map<std::string, std::string>;     // {{"accelerator-type", "in(H100,A100)"}, {"zone", "!b"}}

// Types of exceptions: argosy::RetryOn<std::runtime_error, NetworkError>(), also of classes derived from them, or argosy::RetryOnAny().
struct ExceptionTypes { std::vector<std::string> names; };

struct TaskOptions {
  std::string name;                        // for people; the function's own when empty
  Resources resources = {{"CPU", 1}};
  LabelSelector label_selector;
  Placement strategy;
  std::optional<GroupId> placement_group;  // group.id(); strategy is not used then
  int bundle_index = -1;                   // -1: any bundle of the group
  int max_retries = 3;                     // when the worker or its node dies; -1: without bound
  ExceptionTypes retry_exceptions;         // thrown ones that are tried again too, within max_retries
  int priority = 0;                        // what waits is served higher ones first, within the job
  Timeout deadline;                        // to be placed; UnschedulableError after it
  int stream_ahead_max = 16;               // generators: so many values may be unread, then it waits
  // Of the worker process, beside the job's, and of the workers of what the task submits. Workers are shared among tasks with the same ones.
  // Not set in local mode.
  std::map<std::string, std::string> env_vars;
  std::string working_dir;                 // where it runs: a folder of this host, or the "gcs://NAME" of an uploaded one
  std::vector<std::string> library_path;   // folders in which its loader looks first; relative ones are of the working directory
};

// Threads of an actor for some of its methods: {.name = "io", .max_concurrency = 2, .methods = argosy::Methods<&Store::Read, &Store::Write>()}.
struct ConcurrencyGroup {
  std::string name;
  int max_concurrency = 1;
  std::vector<std::string> methods;        // what Methods<...>() returns; calls of others may name the group in their options
};

struct ActorOptions {
  std::string name;                        // GetActor finds it by this
  std::string ns;                          // the job's own when empty
  Resources resources;                     // while it runs; empty: one CPU to be placed, none to run
  LabelSelector label_selector;
  Placement strategy;
  std::optional<GroupId> placement_group;
  int bundle_index = -1;
  bool detached = false;                   // outlives its job; needs a name
  bool get_if_exists = false;              // the named actor when there is one, instead of an error
  int max_restarts = 0;                    // -1: without bound
  int max_task_retries = 0;                // calls in flight when it dies are repeated this often
  int max_concurrency = 1;                 // threads that run calls at the same time; 1 keeps each caller's order
  std::vector<ConcurrencyGroup> concurrency_groups;   // with threads of their own; max_concurrency is for the other methods
  int max_pending_calls = 10'000;          // unanswered calls of one caller; above it Call waits
  bool fail_when_full = false;             // or throws PendingCallsLimitError
  int priority = 0;                        // as of tasks, while it waits to be placed
  Timeout deadline;                        // to be placed and constructed
  std::map<std::string, std::string> env_vars;   // of its process, as a task's
  std::string working_dir;
  std::vector<std::string> library_path;
};

struct CallOptions {
  std::string name;                        // for people
  std::string concurrency_group;           // its method's when empty
  int stream_ahead_max = 16;               // generators: so many values may be unread, then it waits
};

struct ConnectOptions {
  std::string address;                     // "host:port" of the head; else ARGOSY_ADDRESS; else a local cluster is started
  std::string ns;                          // of named actors; a random one when empty
  std::map<std::string, std::string> env_vars;   // set in this job's workers
  std::string working_dir;                 // where they run, as a task's; empty: where this process does
  std::vector<std::string> library_path;   // and where their loader looks first
  std::optional<double> num_cpus;          // of a local cluster; the machine's when not given
  // Of this job among the jobs that wait for the same nodes: higher ones first, equal ones in turns. From -1000 to 1000. Not given:
  // ARGOSY_JOB_PRIORITY, which `argosy job submit --priority` sets; else 0.
  std::optional<int> priority;
  // What this job's tasks and actors print appears here, each line after who printed it. Also off: ARGOSY_LOG_TO_DRIVER=0.
  bool log_to_driver = true;
  // What this process keeps of finished tasks, so that their results can be made again when the node that has them is lost.
  uint64_t lineage_bytes_max = 256u << 20;
};

}  // namespace argosy
