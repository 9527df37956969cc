#pragma once

// Metrics of user code. Every process of the cluster may count; the head adds up, and the dashboard's port serves the sums at /metrics in
// Prometheus' text format, with the job and the node as labels.
//
//   argosy::metrics::Counter rows("rows_read", "Rows read from the source");
//   rows.Increment(128, {{"table", "orders"}});

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace argosy::metrics {

using Tags = std::map<std::string, std::string>;

// Of all three: names are letters, digits, _ and :, not beginning with a digit; tags likewise without ':'. The constructor throws
// std::invalid_argument for another name, or one that is in use for something else in this process. Two objects of one name are the
// same metric. Any thread; may be made before Connect. A process keeps 1,000 series (a name with one set of tags); more are dropped, and
// `argosy_user_series_dropped` says how many.

// Only grows; summed over processes, also those that have ended.
class Counter {
 public:
  explicit Counter(std::string name, std::string help = "");
  // A negative or not finite amount changes nothing.
  void Increment(double by = 1, const Tags& tags = {});

 private:
  std::string name_;
};

// Goes up and down; one a process, with its worker id as a label, gone when the process is.
class Gauge {
 public:
  explicit Gauge(std::string name, std::string help = "");
  void Set(double value, const Tags& tags = {});
  void Add(double by, const Tags& tags = {});

 private:
  std::string name_;
};

// How often values fell into ranges; summed as a counter is.
class Histogram {
 public:
  // Upper bounds of the ranges, growing; above the last is one more.
  explicit Histogram(std::string name, std::vector<double> bounds, std::string help = "");
  void Observe(double value, const Tags& tags = {});

 private:
  std::string name_;
};

}  // namespace argosy::metrics
