#include "train/config/lr_schedule.h"

#include <vector>

#include "tests/support/catch.h"

namespace argosy::train {
namespace {

void CheckRates(const LrScheduleConfig& config, const std::vector<double>& wanted) {
  for (size_t step = 0; step < wanted.size(); ++step) {
    INFO("step " << step);
    CHECK(LearningRate(config, static_cast<int64_t>(step)) == Approx(wanted[step]).epsilon(1e-12).margin(1e-18));
  }
}

}  // namespace

// Wanted values were printed by transformers 5.24's schedulers.
TEST_CASE("LearningRate: linear is transformers' linear schedule") {
  CheckRates({.type = LrScheduleType::kLinear, .lr = 1e-3, .warmup_steps = 4, .total_steps = 12},
             {0.0, 0.00025, 0.0005, 0.00075, 0.001, 0.000875, 0.00075, 0.000625, 0.0005, 0.000375, 0.00025, 0.000125, 0.0, 0.0});
}

TEST_CASE("LearningRate: cosine is transformers' cosine schedule with a minimum") {
  CheckRates({.type = LrScheduleType::kCosine, .lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 4, .total_steps = 12},
             {0.0, 0.00025, 0.0005, 0.00075, 0.001, 0.000965745789630079, 0.0008681980515339464, 0.0007222075445642904, 0.00055,
              0.0003777924554357096, 0.00023180194846605365, 0.00013425421036992097, 1e-4, 1e-4});
}

TEST_CASE("LearningRate: constant is flat after its warm-up") {
  CheckRates({.type = LrScheduleType::kConstant, .lr = 1e-3, .warmup_steps = 3, .total_steps = 6},
             {0.0, 0.0003333333333333333, 0.0006666666666666666, 0.001, 0.001, 0.001});
  CheckRates({.type = LrScheduleType::kConstant, .lr = 1e-3, .warmup_steps = 0, .total_steps = 6}, {0.001, 0.001});
}

TEST_CASE("LearningRate: a warm-up ratio counts whole steps, rounded up") {
  CheckRates({.type = LrScheduleType::kLinear, .lr = 1.0, .warmup_steps = 99, .warmup_ratio = 0.3, .total_steps = 10},
             {0.0, 1.0 / 3, 2.0 / 3, 1.0, 6.0 / 7});
}

TEST_CASE("LearningRate: recipe stretches warm-up and decay by the number of ranks") {
  LrScheduleConfig recipe{.type = LrScheduleType::kRecipe, .lr = 1.0, .warmup_steps = 10, .total_steps = 100, .world_size = 4};
  LrScheduleConfig linear{.type = LrScheduleType::kLinear, .lr = 1.0, .warmup_steps = 40, .total_steps = 400};
  for (int64_t step = 0; step < 100; ++step) CHECK(LearningRate(recipe, step) == LearningRate(linear, step));
}

// Wanted values were computed from the formulas of deepspeed/runtime/lr_schedules.py, the scheduler stepped after the optimizer.
TEST_CASE("LearningRate: DeepSpeed's schedules start late by one step and warm up by the logarithm") {
  CheckRates({.type = LrScheduleType::kWarmupLr, .lr = 1e-3, .min_lr = 1e-5, .warmup_steps = 4},
             {1e-05, 1e-05, 0.000505, 0.0007945564378569724, 0.001, 0.001, 0.001, 0.001});
  CheckRates({.type = LrScheduleType::kWarmupLr, .lr = 1e-3, .min_lr = 1e-5, .warmup_steps = 4, .log_warmup = false},
             {1e-05, 1e-05, 0.0002575, 0.000505, 0.0007525, 0.001, 0.001, 0.001});
  CheckRates({.type = LrScheduleType::kWarmupDecayLr, .lr = 1e-3, .min_lr = 1e-5, .warmup_steps = 4, .total_steps = 10},
             {1e-05, 1e-05, 0.000505, 0.0007945564378569724, 0.001, 0.001, 0.000835, 0.00067, 0.000505, 0.00034, 0.000175, 1e-05});
  CheckRates({.type = LrScheduleType::kWarmupCosineLr,
              .lr = 1e-3,
              .warmup_steps = 4,
              .total_steps = 10,
              .log_warmup = false,
              .warmup_min_ratio = 0.1,
              .cosine_min_ratio = 0.01},
             {0.0, 0.0001, 0.000325, 0.00055, 0.000775, 0.0009336825748732972, 0.0007525, 0.000505, 0.0002575, 7.631742512670284e-05,
              1e-05, 1e-05, 1e-05});
}

TEST_CASE("LearningRate: DeepSpeed's warm-up of one step is one of two") {
  CheckRates({.type = LrScheduleType::kWarmupLr, .lr = 1.0, .warmup_steps = 1}, {0.0, 0.0, 1.0, 1.0});
}

TEST_CASE("LearningRate: every schedule stays finite and between its bounds, however short the run") {
  for (LrScheduleType type : {LrScheduleType::kLinear, LrScheduleType::kCosine, LrScheduleType::kConstant, LrScheduleType::kRecipe,
                              LrScheduleType::kWarmupLr, LrScheduleType::kWarmupDecayLr, LrScheduleType::kWarmupCosineLr}) {
    for (int64_t total : {0, 1, 2, 5, 50}) {
      for (int64_t warmup : {0, 1, 5, 10}) {
        LrScheduleConfig config{.type = type, .lr = 1.0, .warmup_steps = warmup, .total_steps = total};
        for (int64_t step = 0; step < total + 5; ++step) {
          double rate = LearningRate(config, step);
          INFO(LrScheduleName(type) << " total " << total << " warm-up " << warmup << " step " << step);
          CHECK((rate >= 0.0 && rate <= 1.0));
        }
      }
    }
  }
}

TEST_CASE("LrSchedule: names are read back, unknown ones are refused with the list") {
  CHECK(LrScheduleTypeFromName("cosine").value() == LrScheduleType::kCosine);
  CHECK(LrScheduleTypeFromName("warmupdecaylr").value() == LrScheduleType::kWarmupDecayLr);
  CHECK(LrScheduleName(LrScheduleType::kWarmupCosineLr) == "WarmupCosineLR");
  absl::Status status = LrScheduleTypeFromName("polynomial").status();
  CHECK(std::string(status.message()).find("polynomial") != std::string::npos);
  CHECK(std::string(status.message()).find("cosine") != std::string::npos);
  CHECK_FALSE(CheckLrSchedule({.lr = -1.0}).ok());
  CHECK_FALSE(CheckLrSchedule({.warmup_ratio = 1.5}).ok());
}

}  // namespace argosy::train
