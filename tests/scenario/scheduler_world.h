#pragma once

// The scheduler's parts on a table: a head (view, queue, group machine) and node ledgers, with orders delivered at once
// unless held back.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/prng.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand_queue.h"
#include "scheduler/group_machine.h"
#include "scheduler/ledger.h"

namespace argosy::scenario {

// Commands (amounts are `name=value`; `label k=v`, `select TERMS` come last):
//
//   add-node NODE AMOUNT...  [label k=v,k=v]     a node joins
//   lose-node NODE                               the head declares it dead
//   submit TASK AMOUNT... [job=J] [strategy=SPREAD] [node=N|softly=N] [group=G[/INDEX]] [select TERMS]
//   end TASK                                     it ends: its lease is released, its node reports
//   block TASK / unblock TASK                    it waits in Get, and goes on
//   local NODE TASK AMOUNT...                    the node grants by itself; the head hears of it by `report NODE`
//   report NODE                                  the node says what is free
//   group G STRATEGY BUNDLES                     bundles, AMOUNT... [select TERMS], separated by "|"; "3*" repeats one
//   remove-group G
//   explain AMOUNT... [...as submit]             why, without submitting
//   hold NODE / deliver NODE                     keep the head's orders to a node back, and deliver them
//   after SECONDS                                time passes
//   show                                         nodes and what is free on them
class SchedulerWorld {
 public:
  // What happened, a line each.
  std::string Run(const std::string& line);

 private:
  struct Node {
    NodeId id;
    scheduler::NodeLedger ledger;
    bool held = false;
    std::vector<scheduler::GroupEffect> orders;
  };
  struct Task {
    LeaseId lease;
    std::string node;
    bool running = false;
    uint64_t request = 0;
  };

  void Say(const std::string& text);
  Node* NodeById(NodeId id);
  void StepGroups(const scheduler::GroupEvent& event);
  void Deliver(Node& node, const scheduler::GroupEffect& order);
  void Report(Node& node);
  // Groups first, then what waits.
  void Serve();
  void Start(const std::string& name, const scheduler::Demand& demand, NodeId id);

  scheduler::ClusterView view_;
  scheduler::DemandQueue queue_;
  scheduler::GroupMachine groups_;
  Prng prng_{1};
  absl::Time now_ = absl::UnixEpoch();
  std::map<std::string, Node> nodes_;
  std::map<std::string, GroupId> group_ids_;
  std::map<std::string, JobId> jobs_;
  std::map<std::string, Task> tasks_;
  std::map<uint64_t, std::string> requests_;
  uint64_t next_id_ = 1;
  std::string said_;
};

}  // namespace argosy::scenario
