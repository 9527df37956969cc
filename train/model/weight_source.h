#pragma once

// Where a model's first weights come from.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/model_config.h"
#include "train/model/layout.h"

namespace argosy::train {

// Thread:   any.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Elements [begin, begin + out.size()) of the flattened tensor.
  virtual absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const = 0;
};

// Elements [begin, begin + out.size()) of a unit's flat buffer, padding as zeros: a rank reads its own share and nothing else.
absl::Status ReadFlat(const WeightSource& source, const UnitLayout& unit, int64_t begin, std::span<float> out);

// An HF directory's weights. `weights` must outlive the source and have passed Check against the model's tensors.
std::unique_ptr<WeightSource> WeightsFromHf(const HfWeights& weights);

// What transformers initialises a model with: matrices from normal(0, initializer_range), norms 1, biases 0. Element i of a tensor
// depends on (seed, tensor's name, i) alone, so that any rank can make any part.
std::unique_ptr<WeightSource> RandomWeights(const ModelConfig& config, uint64_t seed);

// `source` has weights for `old_vocab_size` tokens, `config` more: the added rows of the embedding and of the head start, as in
// transformers' resize_token_embeddings, at the mean of the old rows plus noise of a variance 1e-9 of theirs (its diagonal). Reads
// those matrices once, here. `source` must outlive the result.
absl::StatusOr<std::unique_ptr<WeightSource>> GrownVocabulary(const WeightSource& source, const ModelConfig& config,
                                                              int64_t old_vocab_size, uint64_t seed);

// Numbers of streams of their own: element `begin` + i of what is named `name` depends on (seed, name, begin + i) alone.
void FillNormal(uint64_t seed, std::string_view name, int64_t begin, double deviation, std::span<float> out);
void FillUniform(uint64_t seed, std::string_view name, int64_t begin, double bound, std::span<float> out);   // in (-bound, bound)

}  // namespace argosy::train
