#pragma once

// What work asks of a node.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/id.h"
#include "runtime/base/resources.h"
#include "scheduler/label_selector.h"

namespace argosy::scheduler {

// One bundle of a placement group.
struct BundleKey {
  GroupId group;
  int index = 0;
  friend auto operator<=>(const BundleKey&, const BundleKey&) = default;
  std::string ToString() const;   // "bundle 0 of group 1a2b3c4d"
};

// Pack until half of a node's critical resource is used, then spread.
struct DefaultStrategy {
  friend auto operator<=>(const DefaultStrategy&, const DefaultStrategy&) = default;
};
// Each next one on the node that was used longest ago.
struct SpreadStrategy {
  friend auto operator<=>(const SpreadStrategy&, const SpreadStrategy&) = default;
};
// On `node`; when `soft` and it is lost or can never satisfy the demand, as DefaultStrategy.
struct NodeAffinity {
  NodeId node;
  bool soft = false;
  friend auto operator<=>(const NodeAffinity&, const NodeAffinity&) = default;
};
// Inside a bundle of a placement group.
struct BundleAffinity {
  GroupId group;
  int bundle_index = -1;   // -1: any bundle with room
  friend auto operator<=>(const BundleAffinity&, const BundleAffinity&) = default;
};

using Strategy = std::variant<DefaultStrategy, SpreadStrategy, NodeAffinity, BundleAffinity>;

// What decides whether demands can share a lease and a queue entry.
struct Shape {
  ResourceSet resources;
  LabelSelector labels;
  Strategy strategy;

  friend bool operator==(const Shape&, const Shape&) = default;
  friend auto operator<=>(const Shape&, const Shape&) = default;
  size_t Hash() const;
  // "CPU: 1, GPU: 1; labels zone=a; SPREAD".
  std::string ToString() const;
};

// Bytes of arguments that `node` already has.
struct Locality {
  NodeId node;
  int64_t bytes = 0;
};

struct Demand {
  ResourceSet resources;
  LabelSelector labels;
  Strategy strategy;
  std::vector<Locality> locality;
  int priority = 0;   // higher first, within the job; no part of the shape
  bool retriable = true;   // what it is for can be run again; no part of the shape
  int job_priority = 0;   // higher first, between jobs; no part of the shape

  Shape GetShape() const { return {resources, labels, strategy}; }
  static Demand FromShape(Shape shape, std::vector<Locality> locality = {});
  std::string ToString() const { return GetShape().ToString(); }
};

enum class GroupStrategy { kPack, kSpread, kStrictPack, kStrictSpread };

// "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD".
std::string_view ToString(GroupStrategy strategy);
std::optional<GroupStrategy> ParseGroupStrategy(std::string_view text);

struct BundleDemand {
  ResourceSet resources;
  LabelSelector labels;
  friend bool operator==(const BundleDemand&, const BundleDemand&) = default;
};

// Bundles that are reserved together or not at all.
//   PACK           on as few nodes as fit
//   SPREAD         on as many nodes as fit
//   STRICT_PACK    all on one node
//   STRICT_SPREAD  each on a node of its own
struct GroupDemand {
  GroupStrategy strategy = GroupStrategy::kPack;
  std::vector<BundleDemand> bundles;
  friend bool operator==(const GroupDemand&, const GroupDemand&) = default;
  std::string ToString() const;   // "PACK of 3 bundles: 1 x {CPU: 1, GPU: 1}, 2 x {CPU: 1}"
};

// Error when there are no bundles, too many, or an empty one.
inline constexpr size_t kGroupBundlesMax = 10'000;
absl::Status CheckGroupDemand(const GroupDemand& demand);

}  // namespace argosy::scheduler

template <>
struct std::hash<argosy::scheduler::Shape> {
  size_t operator()(const argosy::scheduler::Shape& shape) const { return shape.Hash(); }
};
