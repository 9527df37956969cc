#pragma once

// Which tensors of a model are adapted or trained whole, and how what is trained lies in a second flat buffer of each unit, in fp32. Free of torch.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/lora_config.h"
#include "train/config/model_config.h"
#include "train/model/layout.h"
#include "train/model/weight_source.h"

namespace argosy::train {

// A module with an adapter: A [rank, in] and B [out, rank]. Of an embedding A is [rank, vocabulary] and B [width, rank].
struct AdaptedModule {
  std::string name;        // "model.layers.0.self_attn.q_proj"
  std::string tensor;      // of the base: "model.layers.0.self_attn.q_proj.weight"; of a tied head the embedding's
  int64_t rank = 0;
  double scale = 0;
  bool embedding = false;
  size_t a = 0, b = 0;     // ranges of the unit's adapter buffer
  uint32_t number = 0;     // in the model: its dropout is keyed by it
};

// A tensor of the base that is trained in a copy of its own.
struct WholeTensor {
  std::string tensor;      // of the base
  size_t range = 0;
};

struct UnitAdapters {
  UnitLayout layout;       // ranges are named as adapter_model.safetensors names them
  std::vector<AdaptedModule> modules;
  std::vector<WholeTensor> whole;
  const WholeTensor* FindWhole(std::string_view tensor) const;
};

struct AdapterLayout {
  std::vector<UnitAdapters> units;   // the model's; those without anything to train have no elements
  double dropout = 0;

  int64_t ParameterCount() const;    // as peft counts trainable parameters
  int64_t ModuleCount() const;
  std::vector<TensorRange> Ranges() const;
  std::vector<TensorSpec> Tensors(DType as) const;
};

// An error names what no module matches, with the names that there are; and tied embeddings that would come apart.
absl::StatusOr<AdapterLayout> MakeAdapterLayout(const ModelConfig& config, const LoraConfig& lora);

// First values of a new adapter: A as the config says ("init_lora_weights"), B = 0 (an embedding's the other way round), whole tensors as in `base`.
// Element i depends on (seed, name, i) alone.
std::unique_ptr<WeightSource> NewAdapter(const AdapterLayout& layout, const LoraConfig& lora, const WeightSource& base, uint64_t seed);

// A folder with adapter_config.json and adapter_model.safetensors, together with the base it belongs to.
struct StoredAdapter {
  LoraConfig lora;
  ModelConfig config;                        // of the base, with the vocabulary that the adapter was trained with
  AdapterLayout layout;
  std::unique_ptr<HfWeights> files;
  std::unique_ptr<WeightSource> values;      // of the adapter's tensors
  // The base's weights, with the embeddings that the adapter's file brings in place of the base's.
  std::unique_ptr<WeightSource> base;
};

// The folder of an adapter's base: `given`, or what its config names; an error when that is no folder.
absl::StatusOr<std::string> BaseOfAdapter(const std::string& directory, const std::string& given);

// `base` reads the tensors of `base_config` and must outlive the result. An adapter of another base is refused with the tensor and both shapes.
absl::StatusOr<StoredAdapter> OpenAdapter(const std::string& directory, const ModelConfig& base_config, const WeightSource& base);

}  // namespace argosy::train
