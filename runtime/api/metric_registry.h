#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "argosy/metrics.h"
#include "runtime/base/observation.h"

namespace argosy::internal {

// This process's metrics, by name and tags.
//
// Thread:   any.
// Lifetime: the process's.
// Failure:  series above the bound are dropped and counted; a wrong name is an exception for the caller.
class MetricRegistry {
 public:
  static MetricRegistry& Process();

  void Declare(const std::string& name, MetricValue::Kind kind, const std::string& help, const std::vector<double>& bounds = {});
  void Add(const std::string& name, double by, const metrics::Tags& tags);
  void Set(const std::string& name, double value, const metrics::Tags& tags);
  void Observe(const std::string& name, double value, const metrics::Tags& tags);

  // All metrics as they are now, when one has changed since the last call; else none.
  bool TakeChanged(ProcessMetrics* metrics);
  // Runs when something changes after nothing had: whoever sends metrics wakes up then. Under no lock.
  void OnChange(std::function<void()> changed);

 private:
  struct Family {
    MetricValue::Kind kind = MetricValue::kCounter;
    std::string help;
    std::vector<double> bounds;
    std::map<metrics::Tags, MetricValue> series;
  };
  void Change(const std::string& name, const metrics::Tags& tags, const std::function<void(MetricValue&)>& change);

  std::mutex mutex_;
  std::map<std::string, Family> families_;   // under mutex_, as all below
  size_t series_ = 0;
  uint64_t dropped_ = 0;
  bool changed_ = false;
  std::function<void()> on_change_;
};

}  // namespace argosy::internal
