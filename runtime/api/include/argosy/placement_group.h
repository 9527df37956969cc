#pragma once

#include <string>
#include <utility>
#include <vector>

#include "argosy/options.h"

namespace argosy {

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

  GroupId id() const { return id_; }
  // False when it is still pending after `timeout`.
  bool Wait(Timeout timeout = {}) const;
  // Throws UnschedulableError, with why it is pending, after `timeout`.
  void Ready(Timeout timeout = {}) const;
  // The node of each bundle once it is created; empty before.
  std::vector<NodeId> BundleNodes() const;
  // Why it is pending, in words; empty when it is not.
  std::string PendingReason() const;

  friend bool operator==(const PlacementGroup&, const PlacementGroup&) = default;

 private:
  GroupId id_;
};

// Returns once the request is acknowledged; the bundles may be reserved later.
PlacementGroup CreatePlacementGroup(const PlacementGroupOptions& options);
// Gives the resources back; what runs in the bundles is killed.
void Remove(const PlacementGroup& group);

}  // namespace argosy
