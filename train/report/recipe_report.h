#pragma once

// A run's records under the names by which the reference recipes report them, for whoever reads those.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace argosy::train {

inline constexpr char kRecipeReportName[] = "result.json";   // as the recipes' trial folders call it: JSON lines

// Makes the recipes' reports from the records of metrics.jsonl: one for every step but an epoch's last, and one for each epoch with the
// last step's numbers and the epoch's. Each has all names, with null where a value is not known yet:
//
//   epoch, iteration                       from 0; iteration is the optimizer step within its epoch
//   train_loss_batch, learning_rate        of the step
//   num_iterations                         iteration + 1
//   fwd_time, bwd_time                     seconds of the step
//   avg_train_loss_epoch, avg_fwd_time_per_epoch, avg_bwd_time_per_epoch    means over the epoch's steps
//   eval_loss, perplexity, train_time_per_epoch, eval_time_per_epoch
//
// Thread:   one.
// Failure:  records that say nothing of this, and lines that are cut, are passed over.
class RecipeReports {
 public:
  // The reports that are now complete, a line each. A step's is held back until the next record tells whether it was its epoch's last.
  std::string Add(std::string_view record);

 private:
  struct Step {
    double loss = 0, learning_rate = 0, forward_seconds = 0, backward_seconds = 0;
    int64_t iteration = 0;
  };
  std::string Report(const Step& step, std::string_view rest) const;

  std::optional<Step> held_;
  int64_t epoch_ = -1;       // of what follows
  int64_t steps_ = 0;        // of it so far
  double loss_sum_ = 0, forward_sum_ = 0, backward_sum_ = 0;
};

}  // namespace argosy::train
