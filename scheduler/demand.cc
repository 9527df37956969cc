#include "scheduler/demand.h"

#include <functional>
#include <map>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::scheduler {
namespace {

void Mix(size_t& seed, size_t value) { seed ^= value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2); }

constexpr std::pair<GroupStrategy, std::string_view> kGroupStrategies[] = {
    {GroupStrategy::kPack, "PACK"},
    {GroupStrategy::kSpread, "SPREAD"},
    {GroupStrategy::kStrictPack, "STRICT_PACK"},
    {GroupStrategy::kStrictSpread, "STRICT_SPREAD"},
};

std::string StrategyToString(const Strategy& strategy) {
  if (std::holds_alternative<SpreadStrategy>(strategy)) return "SPREAD";
  if (auto* node = std::get_if<NodeAffinity>(&strategy))
    return fmt::format("{} node {}", node->soft ? "preferably on" : "on", node->node.Short());
  if (auto* bundle = std::get_if<BundleAffinity>(&strategy)) {
    if (bundle->bundle_index < 0) return fmt::format("in group {}", bundle->group.Short());
    return fmt::format("in {}", BundleKey{bundle->group, bundle->bundle_index}.ToString());
  }
  return {};
}

}  // namespace

std::string BundleKey::ToString() const { return fmt::format("bundle {} of group {}", index, group.Short()); }

size_t Shape::Hash() const {
  size_t seed = strategy.index();
  std::hash<std::string> hash;
  for (const auto& [name, amount] : resources.amounts()) {
    Mix(seed, hash(name));
    Mix(seed, static_cast<size_t>(amount.raw()));
  }
  for (const auto& [key, condition] : labels.conditions()) {
    Mix(seed, hash(key));
    Mix(seed, static_cast<size_t>(condition.kind));
    for (const std::string& value : condition.values) Mix(seed, hash(value));
  }
  if (auto* node = std::get_if<NodeAffinity>(&strategy)) {
    Mix(seed, node->node.Hash());
    Mix(seed, node->soft);
  } else if (auto* bundle = std::get_if<BundleAffinity>(&strategy)) {
    Mix(seed, bundle->group.Hash());
    Mix(seed, static_cast<size_t>(bundle->bundle_index));
  }
  return seed;
}

std::string Shape::ToString() const {
  std::string text = resources.ToString();
  if (!labels.IsEmpty()) text += fmt::format("; labels {}", labels.ToString());
  if (std::string words = StrategyToString(strategy); !words.empty()) text += "; " + words;
  return text;
}

Demand Demand::FromShape(Shape shape, std::vector<Locality> locality) {
  return {std::move(shape.resources), std::move(shape.labels), std::move(shape.strategy), std::move(locality), 0};
}

std::string_view ToString(GroupStrategy strategy) {
  for (const auto& [value, name] : kGroupStrategies) {
    if (value == strategy) return name;
  }
  return "unknown";
}

std::optional<GroupStrategy> ParseGroupStrategy(std::string_view text) {
  for (const auto& [value, name] : kGroupStrategies) {
    if (name == text) return value;
  }
  return std::nullopt;
}

std::string GroupDemand::ToString() const {
  std::map<std::string, int> kinds;
  for (const BundleDemand& bundle : bundles) ++kinds[Shape{bundle.resources, bundle.labels, {}}.ToString()];
  std::string text =
      fmt::format("{} of {} bundle{}:", scheduler::ToString(strategy), bundles.size(), bundles.size() == 1 ? "" : "s");
  const char* separator = " ";
  for (const auto& [kind, count] : kinds) {
    text += fmt::format("{}{} x {{{}}}", separator, count, kind);
    separator = ", ";
  }
  return text;
}

absl::Status CheckGroupDemand(const GroupDemand& demand) {
  if (demand.bundles.empty()) return InvalidArgument("a placement group needs at least one bundle");
  if (demand.bundles.size() > kGroupBundlesMax) {
    return InvalidArgument("a placement group has {} bundles: at most {} are possible", demand.bundles.size(),
                           kGroupBundlesMax);
  }
  for (size_t i = 0; i < demand.bundles.size(); ++i) {
    const ResourceSet& resources = demand.bundles[i].resources;
    if (resources.IsEmpty())
      return InvalidArgument("bundle {} of the placement group is empty: want at least one resource above 0", i);
    for (const auto& [name, amount] : resources.amounts()) {
      if (amount < Amount())
        return InvalidArgument("bundle {} of the placement group: {} is {}, below 0", i, name, amount.ToString());
    }
  }
  return absl::OkStatus();
}

}  // namespace argosy::scheduler
