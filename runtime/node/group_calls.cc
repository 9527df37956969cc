#include "runtime/node/group_calls.h"

#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

absl::Status Removed(GroupId id) { return NotFound("placement group {} was removed", id.Short()); }

}  // namespace

void GroupCalls::Create(const wire::CreateGroup& request, JobId job, Done<wire::GroupInfo> done) {
  if (asked_.size() >= kAskedMax) {
    return done(MakeStatus(absl::StatusCode::kResourceExhausted, "{} placement groups of this node are to be made already", asked_.size()));
  }
  if (!request.detached) groups_.try_emplace(request.group, Group{.state = Group::kCreating, .job = job});
  asked_.push_back({{request, job}, std::move(done)});
  AskHead();
}

void GroupCalls::AskHead() {
  if (head_is_asked_ || asked_.empty()) return;
  head_is_asked_ = true;
  std::vector<ClusterClient::GroupCall> calls;
  auto under_way = std::make_shared<std::vector<Asked>>();
  for (; !asked_.empty() && calls.size() < kGroupsACall; asked_.pop_front()) {
    calls.push_back(asked_.front().call);
    under_way->push_back(std::move(asked_.front()));
  }
  using Results = std::vector<absl::StatusOr<wire::GroupInfo>>;
  cluster_.CreateGroups(calls, [this, weak = std::weak_ptr<bool>(alive_), under_way](absl::StatusOr<Results> results) {
    if (weak.expired()) return;
    head_is_asked_ = false;
    for (size_t i = 0; i < under_way->size(); ++i) {
      absl::StatusOr<wire::GroupInfo> info = results.ok() ? std::move((*results)[i]) : results.status();
      Asked& asked = (*under_way)[i];
      Created(asked.call.group.group, info);
      asked.done(std::move(info));
    }
    AskHead();
  });
}

void GroupCalls::Created(GroupId id, const absl::StatusOr<wire::GroupInfo>& info) {
  auto at = groups_.find(id);
  if (at == groups_.end()) return;
  Group& group = at->second;
  if (group.state != Group::kCreating && group.state != Group::kRemoved) return;   // the request came twice
  if (!info.ok()) {
    std::vector<Waiting> waiting = std::exchange(group.waiting, {});
    // Who asked takes it for not made: what the head made of a call whose answer was lost nobody else would remove.
    group.state = Group::kRemoved;
    if (MayHaveHappened(info.status())) RemoveAtHead(id);
    else groups_.erase(at);
    return Answer(std::move(waiting), info);
  }
  if (group.state == Group::kRemoved) return RemoveAtHead(id);
  std::vector<Waiting> waiting = std::exchange(group.waiting, {});
  if (info->state == wire::GroupInfo::kCreated) {
    Watched(id, info);
    return Answer(std::move(waiting), info);
  }
  group.state = Group::kWatched;
  cluster_.WaitGroup({id, absl::ToDoubleSeconds(kWatch)}, [this, weak = std::weak_ptr<bool>(alive_), id](absl::StatusOr<wire::GroupInfo> result) {
    if (!weak.expired()) Watched(id, result);
  });
  for (Waiting& one : waiting) Wait(one.request, std::move(one.done));
}

void GroupCalls::Watched(GroupId id, const absl::StatusOr<wire::GroupInfo>& result) {
  auto at = groups_.find(id);
  if (at == groups_.end() || at->second.state == Group::kRemoved) return;
  Group& group = at->second;
  group.state = Group::kKnown;
  if (result.ok() && result->state == wire::GroupInfo::kCreated) {
    group.state = Group::kCreated;
    group.info = *result;
    group.created_at = Clock::Real().Now();
  }
  std::vector<Waiting> waiting = std::move(group.waiting);
  if (groups_.size() > kGroupsMax) groups_.erase(at);
  Answer(std::move(waiting), result);
}

void GroupCalls::Wait(const wire::WaitGroup& request, Done<wire::GroupInfo> done) {
  auto at = groups_.find(request.group);
  if (at != groups_.end()) {
    Group& group = at->second;
    if (group.state == Group::kRemoved) return done(Removed(request.group));
    if (group.state == Group::kCreated && Clock::Real().Now() - group.created_at < kFresh) return done(group.info);
    // The head must not hear of it before it hears that the group is to be made; the watch ends no later than it would wait.
    if (group.state == Group::kCreating || (group.state == Group::kWatched && absl::Seconds(request.wait_seconds) >= kWatch)) {
      if (group.waiting.size() < kWaitingMax) return group.waiting.push_back({request, std::move(done)});
      return done(MakeStatus(absl::StatusCode::kResourceExhausted, "{} calls wait for placement group {} already", kWaitingMax, request.group.Short()));
    }
  }
  cluster_.WaitGroup(request, std::move(done));
}

void GroupCalls::Remove(const wire::RemoveGroup& request, Done<wire::Empty> done) {
  auto at = groups_.find(request.group);
  if (at == groups_.end()) return cluster_.RemoveGroup(request, std::move(done));
  Group& group = at->second;
  const Group::State before = std::exchange(group.state, Group::kRemoved);
  Answer(std::exchange(group.waiting, {}), Removed(request.group));
  if (before != Group::kRemoved && before != Group::kCreating) RemoveAtHead(request.group);
  done(wire::Empty{});
}

void GroupCalls::RemoveAtHead(GroupId id) {
  cluster_.RemoveGroup({id}, [this, weak = std::weak_ptr<bool>(alive_), id](absl::StatusOr<wire::Empty> result) {
    if (!result.ok()) spdlog::warn("placement group {} was not removed, and ends with its job: {}", id.Short(), Message(result.status()));
    if (!weak.expired()) groups_.erase(id);
  });
}

void GroupCalls::JobGone(JobId job) {
  std::vector<Waiting> waiting;
  for (auto at = groups_.begin(); at != groups_.end();) {
    if (at->second.job != job) {
      ++at;
      continue;
    }
    for (Waiting& one : at->second.waiting) waiting.push_back(std::move(one));
    at = groups_.erase(at);
  }
  const absl::Status why = absl::CancelledError("its job has ended");
  Answer(std::move(waiting), why);
  std::vector<Asked> asked;
  for (Asked& one : asked_) {
    if (one.call.job == job) asked.push_back(std::move(one));
  }
  std::erase_if(asked_, [job](const Asked& one) { return one.call.job == job; });
  for (Asked& one : asked) one.done(why);
}

void GroupCalls::Answer(std::vector<Waiting> waiting, const absl::StatusOr<wire::GroupInfo>& result) {
  for (Waiting& one : waiting) one.done(result);
}

}  // namespace argosy::node
