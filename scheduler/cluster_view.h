#pragma once

// What the scheduler knows of all nodes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/base/resources.h"
#include "scheduler/demand.h"
#include "scheduler/label_selector.h"

namespace argosy::scheduler {

class NodeIndex;

// A committed bundle: taken out of its node's available resources, and spent only by demands with its BundleAffinity.
struct BundleView {
  ResourceSet total;
  ResourceSet available;
};

struct NodeView {
  NodeId id;
  std::string name;
  ResourceSet total;
  ResourceSet available;   // without what bundles hold
  Labels labels;
  bool alive = true;
  std::optional<absl::Time> lost_at;
  bool contended = false;   // grants only what the head places; Place does not care
  bool draining = false;    // gets nothing new
  GroupId gathered_for;     // gets nothing new outside bundles, but for this group; nil: no group gathers here
  uint64_t order = 0;       // of joining
  std::map<BundleKey, BundleView> bundles;
  uint64_t last_taken = 0;   // grows with every Take in the view; 0: never

  // Used share of the most used of CPU, GPU, memory and object_store_memory, in ten-thousandths.
  int64_t Utilization() const;
  // The same of one amount.
  static int64_t UsedShare(int64_t total, int64_t available);
  // "gpu-1", or the id's first digits when the node has no name.
  std::string DisplayName() const;
};

struct ClusterViewOptions {
  // Shapes with DefaultStrategy that Place finds nodes for by a column of their own (node_index.h); of SPREAD a quarter as many. A column takes
  // 2 bytes a node and level, one of SPREAD 8, and both about twice that.
  size_t columns_max = 256;
  // A shape gets its column when it is asked for so often.
  uint32_t column_after = 3;
  // ... unless so few nodes can match it that a look at each is as fast.
  size_t few_without_column = 8;
};

// Nodes by id, with indexes that let Place look at few of them.
//
// Between a node's reports the view is kept right by Take and Give; UpdateAvailable is the node's own word and replaces
// them.
//
// Thread:   its owner's.
// Failure:  an unknown node is NotFound and changes nothing.
class ClusterView {
 public:
  explicit ClusterView(ClusterViewOptions options = {});
  ~ClusterView();
  ClusterView(ClusterView&&) noexcept;
  ClusterView& operator=(ClusterView&&) noexcept;

  // All of `total` is available at first. An id that is already known is an error, even when lost: nodes rejoin under
  // new ids.
  absl::Status AddNode(NodeId id, std::string name, ResourceSet total, Labels labels);
  // What the node says is free outside bundles.
  absl::Status UpdateAvailable(NodeId id, ResourceSet available);
  absl::Status UpdateLabels(NodeId id, Labels labels);
  absl::Status SetContended(NodeId id, bool contended);
  absl::Status SetDraining(NodeId id, bool draining);
  // Nil ends it.
  absl::Status SetGathered(NodeId id, GroupId group);
  // Stays listed, so that explanations can name it, until RemoveNode. Its bundles are gone.
  absl::Status MarkLost(NodeId id, absl::Time now);
  absl::Status RemoveNode(NodeId id);

  // `total` of the bundle is all free at first; `available` is the node's own word. The node's available amounts are
  // not changed: Take before, or the node's report, has done that.
  absl::Status SetBundle(NodeId id, BundleKey key, ResourceSet total);
  absl::Status UpdateBundleAvailable(NodeId id, BundleKey key, ResourceSet available);
  // The bundle's total, or none when the node has no such bundle.
  std::optional<ResourceSet> RemoveBundle(NodeId id, BundleKey key);

  // Spends `resources` of the node (or of its bundle) until Give or the node's next report. They need not be free: the
  // result may be below zero, and fits nothing until it is back.
  absl::Status Take(NodeId id, const ResourceSet& resources, std::optional<BundleKey> bundle = std::nullopt);
  // Gives back; never above the total.
  absl::Status Give(NodeId id, const ResourceSet& resources, std::optional<BundleKey> bundle = std::nullopt);

  const NodeView* Find(NodeId id) const;
  // The node that holds the bundle, or null.
  const NodeView* FindBundle(BundleKey key) const;
  // The bundle of `affinity` on `node` that has room for `resources` (lowest index first), or none.
  std::optional<BundleKey> FitBundle(NodeId node, const BundleAffinity& affinity, const ResourceSet& resources) const;
  // In the order in which they were added.
  std::vector<const NodeView*> Nodes() const;
  size_t size() const { return nodes_.size(); }
  // Grows with every change.
  uint64_t version() const { return version_; }
  size_t alive_count() const { return alive_count_; }
  // Are nodes kept for the group?
  bool IsGathering(GroupId group) const { return gathered_.contains(group); }
  // Grows with every change of what the nodes could hold if nothing ran there.
  uint64_t capacity_version() const { return capacity_version_; }
  // Over alive nodes.
  ResourceSet Total() const;
  ResourceSet Available() const;

  // For Place. It learns from what it is asked.
  NodeIndex& index() const { return *index_; }
  // Nodes that hold bundles of the group, by bundle.
  const std::map<int, NodeId>* BundlesOf(GroupId group) const;

 private:
  absl::StatusOr<NodeView*> Get(NodeId id);
  void ForgetBundles(NodeView& node);
  void Gather(NodeView& node, GroupId group);
  void Changed(const NodeView& node, bool identity_changed = false);

  std::unordered_map<NodeId, std::unique_ptr<NodeView>> nodes_;
  std::map<uint64_t, const NodeView*> order_;
  std::unordered_map<GroupId, std::map<int, NodeId>> bundles_;
  size_t alive_count_ = 0;
  uint64_t next_order_ = 0;
  uint64_t next_take_ = 1;
  uint64_t version_ = 1;
  uint64_t capacity_version_ = 1;
  std::unordered_map<GroupId, size_t> gathered_;   // how many nodes are kept for each group
  std::unique_ptr<NodeIndex> index_;
};

}  // namespace argosy::scheduler
