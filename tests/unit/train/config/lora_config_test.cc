#include "train/config/lora_config.h"

#include <cmath>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "train/config/model_config.h"

namespace argosy::train {
namespace {

LoraConfig Parsed(std::string_view json) {
  absl::StatusOr<LoraConfig> config = LoraConfig::Parse(json);
  INFO(config.status().ToString());
  REQUIRE(config.ok());
  return *config;
}

TEST_CASE("LoraConfig: the recipes' file is read, and written as peft reads it") {
  LoraConfig config = Parsed(R"({"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj", "embed_tokens", "lm_head"],
    "task_type": "CAUSAL_LM", "modules_to_save": [], "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true})");
  CHECK(config.rank == 8);
  CHECK(config.alpha == 16);
  CHECK(config.dropout == 0.05);
  CHECK(config.target_modules.size() == 4);
  CHECK(config.ScaleOf("model.layers.0.self_attn.q_proj") == 2);
  nlohmann::json written = nlohmann::json::parse(config.ToJson());
  CHECK(written["peft_type"] == "LORA");
  CHECK(written["lora_alpha"] == 16);
  CHECK(written["lora_alpha"].is_number_integer());
  CHECK(written["target_modules"].size() == 4);
  CHECK(written["modules_to_save"].is_null());
  CHECK(Parsed(config.ToJson()).ToJson() == config.ToJson());
  // Of two that match, the file's first counts, as in peft, and stays first when it is written.
  LoraConfig ordered = Parsed(R"({"lora_alpha": 8, "rank_pattern": {"self_attn.q_proj": 4, "q_proj": 8, ".*": 2},
                                  "alpha_pattern": {"v_proj": 16, "attn.*": 4, "1.self_attn.v_proj": 1}})");
  for (const LoraConfig& one : {ordered, Parsed(ordered.ToJson())}) {
    CHECK(one.RankOf("model.layers.1.self_attn.q_proj") == 4);
    CHECK(one.RankOf("model.layers.1.mlp.up_proj") == 2);
    CHECK(one.ScaleOf("model.layers.1.self_attn.v_proj") == Approx(8.0));
  }
}

TEST_CASE("LoraConfig: a list's pattern may have groups of its own") {
  LoraConfig config = Parsed(R"json({"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "(layers|blocks)"})json");
  CHECK(config.Targets("model.layers.1.self_attn.q_proj", true));
  CHECK_FALSE(config.Targets("model.layers.0.self_attn.q_proj", true));
}

TEST_CASE("LoraConfig: modules are found by name, by the end of it, by a whole regular expression, and as all linear ones") {
  const char *q = "model.layers.1.self_attn.q_proj", *embedding = "model.embed_tokens";
  CHECK(Parsed(R"({"target_modules": ["q_proj"]})").Targets(q, true));
  CHECK(Parsed(R"({"target_modules": ["self_attn.q_proj"]})").Targets(q, true));
  CHECK(!Parsed(R"({"target_modules": ["proj"]})").Targets(q, true));
  CHECK(Parsed("{}").Targets(q, true));   // peft's choice: q_proj and v_proj
  CHECK(!Parsed("{}").Targets("model.layers.1.self_attn.k_proj", true));
  CHECK(Parsed(R"({"target_modules": ".*\\.(q|k)_proj"})").Targets(q, true));
  CHECK(!Parsed(R"({"target_modules": "q_proj"})").Targets(q, true));
  CHECK(Parsed(R"({"target_modules": "all-linear"})").Targets(q, true));
  CHECK(!Parsed(R"({"target_modules": "all-linear"})").Targets(embedding, false));
  CHECK(!Parsed(R"({"target_modules": "all-linear", "exclude_modules": ["q_proj"]})").Targets(q, true));
  CHECK(!Parsed(R"({"target_modules": ["embed_tokens"], "modules_to_save": ["embed_tokens"]})").Targets(embedding, false));
  LoraConfig some = Parsed(R"({"target_modules": ["q_proj"], "layers_to_transform": [0, 2]})");
  CHECK(!some.Targets(q, true));
  CHECK(some.Targets("model.layers.2.self_attn.q_proj", true));
  CHECK(Parsed(R"({"target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"})").Targets(q, true));
}

TEST_CASE("LoraConfig: patterns change the rank and alpha of modules, and rsLoRA divides by the root") {
  LoraConfig config = Parsed(R"({"r": 4, "lora_alpha": 8, "use_rslora": true, "rank_pattern": {"layers\\.1\\..*q_proj": 16}, "alpha_pattern": {"v_proj": 2.5}})");
  CHECK(config.RankOf("model.layers.1.self_attn.q_proj") == 16);
  CHECK(config.RankOf("model.layers.0.self_attn.q_proj") == 4);
  CHECK(config.ScaleOf("model.layers.1.self_attn.q_proj") == Approx(2.0));
  CHECK(config.ScaleOf("model.layers.0.self_attn.v_proj") == Approx(1.25));
  CHECK(Parsed(config.ToJson()).ToJson() == config.ToJson());
}

TEST_CASE("LoraConfig: what is not done here is refused by the key's name and value") {
  for (auto [json, key, what] : std::initializer_list<std::tuple<const char*, const char*, const char*>>{
           {R"({"use_dora": true})", "use_dora", "DoRA"},
           {R"({"init_lora_weights": "pissa"})", "init_lora_weights", "pissa"},
           {R"({"lora_bias": true})", "lora_bias", "true"},
           {R"({"ensure_weight_tying": true})", "ensure_weight_tying", "tied matrix"},
           {R"({"layer_replication": [[0, 2]]})", "layer_replication", "replicated"},
           {R"({"trainable_token_indices": [3]})", "trainable_token_indices", "[3]"},
           {R"({"use_qalora": true})", "use_qalora", "QALoRA"},
           {R"({"eva_config": {"rho": 2}})", "eva_config", "EVA"},
           {R"({"r": 0})", "\"r\"", "at least 1"},
           {R"({"r": 2.5})", "\"r\"", "2.5"},
           {R"({"r": 70000})", "\"r\"", "at most 65536"},
           {R"({"rank_pattern": {"q_proj": 0}})", "rank_pattern.q_proj", "at least 1"},
           {R"({"lora_alpha": "8"})", "lora_alpha", "\"8\""},
           {R"({"lora_dropout": 1})", "lora_dropout", "below 1"},
           {R"({"bias": "some"})", "bias", "lora_only"},
           {R"({"target_modules": "(q_proj"})", "target_modules", "regular expression"},
           {R"({"target_modules": [3]})", "target_modules", "3"},
           {R"({"peft_type": "IA3"})", "peft_type", "LORA"},
           {R"({"task_type": "SEQ_CLS"})", "task_type", "CAUSAL_LM"},
           {R"({"fan_in_fan_out": true})", "fan_in_fan_out", "true"},
           {R"({"lora_alfa": 3})", "lora_alfa", "did you mean \"lora_alpha\"?"},
           {"[]", "JSON object", "lora_alpha"}}) {
    absl::StatusOr<LoraConfig> config = LoraConfig::Parse(json);
    INFO(json << ": " << config.status().ToString());
    REQUIRE(!config.ok());
    CHECK(Message(config.status()).find(key) != std::string::npos);
    CHECK(Message(config.status()).find(what) != std::string::npos);
  }
  // What a newer peft writes for what is not asked of it is no error.
  Parsed(R"({"use_dora": false, "some_new_config": null, "another": {}, "peft_version": "9.9", "inference_mode": true, "qalora_group_size": 16})");
  CHECK(!LoraConfig::Load("/nowhere/lora.json").ok());
}

}  // namespace
}  // namespace argosy::train
