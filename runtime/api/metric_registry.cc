#include "runtime/api/metric_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace argosy {
namespace internal {
namespace {

constexpr size_t kSeriesMax = 1000;
constexpr size_t kTextMax = 1000;

bool IsName(const std::string& text, bool colons) {
  if (text.empty() || text.size() > 200 || std::isdigit(static_cast<unsigned char>(text[0])) != 0) return false;
  return std::all_of(text.begin(), text.end(), [colons](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || (colons && c == ':'); });
}

const char* KindName(MetricValue::Kind kind) {
  return kind == MetricValue::kCounter ? "counter" : kind == MetricValue::kGauge ? "gauge" : "histogram";
}

}  // namespace

MetricRegistry& MetricRegistry::Process() {
  // Never destroyed: metrics of static lifetime may be used until the last moment.
  static auto* registry = new MetricRegistry();
  return *registry;
}

void MetricRegistry::Declare(const std::string& name, MetricValue::Kind kind, const std::string& help, const std::vector<double>& bounds) {
  if (!IsName(name, true)) {
    throw std::invalid_argument(fmt::format("metric \"{}\": a name has letters, digits, _ and :, does not begin with a digit, and has 200 at most", name));
  }
  if (name.starts_with("argosy_")) throw std::invalid_argument(fmt::format("metric {}: names that begin with argosy_ are the cluster's own", name));
  if (kind == MetricValue::kHistogram) {
    bool growing = !bounds.empty() && bounds.size() <= 200 && std::all_of(bounds.begin(), bounds.end(), [](double b) { return std::isfinite(b); }) &&
                   std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
    if (!growing) throw std::invalid_argument(fmt::format("histogram {}: give 1 to 200 finite bounds, each above the one before", name));
  }
  std::lock_guard lock(mutex_);
  auto [at, is_new] = families_.try_emplace(name);
  Family& family = at->second;
  if (is_new) {
    family.kind = kind;
    family.help = help.substr(0, kTextMax);
    family.bounds = bounds;
  } else if (family.kind != kind || family.bounds != bounds) {
    throw std::invalid_argument(fmt::format("metric {} is a {} already{}", name, KindName(family.kind), family.kind == kind ? " with other bounds" : ""));
  }
}

void MetricRegistry::Change(const std::string& name, const metrics::Tags& tags, const std::function<void(MetricValue&)>& change) {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    Family& family = families_.at(name);
    auto at = family.series.find(tags);
    if (at == family.series.end()) {
      for (const auto& [key, value] : tags) {
        if (!IsName(key, false)) throw std::invalid_argument(fmt::format("metric {}: tag \"{}\": want letters, digits and _, not beginning with a digit", name, key));
        if (value.size() > kTextMax) throw std::invalid_argument(fmt::format("metric {}: the value of tag {} has {} bytes; at most {}", name, key, value.size(), kTextMax));
      }
      if (series_ >= kSeriesMax) {
        ++dropped_;
        return;
      }
      ++series_;
      MetricValue value;
      value.kind = family.kind;
      value.name = name;
      value.help = family.help;
      value.tags = tags;
      value.bounds = family.bounds;
      if (family.kind == MetricValue::kHistogram) value.counts.resize(family.bounds.size() + 1);
      at = family.series.emplace(tags, std::move(value)).first;
    }
    change(at->second);
    if (!std::exchange(changed_, true)) wake = on_change_;
  }
  if (wake) wake();
}

void MetricRegistry::Add(const std::string& name, double by, const metrics::Tags& tags) {
  if (!std::isfinite(by)) return;
  Change(name, tags, [by](MetricValue& value) {
    if (value.kind == MetricValue::kGauge || by >= 0) value.value += by;
  });
}

void MetricRegistry::Set(const std::string& name, double value, const metrics::Tags& tags) {
  Change(name, tags, [value](MetricValue& metric) { metric.value = value; });
}

void MetricRegistry::Observe(const std::string& name, double value, const metrics::Tags& tags) {
  if (std::isnan(value)) return;
  Change(name, tags, [value](MetricValue& metric) {
    // The first range whose upper bound is not below it.
    size_t range = static_cast<size_t>(std::lower_bound(metric.bounds.begin(), metric.bounds.end(), value) - metric.bounds.begin());
    ++metric.counts[range];
    metric.value += value;
  });
}

bool MetricRegistry::TakeChanged(ProcessMetrics* metrics) {
  std::lock_guard lock(mutex_);
  if (!std::exchange(changed_, false)) return false;
  metrics->dropped = dropped_;
  for (const auto& [name, family] : families_) {
    for (const auto& [tags, value] : family.series) metrics->metrics.push_back(value);
  }
  return true;
}

void MetricRegistry::OnChange(std::function<void()> changed) {
  bool has_changed = false;
  {
    std::lock_guard lock(mutex_);
    on_change_ = changed;
    has_changed = changed_;
  }
  // What changed before anybody listened.
  if (has_changed && changed) changed();
}

}  // namespace internal

namespace metrics {

using internal::MetricRegistry;

Counter::Counter(std::string name, std::string help) : name_(std::move(name)) { MetricRegistry::Process().Declare(name_, MetricValue::kCounter, help); }
void Counter::Increment(double by, const Tags& tags) { MetricRegistry::Process().Add(name_, by, tags); }

Gauge::Gauge(std::string name, std::string help) : name_(std::move(name)) { MetricRegistry::Process().Declare(name_, MetricValue::kGauge, help); }
void Gauge::Set(double value, const Tags& tags) { MetricRegistry::Process().Set(name_, value, tags); }
void Gauge::Add(double by, const Tags& tags) { MetricRegistry::Process().Add(name_, by, tags); }

Histogram::Histogram(std::string name, std::vector<double> bounds, std::string help) : name_(std::move(name)) {
  MetricRegistry::Process().Declare(name_, MetricValue::kHistogram, help, bounds);
}
void Histogram::Observe(double value, const Tags& tags) { MetricRegistry::Process().Observe(name_, value, tags); }

}  // namespace metrics
}  // namespace argosy
