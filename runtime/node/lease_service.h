#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/node/client_table.h"
#include "runtime/node/cluster_client.h"
#include "runtime/node/head_link.h"
#include "runtime/node/lease_machine.h"
#include "runtime/node/worker_prints.h"
#include "runtime/node/worker_processes.h"
#include "runtime/store/object_store.h"
#include "runtime/transfer/code_files.h"

namespace argosy::node {

// Carries out what the lease machine decides: starts and ends workers, answers their requests and the head's, reports what is free, and
// remembers which workers are dead.
//
// Thread:   the loop's.
// Lifetime: the parts outlive it; destroying it kills the workers.
// Failure:  as each message says.
class LeaseService {
 public:
  struct Parts {
    async::Loop& loop;
    HeadLink& head;
    ClusterClient& cluster;
    transfer::CodeFiles& code_files;
    PackageCache& packages;
    store::ObjectStore& store;
    ClientTable& clients;
    WorkerPrints& prints;
  };
  LeaseService(Parts parts, LeaseMachineOptions machine, WorkerProcessesOptions processes);
  ~LeaseService();

  // ---- from workers and drivers
  void RequestLease(const Client& client, wire::Call call);
  // The worker of a start-up block; none for a stranger. Its job is the pool's.
  std::optional<WorkerId> CheckRegistration(const wire::RegisterWorker& message);
  // After the worker was answered.
  void OnRegistered(WorkerId worker, const wire::WorkerAddress& address);
  void WorkerFate(wire::Call call);
  // Memory runs short.
  void EndForMemory(WorkerId worker, const std::string& reason) { processes_.Kill(worker, reason, true); }
  void Step(const LeaseEvent& event);

  // ---- from the head
  void OnMessage(const GrantLease& message);
  void OnMessage(const PrepareBundles& message);
  void OnMessage(const CommitBundles& message);
  void OnMessage(const StartActor& message);
  void SetHeadConnected(bool connected);

  // A driver of this node ended: as a worker's end, for those who ask about it.
  void OnDriverEnded(WorkerId driver, JobId job, const std::string& reason);
  // The worker's connection is gone; it has to end soon.
  void OnConnectionLost(WorkerId worker);

  void Apply(const std::vector<LeaseEffect>& effects);
  LeaseMachine& machine() { return machine_; }
  const LeaseMachine& machine() const { return machine_; }
  // What the head is told of the resources.
  ResourceUpdate Resources();
  std::vector<HeldBundle> HeldBundles() const;
  size_t workers() const { return processes_.size(); }
  uint32_t Pid(WorkerId worker) const { return processes_.Pid(worker); }

 private:
  struct FateQuestion {
    std::shared_ptr<wire::Call> call;
    WorkerId worker;
    NodeId node;
    absl::Time until;
  };
  void Run(const SpawnWorker& effect);
  void Run(const AnswerRequest& effect);
  void Run(const ForwardRequest& effect);
  void Run(const WithdrawForwarded& effect);
  void Run(const AnswerHead& effect);
  void Run(const ReturnForwarded& effect);
  void Run(const TellRecalled& effect);
  void Run(const ConstructActor& effect);
  void Run(const ReportStarted& effect);
  void Run(const ReportEnded& effect);
  void Run(const KillWorker& effect);
  void Run(const RetireWorker& effect);

  void OnWorkerEnded(const WorkerProcesses::End& end);
  void RememberDead(WorkerId worker, const std::string& reason, bool out_of_memory = false);
  void AskHeadAboutFate(std::shared_ptr<FateQuestion> question);
  void ReportResourcesSoon();

  Parts parts_;
  NodeId node_;
  LeaseMachine machine_;
  std::unordered_map<std::string, std::shared_ptr<wire::Call>> requests_;   // lease requests that wait, by request id
  std::unordered_map<WorkerId, wire::WorkerFateReply> dead_;                // bounded: see dead_order_
  std::deque<WorkerId> dead_order_;
  std::vector<std::shared_ptr<FateQuestion>> fate_questions_;               // about workers of this node
  uint64_t reported_version_ = 0;
  size_t reported_waiting_ = 0;
  uint64_t update_number_ = 0;
  absl::Time reported_at_ = absl::InfinitePast();
  absl::Time report_at_ = absl::InfiniteFuture();   // the next; infinite: none is under way
  async::Timer report_timer_;
  async::Timer tick_timer_;
  std::unordered_map<WorkerId, std::unique_ptr<async::Timer>> lost_;        // workers whose connection is gone
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  WorkerProcesses processes_;
};

}  // namespace argosy::node
