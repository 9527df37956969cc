#pragma once

// Every message that travels over framed connections: worker <-> node daemon, worker <-> worker, node <-> node. An aggregate here is
// its own wire format (see Codec): fields may be added at the end, never removed or reordered. A request names its reply type; a
// message without one is a notice and is not answered.
//
//   connection.Request(RequestLease{...}, [](absl::StatusOr<LeaseGrant> grant) { ... });

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/observation.h"
#include "runtime/base/shared_text.h"

namespace argosy::wire {

// The number is the wire's; never reused.
enum class Method : uint16_t {
  kNone = 0,
  // worker or driver -> node daemon
  kRegisterWorker = 1, kRegisterDriver = 2, kRequestLease = 3, kCancelLeaseRequest = 4, kReturnLease = 5, kWorkerBlocked = 6,
  kWorkerUnblocked = 7, kWorkerFate = 8, kCreateObject = 9, kSealObject = 10, kGetObject = 11, kReleaseObject = 12,
  kDeleteObjects = 13, kCreateActor = 14, kResolveActor = 15, kKillActor = 16, kActorExiting = 17, kCreateGroup = 18,
  kWaitGroup = 19, kRemoveGroup = 20, kKvPut = 21, kKvGet = 22, kKvDelete = 23, kKvList = 24, kListNodes = 25, kAbortObject = 26,
  kExplain = 27, kContainsObject = 28, kListActors = 29, kFlushPrints = 34,
  kReportTasks = 35, kReportMetrics = 36, kUploadFolder = 37,
  // node daemon -> worker
  kBecomeActor = 40, kExitWorker = 41, kLeaseRecalled = 42, kPrepareForJob = 43, kPrinted = 50,
  kFlushReports = 51, kListReferences = 52, kDumpStacks = 53, kObjectMoved = 54, kNodeLost = 55,
  // worker -> worker
  kPushTask = 60, kCancelTask = 61, kGetOwnedObject = 62, kAddBorrower = 63, kReleaseBorrow = 64, kOpenChannel = 65,
  kAcknowledge = 66, kStreamItem = 67,
  // node daemon -> node daemon
  kPullObject = 80, kDropObject = 81, kReadCodeFile = 82, kAdoptObject = 83, kMemoryUse = 84,
  kEndForMemory = 85, kPullBytes = 86,
};

struct Empty {};

// ---- shared pieces ----------------------------------------------------------------------------------------------------------

struct WorkerAddress {
  WorkerId worker;
  NodeId node;
  SharedText unix_path;    // reachable from processes on the same host
  SharedText tcp;          // host:port
  bool operator==(const WorkerAddress&) const = default;
};

// Where a copy of an object is.
struct ObjectLocation {
  NodeId node;
  std::string wire_address;   // host:port of that node's daemon
  uint64_t size = 0;          // bytes
  bool operator==(const ObjectLocation&) const = default;
};

struct DefaultStrategy { bool operator==(const DefaultStrategy&) const = default; };
struct SpreadStrategy { bool operator==(const SpreadStrategy&) const = default; };
struct NodeAffinity { NodeId node; bool soft = false; bool operator==(const NodeAffinity&) const = default; };
struct BundleAffinity {
  GroupId group;
  int32_t bundle_index = -1;                            // -1: any bundle
  bool operator==(const BundleAffinity&) const = default;
};
using Strategy = std::variant<DefaultStrategy, SpreadStrategy, NodeAffinity, BundleAffinity>;

struct Demand {
  std::map<std::string, double> resources;
  std::map<std::string, std::string> label_selector;   // key -> "v", "!v", "in(a,b)", "!in(a,b)", "exists()"
  Strategy strategy;
  std::vector<ObjectLocation> locality;                // where the big arguments are
  int32_t priority = 0;                                // higher first, within the job
  bool retriable = true;                               // what it is for can be run again when its worker dies
  int32_t job_priority = 0;                            // between jobs, higher first
  bool operator==(const Demand&) const = default;
};

struct CodeFile {
  std::string path;      // where the driver has it
  std::string sha256;    // hex
  uint64_t size = 0;
  uint32_t mode = 0;
};

// What a node needs to start a worker of a driver: its executable (the first file) and its libraries that are not the system's.
struct CodePackage {
  std::string id;                            // hex sha256 over hashes and argv
  std::vector<CodeFile> files;
  std::vector<std::string> argv;             // the driver's own
  std::vector<std::string> library_path;     // vendor library folders, never copied
  std::string source_address;                // wire address of the node daemon that has the files
  std::map<std::string, std::string> env_vars;
  std::string working_dir;
  int32_t job_priority = 0;                  // of what it asks for; no part of the id
  std::string working_dir_uri;               // of an uploaded package to run in, "gcs://NAME"; empty: working_dir
  std::vector<std::string> loader_path;      // folders in which the loader looks first; relative ones are the package's
};

// An error of user code or of the runtime, as it travels in replies and is thrown at the API.
struct ErrorInfo {
  enum Kind : uint8_t {
    kTask = 0, kActorDied = 1, kObjectLost = 2, kOwnerDied = 3, kOutOfMemory = 4, kCancelled = 5, kUnschedulable = 6,
    kWorkerDied = 7, kRuntime = 8, kActorUnavailable = 9, kPendingCallsLimit = 10, kRuntimeEnv = 11,
    kNodeDied = 12,
  };
  Kind kind = kTask;
  std::string message;
  std::string type;      // of the remote exception, demangled
  std::string where;     // function, worker, node
};

// ---- worker or driver -> node daemon ----------------------------------------------------------------------------------------

// The first request of a process the node started. `startup_number` was given to it in its inherited start-up block.
struct WorkerRegistered {
  NodeId node;
  std::string node_name;
  std::string node_ip;
  std::string wire_address;      // host:port of this daemon's framed listener
  std::string session_dir;
  std::string store_door;        // Unix socket that passes the arena's descriptors (runtime/store/door.h)
  uint64_t arena_size = 0;       // bytes
  JobId job;
  std::string ns;                // the job's namespace for names
  std::string head_address;
  std::string code_source_address;
  std::string token;             // for TCP between workers; empty: authentication is off
  std::string tcp_host;          // where to listen for workers of other hosts
  std::string worker_socket;     // Unix socket path for a driver to listen on (a worker has it from its start-up block)
};
struct RegisterWorker {
  static constexpr Method kMethod = Method::kRegisterWorker;
  using Reply = WorkerRegistered;
  uint64_t startup_number = 0;
  uint32_t pid = 0;
  WorkerAddress address;
};
// The first request of a driver. The node makes the job id, or returns the one it has after a reconnect.
struct RegisterDriver {
  static constexpr Method kMethod = Method::kRegisterDriver;
  using Reply = WorkerRegistered;
  JobId job;                     // nil: a new one
  std::string submission_id;     // from the job's environment; empty when started by hand
  uint32_t pid = 0;
  WorkerAddress address;
  std::string entrypoint;
  std::string ns;
  bool quiet = false;            // what its workers print stays in their files
};

struct LeaseGrant {
  LeaseId lease;
  WorkerAddress worker;
  std::vector<uint32_t> gpu_ids;
};
// Waits until granted. Errors: UNAVAILABLE (head away), DEADLINE_EXCEEDED with the explanation, CANCELLED, NOT_FOUND (what its worker's
// runtime environment needs), or why it cannot be.
struct RequestLease {
  static constexpr Method kMethod = Method::kRequestLease;
  using Reply = LeaseGrant;
  std::string request_id;        // 16 random bytes; names the request in CancelLeaseRequest
  Demand demand;
  CodePackage code;
  double deadline_seconds = 0;   // 0: none
};
struct CancelLeaseRequest { static constexpr Method kMethod = Method::kCancelLeaseRequest; std::string request_id; };
struct ReturnLease {
  static constexpr Method kMethod = Method::kReturnLease;
  LeaseId lease;
  NodeId node;                   // of the leased worker
  bool worker_failed = false;    // do not reuse it
};
// The sender's running task waits in Get or Wait: its CPU may be lent until it says otherwise.
struct WorkerBlocked { static constexpr Method kMethod = Method::kWorkerBlocked; };
struct WorkerUnblocked { static constexpr Method kMethod = Method::kWorkerUnblocked; };

struct WorkerFateReply { bool dead = false; std::string reason; bool node_lost = false; bool out_of_memory = false; };
// Is a worker whose connection broke dead? Waits up to `wait_seconds` for a death.
struct WorkerFate {
  static constexpr Method kMethod = Method::kWorkerFate;
  using Reply = WorkerFateReply;
  WorkerId worker;
  NodeId node;
  double wait_seconds = 0;
};

struct ObjectPlace { uint64_t offset = 0; uint64_t size = 0; };   // in the arena, bytes
// Reserves space; waits in a bounded queue when the store is full. RESOURCE_EXHAUSTED says sizes.
struct CreateObject {
  static constexpr Method kMethod = Method::kCreateObject;
  using Reply = ObjectPlace;
  ObjectId object;
  uint64_t size = 0;
  WorkerAddress owner;
};
// From then on it never changes and may be read. The sealed object stays until its owner deletes it (pinned by the owner).
struct SealObject { static constexpr Method kMethod = Method::kSealObject; using Reply = Empty; ObjectId object; };
struct AbortObject { static constexpr Method kMethod = Method::kAbortObject; ObjectId object; };
// Pins it for the sender until ReleaseObject; pulled from another node when it is not here. NOT_FOUND: no location has it.
struct GetObject {
  static constexpr Method kMethod = Method::kGetObject;
  using Reply = ObjectPlace;
  ObjectId object;
  std::vector<ObjectLocation> locations;
  double deadline_seconds = 0;
};
struct ReleaseObject { static constexpr Method kMethod = Method::kReleaseObject; ObjectId object; };   // one pin
// From the owner: nobody refers to them any more. Forwarded to the locations.
struct DeleteObjects {
  static constexpr Method kMethod = Method::kDeleteObjects;
  std::vector<ObjectId> objects;
  std::vector<ObjectLocation> locations;
};
struct ContainsObjectReply { bool local = false; };
struct ContainsObject { static constexpr Method kMethod = Method::kContainsObject; using Reply = ContainsObjectReply; ObjectId object; };

// Threads of an actor that run certain methods only.
struct ConcurrencyGroup {
  std::string name;
  int32_t max_concurrency = 1;
  std::vector<std::string> methods;   // wire names
};
struct ActorSpec {
  ActorId actor;
  std::string class_name;        // for people
  std::string creator;           // wire name of the constructor function
  std::string arguments;         // encoded vector<Argument>; opaque to node and head
  std::string name;
  std::string ns;
  bool get_if_exists = false;
  bool detached = false;
  Demand placement;
  std::map<std::string, double> running_resources;
  int32_t max_restarts = 0;      // -1: no bound
  int32_t max_task_retries = 0;
  int32_t max_concurrency = 1;
  CodePackage code;
  WorkerAddress owner;
  JobId job;
  double start_timeout_seconds = 0;
  std::vector<ConcurrencyGroup> concurrency_groups;
  int32_t max_pending_calls = 0;      // unanswered ones of a caller; 0: the default
  bool fail_when_full = false;        // above it a call fails instead of waiting
};
struct ActorInfo {
  enum State : uint8_t { kPending = 0, kAlive = 1, kRestarting = 2, kDead = 3 };
  ActorId actor;
  State state = kPending;
  uint64_t incarnation = 0;      // grows with each start
  WorkerAddress worker;
  std::string name;
  std::string ns;
  std::string class_name;
  std::string death_reason;
  int32_t max_task_retries = 0;
  std::string pending_reason;
  bool constructor_failed = false;
  NodeId node;
  int32_t max_pending_calls = 0;
  bool fail_when_full = false;
};
struct CreateActor { static constexpr Method kMethod = Method::kCreateActor; using Reply = ActorInfo; ActorSpec spec; };
// Waits up to `wait_seconds` until it is alive with at least `incarnation_min`, or dead; then answers what is known.
struct ResolveActor {
  static constexpr Method kMethod = Method::kResolveActor;
  using Reply = ActorInfo;
  ActorId actor;                 // nil: by name
  std::string name;
  std::string ns;
  uint64_t incarnation_min = 0;
  double wait_seconds = 0;
};
struct KillActor {
  static constexpr Method kMethod = Method::kKillActor;
  using Reply = Empty;
  ActorId actor;
  bool no_restart = true;
  std::string reason;
};
struct ActorExiting { static constexpr Method kMethod = Method::kActorExiting; std::string reason; };   // intended: no restart
struct ListActorsReply { std::vector<ActorInfo> actors; };
struct ListActors { static constexpr Method kMethod = Method::kListActors; using Reply = ListActorsReply; bool include_dead = false; };

struct Bundle { std::map<std::string, double> resources; std::map<std::string, std::string> label_selector; };
struct GroupInfo {
  enum State : uint8_t { kPending = 0, kCreated = 1, kRemoved = 2, kRescheduling = 3 };
  GroupId group;
  State state = kPending;
  std::vector<NodeId> bundle_nodes;
  std::string pending_reason;
};
enum class GroupStrategy : uint8_t { kPack = 0, kSpread = 1, kStrictPack = 2, kStrictSpread = 3 };
struct CreateGroup {
  static constexpr Method kMethod = Method::kCreateGroup;
  using Reply = GroupInfo;
  GroupId group;
  std::string name;
  GroupStrategy strategy = GroupStrategy::kPack;
  std::vector<Bundle> bundles;
  bool detached = false;
};
struct WaitGroup { static constexpr Method kMethod = Method::kWaitGroup; using Reply = GroupInfo; GroupId group; double wait_seconds = 0; };
struct RemoveGroup { static constexpr Method kMethod = Method::kRemoveGroup; using Reply = Empty; GroupId group; };

struct KvPutReply { bool added = false; };
struct KvPut { static constexpr Method kMethod = Method::kKvPut; using Reply = KvPutReply; std::string ns, key, value; bool overwrite = true; };
struct KvGetReply { std::optional<std::string> value; };
struct KvGet { static constexpr Method kMethod = Method::kKvGet; using Reply = KvGetReply; std::string ns, key; };
struct KvDeleteReply { bool deleted = false; };
struct KvDelete { static constexpr Method kMethod = Method::kKvDelete; using Reply = KvDeleteReply; std::string ns, key; };
struct KvListReply { std::vector<std::string> keys; };
struct KvList { static constexpr Method kMethod = Method::kKvList; using Reply = KvListReply; std::string ns, prefix; };

struct UploadFolderReply { std::string uri; };   // "gcs://NAME"
// Packs a folder of this host and sends it to the head, unless the head has just that.
struct UploadFolder { static constexpr Method kMethod = Method::kUploadFolder; using Reply = UploadFolderReply; std::string path; };

struct NodeInfo {
  NodeId node;
  std::string name;
  std::string ip;
  std::string wire_address;
  std::map<std::string, double> resources_total;
  std::map<std::string, double> resources_available;
  std::map<std::string, std::string> labels;
  bool alive = true;
  bool is_head_node = false;
  std::string hostname;
  uint64_t object_store_used = 0;   // bytes
  bool draining = false;
};
struct ListNodesReply { std::vector<NodeInfo> nodes; };
struct ListNodes { static constexpr Method kMethod = Method::kListNodes; using Reply = ListNodesReply; };
struct ExplainReply { bool placeable = false; std::string text; };
struct Explain { static constexpr Method kMethod = Method::kExplain; using Reply = ExplainReply; Demand demand; };
// From a driver: answered after what its workers had printed by now was sent to it (Printed).
struct FlushPrints { static constexpr Method kMethod = Method::kFlushPrints; using Reply = Empty; };
// Laid out as argosy::TaskReport, which the head reads.
struct ReportTasks { static constexpr Method kMethod = Method::kReportTasks; TaskEvents events; };
// Laid out as argosy::MetricsReported.
struct ReportMetrics { static constexpr Method kMethod = Method::kReportMetrics; ProcessMetrics metrics; };

// ---- node daemon -> worker --------------------------------------------------------------------------------------------------

// Runs the constructor; the error is the constructor's (an ErrorInfo as text).
struct BecomeActorReply { std::optional<ErrorInfo> error; };
struct BecomeActor {
  static constexpr Method kMethod = Method::kBecomeActor;
  using Reply = BecomeActorReply;
  ActorSpec spec;
  uint64_t incarnation = 0;
  std::vector<uint32_t> gpu_ids;
};
struct ExitWorker { static constexpr Method kMethod = Method::kExitWorker; std::string reason; };   // finish nothing more, leave
// Connections to workers of that node lead nowhere, however well they look.
struct NodeLost { static constexpr Method kMethod = Method::kNodeLost; NodeId node; };
// To a lease's holder: push nothing more, return it after the running task.
struct LeaseRecalled {
  static constexpr Method kMethod = Method::kLeaseRecalled;
  LeaseId lease;
  bool when_idle = false;        // others could use it: back as soon as it has no work. Else nothing more is pushed to it
};
// To a driver: what its workers print. Answered when it is taken, so that the node knows how much is on its way.
struct Printed { static constexpr Method kMethod = Method::kPrinted; using Reply = Empty; JobPrints prints; };
// Answered after what there is to report (ReportTasks) was sent.
struct FlushReports { static constexpr Method kMethod = Method::kFlushReports; using Reply = Empty; };
struct ListReferences { static constexpr Method kMethod = Method::kListReferences; using Reply = References; uint32_t references_max = 0; };
struct StacksReply { std::string text; };
struct DumpStacks { static constexpr Method kMethod = Method::kDumpStacks; using Reply = StacksReply; };

// To an object's owner, at its listener: its primary copy is at `to` from now on. Unknown: nobody wants it any more.
struct ObjectMovedReply { bool known = false; };
struct ObjectMoved {
  static constexpr Method kMethod = Method::kObjectMoved;
  using Reply = ObjectMovedReply;
  ObjectId object;
  NodeId from;
  ObjectLocation to;
};

// ---- worker -> worker -------------------------------------------------------------------------------------------------------

struct Reference { ObjectId object; WorkerAddress owner; };
// A value by itself, with the refs inside it.
struct InlineValue { std::string bytes; std::vector<Reference> references; };
using Argument = std::variant<InlineValue, Reference>;

struct TaskSpec {
  TaskId task;
  uint32_t attempt = 0;
  JobId job;
  SharedText function;           // wire name
  std::vector<Argument> arguments;
  uint32_t return_count = 1;
  WorkerAddress owner;           // of the returns
  LeaseId lease;                 // plain tasks
  ActorId actor;                 // actor calls; else nil
  uint64_t incarnation = 0;
  uint64_t sequence = 0;         // actor calls: order of this caller's calls in this incarnation, from 0
  SharedText name;               // for people
  SharedText code_id;            // the caller's package
  std::string trace;             // W3C traceparent whose span is the caller's; empty: none
  bool split = false;            // each element of the result is a return of its own: `return_count` of them
  std::vector<std::string> retry_exceptions;   // exception types that TaskReply.retry is about; "*": every one
  uint32_t stream_ahead_max = 0; // above 0: its values go to the owner one by one, and so many may be unread
  SharedText concurrency_group;  // actor calls: other than its method's; empty: that one
};
// A stored value lies in the object store of `location.node`.
struct StoredValue { ObjectLocation location; std::vector<Reference> references; };
using ReturnValue = std::variant<InlineValue, StoredValue>;
struct TaskReply {
  std::vector<ReturnValue> returns;
  std::optional<ErrorInfo> error;
  std::vector<ObjectId> kept;    // refs of the arguments that the worker still holds: it is now their borrower
  bool handed_back = false;      // not started: the worker is blocked or the lease recalled; push elsewhere, no retry counted
  bool retry = false;            // `error` is one of the spec's retry_exceptions
};
struct PushTask { static constexpr Method kMethod = Method::kPushTask; using Reply = TaskReply; TaskSpec spec; };
struct CancelTask { static constexpr Method kMethod = Method::kCancelTask; TaskId task; bool force = false; bool children = true; };

struct StreamItemReply { bool stop = false; };   // nobody reads the stream any more
// A value of a stream, to its owner. Answered when the owner has it and there is room for more. The same index again changes nothing.
struct StreamItem {
  static constexpr Method kMethod = Method::kStreamItem;
  using Reply = StreamItemReply;
  TaskId task;
  uint32_t attempt = 0;
  uint64_t index = 0;
  ReturnValue value;
};

struct OwnedObject {
  enum State : uint8_t { kPending = 0, kReady = 1, kError = 2, kFreed = 3 };
  State state = kPending;
  std::optional<InlineValue> value;
  std::vector<ObjectLocation> locations;
  std::vector<Reference> references;
  std::optional<ErrorInfo> error;
};
// Asks the owner; waits until the value is there (or `wait_seconds` passed: kPending).
struct GetOwnedObject {
  static constexpr Method kMethod = Method::kGetOwnedObject;
  using Reply = OwnedObject;
  ObjectId object;
  double wait_seconds = 0;
  std::vector<ObjectLocation> unreadable;   // the asker could not get it from these: the owner looks for it, or makes it again
  bool missing = false;                     // ... because they have it no more; else they were not reached
};
struct AddBorrower { static constexpr Method kMethod = Method::kAddBorrower; using Reply = Empty; ObjectId object; WorkerAddress borrower; };
struct ReleaseBorrow { static constexpr Method kMethod = Method::kReleaseBorrow; ObjectId object; WorkerId borrower; };
// Turns this connection into the named channel's byte stream: after the reply no more frames travel on it.
struct OpenChannel {
  static constexpr Method kMethod = Method::kOpenChannel;
  using Reply = Empty;
  std::string channel;           // agreed by both ends
  WorkerId from;
};

// ---- node daemon -> node daemon ---------------------------------------------------------------------------------------------

struct ObjectChunk { uint64_t total_size = 0; std::string bytes; };
struct PullObject { static constexpr Method kMethod = Method::kPullObject; using Reply = ObjectChunk; ObjectId object; uint64_t offset = 0; uint64_t size_max = 0; };
// Answered with the bytes themselves (Connection::RequestBytes).
struct PullBytes { static constexpr Method kMethod = Method::kPullBytes; ObjectId object; uint64_t offset = 0; uint64_t size = 0; };
struct DropObject { static constexpr Method kMethod = Method::kDropObject; std::vector<ObjectId> objects; };
// The receiver pulls it and keeps it as the primary copy: the sender leaves. Answered with its new place.
struct AdoptObject {
  static constexpr Method kMethod = Method::kAdoptObject;
  using Reply = ObjectLocation;
  ObjectId object;
  WorkerId owner;
  std::string owner_tcp;
  JobId job;
  ObjectLocation from;
};
// A worker process and what it takes of the host's memory. `retriable`: what it runs, or ran last, can be run again.
struct MemoryWorker {
  WorkerId worker;
  uint32_t pid = 0;
  uint64_t bytes = 0;            // of its own, without the object store's
  JobId job;
  bool retriable = true;
  int64_t since_us = 0;          // when what it runs began, since the epoch
};
struct MemoryUseReply { std::string boot_id; std::vector<MemoryWorker> workers; };   // boot_id: of the host's kernel
// From the daemon that watches the host's memory to the others of the host.
struct MemoryUse { static constexpr Method kMethod = Method::kMemoryUse; using Reply = MemoryUseReply; };
struct EndForMemory { static constexpr Method kMethod = Method::kEndForMemory; WorkerId worker; std::string reason; };
struct CodeFileChunk { uint64_t total_size = 0; std::string bytes; };
struct ReadCodeFile { static constexpr Method kMethod = Method::kReadCodeFile; using Reply = CodeFileChunk; std::string sha256; std::string path; uint64_t offset = 0; uint64_t size_max = 0; };

}  // namespace argosy::wire
