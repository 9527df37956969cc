#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/head/types.h"

namespace argosy::head {

struct LeaseRequest {
  std::string id;              // 16 bytes, chosen by the caller: a repeat joins the first
  JobId job;
  WorkerId holder;
  NodeId holder_node;
  scheduler::Demand demand;
  std::string code;
  absl::Time deadline = absl::InfiniteFuture();
};

struct LeaseAsked { LeaseRequest request; };
struct LeasePlaced { std::string request; NodeId node; std::optional<scheduler::BundleKey> bundle; LeaseId lease; };
struct LeaseAnswered { NodeId node; LeaseResult result; };
struct LeaseReturned { LeaseId lease; NodeId node; bool worker_failed = false; };
// Nobody waits for the answer at the moment. Whoever asked may ask again: a grant on its way stays his.
struct LeaseCancelled { std::string request; };
// Whoever asked wants nothing of it any more, granted or not.
struct LeaseWithdrawn { std::string request; };
struct LeaseTimedOut { std::string request; std::string explanation; };
struct LeaseRefused { std::string request; std::string reason; };   // e.g. its placement group was removed
struct LeaseNodeLost { NodeId node; };
struct LeaseNodeRejoined { NodeId node; std::set<LeaseId> held; };
struct LeaseEndedAtNode { NodeId node; LeaseId lease; };   // its holder is of that node; the node's report has what is free now
struct LeaseWorkerDied { WorkerId worker; };
struct LeaseJobEnded { JobId job; };
struct LeaseGroupRemoved { GroupId group; };
using LeaseEvent = std::variant<LeaseAsked, LeasePlaced, LeaseAnswered, LeaseReturned, LeaseCancelled, LeaseWithdrawn, LeaseTimedOut, LeaseRefused,
                                LeaseNodeLost, LeaseNodeRejoined, LeaseEndedAtNode, LeaseWorkerDied, LeaseJobEnded, LeaseGroupRemoved>;

struct WantLeaseNode { std::string request; bool refused = false; };   // refused: a node had no room, try again a little later
struct DropLeaseNode { std::string request; };
struct SendGrant { NodeId node; LeaseId lease; };
struct SendRelease { NodeId node; LeaseId lease; bool worker_failed = false; };
struct SendRecall { NodeId node; LeaseId lease; };
// Answer every caller that waits for the request.
struct LeaseReady { std::string request; LeaseId lease; };
struct LeaseFailed { std::string request; absl::Status status; };
// Give back to the view.
struct FreeResources { NodeId node; ResourceSet resources; std::optional<scheduler::BundleKey> bundle; };
using LeaseEffect = std::variant<WantLeaseNode, DropLeaseNode, SendGrant, SendRelease, SendRecall, LeaseReady, LeaseFailed, FreeResources>;

// The leases that the head placed, from the request to the return.
//
//   asked --placed--> granting --granted--> held --returned--> gone
//             ^----------'  no room: placed again
//
// Thread:   the head's loop.
// Failure:  events for unknown leases change nothing: a node grants many leases that the head never hears of.
class LeaseMachine {
 public:
  struct Lease {
    LeaseId id;
    LeaseRequest request;
    NodeId node;
    std::optional<scheduler::BundleKey> bundle;
    bool held = false;         // the node granted it
    bool wanted = true;        // somebody still waits for it, or holds it
    WorkerAddress worker;
    std::vector<uint32_t> gpu_ids;
    absl::Time since;
    absl::Time recalled_at = absl::InfinitePast();
  };

  std::vector<LeaseEffect> Step(const LeaseEvent& event, absl::Time now);
  // Asks holders to give back what `shape` of `jobs` needs on one of `nodes` (each with what is free there). A lease of the same
  // job and shape is not recalled: its return would only be granted again. Each lease is asked at most once a `period`.
  struct RecallNode { NodeId node; ResourceSet available; };
  std::vector<LeaseEffect> Recall(const scheduler::Shape& shape, const std::vector<JobId>& jobs, int job_priority,
                                  const std::vector<RecallNode>& nodes, absl::Duration period, absl::Time now);

  const Lease* Find(LeaseId lease) const;
  const LeaseRequest* FindRequest(const std::string& request) const;
  size_t size() const { return leases_.size(); }

 private:
  struct Context;
  void On(const LeaseAsked& event, Context& context);
  void On(const LeasePlaced& event, Context& context);
  void On(const LeaseAnswered& event, Context& context);
  void On(const LeaseReturned& event, Context& context);
  void On(const LeaseCancelled& event, Context& context);
  void On(const LeaseWithdrawn& event, Context& context);
  void On(const LeaseTimedOut& event, Context& context);
  void On(const LeaseRefused& event, Context& context);
  void On(const LeaseNodeLost& event, Context& context);
  void On(const LeaseNodeRejoined& event, Context& context);
  void On(const LeaseEndedAtNode& event, Context& context);
  void On(const LeaseWorkerDied& event, Context& context);
  void On(const LeaseJobEnded& event, Context& context);
  void On(const LeaseGroupRemoved& event, Context& context);

  void Fail(const std::string& request, absl::Status status, Context& context);
  // Whether the node is told, and whether the view gets the resources back: not when the lease's node or bundle is gone with them.
  enum class Ending { kTellNode, kNodeKnows, kPlaceGone };
  void End(LeaseId lease, Ending ending, Context& context, bool worker_failed = false);
  std::vector<LeaseId> Select(const std::function<bool(const Lease&)>& predicate) const;

  std::map<std::string, LeaseRequest> waiting_;           // asked, not placed
  std::unordered_map<LeaseId, Lease> leases_;             // granting and held
  std::map<std::string, LeaseId> by_request_;
  // Requests that a withdrawal may have overtaken on the way here, oldest first.
  std::deque<std::pair<absl::Time, std::string>> withdrawn_;
  std::unordered_set<std::string> withdrawn_ids_;
};

}  // namespace argosy::head
