#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/clock.h"
#include "runtime/base/limits.h"
#include "runtime/base/prng.h"
#include "runtime/head/actor_machine.h"
#include "runtime/head/job_logs.h"
#include "runtime/head/job_machine.h"
#include "runtime/head/journal.h"
#include "runtime/head/lease_machine.h"
#include "runtime/head/metric_table.h"
#include "runtime/head/node_questions.h"
#include "runtime/head/node_table.h"
#include "runtime/head/placement.h"
#include "runtime/head/task_table.h"
#include "runtime/head/types.h"
#include "scheduler/cluster_view.h"
#include "scheduler/group_machine.h"

namespace argosy::head {

// The way to one node.
class NodeLink {
 public:
  virtual ~NodeLink() = default;
  virtual void Send(const ToNode& message) = 0;
  // Ends the stream once what was sent is out.
  virtual void Close() = 0;
};

struct GroupSpec {
  GroupId id;
  std::string name;
  JobId job;
  bool detached = false;
  scheduler::GroupDemand demand;
};
struct GroupView {
  enum class State { kPending, kCreated, kRemoved, kRescheduling };
  GroupSpec spec;
  State state = State::kPending;
  std::vector<NodeId> nodes;
  std::string pending_reason;
};

struct WorkerFate { bool dead = false; std::string reason; bool node_lost = false; bool out_of_memory = false; };

// What the head knows, and what follows from what happens: hands events to the machines and carries out their effects.
//
// Thread:   the head's loop; callbacks run there.
// Lifetime: between the journal, which outlives it, and the services, which do not.
// Failure:  what a peer says is checked by the codec or answered with a status here; nothing trips a CHECK.
class HeadCore {
 public:
  struct Options {
    std::string session_name;
    std::string head_address;
    std::string dashboard_url;
    absl::Duration heartbeat = kHeartbeatPeriod;
    absl::Duration node_timeout = kNodeTimeout;
    absl::Duration job_start_timeout = kJobStartTimeout;
    uint64_t seed = 1;
    uint64_t kv_bytes_max = 1ull << 30;
  };
  template <class T>
  using Done = std::function<void(absl::StatusOr<T>)>;
  using DoneStatus = std::function<void(absl::Status)>;

  HeadCore(Options options, Journal& journal, JobLogs& logs, async::Loop& loop, const Clock& clock);
  ~HeadCore();

  // From the journal, before Start.
  absl::Status Restore(const std::vector<Journal::Row>& rows);
  void Start();

  // ---- nodes
  // Sends Registered or Rejected itself. The epoch to speak with, or the refusal.
  absl::StatusOr<uint64_t> Register(const Registration& registration, std::shared_ptr<NodeLink> link);
  void OnNodeMessage(NodeId node, uint64_t epoch, FromNode message);
  void OnNodeDisconnected(NodeId node, uint64_t epoch);
  const NodeTable& nodes() const { return nodes_; }
  const scheduler::ClusterView& view() const { return view_; }

  // ---- key-value store and packages
  void KvPut(const std::string& name_space, const std::string& key, std::string value, bool overwrite, Done<bool> added);
  const std::string* KvGet(const std::string& name_space, const std::string& key) const;
  void KvDelete(const std::string& name_space, const std::string& key, Done<bool> deleted);
  std::vector<std::string> KvList(const std::string& name_space, const std::string& prefix) const;
  std::optional<uint64_t> FindPackage(const std::string& name) const;
  void PackageStored(const std::string& name, uint64_t size, DoneStatus done);

  // ---- leases
  // `done` runs once, unless the same request is cancelled by this waiter first.
  uint64_t RequestLease(LeaseRequest request, Done<LeaseMachine::Lease> done);
  void CancelLease(const std::string& request, uint64_t waiter);
  void WithdrawLease(const std::string& request);
  void ReturnLease(LeaseId lease, NodeId node, bool worker_failed);

  // ---- actors
  // The result is the actor, or with `get_if_exists` the one that has the name already.
  void CreateActor(ActorRecord actor, bool get_if_exists, Done<ActorId> done);
  struct ResolveActor { ActorId actor; std::string name; std::string name_space; uint64_t incarnation_min = 0; absl::Duration wait; };
  void Resolve(const ResolveActor& resolve, Done<ActorId> done);
  absl::Status KillActor(ActorId actor, bool no_restart, const std::string& reason);
  const ActorMachine& actors() const { return actors_; }
  std::string ActorPendingReason(const ActorRecord& actor) const;

  // ---- placement groups
  void CreateGroup(GroupSpec spec, Done<GroupView> done);
  void WaitGroup(GroupId group, absl::Duration wait, Done<GroupView> done);
  // `done` runs when the journal has it.
  void RemoveGroup(GroupId group, DoneStatus done = nullptr);
  std::vector<GroupView> Groups() const;

  // ---- jobs
  void SubmitJob(JobRecord job, Done<std::string> done);
  const JobMachine& jobs() const { return jobs_; }
  // The default message, with what it waits for.
  std::string JobMessage(const JobRecord& job) const;
  absl::StatusOr<bool> StopJob(const std::string& name);
  void DeleteJob(const std::string& name, DoneStatus done);
  JobLogs& logs() { return logs_; }
  // Runs once at the next change of the job or its log, unless it is taken back.
  uint64_t WatchJob(const std::string& name, std::function<void()> changed);
  void UnwatchJob(const std::string& name, uint64_t watch);

  // ---- what goes on
  // `done` runs once; a node that does not answer within `wait` has an error instead.
  void AskNodes(const std::set<NodeId>& nodes, const NodeQuestion& question, absl::Duration wait, NodeQuestions::Done done);
  std::set<NodeId> ConnectedNodes() const;
  const TaskTable& tasks() const { return tasks_; }
  int64_t NowUnixMicros() const { return absl::ToUnixMicros(clock_.WallNow()); }
  // By id, its first digits, or name. NOT_FOUND, or INVALID_ARGUMENT when several are meant.
  absl::StatusOr<NodeId> FindNode(const std::string& name) const;
  // A part of a log, wherever it is. `kind`: worker, actor, task (what it printed only), node (the daemon's own).
  struct LogRequest { std::string kind; std::string id; bool error_stream = false; uint64_t offset = 0; uint64_t size_max = 0; bool from_end = false; };
  struct LogChunk { std::string data; uint64_t offset = 0; uint64_t end = 0; std::string what; bool may_grow = false; };
  void ReadWorkerLog(const LogRequest& request, Done<LogChunk> done);
  // The node takes nothing new and leaves when nothing runs there any more, or after `wait` (zero: however long it takes); or, with
  // `undo`, works again. FAILED_PRECONDITION for the head's node, where jobs without demands run.
  absl::Status Drain(NodeId node, const std::string& reason, absl::Duration wait, bool undo);
  bool IsDraining(NodeId node) const { return draining_.contains(node); }
  // The cluster's and the users' metrics, in Prometheus' text format.
  std::string MetricsText() const;
  // Where the threads of the worker or driver are whose id begins so.
  void DumpStacks(const std::string& worker, Done<std::string> done);

  // ---- answers
  WorkerFate Fate(WorkerId worker, NodeId node) const;
  std::vector<PendingSummary> Pending() const;
  std::pair<bool, std::string> Explain(const scheduler::Demand& demand) const;
  const std::string& cluster_id() const { return cluster_id_; }
  int64_t started_unix_ms() const { return started_unix_ms_; }
  const Options& options() const { return options_; }
  void SetAddresses(std::string head_address, std::string dashboard_url);

 private:
  struct NodeState {
    std::shared_ptr<NodeLink> link;
    // Orders that end something, kept a while: what was sent into a breaking stream is sent again after the rejoin. All idempotent.
    std::deque<std::pair<absl::Time, ToNode>> endings;
    bool contended = false;
    int contended_for = 0;   // the highest job priority that waits for it
  };
  template <class T>
  struct Waiter { uint64_t incarnation_min = 0; absl::Time deadline; Done<T> done; };

  absl::Time Now() const { return clock_.Now(); }
  int64_t NowMillis() const { return UnixMillis(clock_.WallNow()); }
  void Send(NodeId node, ToNode message);
  void Broadcast(const ToNode& message);

  void On(NodeId node, Heartbeat message);
  void On(NodeId node, ResourceReport message);
  void On(NodeId node, LeaseResult message);
  void On(NodeId node, BundlesPrepared message);
  void On(NodeId node, BundlesCommitted message);
  void On(NodeId node, ActorStarted message);
  void On(NodeId node, ActorEnded message);
  void On(NodeId node, WorkerDied message);
  void On(NodeId node, DriverJoined message);
  void On(NodeId node, DriverLeft message);
  void On(NodeId node, JobStarted message);
  void On(NodeId node, JobStartFailed message);
  void On(NodeId node, JobExited message);
  void On(NodeId node, JobLogBytes message);
  void On(NodeId node, CarriedPrints message);
  void On(NodeId node, FlushPrints message);
  void On(NodeId node, NodeAnswer message);
  void On(NodeId node, TaskEventsReport message);
  void On(NodeId node, CarriedMetrics message);
  void On(NodeId node, NodeLeft message);
  struct LogPlace {
    std::set<NodeId> nodes;                 // one of these has it
    std::string worker;                     // hex, or its first digits; empty: the daemon's own
    std::string what;
    uint64_t begin = 0;                     // bytes of its file
    std::optional<uint64_t> end;            // none: the file's
  };
  absl::StatusOr<LogPlace> FindLog(const LogRequest& request) const;

  void Run(std::vector<LeaseEffect> effects);
  void Run(std::vector<ActorEffect> effects);
  void Run(std::vector<JobEffect> effects);
  void Run(std::vector<scheduler::GroupEffect> effects);
  void StepJobs(const JobEvent& event) { Run(jobs_.Step(event, NowMillis())); }
  void StepLeases(const LeaseEvent& event) { Run(leases_.Step(event, Now())); }
  void StepActors(const ActorEvent& event) { Run(actors_.Step(event)); }
  void StepGroups(const scheduler::GroupEvent& event) { Run(groups_.Step(event, view_, prng_, Now())); }

  void AddToView(const NodeDescription& description, const ResourceSet& available);
  void LoseNode(NodeId node);
  void EndJob(JobId job, const std::string& reason);
  // Jobs that have actors or groups and no driver: it ended while the head was away, or what they have was made after its end.
  void EndOrphanedJobs();
  void AnswerLease(const std::string& request, const absl::StatusOr<LeaseMachine::Lease>& result);
  void AnswerActorWaiters(ActorId actor, bool all_overdue);
  void AwaitGroup(GroupId group, absl::Duration wait, Done<GroupView> done);
  void AnswerGroupWaiters(GroupId group, bool all_overdue);
  void NotifyJob(const std::string& name);
  void PlaceHeadNodeJobs();
  void SaveNode(NodeId node);
  absl::StatusOr<GroupView> ViewGroup(GroupId group) const;
  void FinishGroup(GroupId group);
  absl::Status RestoreGroups(const std::vector<Journal::Row>& rows);

  // Places what can be placed, soon; many events make one pass.
  void SchedulePass();
  void Pass();
  void Tick();
  // Something waits now: its time is looked at in the usual steps, not in the long ones of a head that has nothing to do.
  void TickSoon();
  void UpdateContention();
  void ArmTimer();

  Options options_;
  Journal& journal_;
  JobLogs& logs_;
  async::Loop& loop_;
  const Clock& clock_;
  Prng prng_;
  std::string cluster_id_;
  int64_t started_unix_ms_ = 0;
  absl::Time started_;

  NodeTable nodes_;
  std::unordered_map<NodeId, NodeState> node_states_;
  scheduler::ClusterView view_;
  Placement placement_;
  LeaseMachine leases_;
  ActorMachine actors_;
  JobMachine jobs_;
  scheduler::GroupMachine groups_;

  std::map<std::pair<std::string, std::string>, std::string> kv_;
  uint64_t kv_bytes_ = 0;
  std::map<std::string, uint64_t> packages_;

  uint64_t next_waiter_ = 1;
  std::map<std::string, std::map<uint64_t, Done<LeaseMachine::Lease>>> lease_waiters_;
  std::multimap<ActorId, Waiter<ActorId>> actor_waiters_;
  std::map<GroupId, GroupSpec> group_specs_;
  uint64_t next_group_order_ = 0;
  bool settling_ = true;                               // nodes of an earlier head may still come back with bundles
  std::multimap<GroupId, Waiter<GroupView>> group_waiters_;
  std::map<NodeId, bool> group_contended_;

  std::set<std::string> head_node_jobs_;               // wait for the head's node
  std::map<std::string, absl::Time> head_node_jobs_since_;
  std::map<std::string, std::map<uint64_t, std::function<void()>>> job_watchers_;
  std::map<JobId, DriverJoined> drivers_;
  std::set<JobId> orphaned_jobs_;                      // found once
  absl::Time next_orphans_ = absl::InfinitePast();
  // How much of a job's prints may pass.
  struct PrintsFlow { double room = 8 << 20; absl::Time at; uint64_t dropped = 0; };
  std::map<JobId, PrintsFlow> prints_flow_;
  NodeQuestions questions_;
  TaskTable tasks_;
  MetricTable metrics_;
  std::map<NodeId, std::string> draining_;             // why
  std::deque<WorkerId> dead_workers_order_;
  std::unordered_map<WorkerId, WorkerDied> dead_workers_;

  bool pass_posted_ = false;
  async::Timer pass_timer_;
  async::Timer tick_timer_;
  bool ticks_slowly_ = false;
};

}  // namespace argosy::head
