#include "train/report/recipe_report.h"

#include <utility>

#include "nlohmann/json.hpp"

namespace argosy::train {
namespace {

using Json = nlohmann::ordered_json;

double NumberIn(const Json& record, const char* key) {
  auto it = record.find(key);
  return it != record.end() && it->is_number() ? it->get<double>() : 0;
}

Json ValueIn(const Json& record, const char* key) {
  auto it = record.find(key);
  return it != record.end() && it->is_number() ? *it : Json();
}

}  // namespace

std::string RecipeReports::Add(std::string_view text) {
  Json record = Json::parse(text, nullptr, false);
  if (!record.is_object() || !record.contains("epoch")) return "";
  const int64_t epoch = static_cast<int64_t>(NumberIn(record, "epoch")) - 1;
  const bool ends_epoch = record.contains("train_loss");
  if (!ends_epoch && !record.contains("loss")) return "";
  std::string reports;
  // Every step but an epoch's last is told when the next one comes.
  if (held_ && !(ends_epoch && epoch == epoch_)) reports += Report(*std::exchange(held_, std::nullopt), "{}");
  if (epoch != epoch_) {
    epoch_ = epoch;
    steps_ = 0;
    loss_sum_ = forward_sum_ = backward_sum_ = 0;
  }
  if (!ends_epoch) {
    held_ = Step{.loss = NumberIn(record, "loss"), .learning_rate = NumberIn(record, "lr"), .forward_seconds = NumberIn(record, "forward_seconds"),
                 .backward_seconds = NumberIn(record, "backward_seconds"), .iteration = static_cast<int64_t>(NumberIn(record, "step")) - 1};
    ++steps_;
    loss_sum_ += held_->loss;
    forward_sum_ += held_->forward_seconds;
    backward_sum_ += held_->backward_seconds;
    return reports;
  }
  if (!held_) return reports;   // of an epoch whose steps are not in these records
  const auto steps = static_cast<double>(steps_);
  Json whole{{"avg_train_loss_epoch", loss_sum_ / steps}, {"eval_loss", ValueIn(record, "eval_loss")}, {"perplexity", ValueIn(record, "perplexity")},
             {"train_time_per_epoch", ValueIn(record, "train_seconds")}, {"eval_time_per_epoch", ValueIn(record, "eval_seconds")},
             {"avg_fwd_time_per_epoch", forward_sum_ / steps}, {"avg_bwd_time_per_epoch", backward_sum_ / steps}};
  reports += Report(*std::exchange(held_, std::nullopt), whole.dump());
  return reports;
}

std::string RecipeReports::Report(const Step& step, std::string_view rest) const {
  Json report{{"epoch", epoch_}, {"iteration", step.iteration}, {"train_loss_batch", step.loss}, {"avg_train_loss_epoch", nullptr},
              {"eval_loss", nullptr}, {"perplexity", nullptr}, {"num_iterations", step.iteration + 1}, {"train_time_per_epoch", nullptr},
              {"eval_time_per_epoch", nullptr}, {"fwd_time", step.forward_seconds}, {"bwd_time", step.backward_seconds},
              {"avg_fwd_time_per_epoch", nullptr}, {"avg_bwd_time_per_epoch", nullptr}, {"learning_rate", step.learning_rate}};
  report.update(Json::parse(rest));
  return report.dump() + "\n";
}

}  // namespace argosy::train
