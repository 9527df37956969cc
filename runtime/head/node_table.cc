#include "runtime/head/node_table.h"

#include <algorithm>

#include "spdlog/fmt/fmt.h"

namespace argosy::head {

NodeTable::Admitted NodeTable::Register(const NodeDescription& description, absl::Time now) {
  auto [at, added] = nodes_.try_emplace(description.id);
  Node& node = at->second;
  if (!added && !node.alive) return {Admission::kDeclaredDead};
  if (added) node.order = next_order_++;
  node.description = description;
  node.connected = true;
  node.epoch = next_epoch_++;
  node.heard = now;
  node.resources_version = 0;
  return {added ? Admission::kJoined : Admission::kRejoined, node.epoch};
}

void NodeTable::Restore(const NodeDescription& description, bool alive, int64_t lost_unix_ms, std::string reason, absl::Time now) {
  Node& node = nodes_[description.id];
  node.description = description;
  node.alive = alive;
  node.heard = now;
  node.order = next_order_++;
  node.lost_unix_ms = lost_unix_ms;
  node.lost_reason = std::move(reason);
}

bool NodeTable::Heard(NodeId id, uint64_t epoch, absl::Time now) {
  auto at = nodes_.find(id);
  if (at == nodes_.end() || !at->second.alive || at->second.epoch != epoch) return false;
  at->second.heard = now;
  return true;
}

void NodeTable::SetLoad(NodeId id, const Heartbeat& heartbeat) {
  auto at = nodes_.find(id);
  if (at == nodes_.end()) return;
  at->second.object_store_used = heartbeat.object_store_used;
  at->second.object_store_spilled = heartbeat.object_store_spilled;
  at->second.workers = heartbeat.workers;
}

bool NodeTable::AcceptVersion(NodeId id, uint64_t version) {
  auto at = nodes_.find(id);
  if (at == nodes_.end() || version < at->second.resources_version) return false;
  at->second.resources_version = version;
  return true;
}

void NodeTable::Disconnected(NodeId id, uint64_t epoch) {
  auto at = nodes_.find(id);
  if (at != nodes_.end() && at->second.epoch == epoch) at->second.connected = false;
}

bool NodeTable::Leave(NodeId id, const std::string& reason, int64_t now_unix_ms) {
  auto at = nodes_.find(id);
  if (at == nodes_.end() || !at->second.alive) return false;
  Node& node = at->second;
  node.alive = false;
  node.connected = false;
  node.lost_unix_ms = now_unix_ms;
  node.lost_reason = reason;
  return true;
}

std::vector<NodeId> NodeTable::Expire(absl::Time now, int64_t now_unix_ms) {
  std::vector<NodeId> lost;
  for (auto& [id, node] : nodes_) {
    if (!node.alive || now - node.heard < options_.timeout) continue;
    node.alive = false;
    node.connected = false;
    node.lost_unix_ms = now_unix_ms;
    node.lost_reason = fmt::format("no heartbeat for {:.1f} s", absl::ToDoubleSeconds(now - node.heard));
    lost.push_back(id);
  }
  return lost;
}

const NodeTable::Node* NodeTable::Find(NodeId id) const {
  auto at = nodes_.find(id);
  return at == nodes_.end() ? nullptr : &at->second;
}

std::vector<const NodeTable::Node*> NodeTable::All() const {
  std::vector<const Node*> all;
  for (const auto& [id, node] : nodes_) all.push_back(&node);
  std::sort(all.begin(), all.end(), [](const Node* a, const Node* b) { return a->order < b->order; });
  return all;
}

const NodeTable::Node* NodeTable::HeadNode() const {
  const Node* found = nullptr;
  for (const auto& [id, node] : nodes_) {
    if (!node.alive || !node.description.is_head_node) continue;
    // After a restart the one of the earlier run may still count as alive.
    if (found == nullptr || (node.connected && !found->connected)) found = &node;
  }
  return found;
}

size_t NodeTable::alive_count() const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.alive; }));
}

std::vector<NodeId> NodeTable::TrimLost() {
  std::vector<const Node*> lost;
  for (const Node* node : All()) {
    if (!node->alive) lost.push_back(node);
  }
  std::vector<NodeId> removed;
  for (size_t i = 0; i + options_.lost_max < lost.size(); ++i) removed.push_back(lost[i]->description.id);
  for (NodeId id : removed) nodes_.erase(id);
  return removed;
}

}  // namespace argosy::head
