#pragma once

// What the head's parts say to each other and, through the codec, to nodes. No wire types here: what the head only carries (a code
// package, an actor's arguments) stays in its encoded form.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/id.h"
#include "runtime/base/observation.h"
#include "runtime/base/resources.h"
#include "scheduler/demand.h"
#include "scheduler/label_selector.h"

namespace argosy::head {

using ResourceMap = std::map<std::string, double>;
using StringMap = std::map<std::string, std::string>;

struct WorkerAddress {
  WorkerId worker;
  NodeId node;
  std::string unix_path;
  std::string tcp;
};

struct NodeDescription {
  NodeId id;
  std::string name;
  std::string ip;
  std::string wire_address;
  std::string agent_address;
  std::string hostname;
  ResourceMap total;
  StringMap labels;
  bool is_head_node = false;
  int64_t started_unix_ms = 0;
  uint32_t pid = 0;
};

// ---- node -> head -----------------------------------------------------------------------------------------------------------

struct HeldLease { LeaseId lease; WorkerAddress worker; ResourceSet resources; };
struct HeldActor { ActorId actor; uint64_t incarnation = 0; WorkerAddress worker; };
struct HeldBundle { scheduler::BundleKey bundle; bool committed = false; ResourceSet resources; };

struct Registration {
  NodeDescription node;
  ResourceSet available;
  std::vector<HeldLease> leases;
  std::vector<HeldActor> actors;
  std::vector<HeldBundle> bundles;
  std::vector<std::string> jobs;   // submission ids
  std::optional<std::string> draining;   // why
};

struct Heartbeat { uint64_t object_store_used = 0; uint32_t workers = 0; uint64_t object_store_spilled = 0; };
struct BundleAvailable { scheduler::BundleKey bundle; ResourceSet available; };
struct ResourceReport { uint64_t version = 0; ResourceSet available; uint32_t waiting_requests = 0; std::vector<BundleAvailable> bundles; std::vector<LeaseId> ended_leases; };
struct LeaseResult {
  uint64_t request = 0;
  LeaseId lease;
  bool granted = false;
  std::string refusal;
  bool retry_elsewhere = false;
  WorkerAddress worker;
  std::vector<uint32_t> gpu_ids;
  bool environment_failed = false;   // what the runtime environment of the worker needs is not there
};
struct BundlesPrepared { GroupId group; uint64_t attempt = 0; bool ok = false; std::string reason; };
struct BundlesCommitted { GroupId group; uint64_t attempt = 0; bool ok = false; std::string reason; };
struct ActorStarted { ActorId actor; uint64_t incarnation = 0; WorkerAddress worker; };
struct ActorEnded {
  ActorId actor;
  uint64_t incarnation = 0;
  std::string reason;
  bool retry_elsewhere = false;
  bool constructor_failed = false;
  bool intended = false;
};
struct WorkerDied { WorkerId worker; std::string reason; int exit_code = 0; bool out_of_memory = false; };
struct DriverJoined {
  JobId job;
  std::string submission_id;
  WorkerAddress driver;
  uint32_t pid = 0;
  std::string entrypoint;
  std::string name_space;
  bool quiet = false;      // what its workers print is not shown
};
struct DriverLeft { JobId job; std::string reason; };
struct JobStarted { std::string submission_id; uint32_t pid = 0; };
struct JobStartFailed { std::string submission_id; std::string message; std::string error_type; bool retry_elsewhere = false; };
struct JobExited { std::string submission_id; int exit_code = 0; int signal = 0; bool stopped = false; };
struct JobLogBytes { std::string submission_id; uint64_t offset = 0; std::string data; };
struct CarriedPrints { JobId job; std::string body; };   // an encoded JobPrints
struct FlushPrints { JobId job; };
struct CarriedMetrics { std::string body; };   // an encoded MetricsReported
struct NodeLeft { std::string reason; };
struct TaskEventsReport { std::string body; uint64_t dropped = 0; };   // an encoded TaskReport
struct NodeAnswer { uint64_t number = 0; absl::StatusOr<std::string> body = std::string(); };

using FromNode = std::variant<Heartbeat, ResourceReport, LeaseResult, BundlesPrepared, BundlesCommitted, ActorStarted, ActorEnded, WorkerDied,
                              DriverJoined, DriverLeft, JobStarted, JobStartFailed, JobExited, JobLogBytes, CarriedPrints, FlushPrints, NodeAnswer,
                              TaskEventsReport, CarriedMetrics, NodeLeft>;

// ---- head -> node -----------------------------------------------------------------------------------------------------------

struct Registered { std::string cluster_id; uint64_t epoch = 0; double heartbeat_seconds = 0; double node_timeout_seconds = 0; };
struct Rejected { std::string reason; bool declared_dead = false; };
struct GrantLease {
  uint64_t request = 0;
  LeaseId lease;
  JobId job;
  scheduler::Demand demand;
  std::string code;        // encoded CodePackage
  WorkerId holder;
};
struct ReleaseLease { LeaseId lease; bool worker_failed = false; };
struct RecallLease { LeaseId lease; };
struct BundleToPrepare { int index = 0; ResourceSet resources; };
// All or none; with `commit` also committed.
struct PrepareBundles { GroupId group; uint64_t attempt = 0; std::vector<BundleToPrepare> bundles; bool commit = false; };
struct CommitBundles { GroupId group; uint64_t attempt = 0; std::vector<int> indices; };
struct ReturnBundles { GroupId group; std::vector<int> indices; };
struct StartActor { std::string spec; uint64_t incarnation = 0; LeaseId lease; };   // encoded ActorSpec
struct StopActor { ActorId actor; uint64_t incarnation = 0; bool no_restart = false; std::string reason; };
struct JobEnded { JobId job; std::string reason; };
struct StartJob {
  std::string submission_id;
  std::string entrypoint;
  std::string runtime_env_json;
  StringMap metadata;
  LeaseId lease;           // nil: no resources were asked for
  scheduler::Demand demand;
};
struct StopJob { std::string submission_id; double grace_seconds = 0; };
struct JobLogAck { std::string submission_id; uint64_t end = 0; };
struct JobExitAck { std::string submission_id; };
struct NodeContended { bool contended = false; int job_priority = 0; };
struct OtherNodeLost { NodeId node; };
struct PrintsFlushed { JobId job; };
struct MutePrints { JobId job; };
struct DrainNode { std::string reason; double deadline_seconds = 0; bool undo = false; };
struct AskNode { uint64_t number = 0; NodeQuestion question; };

using ToNode = std::variant<Registered, Rejected, GrantLease, ReleaseLease, RecallLease, PrepareBundles, CommitBundles, ReturnBundles, StartActor,
                            StopActor, JobEnded, StartJob, StopJob, JobLogAck, JobExitAck, NodeContended, CarriedPrints, PrintsFlushed, MutePrints,
                            AskNode, DrainNode, OtherNodeLost>;

}  // namespace argosy::head
