#include "runtime/head/lease_machine.h"

#include <algorithm>
#include <functional>

#include "runtime/base/status.h"

namespace argosy::head {
namespace {

// Longer than any reordering of two calls of one connection.
constexpr absl::Duration kWithdrawnMemory = absl::Seconds(60);
constexpr size_t kWithdrawnMax = 100'000;

}  // namespace

struct LeaseMachine::Context {
  absl::Time now;
  std::vector<LeaseEffect> effects;
};

std::vector<LeaseEffect> LeaseMachine::Step(const LeaseEvent& event, absl::Time now) {
  Context context{now, {}};
  std::visit([&](const auto& e) { On(e, context); }, event);
  return std::move(context.effects);
}

const LeaseMachine::Lease* LeaseMachine::Find(LeaseId lease) const {
  auto at = leases_.find(lease);
  return at == leases_.end() ? nullptr : &at->second;
}

const LeaseRequest* LeaseMachine::FindRequest(const std::string& request) const {
  auto at = waiting_.find(request);
  if (at != waiting_.end()) return &at->second;
  auto lease = by_request_.find(request);
  return lease == by_request_.end() ? nullptr : &leases_.at(lease->second).request;
}

std::vector<LeaseId> LeaseMachine::Select(const std::function<bool(const Lease&)>& predicate) const {
  std::vector<LeaseId> selected;
  for (const auto& [id, lease] : leases_) {
    if (predicate(lease)) selected.push_back(id);
  }
  std::sort(selected.begin(), selected.end());   // the same effects for the same events
  return selected;
}

void LeaseMachine::Fail(const std::string& request, absl::Status status, Context& context) {
  if (waiting_.erase(request) > 0) context.effects.push_back(DropLeaseNode{request});
  context.effects.push_back(LeaseFailed{request, std::move(status)});
}

void LeaseMachine::End(LeaseId id, Ending ending, Context& context, bool worker_failed) {
  auto at = leases_.find(id);
  Lease& lease = at->second;
  if (ending == Ending::kTellNode) context.effects.push_back(SendRelease{lease.node, id, worker_failed});
  if (ending != Ending::kPlaceGone) context.effects.push_back(FreeResources{lease.node, lease.request.demand.resources, lease.bundle});
  by_request_.erase(lease.request.id);
  leases_.erase(at);
}

void LeaseMachine::On(const LeaseAsked& event, Context& context) {
  const LeaseRequest& request = event.request;
  if (waiting_.contains(request.id)) return;
  if (auto at = by_request_.find(request.id); at != by_request_.end()) {
    Lease& lease = leases_.at(at->second);
    lease.wanted = true;
    if (lease.held) context.effects.push_back(LeaseReady{request.id, lease.id});
    return;
  }
  if (withdrawn_ids_.contains(request.id)) {
    context.effects.push_back(LeaseFailed{request.id, absl::CancelledError("the request was withdrawn")});
    return;
  }
  waiting_[request.id] = request;
  context.effects.push_back(WantLeaseNode{request.id});
}

void LeaseMachine::On(const LeasePlaced& event, Context& context) {
  auto at = waiting_.find(event.request);
  if (at == waiting_.end()) return;
  Lease lease;
  lease.id = event.lease;
  lease.request = std::move(at->second);
  lease.node = event.node;
  lease.bundle = event.bundle;
  lease.since = context.now;
  if (event.bundle) lease.request.demand.strategy = scheduler::BundleAffinity{event.bundle->group, event.bundle->index};
  waiting_.erase(at);
  by_request_[lease.request.id] = lease.id;
  leases_[lease.id] = std::move(lease);
  context.effects.push_back(SendGrant{event.node, event.lease});
}

void LeaseMachine::On(const LeaseAnswered& event, Context& context) {
  auto at = leases_.find(event.result.lease);
  if (at == leases_.end() || at->second.node != event.node) {
    // Nobody waits any more; the node must not keep a worker for it.
    if (event.result.granted) context.effects.push_back(SendRelease{event.node, event.result.lease});
    return;
  }
  Lease& lease = at->second;
  if (lease.held) return;
  if (event.result.granted) {
    if (!lease.wanted) return End(lease.id, Ending::kTellNode, context);
    lease.held = true;
    lease.worker = event.result.worker;
    lease.gpu_ids = event.result.gpu_ids;
    lease.since = context.now;
    context.effects.push_back(LeaseReady{lease.request.id, lease.id});
    return;
  }
  LeaseRequest request = lease.request;
  bool wanted = lease.wanted;
  End(lease.id, Ending::kNodeKnows, context);
  if (!wanted) return;
  if (event.result.retry_elsewhere || event.result.refusal == "no room") {
    waiting_[request.id] = request;
    context.effects.push_back(WantLeaseNode{request.id, true});
  } else {
    absl::Status status = event.result.environment_failed ? NotFound("{}", event.result.refusal) : FailedPrecondition("{}", event.result.refusal);
    context.effects.push_back(LeaseFailed{request.id, std::move(status)});
  }
}

void LeaseMachine::On(const LeaseReturned& event, Context& context) {
  auto at = leases_.find(event.lease);
  if (at == leases_.end()) {
    // Granted by the node itself, or by an earlier head: the node knows.
    if (!event.node.IsNil()) context.effects.push_back(SendRelease{event.node, event.lease, event.worker_failed});
    return;
  }
  End(event.lease, Ending::kTellNode, context, event.worker_failed);
}

void LeaseMachine::On(const LeaseCancelled& event, Context& context) {
  if (waiting_.erase(event.request) > 0) {
    context.effects.push_back(DropLeaseNode{event.request});
    return;
  }
  auto at = by_request_.find(event.request);
  if (at == by_request_.end()) return;
  Lease& lease = leases_.at(at->second);
  // A held lease was already answered: its holder has it, or withdraws it. One that is being granted is released when the node answers.
  if (!lease.held) lease.wanted = false;
}

void LeaseMachine::On(const LeaseWithdrawn& event, Context& context) {
  while (!withdrawn_.empty() && (context.now - withdrawn_.front().first > kWithdrawnMemory || withdrawn_.size() >= kWithdrawnMax)) {
    withdrawn_ids_.erase(withdrawn_.front().second);
    withdrawn_.pop_front();
  }
  if (waiting_.contains(event.request)) return Fail(event.request, absl::CancelledError("the request was withdrawn"), context);
  if (auto at = by_request_.find(event.request); at != by_request_.end()) {
    bool waits = !leases_.at(at->second).held;
    End(at->second, Ending::kTellNode, context);
    if (waits) context.effects.push_back(LeaseFailed{event.request, absl::CancelledError("the request was withdrawn")});
    return;
  }
  if (withdrawn_ids_.insert(event.request).second) withdrawn_.emplace_back(context.now, event.request);
}

void LeaseMachine::On(const LeaseTimedOut& event, Context& context) {
  if (!waiting_.contains(event.request)) return;
  waiting_.erase(event.request);
  context.effects.push_back(
      LeaseFailed{event.request, MakeStatus(absl::StatusCode::kDeadlineExceeded, "no node within the deadline: {}", event.explanation)});
}

void LeaseMachine::On(const LeaseRefused& event, Context& context) {
  if (waiting_.contains(event.request)) Fail(event.request, FailedPrecondition("{}", event.reason), context);
}

void LeaseMachine::On(const LeaseNodeLost& event, Context& context) {
  for (LeaseId id : Select([&](const Lease& lease) { return lease.node == event.node; })) {
    Lease& lease = leases_.at(id);
    LeaseRequest request = lease.request;
    bool again = !lease.held && lease.wanted;
    End(id, Ending::kPlaceGone, context);
    if (!again) continue;   // its holder learns of the loss from WorkerFate
    waiting_[request.id] = request;
    context.effects.push_back(WantLeaseNode{request.id});
  }
  for (LeaseId id : Select([&](const Lease& lease) { return lease.request.holder_node == event.node; })) End(id, Ending::kTellNode, context);
  std::vector<std::string> orphans;
  for (const auto& [id, request] : waiting_) {
    if (request.holder_node == event.node) orphans.push_back(id);
  }
  for (const std::string& id : orphans) Fail(id, Unavailable("the node that asked was lost"), context);
}

void LeaseMachine::On(const LeaseNodeRejoined& event, Context& context) {
  for (LeaseId id : Select([&](const Lease& lease) { return lease.node == event.node && lease.held && !event.held.contains(lease.id); })) {
    End(id, Ending::kNodeKnows, context);   // ended while nobody listened
  }
  // A grant that was sent into a broken stream is sent again; the node answers a repeat the same way.
  for (LeaseId id : Select([&](const Lease& lease) { return lease.node == event.node && !lease.held; })) {
    context.effects.push_back(SendGrant{event.node, id});
  }
}

void LeaseMachine::On(const LeaseEndedAtNode& event, Context& context) {
  auto at = leases_.find(event.lease);
  if (at != leases_.end() && at->second.node == event.node && at->second.held) End(event.lease, Ending::kPlaceGone, context);
}

void LeaseMachine::On(const LeaseWorkerDied& event, Context& context) {
  for (LeaseId id : Select([&](const Lease& lease) { return lease.held && lease.worker.worker == event.worker; })) {
    End(id, Ending::kNodeKnows, context);   // its node released it
  }
  for (LeaseId id : Select([&](const Lease& lease) { return lease.request.holder == event.worker; })) End(id, Ending::kTellNode, context);
  std::vector<std::string> orphans;
  for (const auto& [id, request] : waiting_) {
    if (request.holder == event.worker) orphans.push_back(id);
  }
  for (const std::string& id : orphans) Fail(id, absl::CancelledError("the worker that asked has ended"), context);
}

void LeaseMachine::On(const LeaseJobEnded& event, Context& context) {
  for (LeaseId id : Select([&](const Lease& lease) { return lease.request.job == event.job; })) {
    bool waits = !leases_.at(id).held;
    std::string request = leases_.at(id).request.id;
    End(id, Ending::kTellNode, context);
    if (waits) context.effects.push_back(LeaseFailed{request, absl::CancelledError("the job has ended")});
  }
  std::vector<std::string> orphans;
  for (const auto& [id, request] : waiting_) {
    if (request.job == event.job) orphans.push_back(id);
  }
  for (const std::string& id : orphans) Fail(id, absl::CancelledError("the job has ended"), context);
}

void LeaseMachine::On(const LeaseGroupRemoved& event, Context& context) {
  // The node ends what runs in a returned bundle; nothing of it is given back one by one.
  for (LeaseId id : Select([&](const Lease& lease) { return lease.bundle && lease.bundle->group == event.group; })) {
    bool waits = !leases_.at(id).held;
    std::string request = leases_.at(id).request.id;
    End(id, Ending::kPlaceGone, context);
    if (waits) context.effects.push_back(LeaseFailed{request, FailedPrecondition("placement group {} was removed", event.group.Short())});
  }
}

std::vector<LeaseEffect> LeaseMachine::Recall(const scheduler::Shape& shape, const std::vector<JobId>& jobs, int job_priority,
                                              const std::vector<RecallNode>& nodes, absl::Duration period, absl::Time now) {
  for (const RecallNode& node : nodes) {
    std::vector<LeaseId> candidates = Select([&](const Lease& lease) {
      if (lease.node != node.node || !lease.held || lease.bundle || lease.request.demand.job_priority > job_priority) return false;
      bool own = jobs.size() == 1 && jobs.front() == lease.request.job && lease.request.demand.GetShape() == shape;
      return !own;
    });
    std::sort(candidates.begin(), candidates.end(), [&](LeaseId a, LeaseId b) { return leases_.at(a).since < leases_.at(b).since; });
    ResourceSet free = node.available;
    std::vector<LeaseId> chosen;
    for (LeaseId id : candidates) {
      if (free.Contains(shape.resources)) break;
      const ResourceSet& resources = leases_.at(id).request.demand.resources;
      bool helps = std::any_of(resources.amounts().begin(), resources.amounts().end(), [&](const auto& amount) {
        return free.Get(amount.first) < shape.resources.Get(amount.first);
      });
      if (!helps) continue;
      free.Add(resources);
      chosen.push_back(id);
    }
    if (!free.Contains(shape.resources)) continue;
    std::vector<LeaseEffect> effects;
    for (LeaseId id : chosen) {
      Lease& lease = leases_.at(id);
      if (now - lease.recalled_at < period) continue;
      lease.recalled_at = now;
      effects.push_back(SendRecall{lease.node, id});
    }
    return effects;
  }
  return {};
}

}  // namespace argosy::head
