#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/node/cluster_client.h"
#include "runtime/wire/messages.h"

namespace argosy::node {

// What this node's clients ask about placement groups, answered without a trip to the head where that can be known here: who asks about a group
// that is being made here waits for the head's answer to that, for clients do not; then it is watched until it is created, so that who waits for
// it next is answered from here; its end is acknowledged at once, and told to the head until that has heard it. Detached groups, which outlive
// whoever could clean up after a lost removal, and groups of other nodes go to the head each time.
//
// Thread:   the loop's.
// Lifetime: the cluster client, which drops its callbacks when it ends, is of the same loop.
// Failure:  the head's own; while the head is away a wait may last as long again as its client tries to reach it. A removal that the head does
//           not hear of is logged; the group then ends with its job.
class GroupCalls {
 public:
  template <class T>
  using Done = ClusterClient::Done<T>;

  explicit GroupCalls(ClusterClient& cluster) : cluster_(cluster) {}

  void Create(const wire::CreateGroup& request, JobId job, Done<wire::GroupInfo> done);
  void Wait(const wire::WaitGroup& request, Done<wire::GroupInfo> done);
  void Remove(const wire::RemoveGroup& request, Done<wire::Empty> done);
  void JobGone(JobId job);

 private:
  // When there are more, those that are created are not remembered: they go to the head.
  static constexpr size_t kGroupsMax = 10'000;
  static constexpr size_t kGroupsACall = 1'000;
  static constexpr size_t kAskedMax = 100'000;     // to be made
  static constexpr size_t kWaitingMax = 100'000;   // for one group
  // A created group may lose a node: for so long nobody asks again.
  static constexpr absl::Duration kFresh = absl::Seconds(1);
  static constexpr absl::Duration kWatch = absl::Seconds(10);

  struct Waiting { wire::WaitGroup request; Done<wire::GroupInfo> done; };
  struct Group {
    enum State { kCreating, kWatched, kCreated, kKnown, kRemoved } state = kCreating;
    JobId job;
    wire::GroupInfo info;       // kCreated
    absl::Time created_at;
    std::vector<Waiting> waiting;   // kCreating, kWatched
  };

  // One call at a time, of all that were asked for since the last: the head makes groups in the order in which clients asked.
  void AskHead();
  void Created(GroupId id, const absl::StatusOr<wire::GroupInfo>& info);
  void Watched(GroupId id, const absl::StatusOr<wire::GroupInfo>& result);
  void RemoveAtHead(GroupId id);
  static void Answer(std::vector<Waiting> waiting, const absl::StatusOr<wire::GroupInfo>& result);

  struct Asked { ClusterClient::GroupCall call; Done<wire::GroupInfo> done; };

  ClusterClient& cluster_;
  std::deque<Asked> asked_;
  bool head_is_asked_ = false;
  std::unordered_map<GroupId, Group> groups_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
