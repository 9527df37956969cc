#include "train/plan/memory_plan.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"

namespace argosy::train {
namespace {

ModelConfig Named(std::string_view name) { return NamedModel(name).value(); }

TEST_CASE("Plan: the named models have Llama 2's numbers of parameters") {
  CHECK(Named("7b").ParameterCount() == 6'738'415'616);
  CHECK(Named("13b").ParameterCount() == 13'015'864'320);
  CHECK(Named("70b").ParameterCount() == 68'976'648'192);
  CHECK(!NamedModel("8b").ok());
}

TEST_CASE("Plan: sharded, a rank has 16 bytes a parameter over the ranks; each stage keeps less than the one before") {
  for (const char* name : {"7b", "13b", "70b"}) {
    ModelConfig config = Named(name);
    double parameters = static_cast<double>(config.ParameterCount());
    PlanOptions options{.ranks = 32, .ranks_per_node = 8};
    int64_t before = INT64_MAX;
    for (int stage : {0, 1, 2, 3}) {
      options.zero_stage = stage;
      RankPlan rank = PlanMemory(config, options).rank;
      int64_t kept = rank.weights + rank.optimizer + rank.gradients;
      CHECK(kept < before);
      before = kept;
    }
    // 2 of the weight, 2 of its master's lower half, 8 of moments, 4 of the gradient.
    CHECK(static_cast<double>(before) == Approx(16 * parameters / 32).epsilon(0.001));
  }
}

TEST_CASE("Plan: selective recomputing takes less than none and more than full, and accumulation takes wider gradients") {
  for (const char* name : {"7b", "70b"}) {
    for (int stage : {0, 1, 2, 3}) {
      PlanOptions options{.ranks = 16, .zero_stage = stage, .rows = 8};
      int64_t before = INT64_MAX;
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        options.recompute = recompute;
        const int64_t total = PlanMemory(Named(name), options).rank.Total();
        CHECK(total < before);
        before = total;
      }
    }
  }
  PlanOptions alone{.zero_stage = 0};
  const int64_t once = PlanMemory(Named("7b"), alone).rank.gradients;
  alone.micro_batches = 2;
  CHECK(PlanMemory(Named("7b"), alone).rank.gradients == 2 * once);
}

TEST_CASE("Plan: beside adapters a rank holds the weights once, and state of the adapters alone") {
  // The recipe's nine targets on 7B: 20.6 million parameters.
  LoraConfig lora = LoraConfig::Parse(R"({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "k_proj", "o_proj", "gate_proj", "up_proj",
                                          "down_proj", "embed_tokens", "lm_head"]})").value();
  const double base = 2.0 * static_cast<double>(Named("7b").ParameterCount());
  PlanOptions options{.zero_stage = 0, .lora = lora};
  RankPlan alone = PlanMemory(Named("7b"), options).rank;
  const double trained = 32.0 * 8 * (4 * 8192 + 3 * (4096 + 11008)) + 2.0 * 8 * (32000 + 4096);
  CHECK(static_cast<double>(alone.weights + alone.optimizer + alone.gradients) == Approx(base + 16 * trained).epsilon(0.001));
  CHECK(PlanDisk(Named("7b"), options).checkpoint == Approx(2 * trained).epsilon(0.001));   // 41 MB
  options.ranks = 8;
  options.zero_stage = 3;
  RankPlan sharded = PlanMemory(Named("7b"), options).rank;
  CHECK(static_cast<double>(sharded.weights) == Approx(base / 8 + 4 * trained).epsilon(0.001));
  CHECK(static_cast<double>(sharded.gradients) == Approx(8 * trained).epsilon(0.001));
  CHECK(sharded.Total() < PlanMemory(Named("7b"), {.ranks = 8, .zero_stage = 3}).rank.Total() / 3);
}

TEST_CASE("Plan: moments in bf16 take half, and a state in a file takes three units' in memory and the rest on disk") {
  PlanOptions options{.ranks = 8, .ranks_per_node = 8};
  const RankPlan usual = PlanMemory(Named("7b"), options).rank;
  options.bf16_moments = true;
  const RankPlan narrow = PlanMemory(Named("7b"), options).rank;
  CHECK(static_cast<double>(narrow.optimizer) == Approx(0.6 * static_cast<double>(usual.optimizer)).epsilon(1e-6));
  options = {.ranks = 8, .ranks_per_node = 8, .offload_file = true};
  const RankPlan offloaded = PlanMemory(Named("7b"), options).rank;
  CHECK(offloaded.optimizer < usual.optimizer / 10);
  CHECK(offloaded.optimizer > 0);
  CHECK(static_cast<double>(PlanDisk(Named("7b"), options).offload) == Approx(static_cast<double>(usual.optimizer)).epsilon(1e-3));
  CHECK(offloaded.weights == usual.weights);
}

TEST_CASE("Plan: the reference's rule for 70B on 4 nodes of 8 gives its published 595 GB") {
  // It counts a round 70 billion parameters.
  ReferenceRules rules = PlanByReference(Named("70b"), {.ranks = 32, .ranks_per_node = 8});
  double share = 70e9 / static_cast<double>(Named("70b").ParameterCount());
  CHECK(static_cast<double>(rules.offload + rules.aggregation) * share == Approx(595e9).epsilon(0.001));
}

TEST_CASE("Plan: what does not fit is refused with the figures and the change that makes it fit") {
  ModelConfig config = Named("7b");
  PlanOptions options{.ranks = 16, .ranks_per_node = 1, .zero_stage = 0, .recompute = Recompute::kNone, .rows = 16};
  CHECK(CheckFits(config, options, 1'000'000'000'000).ok());
  absl::Status status = CheckFits(config, options, 24'000'000'000);
  INFO(Message(status));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Message(status).find("it would fit with") != std::string::npos);
  CHECK(Message(status).find("--zero-stage 3") != std::string::npos);
  Advice advice = Advise(config, options, 24'000'000'000);
  REQUIRE(advice.fits);
  CHECK(PlanMemory(config, advice.options).Total() <= 24'000'000'000);
  CHECK(advice.options.zero_stage == 3);

  status = CheckFits(Named("70b"), {.ranks = 2, .ranks_per_node = 2}, 24'000'000'000);
  CHECK(Message(status).find("more or larger nodes") != std::string::npos);
}

TEST_CASE("Plan: a state takes 12 bytes a parameter on disk, a checkpoint its type's") {
  ModelConfig config = Named("7b");
  DiskPlan disk = PlanDisk(config, {});
  CHECK(disk.checkpoint == 2 * config.ParameterCount());
  CHECK(disk.state == 12 * config.ParameterCount());
  CHECK(PlanDisk(config, {.save_dtype = DType::kF32, .save_state = false}).state == 0);
}

}  // namespace
}  // namespace argosy::train
