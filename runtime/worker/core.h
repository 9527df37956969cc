#pragma once

// The core of a worker or driver process: owns the loop (as a role), the objects, the tasks and calls it submitted, and what it executes.
// runtime/api is a typed skin over this.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/base/id_map.h"
#include "runtime/base/limits.h"
#include "runtime/base/token.h"
#include "runtime/base/unique_fd.h"
#include "runtime/store/door.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"
#include "runtime/wire/printed_names.h"
#include "runtime/worker/actor_call_machine.h"
#include "runtime/worker/execution.h"
#include "runtime/worker/lineage_table.h"
#include "runtime/worker/object.h"
#include "runtime/worker/peer_pool.h"
#include "runtime/worker/reference_machine.h"
#include "runtime/worker/role.h"
#include "runtime/worker/stream.h"
#include "runtime/worker/submit_machine.h"

namespace argosy::worker {

struct ExecutionOutput;

// What an executed function is given and gives back. Runs on a thread that may block.
struct ExecutionInput {
  bool is_constructor = false;
  bool is_call = false;
  SharedText function;
  std::vector<ValueBytes> arguments;
  bool split = false;                  // a result for each element of the returned tuple
  const std::vector<std::string>* retry_exceptions = nullptr;
  // Generators: sends one value to the owner, waits while there is no room. CANCELLED: stop, nobody wants more.
  std::function<absl::Status(OutgoingValue value)> emit;
  // Calls: makes the function that takes the result of one that is suspended; any thread of the actor may call that one. Few calls are
  // coroutines: it is not made for the others.
  std::function<std::function<void(ExecutionOutput output)>()> make_finish;
};
struct ExecutionOutput {
  std::vector<OutgoingValue> results;
  std::optional<wire::ErrorInfo> error;
  // The actor ends itself after this call and those that run beside it, or also those that it has received.
  enum Exit { kNo, kAfterCalls, kAfterQueue } exit_actor = kNo;
  bool retry = false;                  // `error` is one of `retry_exceptions`
  bool suspended = false;              // the result comes, or came, by `make_finish`
};
using Executor = std::function<ExecutionOutput(ExecutionInput&)>;

struct CoreOptions {
  bool is_driver = false;
  WorkerId worker;
  std::string node_socket;
  Token token;
  std::string tcp_host = "127.0.0.1";  // to listen on
  std::string tcp_advertised;          // how others reach it; empty: tcp_host
  uint16_t tcp_port_min = 0;           // 0: any free port
  uint16_t tcp_port_max = 0;
  std::string worker_socket;           // to listen on
  uint64_t startup_number = 0;         // workers
  std::string submission_id;           // drivers, as the job's environment has it
  std::string entrypoint;
  std::string ns;
  // Drivers: what workers print, on the loop; must not wait. None: it is not wanted.
  std::function<void(JobPrints prints)> printed;
  // This process's metrics when they have changed since the last call; any thread. None: there are none.
  std::function<bool(ProcessMetrics* metrics)> metrics;
  wire::CodePackage code;              // what this job's workers run; an empty `source_address` is filled in
  Executor executor;
  uint64_t lineage_bytes_max = kLineageBytesMax;   // of finished tasks that are kept, so that lost results can be made again
};

// Of a worker process, beside what the submitter's own has.
struct RuntimeEnv {
  std::map<std::string, std::string> env_vars;
  std::string working_dir_uri;         // "gcs://NAME"; empty: the submitter's
  std::vector<std::string> loader_path;   // before the submitter's
  bool IsEmpty() const { return env_vars.empty() && working_dir_uri.empty() && loader_path.empty(); }
};

struct TaskRequest {
  SharedText function;
  SharedText readable;
  wire::Demand demand;
  RuntimeEnv env;                      // of its worker
  int max_retries = 3;
  absl::Duration deadline = absl::InfiniteDuration();   // to be placed
  uint32_t returns = 1;
  bool split = false;                  // the returns are the elements of one tuple
  std::vector<std::string> retry_exceptions;
  std::shared_ptr<StreamState> stream; // generators
};
struct CallRequest {
  SharedText function;
  SharedText readable;
  uint32_t returns = 1;
  bool split = false;
  std::shared_ptr<StreamState> stream;
  SharedText concurrency_group;
};
// The handles of what a task or call returns.
using Returns = absl::InlinedVector<CellPtr, 1>;
struct OutgoingArgument {
  CellPtr ref;                         // resolved before the call; else `value`
  OutgoingValue value;
};
struct ActorRequest {
  wire::ActorSpec spec;                // without ids, arguments, code, owner and job
  RuntimeEnv env;                      // as a task's
  bool acknowledged = false;           // wait for the head's answer
};

struct CancelRequest { bool force = false; bool children = true; };

// What a wait ended with.
struct Fetched {
  enum Kind { kValue, kError, kTimeout } kind = kTimeout;
  ValueBytes value;
  wire::ErrorInfo error;
};

struct ChannelEnd { UniqueFd fd; std::string unread; };

class Core : public std::enable_shared_from_this<Core> {
 public:
  // Connects to the node daemon and registers.
  static absl::StatusOr<std::shared_ptr<Core>> Start(CoreOptions options);
  ~Core();
  // Drivers: leaves the cluster; what was not finished is lost. Handles that still exist do nothing from then on.
  void Shutdown();
  // Workers: runs tasks until told to leave, then ends the process.
  [[noreturn]] void Serve();

  // ---- any thread, not on the loop; these may wait ----
  absl::StatusOr<Returns> SubmitTask(const TaskRequest& request, std::vector<OutgoingArgument> arguments);
  absl::StatusOr<Returns> SubmitCall(ActorId actor, const CallRequest& request, std::vector<OutgoingArgument> arguments);
  absl::StatusOr<ActorId> CreateActor(ActorRequest request, std::vector<OutgoingArgument> arguments);
  absl::StatusOr<CellPtr> Put(OutgoingValue value);
  Fetched Fetch(const CellPtr& cell, absl::Time deadline) { return FetchState(cell, deadline, true); }
  // The first `count` that are there. Error: the calling task was cancelled.
  absl::StatusOr<std::vector<bool>> Wait(const std::vector<const CellPtr*>& cells, size_t count, absl::Time deadline);
  void Cancel(const CellPtr& cell, CancelRequest request);
  // The next value of a stream; `end` is the return of its task.
  StreamNext Next(const std::shared_ptr<StreamState>& stream, const CellPtr& end, absl::Time deadline);
  // Nobody reads it any more: its task is cancelled.
  void CloseStream(const std::shared_ptr<StreamState>& stream, const CellPtr& end);
  absl::Status KillActor(ActorId actor, bool no_restart, const std::string& reason);
  // One more handle of an object; `owner` as it was decoded beside the id.
  CellPtr MakeHandle(ObjectId object, const wire::WorkerAddress& owner);
  // The same for a ref inside the value of an object, counted when it is first used; until then `leans_on` keeps that object, and so this one.
  CellPtr MakeLeaningHandle(ObjectId object, std::shared_ptr<const wire::WorkerAddress> owner, std::shared_ptr<const void> leans_on);

  // A request to the node daemon whose answer may be awaited later, or not at all.
  template <class Reply>
  struct NodeCall { std::atomic<bool> done = false; absl::StatusOr<Reply> reply = absl::UnknownError(""); };
  template <class Message>
  void StartNodeCall(Message message, std::shared_ptr<NodeCall<typename Message::Reply>> call) {
    role_.Do([this, call = std::move(call), message = std::move(message)] {
      NodeRequest(message, [this, call](absl::StatusOr<typename Message::Reply> reply) {
        // What was asked when the daemon died; nobody answers it any more.
        if (absl::IsUnavailable(reply.status()) && (node_connection_ == nullptr || !node_connection_->is_open())) reply = absl::AbortedError(kNodeGone);
        call->reply = std::move(reply);
        call->done.store(true, std::memory_order_release);
      });
    });
  }
  // False at the deadline.
  template <class Reply>
  bool AwaitNodeCall(const NodeCall<Reply>& call, absl::Time deadline = absl::InfiniteFuture()) {
    auto done = [&] { return call.done.load(std::memory_order_acquire); };
    return done() || role_.Await(done, deadline);
  }
  // The package of a folder of this host as it was when it was first asked for: sent to the head then.
  absl::StatusOr<std::string> PackageOf(const std::string& folder);
  // Of all that is submitted from now on. Before the first.
  void UseEnvironment(const RuntimeEnv& env);
  template <class Message>
  absl::StatusOr<typename Message::Reply> CallNode(Message message, absl::Time deadline = absl::InfiniteFuture()) {
    auto call = std::make_shared<NodeCall<typename Message::Reply>>();
    StartNodeCall(std::move(message), call);
    if (!AwaitNodeCall(*call, deadline)) return absl::DeadlineExceededError("the node daemon did not answer in time");
    return std::move(call->reply);
  }

  // A stream from another worker that opened a channel of this name; empty at the deadline.
  std::optional<ChannelEnd> AcceptChannel(const std::string& name, absl::Time deadline);
  absl::StatusOr<ChannelEnd> OpenChannel(const wire::WorkerAddress& peer, const std::string& name, absl::Time deadline);

  // ---- what does not change after Start ----
  const wire::WorkerAddress& address() const { return address_; }
  const wire::WorkerRegistered& node() const { return node_; }
  const std::string& ns() const { return node_.ns; }

  // ---- of the calling thread's call, when it is a coroutine of an actor ----
  bool can_suspend() const;
  // Runs `go_on` on a thread of the call's lane once all are there, the time has come, or the call is cancelled.
  void ResumeWhenReady(const std::vector<CellPtr>& cells, std::function<void()> go_on);
  void ResumeAfter(absl::Duration delay, std::function<void()> go_on);

  // ---- of the calling thread's task ----
  void Sleep(absl::Duration time);              // less when it is cancelled
  TaskId current_task() const;
  bool current_cancelled() const;
  // The W3C traceparent of the calling thread's task, or the one that was set for this thread; empty: none.
  std::string current_trace() const;
  static void SetTrace(std::string traceparent);
  // Metrics have changed: they are sent soon. Any thread.
  void MetricsChanged();
  ActorId actor() const;
  uint64_t incarnation() const;
  std::vector<uint32_t> gpu_ids() const;

 private:
  friend class Cell;
  using CodePointer = std::shared_ptr<const wire::CodePackage>;
  struct TaskRecord {
    wire::PushTask message;                         // as it is sent; the arguments: refs as given until it may run
    wire::TaskSpec& spec = message.spec;
    std::vector<CellPtr> held;                      // the refs in the arguments, while the task may run
    std::vector<std::shared_ptr<ObjectState>> dependencies;
    absl::InlinedVector<std::shared_ptr<ObjectState>, 1> results;
    TaskId parent;                                  // that submitted it; nil: no task did
    std::shared_ptr<StreamState> stream;            // generators
    wire::Demand demand;                            // tasks; without locality and priority, so that it is the same for its shape
    CodePointer code;                               // tasks with environment variables of their own
    absl::Duration deadline = absl::InfiniteDuration();
    SubmitMachine::Asked asked;
    bool cancelled = false;
    int64_t submitted_us = 0;                       // since the epoch
    bool reported = false;                          // that it waits
  };
  struct ShapeDemand { wire::Demand demand; absl::Duration deadline; NodeId near; CodePointer code; };
  struct LeaseRecord { wire::LeaseGrant grant; bool asking_fate = false; std::vector<std::pair<TaskId, uint32_t>> unanswered; };
  // Unanswered calls to one actor, and what happens when there are too many. Any thread.
  struct PendingCalls {
    std::atomic<int64_t> count = 0;
    std::atomic<int64_t> max = 0;                   // 0: the default
    std::atomic<bool> fail_when_full = false;
  };
  struct ActorRecord {
    explicit ActorRecord(std::string readable) : machine(std::move(readable)) {}
    ActorCallMachine machine;
    bool creating = false;
    std::optional<absl::Time> unknown_since;        // the head does not know it (yet)
    std::optional<uint64_t> wanted;                 // a resolve that waits for the creation
    std::vector<CellPtr> held;                      // refs in the constructor's arguments: a restart needs them again
    PendingCalls* pending = nullptr;
  };
  struct CallerState {                              // of an actor's caller
    uint64_t next = 0;
    std::map<uint64_t, std::shared_ptr<Execution>> early;
  };
  struct PreparedArguments {
    std::vector<wire::Argument> arguments;
    std::vector<CellPtr> held;
    std::vector<std::shared_ptr<ObjectState>> dependencies;
  };
  using AttemptKey = std::pair<TaskId, uint32_t>;
  struct AttemptHash {
    size_t operator()(const AttemptKey& key) const { return IdHash::Mix(key.first.Hash() + key.second); }
  };

  explicit Core(CoreOptions options);
  absl::Status Open();
  void Accept(std::shared_ptr<wire::Connection> connection);
  void OnNodeRequest(wire::Call call);
  void OnNodeNotice(wire::Method method, const std::string& body);
  void OnNodeClosed(const absl::Status& why);
  void OnWorkerRequest(wire::Call call);
  void OnWorkerNotice(wire::Connection& connection, wire::Method method, const std::string& body);
  [[noreturn]] void LeaveProcess(const std::string& why);

  // ABORTED from then on: the process has its objects, leases and connections to others through its daemon, and goes to no other.
  static constexpr char kNodeGone[] = "the node daemon of this process is gone, and what it had there: connect anew";
  template <class Message, class Done>
  void NodeRequest(const Message& message, Done done) {
    if (node_connection_ == nullptr) return loop_.Post([done = std::move(done)] { done(absl::AbortedError(kNodeGone)); });
    node_connection_->Request(message, std::move(done));
  }
  template <class Message>
  void NodeNotify(const Message& message) {
    if (node_connection_ != nullptr) node_connection_->Notify(message);
  }
  // Is a worker dead? Asks until the answer is known; a node that is lost counts.
  void AskFate(const wire::WorkerAddress& worker, std::function<void(const wire::WorkerFateReply&)> done);
  void After(absl::Duration delay, std::function<void()> function);

  // objects (core_objects.cc)
  std::shared_ptr<ObjectState> StateOf(ObjectId object, const wire::WorkerAddress& owner);
  std::shared_ptr<ObjectState> FindState(ObjectId object);
  CellPtr NewOwned(ObjectId object);
  void AdoptLater(std::shared_ptr<ObjectState> state, std::shared_ptr<const void> keep_until_then = nullptr);
  // Without the count, which Adopt adds on the loop.
  CellPtr NewUncounted(ObjectId object, const wire::WorkerAddress& owner);
  void Adopt(const std::shared_ptr<ObjectState>& state);
  void DropHandle(ObjectId object);
  void Apply(ReferenceMachine::Effects effects);
  void WhenReady(const std::shared_ptr<ObjectState>& state, std::function<void()> function);
  void StartFetch(const std::shared_ptr<ObjectState>& state);
  void SetInline(ObjectState& state, std::shared_ptr<const std::string> bytes, std::vector<wire::Reference> references, bool registered);
  void SetStored(ObjectState& state, std::vector<wire::ObjectLocation> locations, std::vector<wire::Reference> references, bool registered);
  void SetError(ObjectState& state, wire::ErrorInfo error);
  void BecomeReady(ObjectState& state, int status);
  void DeleteStored(ObjectId object, std::vector<wire::ObjectLocation> locations);
  void OnGetOwned(wire::Call call);
  void AnswerWhenReady(wire::Call call, const std::shared_ptr<ObjectState>& state, double wait_seconds);
  void AnswerOwned(wire::Call& call, const ObjectState& state);
  Fetched FetchState(const CellPtr& cell, absl::Time deadline, bool blocks);
  // `tried`: where it should have been.
  absl::StatusOr<std::shared_ptr<const void>> PinStored(ObjectState& state, absl::Time deadline, std::string_view* bytes,
                                                        std::vector<wire::ObjectLocation>* tried);
  absl::StatusOr<wire::ObjectLocation> Store(ObjectId object, const OutgoingValue& value, size_t size, const wire::WorkerAddress& owner);
  absl::StatusOr<PreparedArguments> Prepare(std::vector<OutgoingArgument> arguments);

  // lost objects (core_lineage.cc)
  void KeepLineage(const std::shared_ptr<TaskRecord>& record, int retries_left, uint32_t attempt);
  void Apply(const LineageTable::Effects& effects, ReferenceMachine::Effects& references);
  std::string WhyNotRebuildable(const ObjectState& state) const;
  void Unready(ObjectState& state);
  void Unreadable(const std::shared_ptr<ObjectState>& state, const std::vector<wire::ObjectLocation>& tried, bool missing,
                  std::function<void()> done);
  void DropLocations(const std::shared_ptr<ObjectState>& state, const std::vector<wire::ObjectLocation>& gone, const char* how);
  void OnObjectMoved(wire::Call call);
  void Rebuild(const std::shared_ptr<ObjectState>& lost, const std::string& what);
  void RunAgain(std::shared_ptr<TaskRecord> record, std::vector<std::shared_ptr<ObjectState>>& wanted);

  // tasks and calls of this process (core_submit.cc)
  // A new record with its returns' handles.
  template <class Request>
  std::shared_ptr<TaskRecord> NewRecord(const Request& request, PreparedArguments prepared, Returns& handles);
  void Begin(std::shared_ptr<TaskRecord> record);
  // This process's code in another environment: a package of its own, since its workers are others. Null when nothing of it differs.
  CodePointer CodeWith(const RuntimeEnv& env);
  SubmitMachine::ShapeId ShapeOf(const TaskRecord& record);
  // With the values that are here put in place of their refs.
  std::vector<wire::Argument> FinalArguments(const std::vector<wire::Argument>& arguments);
  // Runs `ready` once every one of them is there; with the first error among them.
  void WhenAllReady(const std::vector<std::shared_ptr<ObjectState>>& dependencies, UniqueFunction<void(const wire::ErrorInfo* error)> ready);
  void Apply(SubmitMachine::Effects effects);
  void RequestLease(const SubmitMachine::Request& request);
  void SendPush(LeaseId lease, TaskId task, uint32_t attempt);
  void OnPushReply(LeaseId lease, TaskId task, uint32_t attempt, absl::StatusOr<wire::TaskReply> reply);
  void OnLeaseBroken(LeaseId lease);
  void Complete(TaskRecord& record, const wire::WorkerAddress& callee, wire::TaskReply reply);
  void FailTask(TaskId task, const wire::ErrorInfo& error);
  void EndTask(TaskId task);
  void CancelRecord(const std::shared_ptr<TaskRecord>& record, CancelRequest request);
  void ArmTick();
  PendingCalls& PendingOf(ActorId actor);
  ActorRecord& ActorOf(ActorId actor, const std::string& readable = {});
  void Apply(ActorId actor, ActorCallMachine::Effects effects);
  void Resolve(ActorId actor, uint64_t incarnation_min);
  void SendCall(ActorId actor, const ActorCallMachine::Send& send);
  void OnCallReply(ActorId actor, TaskId task, uint64_t incarnation, absl::StatusOr<wire::TaskReply> reply);

  // streams, both ends (core_stream.cc)
  void OnStreamItem(wire::Call call);
  void AnswerRoom(StreamState& stream);
  absl::Status Emit(const std::shared_ptr<Execution>& execution, OutgoingValue value);
  void SendItem(const std::shared_ptr<Execution>& execution, const wire::StreamItem& message);
  // Until the owner has all that was sent, or wants no more.
  void AwaitEmitted(Execution& execution);

  // what this process executes (core_execute.cc)
  void OnPush(wire::Call call);
  void OnBecomeActor(wire::Call call);
  void OnCancel(const wire::CancelTask& cancel);
  void EnterInOrder(std::shared_ptr<Execution> execution);
  void Enqueue(std::shared_ptr<Execution> execution);
  Lane& MainLane();
  // Null when the call names a group that the actor has not.
  Lane* LaneOf(const wire::TaskSpec& spec);
  bool HasWork(const Lane& lane) const;
  std::shared_ptr<Execution> TakeNext(Lane& lane);
  void RunExecutions(Lane& lane);
  void Execute(const std::shared_ptr<Execution>& execution);
  // After Run, or when a suspended call has its result.
  void Deliver(const std::shared_ptr<Execution>& execution, ExecutionOutput output);
  void GoOn(const std::shared_ptr<Execution>& execution);
  // `wait` is told what to call when the wait is over.
  void Suspend(std::function<void()> go_on, std::function<void(std::function<void()> over)> wait);
  void LeaveWhenIdle();
  ExecutionOutput Run(const std::shared_ptr<Execution>& execution);
  // Result `index` as it travels: in the message, or in this node's store. Its refs move to `refs`.
  absl::StatusOr<wire::ReturnValue> MakeReturn(const Execution& execution, uint32_t index, OutgoingValue value, std::vector<CellPtr>& refs);
  // Registers the caller for the refs in what goes to it.
  void PassRefs(const Execution& execution, const std::vector<wire::ReturnValue>& values, std::vector<CellPtr> refs);
  void Finish(const std::shared_ptr<Execution>& execution, wire::TaskReply reply, std::vector<CellPtr> refs);
  void AnswerExecution(Execution& execution, const wire::TaskReply& reply);
  void HandBackQueued();
  // False when it has started, or is not in the queue yet.
  bool TakeFromQueue(const Execution& execution);
  void ArmLongRunning();
  void KeepReply(const AttemptKey& key, std::string body);
  void NotePrinter(const Execution& execution);
  // what this process tells about itself (core_observe.cc)
  void NoteStart(Execution& execution);
  void NoteStop(Execution& execution);
  void NotePrinted();
  TaskEvent EventOf(const Execution& execution) const;
  TaskEvent EventOf(const TaskRecord& record) const;
  static void FillTrace(TaskEvent& event, const std::string& traceparent);
  static const Execution* CurrentExecution();
  void ReportSubmitted(TaskRecord& record);
  void ReportFailed(const TaskRecord& record, const wire::ErrorInfo& error);
  void ReportEnded(const TaskRecord& record);
  void ReportEnd(const Execution& execution, const std::optional<wire::ErrorInfo>& error);
  void ArmReports();
  void SendReports();
  void SendMetrics();
  void OnListReferences(wire::Call call);
  void OnDumpStacks(wire::Call call);
  // Around a wait of a running task.
  void EnterBlocked();
  void LeaveBlocked();
  bool AwaitBlocking(const std::function<bool()>& done, absl::Time deadline);
  // Waits while as many calls are unanswered as may be. CANCELLED when the caller was cancelled meanwhile.
  absl::Status AwaitRoom(const std::atomic<int64_t>& pending, int64_t pending_max);

  CoreOptions options_;
  async::Loop loop_;
  wire::Outbox outbox_;                                                 // the loop's
  LoopRole role_{loop_, {.before_sleep = [this] { outbox_.Flush(); }, .after_operation = [this] { outbox_.FlushDue(); }}};
  wire::WorkerAddress address_;
  wire::WorkerRegistered node_;
  std::unique_ptr<store::ArenaMapping> arena_;
  std::mutex arena_mutex_;
  std::atomic<bool> closed_ = false;

  // Loop only, unless noted.
  std::unique_ptr<wire::Listener> unix_listener_;
  std::unique_ptr<wire::Listener> tcp_listener_;
  std::shared_ptr<wire::Connection> node_connection_;
  std::atomic<bool> node_gone_ = false;
  std::unique_ptr<PeerPool> peers_;
  std::unordered_map<uint64_t, std::unique_ptr<async::Timer>> timers_;
  uint64_t next_timer_ = 0;
  IdMap<WorkerId, NodeId> nodes_of_workers_;
  std::vector<std::weak_ptr<wire::Connection>> accepted_;

  std::mutex states_mutex_;
  IdMap<ObjectId, std::shared_ptr<ObjectState>> states_;   // under states_mutex_
  ReferenceMachine references_;
  LineageTable lineage_;

  std::atomic<int64_t> pending_tasks_ = 0;
  SubmitMachine submit_;
  std::vector<ShapeDemand> shape_demands_;                              // by shape
  SubmitMachine::ShapeId last_shape_ = 0;
  IdMap<TaskId, std::shared_ptr<TaskRecord>> tasks_;
  std::unordered_map<TaskId, std::shared_ptr<TaskRecord>> kept_;         // ended; those that the lineage table knows
  std::unordered_map<LeaseId, LeaseRecord> leases_;
  std::unordered_map<uint64_t, std::string> lease_requests_;            // number -> id on the wire
  std::unique_ptr<async::Timer> tick_;
  absl::Time tick_at_ = absl::InfiniteFuture();
  std::mutex code_mutex_;
  std::map<std::string, CodePointer> code_with_;   // by the encoded environment
  std::map<std::string, std::string> uploaded_;    // folders by their packages
  std::mutex actors_mutex_;                                             // for the pending counters only
  IdMap<ActorId, std::unique_ptr<ActorRecord>> actors_;
  IdMap<ActorId, std::unique_ptr<PendingCalls>> pending_calls_;   // under actors_mutex_

  mutable std::mutex queue_mutex_;
  std::deque<Lane> lanes_;                                              // the first is for what has no group; fixed once an actor runs
  std::map<std::string, Lane*> lane_of_method_;                         // by wire name
  std::atomic<int> unfinished_ = 0;                                     // started executions without a result
  std::atomic<bool> stopping_ = false;
  std::string stop_reason_;
  absl::flat_hash_map<AttemptKey, std::shared_ptr<Execution>, AttemptHash> executing_;
  absl::flat_hash_map<AttemptKey, std::string, AttemptHash> replies_;
  std::deque<AttemptKey> reply_order_;
  size_t reply_bytes_ = 0;
  std::unordered_map<WorkerId, CallerState> callers_;
  int blocked_ = 0;
  std::atomic<int> running_ = 0;
  ExecutionOutput::Exit leaving_ = ExecutionOutput::kNo;
  bool long_running_armed_ = false;
  std::vector<std::thread> extra_threads_;
  mutable std::mutex identity_mutex_;
  ActorId actor_;                                                       // under identity_mutex_, as the next two
  uint64_t incarnation_ = 0;
  std::vector<uint32_t> gpu_ids_;

  std::vector<TaskEvent> events_;                                       // to be sent
  std::vector<TaskId> submitted_;                                       // since the last report
  uint64_t events_dropped_ = 0;
  bool reports_armed_ = false;
  bool metrics_armed_ = false;
  std::shared_ptr<Execution> constructing_;
  std::atomic<bool> events_full_ = false;                               // nothing more is told in this period
  std::atomic<bool> printed_stale_ = false;                             // the next two are older than the last execution
  std::atomic<uint64_t> printed_out_ = 0;                               // bytes, when the last execution ended
  std::atomic<uint64_t> printed_error_ = 0;
  std::thread stack_thread_;
  bool stacks_done_ = true;
  // Of the thread that runs plain tasks, or constructed the actor.
  std::optional<wire::PrintedNames> printed_names_;
  std::string printer_;

  std::mutex channels_mutex_;
  std::map<std::string, std::deque<ChannelEnd>> channels_;              // under channels_mutex_
  std::atomic<uint64_t> channels_arrived_ = 0;
};

// Text for errors: what failed where.
wire::ErrorInfo MakeError(wire::ErrorInfo::Kind kind, std::string message);

}  // namespace argosy::worker
