#include "train/config/deepspeed_config.h"

#include <algorithm>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/config/text.h"
#include "train/config/deepspeed_keys.h"

namespace argosy::train {
namespace {

// The two files of the reference recipe, as they are.
constexpr char kSmallRecipe[] = R"({
  "fp16": { "enabled": "auto" },
  "bf16": { "enabled": "auto" },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": { "device": "none" },
    "offload_param": { "device": "none" },
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": 5e8,
    "stage3_param_persistence_threshold": 1e6,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true,
    "round_robin_gradients": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 10,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
})";

constexpr char kLargeRecipe[] = R"({
  "fp16": { "enabled": false },
  "bf16": { "enabled": true },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": { "device": "cpu", "pin_memory": false },
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "gather_16bit_weights_on_model_save": true,
    "round_robin_gradients": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 10,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
})";

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TrainSettings Good(std::string_view json, const SettingsContext& context = {}) {
  SettingsReport report = ValidateDeepSpeedConfig(json, context);
  INFO(report.ToText());
  REQUIRE(report.ok());
  return report.settings;
}

std::string Errors(std::string_view json, const SettingsContext& context = {}) {
  SettingsReport report = ValidateDeepSpeedConfig(json, context);
  REQUIRE_FALSE(report.ok());
  CHECK_FALSE(ResolveSettings(json, context).ok());
  return Joined(report.errors);
}

std::string Warnings(std::string_view json, const SettingsContext& context = {}) {
  SettingsReport report = ValidateDeepSpeedConfig(json, context);
  INFO(report.ToText());
  CHECK(report.ok());
  return Joined(report.warnings);
}

const EffectiveValue* Find(const SettingsReport& report, std::string_view key) {
  auto it = std::find_if(report.values.begin(), report.values.end(), [&](const EffectiveValue& v) { return v.key == key; });
  return it == report.values.end() ? nullptr : &*it;
}

}  // namespace

TEST_CASE("DeepSpeed: the reference recipe's files are read as they are") {
  SettingsContext context{.world_size = 16, .hidden_size = 4096};
  context.flags.micro_batch_size = 126;
  context.flags.learning_rate = 5e-6;
  SettingsReport small = ValidateDeepSpeedConfig(kSmallRecipe, context);
  INFO(small.ToText());
  REQUIRE(small.ok());
  CHECK(small.warnings.empty());
  CHECK(small.settings.zero_stage == 3);
  CHECK(small.settings.precision == Precision::kBf16);
  CHECK(small.settings.train_batch_size == 2016);
  CHECK(small.settings.micro_batch_size == 126);
  CHECK(small.settings.gradient_accumulation_steps == 1);
  CHECK(small.settings.gradient_clipping == 1.0);
  for (const char* without_effect : {"steps_per_print", "wall_clock_breakdown", "zero_optimization.overlap_comm",
                                     "zero_optimization.offload_optimizer.device"}) {
    INFO(without_effect);
    REQUIRE(Find(small, without_effect) != nullptr);
    CHECK(Find(small, without_effect)->use == ValueUse::kIgnored);
    CHECK_FALSE(Find(small, without_effect)->note.empty());
  }
  REQUIRE(Find(small, "zero_optimization.reduce_bucket_size") != nullptr);
  CHECK(Find(small, "zero_optimization.reduce_bucket_size")->value == "500000000");
  CHECK(Find(small, "zero_optimization.reduce_bucket_size")->use == ValueUse::kIgnored);

  SettingsReport large = ValidateDeepSpeedConfig(kLargeRecipe, context);
  INFO(large.ToText());
  REQUIRE(large.ok());
  REQUIRE(Find(large, "zero_optimization.offload_optimizer.device") != nullptr);
  CHECK(Find(large, "zero_optimization.offload_optimizer.device")->value == "cpu");
  CHECK(Find(large, "zero_optimization.offload_optimizer.device")->use == ValueUse::kHonoured);
  CHECK(large.settings.offload_folder.empty());
  CHECK(Find(large, "zero_optimization.stage3_prefetch_bucket_size")->value == "15099494");
  CHECK(Find(large, "zero_optimization.stage3_prefetch_bucket_size")->source == "auto");
  CHECK(Find(large, "zero_optimization.stage3_gather_16bit_weights_on_model_save") != nullptr);
}

TEST_CASE("DeepSpeed: no file at all gives the defaults") {
  TrainSettings settings = Good("", {.world_size = 3});
  CHECK(settings.zero_stage == 3);
  CHECK(settings.train_batch_size == 48);
  CHECK(settings.schedule.type == LrScheduleType::kLinear);
  CHECK(settings.schedule.warmup_steps == 10);
  CHECK(settings.schedule.lr == 5e-6);
  CHECK(settings.weight_decay == 0.0);
}

TEST_CASE("DeepSpeed: two of the batch sizes give the third, one gives both") {
  TrainSettings s = Good(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})", {.world_size = 4});
  CHECK(s.gradient_accumulation_steps == 4);
  s = Good(R"({"train_batch_size": 64, "gradient_accumulation_steps": 2})", {.world_size = 4});
  CHECK(s.micro_batch_size == 8);
  s = Good(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})", {.world_size = 4});
  CHECK(s.train_batch_size == 24);
  s = Good(R"({"train_batch_size": 64})", {.world_size = 4});
  CHECK((s.micro_batch_size == 16 && s.gradient_accumulation_steps == 1));
  s = Good(R"({"train_micro_batch_size_per_gpu": 5})", {.world_size = 4});
  CHECK((s.train_batch_size == 20 && s.gradient_accumulation_steps == 1));
  s = Good(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})", {.world_size = 4});
  CHECK(s.train_batch_size == 24);
}

TEST_CASE("DeepSpeed: batch sizes that do not multiply out say which was given, the ranks, and what would work") {
  std::string text = Errors(R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 18, "gradient_accumulation_steps": 2})",
                            {.world_size = 7});
  CHECK(Has(text, "train_batch_size = 256 (file)"));
  CHECK(Has(text, "7 ranks = 252"));
  CHECK(Has(text, "252 or 378"));
  text = Errors(R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 18})", {.world_size = 7});
  CHECK(Has(text, "gradient_accumulation_steps cannot be inferred"));
  CHECK(Has(text, "252 or 378"));
  SettingsContext context{.world_size = 4};
  context.flags.gradient_accumulation_steps = 3;
  text = Errors(R"({"train_batch_size": 10})", context);
  CHECK(Has(text, "flag --grad-accum"));
  CHECK(Has(text, "12"));
  CHECK(Has(Errors(R"({"train_batch_size": 0})"), "greater than 0"));
  CHECK(Has(Errors(R"({"train_batch_size": "8"})"), "a string"));
  CHECK(Has(Errors(R"({"train_batch_size": 8.5})"), "must be an integer"));
  CHECK(Has(Errors(R"({"train_micro_batch_size_per_gpu": 9000000000000000000, "gradient_accumulation_steps": 9})"), "too large"));
}

TEST_CASE("DeepSpeed: a flag wins over the file and the report says so") {
  SettingsContext context{.world_size = 2};
  context.flags.micro_batch_size = 4;
  context.flags.learning_rate = 1e-4;
  context.flags.zero_stage = 2;
  const char* json = R"({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
                         "zero_optimization": {"stage": 3}})";
  SettingsReport report = ValidateDeepSpeedConfig(json, context);
  INFO(report.ToText());
  REQUIRE(report.ok());
  CHECK(report.settings.micro_batch_size == 4);
  CHECK(report.settings.schedule.lr == 1e-4);
  CHECK(report.settings.zero_stage == 2);
  CHECK(Find(report, "optimizer.params.lr")->source == "flag --learning-rate");
  CHECK(Has(Joined(report.warnings), "--learning-rate 0.0001 overrides \"optimizer.params.lr\": 5e-05"));
  CHECK(Has(Joined(report.warnings), "--batch-size-per-device 4 overrides"));
}

TEST_CASE("DeepSpeed: Adam means AdamW, other optimizers are refused") {
  TrainSettings s = Good(R"({"optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 3e-7}}})");
  CHECK(s.schedule.lr == 3e-5);
  CHECK(s.adam_beta1 == 0.8);
  CHECK(s.adam_beta2 == 0.99);
  CHECK(s.adam_eps == 1e-7);
  CHECK(s.weight_decay == 3e-7);
  CHECK(Good(R"({"optimizer": {"type": "AdamW"}})").schedule.lr == 1e-3);
  CHECK(Good(R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})").schedule.lr == 5e-6);
  CHECK(Has(Errors(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})"), "adam_w_mode"));
  CHECK(Has(Errors(R"({"optimizer": {"type": "OneBitAdam"}})"), "OneBitAdam"));
  CHECK(Has(Errors(R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})"), "gradient_clipping"));
  CHECK(Has(Errors(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})"), "two numbers"));
}

TEST_CASE("DeepSpeed: schedulers take their parameters, with auto from flags and the run") {
  SettingsContext context{.total_steps = 200};
  context.flags.warmup_steps = 20;
  context.flags.learning_rate = 2e-5;
  TrainSettings s = Good(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                             "warmup_num_steps": "auto", "total_num_steps": "auto"}}})", context);
  CHECK(s.schedule.type == LrScheduleType::kWarmupDecayLr);
  CHECK(s.schedule.lr == 2e-5);
  CHECK(s.schedule.warmup_steps == 20);
  CHECK(s.schedule.total_steps == 200);
  CHECK(s.schedule.log_warmup);

  s = Good(R"({"scheduler": {"type": "warmupcosinelr", "params": {"total_num_steps": 100, "warmup_num_steps": 5, "warmup_type": "linear",
               "cos_min_ratio": 0.1}}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  CHECK(s.schedule.type == LrScheduleType::kWarmupCosineLr);
  CHECK(s.schedule.lr == 1e-4);
  CHECK(s.schedule.cosine_min_ratio == 0.1);
  CHECK_FALSE(s.schedule.log_warmup);
  CHECK(s.schedule.total_steps == 100);

  s = Good(R"({"scheduler": {"type": "WarmupLR", "params": {}}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})");
  CHECK(s.schedule.lr == 1e-4);
  CHECK(s.schedule.warmup_steps == 1000);
  CHECK(Has(Errors(R"({"scheduler": {"type": "OneCycle"}})"), "OneCycle"));
  CHECK(Has(Errors(R"({"scheduler": {"params": {"warmup_num_steps": 5}}})"), "no \"type\""));
  CHECK(Has(Errors(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}})"), "positive integer"));
}

TEST_CASE("DeepSpeed: fp16 is refused with the way out, bf16 false is fp32") {
  CHECK(Has(Errors(R"({"fp16": {"enabled": true}})"), "\"bf16\": {\"enabled\": true}"));
  CHECK(Good(R"({"bf16": {"enabled": false}})").precision == Precision::kFp32);
  CHECK(Good(R"({"bfloat16": {"enabled": true}})").precision == Precision::kBf16);
  CHECK(Has(Warnings(R"({"bfloat16": {"enabled": true}})"), "old name of \"bf16\""));
  CHECK(PrecisionFromName("no").value() == Precision::kFp32);
  CHECK(PrecisionFromName("bf16").value() == Precision::kBf16);
  CHECK(Has(Message(PrecisionFromName("fp8").status()), "bf16"));
}

TEST_CASE("DeepSpeed: aliases, bare and deprecated names mean the same; both at once is an error") {
  SettingsReport report = ValidateDeepSpeedConfig(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 100}})", {});
  CHECK(Find(report, "zero_optimization.stage3_prefetch_bucket_size")->value == "100");
  CHECK(Has(Errors(R"({"zero_optimization": {"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 1}})"), "two names"));
  CHECK(Good(R"({"zero_optimization": true})").zero_stage == 1);
  SettingsReport old = ValidateDeepSpeedConfig(R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})", {});
  REQUIRE(Find(old, "zero_optimization.offload_optimizer.device") != nullptr);
  CHECK(Find(old, "zero_optimization.offload_optimizer.device")->value == "cpu");
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})"), "two names"));
}

TEST_CASE("DeepSpeed: integral floats are integers, a fraction of a size is floored with a warning") {
  CHECK(Good(R"({"train_batch_size": 1.6e1})").train_batch_size == 16);
  SettingsReport report = ValidateDeepSpeedConfig(R"({"zero_optimization": {"stage3_prefetch_bucket_size": 15099494.4}})", {});
  CHECK(report.ok());
  CHECK(Find(report, "zero_optimization.stage3_prefetch_bucket_size")->value == "15099494");
  CHECK(Has(Joined(report.warnings), "15099494.4"));
}

TEST_CASE("DeepSpeed: an unknown key gets a suggestion") {
  CHECK(Has(Errors(R"({"grad_clipping": 1.0})"), "did you mean \"gradient_clipping\"?"));
  CHECK(Has(Errors(R"({"zero_optimization": {"stge": 3}})"), "did you mean \"zero_optimization.stage\"?"));
  CHECK(Has(Errors(R"({"optimizer": {"type": "AdamW", "params": {"learning_rat": 1}}})"), "not a known key"));
  CHECK(Has(Errors(R"({"overlap_comm": true})"), "did you mean \"zero_optimization.overlap_comm\"?"));
  CHECK(Has(Errors(R"({"zero_optimization": {"zzzzzzzz": 3}})"), "not a known key"));
  CHECK(Has(Warnings(R"({"my_company_note": "x"})"), "ignored"));
}

TEST_CASE("DeepSpeed: comments and trailing commas are accepted, broken JSON says where, all errors come at once") {
  CHECK(Good("{\n // batch\n \"train_batch_size\": 8, # rows\n /* two\n lines */ \"gradient_clipping\": 5,\n}").gradient_clipping == 5);
  CHECK(Good("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, 0.95,],}}, }").adam_beta2 == 0.95);
  CHECK(Has(Errors("{\n  \"train_batch_size\": 8,\n  \"steps_per_print\" 5\n}"), "line 3"));
  CHECK(Has(Errors("{\n  # rows\n  a: [1,\n   {]\n}"), "line 4"));
  CHECK(Has(Errors("[1]"), "object"));
  CHECK(Has(Errors(R"({"gradient_clipping": 1e999})"), "1e999"));
  CHECK(Has(Errors(R"({"train_batch_size": 8, "train_batch_size": 9})"), "given twice"));
  SettingsReport report = ValidateDeepSpeedConfig(R"({"train_batch_size": -1, "gradient_clipping": -1, "zero_optimization": {"stage": 7}})", {});
  CHECK(report.errors.size() == 3);
  CHECK(Has(Message(ResolveSettings(R"({"train_batch_size": -1, "gradient_clipping": -1})", {}).status()), "2 things are wrong"));
}

TEST_CASE("DeepSpeed: what would change results is refused, what would not is listed as ignored") {
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true}})"), "zero_quantized_weights"));
  CHECK(Has(Errors(R"({"elasticity": {"enabled": true, "max_train_batch_size": 100}})"), "elasticity"));
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}})"), "nvme"));
  CHECK(Has(Errors(R"({"gradient_allreduce_op": "sum"})"), "mean"));
  SettingsReport report = ValidateDeepSpeedConfig(R"({"elasticity": {"enabled": false}, "tensorboard": {"enabled": true},
      "activation_checkpointing": {"partition_activations": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})", {});
  INFO(report.ToText());
  CHECK(report.ok());
  CHECK(Find(report, "tensorboard")->use == ValueUse::kIgnored);
  CHECK(Has(Joined(report.warnings), "offload_param"));
  CHECK(Has(report.ToText(), "Ignored"));
}

TEST_CASE("DeepSpeed: the optimizer's state goes to a folder, and its moments are bf16, by file or flag") {
  const char* nvme = R"({"bf16": {"enabled": true, "bf16_optimizer_states": true},
                         "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"}}})";
  TrainSettings file = Good(nvme, {});
  CHECK(file.offload_folder == "/fast");
  CHECK(file.moments == Precision::kBf16);
  SettingsReport flags = ValidateDeepSpeedConfig(nvme, {.flags = {.offload = "cpu", .moments = Precision::kFp32}});
  INFO(flags.ToText());
  CHECK(flags.ok());
  CHECK(flags.settings.offload_folder.empty());
  CHECK(flags.settings.moments == Precision::kFp32);
  CHECK(Has(Joined(flags.warnings), "--offload cpu overrides"));
  CHECK(Good("", {.flags = {.offload = "/disk"}}).offload_folder == "/disk");
  CHECK(Good("", {}).moments == Precision::kFp32);
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})"), "nvme_path"));
  CHECK(Has(Errors(R"({"bf16": {"enabled": false, "bf16_optimizer_states": true}})"), "for training in bf16"));
}

TEST_CASE("DeepSpeed: every scheduler's rates are those that DeepSpeed's own classes give") {
  const nlohmann::json reference = nlohmann::json::parse(ReadFile("tests/parity/deepspeed.json").value());
  REQUIRE(reference["schedules"].size() == 12);
  for (const nlohmann::json& schedule : reference["schedules"]) {
    nlohmann::json file{{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", schedule["lr"]}}}}},
                        {"scheduler", {{"type", schedule["type"]}, {"params", schedule["params"]}}}};
    INFO(file.dump());
    LrScheduleConfig made = Good(file.dump(), {.total_steps = 32}).schedule;
    for (size_t step = 0; step < schedule["rates"].size(); ++step) {
      INFO("step " << step);
      CHECK(LearningRate(made, static_cast<int64_t>(step)) == Approx(schedule["rates"][step].get<double>()).epsilon(1e-12).margin(1e-18));
    }
  }
}

TEST_CASE("DeepSpeed: what only some stages have is refused in the others") {
  for (int stage = 0; stage < 4; ++stage) {
    INFO("stage " << stage);
    std::string zero = fmt::format("{{\"zero_optimization\": {{\"stage\": {}, ", stage);
    CHECK(ValidateDeepSpeedConfig(zero + R"("offload_optimizer": {"device": "cpu"}}})", {}).ok() == (stage > 0));
    CHECK(ValidateDeepSpeedConfig(zero + R"("offload_optimizer": {"device": "none"}}})", {}).ok());
    CHECK(ValidateDeepSpeedConfig(zero + R"("offload_param": {"device": "cpu"}}})", {}).ok() == (stage == 3));
    CHECK(ValidateDeepSpeedConfig(zero + R"("offload_optimizer": {"device": "cpu", "ratio": 0.5}}})", {}).ok() == (stage == 3));
  }
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"), "in stage 2: only stage 3"));
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 2}}})"), "from 0 to 1"));
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "allgather_bucket_size": 7}})"), "even"));
  CHECK(Has(Errors(R"({"zero_optimization": {"stage": 3, "cpu_offload_param": true, "offload_param": {"device": "cpu"}}})"), "two names"));
}

TEST_CASE("DeepSpeed: values outside a key's few names are refused with the names") {
  CHECK(Has(Errors(R"({"communication_data_type": "int8"})"), "fp16, bf16, fp32"));
  CHECK(Has(Errors(R"({"checkpoint": {"tag_validation": "maybe"}})"), "\"Warn\""));
  CHECK(Good(R"({"checkpoint": {"tag_validation": "WARN"}, "communication_data_type": "bf16"})").zero_stage == 0);
  CHECK(Has(Errors(R"({"data_types": {"grad_accum_dtype": "fp64"}})"), "fp32"));
  CHECK(Has(Errors(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), "cannot both be enabled"));
  CHECK(Has(Errors(R"({"managed_gradient_accumulation": false})"), "set it to true"));
  CHECK(Has(Errors(R"({"sequence_parallel_size": 2})"), "sequence_parallel_size"));
  for (const char* optimizer : {"Adagrad", "Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD", "Lion", "Muon", "SGD"}) {
    CHECK(Has(Errors(fmt::format("{{\"optimizer\": {{\"type\": \"{}\"}}}}", optimizer)), "accepted are \"AdamW\""));
  }
  for (const char* schedule : {"LRRangeTest", "OneCycle", "StepLR"}) {
    CHECK(Has(Errors(fmt::format("{{\"scheduler\": {{\"type\": \"{}\"}}}}", schedule)), "accepted are WarmupLR"));
  }
  for (const char* section : {"torch_autocast", "amp", "elasticity", "autotuning", "curriculum_learning", "data_efficiency", "progressive_layer_drop",
                              "compression_training", "weight_quantization", "sparse_attention", "tensor_parallel", "expert_parallel"}) {
    INFO(section);
    CHECK(Has(Errors(fmt::format("{{\"{}\": {{\"enabled\": true}}}}", section)), section));
    CHECK(ValidateDeepSpeedConfig(fmt::format("{{\"{}\": {{\"enabled\": false}}}}", section), {}).ok());
  }
}

TEST_CASE("DeepSpeed: auto is resolved as transformers does, and without a hidden size it stays") {
  const char* sizes = R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                          "stage3_param_persistence_threshold": "auto", "offload_optimizer": {"device": "none", "buffer_count": "auto"}},
                          "gradient_clipping": "auto", "gradient_accumulation_steps": "auto", "train_micro_batch_size_per_gpu": "auto",
                          "optimizer": {"type": "AdamW", "params": {"betas": "auto", "eps": "auto", "weight_decay": "auto"}}})";
  SettingsContext context{.world_size = 4, .hidden_size = 1001};
  context.flags.weight_decay = 0.25;
  SettingsReport report = ValidateDeepSpeedConfig(sizes, context);
  INFO(report.ToText());
  REQUIRE(report.ok());
  CHECK(Find(report, "zero_optimization.reduce_bucket_size")->value == "1002001");
  CHECK(Find(report, "zero_optimization.stage3_prefetch_bucket_size")->value == "901800");
  CHECK(Find(report, "zero_optimization.stage3_param_persistence_threshold")->value == "10010");
  CHECK(report.settings.gradient_clipping == 1.0);
  CHECK(report.settings.train_batch_size == 64);
  CHECK(report.settings.weight_decay == 0.25);
  CHECK((report.settings.adam_beta1 == 0.9 && report.settings.adam_beta2 == 0.999 && report.settings.adam_eps == 1e-8));
  report = ValidateDeepSpeedConfig(sizes, {});
  CHECK(Find(report, "zero_optimization.reduce_bucket_size")->value == "auto");
}

TEST_CASE("DeepSpeed: clipping is always listed, 0 turns it off; an unknown warm-up type is logarithmic with a warning") {
  SettingsReport report = ValidateDeepSpeedConfig(R"({"train_batch_size": 8})", {});
  REQUIRE(Find(report, "gradient_clipping") != nullptr);
  CHECK(Find(report, "gradient_clipping")->value == "1");
  CHECK(Find(report, "gradient_clipping")->source == "default");
  CHECK(Good(R"({"gradient_clipping": 0.0})").gradient_clipping == 0.0);
  const char* odd = R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}}})";
  CHECK(Has(Warnings(odd), "\"log\" is used"));
  CHECK(Good(odd).schedule.log_warmup);
}

TEST_CASE("DeepSpeed: every alias names a known key, and every known key of the file's own is accepted with auto") {
  for (const DeepSpeedAlias& alias : DeepSpeedAliases()) {
    INFO(alias.path);
    CHECK(FindDeepSpeedKey(alias.canonical) != nullptr);
    CHECK(FindDeepSpeedKey(alias.path) == nullptr);
  }
  for (const DeepSpeedKey& key : DeepSpeedKeys()) {
    nlohmann::json file = nlohmann::json::object();
    nlohmann::json* at = &file;
    std::string path(key.path);
    for (size_t dot; (dot = path.find('.')) != std::string::npos; path.erase(0, dot + 1)) at = &(*at)[path.substr(0, dot)];
    (*at)[path] = "auto";
    SettingsReport report = ValidateDeepSpeedConfig(file.dump(), {});
    INFO(file.dump() << report.ToText());
    // A schedule's parameters without its type say nothing.
    if (!key.path.starts_with("scheduler.params.") && key.path != "optimizer.type") CHECK(report.ok());
  }
}

// Whatever the bytes, the parser answers.
TEST_CASE("DeepSpeed: every prefix of a file and every changed byte gives a report") {
  std::string text = kLargeRecipe;
  for (size_t n = 1; n < text.size(); ++n) CHECK_FALSE(ValidateDeepSpeedConfig(text.substr(0, n), {}).ok());
  for (size_t i = 0; i < text.size(); i += 3) {
    for (char c : {'"', '{', '}', '/', '*', '#', '\\', ',', '\0', '\xff'}) {
      std::string changed = text;
      changed[i] = c;
      (void)ValidateDeepSpeedConfig(changed, {});
    }
  }
}

}  // namespace argosy::train
