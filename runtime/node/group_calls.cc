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
  const GroupId id = request.group;
  const bool remembered = !request.detached && groups_.size() < kGroupsMax;
  cluster_.CreateGroup(request, job, [this, weak = std::weak_ptr<bool>(alive_), id, job, remembered, done](absl::StatusOr<wire::GroupInfo> info) {
    if (weak.expired()) return;
    if (info.ok() && remembered) {
      Group& group = groups_[id];
      group.job = job;
      if (info->state == wire::GroupInfo::kCreated) {
        Watched(id, info);
      } else if (group.state == Group::kKnown) {
        group.state = Group::kWatched;
        cluster_.WaitGroup({id, absl::ToDoubleSeconds(kWatch)}, [this, weak, id](absl::StatusOr<wire::GroupInfo> result) {
          if (!weak.expired()) Watched(id, result);
        });
      }
    }
    done(std::move(info));
  });
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
  for (Done<wire::GroupInfo>& done : std::exchange(group.waiting, {})) done(result);
}

void GroupCalls::Wait(const wire::WaitGroup& request, Done<wire::GroupInfo> done) {
  auto at = groups_.find(request.group);
  if (at != groups_.end()) {
    Group& group = at->second;
    if (group.state == Group::kRemoved) return done(Removed(request.group));
    if (group.state == Group::kCreated && Clock::Real().Now() - group.created_at < kFresh) return done(group.info);
    // The watch ends no later than it would wait.
    if (group.state == Group::kWatched && absl::Seconds(request.wait_seconds) >= kWatch) return group.waiting.push_back(std::move(done));
  }
  cluster_.WaitGroup(request, std::move(done));
}

void GroupCalls::Remove(const wire::RemoveGroup& request, Done<wire::Empty> done) {
  auto at = groups_.find(request.group);
  if (at == groups_.end()) return cluster_.RemoveGroup(request, std::move(done));
  Group& group = at->second;
  const bool first = std::exchange(group.state, Group::kRemoved) != Group::kRemoved;
  done(wire::Empty{});
  if (!first) return;
  for (Done<wire::GroupInfo>& waiting : std::exchange(group.waiting, {})) waiting(Removed(request.group));
  cluster_.RemoveGroup(request, [this, weak = std::weak_ptr<bool>(alive_), id = request.group](absl::StatusOr<wire::Empty> result) {
    if (!result.ok()) spdlog::warn("placement group {} was not removed, and ends with its job: {}", id.Short(), Message(result.status()));
    if (!weak.expired()) groups_.erase(id);
  });
}

void GroupCalls::JobGone(JobId job) {
  std::vector<Done<wire::GroupInfo>> waiting;
  for (auto at = groups_.begin(); at != groups_.end();) {
    if (at->second.job != job) {
      ++at;
      continue;
    }
    for (Done<wire::GroupInfo>& done : at->second.waiting) waiting.push_back(std::move(done));
    at = groups_.erase(at);
  }
  for (Done<wire::GroupInfo>& done : waiting) done(absl::CancelledError("its job has ended"));
}

}  // namespace argosy::node
