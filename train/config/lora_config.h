#pragma once

// An adapter_config.json as peft writes it: which modules of a model get low-rank adapters, and of what kind.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::train {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

enum class LoraBias { kNone, kAll, kLoraOnly };   // which of the base's biases are trained too
enum class LoraInit { kKaiming, kGaussian, kNone };   // of A; B begins at 0 ("init_lora_weights" true, "gaussian", false)

// y = W x + scale * B A dropout(x), with scale = alpha / rank, or alpha / sqrt(rank) with rsLoRA.
struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rank_stabilised = false;
  // Names of modules, or ends of names; with `target_pattern` a regular expression that a whole name matches, or "all-linear".
  std::vector<std::string> target_modules;
  std::string target_pattern;
  std::vector<std::string> exclude_modules;
  std::string exclude_pattern;
  // Ends of names of modules that are trained whole, in copies of their own.
  std::vector<std::string> modules_to_save;
  LoraBias bias = LoraBias::kNone;
  LoraInit init = LoraInit::kKaiming;
  // By regular expressions that the end of a module's name matches; the first one that does.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<int64_t> layers_to_transform;   // empty: all
  std::vector<std::string> layers_pattern;    // names of the list of layers; empty: any
  std::string base_model;                     // "base_model_name_or_path"; may be empty

  // Every layer's products, rank 8, alpha 16: what a run without a file has.
  static LoraConfig Default();
  // What would change the numbers and is not done here (DoRA, PiSSA, ...) is an error that names the key and its value. A rank below 1, a dropout
  // outside of [0, 1) and a broken regular expression are errors too.
  static absl::StatusOr<LoraConfig> Parse(std::string_view json);
  // `path`: the file, or a folder with an adapter_config.json.
  static absl::StatusOr<LoraConfig> Load(const std::string& path);

  // Whether `module` ("model.layers.0.self_attn.q_proj") gets an adapter; `is_linear` without the model's output layer.
  bool Targets(std::string_view module, bool is_linear) const;
  bool Saves(std::string_view module) const;
  int64_t RankOf(std::string_view module) const;
  double ScaleOf(std::string_view module) const;
  // "rank 8, alpha 16, dropout 0.05, ..."
  std::string ToText() const;
  // As peft writes the file of a finished adapter.
  std::string ToJson() const;
};

}  // namespace argosy::train
