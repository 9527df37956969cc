#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/id.h"
#include "runtime/base/observation.h"

namespace argosy::head {

// The metrics of user code, as processes reported them last. Counters and histograms are summed over the processes of one job and node,
// also those that have ended; gauges stand for themselves.
//
// Thread:   the head's loop; pure state.
// Failure:  series above the bounds are dropped and counted.
class MetricTable {
 public:
  struct Options {
    size_t series_max = 100'000;      // of living processes; and again of ended ones
    size_t ended_jobs_max = 100;      // whose sums stay
  };
  MetricTable() : MetricTable(Options{}) {}
  explicit MetricTable(Options options) : options_(options) {}

  void Report(const ProcessMetrics& metrics);
  void WorkerDied(WorkerId worker);
  void JobEnded(JobId job);

  // In Prometheus' text exposition format, version 0.0.4.
  std::string Text() const;
  uint64_t dropped() const;

 private:
  using Labels = std::map<std::string, std::string>;
  struct Key { JobId job; std::string node; std::string name; Labels tags; friend auto operator<=>(const Key&, const Key&) = default; };

  static void Fold(MetricValue& into, const MetricValue& from);

  Options options_;
  std::map<WorkerId, ProcessMetrics> living_;
  size_t living_series_ = 0;
  std::map<Key, MetricValue> ended_;
  std::deque<JobId> ended_jobs_;
  uint64_t dropped_ = 0;
};

// A label's value and a help text with what the format escapes.
std::string PrometheusLabel(const std::string& value);
// {a="1",b="2"}, or nothing.
std::string PrometheusLabels(const std::map<std::string, std::string>& labels);
std::string PrometheusNumber(double value);

}  // namespace argosy::head
