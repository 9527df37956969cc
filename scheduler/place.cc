#include "scheduler/place.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "scheduler/filter.h"
#include "scheduler/node_index.h"

namespace argosy::scheduler {
namespace {

std::optional<NodeId> IdOf(const NodeView* node) {
  if (node == nullptr) return std::nullopt;
  return node->id;
}

const NodeView* PickBundle(const ClusterView& view, const Demand& demand, const BundleAffinity& affinity) {
  const std::map<int, NodeId>* bundles = view.BundlesOf(affinity.group);
  if (bundles == nullptr) return nullptr;
  if (affinity.bundle_index >= 0) {
    auto it = bundles->find(affinity.bundle_index);
    const NodeView* node = it == bundles->end() ? nullptr : view.Find(it->second);
    return node != nullptr && Check(*node, demand) == Filter::kNone ? node : nullptr;
  }
  for (const auto& [index, id] : *bundles) {
    const NodeView* node = view.Find(id);
    // One bundle is looked at before all of its node's are.
    if (!node->bundles.at({affinity.group, index}).available.Contains(demand.resources)) continue;
    if (Check(*node, demand) == Filter::kNone) return node;
  }
  return nullptr;
}

}  // namespace

std::optional<NodeId> Place(const ClusterView& view, const Demand& asked, Prng& prng) {
  const auto* wish = std::get_if<NodeAffinity>(&asked.strategy);
  if (wish != nullptr && wish->soft) return Place(view, Resolve(view, asked), prng);
  const Demand& demand = asked;
  if (const auto* bundle = std::get_if<BundleAffinity>(&demand.strategy))
    return IdOf(PickBundle(view, demand, *bundle));
  if (const auto* affinity = std::get_if<NodeAffinity>(&demand.strategy)) {
    const NodeView* node = view.Find(affinity->node);
    return node != nullptr && Check(*node, demand) == Filter::kNone ? IdOf(node) : std::nullopt;
  }
  if (!demand.locality.empty() && std::holds_alternative<DefaultStrategy>(demand.strategy)) {
    std::map<NodeId, int64_t> bytes;
    for (const Locality& locality : demand.locality) bytes[locality.node] += locality.bytes;
    const NodeView* nearest = nullptr;
    for (const auto& [id, amount] : bytes) {
      const NodeView* node = view.Find(id);
      if (node == nullptr || amount <= 0 || (nearest != nullptr && amount <= bytes.at(nearest->id))) continue;
      if (Check(*node, demand) == Filter::kNone) nearest = node;
    }
    if (nearest != nullptr) return nearest->id;
  }
  return IdOf(view.index().Pick(demand, prng));
}

namespace {

// Bundles that ask for the same.
struct BundleKind {
  ResourceSet resources;
  LabelSelector labels;
  std::vector<int64_t> need;          // by the names that the group asks for
  std::vector<int> bundles;
  std::vector<uint32_t> able;         // nodes that may hold one when nothing runs there
  std::vector<uint32_t> candidates;   // those of them that have room for one, if alone
  bool wants_gpu = false;
};

struct Candidate {
  const NodeView* node = nullptr;
  int64_t utilization = 0;
  bool with_gpu = false;
  int held = 0;   // bundles of the group
};

// Search steps after which a placement that greedy choice did not find is given up, and nodes that it may look at for them.
constexpr int kSearchStepsMax = 20'000;
constexpr int kSearchLooksMax = 2'000'000;
// Above this many bundles so few steps find nothing that greedy choice missed.
constexpr size_t kSearchBundlesMax = 64;
// With more kinds of bundle than this, nodes are not counted again when all bundles of one kind are placed.
constexpr size_t kRecountedKindsMax = 16;

// With more kinds of bundle than this, each node is looked at rather than the best ones for each kind.
constexpr size_t kIndexedKindsMax = 16;

// One placement of one group. Where the index can tell, it looks only at the first node that holds all bundles or at as many nodes as there are
// bundles; else at each node once. Amounts are kept for the names that the group asks for alone.
class GroupPlacer {
 public:
  GroupPlacer(const ClusterView& view, const GroupDemand& demand, Prng& prng, const GroupPlaceOptions& options)
      : view_(view), demand_(demand), prng_(prng), options_(options), result_(demand.bundles.size()) {
    for (size_t i = 0; i < options.placed.size() && i < result_.size(); ++i) {
      result_[i] = options.placed[i];
      if (!result_[i].IsNil()) ++held_[result_[i]];
    }
    FindKinds();
  }

  std::optional<std::vector<NodeId>> Run() {
    if (kinds_.empty()) return result_;
    const bool pack = demand_.strategy == GroupStrategy::kPack || demand_.strategy == GroupStrategy::kStrictPack;
    if (std::optional<Demand> all = pack && IndexKnowsAll() ? AllAtOnce() : std::nullopt) {
      if (const NodeView* node = view_.index().FirstFit(*all)) {
        result_.assign(result_.size(), node->id);
        return result_;
      }
      if (demand_.strategy == GroupStrategy::kStrictPack) return std::nullopt;
    }
    Collect();
    for (const BundleKind& kind : kinds_) {
      if (kind.candidates.empty()) return std::nullopt;
    }
    bool found = false;
    switch (demand_.strategy) {
      case GroupStrategy::kStrictPack: found = OneNode(); break;
      case GroupStrategy::kStrictSpread: found = Matching(); break;
      case GroupStrategy::kPack: found = Try(&GroupPlacer::Fewest) || Try(&GroupPlacer::Search); break;
      case GroupStrategy::kSpread: found = Try(&GroupPlacer::Most) || Try(&GroupPlacer::Search); break;
    }
    if (!found) return std::nullopt;
    return result_;
  }

 private:
  static int64_t Size(const BundleKind& kind) {
    int64_t sum = 0;
    for (const char* name : {kGpu, kCpu}) sum += kind.resources.Get(name).raw();
    return sum;
  }

  void FindKinds() {
    std::map<std::pair<ResourceSet, LabelSelector>, std::vector<int>> bundles;
    for (size_t i = 0; i < result_.size(); ++i) {
      const BundleDemand& bundle = demand_.bundles[i];
      if (result_[i].IsNil()) bundles[{bundle.resources, bundle.labels}].push_back(static_cast<int>(i));
    }
    ResourceSet all;
    for (const auto& [key, of] : bundles) all.Add(key.first);
    for (const auto& [name, amount] : all.amounts()) names_.push_back(name);
    for (auto& [key, of] : bundles) {
      BundleKind kind;
      kind.resources = key.first;
      kind.labels = key.second;
      for (const std::string& name : names_) kind.need.push_back(kind.resources.Get(name).raw());
      kind.wants_gpu = kind.resources.Get(kGpu) > Amount();
      kind.bundles = std::move(of);
      kinds_.push_back(std::move(kind));
    }
  }

  // The index knows what is usable now by anybody.
  bool IndexKnowsAll() const { return !options_.ignore_usage && held_.empty() && !view_.IsGathering(options_.group); }

  // What a node must have that holds all bundles, when they agree about labels and the sums are amounts.
  std::optional<Demand> AllAtOnce() const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
    Demand all;
    all.labels = kinds_.front().labels;
    for (const BundleKind& kind : kinds_) {
      if (kind.labels != all.labels) return std::nullopt;
      const int64_t count = static_cast<int64_t>(kind.bundles.size());
      for (const auto& [name, amount] : kind.resources.amounts()) {
        const int64_t before = all.resources.Get(name).raw();
        if (amount.raw() > (kMost - before) / count) return std::nullopt;
        all.resources.Set(name, Amount::FromRaw(before + amount.raw() * count));
      }
    }
    return all;
  }

  // The nodes to choose from.
  void Collect() {
    const bool spreads = demand_.strategy == GroupStrategy::kSpread || demand_.strategy == GroupStrategy::kStrictSpread;
    if (!spreads || !IndexKnowsAll() || !CollectByIndex()) {
      for (const NodeView* node : view_.Nodes()) {
        if (!node->alive || node->draining) continue;
        if (!options_.ignore_usage && !node->gathered_for.IsNil() && node->gathered_for != options_.group) continue;
        AddCandidate(*node);
      }
    }
    // Those with fewest choices first, then the largest.
    std::stable_sort(kinds_.begin(), kinds_.end(), [](const BundleKind& a, const BundleKind& b) {
      if (a.candidates.size() != b.candidates.size()) return a.candidates.size() < b.candidates.size();
      return Size(a) > Size(b);
    });
    kinds_at_.assign(candidates_.size() + 1, 0);
    for (const BundleKind& kind : kinds_) {
      for (uint32_t c : kind.able) ++kinds_at_[c + 1];
    }
    for (size_t c = 0; c < candidates_.size(); ++c) kinds_at_[c + 1] += kinds_at_[c];
    kinds_of_.resize(kinds_at_.back());
    std::vector<uint32_t> next(kinds_at_.begin(), kinds_at_.end() - 1);
    for (uint32_t k = 0; k < kinds_.size(); ++k) {
      for (uint32_t c : kinds_[k].able) kinds_of_[next[c]++] = k;
    }
  }

  // For each kind as many of the least used nodes as there are bundles: one of them is always free of the others.
  bool CollectByIndex() {
    if (kinds_.size() > kIndexedKindsMax) return false;
    std::vector<const NodeView*> nodes;
    for (const BundleKind& kind : kinds_) {
      auto best = view_.index().LeastUsed({kind.resources, kind.labels, DefaultStrategy{}, {}}, result_.size());
      if (!best) return false;
      nodes.insert(nodes.end(), best->begin(), best->end());
    }
    std::sort(nodes.begin(), nodes.end(), [](const NodeView* a, const NodeView* b) { return a->order < b->order; });
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    for (const NodeView* node : nodes) AddCandidate(*node);
    return true;
  }

  void AddCandidate(const NodeView& node) {
    const uint32_t c = static_cast<uint32_t>(candidates_.size());
    candidates_.push_back({&node, 0, false, 0});
    ReadAmounts(node.total, totals_);
    ReadAmounts(options_.ignore_usage ? node.total : node.available, scratch_);
    free_.insert(free_.end(), scratch_.begin(), scratch_.end());
    if (auto it = held_.find(node.id); it != held_.end()) {
      candidates_[c].held = it->second;
      if (options_.ignore_usage) SpendPlaced(c);
    }
    bool any = false;
    for (BundleKind& kind : kinds_) {
      if (!Covers(totals_.data(), kind.need) || !kind.labels.Matches(node.labels)) continue;
      kind.able.push_back(c);
      if (!Fits(c, kind)) continue;
      kind.candidates.push_back(c);
      any = true;
    }
    if (any) {
      candidates_[c].utilization = node.Utilization();
      candidates_[c].with_gpu = node.total.Get(kGpu) > Amount();
    } else if (candidates_[c].held == 0) {
      // Of no use; and it was the last of whoever is able.
      for (BundleKind& kind : kinds_) {
        if (!kind.able.empty() && kind.able.back() == c) kind.able.pop_back();
      }
      candidates_.pop_back();
      free_.resize(free_.size() - names_.size());
    }
  }

  // By the names that the group asks for.
  void ReadAmounts(const ResourceSet& set, std::vector<int64_t>& amounts) const {
    amounts.assign(names_.size(), 0);
    auto has = set.amounts().begin();
    for (size_t n = 0; n < names_.size(); ++n) {
      while (has != set.amounts().end() && has->first < names_[n]) ++has;
      if (has != set.amounts().end() && has->first == names_[n]) amounts[n] = has->second.raw();
    }
  }

  int64_t* Free(size_t c) { return free_.data() + c * names_.size(); }
  const int64_t* Free(size_t c) const { return free_.data() + c * names_.size(); }

  void SpendPlaced(size_t c) {
    for (size_t i = 0; i < result_.size(); ++i) {
      if (result_[i] != candidates_[c].node->id) continue;
      for (size_t n = 0; n < names_.size(); ++n) Free(c)[n] -= demand_.bundles[i].resources.Get(names_[n]).raw();
    }
  }

  // Of a node that is able.
  bool Fits(size_t c, const BundleKind& kind) const { return Covers(Free(c), kind.need); }
  static bool Covers(const int64_t* free, const std::vector<int64_t>& need) {
    for (size_t n = 0; n < need.size(); ++n) {
      if (need[n] > 0 && free[n] < need[n]) return false;
    }
    return true;
  }

  void Assign(int bundle, size_t c, const BundleKind& kind) {
    for (size_t n = 0; n < names_.size(); ++n) Free(c)[n] -= kind.need[n];
    ++candidates_[c].held;
    result_[static_cast<size_t>(bundle)] = candidates_[c].node->id;
  }

  // Runs `method` and undoes what it did when it fails.
  bool Try(bool (GroupPlacer::*method)()) {
    const std::vector<Candidate> candidates = candidates_;
    const std::vector<int64_t> free = free_;
    const std::vector<NodeId> result = result_;
    if ((this->*method)()) return true;
    candidates_ = candidates;
    free_ = free;
    result_ = result;
    return false;
  }

  // Lower is better, when nothing else decides: no GPU that nobody asks for, then the emptier node when spreading, the
  // fuller when packing.
  using Preference = std::pair<int, int64_t>;
  Preference PreferenceOf(size_t c, bool wants_gpu, bool pack) const {
    const Candidate& candidate = candidates_[c];
    return {candidate.with_gpu && !wants_gpu, pack ? -candidate.utilization : candidate.utilization};
  }

  bool OneNode() {
    std::vector<int64_t> sum(names_.size(), 0);
    bool wants_gpu = false;
    for (const BundleKind& kind : kinds_) {
      wants_gpu |= kind.wants_gpu;
      for (size_t n = 0; n < names_.size(); ++n) sum[n] += kind.need[n] * static_cast<int64_t>(kind.bundles.size());
    }
    // A bundle that is placed already decides the node.
    const bool bound = std::any_of(result_.begin(), result_.end(), [](NodeId id) { return !id.IsNil(); });
    std::optional<uint32_t> best;
    for (uint32_t c : kinds_.front().candidates) {
      if (bound && candidates_[c].held == 0) continue;
      if (kinds_at_[c + 1] - kinds_at_[c] < kinds_.size() || !Covers(Free(c), sum)) continue;
      if (!best || PreferenceOf(c, wants_gpu, true) < PreferenceOf(*best, wants_gpu, true)) best = c;
    }
    if (!best) return false;
    for (const BundleKind& kind : kinds_) {
      for (int bundle : kind.bundles) Assign(bundle, *best, kind);
    }
    return true;
  }

  // Each bundle to a node of its own: augmenting paths (Kuhn 1955), kinds with few choices first.
  bool Matching() {
    std::vector<size_t> kind_of;
    std::vector<int> bundle_of;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      for (int bundle : kinds_[k].bundles) {
        kind_of.push_back(k);
        bundle_of.push_back(bundle);
      }
    }
    // As many choices as there are bundles are enough: one of them is always free.
    std::vector<std::vector<uint32_t>> choices(kinds_.size());
    for (size_t k = 0; k < kinds_.size(); ++k) {
      std::vector<std::pair<Preference, uint32_t>> order;
      for (uint32_t c : kinds_[k].candidates) {
        if (candidates_[c].held == 0) order.push_back({PreferenceOf(c, kinds_[k].wants_gpu, false), c});
      }
      const size_t enough = std::min(order.size(), kind_of.size());
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(enough), order.end());
      for (size_t i = 0; i < enough; ++i) choices[k].push_back(order[i].second);
    }
    constexpr size_t kNone = std::numeric_limits<size_t>::max();
    std::vector<size_t> taken_by(candidates_.size(), kNone);
    std::vector<size_t> visited_for(candidates_.size(), kNone);
    std::vector<size_t> next_free(kinds_.size(), 0);   // what is taken stays so
    auto augment = [&](auto& self, size_t which, size_t root) -> bool {
      const std::vector<uint32_t>& order = choices[kind_of[which]];
      size_t& next = next_free[kind_of[which]];
      while (next < order.size() && taken_by[order[next]] != kNone) ++next;
      if (next < order.size()) {
        taken_by[order[next]] = which;
        return true;
      }
      for (uint32_t c : order) {
        if (std::exchange(visited_for[c], root) == root) continue;
        if (!self(self, taken_by[c], root)) continue;
        taken_by[c] = which;
        return true;
      }
      return false;
    };
    for (size_t which = 0; which < kind_of.size(); ++which) {
      if (!augment(augment, which, which)) return false;
    }
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (taken_by[c] != kNone) Assign(bundle_of[taken_by[c]], c, kinds_[kind_of[taken_by[c]]]);
    }
    return true;
  }

  // How many of the bundles that are left a node holds, kinds with few choices first.
  struct Load {
    size_t count = 0;
    bool wants_gpu = false;
    std::vector<std::pair<uint32_t, size_t>> of;   // kind and bundles
  };
  void Count(size_t c, const std::vector<size_t>& left, Load& load) {
    load.count = 0;
    load.wants_gpu = false;
    load.of.clear();
    scratch_.assign(Free(c), Free(c) + names_.size());
    for (size_t at = kinds_at_[c]; at < kinds_at_[c + 1]; ++at) {
      const uint32_t k = kinds_of_[at];
      const BundleKind& kind = kinds_[k];
      int64_t times = static_cast<int64_t>(left[k]);
      for (size_t n = 0; n < names_.size() && times > 0; ++n) {
        if (kind.need[n] > 0) times = std::min(times, scratch_[n] / kind.need[n]);
      }
      if (times <= 0) continue;
      for (size_t n = 0; n < names_.size(); ++n) scratch_[n] -= times * kind.need[n];
      load.of.push_back({k, static_cast<size_t>(times)});
      load.count += static_cast<size_t>(times);
      load.wants_gpu |= kind.wants_gpu;
    }
  }

  // Nodes one by one, each time the one that holds most of what is left. What a node can hold is counted again when it is the best by its last count,
  // and for all nodes when the bundles of one kind are placed, which may make room for others.
  bool Fewest() {
    using Score = std::tuple<int64_t, Preference, uint32_t>;
    std::vector<size_t> left;
    for (const BundleKind& kind : kinds_) left.push_back(kind.bundles.size());
    size_t missing = std::accumulate(left.begin(), left.end(), size_t{0});
    Load load;
    auto score_of = [&](uint32_t c) {
      Count(c, left, load);
      // A node that the group uses already counts as holding one more.
      return Score{-static_cast<int64_t>(load.count) - (candidates_[c].held > 0 ? 1 : 0), PreferenceOf(c, load.wants_gpu, true), c};
    };
    std::vector<Score> heap;
    auto count_all = [&] {
      heap.clear();
      for (uint32_t c = 0; c < candidates_.size(); ++c) {
        const Score score = score_of(c);
        if (load.count > 0) heap.push_back(score);
      }
      std::make_heap(heap.begin(), heap.end(), std::greater<>());
    };
    count_all();
    while (missing > 0) {
      if (heap.empty()) return false;
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const Score before = heap.back();
      const uint32_t c = std::get<uint32_t>(before);
      const Score score = score_of(c);
      if (load.count == 0) {
        heap.pop_back();
        continue;
      }
      if (before < score) {
        heap.back() = score;
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
        continue;
      }
      heap.pop_back();
      bool kind_done = false;
      for (const auto& [k, times] : load.of) {
        for (size_t i = 0; i < times; ++i) {
          Assign(kinds_[k].bundles[kinds_[k].bundles.size() - left[k]], c, kinds_[k]);
          --left[k];
          --missing;
        }
        kind_done |= left[k] == 0;
      }
      if (kind_done && missing > 0 && kinds_.size() <= kRecountedKindsMax) count_all();
    }
    return true;
  }

  // Each bundle to the node that holds fewest of the group.
  bool Most() {
    using Score = std::tuple<int, Preference, uint64_t, uint32_t>;   // held, preference, ties at random, node
    std::vector<Score> heap;
    for (const BundleKind& kind : kinds_) {
      heap.clear();
      for (uint32_t c : kind.candidates) heap.push_back({candidates_[c].held, PreferenceOf(c, kind.wants_gpu, false), prng_.Next(), c});
      std::make_heap(heap.begin(), heap.end(), std::greater<>());
      for (size_t placed = 0; placed < kind.bundles.size();) {
        if (heap.empty()) return false;
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const uint32_t c = std::get<uint32_t>(heap.back());
        if (!Fits(c, kind)) {
          heap.pop_back();
          continue;
        }
        if (std::get<0>(heap.back()) == candidates_[c].held) Assign(kind.bundles[placed++], c, kind);
        std::get<0>(heap.back()) = candidates_[c].held;
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    }
    return true;
  }

  // Every assignment, up to a number of steps. Equal bundles go to nodes in ascending order, so that no two branches
  // differ by their names only.
  bool Search() {
    if (result_.size() > kSearchBundlesMax) return false;
    int steps = 0, looks = 0;
    auto place = [&](auto& self, size_t k, size_t i, size_t from) -> bool {
      if (k == kinds_.size()) return true;
      const BundleKind& kind = kinds_[k];
      if (i == kind.bundles.size()) return self(self, k + 1, 0, 0);
      for (size_t at = from; at < kind.candidates.size(); ++at) {
        if (++looks > kSearchLooksMax) return false;
        const size_t c = kind.candidates[at];
        if (!Fits(c, kind)) continue;
        if (++steps > kSearchStepsMax) return false;
        Assign(kind.bundles[i], c, kind);
        if (self(self, k, i + 1, at)) return true;
        for (size_t n = 0; n < names_.size(); ++n) Free(c)[n] += kind.need[n];
        --candidates_[c].held;
      }
      return false;
    };
    return place(place, 0, 0, 0);
  }

  const ClusterView& view_;
  const GroupDemand& demand_;
  Prng& prng_;
  const GroupPlaceOptions& options_;
  std::vector<NodeId> result_;
  std::map<NodeId, int> held_;       // bundles that were placed before
  std::vector<std::string> names_;   // of resources that the group asks for, ascending
  std::vector<Candidate> candidates_;
  std::vector<int64_t> free_;        // by candidate and name
  std::vector<BundleKind> kinds_;
  // The kinds that a candidate is able to hold, ascending: kinds_of_ from kinds_at_[c] up to kinds_at_[c + 1].
  std::vector<uint32_t> kinds_at_;
  std::vector<uint32_t> kinds_of_;
  std::vector<int64_t> totals_, scratch_;   // kept for their memory
};

}  // namespace

std::optional<std::vector<NodeId>> PlaceGroup(const ClusterView& view, const GroupDemand& demand, Prng& prng,
                                              const GroupPlaceOptions& options) {
  return GroupPlacer(view, demand, prng, options).Run();
}

}  // namespace argosy::scheduler
