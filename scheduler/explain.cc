#include "scheduler/explain.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "runtime/base/status.h"

namespace argosy::scheduler {
namespace {

// Insertions, deletions and replacements between two words (Wagner and Fischer 1974), letter case ignored.
size_t EditDistance(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

// " (did you mean x?)", or " (known: a, b, c)", or nothing.
std::string Suggest(const std::string& word, const std::set<std::string>& known) {
  constexpr size_t kListedMax = 8;
  const std::string* best = nullptr;
  // Among words of one or two letters every other one would be near.
  size_t best_distance = word.size() < 3 ? 1 : std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    if (size_t distance = EditDistance(word, candidate); distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best != nullptr) return fmt::format(" (did you mean {}?)", *best);
  if (known.empty()) return {};
  std::string list;
  size_t listed = 0;
  for (const std::string& candidate : known) {
    if (listed++ == kListedMax) {
      list += fmt::format(" and {} more", known.size() - kListedMax);
      break;
    }
    list += (list.empty() ? "" : ", ") + candidate;
  }
  return fmt::format(" (known: {})", list);
}

// Share of what is wanted that `have` covers, 0 to 1.
double Closeness(const ResourceSet& have, const ResourceSet& wanted) {
  if (wanted.IsEmpty()) return 1;
  double sum = 0;
  for (const auto& [name, amount] : wanted.amounts()) {
    sum += std::clamp(have.Get(name).ToDouble() / amount.ToDouble(), 0.0, 1.0);
  }
  return sum / static_cast<double>(wanted.amounts().size());
}

std::string Join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

struct Rejection {
  std::string text_one;
  std::string text;
  std::string nearest;
  double closeness = 0;
};

// "CPU: 4, GPU: 0" for the wanted names.
std::string Amounts(const ResourceSet& have, const ResourceSet& wanted) {
  std::vector<std::string> words;
  for (const auto& [name, amount] : wanted.amounts()) {
    if (!have.Get(name).IsZero()) words.push_back(fmt::format("{}: {}", name, have.Get(name).ToString()));
  }
  return words.empty() ? "none of it" : Join(words, ", ");
}

Rejection TooSmall(const ResourceSet& total, const ResourceSet& wanted, const std::string& who) {
  std::vector<std::string> lacking, small;
  for (const auto& [name, amount] : wanted.amounts()) {
    if (total.Get(name) >= amount) continue;
    (total.Get(name).IsZero() ? lacking : small).push_back(name);
  }
  std::vector<std::string> one, many;
  if (!lacking.empty()) {
    one.push_back("lacks " + Join(lacking, ", "));
    many.push_back("lack " + Join(lacking, ", "));
  }
  if (!small.empty()) {
    one.push_back("has too little " + Join(small, ", "));
    many.push_back("have too little " + Join(small, ", "));
  }
  return {Join(one, " and "), Join(many, " and "), fmt::format("{} has {}", who, Amounts(total, wanted)),
          Closeness(total, wanted)};
}

Rejection Busy(const ResourceSet& available, const ResourceSet& total, const ResourceSet& wanted,
               const std::string& who) {
  std::vector<std::string> words;
  for (const auto& [name, amount] : wanted.amounts()) {
    if (available.Get(name) >= amount) continue;
    words.push_back(fmt::format("{}: {} of {} free", name, std::max(available.Get(name), Amount()).ToString(),
                                total.Get(name).ToString()));
  }
  return {"is busy", "are busy", fmt::format("{} has {}", who, Join(words, ", ")), Closeness(available, wanted)};
}

// The bundle that `affinity` names on `node` and that comes closest by `score`.
template <class Score>
std::pair<BundleKey, const BundleView*> NearestBundle(const NodeView& node, const BundleAffinity& affinity,
                                                      Score score) {
  std::pair<BundleKey, const BundleView*> best{{}, nullptr};
  for (auto it = node.bundles.lower_bound({affinity.group, std::max(affinity.bundle_index, 0)});
       it != node.bundles.end() && it->first.group == affinity.group; ++it) {
    if (affinity.bundle_index >= 0 && it->first.index != affinity.bundle_index) break;
    if (best.second == nullptr || score(it->second) > score(*best.second)) best = {it->first, &it->second};
  }
  return best;
}

Rejection Reject(const NodeView& node, const Demand& demand, Filter filter, absl::Time now) {
  const std::string who = node.DisplayName();
  const auto* bundle = std::get_if<BundleAffinity>(&demand.strategy);
  switch (filter) {
    case Filter::kNone: break;
    case Filter::kAlive: {
      std::string when;
      if (node.lost_at && now > *node.lost_at)
        when = fmt::format(" {:.1f} s ago", absl::ToDoubleSeconds(now - *node.lost_at));
      // The one that was lost last is the nearest.
      const double age = node.lost_at && now > *node.lost_at ? absl::ToDoubleSeconds(now - *node.lost_at) : 0;
      return {"is lost", "are lost", fmt::format("{} was lost{}", who, when), -age};
    }
    case Filter::kDraining: return {"is draining", "are draining", who, 0};
    case Filter::kAffinity: return {"is not the node asked for", "are not the node asked for", {}, 0};
    case Filter::kGroup: {
      const std::string what = bundle->bundle_index < 0
                                   ? fmt::format("no bundle of group {}", bundle->group.Short())
                                   : "not " + BundleKey{bundle->group, bundle->bundle_index}.ToString();
      return {"holds " + what, "hold " + what, {}, 0};
    }
    case Filter::kLabels: {
      std::vector<std::string> failed, has;
      size_t matched = 0;
      for (const auto& [key, condition] : demand.labels.conditions()) {
        auto it = node.labels.find(key);
        if (condition.Matches(it == node.labels.end() ? nullptr : &it->second)) {
          ++matched;
          continue;
        }
        failed.push_back(ConditionToString(key, condition));
        has.push_back(it == node.labels.end() ? fmt::format("no {}", key) : fmt::format("{}={}", key, it->second));
      }
      const std::string what = Join(failed, " and ");
      return {"does not match " + what, "do not match " + what, fmt::format("{} has {}", who, Join(has, ", ")),
              static_cast<double>(matched)};
    }
    case Filter::kResources:
      if (bundle != nullptr) {
        auto [key, view] =
            NearestBundle(node, *bundle, [&](const BundleView& b) { return Closeness(b.total, demand.resources); });
        return TooSmall(view->total, demand.resources, fmt::format("bundle {} on {}", key.index, who));
      }
      return TooSmall(node.total, demand.resources, who);
    case Filter::kGathered: {
      const std::string group = node.gathered_for.Short();
      return {fmt::format("is kept for group {}, which gathers its bundles", group),
              fmt::format("are kept for group {}, which gathers its bundles", group),
              {},
              0};
    }
    case Filter::kFit:
      if (bundle != nullptr) {
        // Bundles that could never hold it are not what it waits for.
        auto [key, view] = NearestBundle(node, *bundle, [&](const BundleView& b) {
          return b.total.Contains(demand.resources) ? Closeness(b.available, demand.resources) : -1.0;
        });
        return Busy(view->available, view->total, demand.resources, fmt::format("bundle {} on {}", key.index, who));
      }
      return Busy(node.available, node.total, demand.resources, who);
  }
  return {};
}

std::vector<std::string> Hints(const std::vector<const NodeView*>& nodes, const ClusterView& view,
                               const Demand& demand) {
  std::vector<std::string> hints;
  std::set<std::string> resources;
  std::map<std::string, std::set<std::string>> values;
  for (const NodeView* node : nodes) {
    if (!node->alive) continue;
    for (const auto& [name, amount] : node->total.amounts()) resources.insert(name);
    for (const auto& [key, value] : node->labels) values[key].insert(value);
  }
  if (view.alive_count() == 0) return hints;
  if (const auto* affinity = std::get_if<NodeAffinity>(&demand.strategy);
      affinity != nullptr && view.Find(affinity->node) == nullptr) {
    hints.push_back(fmt::format("node {} is not known", affinity->node.Short()));
  }
  if (const auto* bundle = std::get_if<BundleAffinity>(&demand.strategy)) {
    if (view.BundlesOf(bundle->group) == nullptr)
      hints.push_back(fmt::format("group {} holds no bundle", bundle->group.Short()));
  } else {
    for (const auto& [name, amount] : demand.resources.amounts()) {
      if (!resources.contains(name))
        hints.push_back(fmt::format("no node has the resource {}{}", name, Suggest(name, resources)));
    }
  }
  std::set<std::string> keys;
  for (const auto& [key, found] : values) keys.insert(key);
  for (const auto& [key, condition] : demand.labels.conditions()) {
    if (condition.kind == LabelSelector::Condition::Kind::kNotIn) continue;
    if (!keys.contains(key)) {
      hints.push_back(fmt::format("no node has the label {}{}", key, Suggest(key, keys)));
    } else if (condition.kind == LabelSelector::Condition::Kind::kIn) {
      for (const std::string& value : condition.values) {
        if (!values[key].contains(value))
          hints.push_back(fmt::format("no node has {}={}{}", key, value, Suggest(value, values[key])));
      }
    }
  }
  return hints;
}

std::string Body(const Explanation& explanation) {
  std::string text = fmt::format("needs {}", explanation.demand);
  if (explanation.nodes == 0) return text + "; the cluster has no nodes";
  std::vector<std::string> parts;
  if (!explanation.usable.empty()) {
    parts.push_back(
        fmt::format("{} {} usable", explanation.usable.size(), explanation.usable.size() == 1 ? "is" : "are"));
  }
  for (const Explanation::Reason& reason : explanation.reasons) {
    const bool one = reason.nodes.size() == 1;
    std::string part = fmt::format("{} {}", reason.nodes.size(), one ? reason.text_one : reason.text);
    if (!reason.nearest.empty()) part += fmt::format(" ({}{})", one ? "" : "nearest: ", reason.nearest);
    parts.push_back(std::move(part));
  }
  text += fmt::format("; {} node{}: {}", explanation.nodes, explanation.nodes == 1 ? "" : "s", Join(parts, ", "));
  for (const std::string& hint : explanation.hints) text += "; " + hint;
  return text;
}

}  // namespace

std::string Explanation::ToString() const {
  std::string text = Body(*this);
  if (!usable.empty()) return text;
  return text + (feasible ? "; waits until something ends" : "; no node can ever satisfy it, waits for one to join");
}

Explanation Explain(const ClusterView& view, const Demand& asked, absl::Time now, GroupId gathering) {
  const Demand demand = Resolve(view, asked);
  Explanation explanation;
  explanation.demand = demand.ToString();
  const std::vector<const NodeView*> nodes = view.Nodes();
  explanation.nodes = nodes.size();
  struct Group {
    Explanation::Reason reason;
    double closeness = 0;
  };
  std::map<std::pair<Filter, std::string>, Group> groups;
  for (const NodeView* node : nodes) {
    const Filter filter = Check(*node, demand, gathering);
    if (filter == Filter::kNone) {
      explanation.usable.push_back(node->id);
      continue;
    }
    if (filter == Filter::kFit || filter == Filter::kGathered) explanation.feasible = true;
    Rejection rejection = Reject(*node, demand, filter, now);
    Group& group = groups[{filter, rejection.text}];
    group.reason.nodes.push_back(node->id);
    if (group.reason.nodes.size() == 1 || rejection.closeness > group.closeness) {
      group.reason.filter = filter;
      group.reason.text = std::move(rejection.text);
      group.reason.text_one = std::move(rejection.text_one);
      group.reason.nearest = std::move(rejection.nearest);
      group.closeness = rejection.closeness;
    }
  }
  explanation.feasible |= !explanation.usable.empty();
  for (auto& [key, group] : groups) explanation.reasons.push_back(std::move(group.reason));
  std::stable_sort(explanation.reasons.begin(), explanation.reasons.end(),
                   [](const Explanation::Reason& a, const Explanation::Reason& b) {
                     return a.filter != b.filter ? a.filter < b.filter : a.nodes.size() > b.nodes.size();
                   });
  if (!explanation.feasible) explanation.hints = Hints(nodes, view, demand);
  return explanation;
}

namespace {

// Why bundles that each fit alone do not fit together.
std::string WhyNotTogether(const ClusterView& view, const GroupDemand& demand, const GroupPlaceOptions& options,
                           absl::Time now) {
  auto is_placed = [&](size_t i) { return i < options.placed.size() && !options.placed[i].IsNil(); };
  ResourceSet needed;
  std::string selectors;
  size_t missing = 0;
  for (size_t i = 0; i < demand.bundles.size(); ++i) {
    if (is_placed(i)) continue;
    ++missing;
    needed.Add(demand.bundles[i].resources);
    if (!demand.bundles[i].labels.IsEmpty())
      selectors += (selectors.empty() ? "" : ",") + demand.bundles[i].labels.ToString();
  }
  if (demand.strategy == GroupStrategy::kStrictPack) {
    absl::StatusOr<LabelSelector> labels = LabelSelector::Parse(selectors);
    if (!labels.ok()) return "the bundles ask for labels that no one node can have: " + Message(labels.status());
    return "all bundles on one node: " + Body(Explain(view, {needed, *labels, {}, {}}, now, options.group));
  }
  ResourceSet free;
  size_t able = 0;
  for (const NodeView* node : view.Nodes()) {
    const bool holds = std::find(options.placed.begin(), options.placed.end(), node->id) != options.placed.end();
    bool any = false;
    for (size_t i = 0; i < demand.bundles.size() && !any; ++i) {
      any = !is_placed(i) && Check(*node, {demand.bundles[i].resources, demand.bundles[i].labels, {}, {}},
                                   options.group) == Filter::kNone;
    }
    if (!any) continue;
    if (!holds) ++able;
    for (const auto& [name, amount] : needed.amounts())
      free.Set(name, free.Get(name) + std::max(node->available.Get(name), Amount()));
  }
  if (demand.strategy == GroupStrategy::kStrictSpread && able < missing) {
    return fmt::format("each bundle needs a node of its own: {} bundles, {} node{} can take one now", missing, able,
                       able == 1 ? "" : "s");
  }
  std::vector<std::string> lacking;
  for (const auto& [name, amount] : needed.amounts()) {
    if (free.Get(name) < amount)
      lacking.push_back(fmt::format("{}: {} of {} free", name, free.Get(name).ToString(), amount.ToString()));
  }
  if (!lacking.empty()) return "each bundle fits alone, but not all together: " + Join(lacking, ", ");
  return fmt::format("each bundle fits alone, but what is free ({}) lies on too many nodes", free.ToString());
}

}  // namespace

GroupExplanation ExplainGroup(const ClusterView& view, const GroupDemand& demand, Prng& prng,
                              const GroupPlaceOptions& options, absl::Time now) {
  GroupExplanation explanation;
  explanation.demand = demand.ToString();
  explanation.usable = PlaceGroup(view, demand, prng, options).has_value();
  GroupPlaceOptions when_idle = options;
  when_idle.ignore_usage = true;
  explanation.feasible = explanation.usable || PlaceGroup(view, demand, prng, when_idle).has_value();
  if (explanation.usable) return explanation;
  std::map<std::pair<ResourceSet, LabelSelector>, int> kinds;
  for (size_t i = 0; i < demand.bundles.size(); ++i) {
    if (i < options.placed.size() && !options.placed[i].IsNil()) continue;
    ++kinds[{demand.bundles[i].resources, demand.bundles[i].labels}];
  }
  std::vector<GroupExplanation::Bundle> all;
  for (const auto& [kind, count] : kinds) {
    GroupExplanation::Bundle bundle{count, Explain(view, {kind.first, kind.second, {}, {}}, now, options.group)};
    if (bundle.explanation.usable.empty()) explanation.bundles.push_back(bundle);
    all.push_back(std::move(bundle));
  }
  if (explanation.bundles.empty()) {
    explanation.summary = WhyNotTogether(view, demand, options, now);
    explanation.bundles = std::move(all);
  }
  return explanation;
}

std::string GroupExplanation::ToString() const {
  std::string text = demand;
  if (usable) return text + "; fits now";
  if (!summary.empty()) {
    text += "; " + summary;
  } else {
    for (const Bundle& bundle : bundles) {
      text += fmt::format("; {} {}", bundle.count == 1 ? "one bundle" : fmt::format("each of {} bundles", bundle.count),
                          Body(bundle.explanation));
    }
  }
  return text + (feasible ? "; waits until something ends"
                          : "; the nodes of the cluster can never satisfy it, waits for one to join");
}

}  // namespace argosy::scheduler
