#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/base/resources.h"
#include "runtime/node/types.h"
#include "runtime/node/worker_pool.h"
#include "runtime/wire/messages.h"
#include "scheduler/demand.h"
#include "scheduler/ledger.h"

namespace argosy::node {

// What comes in. Ids that a grant may need are chosen by the sender, so that the machine stays repeatable.

// A worker or driver of this node asks for a lease.
struct LeaseAsked {
  std::string request_id;
  WorkerId holder;
  JobId job;
  wire::Demand demand;             // as it came, for the head
  scheduler::Demand parsed;
  wire::CodePackage code;
  absl::Time deadline = absl::InfiniteFuture();
  LeaseId new_lease;
  WorkerId new_worker;
  bool head_was_asked = false;     // the machine's: the head knows of it, and may have granted it
  uint64_t number = 0;             // the machine's: as they came
};
struct LeaseCancelled { std::string request_id; };
// How the head answered a forwarded request.
struct ForwardAnswered { std::string request_id; absl::StatusOr<wire::LeaseGrant> grant; };
// The head grants from our ledger.
struct HeadGrants { GrantLease grant; scheduler::Demand parsed; WorkerId new_worker; };
struct LeaseReturned { LeaseId lease; bool worker_failed = false; };
struct RecallAsked { LeaseId lease; };
struct ContendedSet { bool contended = false; int job_priority = 0; };   // the highest that waits
struct HeadSet { bool connected = false; };
struct WorkerRegistered { WorkerId worker; wire::WorkerAddress address; };
struct WorkerEnded { WorkerId worker; std::string reason; bool environment_failed = false; };
struct WorkerBlockedSet { WorkerId worker; bool blocked = false; };
struct ActorAsked { StartActor start; scheduler::Demand parsed; ResourceSet held; WorkerId new_worker; };
struct ActorConstructed { ActorId actor; uint64_t incarnation = 0; std::string error; };   // empty: it runs
struct ActorStopAsked { StopActor stop; };
struct ActorExitAnnounced { WorkerId worker; std::string reason; };
struct HolderGone { WorkerId holder; };
struct JobGone { JobId job; std::string reason; };
struct BundleReturned { scheduler::BundleKey bundle; };
struct Tick {};

using LeaseEvent = std::variant<LeaseAsked, LeaseCancelled, ForwardAnswered, HeadGrants, LeaseReturned, RecallAsked, ContendedSet, HeadSet,
                                WorkerRegistered, WorkerEnded, WorkerBlockedSet, ActorAsked, ActorConstructed, ActorStopAsked,
                                ActorExitAnnounced, HolderGone, JobGone, BundleReturned, Tick>;

// What goes out.
struct SpawnWorker { WorkerId worker; JobId job; wire::CodePackage code; std::vector<uint32_t> gpu_ids; };
struct AnswerRequest { std::string request_id; absl::StatusOr<wire::LeaseGrant> grant; };
struct ForwardRequest { LeaseAsked request; };
// Tells the head that nobody wants what it grants for the request, or has granted.
struct WithdrawForwarded { std::string request_id; };
struct AnswerHead { LeaseResult result; };
// Gives back a lease that the head placed for a holder of this node.
struct ReturnForwarded { LeaseId lease; NodeId node; bool worker_failed = false; };
struct TellRecalled { WorkerId to; LeaseId lease; bool when_idle = false; };
struct ConstructActor { WorkerId worker; wire::ActorSpec spec; uint64_t incarnation = 0; std::vector<uint32_t> gpu_ids; };
struct ReportStarted { ActorStarted started; };
struct ReportEnded { ActorEnded ended; };
struct KillWorker { WorkerId worker; std::string reason; };
struct RetireWorker { WorkerId worker; std::string reason; };   // idle: asked to leave

using LeaseEffect = std::variant<SpawnWorker, AnswerRequest, ForwardRequest, WithdrawForwarded, AnswerHead, ReturnForwarded, TellRecalled,
                                 ConstructActor, ReportStarted, ReportEnded, KillWorker, RetireWorker>;

struct LeaseMachineOptions {
  NodeId node;
  ResourceSet total;
  std::map<std::string, std::string> labels;
  absl::Duration worker_start_timeout = absl::Seconds(60);
  absl::Duration worker_idle_timeout = absl::Seconds(60);
  size_t waiting_max = 100'000;
  size_t workers_max = 4096;
};

// Who uses the node's resources and workers.
//
// A local request is granted here when it fits now and nothing in it needs the head; else it is forwarded, and the head grants from some
// node's ledger (HeadGrants). While requests of this node that could run here wait at the head newer ones do not overtake them, and what
// becomes free here goes to them at once: the head, which has others to think of, is only told. Unless it has marked the node contended: then
// others have waited for long enough, or are of a job with a higher priority, and it alone grants. Without a head they wait here. Leases are
// recalled when the head says so, when the node is contended (those granted here), or when requests wait here; never for jobs of less priority.
//
//   request --fits--> starting (or an idle worker) --registered--> held --returned, recalled, died--> gone
//       `--else--> forwarded --granted, refused--> answered
//                      `--something is free here--> starting
//
// Thread:   its owner's.
// Failure:  events for unknown ids change nothing.
class LeaseMachine {
 public:
  explicit LeaseMachine(LeaseMachineOptions options);

  std::vector<LeaseEffect> Step(const LeaseEvent& event, absl::Time now);

  // The entrypoint of a job that asked for resources: its GPUs.
  absl::StatusOr<std::vector<uint32_t>> GrantEntrypoint(LeaseId lease, const scheduler::Demand& demand);
  std::vector<LeaseEffect> ReleaseEntrypoint(LeaseId lease, absl::Time now);

  scheduler::NodeLedger& ledger() { return ledger_; }
  const scheduler::NodeLedger& ledger() const { return ledger_; }
  const WorkerPool& pool() const { return pool_; }
  std::vector<HeldLease> HeldLeases() const;
  // Leases of the head's that were returned here since the last call: it does not hear of them otherwise.
  std::vector<LeaseId> TakeEnded() { return std::exchange(ended_, {}); }
  std::vector<HeldActor> HeldActors() const;
  // Workers with what they are used for; not those that are starting.
  struct InUse { WorkerId worker; JobId job; bool retriable = true; absl::Time since; };
  std::vector<InUse> WorkersInUse() const;
  // Requests of this node that wait, here or at the head.
  size_t waiting() const { return waiting_.size() + forwarded_.size(); }
  bool contended() const { return contended_; }

 private:
  enum class Source { kLocal, kHead, kActor, kEntrypoint };
  struct Lease {
    LeaseId id;
    Source source = Source::kLocal;
    JobId job;
    WorkerId holder;
    WorkerId worker;
    bool held = false;                 // the worker is there and the lease was answered
    bool recalled = false;
    bool wanted = false;               // its holder knows that others wait
    std::string local_request;         // kLocal
    uint64_t head_request = 0;         // kHead
    ActorId actor;                     // kActor
    std::vector<uint32_t> gpu_ids;
    bool retriable = true;             // what it is for can be run again
    int job_priority = 0;
    absl::Time since;                  // it was granted
  };
  struct Actor {
    wire::ActorSpec spec;
    uint64_t incarnation = 0;
    LeaseId lease;
    WorkerId worker;
    bool alive = false;
    bool stopping = false;
    bool intended = false;
    bool constructor_failed = false;
    std::string reason;
  };
  struct Remote { WorkerId holder; JobId job; NodeId node; };
  struct Context { absl::Time now; std::vector<LeaseEffect> effects; };

  void On(const LeaseAsked& event, Context& context);
  void On(const LeaseCancelled& event, Context& context);
  void On(const ForwardAnswered& event, Context& context);
  void On(const HeadGrants& event, Context& context);
  void On(const LeaseReturned& event, Context& context);
  void On(const RecallAsked& event, Context& context);
  void On(const ContendedSet& event, Context& context);
  void On(const HeadSet& event, Context& context);
  void On(const WorkerRegistered& event, Context& context);
  void On(const WorkerEnded& event, Context& context);
  void On(const WorkerBlockedSet& event, Context& context);
  void On(const ActorAsked& event, Context& context);
  void On(const ActorConstructed& event, Context& context);
  void On(const ActorStopAsked& event, Context& context);
  void On(const ActorExitAnnounced& event, Context& context);
  void On(const HolderGone& event, Context& context);
  void On(const JobGone& event, Context& context);
  void On(const BundleReturned& event, Context& context);
  void On(const Tick& event, Context& context);

  // Could this node serve it, once something is free? Neither the time nor the head's wishes are asked.
  bool BelongsHere(const scheduler::Demand& demand) const;
  absl::StatusOr<scheduler::Granted> Grant(LeaseId lease, const scheduler::Demand& demand);
  // Grants here or returns false.
  bool TryGrantHere(const LeaseAsked& request, Context& context);
  // The same for one that comes first: nobody else is asked.
  bool GrantHere(const LeaseAsked& request, Context& context);
  void ForwardOrWait(const LeaseAsked& request, Context& context);
  // Behind those that asked before, except behind ones of its job with less priority and those of jobs with less.
  void WaitHere(LeaseAsked request);
  // Answers a request that waits here no more, and sees that the head keeps nothing for it.
  void EndWaiting(const LeaseAsked& request, absl::Status status, Context& context);
  // All of them, here and at the head.
  void EndWaitingIf(const std::function<bool(const LeaseAsked& request)>& ends, const char* why, Context& context);
  // A worker for a granted lease: an idle one, one that is starting for nobody, or a new one.
  void AttachWorker(Lease lease, const wire::CodePackage& code, WorkerId new_worker, Context& context);
  void AnswerHeld(Lease& lease, Context& context);
  void AnswerFailed(const Lease& lease, const std::string& reason, Context& context, bool environment_failed = false);
  // Gives the resources back and takes the lease out; what becomes of the worker is the caller's.
  Lease Take(LeaseId id);
  void Recall(Lease& lease, Context& context);
  // A request waits that a lease of this node could serve: whoever holds one idle has it back at once.
  void AskForIdle(const LeaseAsked& request, Context& context);
  // `holder` has one more lease; do others wait for one?
  void AskForWaiting(WorkerId holder, Context& context);
  void Kill(WorkerId worker, const std::string& reason, Context& context);
  // Grants waiting requests that now fit.
  void Pump(Context& context);
  // The same for those that wait at the head.
  void PumpForwarded(Context& context);
  LeaseId LeaseOfWorker(WorkerId worker) const;

  LeaseMachineOptions options_;
  scheduler::NodeLedger ledger_;
  WorkerPool pool_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::unordered_map<WorkerId, LeaseId> lease_of_worker_;
  std::unordered_map<ActorId, Actor> actors_;
  std::map<std::string, LeaseAsked> forwarded_;             // by request id
  uint64_t next_number_ = 0;
  std::deque<LeaseAsked> waiting_;                          // only while there is no head
  std::unordered_map<LeaseId, Remote> remote_;              // leases of this node's holders that the head placed
  std::vector<LeaseId> ended_;
  bool contended_ = false;
  bool head_connected_ = false;
};

}  // namespace argosy::node
