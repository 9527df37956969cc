#include "scheduler/node_index.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "scheduler/filter.h"

namespace argosy::scheduler {
namespace {

// Packing ends where half of the critical resource is used.
constexpr int64_t kPackBelow = 5'000;

void Mix(size_t& seed, size_t value) { seed ^= value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2); }

bool ByOrder(const NodeView* a, const NodeView* b) { return a->order < b->order; }

template <class Key, class List>
void EraseFrom(std::map<Key, List, std::less<>>& lists, const std::string& key, const NodeView* node) {
  auto it = lists.find(key);
  List& list = it->second;
  list.erase(std::lower_bound(list.begin(), list.end(), node, ByOrder));
  if (list.empty()) lists.erase(it);
}

template <class List>
void InsertInto(List& list, const NodeView* node) {
  list.insert(std::upper_bound(list.begin(), list.end(), node, ByOrder), node);
}

}  // namespace

size_t NodeIndex::ShapeHash::operator()(const ColumnShapeRef& shape) const {
  size_t seed = shape.spread;
  const std::hash<std::string> hash;
  for (const auto& [name, amount] : shape.resources.amounts()) {
    Mix(seed, hash(name));
    Mix(seed, static_cast<size_t>(amount.raw()));
  }
  for (const auto& [key, condition] : shape.labels.conditions()) {
    Mix(seed, hash(key));
    Mix(seed, static_cast<size_t>(condition.kind));
    for (const std::string& value : condition.values) Mix(seed, hash(value));
  }
  return seed;
}

void NodeIndex::Init() {
  for (const char* name : {kCpu, kGpu, kMemory, kObjectStoreMemory}) Dimension(name);
}

uint32_t NodeIndex::Dimension(std::string_view name) {
  auto it = dimensions_.find(name);
  if (it == dimensions_.end()) it = dimensions_.emplace(name, static_cast<uint32_t>(dimensions_.size())).first;
  return it->second;
}

// ---- nodes ------------------------------------------------------------------------------------------------------------------------------

void NodeIndex::Dirty::Add(uint32_t slot, size_t leaves) {
  if (all) return;
  slots.push_back(slot);
  // So many are told faster all at once.
  if (slots.size() <= leaves / 8) return;
  all = true;
  slots.clear();
}

void NodeIndex::Put(const NodeView& node, bool identity_changed) {
  auto [it, is_new] = places_.try_emplace(node.id);
  Place& place = it->second;
  if (is_new) {
    place.with_gpu = node.total.Get(kGpu) > Amount();
    Side& side = sides_[place.with_gpu];
    if (side.next_slot == side.leaves) Rebuild(place.with_gpu);
    place.slot = static_cast<uint32_t>(side.next_slot++);
    ++side.count;
    Slot& slot = side.slots.emplace_back();
    slot.node = &node;
    for (const auto& [name, amount] : node.total.amounts()) {
      slot.dimensions.push_back(Dimension(name));
      InsertInto(by_resource_[name], &node);
    }
  }
  if (!std::exchange(place.labelled, true)) {
    for (const auto& [key, value] : node.labels) InsertInto(by_label_[key][value], &node);
  }
  Side& side = sides_[place.with_gpu];
  Slot& slot = side.slots[place.slot];
  slot.identity_changed |= identity_changed || is_new;
  if (!std::exchange(slot.in_columns_dirty, true)) side.columns_dirty.Add(place.slot, side.leaves);
  if (!std::exchange(slot.in_bounds_dirty, true)) side.bounds_dirty.Add(place.slot, side.leaves);
}

void NodeIndex::ForgetLabels(const NodeView& node) {
  if (!std::exchange(places_.at(node.id).labelled, false)) return;
  for (const auto& [key, value] : node.labels) {
    EraseFrom(by_label_.at(key), value, &node);
    if (by_label_.at(key).empty()) by_label_.erase(key);
  }
}

void NodeIndex::Erase(NodeId id) {
  auto it = places_.find(id);
  if (it == places_.end()) return;
  const Place& place = it->second;
  Side& side = sides_[place.with_gpu];
  Slot& slot = side.slots[place.slot];
  const NodeView* node = slot.node;
  ForgetLabels(*node);
  for (const auto& [name, amount] : node->total.amounts()) EraseFrom(by_resource_, name, node);
  slot.node = nullptr;
  slot.dimensions.clear();
  slot.identity_changed = true;
  --side.count;
  if (!std::exchange(slot.in_columns_dirty, true)) side.columns_dirty.Add(place.slot, side.leaves);
  if (!std::exchange(slot.in_bounds_dirty, true)) side.bounds_dirty.Add(place.slot, side.leaves);
  places_.erase(it);
}

void NodeIndex::Rebuild(size_t which) {
  Side& side = sides_[which];
  const size_t leaves = 2 * side.count > side.leaves ? 2 * side.leaves : std::max<size_t>(1, side.leaves);
  std::vector<Slot> slots;
  std::vector<size_t> old_slots;
  slots.reserve(leaves);
  for (size_t i = 0; i < side.slots.size(); ++i) {
    Slot& slot = side.slots[i];
    if (slot.node == nullptr) continue;
    places_.at(slot.node->id).slot = static_cast<uint32_t>(slots.size());
    slot.in_columns_dirty = slot.in_bounds_dirty = false;
    slots.push_back(std::move(slot));
    old_slots.push_back(i);
  }
  ForEachBlock([&](auto& block) {
    std::vector<uint32_t> may(leaves, 0);
    for (size_t i = 0; i < old_slots.size(); ++i) may[i] = block.may[which][old_slots[i]];
    block.may[which] = std::move(may);
    block.trees[which].Reset(leaves);
  });
  side.leaves = leaves;
  side.next_slot = slots.size();
  side.slots = std::move(slots);
  side.bounds.assign(2 * leaves, Bound());
  side.columns_dirty = {{}, true};
  side.bounds_dirty = {{}, true};
}

void NodeIndex::Read(const Slot& slot) {
  reading_.available.clear();
  reading_.utilization = 0;
  reading_.usable = false;
  if (slot.node == nullptr) return;
  const NodeView& node = *slot.node;
  reading_.usable = node.alive && !node.draining && node.gathered_for.IsNil();
  reading_.last_taken = static_cast<int64_t>(node.last_taken);
  auto have = node.available.amounts().begin();
  const auto end = node.available.amounts().end();
  size_t i = 0;
  for (const auto& [name, total] : node.total.amounts()) {
    while (have != end && have->first < name) ++have;
    const int64_t available = have != end && have->first == name ? have->second.raw() : 0;
    const uint32_t dimension = slot.dimensions[i++];
    reading_.available.emplace_back(dimension, available);
    if (dimension < kCriticalDimensions) reading_.utilization = std::max(reading_.utilization, NodeView::UsedShare(total.raw(), available));
  }
}

// ---- picking ----------------------------------------------------------------------------------------------------------------------------

NodeIndex::Known& NodeIndex::Ask(const Demand& demand, bool spread, uint32_t times, const NodeList*& few) {
  ++asked_;
  auto it = known_.find(ColumnShapeRef{demand.resources, demand.labels, spread});
  if (it == known_.end()) {
    if (known_.size() >= columns_known_ + kKnownShapesMax) std::erase_if(known_, [](const auto& entry) { return !entry.second.has_column; });
    it = known_.emplace(ColumnShape{demand.resources, demand.labels, spread}, Known()).first;
  }
  Known& known = it->second;
  if (!known.has_column) {
    few = FewCandidates(demand);
    known.asked += times;
    if (known.asked >= options_.column_after && (few == nullptr || few->size() > options_.few_without_column)) {
      if (spread) Admit<int64_t>(it->first, known);
      else Admit<int16_t>(it->first, known);
    }
  }
  if (known.has_column) {
    (spread ? spreading_[known.block]->columns[known.column].asked_at : packing_[known.block]->columns[known.column].asked_at) = asked_;
    TellColumns();
  }
  return known;
}

std::pair<size_t, size_t> NodeIndex::SidesFor(const Demand& demand) {
  return {demand.resources.Get(kGpu) > Amount() ? 1 : 0, 2};
}

const NodeView* NodeIndex::Pick(const Demand& demand, Prng& prng) {
  const bool spread = std::holds_alternative<SpreadStrategy>(demand.strategy);
  const NodeList* few = nullptr;
  const Known& known = Ask(demand, spread, 1, few);
  auto [side, end] = SidesFor(demand);
  for (; side < end; ++side) {
    const NodeView* node = nullptr;
    if (known.has_column) node = spread ? PickInColumn<int64_t>(known, side, prng) : PickInColumn<int16_t>(known, side, prng);
    else if (few != nullptr) node = PickAmong(*few, side == 1, demand, spread, prng);
    else node = PickByBounds(side, demand, spread, prng);
    if (node != nullptr) return node;
  }
  return nullptr;
}

const NodeView* NodeIndex::FirstFit(const Demand& demand) {
  const NodeList* few = nullptr;
  const Known& known = Ask(demand, false, 1, few);
  auto [side, end] = SidesFor(demand);
  for (; side < end; ++side) {
    if (known.has_column) {
      const ScoreTree<int16_t>& tree = packing_[known.block]->trees[side];
      if (tree.Least(known.column) == tree.kNever) continue;
      return sides_[side].slots[tree.FirstBelow(known.column, tree.kNever)].node;
    }
    if (few != nullptr) {
      for (const NodeView* node : *few) {
        if ((node->total.Get(kGpu) > Amount()) == (side == 1) && Check(*node, demand) == Filter::kNone) return node;
      }
    } else if (sides_[side].leaves > 0) {
      TellBounds(sides_[side]);
      const NodeView* node = FirstBelow(sides_[side], 1, NeedOf(demand.resources), std::numeric_limits<int64_t>::max(), demand);
      if (node != nullptr) return node;
    }
  }
  return nullptr;
}

std::optional<std::vector<const NodeView*>> NodeIndex::LeastUsed(const Demand& demand, size_t count) {
  const NodeList* few = nullptr;
  const Known& known = Ask(demand, false, options_.column_after, few);
  std::vector<const NodeView*> nodes;
  if (!known.has_column && few == nullptr) return std::nullopt;
  auto [side, end] = SidesFor(demand);
  for (; side < end; ++side) {
    if (known.has_column) {
      packing_[known.block]->trees[side].Ascending(known.column, [&](size_t slot) {
        if (nodes.size() < count) nodes.push_back(sides_[side].slots[slot].node);
        return nodes.size() < count;
      });
      continue;
    }
    std::vector<std::pair<int64_t, const NodeView*>> usable;
    for (const NodeView* node : *few) {
      if ((node->total.Get(kGpu) > Amount()) == (side == 1) && Check(*node, demand) == Filter::kNone) usable.push_back({node->Utilization(), node});
    }
    std::stable_sort(usable.begin(), usable.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [utilization, node] : usable) {
      if (nodes.size() < count) nodes.push_back(node);
    }
  }
  return nodes;
}

// ---- columns ----------------------------------------------------------------------------------------------------------------------------

template <>
NodeIndex::Blocks<int16_t>& NodeIndex::BlocksOf() {
  return packing_;
}
template <>
NodeIndex::Blocks<int64_t>& NodeIndex::BlocksOf() {
  return spreading_;
}

template <class Score>
uint32_t NodeIndex::Block<Score>::Fitting(const Reading& reading, uint32_t may_serve) const {
  if (!reading.usable) return 0;
  for (const auto& [dimension, available] : reading.available) {
    if (dimension >= limits.size() || limits[dimension].empty()) continue;
    const std::vector<Limit>& by_need = limits[dimension];
    auto above = std::upper_bound(by_need.begin() + 1, by_need.end(), available, [](int64_t have, const Limit& limit) { return have < limit.need; });
    may_serve &= (above - 1)->columns;
  }
  return may_serve;
}

template <class Score>
typename ScoreTree<Score>::Scores NodeIndex::Block<Score>::ScoresOf(const Reading& reading, uint32_t may_serve) const {
  const uint32_t fitting = Fitting(reading, may_serve);
  if (fitting == 0) return Tree::Never();
  typename Tree::Scores scores;
  const Score score = ScoreOf(reading, Score());
  for (size_t i = 0; i < Tree::kWidth; ++i) scores.of[i] = (fitting >> i & 1) != 0 ? score : Tree::kNever;
  return scores;
}

template <class Score>
const NodeView* NodeIndex::PickInColumn(const Known& known, size_t side, Prng& prng) {
  const ScoreTree<Score>& tree = BlocksOf<Score>()[known.block]->trees[side];
  const Score least = tree.Least(known.column);
  if (least == ScoreTree<Score>::kNever) return nullptr;
  const bool packs = std::is_same_v<Score, int16_t> && least < kPackBelow;
  const size_t slot = packs ? tree.FirstBelow(known.column, static_cast<Score>(kPackBelow)) : tree.FindLeast(known.column, prng);
  return sides_[side].slots[slot].node;
}

bool NodeIndex::MayServe(const NodeView& node, const ColumnShape& shape) {
  return node.alive && !node.draining && node.total.Contains(shape.resources) && shape.labels.Matches(node.labels);
}

template <class Score>
void NodeIndex::Admit(const ColumnShape& shape, Known& known) {
  constexpr size_t kWidth = ScoreTree<Score>::kWidth;
  Blocks<Score>& blocks = BlocksOf<Score>();
  const size_t blocks_max = std::max<size_t>(1, options_.columns_max * sizeof(int16_t) / sizeof(Score) / kWidth);
  size_t at = 0, column = 0;
  if (!blocks.empty() && blocks.back()->used < kWidth) {
    at = blocks.size() - 1;
    column = blocks.back()->used++;
  } else if (blocks.size() < blocks_max) {
    auto block = std::make_unique<Block<Score>>();
    for (size_t side : {0, 1}) {
      block->may[side].assign(sides_[side].leaves, 0);
      block->trees[side].Reset(sides_[side].leaves);
    }
    block->used = 1;
    at = blocks.size();
    blocks.push_back(std::move(block));
  } else {
    // Now and then, so that the search costs nothing, and so seldom that making columns costs a question little when shapes are many: the column that
    // was asked longest ago, if that is long.
    if ((known.asked - options_.column_after) % 64 != 0 || asked_ < next_replacement_) return;
    uint64_t oldest = asked_;
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (size_t c = 0; c < kWidth; ++c) {
        if (blocks[b]->columns[c].asked_at < oldest) at = b, column = c, oldest = blocks[b]->columns[c].asked_at;
      }
    }
    if (asked_ - oldest < 8 * options_.columns_max) return;
    next_replacement_ = asked_ + places_.size() / 8;
    known_.find(*blocks[at]->columns[column].shape)->second.has_column = false;
    --columns_known_;
  }
  known.has_column = true;
  known.block = static_cast<uint16_t>(at);
  known.column = static_cast<uint16_t>(column);
  ++columns_known_;
  blocks[at]->columns[column] = {&shape, asked_};
  ReadLimits(*blocks[at]);
  FillColumn(*blocks[at], column);
}

template <class Score>
void NodeIndex::ReadLimits(Block<Score>& block) {
  block.limits.clear();
  uint32_t all = 0;
  for (size_t c = 0; c < block.used; ++c) {
    all |= 1u << c;
    for (const auto& [name, amount] : block.columns[c].shape->resources.amounts()) {
      const uint32_t dimension = Dimension(name);
      if (dimension >= block.limits.size()) block.limits.resize(dimension + 1);
      block.limits[dimension].push_back({amount.raw(), 1u << c});
    }
  }
  for (std::vector<typename Block<Score>::Limit>& limits : block.limits) {
    if (limits.empty()) continue;
    uint32_t columns = all;
    for (const auto& limit : limits) columns &= ~limit.columns;
    std::sort(limits.begin(), limits.end(), [](const auto& a, const auto& b) { return a.need < b.need; });
    limits.insert(limits.begin(), {std::numeric_limits<int64_t>::min(), columns});
    for (size_t i = 1; i < limits.size(); ++i) limits[i].columns |= limits[i - 1].columns;
  }
}

template <class Score>
void NodeIndex::FillColumn(Block<Score>& block, size_t column) {
  const ColumnShape& shape = *block.columns[column].shape;
  const uint32_t bit = 1u << column;
  for (size_t which : {0, 1}) {
    Side& side = sides_[which];
    if (side.leaves == 0) continue;
    std::vector<uint32_t>& may = block.may[which];
    for (size_t slot = 0; slot < side.slots.size(); ++slot) {
      const NodeView* node = side.slots[slot].node;
      may[slot] &= ~bit;
      Score& score = block.trees[which].leaf(slot).of[column];
      score = ScoreTree<Score>::kNever;
      if (node == nullptr || !MayServe(*node, shape)) continue;
      may[slot] |= bit;
      Read(side.slots[slot]);
      if (block.Fitting(reading_, bit) != 0) score = ScoreOf(reading_, Score());
    }
    block.trees[which].Join();
  }
}

void NodeIndex::TellColumns() {
  for (size_t which : {0, 1}) {
    Side& side = sides_[which];
    Dirty& dirty = side.columns_dirty;
    auto tell = [&](uint32_t at, bool one) {
      Slot& slot = side.slots[at];
      slot.in_columns_dirty = false;
      Read(slot);
      const bool identity_changed = std::exchange(slot.identity_changed, false);
      ForEachBlock([&](auto& block) {
        uint32_t& may = block.may[which][at];
        if (identity_changed) {
          may = 0;
          for (size_t c = 0; slot.node != nullptr && c < block.used; ++c) {
            if (MayServe(*slot.node, *block.columns[c].shape)) may |= 1u << c;
          }
        }
        const auto scores = block.ScoresOf(reading_, may);
        if (one) block.trees[which].Set(at, scores);
        else block.trees[which].leaf(at) = scores;
      });
    };
    for (uint32_t slot : dirty.slots) tell(slot, true);
    if (dirty.all) {
      for (uint32_t slot = 0; slot < side.slots.size(); ++slot) tell(slot, false);
      ForEachBlock([&](auto& block) { block.trees[which].Join(); });
    }
    dirty.slots.clear();
    dirty.all = false;
  }
}

size_t NodeIndex::column_count() const { return columns_known_; }

// ---- lists ------------------------------------------------------------------------------------------------------------------------------

const NodeIndex::NodeList* NodeIndex::FewCandidates(const Demand& demand) {
  static const NodeList kNone;
  const NodeList* fewest = nullptr;
  size_t fewest_size = kFewMax + 1;
  for (const auto& [name, amount] : demand.resources.amounts()) {
    auto it = by_resource_.find(name);
    if (it == by_resource_.end()) return &kNone;
    if (it->second.size() < fewest_size) fewest = &it->second, fewest_size = fewest->size();
  }
  for (const auto& [key, condition] : demand.labels.conditions()) {
    if (condition.kind != LabelSelector::Condition::Kind::kIn) continue;
    auto values = by_label_.find(key);
    if (values == by_label_.end()) return &kNone;
    std::vector<const NodeList*> lists;
    size_t size = 0;
    for (const std::string& value : condition.values) {
      auto it = values->second.find(value);
      if (it == values->second.end()) continue;
      lists.push_back(&it->second);
      size += it->second.size();
    }
    if (size >= fewest_size) continue;
    fewest_size = size;
    if (lists.size() == 1) {
      fewest = lists.front();
      continue;
    }
    few_.clear();
    for (const NodeList* list : lists) few_.insert(few_.end(), list->begin(), list->end());
    std::sort(few_.begin(), few_.end(), ByOrder);
    fewest = &few_;
  }
  return fewest;
}

// Scored as the columns score all.
const NodeView* NodeIndex::PickAmong(const NodeList& candidates, bool with_gpu, const Demand& demand, bool spread, Prng& prng) {
  const NodeView* best = nullptr;
  int64_t best_key = 0;
  uint64_t ties = 0;
  for (const NodeView* node : candidates) {
    if ((node->total.Get(kGpu) > Amount()) != with_gpu || Check(*node, demand) != Filter::kNone) continue;
    const int64_t utilization = node->Utilization();
    if (!spread && utilization < kPackBelow) return node;
    const int64_t key = spread ? static_cast<int64_t>(node->last_taken) : utilization;
    if (best == nullptr || key < best_key) {
      best = node;
      best_key = key;
      ties = 1;
    } else if (key == best_key && prng.Below(++ties) == 0) {
      best = node;
    }
  }
  return best;
}

// ---- bounds -----------------------------------------------------------------------------------------------------------------------------

NodeIndex::Need NodeIndex::NeedOf(const ResourceSet& resources) const {
  Need need;
  for (const auto& [name, amount] : resources.amounts()) {
    auto it = dimensions_.find(name);
    if (it != dimensions_.end() && it->second < kBoundsMax) need.emplace_back(it->second, amount.raw());
  }
  return need;
}

bool NodeIndex::MayFit(const Bound& bound, const Need& need) {
  for (const auto& [dimension, amount] : need) {
    if (bound.available[dimension] < amount) return false;
  }
  return true;
}

NodeIndex::Bound NodeIndex::BoundOf(const Slot& slot) {
  Bound bound;
  Read(slot);
  if (!reading_.usable) return bound;
  bound.available.fill(0);
  for (const auto& [dimension, available] : reading_.available) {
    if (dimension < kBoundsMax) bound.available[dimension] = available;
  }
  bound.utilization = reading_.utilization;
  bound.last_taken = reading_.last_taken;
  return bound;
}

NodeIndex::Bound NodeIndex::JoinBounds(const Bound& a, const Bound& b) const {
  Bound joined;
  const size_t dimensions = std::min(dimensions_.size(), kBoundsMax);
  for (size_t i = 0; i < dimensions; ++i) joined.available[i] = std::max(a.available[i], b.available[i]);
  joined.utilization = std::min(a.utilization, b.utilization);
  joined.last_taken = std::min(a.last_taken, b.last_taken);
  return joined;
}

void NodeIndex::TellBounds(Side& side) {
  Dirty& dirty = side.bounds_dirty;
  auto join = [&](size_t vertex) { side.bounds[vertex] = JoinBounds(side.bounds[2 * vertex], side.bounds[2 * vertex + 1]); };
  auto tell = [&](size_t at) {
    side.slots[at].in_bounds_dirty = false;
    side.bounds[side.leaves + at] = BoundOf(side.slots[at]);
  };
  for (uint32_t slot : dirty.slots) {
    tell(slot);
    for (size_t vertex = (side.leaves + slot) / 2; vertex >= 1; vertex /= 2) join(vertex);
  }
  if (dirty.all) {
    for (size_t slot = 0; slot < side.slots.size(); ++slot) tell(slot);
    for (size_t vertex = side.leaves; vertex-- > 1;) join(vertex);
  }
  dirty.slots.clear();
  dirty.all = false;
}

const NodeView* NodeIndex::PickByBounds(size_t which, const Demand& demand, bool spread, Prng& prng) {
  Side& side = sides_[which];
  if (side.leaves == 0) return nullptr;
  TellBounds(side);
  const Need need = NeedOf(demand.resources);
  if (!spread) {
    if (const NodeView* node = FirstBelow(side, 1, need, kPackBelow, demand)) return node;
  }
  std::pair<int64_t, const NodeView*> best{std::numeric_limits<int64_t>::max(), nullptr};
  LeastBelow(side, 1, need, spread, demand, prng, best);
  return best.second;
}

const NodeView* NodeIndex::FirstBelow(const Side& side, size_t vertex, const Need& need, int64_t utilization_below,
                                      const Demand& demand) const {
  const Bound& bound = side.bounds[vertex];
  if (bound.utilization >= utilization_below || !MayFit(bound, need)) return nullptr;
  if (vertex >= side.leaves) {
    const NodeView* node = side.slots[vertex - side.leaves].node;
    return Check(*node, demand) == Filter::kNone ? node : nullptr;
  }
  if (const NodeView* node = FirstBelow(side, 2 * vertex, need, utilization_below, demand)) return node;
  return FirstBelow(side, 2 * vertex + 1, need, utilization_below, demand);
}

void NodeIndex::LeastBelow(const Side& side, size_t vertex, const Need& need, bool by_last_taken, const Demand& demand, Prng& prng,
                           std::pair<int64_t, const NodeView*>& best) const {
  auto key = [&](size_t at) { return by_last_taken ? side.bounds[at].last_taken : side.bounds[at].utilization; };
  if (key(vertex) >= best.first || !MayFit(side.bounds[vertex], need)) return;
  if (vertex >= side.leaves) {
    const NodeView* node = side.slots[vertex - side.leaves].node;
    if (Check(*node, demand) == Filter::kNone) best = {key(vertex), node};
    return;
  }
  size_t left = 2 * vertex, right = left + 1;
  if (key(right) < key(left) || (key(right) == key(left) && prng.Below(2) == 1)) std::swap(left, right);
  LeastBelow(side, left, need, by_last_taken, demand, prng, best);
  LeastBelow(side, right, need, by_last_taken, demand, prng, best);
}

}  // namespace argosy::scheduler
