#include "train/report/run_report.h"

#include <cmath>
#include <optional>
#include <sstream>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/report/line_plot.h"

namespace argosy::train {
namespace {

using nlohmann::json;

std::optional<double> NumberIn(const json& record, const char* key) {
  auto it = record.find(key);
  if (it == record.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

std::string Shown(std::optional<double> value, int digits) { return value ? fmt::format("{:.{}f}", *value, digits) : "-"; }

}  // namespace

absl::StatusOr<RunReport> ReportRun(std::string_view metrics) {
  std::vector<json> steps, epochs, failures;
  json base, exact;
  std::istringstream lines{std::string(metrics)};
  for (std::string line; std::getline(lines, line);) {
    json record = json::parse(line, nullptr, false);
    if (!record.is_object()) continue;   // the last one of a run that was killed
    if (record.contains("failure")) failures.push_back(std::move(record));
    else if (record.contains("exact")) exact = std::move(record);
    else if (record.contains("base_eval_loss")) base = std::move(record);
    else if (record.contains("train_loss")) epochs.push_back(std::move(record));
    else if (record.contains("loss")) steps.push_back(std::move(record));
  }
  if (steps.empty()) return InvalidArgument("the metrics have no step yet");

  RunReport report;
  Series loss{.name = "training"}, held_out{.name = "held out", .marks = true}, tokens{.name = "tokens/s"};
  double seconds = 0, all_tokens = 0;
  for (const json& step : steps) {
    double at = NumberIn(step, "total_step").value_or(static_cast<double>(loss.points.size() + 1));
    loss.points.emplace_back(at, NumberIn(step, "loss").value_or(NAN));
    double rate = NumberIn(step, "tokens_per_second").value_or(NAN), took = NumberIn(step, "seconds").value_or(0);
    tokens.points.emplace_back(at, rate);
    seconds += took;
    if (std::isfinite(rate)) all_tokens += rate * took;
  }
  Series train_time{.name = "training", .marks = true};
  if (std::optional<double> value = NumberIn(base, "base_eval_loss")) held_out.points.emplace_back(0, *value);
  for (const json& epoch : epochs) {
    if (std::optional<double> value = NumberIn(epoch, "eval_loss")) held_out.points.emplace_back(NumberIn(epoch, "total_step").value_or(0), *value);
    train_time.points.emplace_back(NumberIn(epoch, "epoch").value_or(0), NumberIn(epoch, "train_seconds").value_or(NAN));
  }
  Plot losses{.title = "Loss", .x_label = "optimizer step", .y_label = "loss a token", .series = {loss}};
  if (!held_out.points.empty()) losses.series.push_back(held_out);
  report.plots["loss.svg"] = DrawLines(losses);
  report.plots["throughput.svg"] = DrawLines({"Throughput", "optimizer step", "tokens a second", {tokens}});
  report.plots["epochs.svg"] = DrawLines({"Time of an epoch", "epoch", "seconds", {train_time}});

  report.text += fmt::format("{} steps in {:.1f} s, {:.0f} tokens/s\n", steps.size(), seconds, seconds > 0 ? all_tokens / seconds : 0.0);
  if (std::optional<double> mfu = NumberIn(steps.back(), "mfu")) report.text += fmt::format("mfu of the last step: {:.0f}%\n", 100 * *mfu);
  report.text += fmt::format("\n{:>12} {:>12} {:>12} {:>12}\n", "", "train loss", "eval loss", "perplexity");
  if (!base.is_null()) {
    report.text += fmt::format("{:>12} {:>12} {:>12} {:>12}\n", "base", "-", Shown(NumberIn(base, "base_eval_loss"), 4),
                               Shown(NumberIn(base, "base_perplexity"), 3));
  }
  for (const json& epoch : epochs) {
    report.text += fmt::format("{:>12} {:>12} {:>12} {:>12}\n", fmt::format("epoch {}", NumberIn(epoch, "epoch").value_or(0)),
                               Shown(NumberIn(epoch, "train_loss"), 4), Shown(NumberIn(epoch, "eval_loss"), 4),
                               Shown(NumberIn(epoch, "perplexity"), 3));
  }
  if (!exact.is_null()) {
    report.text += fmt::format("\nexact: {:.0f} of {:.0f} held-out answers\n", NumberIn(exact, "exact").value_or(0),
                               NumberIn(exact, "exact_of").value_or(0));
  }
  for (const json& failure : failures) {
    auto reason = failure.find("reason");
    report.text += fmt::format("failure {:.0f} after step {:.0f}: {}\n", NumberIn(failure, "failure").value_or(0),
                               NumberIn(failure, "total_step").value_or(0),
                               reason != failure.end() && reason->is_string() ? reason->get<std::string>() : "");
  }
  return report;
}

}  // namespace argosy::train
