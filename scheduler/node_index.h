#pragma once

// Finds nodes for Place without looking at all of them.

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/prng.h"
#include "runtime/base/resources.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::scheduler {

// Two tournament trees (nodes without and with GPU) over slots in the order of joining. An inner vertex keeps, for the
// slots below it, the most that is available of each resource and the least utilization and last use, so that a search
// skips whole subtrees that cannot fit. Beside them the nodes by label and by resource name, for demands that only few
// nodes match.
//
// Thread:   its owner's.
// Lifetime: the views it was given must stay where they are until Erase.
class NodeIndex {
 public:
  using Accept = std::function<bool(const NodeView&)>;

  // Adds the node or reads it again. `labels_changed` also when it is new, lost or draining since.
  void Put(const NodeView& node, bool labels_changed);
  void Erase(NodeId id);

  // The nodes that have a label or resource that `demand` needs, when these are few; none when the trees must be
  // searched.
  std::optional<std::vector<const NodeView*>> FewCandidates(const Demand& demand) const;

  // The first node in the order of joining that is used less than `utilization_below`, fits `resources` and is
  // accepted.
  const NodeView* First(bool with_gpu, const ResourceSet& resources, int64_t utilization_below,
                        const Accept& accept) const;
  // The one that is used least, or (by_last_taken) was taken from longest ago. Ties at random.
  const NodeView* Least(bool with_gpu, const ResourceSet& resources, bool by_last_taken, const Accept& accept,
                        Prng& prng) const;

 private:
  // Resources beyond these are checked at the leaves only.
  static constexpr size_t kIndexedMax = 16;
  static constexpr size_t kFewMax = 64;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Vertex {
    std::array<int64_t, kIndexedMax> available;   // the most of any slot below
    int64_t utilization = kNever;                 // the least of any slot below; kNever: no usable node below
    int64_t last_taken = kNever;
    Vertex() { available.fill(std::numeric_limits<int64_t>::min()); }
  };
  struct Tree {
    size_t leaves = 0;                    // a power of two, or 0
    std::vector<Vertex> vertices;         // 1 is the root; leaf i is leaves + i
    std::vector<const NodeView*> slots;   // in the order of joining, with gaps where nodes were erased
    size_t next_slot = 0;
    size_t count = 0;
  };
  struct Place {
    bool with_gpu = false;
    size_t slot = 0;
    const NodeView* node = nullptr;
    Labels labels;
    std::vector<std::string> resources;
  };
  using Need = std::vector<std::pair<size_t, int64_t>>;

  size_t Dimension(const std::string& name);
  Need NeedOf(const ResourceSet& resources) const;
  static bool MayFit(const Vertex& vertex, const Need& need);
  Vertex LeafOf(const NodeView* node);
  // Closes the gaps, and doubles the leaves when more than half are in use.
  void Rebuild(Tree& tree);
  void SetLeaf(Tree& tree, size_t slot, const NodeView* node);
  static Vertex Join(const Vertex& a, const Vertex& b);
  const NodeView* FirstBelow(const Tree& tree, size_t vertex, const Need& need, int64_t utilization_below,
                             const Accept& accept) const;
  void LeastBelow(const Tree& tree, size_t vertex, const Need& need, bool by_last_taken, const Accept& accept,
                  Prng& prng, std::pair<int64_t, const NodeView*>& best) const;

  std::array<Tree, 2> trees_;
  std::unordered_map<NodeId, Place> places_;
  std::map<std::string, size_t, std::less<>> dimensions_;
  std::map<std::pair<std::string, std::string>, std::set<const NodeView*>> by_label_;
  std::map<std::string, std::set<const NodeView*>, std::less<>> by_resource_;
};

}  // namespace argosy::scheduler
