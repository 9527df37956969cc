#include "scheduler/place.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "scheduler/filter.h"
#include "scheduler/node_index.h"

namespace argosy::scheduler {
namespace {

// Packing ends where half of the critical resource is used.
constexpr int64_t kPackBelow = 5'000;

std::optional<NodeId> IdOf(const NodeView* node) {
  if (node == nullptr) return std::nullopt;
  return node->id;
}

// The few candidates that pass, scored as the trees score all.
const NodeView* PickAmong(const std::vector<const NodeView*>& candidates, bool with_gpu, const Demand& demand,
                          bool spread, Prng& prng) {
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

const NodeView* Pick(const ClusterView& view, const Demand& demand, Prng& prng) {
  const bool spread = std::holds_alternative<SpreadStrategy>(demand.strategy);
  const bool wants_gpu = demand.resources.Get(kGpu) > Amount();
  const auto few = view.index().FewCandidates(demand);
  const auto accept = [&](const NodeView& node) { return Check(node, demand) == Filter::kNone; };
  for (bool with_gpu : {false, true}) {
    if (wants_gpu && !with_gpu) continue;
    const NodeView* node = nullptr;
    if (few) {
      node = PickAmong(*few, with_gpu, demand, spread, prng);
    } else if (spread) {
      node = view.index().Least(with_gpu, demand.resources, true, accept, prng);
    } else {
      node = view.index().First(with_gpu, demand.resources, kPackBelow, accept);
      if (node == nullptr) node = view.index().Least(with_gpu, demand.resources, false, accept, prng);
    }
    if (node != nullptr) return node;
  }
  return nullptr;
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
    if (Check(*node, demand) == Filter::kNone) return node;
  }
  return nullptr;
}

}  // namespace

std::optional<NodeId> Place(const ClusterView& view, const Demand& asked, Prng& prng) {
  const Demand demand = Resolve(view, asked);
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
  return IdOf(Pick(view, demand, prng));
}

namespace {

// Bundles that ask for the same.
struct Kind {
  ResourceSet resources;
  LabelSelector labels;
  std::vector<int> bundles;
  std::vector<size_t> candidates;   // nodes that may hold one, if alone
  bool wants_gpu = false;
};

struct Candidate {
  const NodeView* node = nullptr;
  ResourceSet free;
  bool with_gpu = false;
  int held = 0;   // bundles of the group
};

// Search steps after which a placement that greedy choice did not find is given up.
constexpr int kSearchStepsMax = 20'000;
// Above this many bundles so few steps find nothing that greedy choice missed.
constexpr size_t kSearchBundlesMax = 64;

class GroupPlacer {
 public:
  GroupPlacer(const ClusterView& view, const GroupDemand& demand, Prng& prng, const GroupPlaceOptions& options)
      : demand_(demand), prng_(prng), result_(demand.bundles.size()) {
    std::map<NodeId, int> held;
    for (size_t i = 0; i < options.placed.size() && i < result_.size(); ++i) {
      result_[i] = options.placed[i];
      if (!result_[i].IsNil()) ++held[result_[i]];
    }
    for (const NodeView* node : view.Nodes()) {
      if (!node->alive || node->draining) continue;
      if (!options.ignore_usage && !node->gathered_for.IsNil() && node->gathered_for != options.group) continue;
      Candidate candidate{node, options.ignore_usage ? node->total : node->available, node->total.Get(kGpu) > Amount(),
                          0};
      if (auto it = held.find(node->id); it != held.end()) {
        candidate.held = it->second;
        if (options.ignore_usage) SpendPlaced(candidate);
      }
      candidates_.push_back(std::move(candidate));
    }
    std::map<std::pair<ResourceSet, LabelSelector>, Kind> kinds;
    for (size_t i = 0; i < result_.size(); ++i) {
      if (!result_[i].IsNil()) continue;
      const BundleDemand& bundle = demand.bundles[i];
      Kind& kind = kinds[{bundle.resources, bundle.labels}];
      kind.bundles.push_back(static_cast<int>(i));
    }
    for (auto& [key, kind] : kinds) {
      kind.resources = key.first;
      kind.labels = key.second;
      kind.wants_gpu = kind.resources.Get(kGpu) > Amount();
      for (size_t c = 0; c < candidates_.size(); ++c) {
        if (Fits(candidates_[c], kind)) kind.candidates.push_back(c);
      }
      kinds_.push_back(std::move(kind));
    }
    // Those with fewest choices first, then the largest.
    std::stable_sort(kinds_.begin(), kinds_.end(), [](const Kind& a, const Kind& b) {
      if (a.candidates.size() != b.candidates.size()) return a.candidates.size() < b.candidates.size();
      return Size(a) > Size(b);
    });
  }

  std::optional<std::vector<NodeId>> Run() {
    for (const Kind& kind : kinds_) {
      if (kind.candidates.empty()) return std::nullopt;
    }
    if (kinds_.empty()) return result_;
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
  static int64_t Size(const Kind& kind) {
    int64_t sum = 0;
    for (const char* name : {kGpu, kCpu}) sum += kind.resources.Get(name).raw();
    return sum;
  }

  void SpendPlaced(Candidate& candidate) {
    for (size_t i = 0; i < result_.size(); ++i) {
      if (result_[i] == candidate.node->id) Spend(candidate, demand_.bundles[i].resources);
    }
  }

  static void Spend(Candidate& candidate, const ResourceSet& resources) {
    for (const auto& [name, amount] : resources.amounts()) candidate.free.Set(name, candidate.free.Get(name) - amount);
  }

  bool Fits(const Candidate& candidate, const Kind& kind) const {
    return candidate.node->total.Contains(kind.resources) && candidate.free.Contains(kind.resources) &&
           kind.labels.Matches(candidate.node->labels);
  }

  void Assign(int bundle, Candidate& candidate, const Kind& kind) {
    Spend(candidate, kind.resources);
    ++candidate.held;
    result_[static_cast<size_t>(bundle)] = candidate.node->id;
  }

  // Runs `method` and undoes what it did when it fails.
  bool Try(bool (GroupPlacer::*method)()) {
    std::vector<Candidate> candidates = candidates_;
    std::vector<NodeId> result = result_;
    if ((this->*method)()) return true;
    candidates_ = std::move(candidates);
    result_ = std::move(result);
    return false;
  }

  // Lower is better, when nothing else decides: no GPU that nobody asks for, then the emptier node when spreading, the
  // fuller when packing.
  std::pair<int, int64_t> Preference(const Candidate& candidate, bool wants_gpu, bool pack) const {
    const int64_t utilization = candidate.node->Utilization();
    return {candidate.with_gpu && !wants_gpu, pack ? -utilization : utilization};
  }

  bool OneNode() {
    ResourceSet sum;
    bool wants_gpu = false;
    for (const Kind& kind : kinds_) {
      wants_gpu |= kind.wants_gpu;
      for (size_t i = 0; i < kind.bundles.size(); ++i) sum.Add(kind.resources);
    }
    // A bundle that is placed already decides the node.
    const bool bound = std::any_of(result_.begin(), result_.end(), [](NodeId id) { return !id.IsNil(); });
    Candidate* best = nullptr;
    for (size_t c : kinds_.front().candidates) {
      Candidate& candidate = candidates_[c];
      if (bound && candidate.held == 0) continue;
      if (!candidate.free.Contains(sum)) continue;
      if (!std::all_of(kinds_.begin(), kinds_.end(),
                       [&](const Kind& kind) { return kind.labels.Matches(candidate.node->labels); }))
        continue;
      if (best == nullptr || Preference(candidate, wants_gpu, true) < Preference(*best, wants_gpu, true))
        best = &candidate;
    }
    if (best == nullptr) return false;
    for (const Kind& kind : kinds_) {
      for (int bundle : kind.bundles) Assign(bundle, *best, kind);
    }
    return true;
  }

  // Each bundle to a node of its own: augmenting paths (Kuhn 1955), kinds with few choices first.
  bool Matching() {
    std::vector<const Kind*> kind_of;
    std::vector<int> bundle_of;
    for (const Kind& kind : kinds_) {
      for (int bundle : kind.bundles) {
        kind_of.push_back(&kind);
        bundle_of.push_back(bundle);
      }
    }
    std::map<const Kind*, std::vector<size_t>> choices;
    for (const Kind& kind : kinds_) {
      std::vector<size_t>& order = choices[&kind];
      for (size_t c : kind.candidates) {
        if (candidates_[c].held == 0) order.push_back(c);
      }
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return Preference(candidates_[a], kind.wants_gpu, false) < Preference(candidates_[b], kind.wants_gpu, false);
      });
    }
    constexpr size_t kNone = std::numeric_limits<size_t>::max();
    std::vector<size_t> taken_by(candidates_.size(), kNone);
    std::vector<bool> visited;
    std::function<bool(size_t)> augment = [&](size_t which) {
      const std::vector<size_t>& order = choices[kind_of[which]];
      for (size_t c : order) {
        if (taken_by[c] != kNone) continue;
        taken_by[c] = which;
        return true;
      }
      for (size_t c : order) {
        if (visited[c]) continue;
        visited[c] = true;
        if (!augment(taken_by[c])) continue;
        taken_by[c] = which;
        return true;
      }
      return false;
    };
    for (size_t which = 0; which < kind_of.size(); ++which) {
      visited.assign(candidates_.size(), false);
      if (!augment(which)) return false;
    }
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (taken_by[c] != kNone) Assign(bundle_of[taken_by[c]], candidates_[c], *kind_of[taken_by[c]]);
    }
    return true;
  }

  // How many of the bundles that are left `candidate` holds, kinds with few choices first.
  std::vector<size_t> Load(Candidate candidate, const std::vector<size_t>& left) const {
    std::vector<size_t> loads(kinds_.size(), 0);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      while (loads[k] < left[k] && Fits(candidate, kinds_[k])) {
        Spend(candidate, kinds_[k].resources);
        ++loads[k];
      }
    }
    return loads;
  }

  // Nodes one by one, each time the one that holds most of what is left.
  bool Fewest() {
    std::vector<size_t> left;
    for (const Kind& kind : kinds_) left.push_back(kind.bundles.size());
    size_t missing = std::accumulate(left.begin(), left.end(), size_t{0});
    while (missing > 0) {
      size_t best = candidates_.size();
      std::vector<size_t> best_loads;
      std::pair<int64_t, std::pair<int, int64_t>> best_score;
      for (size_t c = 0; c < candidates_.size(); ++c) {
        std::vector<size_t> loads = Load(candidates_[c], left);
        const size_t count = std::accumulate(loads.begin(), loads.end(), size_t{0});
        if (count == 0) continue;
        bool wants_gpu = false;
        for (size_t k = 0; k < kinds_.size(); ++k) wants_gpu |= loads[k] > 0 && kinds_[k].wants_gpu;
        // A node that the group uses already counts as holding one more.
        const int64_t most = -static_cast<int64_t>(count) - (candidates_[c].held > 0 ? 1 : 0);
        std::pair<int64_t, std::pair<int, int64_t>> score{most, Preference(candidates_[c], wants_gpu, true)};
        if (best == candidates_.size() || score < best_score) {
          best = c;
          best_loads = std::move(loads);
          best_score = score;
        }
      }
      if (best == candidates_.size()) return false;
      for (size_t k = 0; k < kinds_.size(); ++k) {
        for (size_t i = 0; i < best_loads[k]; ++i) {
          Assign(kinds_[k].bundles[kinds_[k].bundles.size() - left[k]], candidates_[best], kinds_[k]);
          --left[k];
          --missing;
        }
      }
    }
    return true;
  }

  // Each bundle to the node that holds fewest of the group.
  bool Most() {
    for (const Kind& kind : kinds_) {
      for (int bundle : kind.bundles) {
        Candidate* best = nullptr;
        std::pair<int, std::pair<int, int64_t>> best_score;
        uint64_t ties = 0;
        for (size_t c : kind.candidates) {
          Candidate& candidate = candidates_[c];
          if (!Fits(candidate, kind)) continue;
          std::pair<int, std::pair<int, int64_t>> score{candidate.held, Preference(candidate, kind.wants_gpu, false)};
          if (best == nullptr || score < best_score) {
            best = &candidate;
            best_score = score;
            ties = 1;
          } else if (score == best_score && prng_.Below(++ties) == 0) {
            best = &candidate;
          }
        }
        if (best == nullptr) return false;
        Assign(bundle, *best, kind);
      }
    }
    return true;
  }

  // Every assignment, up to a number of steps. Equal bundles go to nodes in ascending order, so that no two branches
  // differ by their names only.
  bool Search() {
    if (result_.size() > kSearchBundlesMax) return false;
    int steps = 0;
    std::function<bool(size_t, size_t, size_t)> place = [&](size_t k, size_t i, size_t from) {
      if (k == kinds_.size()) return true;
      const Kind& kind = kinds_[k];
      if (i == kind.bundles.size()) return place(k + 1, 0, 0);
      for (size_t at = from; at < kind.candidates.size(); ++at) {
        Candidate& candidate = candidates_[kind.candidates[at]];
        if (!Fits(candidate, kind)) continue;
        if (++steps > kSearchStepsMax) return false;
        const ResourceSet before = candidate.free;
        Assign(kind.bundles[i], candidate, kind);
        if (place(k, i + 1, at)) return true;
        candidate.free = before;
        --candidate.held;
      }
      return false;
    };
    return place(0, 0, 0);
  }

  const GroupDemand& demand_;
  Prng& prng_;
  std::vector<NodeId> result_;
  std::vector<Candidate> candidates_;
  std::vector<Kind> kinds_;
};

}  // namespace

std::optional<std::vector<NodeId>> PlaceGroup(const ClusterView& view, const GroupDemand& demand, Prng& prng,
                                              const GroupPlaceOptions& options) {
  return GroupPlacer(view, demand, prng, options).Run();
}

}  // namespace argosy::scheduler
