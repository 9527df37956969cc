#include "train/trainer/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/time/clock.h"
#include "spdlog/fmt/fmt.h"

namespace argosy::train {

double Perplexity(double mean_loss) { return mean_loss > 700 ? std::numeric_limits<double>::infinity() : std::exp(mean_loss); }

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(absl::Now() - begin); }

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"kB", "MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::string FormatStep(const StepLine& line) {
  const int marks = std::clamp(static_cast<int>(line.done_share * 10), 0, 10);
  std::string text = fmt::format("[epoch {}/{} step {}/{}] loss: {:.4f} lr: {:.2e} grad-norm: {:.3f} tokens/s: {:.0f} useful: {:.0f}% ETA: {} [{:.<10}]",
                     line.report.epoch + 1, line.epochs, line.report.step + 1, line.steps_in_epoch, line.report.loss,
                     line.report.learning_rate, line.report.grad_norm, line.tokens_per_second, 100 * line.useful_share,
                     FormatSeconds(line.eta_seconds), std::string(static_cast<size_t>(marks), '#'));
  if (line.peak_bytes > 0) text += fmt::format(" mem: {}", FormatBytes(line.peak_bytes));
  if (line.mfu > 0) text += fmt::format(" mfu: {:.0f}%", 100 * line.mfu);
  if (line.report.skipped) text += " (skipped: not finite)";
  return text;
}

std::string FormatRecipeStep(const StepReport& report) {
  return fmt::format("[epoch {} step {}] loss: {} step-time: {}", report.epoch, report.step, report.loss, report.seconds);
}

std::string FormatEpochTable(const std::vector<EpochRecord>& rows) {
  std::string text = fmt::format("{:>6} {:>7} {:>12} {:>11} {:>11} {:>11} {:>11} {:>12} {:>10}\n", "epoch", "steps", "train time",
                                 "eval time", "save time", "train loss", "eval loss", "perplexity", "tokens/s");
  for (const EpochRecord& row : rows) {
    bool trained = row.steps > 0;
    text += fmt::format("{:>6} {:>7} {:>12} {:>11} {:>11} {:>11} {:>11} {:>12} {:>10}\n", trained ? fmt::to_string(row.epoch) : "base",
                        row.steps, trained ? FormatSeconds(row.train_seconds) : "-",
                        row.has_eval ? FormatSeconds(row.eval_seconds) : "-",
                        row.save_seconds > 0 ? FormatSeconds(row.save_seconds) : "-",
                        trained ? fmt::format("{:.4f}", row.train_loss) : "-",
                        row.has_eval ? fmt::format("{:.4f}", row.eval_loss) : "-",
                        row.has_eval ? fmt::format("{:.3f}", Perplexity(row.eval_loss)) : "-",
                        trained ? fmt::format("{:.0f}", row.tokens_per_second) : "-");
  }
  return text;
}

}  // namespace argosy::train
