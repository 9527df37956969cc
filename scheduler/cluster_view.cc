#include "scheduler/cluster_view.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"
#include "scheduler/node_index.h"

namespace argosy::scheduler {
namespace {

constexpr const char* kCritical[] = {kCpu, kGpu, kMemory, kObjectStoreMemory};

}  // namespace

int64_t NodeView::UsedShare(int64_t total, int64_t available) {
  if (total <= 0) return 0;
  const int64_t used = total - std::clamp<int64_t>(available, 0, total);
  // Amounts go to 9e18 raw: multiply in floating point, whose rounding does not matter here.
  return static_cast<int64_t>(static_cast<double>(used) / static_cast<double>(total) * 10'000);
}

int64_t NodeView::Utilization() const {
  int64_t most = 0;
  for (const char* name : kCritical) most = std::max(most, UsedShare(total.Get(name).raw(), available.Get(name).raw()));
  return most;
}

std::string NodeView::DisplayName() const { return name.empty() ? id.Short() : name; }

ClusterView::ClusterView(ClusterViewOptions options) : index_(std::make_unique<NodeIndex>(options)) {}
ClusterView::~ClusterView() = default;
ClusterView::ClusterView(ClusterView&&) noexcept = default;
ClusterView& ClusterView::operator=(ClusterView&&) noexcept = default;

absl::StatusOr<NodeView*> ClusterView::Get(NodeId id) {
  auto it = nodes_.find(id);
  if (it == nodes_.end()) return NotFound("node {} is not known", id.Short());
  return it->second.get();
}

absl::Status ClusterView::AddNode(NodeId id, std::string name, ResourceSet total, Labels labels) {
  auto [it, is_new] = nodes_.try_emplace(id);
  if (!is_new)
    return FailedPrecondition("node {} is known already{}", id.Short(),
                              it->second->alive ? "" : ", and lost: it must join under a new id");
  auto node = std::make_unique<NodeView>();
  node->id = id;
  node->name = std::move(name);
  node->available = total;
  node->total = std::move(total);
  node->labels = std::move(labels);
  node->order = next_order_++;
  order_[node->order] = node.get();
  Changed(*node, true);
  it->second = std::move(node);
  ++alive_count_;
  return absl::OkStatus();
}

absl::Status ClusterView::UpdateAvailable(NodeId id, ResourceSet available) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  node->available = std::move(available);
  Changed(*node);
  return absl::OkStatus();
}

absl::Status ClusterView::UpdateLabels(NodeId id, Labels labels) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  index_->ForgetLabels(*node);
  node->labels = std::move(labels);
  Changed(*node, true);
  return absl::OkStatus();
}

absl::Status ClusterView::SetContended(NodeId id, bool contended) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  node->contended = contended;
  ++version_;
  return absl::OkStatus();
}

absl::Status ClusterView::SetGathered(NodeId id, GroupId group) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  Gather(*node, group);
  Changed(*node);
  return absl::OkStatus();
}

absl::Status ClusterView::SetDraining(NodeId id, bool draining) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  node->draining = draining;
  Changed(*node, true);
  return absl::OkStatus();
}

void ClusterView::Gather(NodeView& node, GroupId group) {
  if (!node.gathered_for.IsNil() && --gathered_.at(node.gathered_for) == 0) gathered_.erase(node.gathered_for);
  node.gathered_for = group;
  if (!group.IsNil()) ++gathered_[group];
}

void ClusterView::Changed(const NodeView& node, bool identity_changed) {
  ++version_;
  capacity_version_ += identity_changed;
  index_->Put(node, identity_changed);
}

void ClusterView::ForgetBundles(NodeView& node) {
  for (const auto& [key, bundle] : node.bundles) {
    auto it = bundles_.find(key.group);
    it->second.erase(key.index);
    if (it->second.empty()) bundles_.erase(it);
  }
  node.bundles.clear();
}

absl::Status ClusterView::MarkLost(NodeId id, absl::Time now) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  if (!node->alive) return absl::OkStatus();
  node->alive = false;
  node->lost_at = now;
  node->contended = false;
  Gather(*node, GroupId());
  ForgetBundles(*node);
  --alive_count_;
  Changed(*node, true);
  return absl::OkStatus();
}

absl::Status ClusterView::RemoveNode(NodeId id) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  ForgetBundles(*node);
  if (node->alive) --alive_count_;
  Gather(*node, GroupId());
  ++capacity_version_;
  ++version_;
  index_->Erase(id);
  order_.erase(node->order);
  nodes_.erase(id);
  return absl::OkStatus();
}

absl::Status ClusterView::SetBundle(NodeId id, BundleKey key, ResourceSet total) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  if (!node->alive) return FailedPrecondition("node {} is lost", node->DisplayName());
  std::map<int, NodeId>& group = bundles_[key.group];
  if (auto it = group.find(key.index); it != group.end() && it->second != id) {
    return FailedPrecondition("{} is on node {} already", key.ToString(), it->second.Short());
  }
  group[key.index] = id;
  node->bundles[key] = {total, total};
  ++version_;
  return absl::OkStatus();
}

absl::Status ClusterView::UpdateBundleAvailable(NodeId id, BundleKey key, ResourceSet available) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  auto it = node->bundles.find(key);
  if (it == node->bundles.end()) return NotFound("node {} holds no {}", node->DisplayName(), key.ToString());
  it->second.available = std::move(available);
  ++version_;
  return absl::OkStatus();
}

std::optional<ResourceSet> ClusterView::RemoveBundle(NodeId id, BundleKey key) {
  auto found = nodes_.find(id);
  if (found == nodes_.end()) return std::nullopt;
  auto it = found->second->bundles.find(key);
  if (it == found->second->bundles.end()) return std::nullopt;
  ResourceSet total = std::move(it->second.total);
  found->second->bundles.erase(it);
  ++version_;
  auto group = bundles_.find(key.group);
  group->second.erase(key.index);
  if (group->second.empty()) bundles_.erase(group);
  return total;
}

absl::Status ClusterView::Take(NodeId id, const ResourceSet& resources, std::optional<BundleKey> bundle) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  ResourceSet* available = &node->available;
  if (bundle) {
    auto it = node->bundles.find(*bundle);
    if (it == node->bundles.end()) return NotFound("node {} holds no {}", node->DisplayName(), bundle->ToString());
    available = &it->second.available;
  }
  for (const auto& [name, amount] : resources.amounts()) available->Set(name, available->Get(name) - amount);
  node->last_taken = next_take_++;
  Changed(*node);
  return absl::OkStatus();
}

absl::Status ClusterView::Give(NodeId id, const ResourceSet& resources, std::optional<BundleKey> bundle) {
  ARGOSY_ASSIGN_OR_RETURN(NodeView * node, Get(id));
  ResourceSet* available = &node->available;
  const ResourceSet* total = &node->total;
  if (bundle) {
    auto it = node->bundles.find(*bundle);
    if (it == node->bundles.end()) return NotFound("node {} holds no {}", node->DisplayName(), bundle->ToString());
    available = &it->second.available;
    total = &it->second.total;
  }
  for (const auto& [name, amount] : resources.amounts())
    available->Set(name, std::min(available->Get(name) + amount, total->Get(name)));
  Changed(*node);
  return absl::OkStatus();
}

const NodeView* ClusterView::Find(NodeId id) const {
  auto it = nodes_.find(id);
  return it == nodes_.end() ? nullptr : it->second.get();
}

const NodeView* ClusterView::FindBundle(BundleKey key) const {
  auto group = bundles_.find(key.group);
  if (group == bundles_.end()) return nullptr;
  auto it = group->second.find(key.index);
  return it == group->second.end() ? nullptr : Find(it->second);
}

std::optional<BundleKey> ClusterView::FitBundle(NodeId id, const BundleAffinity& affinity,
                                                const ResourceSet& resources) const {
  const NodeView* node = Find(id);
  if (node == nullptr) return std::nullopt;
  for (auto it = node->bundles.lower_bound({affinity.group, std::max(affinity.bundle_index, 0)});
       it != node->bundles.end() && it->first.group == affinity.group; ++it) {
    if (affinity.bundle_index >= 0 && it->first.index != affinity.bundle_index) break;
    if (it->second.available.Contains(resources)) return it->first;
  }
  return std::nullopt;
}

std::vector<const NodeView*> ClusterView::Nodes() const {
  std::vector<const NodeView*> nodes;
  nodes.reserve(order_.size());
  for (const auto& [order, node] : order_) nodes.push_back(node);
  return nodes;
}

ResourceSet ClusterView::Total() const {
  ResourceSet sum;
  for (const auto& [order, node] : order_) {
    if (node->alive) sum.Add(node->total);
  }
  return sum;
}

ResourceSet ClusterView::Available() const {
  ResourceSet sum;
  for (const auto& [order, node] : order_) {
    if (!node->alive) continue;
    for (const auto& [name, amount] : node->available.amounts()) {
      if (amount > Amount()) sum.Set(name, sum.Get(name) + amount);
    }
  }
  return sum;
}

const std::map<int, NodeId>* ClusterView::BundlesOf(GroupId group) const {
  auto it = bundles_.find(group);
  return it == bundles_.end() ? nullptr : &it->second;
}

}  // namespace argosy::scheduler
