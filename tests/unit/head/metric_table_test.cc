#include "runtime/head/metric_table.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {


MetricValue Counter(const std::string& name, double value, std::map<std::string, std::string> tags = {}) {
  MetricValue metric;
  metric.name = name;
  metric.value = value;
  metric.tags = std::move(tags);
  return metric;
}
ProcessMetrics From(uint64_t worker, std::vector<MetricValue> metrics) {
  return {kJob, NodeId::FromNumber(2), "n", WorkerId::FromNumber(worker), std::move(metrics), 0};
}
bool Has(const std::string& text, const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; }
const std::string kLabels = "job_id=\"" + kJob.Hex() + "\",node=\"n\"";

}  // namespace

TEST_CASE("MetricTable: counters are summed over processes, also ended ones, and a repeat replaces") {
  MetricTable table;
  table.Report(From(1, {Counter("rows", 5)}));
  table.Report(From(2, {Counter("rows", 7)}));
  table.Report(From(1, {Counter("rows", 6)}));
  CHECK(Has(table.Text(), "rows{" + kLabels + "} 13"));
  table.WorkerDied(WorkerId::FromNumber(1));
  CHECK(Has(table.Text(), "rows{" + kLabels + "} 13"));
  table.Report(From(3, {Counter("rows", 1)}));
  CHECK(Has(table.Text(), "rows{" + kLabels + "} 14"));
  CHECK(Has(table.Text(), "# TYPE rows counter"));
}

TEST_CASE("MetricTable: gauges are each process's own and go with it") {
  MetricTable table;
  MetricValue gauge = Counter("depth", 3);
  gauge.kind = MetricValue::kGauge;
  table.Report(From(1, {gauge}));
  CHECK(Has(table.Text(), "depth{" + kLabels + ",worker_id=\"" + WorkerId::FromNumber(1).Hex() + "\"} 3"));
  table.WorkerDied(WorkerId::FromNumber(1));
  CHECK(table.Text().empty());
}

TEST_CASE("MetricTable: histograms have cumulative buckets, a sum and a count") {
  MetricTable table;
  MetricValue histogram = Counter("seconds", 6.5);
  histogram.kind = MetricValue::kHistogram;
  histogram.bounds = {0.5, 2};
  histogram.counts = {1, 2, 3};
  table.Report(From(1, {histogram}));
  table.Report(From(2, {histogram}));
  std::string text = table.Text();
  CHECK(Has(text, "seconds_bucket{" + kLabels.substr(0, kLabels.find(",node")) + ",le=\"0.5\",node=\"n\"} 2"));
  CHECK(Has(text, "seconds_bucket{" + kLabels.substr(0, kLabels.find(",node")) + ",le=\"+Inf\",node=\"n\"} 12"));
  CHECK(Has(text, "seconds_sum{" + kLabels + "} 13"));
  CHECK(Has(text, "seconds_count{" + kLabels + "} 12"));
  histogram.counts.pop_back();
  table.Report(From(3, {histogram}));   // not a histogram: not shown, and harmless
  CHECK(table.Text() == text);
}

TEST_CASE("MetricTable: tags are labels, with what the format escapes") {
  MetricTable table;
  MetricValue counter = Counter("rows", 1, {{"table", "a\"b\\c\nd"}});
  counter.help = "Rows\nread";
  table.Report(From(1, {counter}));
  CHECK(Has(table.Text(), "rows{" + kLabels + ",table=\"a\\\"b\\\\c\\nd\"} 1"));
  CHECK(Has(table.Text(), "# HELP rows Rows\\nread"));
}

TEST_CASE("MetricTable: its bounds hold, and what is dropped is counted") {
  MetricTable table({.series_max = 3, .ended_jobs_max = 1});
  table.Report(From(1, {Counter("a", 1), Counter("b", 1)}));
  table.Report(From(2, {Counter("c", 1), Counter("d", 1)}));
  CHECK(table.dropped() == 1);
  CHECK_FALSE(Has(table.Text(), "d{" + kLabels + "} 1"));
  table.WorkerDied(WorkerId::FromNumber(1));
  table.JobEnded(kJob);
  CHECK(Has(table.Text(), "a{" + kLabels + "} 1"));
  table.JobEnded(JobId::FromNumber(9));
  CHECK_FALSE(Has(table.Text(), "a{" + kLabels + "} 1"));
}

}  // namespace argosy::head
