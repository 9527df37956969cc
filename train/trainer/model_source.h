#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/model_config.h"
#include "train/model/weight_source.h"
#include "train/trainer/run_spec.h"

namespace argosy::train {

// A model to be trained: its config with the run's vocabulary, and where its weights come from.
struct ModelWithWeights {
  ModelConfig config;
  std::unique_ptr<HfWeights> files;           // null for random weights
  std::unique_ptr<WeightSource> stored;       // reads `files`
  std::unique_ptr<WeightSource> grown;        // set when the vocabulary is larger than the files'; reads `stored`
  const WeightSource& source() const { return grown ? *grown : *stored; }
};

// Reads config.json and opens the weights of a folder of this host. A vocabulary smaller than the files' is an error.
absl::StatusOr<ModelWithWeights> OpenModel(const ModelSource& model);

}  // namespace argosy::train
