#pragma once

// The tiny checkpoints with what transformers computes on them. They lie beside the source tree, not in it: tests that need them
// say so and pass without them.

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/assets.h"
#include "train/data/batches.h"

namespace argosy::train {

// The folder of one checkpoint.
inline std::optional<std::string> TinyCheckpoint(const std::string& name) {
  auto directory = testing::FindAsset("tiny/" + name);
  if (!directory) return std::nullopt;
  return directory->string();
}

inline const std::vector<std::string>& TinyVariants() {
  static const std::vector<std::string> kNames = {
      "llama2-mha",  "llama2-mha-sharded", "llama3-gqa",   "llama3-gqa-bf16",   "smollm2-tied",
      "mistral-swa", "qwen2-bias",         "llama-biases", "llama-rope-linear", "qwen3-qknorm"};
  return kNames;
}

inline nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // Python writes NaN, which is not JSON.
  for (size_t at = 0; (at = text.find(": NaN", at)) != std::string::npos;) text.replace(at, 5, ": null");
  return nlohmann::json::parse(text);
}

// Rows as transformers' causal models take them: labels are the ids (or -100) of the same place, positions count from 0.
inline MicroBatch BatchOf(const std::vector<std::vector<int32_t>>& ids, const std::vector<std::vector<int32_t>>& labels,
                          const std::vector<std::vector<int32_t>>& attention_mask = {}) {
  MicroBatch batch;
  batch.rows = static_cast<int32_t>(ids.size());
  batch.ctx = static_cast<int32_t>(ids.front().size());
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t i = 0; i < ids[row].size(); ++i) {
      batch.input_ids.push_back(ids[row][i]);
      batch.targets.push_back(i + 1 < ids[row].size() ? labels[row][i + 1] : MicroBatch::kNoTarget);
      batch.target_tokens += batch.targets.back() != MicroBatch::kNoTarget;
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.segments.push_back(!attention_mask.empty() && attention_mask[row][i] == 0 ? MicroBatch::kPadding : 0);
    }
  }
  return batch;
}

}  // namespace argosy::train
