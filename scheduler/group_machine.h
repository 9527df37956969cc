#pragma once

// Placement groups at the head: gathers bundles in two phases, all or nothing.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/base/prng.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"
#include "scheduler/place.h"

namespace argosy::scheduler {

// What happened. `attempt` is the number in the SendPrepare or SendCommit that is answered; 0 when the wire did not
// keep it.
struct CreateGroup {
  GroupId group;
  GroupDemand demand;
};
struct RemoveGroup {
  GroupId group;
};
// A group that an earlier head acknowledged. It waits for nodes to say what they hold of it until RestoreSettled.
struct RestoreGroup {
  GroupId group;
  GroupDemand demand;
};
// A node that (re)joins holds this bundle.
struct BundleHeld {
  NodeId node;
  GroupId group;
  int index = 0;
  ResourceSet resources;
  bool committed = false;
};
// Every node that an earlier head knew has said what it holds, or is lost.
struct RestoreSettled {};
struct NodePrepared {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
};
struct PrepareFailed {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
  std::string reason;
};
struct NodeCommitted {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
};
// The node no longer holds the prepared bundles.
struct CommitFailed {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
  std::string reason;
};
// Passed after ClusterView::MarkLost.
struct NodeLost {
  NodeId node;
};
// Resources may have changed, or time passed.
struct Tick {};
using GroupEvent =
    std::variant<CreateGroup, RemoveGroup, RestoreGroup, BundleHeld, RestoreSettled, NodePrepared, PrepareFailed, NodeCommitted,
                 CommitFailed, NodeLost, Tick>;

// What to do. All bundles of an attempt on one node travel together, and the node prepares (or commits) all of them or none;
// it does what it is sent in order.
struct BundleReservation {
  int index = 0;
  ResourceSet resources;
};
struct SendPrepare {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
  std::vector<BundleReservation> bundles;
  bool commit = false;   // no other node takes part: what it prepares is committed at once
};
struct SendCommit {
  NodeId node;
  GroupId group;
  uint64_t attempt = 0;
  std::vector<int> bundles;
};
struct SendReturn {
  NodeId node;
  GroupId group;
  std::vector<int> bundles;
};
// Every bundle is committed; `nodes` has one for each. Also after rescheduling.
struct GroupReady {
  GroupId group;
  std::vector<NodeId> nodes;
};
// Waits, and why; said again only when the reason changes.
struct GroupPending {
  GroupId group;
  bool feasible = false;
  std::string explanation;
};
struct GroupRemoved {
  GroupId group;
};
// These bundles were lost with their node and are being placed again; the others stay.
struct GroupRescheduling {
  GroupId group;
  std::vector<int> bundles;
};
// While contended a node grants only what the head places.
struct SetContended {
  NodeId node;
  bool contended = false;
};
using GroupEffect = std::variant<SendPrepare, SendCommit, SendReturn, GroupReady, GroupPending, GroupRemoved,
                                 GroupRescheduling, SetContended>;

// One line a effect, for logs and transcripts: "gpu-1 <- Prepare g1 [0,1]".
std::string ToString(const GroupEffect& effect, const ClusterView& view);

enum class GroupState { kPending, kPreparing, kCommitting, kReady, kRescheduling, kRestored };
std::string_view ToString(GroupState state);

// Owns what the head knows of placement groups.
//
// Bundles on several nodes are prepared, then committed; bundles on one are both by one order.
// Groups gather in one order, the order of their tickets. The first that is feasible but finds too little free gathers:
// the nodes that it would use are contended and get nothing new (NodeView::gathered_for), for `gather_max`; then it
// takes a new ticket behind the others and keeps no node for as long. So two groups never hold what the other waits
// for, work that is not a group's goes on, and none waits for ever behind one that cannot be served. A failed prepare
// returns everything that the attempt prepared.
//
// The machine spends what it prepares in the view at once (Take), so that whatever is placed next sees it, puts it back
// when the attempt fails, and shows committed bundles there (SetBundle).
//
// Thread:   its owner's.
// Failure:  answers for groups or attempts that are gone are ignored: the SendReturn that ended them follows on the
//           same stream.
class GroupMachine {
 public:
  struct Options {
    absl::Duration gather_max = absl::Seconds(10);
    // A group whose prepare failed waits before the next attempt: the first, doubling up to the last.
    absl::Duration retry_first = absl::Milliseconds(100);
    absl::Duration retry_last = absl::Seconds(5);
    size_t groups_max = 10'000;
    // Why a group waits is found out again whenever something changes; with more nodes than this only so often.
    size_t explained_nodes_max = 100;
    absl::Duration explain_every = absl::Seconds(1);
  };
  GroupMachine() : GroupMachine(Options{}) {}
  explicit GroupMachine(Options options) : options_(options) {}

  // CreateGroup must have passed CheckCreate; repeating it for a known id does nothing.
  std::vector<GroupEffect> Step(const GroupEvent& event, ClusterView& view, Prng& prng, absl::Time now);
  // What a user may get wrong: the demand (CheckGroupDemand), or too many groups.
  absl::Status CheckCreate(const CreateGroup& create) const;
  // When Step(Tick) must come next even if nothing else happens, or InfiniteFuture.
  absl::Time NextTick() const;

  struct Group {
    GroupId id;
    GroupDemand demand;
    GroupState state = GroupState::kPending;
    std::vector<NodeId> nodes;   // for each bundle: its node once prepared, else nil
    uint64_t ticket = 0;
    uint64_t attempt = 0;
    std::set<int> round;            // bundles of the attempt in progress
    std::set<NodeId> waiting_for;   // nodes that have not answered yet
    std::string explanation;        // why it waits
    bool feasible = false;
    absl::Time explained_at = absl::InfinitePast();
    uint64_t feasible_at = 0;   // the view's capacity_version for which `feasible` was found out
    absl::Time retry_at = absl::InfinitePast();
    absl::Duration retry_delay;
    absl::Time gather_since = absl::InfiniteFuture();
    std::set<NodeId> gather_nodes;   // kept for it while it gathers
    absl::Time gather_again_at = absl::InfinitePast();
  };
  // Null when unknown.
  const Group* Find(GroupId id) const;
  std::vector<const Group*> Groups() const;
  size_t size() const { return groups_.size(); }

 private:
  struct Context;
  void On(const CreateGroup& event, Context& context);
  void On(const RemoveGroup& event, Context& context);
  void On(const RestoreGroup& event, Context& context);
  void On(const BundleHeld& event, Context& context);
  void On(const RestoreSettled& event, Context& context);
  void On(const NodePrepared& event, Context& context);
  void On(const PrepareFailed& event, Context& context);
  void On(const NodeCommitted& event, Context& context);
  void On(const CommitFailed& event, Context& context);
  void On(const NodeLost& event, Context& context);
  void On(const Tick& event, Context& context);

  // Tries the waiting groups in order, and decides which of them gathers.
  void Gather(Context& context);
  // What a group that cannot be placed waits for. Of equal demands one is looked at.
  struct Failure {
    const GroupDemand* demand = nullptr;
    bool while_gathering = false;   // some nodes were kept for a group before it
    bool feasible = false;
    std::string explanation;   // empty: not found out
  };
  Failure Explain(Group& group, const GroupPlaceOptions& options, Context& context);
  void StartAttempt(Group& group, std::vector<NodeId> nodes, Context& context);
  // Returns what the attempt took and waits again. `failed` is the node that holds nothing of it any more, or nil.
  void AbortAttempt(Group& group, NodeId failed, Context& context);
  // In no state but known, behind those that came before it.
  Group* Add(GroupId id, const GroupDemand& demand);
  // Every bundle of the attempt is committed.
  void BecomeReady(Group& group, Context& context);
  // Waits for bundles to be placed.
  void Enqueue(Group& group);
  Group* InState(GroupId id, uint64_t attempt, GroupState state);

  Options options_;
  std::map<GroupId, Group> groups_;
  std::map<uint64_t, GroupId> tickets_;   // groups that wait to be placed, in order
  std::set<NodeId> gathered_;             // nodes kept for the group that gathers
  uint64_t view_version_ = 0;             // of the last gathering
  absl::Time last_gathered_at_ = absl::InfinitePast();
  absl::Time now_ = absl::InfinitePast();
  uint64_t next_ticket_ = 1;
  uint64_t next_attempt_ = 1;
};

}  // namespace argosy::scheduler
