#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "argosy/options.h"

namespace argosy {

namespace internal { struct GroupRequest; }

struct Bundle {
  Resources resources;
  LabelSelector label_selector;
};

enum class GroupStrategy { kPack, kSpread, kStrictPack, kStrictSpread };

struct PlacementGroupOptions {
  std::vector<Bundle> bundles;
  GroupStrategy strategy = GroupStrategy::kPack;
  std::string name;
  bool detached = false;   // outlives its job
};

// Resources reserved together, all or nothing. A task or actor uses a bundle by {.placement_group = group.id(), .bundle_index = 0}.
class PlacementGroup {
 public:
  PlacementGroup() = default;
  explicit PlacementGroup(GroupId id) : id_(id) {}

  // Returns once the head knows the group, as it does already if Ready has returned. Throws RuntimeError with what it has against it.
  GroupId id() const;
  // False when it is still pending after `timeout`.
  bool Wait(Timeout timeout = {}) const;
  // Throws UnschedulableError, with why it is pending, after `timeout`.
  void Ready(Timeout timeout = {}) const;
  // The node of each bundle once it is created; empty before.
  std::vector<NodeId> BundleNodes() const;
  // Why it is pending, in words; empty when it is not.
  std::string PendingReason() const;

  friend bool operator==(const PlacementGroup& a, const PlacementGroup& b) { return a.id_ == b.id_; }

 private:
  friend PlacementGroup CreatePlacementGroup(const PlacementGroupOptions& options);
  friend void Remove(const PlacementGroup& group);

  GroupId id_;
  std::shared_ptr<const internal::GroupRequest> request_;   // of one that was created here
};

// Does not wait for the head, unless the group has a name or is detached: what the head has against the request is then thrown by the first use.
// The bundles may be reserved later than it is known.
PlacementGroup CreatePlacementGroup(const PlacementGroupOptions& options);
// Gives the resources back; what runs in the bundles is killed.
void Remove(const PlacementGroup& group);

}  // namespace argosy
