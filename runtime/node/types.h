#pragma once

// What the node and the head say to each other, without the gRPC types (see node_codec.h). Shared pieces are those of the wire.

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
#include "runtime/wire/messages.h"
#include "scheduler/demand.h"

namespace argosy::node {

// ---- node -> head -----------------------------------------------------------------------------------------------------------

struct HeldLease { LeaseId lease; wire::WorkerAddress worker; ResourceSet resources; };
struct HeldActor { ActorId actor; uint64_t incarnation = 0; wire::WorkerAddress worker; };
struct HeldBundle { scheduler::BundleKey bundle; bool committed = false; ResourceSet resources; };

// What the head learns of this node when a stream begins.
struct Registration {
  wire::NodeInfo node;
  std::string agent_address;
  std::string hostname;
  uint32_t pid = 0;
  int64_t started_unix_ms = 0;
  std::vector<HeldLease> leases;
  std::vector<HeldActor> actors;
  std::vector<std::string> job_submission_ids;
  std::vector<HeldBundle> bundles;
  std::optional<std::string> draining;   // why
};

struct Heartbeat { uint64_t number = 0; uint64_t object_store_used = 0; uint32_t workers = 0; uint64_t object_store_spilled = 0; };
struct BundleAvailable { scheduler::BundleKey bundle; ResourceSet available; };
struct ResourceUpdate { uint64_t version = 0; ResourceSet available; uint32_t waiting_requests = 0; std::vector<BundleAvailable> bundles; std::vector<LeaseId> ended_leases; };
struct LeaseResult {
  uint64_t request_id = 0;
  LeaseId lease;
  bool granted = false;
  std::string refusal;
  bool retry_elsewhere = false;
  wire::WorkerAddress worker;
  std::vector<uint32_t> gpu_ids;
  bool environment_failed = false;   // what the runtime environment of the worker needs is not there
};
struct BundlesPrepared { GroupId group; uint64_t attempt = 0; bool ok = false; std::string reason; };
struct BundlesCommitted { GroupId group; uint64_t attempt = 0; bool ok = false; std::string reason; };
struct ActorStarted { ActorId actor; uint64_t incarnation = 0; wire::WorkerAddress worker; };
struct ActorEnded {
  ActorId actor;
  uint64_t incarnation = 0;
  std::string reason;
  bool retry_elsewhere = false;
  bool constructor_failed = false;
  bool intended = false;
};
struct WorkerDied { WorkerId worker; std::string reason; int32_t exit_code = 0; bool out_of_memory = false; };
struct DriverJoined {
  JobId job;
  std::string submission_id;
  wire::WorkerAddress driver;
  uint32_t pid = 0;
  std::string entrypoint;
  std::string ns;
  bool quiet = false;
};
struct DriverLeft { JobId job; std::string reason; };
struct JobStarted { std::string submission_id; uint32_t pid = 0; };
struct JobStartFailed { std::string submission_id; std::string message; std::string error_type; bool retry_elsewhere = false; };
struct JobExited { std::string submission_id; int32_t exit_code = 0; int32_t signal = 0; bool stopped = false; };
struct JobLogBytes { std::string submission_id; uint64_t offset = 0; std::string data; };
struct FlushPrints { JobId job; };
struct CarriedMetrics { std::string body; };   // encoded
struct NodeLeft { std::string reason; };
struct CarriedTaskEvents { std::string body; uint64_t dropped = 0; };   // encoded
struct NodeAnswer { uint64_t number = 0; absl::StatusOr<std::string> body = std::string(); };   // encoded

using ToHead = std::variant<Registration, Heartbeat, ResourceUpdate, LeaseResult, BundlesPrepared, BundlesCommitted, ActorStarted, ActorEnded,
                            WorkerDied, DriverJoined, DriverLeft, JobStarted, JobStartFailed, JobExited, JobLogBytes, JobPrints, FlushPrints, NodeAnswer, CarriedTaskEvents, CarriedMetrics, NodeLeft>;

// ---- head -> node -----------------------------------------------------------------------------------------------------------

struct Registered { std::string cluster_id; uint64_t epoch = 0; double heartbeat_seconds = 0; double node_timeout_seconds = 0; };
struct Rejected { std::string reason; bool declared_dead = false; };
struct GrantLease {
  uint64_t request_id = 0;
  LeaseId lease;
  JobId job;
  wire::Demand demand;
  wire::CodePackage code;
  WorkerId holder;
};
struct ReleaseLease { LeaseId lease; bool worker_failed = false; };
struct RecallLease { LeaseId lease; };
struct BundleToPrepare { int index = 0; ResourceSet resources; };
// All or none; with `commit` also committed.
struct PrepareBundles { GroupId group; uint64_t attempt = 0; std::vector<BundleToPrepare> bundles; bool commit = false; };
struct CommitBundles { GroupId group; uint64_t attempt = 0; std::vector<int> indices; };
struct ReturnBundles { GroupId group; std::vector<int> indices; };
struct StartActor { wire::ActorSpec spec; uint64_t incarnation = 0; LeaseId lease; };
struct StopActor { ActorId actor; uint64_t incarnation = 0; bool no_restart = false; std::string reason; };
struct JobEnded { JobId job; std::string reason; };
struct StartJob {
  std::string submission_id;
  std::string entrypoint;
  std::map<std::string, std::string> env_vars;
  std::string working_dir_uri;
  std::vector<std::string> py_modules_uris;
  std::string runtime_env_json;
  std::map<std::string, std::string> metadata;
  LeaseId lease;             // nil: no resources were asked for
  wire::Demand demand;
};
struct StopJob { std::string submission_id; double grace_seconds = 0; };
struct JobLogAck { std::string submission_id; uint64_t end = 0; };
struct JobExitAck { std::string submission_id; };
struct NodeContended { bool contended = false; int32_t job_priority = 0; };
struct OtherNodeLost { NodeId node; };
struct PrintsFlushed { JobId job; };
struct MutePrints { JobId job; };
struct DrainNode { std::string reason; double deadline_seconds = 0; bool undo = false; };
struct AskedNode { uint64_t number = 0; std::optional<NodeQuestion> question; };   // none: of a newer kind

using FromHead = std::variant<Registered, Rejected, GrantLease, ReleaseLease, RecallLease, PrepareBundles, CommitBundles, ReturnBundles, StartActor,
                              StopActor, JobEnded, StartJob, StopJob, JobLogAck, JobExitAck, NodeContended, JobPrints, PrintsFlushed, MutePrints, AskedNode, DrainNode,
                              OtherNodeLost>;

}  // namespace argosy::node
