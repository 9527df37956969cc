#include "scheduler/node_index.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace argosy::scheduler {

size_t NodeIndex::Dimension(const std::string& name) {
  auto it = dimensions_.find(name);
  if (it != dimensions_.end()) return it->second;
  if (dimensions_.size() >= kIndexedMax) return kIndexedMax;
  size_t dimension = dimensions_.size();
  dimensions_[name] = dimension;
  return dimension;
}

NodeIndex::Need NodeIndex::NeedOf(const ResourceSet& resources) const {
  Need need;
  for (const auto& [name, amount] : resources.amounts()) {
    if (auto it = dimensions_.find(name); it != dimensions_.end()) need.emplace_back(it->second, amount.raw());
  }
  return need;
}

bool NodeIndex::MayFit(const Vertex& vertex, const Need& need) {
  for (const auto& [dimension, amount] : need) {
    if (vertex.available[dimension] < amount) return false;
  }
  return true;
}

NodeIndex::Vertex NodeIndex::Join(const Vertex& a, const Vertex& b) {
  Vertex joined;
  for (size_t i = 0; i < kIndexedMax; ++i) joined.available[i] = std::max(a.available[i], b.available[i]);
  joined.utilization = std::min(a.utilization, b.utilization);
  joined.last_taken = std::min(a.last_taken, b.last_taken);
  return joined;
}

NodeIndex::Vertex NodeIndex::LeafOf(const NodeView* node) {
  Vertex leaf;
  if (node != nullptr && node->alive && !node->draining) {
    leaf.available.fill(0);
    for (const auto& [name, amount] : node->available.amounts()) {
      if (size_t dimension = Dimension(name); dimension < kIndexedMax) leaf.available[dimension] = amount.raw();
    }
    leaf.utilization = node->Utilization();
    leaf.last_taken = static_cast<int64_t>(node->last_taken);
  }
  return leaf;
}

void NodeIndex::SetLeaf(Tree& tree, size_t slot, const NodeView* node) {
  tree.slots[slot] = node;
  size_t vertex = tree.leaves + slot;
  tree.vertices[vertex] = LeafOf(node);
  for (vertex /= 2; vertex >= 1; vertex /= 2)
    tree.vertices[vertex] = Join(tree.vertices[2 * vertex], tree.vertices[2 * vertex + 1]);
}

void NodeIndex::Rebuild(Tree& tree) {
  Tree rebuilt;
  rebuilt.leaves = 2 * tree.count > tree.leaves ? 2 * tree.leaves : std::max<size_t>(1, tree.leaves);
  rebuilt.count = tree.count;
  rebuilt.vertices.resize(2 * rebuilt.leaves);
  rebuilt.slots.resize(rebuilt.leaves, nullptr);
  for (const NodeView* node : tree.slots) {
    if (node == nullptr) continue;
    const size_t slot = rebuilt.next_slot++;
    places_.at(node->id).slot = slot;
    rebuilt.slots[slot] = node;
    rebuilt.vertices[rebuilt.leaves + slot] = LeafOf(node);
  }
  for (size_t i = rebuilt.leaves - 1; i >= 1; --i)
    rebuilt.vertices[i] = Join(rebuilt.vertices[2 * i], rebuilt.vertices[2 * i + 1]);
  tree = std::move(rebuilt);
}

void NodeIndex::Put(const NodeView& node, bool labels_changed) {
  auto [it, is_new] = places_.try_emplace(node.id);
  Place& place = it->second;
  if (is_new) {
    place.with_gpu = node.total.Get(kGpu) > Amount();
    place.node = &node;
    Tree& tree = trees_[place.with_gpu];
    if (tree.next_slot == tree.leaves) Rebuild(tree);
    place.slot = tree.next_slot++;
    ++tree.count;
    for (const auto& [name, amount] : node.total.amounts()) {
      by_resource_[name].insert(&node);
      place.resources.push_back(name);
    }
  }
  if (labels_changed || is_new) {
    for (const auto& label : place.labels) {
      auto found = by_label_.find(label);
      found->second.erase(&node);
      if (found->second.empty()) by_label_.erase(found);
    }
    place.labels = node.labels;
    for (const auto& label : place.labels) by_label_[label].insert(&node);
  }
  SetLeaf(trees_[place.with_gpu], place.slot, &node);
}

void NodeIndex::Erase(NodeId id) {
  auto it = places_.find(id);
  if (it == places_.end()) return;
  Place& place = it->second;
  for (const auto& label : place.labels) {
    auto found = by_label_.find(label);
    found->second.erase(place.node);
    if (found->second.empty()) by_label_.erase(found);
  }
  for (const std::string& name : place.resources) {
    auto found = by_resource_.find(name);
    found->second.erase(place.node);
    if (found->second.empty()) by_resource_.erase(found);
  }
  Tree& tree = trees_[place.with_gpu];
  SetLeaf(tree, place.slot, nullptr);
  --tree.count;
  places_.erase(it);
}

std::optional<std::vector<const NodeView*>> NodeIndex::FewCandidates(const Demand& demand) const {
  // The sets whose union holds every node that can match.
  std::vector<const std::set<const NodeView*>*> fewest;
  size_t fewest_size = kFewMax + 1;
  auto consider = [&](std::vector<const std::set<const NodeView*>*> sets) {
    size_t size = 0;
    for (const auto* set : sets) size += set->size();
    if (size >= fewest_size) return;
    fewest_size = size;
    fewest = std::move(sets);
  };
  for (const auto& [name, amount] : demand.resources.amounts()) {
    auto it = by_resource_.find(name);
    if (it == by_resource_.end()) return std::vector<const NodeView*>();
    consider({&it->second});
  }
  for (const auto& [key, condition] : demand.labels.conditions()) {
    if (condition.kind != LabelSelector::Condition::Kind::kIn) continue;
    std::vector<const std::set<const NodeView*>*> sets;
    for (const std::string& value : condition.values) {
      if (auto it = by_label_.find({key, value}); it != by_label_.end()) sets.push_back(&it->second);
    }
    consider(std::move(sets));
  }
  if (fewest_size > kFewMax) return std::nullopt;
  std::vector<const NodeView*> nodes;
  for (const auto* set : fewest) nodes.insert(nodes.end(), set->begin(), set->end());
  std::sort(nodes.begin(), nodes.end(), [](const NodeView* a, const NodeView* b) { return a->order < b->order; });
  return nodes;
}

const NodeView* NodeIndex::First(bool with_gpu, const ResourceSet& resources, int64_t utilization_below,
                                 const Accept& accept) const {
  const Tree& tree = trees_[with_gpu];
  if (tree.leaves == 0) return nullptr;
  return FirstBelow(tree, 1, NeedOf(resources), utilization_below, accept);
}

const NodeView* NodeIndex::FirstBelow(const Tree& tree, size_t vertex, const Need& need, int64_t utilization_below,
                                      const Accept& accept) const {
  const Vertex& bound = tree.vertices[vertex];
  if (bound.utilization >= utilization_below || !MayFit(bound, need)) return nullptr;
  if (vertex >= tree.leaves) {
    const NodeView* node = tree.slots[vertex - tree.leaves];
    return accept(*node) ? node : nullptr;
  }
  if (const NodeView* node = FirstBelow(tree, 2 * vertex, need, utilization_below, accept)) return node;
  return FirstBelow(tree, 2 * vertex + 1, need, utilization_below, accept);
}

const NodeView* NodeIndex::Least(bool with_gpu, const ResourceSet& resources, bool by_last_taken, const Accept& accept,
                                 Prng& prng) const {
  const Tree& tree = trees_[with_gpu];
  std::pair<int64_t, const NodeView*> best{kNever, nullptr};
  if (tree.leaves > 0) LeastBelow(tree, 1, NeedOf(resources), by_last_taken, accept, prng, best);
  return best.second;
}

void NodeIndex::LeastBelow(const Tree& tree, size_t vertex, const Need& need, bool by_last_taken, const Accept& accept,
                           Prng& prng, std::pair<int64_t, const NodeView*>& best) const {
  auto key = [&](size_t at) { return by_last_taken ? tree.vertices[at].last_taken : tree.vertices[at].utilization; };
  if (key(vertex) >= best.first || !MayFit(tree.vertices[vertex], need)) return;
  if (vertex >= tree.leaves) {
    const NodeView* node = tree.slots[vertex - tree.leaves];
    if (accept(*node)) best = {key(vertex), node};
    return;
  }
  size_t left = 2 * vertex, right = left + 1;
  if (key(right) < key(left) || (key(right) == key(left) && prng.Below(2) == 1)) std::swap(left, right);
  LeastBelow(tree, left, need, by_last_taken, accept, prng, best);
  LeastBelow(tree, right, need, by_last_taken, accept, prng, best);
}

}  // namespace argosy::scheduler
