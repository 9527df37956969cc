#include "train/config/model_config.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/assets.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/train/config/text.h"

namespace argosy::train {
namespace {

using nlohmann::json;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},      {"hidden_size", 64},
          {"intermediate_size", 172},              {"num_hidden_layers", 2},     {"num_attention_heads", 8},
          {"num_key_value_heads", 2},              {"vocab_size", 512},          {"rms_norm_eps", 1e-5},
          {"torch_dtype", "bfloat16"},             {"tie_word_embeddings", false}};
}

json With(json base, const json& changes) {
  base.update(changes);
  return base;
}

ModelConfig Parsed(const json& file) {
  absl::StatusOr<ModelConfig> config = ModelConfig::Parse(file.dump());
  INFO(config.status().ToString());
  REQUIRE(config.ok());
  return *config;
}

std::string Refusal(const json& file) {
  absl::StatusOr<ModelConfig> config = ModelConfig::Parse(file.dump());
  REQUIRE_FALSE(config.ok());
  return Message(config.status());
}

}  // namespace

TEST_CASE("ModelConfig: the three spellings of one model read the same") {
  json old_rope = {{"rope_theta", 500000.0},
                   {"rope_scaling",
                    {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}}}};
  json first = With(Llama(), old_rope);
  json second = first;  // 4.56: dtype
  second.erase("torch_dtype");
  second["dtype"] = "bfloat16";
  json third = second;  // 5: rope_parameters
  third["rope_parameters"] = With(third["rope_scaling"], {{"rope_theta", 500000.0}});
  third.erase("rope_scaling");
  third.erase("rope_theta");
  for (const json& file : {first, second, third}) {
    ModelConfig config = Parsed(file);
    CHECK(config.dtype == DType::kBF16);
    CHECK(config.rope.type == RopeType::kLlama3);
    CHECK(config.rope.theta == 500000.0);
    CHECK(config.rope.factor == 8.0);
    CHECK(config.rope.high_freq_factor == 4.0);
    CHECK(config.rope.original_max_position_embeddings == 8192);
    CHECK(config.head_dim == 8);
    CHECK(config.KeyValueSize() == 16);
  }
}

TEST_CASE("ModelConfig: a saved config keeps its source's spelling and unknown keys") {
  json source = With(Llama(), {{"my_own_key", {1, 2}}, {"rope_scaling", nullptr}});
  json saved = json::parse(Parsed(source).ToJson({.vocab_size = 520, .dtype = DType::kF32}));
  CHECK(saved["vocab_size"] == 520);
  CHECK(saved["torch_dtype"] == "float32");
  CHECK_FALSE(saved.contains("dtype"));
  CHECK(saved["my_own_key"] == json({1, 2}));
  CHECK(saved["rope_scaling"].is_null());

  json modern = source;
  modern.erase("torch_dtype");
  modern["dtype"] = "bfloat16";
  saved = json::parse(Parsed(modern).ToJson({.dtype = DType::kF32}));
  CHECK(saved["dtype"] == "float32");
  CHECK_FALSE(saved.contains("torch_dtype"));
  CHECK(saved["vocab_size"] == 512);
}

TEST_CASE("ModelConfig: biases and norms are those of the family") {
  ModelConfig llama = Parsed(With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  CHECK((llama.qkv_bias && llama.attention_output_bias && llama.mlp_bias && !llama.qk_norm));
  ModelConfig mistral = Parsed(With(Llama(), {{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}, {"attention_bias", true}}));
  CHECK((!mistral.qkv_bias && !mistral.attention_output_bias));
  ModelConfig qwen2 = Parsed(With(Llama(), {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}}));
  CHECK((qwen2.qkv_bias && !qwen2.attention_output_bias && !qwen2.qk_norm));
  ModelConfig qwen3 = Parsed(With(Llama(), {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}}));
  CHECK((!qwen3.qkv_bias && qwen3.qk_norm));
  CHECK(qwen3.head_dim == 128);
}

TEST_CASE("ModelConfig: sliding windows follow each family's rules") {
  json mistral = With(Llama(), {{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}, {"sliding_window", 7}});
  CHECK(Parsed(mistral).layer_windows == std::vector<int64_t>{7, 7});
  mistral["sliding_window"] = nullptr;
  CHECK(Parsed(mistral).layer_windows == std::vector<int64_t>{0, 0});
  mistral.erase("sliding_window");
  CHECK(Parsed(mistral).layer_windows == std::vector<int64_t>{4096, 4096});

  json qwen = With(Llama(), {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}, {"sliding_window", 9}, {"max_window_layers", 1}});
  CHECK(Parsed(qwen).layer_windows == std::vector<int64_t>{0, 0});
  qwen["use_sliding_window"] = true;
  CHECK(Parsed(qwen).layer_windows == std::vector<int64_t>{0, 9});
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK(Parsed(qwen).layer_windows == std::vector<int64_t>{9, 0});
  qwen["layer_types"] = {"sliding_attention"};
  CHECK(Has(Refusal(qwen), "layer_types"));
}

TEST_CASE("ModelConfig: token ids may be absent, null, one or several") {
  ModelConfig config = Parsed(Llama());
  CHECK(config.bos_token_id == 1);
  CHECK(config.eos_token_ids == std::vector<int64_t>{2});
  CHECK_FALSE(config.pad_token_id);
  config = Parsed(With(Llama(), {{"bos_token_id", nullptr}, {"eos_token_id", {128001, 128009}}, {"pad_token_id", -1}}));
  CHECK_FALSE(config.bos_token_id);
  CHECK(config.eos_token_ids == std::vector<int64_t>{128001, 128009});
  CHECK_FALSE(config.pad_token_id);
  CHECK(json::parse(config.GenerationConfigJson())["eos_token_id"] == json({128001, 128009}));
}

TEST_CASE("ModelConfig: what cannot be trained is refused by name, with what is accepted") {
  std::string text = Refusal(With(Llama(), {{"model_type", "gpt2"}}));
  CHECK(Has(text, "gpt2"));
  CHECK(Has(text, "llama, mistral, qwen2, qwen3"));
  text = Refusal(With(Llama(), {{"quantization_config", {{"quant_method", "gptq"}}}}));
  CHECK(Has(text, "gptq"));
  CHECK(Has(text, "unquantised"));
  CHECK(Has(Refusal(With(Llama(), {{"torch_dtype", "float8_e4m3fn"}})), "float8_e4m3fn"));
  CHECK(Has(Refusal(With(Llama(), {{"hidden_act", "gelu"}})), "gelu"));
  CHECK(Has(Refusal(With(Llama(), {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}})), "yarn"));
  CHECK(Has(Refusal(With(Llama(), {{"architectures", {"LlamaForSequenceClassification"}}})), "LlamaForSequenceClassification"));
  CHECK(Has(Refusal(With(Llama(), {{"num_key_value_heads", 3}})), "num_key_value_heads"));
  CHECK(Has(Refusal(With(Llama(), {{"num_attention_heads", 7}, {"num_key_value_heads", 7}})), "hidden_size"));
  CHECK(Has(Refusal(With(Llama(), {{"hidden_size", "64"}})), "must be an integer"));
  CHECK(Has(Refusal(With(Llama(), {{"vocab_size", -5}})), "vocab_size"));
  CHECK(Has(Refusal(With(Llama(), {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}})), "low_freq_factor"));
  json missing = Llama();
  missing.erase("intermediate_size");
  CHECK(Has(Refusal(missing), "intermediate_size"));
  CHECK(Has(Message(ModelConfig::Parse("{ \"model_type\": ").status()), "JSON"));
  CHECK(Has(Message(ModelConfig::Parse("[]").status()), "object"));
}

TEST_CASE("ModelConfig: a directory with only .bin weights is refused with the way out") {
  testing::TemporaryFolder folder;
  const std::string& directory = folder.path();
  CHECK(Has(Message(ModelConfig::Load(directory).status()), "config.json"));
  REQUIRE(WriteFileAtomic(directory + "/config.json", Llama().dump()).ok());
  CHECK(ModelConfig::Load(directory).ok());  // nothing but a config: enough to plan with
  REQUIRE(WriteFileAtomic(directory + "/pytorch_model-00001-of-00002.bin", "x").ok());
  absl::Status status = ModelConfig::Load(directory).status();
  CHECK(Has(Message(status), "pytorch_model-00001-of-00002.bin"));
  CHECK(Has(Message(status), "safe_serialization=True"));
  REQUIRE(WriteFileAtomic(directory + "/model.safetensors", "x").ok());
  CHECK(ModelConfig::Load(directory).ok());
}

TEST_CASE("ModelConfig: tensors have HF's names and shapes, and units cover each once") {
  ModelConfig config = Parsed(With(Llama(), {{"attention_bias", true}}));
  std::vector<TensorSpec> tensors = config.Tensors(DType::kF32);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& tensor : tensors) shapes[tensor.name] = tensor.shape;
  CHECK(shapes.size() == tensors.size());
  CHECK(shapes["model.embed_tokens.weight"] == std::vector<int64_t>{512, 64});
  CHECK(shapes["model.layers.1.self_attn.k_proj.weight"] == std::vector<int64_t>{16, 64});
  CHECK(shapes["model.layers.1.self_attn.k_proj.bias"] == std::vector<int64_t>{16});
  CHECK(shapes["model.layers.0.mlp.down_proj.weight"] == std::vector<int64_t>{64, 172});
  CHECK(shapes["lm_head.weight"] == std::vector<int64_t>{512, 64});
  CHECK(tensors.front().name == "model.embed_tokens.weight");
  CHECK(tensors.back().name == "lm_head.weight");

  std::vector<UnitSpec> units = config.Units(DType::kBF16);
  REQUIRE(units.size() == 4);
  CHECK(units[0].name == "embedding");
  CHECK(units[2].name == "layer 1");
  CHECK(units[3].name == "head");
  std::set<std::string> names;
  for (const UnitSpec& unit : units) {
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      CHECK(names.insert(unit.tensors[i].name).second);
      CHECK(unit.tensors[i].dtype == DType::kBF16);
      if (i > 0) CHECK(unit.tensors[i - 1].name < unit.tensors[i].name);
    }
  }
  CHECK(names.size() == tensors.size());

  config.tie_word_embeddings = true;
  CHECK(config.Tensors(DType::kF32).back().name == "model.norm.weight");
}

TEST_CASE("ModelConfig: the nano preset is a small Llama that reads itself back") {
  ModelConfig nano = ModelConfig::Nano(300).value();
  CHECK(nano.vocab_size == 300);
  CHECK(nano.hidden_size == 64);
  CHECK(nano.num_hidden_layers == 2);
  ModelConfig back = ModelConfig::Parse(nano.ToJson()).value();
  CHECK(back.ToJson() == nano.ToJson());
  CHECK(back.ParameterCount() == nano.ParameterCount());
  CHECK_FALSE(ModelConfig::Make({.vocab_size = 0}).ok());
  CHECK_FALSE(ModelConfig::Make({.vocab_size = 10, .hidden_size = 65}).ok());
}

TEST_CASE("ModelConfig: the tiny models and their new spellings read equal and have transformers' parameter count") {
  auto root = testing::FindAsset("tiny");
  if (!root) return;
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*root)) {
    std::string directory = entry.path().string();
    if (!std::filesystem::exists(directory + "/config.json")) continue;
    INFO(directory);
    absl::StatusOr<ModelConfig> config = ModelConfig::Load(directory);
    INFO(config.status().ToString());
    REQUIRE(config.ok());
    // Not parsed as JSON: it may hold NaN.
    std::string expected = ReadFile(directory + "/expected.json").value();
    size_t count = expected.find("\"parameters\": ");
    REQUIRE(count != std::string::npos);
    CHECK(config->ParameterCount() == std::stoll(expected.substr(count + 14)));
    ModelConfig modern = ModelConfig::Parse(ReadFile(directory + "/config.v5.json").value()).value();
    CHECK(modern.rope.theta == config->rope.theta);
    CHECK(modern.rope.type == config->rope.type);
    CHECK(modern.rope.factor == config->rope.factor);
    CHECK(modern.dtype == config->dtype);
    CHECK(modern.layer_windows == config->layer_windows);
    CHECK(modern.ParameterCount() == config->ParameterCount());
    // Written as transformers writes it: the v4 text of the folder is such a file.
    CHECK(json::parse(config->ToJson()) == json::parse(config->source_json));
    ++models;
  }
  CHECK(models >= 10);
}

TEST_CASE("DType: conversions are exact or rounded to nearest even") {
  CHECK(Bf16FromFloat(1.0f) == 0x3f80);
  CHECK(FloatFromBf16(0x3f80) == 1.0f);
  CHECK(Bf16FromFloat(std::bit_cast<float>(0x3f808000u)) == 0x3f80);  // a tie, to even
  CHECK(Bf16FromFloat(std::bit_cast<float>(0x3f818000u)) == 0x3f82);
  CHECK(Bf16FromFloat(std::bit_cast<float>(0x3f808001u)) == 0x3f81);
  CHECK(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)))));
  CHECK(FloatFromBf16(Bf16FromFloat(INFINITY)) == INFINITY);
  CHECK(FloatFromF16(0x3c00) == 1.0f);
  CHECK(FloatFromF16(0xc000) == -2.0f);
  CHECK(FloatFromF16(0x0001) == std::ldexp(1.0f, -24));
  CHECK(FloatFromF16(0x7bff) == 65504.0f);
  CHECK(FloatFromF16(0xfc00) == -INFINITY);
  CHECK(std::isnan(FloatFromF16(0x7e00)));
  CHECK(std::signbit(FloatFromF16(0x8000)));
}

}  // namespace argosy::train
