#pragma once

// A decoder's architecture as an HF directory's config.json describes it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/config/dtype.h"

namespace argosy::train {

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3 };

enum class RopeType {
  kDefault,
  kLinear,   // positions divided by `factor`
  kDynamic,  // NTK: theta grows with the length once it passes max_position_embeddings
  kLlama3,   // frequencies scaled by wavelength
};

// Rotary position embedding. inverse_frequency[i] = theta^(-2i / head_dim), then changed as `type` says.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  // kLlama3 only.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;
};

// A tensor as files hold it: HF's name, row-major.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;

  int64_t Elements() const;
  int64_t Bytes() const { return Elements() * SizeOf(dtype); }
};

// What the schedule gathers, computes and steps as one: the embedding, one decoder layer, or the final norm with the head.
struct UnitSpec {
  std::string name;  // "embedding", "layer 3", "head"
  std::vector<TensorSpec> tensors;
};

// What a saved config.json says differently from its source.
struct ConfigChanges {
  std::optional<int64_t> vocab_size;
  std::optional<DType> dtype;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> pad_token_id;
  std::optional<bool> tie_word_embeddings;
};

// Sizes for a model made from nothing.
struct ModelPreset {
  int64_t vocab_size = 0;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 256;
  int64_t num_hidden_layers = 2;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t max_position_embeddings = 256;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  DType dtype = DType::kF32;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> pad_token_id;
};

// A value: parsed and validated once, then passed down. Every field below is set and consistent after Parse.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  RopeConfig rope;
  bool qkv_bias = false;               // q_proj, k_proj, v_proj
  bool attention_output_bias = false;  // o_proj
  bool mlp_bias = false;               // gate_proj, up_proj, down_proj
  bool qk_norm = false;                // RMSNorm of each head's q and k (q_norm, k_norm: [head_dim])
  bool tie_word_embeddings = false;    // the head is the embedding; there is no lm_head tensor
  // Per layer: how many positions, its own included, a token sees; 0 = all before it.
  std::vector<int64_t> layer_windows;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;  // none, one, or (Llama 3) several
  std::optional<int64_t> pad_token_id;
  // The type the weights are stored in by config.json's own account; kF32 when it does not say.
  DType dtype = DType::kF32;
  // The file's text: a saved config keeps its spelling and the keys that mean nothing here.
  std::string source_json;

  // Unknown model types and features that would change the results are errors that name the key, its value and what is accepted.
  static absl::StatusOr<ModelConfig> Parse(std::string_view json);
  // Reads `directory`/config.json. A directory that holds only .bin or .pth weights is refused here, with the way out.
  static absl::StatusOr<ModelConfig> Load(const std::string& directory);
  // A small Llama; the preset "nano" is ModelPreset's own defaults.
  static absl::StatusOr<ModelConfig> Make(const ModelPreset& preset);
  static absl::StatusOr<ModelConfig> Nano(int64_t vocab_size) { return Make({.vocab_size = vocab_size}); }

  // Embedding, layers, head. A unit's tensors are in the order in which files hold them (by name), all of one type: the stored
  // one, or `as`.
  std::vector<UnitSpec> Units() const;
  std::vector<UnitSpec> Units(DType as) const;
  // All tensors in the order of transformers' state_dict: what PlanCheckpoint takes, so that shards are cut where huggingface_hub's
  // splitter cuts them.
  std::vector<TensorSpec> Tensors(DType as) const;
  int64_t ParameterCount() const;

  int64_t QuerySize() const { return num_attention_heads * head_dim; }
  int64_t KeyValueSize() const { return num_key_value_heads * head_dim; }

  // The source's text with the changes in, in the source's spelling (torch_dtype or dtype, ...), keys sorted and indented by two
  // as transformers writes them.
  std::string ToJson(const ConfigChanges& changes = {}) const;
  // generation_config.json for a model that has none.
  std::string GenerationConfigJson() const;
};

std::string_view FamilyName(ModelFamily family);  // config.json's model_type

}  // namespace argosy::train
