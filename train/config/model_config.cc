#include "train/config/model_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/config/json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

constexpr char kModelTypes[] = "llama, mistral, qwen2, qwen3";
// Bounds that keep sizes computed from a damaged config inside int64.
constexpr int64_t kSizeMax = int64_t{1} << 31;

struct FamilyRow {
  ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array<FamilyRow, 4> kFamilies = {{
    {ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
    {ModelFamily::kMistral, "mistral", "MistralForCausalLM"},
    {ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
    {ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM"},
}};

const FamilyRow& RowOf(ModelFamily family) { return kFamilies[static_cast<size_t>(family)]; }

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

absl::Status ReadFamily(const json& file, ModelConfig& config) {
  std::string model_type;
  ARGOSY_RETURN_IF_ERROR(ReadString(file, "model_type", model_type));
  if (model_type.empty()) return InvalidArgument("\"model_type\" is missing: it must be one of {}", kModelTypes);
  auto row = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyRow& r) { return r.model_type == model_type; });
  if (row == kFamilies.end()) {
    return InvalidArgument("\"model_type\" is \"{}\", which cannot be trained here: accepted are {}", model_type, kModelTypes);
  }
  config.family = row->family;
  const json* architectures = FindValue(file, "architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->empty()) return absl::OkStatus();
  for (const json& architecture : *architectures) {
    if (architecture.is_string() && Lower(architecture.get<std::string>()) == Lower(row->architecture)) return absl::OkStatus();
  }
  return InvalidArgument("\"architectures\" is {}: a \"{}\" model is trained as {} (a causal language model with its head)",
                         Shown(*architectures), model_type, row->architecture);
}

absl::Status RefuseUnsupported(const json& file) {
  if (const json* quantization = FindValue(file, "quantization_config")) {
    std::string method = "unknown method";
    if (const json* name = FindValue(*quantization, "quant_method"); name != nullptr && name->is_string()) method = name->get<std::string>();
    return InvalidArgument(
        "the weights are quantised (\"quantization_config\", {}): only float32, bfloat16 and float16 weights can be fine-tuned; "
        "use the unquantised original of this model, or dequantise it with transformers (model.dequantize()) and save it again",
        method);
  }
  std::string activation = "silu";
  ARGOSY_RETURN_IF_ERROR(ReadString(file, "hidden_act", activation));
  if (activation != "silu" && activation != "swish") {
    return InvalidArgument("\"hidden_act\" is \"{}\": only \"silu\" is supported", activation);
  }
  double partial_rotary_factor = 1.0;
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "partial_rotary_factor", partial_rotary_factor));
  if (partial_rotary_factor != 1.0) {
    return InvalidArgument("\"partial_rotary_factor\" is {}: only 1.0 (all of each head rotated) is supported", partial_rotary_factor);
  }
  double attention_dropout = 0.0;
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "attention_dropout", attention_dropout));
  if (attention_dropout != 0.0) {
    return InvalidArgument("\"attention_dropout\" is {}: attention has no dropout here; set it to 0.0 in config.json", attention_dropout);
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const json& file, ModelConfig& config) {
  struct Field {
    const char* key;
    int64_t* value;
    bool required;
  };
  const Field fields[] = {
      {"vocab_size", &config.vocab_size, true},
      {"hidden_size", &config.hidden_size, true},
      {"intermediate_size", &config.intermediate_size, true},
      {"num_hidden_layers", &config.num_hidden_layers, true},
      {"num_attention_heads", &config.num_attention_heads, true},
      {"num_key_value_heads", &config.num_key_value_heads, false},
      {"head_dim", &config.head_dim, false},
      {"max_position_embeddings", &config.max_position_embeddings, false},
  };
  for (const Field& field : fields) {
    ARGOSY_RETURN_IF_ERROR(ReadInteger(file, field.key, *field.value));
    const json* value = FindValue(file, field.key);
    if (value == nullptr) {
      if (field.required) return InvalidArgument("\"{}\" is missing", field.key);
      continue;
    }
    if (*field.value <= 0 || *field.value > kSizeMax) {
      return InvalidArgument("\"{}\" is {}: it must be between 1 and {}", field.key, *field.value, kSizeMax);
    }
  }
  if (config.num_hidden_layers > 10'000) {
    return InvalidArgument("\"num_hidden_layers\" is {}: at most 10000 are accepted", config.num_hidden_layers);
  }
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  if (config.head_dim == 0) {
    if (config.family == ModelFamily::kQwen3) {
      config.head_dim = 128;
    } else if (config.hidden_size % config.num_attention_heads != 0) {
      return InvalidArgument("\"hidden_size\" {} is not a multiple of \"num_attention_heads\" {}, and \"head_dim\" is not given",
                             config.hidden_size, config.num_attention_heads);
    } else {
      config.head_dim = config.hidden_size / config.num_attention_heads;
    }
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return InvalidArgument("\"num_attention_heads\" {} is not a multiple of \"num_key_value_heads\" {}: every key/value head serves an "
                           "equal number of query heads", config.num_attention_heads, config.num_key_value_heads);
  }
  if (config.head_dim % 2 != 0) {
    return InvalidArgument("a head has {} dimensions: rotary embedding rotates pairs, so \"head_dim\" must be even", config.head_dim);
  }
  if (config.max_position_embeddings == 0) {
    switch (config.family) {  // transformers' defaults
      case ModelFamily::kLlama: config.max_position_embeddings = 2048; break;
      case ModelFamily::kMistral: config.max_position_embeddings = 4096 * 32; break;
      case ModelFamily::kQwen2:
      case ModelFamily::kQwen3: config.max_position_embeddings = 32768; break;
    }
  }
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "rms_norm_eps", config.rms_norm_eps));
  if (!(config.rms_norm_eps > 0.0 && config.rms_norm_eps < 1.0)) {
    return InvalidArgument("\"rms_norm_eps\" is {}: it must be between 0 and 1", config.rms_norm_eps);
  }
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "initializer_range", config.initializer_range));
  if (!(config.initializer_range >= 0.0 && config.initializer_range <= 1.0)) {
    return InvalidArgument("\"initializer_range\" is {}: it must be between 0 and 1", config.initializer_range);
  }
  return absl::OkStatus();
}

// `rope_theta` beside `rope_scaling`, or both inside `rope_parameters` (transformers 5).
absl::Status ReadRope(const json& file, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "rope_theta", rope.theta));
  const char* key = "rope_parameters";
  const json* object = FindValue(file, key);
  if (object == nullptr) {
    key = "rope_scaling";
    object = FindValue(file, key);
  }
  if (object != nullptr) {
    if (!object->is_object()) return InvalidArgument("\"{}\" is {}: it must be an object or null", key, Shown(*object));
    for (const auto& [name, value] : object->items()) {
      if (value.is_object()) {
        return InvalidArgument("\"{}\" has separate settings for \"{}\" layers: one rotary embedding for all layers is supported", key, name);
      }
    }
    auto in = [&](const absl::Status& status) { return Annotate(status, key); };
    if (absl::Status s = ReadDouble(*object, "rope_theta", rope.theta); !s.ok()) return in(s);
    std::string type = "default";
    if (absl::Status s = ReadString(*object, "type", type); !s.ok()) return in(s);
    if (absl::Status s = ReadString(*object, "rope_type", type); !s.ok()) return in(s);
    double partial_rotary_factor = 1.0;
    if (absl::Status s = ReadDouble(*object, "partial_rotary_factor", partial_rotary_factor); !s.ok()) return in(s);
    if (partial_rotary_factor != 1.0) {
      return InvalidArgument("{}: \"partial_rotary_factor\" is {}: only 1.0 is supported", key, partial_rotary_factor);
    }
    auto required = [&](const char* name, double& out) -> absl::Status {
      if (FindValue(*object, name) == nullptr) return InvalidArgument("{}: type \"{}\" needs \"{}\"", key, type, name);
      if (absl::Status s = ReadDouble(*object, name, out); !s.ok()) return in(s);
      if (!(out > 0.0) || !std::isfinite(out)) return InvalidArgument("{}: \"{}\" is {}: it must be above 0", key, name, out);
      return absl::OkStatus();
    };
    if (type == "default") {
      rope.type = RopeType::kDefault;
    } else if (type == "linear" || type == "dynamic") {
      rope.type = type == "linear" ? RopeType::kLinear : RopeType::kDynamic;
      ARGOSY_RETURN_IF_ERROR(required("factor", rope.factor));
    } else if (type == "llama3") {
      rope.type = RopeType::kLlama3;
      double original = 0;
      ARGOSY_RETURN_IF_ERROR(required("factor", rope.factor));
      ARGOSY_RETURN_IF_ERROR(required("low_freq_factor", rope.low_freq_factor));
      ARGOSY_RETURN_IF_ERROR(required("high_freq_factor", rope.high_freq_factor));
      ARGOSY_RETURN_IF_ERROR(required("original_max_position_embeddings", original));
      if (!(rope.high_freq_factor > rope.low_freq_factor)) {
        return InvalidArgument("{}: \"high_freq_factor\" {} must be above \"low_freq_factor\" {}", key, rope.high_freq_factor,
                               rope.low_freq_factor);
      }
      if (original > static_cast<double>(kSizeMax)) {
        return InvalidArgument("{}: \"original_max_position_embeddings\" is {}: at most {} is accepted", key, original, kSizeMax);
      }
      rope.original_max_position_embeddings = static_cast<int64_t>(original);
    } else {
      return InvalidArgument("{}: rotary type \"{}\" is not supported: accepted are default, linear, dynamic, llama3", key, type);
    }
    if (rope.factor < 1.0) return InvalidArgument("{}: \"factor\" is {}: it must be at least 1", key, rope.factor);
  }
  if (rope.original_max_position_embeddings == 0) rope.original_max_position_embeddings = config.max_position_embeddings;
  if (!(rope.theta > 0.0) || !std::isfinite(rope.theta)) return InvalidArgument("\"rope_theta\" is {}: it must be above 0", rope.theta);
  return absl::OkStatus();
}

absl::Status ReadBiasesAndNorms(const json& file, ModelConfig& config) {
  bool attention_bias = false;
  switch (config.family) {
    case ModelFamily::kLlama:
      ARGOSY_RETURN_IF_ERROR(ReadBool(file, "attention_bias", attention_bias));
      ARGOSY_RETURN_IF_ERROR(ReadBool(file, "mlp_bias", config.mlp_bias));
      config.qkv_bias = config.attention_output_bias = attention_bias;
      break;
    case ModelFamily::kMistral:
      break;
    case ModelFamily::kQwen2:
      config.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      ARGOSY_RETURN_IF_ERROR(ReadBool(file, "attention_bias", attention_bias));
      config.qkv_bias = config.attention_output_bias = attention_bias;
      config.qk_norm = true;
      break;
  }
  return ReadBool(file, "tie_word_embeddings", config.tie_word_embeddings);
}

// Mistral: `sliding_window` holds for every layer. Qwen: only with `use_sliding_window`, and then for the layers that
// `layer_types` names, or (where it is absent) from `max_window_layers` on.
absl::Status ReadWindows(const json& file, ModelConfig& config) {
  config.layer_windows.assign(config.num_hidden_layers, 0);
  if (config.family == ModelFamily::kLlama) return absl::OkStatus();
  int64_t window = 4096;
  ARGOSY_RETURN_IF_ERROR(ReadInteger(file, "sliding_window", window));
  // An explicit null means none; an absent key means the default.
  if (auto it = file.find("sliding_window"); it != file.end() && it->is_null()) return absl::OkStatus();
  if (window <= 0) return InvalidArgument("\"sliding_window\" is {}: it must be above 0, or null", window);
  if (config.family == ModelFamily::kMistral) {
    config.layer_windows.assign(config.num_hidden_layers, window);
    return absl::OkStatus();
  }
  bool use_sliding_window = false;
  ARGOSY_RETURN_IF_ERROR(ReadBool(file, "use_sliding_window", use_sliding_window));
  if (!use_sliding_window) return absl::OkStatus();
  if (const json* types = FindValue(file, "layer_types")) {
    if (!types->is_array() || static_cast<int64_t>(types->size()) != config.num_hidden_layers) {
      return InvalidArgument("\"layer_types\" must be a list with one entry for each of the {} layers", config.num_hidden_layers);
    }
    for (size_t i = 0; i < types->size(); ++i) {
      const json& type = (*types)[i];
      if (type == "sliding_attention") config.layer_windows[i] = window;
      else if (type != "full_attention") {
        return InvalidArgument("\"layer_types\"[{}] is {}: accepted are \"full_attention\" and \"sliding_attention\"", i, Shown(type));
      }
    }
    return absl::OkStatus();
  }
  int64_t max_window_layers = 28;
  ARGOSY_RETURN_IF_ERROR(ReadInteger(file, "max_window_layers", max_window_layers));
  for (int64_t i = std::max<int64_t>(0, max_window_layers); i < config.num_hidden_layers; ++i) config.layer_windows[i] = window;
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const json& file, ModelConfig& config) {
  const bool has_defaults = config.family == ModelFamily::kLlama || config.family == ModelFamily::kMistral;
  auto read = [&](const char* key, std::optional<int64_t> missing, std::vector<int64_t>& out) -> absl::Status {
    auto it = file.find(key);
    if (it == file.end()) {
      if (missing) out.push_back(*missing);
      return absl::OkStatus();
    }
    if (it->is_null()) return absl::OkStatus();
    if (it->is_array()) {
      for (const json& item : *it) {
        std::optional<int64_t> id = AsInteger(item);
        if (!id) return InvalidArgument("\"{}\" is {}: it must be a token id or a list of them", key, Shown(*it));
        out.push_back(*id);
      }
      return absl::OkStatus();
    }
    std::optional<int64_t> id = AsInteger(*it);
    if (!id) return InvalidArgument("\"{}\" is {}: it must be a token id, a list of them, or null", key, Shown(*it));
    out.push_back(*id);
    return absl::OkStatus();
  };
  std::vector<int64_t> bos, pad;
  ARGOSY_RETURN_IF_ERROR(read("bos_token_id", has_defaults ? std::optional<int64_t>(1) : std::nullopt, bos));
  ARGOSY_RETURN_IF_ERROR(read("eos_token_id", has_defaults ? std::optional<int64_t>(2) : std::nullopt, config.eos_token_ids));
  ARGOSY_RETURN_IF_ERROR(read("pad_token_id", std::nullopt, pad));
  if (!bos.empty()) config.bos_token_id = bos.front();
  // Some published files say -1 for "none".
  if (!pad.empty() && pad.front() >= 0) config.pad_token_id = pad.front();
  return absl::OkStatus();
}

absl::Status ReadDType(const json& file, ModelConfig& config) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    std::string name;
    ARGOSY_RETURN_IF_ERROR(ReadString(file, key, name));
    if (name.empty() || name == "auto") continue;
    std::optional<DType> dtype = DTypeFromTorchName(name);
    if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kBF16 && *dtype != DType::kF16)) {
      return InvalidArgument("\"{}\" is \"{}\": weights can be float32, bfloat16 or float16; use the original of this model in one of these",
                             key, name);
    }
    config.dtype = *dtype;
  }
  return absl::OkStatus();
}

std::vector<TensorSpec> LayerTensors(const ModelConfig& config, int64_t layer, DType dtype) {
  std::string prefix = fmt::format("model.layers.{}.", layer);
  std::vector<TensorSpec> tensors;
  auto add = [&](std::string_view name, std::vector<int64_t> shape) {
    tensors.push_back({prefix + std::string(name), std::move(shape), dtype});
  };
  auto linear = [&](std::string_view name, int64_t out, int64_t in, bool bias) {
    add(fmt::format("{}.weight", name), {out, in});
    if (bias) add(fmt::format("{}.bias", name), {out});
  };
  linear("self_attn.q_proj", config.QuerySize(), config.hidden_size, config.qkv_bias);
  linear("self_attn.k_proj", config.KeyValueSize(), config.hidden_size, config.qkv_bias);
  linear("self_attn.v_proj", config.KeyValueSize(), config.hidden_size, config.qkv_bias);
  linear("self_attn.o_proj", config.hidden_size, config.QuerySize(), config.attention_output_bias);
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {config.head_dim});
    add("self_attn.k_norm.weight", {config.head_dim});
  }
  linear("mlp.gate_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
  linear("mlp.up_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
  linear("mlp.down_proj", config.hidden_size, config.intermediate_size, config.mlp_bias);
  add("input_layernorm.weight", {config.hidden_size});
  add("post_attention_layernorm.weight", {config.hidden_size});
  return tensors;
}

// In the order of transformers' state_dict.
std::vector<UnitSpec> UnitsInModelOrder(const ModelConfig& config, DType dtype) {
  std::vector<UnitSpec> units;
  units.push_back({"embedding", {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, dtype}}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    units.push_back({fmt::format("layer {}", i), LayerTensors(config, i, dtype)});
  }
  UnitSpec head{"head", {{"model.norm.weight", {config.hidden_size}, dtype}}};
  if (!config.tie_word_embeddings) head.tensors.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}, dtype});
  units.push_back(std::move(head));
  return units;
}

std::string Write(const json& file) { return file.dump(2, ' ', true, json::error_handler_t::replace) + "\n"; }

absl::Status RefuseOtherWeights(const std::string& directory) {
  std::error_code error;
  std::string other;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    std::string extension = it->path().extension().string();
    if (extension == ".safetensors" || name == "model.safetensors.index.json") return absl::OkStatus();
    if (extension == ".bin" || extension == ".pth" || extension == ".pt" || extension == ".gguf" || extension == ".h5") {
      if (other.empty() || name < other) other = name;
    }
  }
  if (other.empty()) return absl::OkStatus();  // a config alone is enough to plan with
  return FailedPrecondition(
      "{} holds its weights only as {}: weights are read from .safetensors files. Convert once with transformers: "
      "AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(OUT, safe_serialization=True)",
      directory, other, directory);
}

}  // namespace

std::string_view FamilyName(ModelFamily family) { return RowOf(family).model_type; }

int64_t TensorSpec::Elements() const {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return elements;
}

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view text) {
  json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return InvalidArgument("it is not valid JSON");
  if (!file.is_object()) return InvalidArgument("it is not a JSON object");
  ModelConfig config;
  config.source_json = std::string(text);
  ARGOSY_RETURN_IF_ERROR(ReadFamily(file, config));
  ARGOSY_RETURN_IF_ERROR(RefuseUnsupported(file));
  ARGOSY_RETURN_IF_ERROR(ReadSizes(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadRope(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadBiasesAndNorms(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadWindows(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadTokenIds(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadDType(file, config));
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::Load(const std::string& directory) {
  std::string path = (std::filesystem::path(directory) / "config.json").string();
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return Annotate(text.status(), fmt::format("{} is not a model directory in HF format", directory));
  }
  absl::StatusOr<ModelConfig> config = Parse(*text);
  if (!config.ok()) return Annotate(config.status(), path);
  ARGOSY_RETURN_IF_ERROR(RefuseOtherWeights(directory));
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::Make(const ModelPreset& preset) {
  auto id = [](const std::optional<int64_t>& value) { return value ? json(*value) : json(nullptr); };
  json file = {
      {"architectures", {"LlamaForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", id(preset.bos_token_id)},
      {"eos_token_id", id(preset.eos_token_id)},
      {"hidden_act", "silu"},
      {"hidden_size", preset.hidden_size},
      {"initializer_range", 0.02},
      {"intermediate_size", preset.intermediate_size},
      {"max_position_embeddings", preset.max_position_embeddings},
      {"mlp_bias", false},
      {"model_type", "llama"},
      {"num_attention_heads", preset.num_attention_heads},
      {"num_hidden_layers", preset.num_hidden_layers},
      {"num_key_value_heads", preset.num_key_value_heads},
      {"pad_token_id", id(preset.pad_token_id)},
      {"pretraining_tp", 1},
      {"rms_norm_eps", 1e-5},
      {"rope_scaling", nullptr},
      {"rope_theta", preset.rope_theta},
      {"tie_word_embeddings", preset.tie_word_embeddings},
      {"torch_dtype", std::string(TorchName(preset.dtype))},
      {"use_cache", true},
      {"vocab_size", preset.vocab_size},
  };
  return Parse(Write(file));
}

std::vector<UnitSpec> ModelConfig::Units() const { return Units(dtype); }

std::vector<UnitSpec> ModelConfig::Units(DType as) const {
  std::vector<UnitSpec> units = UnitsInModelOrder(*this, as);
  for (UnitSpec& unit : units) {
    std::sort(unit.tensors.begin(), unit.tensors.end(), [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  }
  return units;
}

std::vector<TensorSpec> ModelConfig::Tensors(DType as) const {
  std::vector<TensorSpec> tensors;
  for (UnitSpec& unit : UnitsInModelOrder(*this, as)) {
    for (TensorSpec& tensor : unit.tensors) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

int64_t ModelConfig::ParameterCount() const {
  int64_t count = 0;
  for (const TensorSpec& tensor : Tensors(dtype)) count += tensor.Elements();
  return count;
}

std::string ModelConfig::ToJson(const ConfigChanges& changes) const {
  json file = json::parse(source_json, nullptr, /*allow_exceptions=*/false);
  ARGOSY_CHECK(file.is_object());
  if (changes.vocab_size) file["vocab_size"] = *changes.vocab_size;
  if (changes.bos_token_id) file["bos_token_id"] = *changes.bos_token_id;
  if (changes.eos_token_id) file["eos_token_id"] = *changes.eos_token_id;
  if (changes.pad_token_id) file["pad_token_id"] = *changes.pad_token_id;
  if (changes.tie_word_embeddings) file["tie_word_embeddings"] = *changes.tie_word_embeddings;
  if (changes.dtype) {
    std::string name(TorchName(*changes.dtype));
    bool spelled = false;
    for (const char* key : {"torch_dtype", "dtype"}) {
      if (!file.contains(key)) continue;
      file[key] = name;
      spelled = true;
    }
    if (!spelled) file[file.contains("rope_parameters") ? "dtype" : "torch_dtype"] = name;
  }
  return Write(file);
}

std::string ModelConfig::GenerationConfigJson() const {
  json file = {{"_from_model_config", true}};
  if (bos_token_id) file["bos_token_id"] = *bos_token_id;
  if (eos_token_ids.size() == 1) file["eos_token_id"] = eos_token_ids.front();
  else if (!eos_token_ids.empty()) file["eos_token_id"] = eos_token_ids;
  if (pad_token_id) file["pad_token_id"] = *pad_token_id;
  return Write(file);
}

}  // namespace argosy::train
