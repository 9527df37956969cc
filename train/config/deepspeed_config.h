#pragma once

// A DeepSpeed JSON file and the command line's flags, made into one set of effective values.
//
// Reference: deepspeed/runtime/config.py, zero/config.py, lr_schedules.py (0.19) and transformers' resolution of "auto".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "train/config/lr_schedule.h"

namespace argosy::train {

enum class Precision { kFp32, kBf16 };

// "no" or "fp32", "bf16". "fp16" and "fp8" are refused by name, with the way out.
absl::StatusOr<Precision> PrecisionFromName(std::string_view name);
std::string_view PrecisionName(Precision precision);  // "fp32" or "bf16"

// Flags that the user gave; what was not given is not set. A given flag wins over the file, and the report says so.
struct CommandLineSettings {
  std::optional<int64_t> micro_batch_size;             // --batch-size-per-device
  std::optional<int64_t> gradient_accumulation_steps;  // --grad-accum
  std::optional<Precision> precision;                  // --mx
  std::optional<double> learning_rate;                 // --learning-rate
  std::optional<double> weight_decay;                  // --weight-decay
  std::optional<double> adam_beta1;                    // --adam-betas
  std::optional<double> adam_beta2;
  std::optional<double> adam_eps;                      // --adam-eps
  std::optional<double> max_grad_norm;                 // --max-grad-norm
  std::optional<LrScheduleType> lr_scheduler;          // --lr-scheduler
  std::optional<int64_t> warmup_steps;                 // --warmup-steps
  std::optional<double> warmup_ratio;                  // --warmup-ratio
  std::optional<double> min_lr;                        // --min-lr
  std::optional<int> zero_stage;                       // --zero-stage
  std::optional<std::string> offload;                  // --offload: "none", "cpu" or a folder
  std::optional<Precision> moments;                    // --moments
};

// What the file's values are resolved against.
struct SettingsContext {
  int64_t world_size = 1;
  // Of the model; 0 = unknown: sizes that are "auto" then stay at their defaults.
  int64_t hidden_size = 0;
  // Optimizer steps of the run; 0 = unknown: it is filled in once the data is counted.
  int64_t total_steps = 0;
  CommandLineSettings flags;
};

// What the trainer runs with. The defaults are those of a run with neither file nor flags.
struct TrainSettings {
  int64_t train_batch_size = 16;  // rows an optimizer step, all ranks together
  int64_t micro_batch_size = 16;  // rows a rank and micro-batch
  int64_t gradient_accumulation_steps = 1;

  Precision precision = Precision::kBf16;
  LrScheduleConfig schedule;  // schedule.lr is the optimizer's lr; schedule.total_steps may still be 0
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.0;
  double gradient_clipping = 1.0;  // 0 = off

  int zero_stage = 3;
  std::string offload_folder;   // of the optimizer's state, on each rank's node; empty: memory
  Precision moments = Precision::kFp32;
};

enum class ValueUse { kHonoured, kIgnored, kRefused };

// One row of the printed table.
struct EffectiveValue {
  std::string key;     // the file's path: "zero_optimization.stage"
  std::string value;
  std::string source;  // "file", "flag --zero-stage", "auto", "inferred", "default"
  ValueUse use = ValueUse::kHonoured;
  std::string note;    // why it is ignored or refused, or what it overrides
};

struct SettingsReport {
  TrainSettings settings;  // meaningful when there are no errors
  std::vector<EffectiveValue> values;
  std::vector<std::string> warnings;
  std::vector<std::string> errors;

  bool ok() const { return errors.empty(); }
  // The table, then warnings and errors; ends in a newline.
  std::string ToText() const;
};

// A DeepSpeed file's text by what DeepSpeed takes for it: a path (also of a pipe, which can be read once), or the file itself in base64 (its
// web-safe alphabet or the plain one).
absl::StatusOr<std::string> ReadDeepSpeedText(const std::string& path_or_base64);

// `json_text` is Hjson, of which JSON is a part: comments, keys without quotation marks, ...; empty = no file. Never fails: what is wrong is in `errors`, all
// of it at once.
SettingsReport ValidateDeepSpeedConfig(std::string_view json_text, const SettingsContext& context);

// The same for a caller that goes on to train: the errors become one status.
absl::StatusOr<SettingsReport> ResolveSettings(std::string_view json_text, const SettingsContext& context);

}  // namespace argosy::train
