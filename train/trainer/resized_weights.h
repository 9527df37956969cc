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
  std::unique_ptr<HfWeights> files;        // null for random weights
  std::unique_ptr<WeightSource> source;    // reads `files`
};

// Reads config.json and opens the weights of a folder of this host. A vocabulary larger than the files' gets new rows at the end of
// embedding and head, each the mean of the old rows: where transformers' resize_token_embeddings draws them from a normal of that
// mean with a billionth of the old rows' covariance. A smaller one is an error.
absl::StatusOr<ModelWithWeights> OpenModel(const ModelSource& model);

}  // namespace argosy::train
