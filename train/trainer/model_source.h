#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/model_config.h"
#include "train/model/adapter_layout.h"
#include "train/model/weight_source.h"
#include "train/trainer/run_spec.h"

namespace argosy::train {

// A model to be trained: its config with the run's vocabulary, and where its weights come from.
struct ModelWithWeights {
  ModelConfig config;
  int64_t files_vocab_size = 0;
  std::unique_ptr<HfWeights> files;           // null for random weights
  std::unique_ptr<WeightSource> stored;       // reads `files`
  std::unique_ptr<WeightSource> grown;        // set when the vocabulary is larger than the files'; reads `stored`
  const WeightSource& source() const { return grown ? *grown : *stored; }
};

// The adapters of a run: their layout and their values to begin with.
struct RunAdapter {
  LoraConfig lora;
  AdapterLayout layout;
  StoredAdapter stored;                       // with files of its own where the run goes on from an adapter
  std::unique_ptr<WeightSource> fresh;
  const WeightSource& values() const { return fresh ? *fresh : *stored.values; }
  // What the model's weights are then.
  const WeightSource& base(const ModelWithWeights& model) const { return fresh ? model.source() : *stored.base; }
};

// `model` must outlive the result.
absl::StatusOr<RunAdapter> OpenRunAdapter(const AdapterSpec& spec, const ModelWithWeights& model, uint64_t seed);

// Reads config.json and opens the weights of a folder of this host. A vocabulary smaller than the files' is an error.
absl::StatusOr<ModelWithWeights> OpenModel(const ModelSource& model);

}  // namespace argosy::train
