#include "runtime/head/metric_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace argosy::head {
namespace {

std::string HelpText(const std::string& help) {
  std::string text;
  for (char c : help) {
    if (c == '\\') text += "\\\\";
    else if (c == '\n') text += "\\n";
    else text += c;
  }
  return text;
}

}  // namespace

std::string PrometheusLabel(const std::string& value) {
  std::string text;
  for (char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') text += "\\n";
    else text += c;
  }
  return text;
}

std::string PrometheusLabels(const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [key, value] : labels) text += fmt::format("{}{}=\"{}\"", text.empty() ? "{" : ",", key, PrometheusLabel(value));
  return text.empty() ? text : text + "}";
}

std::string PrometheusNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void MetricTable::Fold(MetricValue& into, const MetricValue& from) {
  if (into.name.empty()) {
    into = from;
    return;
  }
  if (into.kind != from.kind || into.bounds != from.bounds) return;   // a newer program measures another way: what is there stays
  into.value += from.value;
  for (size_t i = 0; i < into.counts.size() && i < from.counts.size(); ++i) into.counts[i] += from.counts[i];
}

void MetricTable::Report(const ProcessMetrics& metrics) {
  ProcessMetrics& known = living_[metrics.worker];
  living_series_ -= known.metrics.size();
  known = metrics;
  // What cannot be rendered is not kept.
  std::erase_if(known.metrics, [](const MetricValue& value) {
    return value.kind == MetricValue::kHistogram && value.counts.size() != value.bounds.size() + 1;
  });
  size_t room = options_.series_max - std::min(options_.series_max, living_series_);
  if (known.metrics.size() > room) {
    dropped_ += known.metrics.size() - room;
    known.metrics.resize(room);
  }
  living_series_ += known.metrics.size();
}

void MetricTable::WorkerDied(WorkerId worker) {
  auto gone = living_.extract(worker);
  if (gone.empty()) return;
  const ProcessMetrics& metrics = gone.mapped();
  living_series_ -= metrics.metrics.size();
  for (const MetricValue& value : metrics.metrics) {
    if (value.kind == MetricValue::kGauge) continue;
    Key key{metrics.job, metrics.node_name, value.name, value.tags};
    if (!ended_.contains(key) && ended_.size() >= options_.series_max) {
      ++dropped_;
      continue;
    }
    Fold(ended_[key], value);
  }
  dropped_ += metrics.dropped;
}

void MetricTable::JobEnded(JobId job) {
  if (std::find(ended_jobs_.begin(), ended_jobs_.end(), job) != ended_jobs_.end()) return;
  ended_jobs_.push_back(job);
  if (ended_jobs_.size() <= options_.ended_jobs_max) return;
  JobId oldest = ended_jobs_.front();
  ended_jobs_.pop_front();
  std::erase_if(ended_, [&](const auto& series) { return series.first.job == oldest; });
}

uint64_t MetricTable::dropped() const {
  uint64_t dropped = dropped_;
  for (const auto& [worker, metrics] : living_) dropped += metrics.dropped;
  return dropped;
}

std::string MetricTable::Text() const {
  // By name, since a family's lines stand together.
  struct Family { MetricValue::Kind kind = MetricValue::kCounter; std::string help; std::map<Labels, MetricValue> series; };
  std::map<std::string, Family> families;
  auto add = [&](JobId job, const std::string& node, WorkerId worker, const MetricValue& value) {
    Family& family = families[value.name];
    if (family.series.empty()) {
      family.kind = value.kind;
      family.help = value.help;
    }
    if (family.kind != value.kind) return;   // two programs use one name for two things: the first is shown
    Labels labels = value.tags;
    labels["job_id"] = job.Hex();
    labels["node"] = node;
    if (value.kind == MetricValue::kGauge) labels["worker_id"] = worker.Hex();
    Fold(family.series[labels], value);
  };
  for (const auto& [key, value] : ended_) add(key.job, key.node, WorkerId(), value);
  for (const auto& [worker, metrics] : living_) {
    for (const MetricValue& value : metrics.metrics) add(metrics.job, metrics.node_name, worker, value);
  }
  std::string text;
  for (const auto& [name, family] : families) {
    const char* kind = family.kind == MetricValue::kCounter ? "counter" : family.kind == MetricValue::kGauge ? "gauge" : "histogram";
    if (!family.help.empty()) text += fmt::format("# HELP {} {}\n", name, HelpText(family.help));
    text += fmt::format("# TYPE {} {}\n", name, kind);
    for (const auto& [labels, value] : family.series) {
      if (family.kind != MetricValue::kHistogram) {
        text += fmt::format("{}{} {}\n", name, PrometheusLabels(labels), PrometheusNumber(value.value));
        continue;
      }
      uint64_t count = 0;
      for (size_t i = 0; i < value.counts.size(); ++i) {
        count += value.counts[i];
        Labels bucket = labels;
        bucket["le"] = i < value.bounds.size() ? PrometheusNumber(value.bounds[i]) : "+Inf";
        text += fmt::format("{}_bucket{} {}\n", name, PrometheusLabels(bucket), count);
      }
      text += fmt::format("{}_sum{} {}\n", name, PrometheusLabels(labels), PrometheusNumber(value.value));
      text += fmt::format("{}_count{} {}\n", name, PrometheusLabels(labels), count);
    }
  }
  return text;
}

}  // namespace argosy::head
