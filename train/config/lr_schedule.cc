#include "train/config/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <numbers>

#include "runtime/base/status.h"

namespace argosy::train {
namespace {

struct ScheduleName {
  LrScheduleType type;
  std::string_view name;
};
constexpr std::array<ScheduleName, 7> kScheduleNames = {{
    {LrScheduleType::kLinear, "linear"},
    {LrScheduleType::kCosine, "cosine"},
    {LrScheduleType::kConstant, "constant"},
    {LrScheduleType::kRecipe, "recipe"},
    {LrScheduleType::kWarmupLr, "WarmupLR"},
    {LrScheduleType::kWarmupDecayLr, "WarmupDecayLR"},
    {LrScheduleType::kWarmupCosineLr, "WarmupCosineLR"},
}};

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

int64_t WarmupSteps(const LrScheduleConfig& config) {
  if (config.warmup_ratio < 0.0) return config.warmup_steps;
  return static_cast<int64_t>(std::ceil(config.warmup_ratio * static_cast<double>(config.total_steps)));
}

double LinearRate(double lr, double min_lr, int64_t warmup, int64_t total, int64_t step) {
  if (step < warmup) return lr * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup));
  double left = static_cast<double>(total - step) / static_cast<double>(std::max<int64_t>(1, total - warmup));
  return min_lr + (lr - min_lr) * std::clamp(left, 0.0, 1.0);
}

double CosineRate(double lr, double min_lr, int64_t warmup, int64_t total, int64_t step) {
  if (step < warmup) return lr * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup));
  double progress = static_cast<double>(step - warmup) / static_cast<double>(std::max<int64_t>(1, total - warmup));
  double factor = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, progress)));
  return min_lr + (lr - min_lr) * factor;
}

// DeepSpeed's warm-up, 0 to 1; `warmup` is at least 2.
double WarmupGamma(bool log_warmup, int64_t warmup, int64_t iteration) {
  if (log_warmup) return std::log(static_cast<double>(iteration + 1)) / std::log(static_cast<double>(warmup));
  return static_cast<double>(iteration) / static_cast<double>(warmup);
}

double DeepSpeedRate(const LrScheduleConfig& config, int64_t step) {
  const int64_t iteration = step - 1;
  const int64_t warmup = std::max<int64_t>(2, WarmupSteps(config));
  const int64_t total = config.total_steps;
  if (config.type == LrScheduleType::kWarmupCosineLr) {
    if (iteration < 0) return 0.0;
    if (iteration < warmup) {
      double gamma = WarmupGamma(config.log_warmup, warmup, iteration);
      return config.lr * (config.warmup_min_ratio + gamma * (1.0 - config.warmup_min_ratio));
    }
    double progress = static_cast<double>(iteration - warmup + 1) / static_cast<double>(std::max<int64_t>(1, total - warmup));
    double cosine = (1.0 + std::cos(std::numbers::pi * std::min(1.0, progress))) / 2.0;
    return config.lr * std::max(0.0, config.cosine_min_ratio + (1.0 - config.cosine_min_ratio) * cosine);
  }
  if (iteration < 0) return config.min_lr;
  double gamma = 1.0;
  if (iteration < warmup) {
    gamma = WarmupGamma(config.log_warmup, warmup, iteration);
  } else if (config.type == LrScheduleType::kWarmupDecayLr) {
    gamma = std::max(0.0, static_cast<double>(total - iteration) / std::max(1.0, static_cast<double>(total - warmup)));
  }
  return config.min_lr + (config.lr - config.min_lr) * gamma;
}

}  // namespace

absl::StatusOr<LrScheduleType> LrScheduleTypeFromName(std::string_view name) {
  for (const ScheduleName& row : kScheduleNames) {
    if (EqualIgnoringCase(row.name, name)) return row.type;
  }
  return InvalidArgument("learning-rate schedule \"{}\" is not known: accepted are linear, cosine, constant, recipe, WarmupLR, "
                         "WarmupDecayLR, WarmupCosineLR", name);
}

std::string_view LrScheduleName(LrScheduleType type) { return kScheduleNames[static_cast<size_t>(type)].name; }

absl::Status CheckLrSchedule(const LrScheduleConfig& config) {
  if (!(config.lr >= 0.0) || !std::isfinite(config.lr)) return InvalidArgument("the learning rate is {}: it must be 0 or more", config.lr);
  if (!(config.min_lr >= 0.0) || !std::isfinite(config.min_lr)) {
    return InvalidArgument("the minimum learning rate is {}: it must be 0 or more", config.min_lr);
  }
  if (config.warmup_ratio < 0.0 && config.warmup_steps < 0) {
    return InvalidArgument("warm-up is {} steps: it must be 0 or more", config.warmup_steps);
  }
  if (config.warmup_ratio > 1.0) return InvalidArgument("the warm-up ratio is {}: it must be between 0 and 1", config.warmup_ratio);
  if (config.total_steps < 0) return InvalidArgument("the run has {} steps: it must have 0 or more", config.total_steps);
  if (config.world_size < 1) return InvalidArgument("the world size is {}: it must be 1 or more", config.world_size);
  return absl::OkStatus();
}

double LearningRate(const LrScheduleConfig& config, int64_t step) {
  const int64_t warmup = WarmupSteps(config);
  switch (config.type) {
    case LrScheduleType::kLinear:
      return LinearRate(config.lr, config.min_lr, warmup, config.total_steps, step);
    case LrScheduleType::kRecipe:
      return LinearRate(config.lr, config.min_lr, warmup * config.world_size, config.total_steps * config.world_size, step);
    case LrScheduleType::kCosine:
      return CosineRate(config.lr, config.min_lr, warmup, config.total_steps, step);
    case LrScheduleType::kConstant:
      return step < warmup ? config.lr * static_cast<double>(step) / static_cast<double>(warmup) : config.lr;
    case LrScheduleType::kWarmupLr:
    case LrScheduleType::kWarmupDecayLr:
    case LrScheduleType::kWarmupCosineLr:
      return DeepSpeedRate(config, step);
  }
  return config.lr;
}

}  // namespace argosy::train
