#pragma once

// A whole model in one process, for inference. The trainer's engine runs the same units on sharded weights.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/config/model_config.h"
#include "train/data/batches.h"
#include "train/model/weight_source.h"

namespace argosy::train {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  // Generation ends after any of these (which is then the last token returned). Empty: the config's eos tokens.
  std::vector<int32_t> stop_tokens;
  bool ignore_stop = false;  // always max_new_tokens
  // So many prompts grow together; each weight is then read once for all of them.
  int64_t rows_max = 16;
  // Called for every token as it is made, in the order of the prompts for tokens of one place.
  std::function<void(size_t prompt, int32_t token)> on_token;
};

struct BatchLoss {
  double nll = 0;  // summed over the targets
  int64_t target_tokens = 0;
};

// Thread:   one at a time; the calling thread's torch threads (SetComputeThreads) do the work.
// Lifetime: owns its weights.
// Failure:  ids outside the vocabulary and unreadable weights are errors.
class Model {
 public:
  // `dtype` is what the weights are kept and computed in: kF32 or kBF16 (rounded to nearest even).
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelConfig& config, const WeightSource& source, DType dtype);
  // With an adapter beside the weights, not merged into them; `base` has what the adapter does not bring.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelConfig& base_config, const WeightSource& base, const std::string& adapter_directory,
                                                       DType dtype);
  // config.json and weights of an HF directory; with an adapter's directory, of its base.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory, DType dtype, const std::string& adapter_directory = "");
  ~Model();

  const ModelConfig& config() const;
  // [ids.size(), vocab_size], row-major.
  absl::StatusOr<std::vector<float>> Logits(std::span<const int32_t> ids) const;
  // The most likely continuations, without the prompts. With a key-value cache.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Generate(std::span<const std::vector<int32_t>> prompts,
                                                             const GenerateOptions& options = {}) const;
  absl::StatusOr<std::vector<int32_t>> Generate(const std::vector<int32_t>& prompt, const GenerateOptions& options = {}) const;
  absl::StatusOr<BatchLoss> Loss(const MicroBatch& batch) const;

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Threads that torch uses for computations started by the calling thread.
void SetComputeThreads(int threads);

}  // namespace argosy::train
