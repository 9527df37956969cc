#include "runtime/base/resources.h"

#include <cmath>

#include "runtime/base/status.h"

namespace argosy {

absl::StatusOr<Amount> Amount::FromDouble(double value) {
  if (!std::isfinite(value) || value < 0 || value > 9e14) {
    return InvalidArgument("{} is not an amount: want a finite number from 0 to 9e14", value);
  }
  return FromRaw(std::llround(value * kUnit));
}

std::string Amount::ToString() const {
  if (raw_ % kUnit == 0) return fmt::format("{}", raw_ / kUnit);
  std::string text = fmt::format("{}{}.{:04}", raw_ < 0 ? "-" : "", std::abs(raw_ / kUnit), std::abs(raw_ % kUnit));
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

absl::StatusOr<ResourceSet> ResourceSet::FromMap(const std::map<std::string, double>& amounts) {
  ResourceSet set;
  for (const auto& [name, value] : amounts) {
    if (name.empty()) return InvalidArgument("a resource needs a name; its amount was {}", value);
    absl::StatusOr<Amount> amount = Amount::FromDouble(value);
    if (!amount.ok()) return Annotate(amount.status(), fmt::format("resource {}", name));
    if (name == kGpu && value > 1 && amount->raw() % Amount::kUnit != 0) {
      return InvalidArgument("resource GPU: {} is above 1 and must be whole", value);
    }
    set.Set(name, *amount);
  }
  return set;
}

namespace {

// Where `name` is, or belongs. Sets are small: a look at each name is cheaper than halving.
template <class Entries>
auto Position(Entries& amounts, std::string_view name) {
  auto it = amounts.begin();
  while (it != amounts.end() && std::string_view(it->first) < name) ++it;
  return it;
}

}  // namespace

Amount ResourceSet::Get(std::string_view name) const {
  auto it = Position(amounts_, name);
  return it == amounts_.end() || it->first != name ? Amount() : it->second;
}

void ResourceSet::Set(std::string_view name, Amount amount) {
  auto it = Position(amounts_, name);
  if (it != amounts_.end() && it->first == name) {
    if (amount.IsZero()) amounts_.erase(it);
    else it->second = amount;
  } else if (!amount.IsZero()) {
    amounts_.emplace(it, name, amount);
  }
}

std::map<std::string, double> ResourceSet::ToMap() const {
  std::map<std::string, double> map;
  for (const auto& [name, amount] : amounts_) map[name] = amount.ToDouble();
  return map;
}

bool ResourceSet::Contains(const ResourceSet& other) const {
  auto ours = amounts_.begin();
  for (const auto& [name, amount] : other.amounts_) {
    while (ours != amounts_.end() && ours->first < name) ++ours;
    const bool has = ours != amounts_.end() && ours->first == name;
    if ((has ? ours->second : Amount()) < amount) return false;
  }
  return true;
}

void ResourceSet::Add(const ResourceSet& other) {
  for (const auto& [name, amount] : other.amounts_) Set(name, Get(name) + amount);
}

void ResourceSet::Subtract(const ResourceSet& other) {
  ARGOSY_CHECK(Contains(other), "{} has less than {}", ToString(), other.ToString());
  for (const auto& [name, amount] : other.amounts_) Set(name, Get(name) - amount);
}

std::string ResourceSet::ToString() const {
  if (amounts_.empty()) return "nothing";
  std::string text;
  for (const auto& [name, amount] : amounts_) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{}: {}", name, amount.ToString());
  }
  return text;
}

std::string BytesText(uint64_t bytes) {
  double value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.1f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (value >= 0x1p10) return fmt::format("{:.1f} KiB", value / 0x1p10);
  return fmt::format("{} B", bytes);
}

}  // namespace argosy
