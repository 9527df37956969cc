#pragma once

// Learning rates as pure functions of the optimizer step.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace argosy::train {

enum class LrScheduleType {
  kLinear,        // up over warm-up, then straight down to min_lr
  kCosine,        // up over warm-up, then half a cosine down to min_lr
  kConstant,      // up over warm-up, then flat
  kRecipe,        // what the reference recipes' pinned versions did: linear, warm-up and length both multiplied by the world size
  kWarmupLr,      // DeepSpeed's types with their own formulas
  kWarmupDecayLr,
  kWarmupCosineLr,
};

// Everything that the rate of a step depends on.
struct LrScheduleConfig {
  LrScheduleType type = LrScheduleType::kLinear;
  double lr = 5e-6;       // the peak
  double min_lr = 0.0;    // kLinear, kCosine: the end. kWarmupLr, kWarmupDecayLr: where warm-up starts
  // Optimizer steps of warm-up. With warmup_ratio >= 0 this is ceil(ratio * total_steps) instead.
  int64_t warmup_steps = 10;
  double warmup_ratio = -1.0;
  int64_t total_steps = 0;  // optimizer steps of the whole run
  int64_t world_size = 1;   // kRecipe only
  // DeepSpeed's only.
  bool log_warmup = true;           // gamma = ln(step + 1) / ln(warm-up), else step / warm-up
  double warmup_min_ratio = 0.0;    // kWarmupCosineLr: warm-up starts at lr * this
  double cosine_min_ratio = 1e-4;   // kWarmupCosineLr: and ends at lr * this
};

// "linear", "cosine", "constant", "recipe", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"; DeepSpeed's names in any case.
absl::StatusOr<LrScheduleType> LrScheduleTypeFromName(std::string_view name);
std::string_view LrScheduleName(LrScheduleType type);

absl::Status CheckLrSchedule(const LrScheduleConfig& config);

// The rate of optimizer step `step` (0 = the first). With W = warm-up, T = total, s = step:
//
// kLinear   transformers' get_linear_schedule_with_warmup: lr * s / W while s < W, then min_lr + (lr - min_lr) * (T - s) / (T - W),
//           which is min_lr once the last step is done.
// kCosine   transformers' get_cosine_with_min_lr_schedule_with_warmup: the same warm-up, then half a cosine from lr to min_lr.
// kConstant the same warm-up, then lr.
// kRecipe   kLinear with W and T both multiplied by the world size.
// k...Lr    deepspeed/runtime/lr_schedules.py at iteration s - 1: the engine steps its scheduler after the optimizer, so the first
//           two steps both have the rate at which warm-up starts.
double LearningRate(const LrScheduleConfig& config, int64_t step);

}  // namespace argosy::train
