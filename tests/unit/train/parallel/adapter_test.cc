// Low-rank adapters beside frozen weights: against peft's values in the assets, and against themselves over stages, ranks and recomputing.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/model/tiny_assets.h"
#include "tests/unit/train/model/unit_pass.h"
#include "train/collective/thread_transport.h"
#include "train/model/merged_weights.h"
#include "train/model/model.h"
#include "train/parallel/engine.h"
#include "train/parallel/schedule.h"

namespace argosy::train {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

// An adapter of the assets with its base.
struct Stored {
  std::string directory, base_directory;
  ModelConfig config;
  std::unique_ptr<HfWeights> files;
  std::unique_ptr<WeightSource> weights;
  StoredAdapter adapter;
  nlohmann::json expected;
};

std::optional<Stored> OpenStored(const std::string& name) {
  std::optional<std::string> directory = TinyCheckpoint(name);
  if (!directory) return std::nullopt;
  Stored stored{.directory = *directory, .expected = ReadJson(*directory + "/expected.json")};
  stored.base_directory = *directory + "/" + stored.expected["base"].get<std::string>();
  stored.config = Value(ModelConfig::Load(stored.base_directory));
  stored.files = std::make_unique<HfWeights>(Value(HfWeights::Open(stored.base_directory)));
  stored.weights = WeightsFromHf(*stored.files);
  stored.adapter = Value(OpenAdapter(*directory, stored.config, *stored.weights));
  return stored;
}

// peft's state dict has the adapter's name in it.
std::string InPeft(std::string name) {
  for (const char* part : {".lora_A", ".lora_B", ".lora_embedding_A", ".lora_embedding_B"}) {
    size_t at = name.find(part);
    if (at != std::string::npos) return name.insert(at + std::strlen(part), ".default");
  }
  return name;
}

std::vector<float> ReadFloats(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = ReadTensor(file, name).contiguous();
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

TEST_CASE("Adapters: logits, loss and every gradient are peft's, and merging gives peft's merged weights") {
  for (const char* name : {"lora-attn-mlp", "lora-dell"}) {
    std::optional<Stored> stored = OpenStored(name);
    if (!stored) return;
    INFO(name);
    const nlohmann::json& expected = stored->expected;
    SafetensorsFile tensors = Value(SafetensorsFile::Open(stored->directory + "/expected.safetensors"));
    CHECK(stored->adapter.layout.ParameterCount() == expected["trainable"].get<int64_t>());
    Network network(stored->adapter.config, stored->adapter.layout);
    std::vector<at::Tensor> flats = LoadFlats(network, *stored->adapter.base, at::kFloat);
    std::vector<UnitWeights> weights, grads;
    for (size_t unit = 0; unit < flats.size(); ++unit) {
      const UnitLayout& layout = stored->adapter.layout.units[unit].layout;
      at::Tensor adapter = at::empty({layout.elements}, at::kFloat);
      REQUIRE(ReadFlat(*stored->adapter.values, layout, 0, {adapter.data_ptr<float>(), static_cast<size_t>(layout.elements)}).ok());
      weights.emplace_back(flats[unit], adapter);
      grads.emplace_back(at::Tensor(), at::zeros_like(adapter));
    }
    at::NoGradGuard no_grad;
    Rows ids = expected["input_ids"];
    PreparedBatch batch = Value(network.Prepare(BatchOf(ids, ids), at::kFloat));
    std::vector<at::Tensor> hidden = {network.Embed(weights.front(), batch)};
    for (int64_t i = 0; i < network.layers(); ++i) hidden.push_back(network.Layer(i, weights[i + 1], hidden.back(), batch));
    at::Tensor matrix = network.HeadMatrix(weights.back(), weights.front());
    const double noise_logits = expected["noise"]["logits"], noise_grads = expected["noise"]["grads"];
    double logits_gap = MaxDifference(network.Logits(weights.back(), matrix, hidden.back()), ReadTensor(tensors, "logits"));
    CHECK(logits_gap <= 4 * noise_logits);
    HeadGradients head{.scale = 1.0 / static_cast<double>(batch.targets_n.size(0)), .head_flat = grads.back(),
                       .matrix_VD = network.HeadMatrixGradient(grads.back(), grads.front())};
    CHECK(!head.matrix_VD.defined());
    LossSum loss = network.Loss(weights.back(), matrix, hidden.back(), batch, &head);
    CHECK(loss.nll / loss.targets == Approx(expected["loss_float64"].get<double>()).epsilon(1e-6));
    at::Tensor grad = head.hidden_BTD;
    for (int64_t i = network.layers() - 1; i >= 0; --i) grad = network.LayerBackward(i, weights[i + 1], hidden[i], grad, batch, grads[i + 1]);
    network.EmbedBackward(grad, batch, grads.front(), weights.front());
    double grads_gap = 0;
    for (size_t unit = 0; unit < grads.size(); ++unit) {
      for (const TensorRange& range : stored->adapter.layout.units[unit].layout.ranges) {
        INFO(range.name);
        at::Tensor got = grads[unit].adapter.narrow(0, range.offset, range.elements).view(range.shape);
        double gap = MaxDifference(got, ReadTensor(tensors, "grad." + InPeft(range.name)));
        CHECK(gap <= 4 * noise_grads);
        grads_gap = std::max(grads_gap, gap);
      }
    }
    std::cout << fmt::format("{:14} logits {:.1f} x noise, gradients {:.1f} x noise\n", name, logits_gap / noise_logits, grads_gap / noise_grads);

    // Generation with the cache, adapters beside the weights.
    std::vector<int32_t> all = expected["greedy"], prompt(all.begin(), all.begin() + 5);
    auto model = Value(Model::Load(stored->base_directory, DType::kF32, stored->directory));
    CHECK(Value(model->Generate(prompt, {.max_new_tokens = 16, .ignore_stop = true})) == std::vector<int32_t>(all.begin() + 5, all.end()));

    auto merged = Value(MergedWeights::Make(stored->adapter, false));
    for (const UnitLayout& unit : MakeLayout(merged->config()).units) {
      for (const TensorRange& range : unit.ranges) {
        INFO(range.name);
        std::vector<float> want = ReadFloats(tensors, "merged." + range.name), got(want.size());
        // In pieces that begin and end inside rows.
        for (size_t at = 0; at < got.size(); at += 1000) {
          REQUIRE(merged->Read(range, static_cast<int64_t>(at), std::span(got).subspan(at, std::min<size_t>(1000, got.size() - at))).ok());
        }
        double gap = 0;
        for (size_t i = 0; i < got.size(); ++i) gap = std::max<double>(gap, std::abs(got[i] - want[i]));
        CHECK(gap <= 1e-6);
      }
    }
  }
}

TEST_CASE("Adapters: six AdamW steps with accumulation, clipping and warm-up are those of peft and torch") {
  for (const char* name : {"lora-attn-mlp", "lora-dell"}) {
    std::optional<Stored> stored = OpenStored(name);
    if (!stored) return;
    INFO(name);
    auto group = MakeLoopbackGroup();
    AdapterStart start{.layout = &stored->adapter.layout, .values = stored->adapter.values.get()};
    auto engine = Value(Engine::Create(stored->adapter.config, *stored->adapter.base, group.get(), {.weight_decay = 0.01, .decay_vectors = false}, nullptr, &start));
    std::vector<std::vector<Rows>> batches = stored->expected["train"]["batches"];
    const auto& log = stored->expected["train"]["log"];
    for (size_t step = 0; step < log.size(); ++step) {
      std::vector<MicroBatch> micro;
      for (const Rows& rows : batches[step % 3]) micro.push_back(BatchOf(rows, rows));
      StepResult result = Value(engine->TrainStep(micro, log[step]["lr"].get<double>()));
      std::vector<double> losses = log[step]["micro_losses"];
      INFO("step " << step);
      CHECK(result.loss == Approx((losses[0] + losses[1]) / 2).epsilon(1e-5));
      CHECK(result.grad_norm == Approx(log[step]["grad_norm"].get<double>()).epsilon(1e-4));
    }
    REQUIRE(engine->Flush().ok());
    SafetensorsFile tensors = Value(SafetensorsFile::Open(stored->directory + "/expected.safetensors"));
    for (const Extent& extent : engine->ExtentsOf(0)) {
      INFO(extent.tensor);
      std::vector<float> want = ReadFloats(tensors, "trained." + InPeft(extent.tensor)), got(want.size());
      REQUIRE(engine->ReadWeights(extent, std::as_writable_bytes(std::span(got))).ok());
      double sum = 0;
      for (size_t i = 0; i < got.size(); ++i) sum += std::abs(got[i] - want[i]);
      CHECK(sum / static_cast<double>(got.size()) < 2e-6);
    }
  }
}

struct AdapterPlan {
  std::string lora = R"({"r": 4, "lora_alpha": 8, "target_modules": "all-linear"})";
  int ranks = 3, steps = 4, micro_batches = 1, rows = 6;
  bool tied = false;
  EngineOptions engine;
};

struct AdapterRun {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> values;
  int64_t state_bytes = 0;
};

ModelConfig SmallConfig(bool tied) {
  return Value(ModelConfig::Make({.vocab_size = 97, .hidden_size = 32, .intermediate_size = 48, .num_hidden_layers = 3, .num_attention_heads = 4,
                                  .num_key_value_heads = 2, .max_position_embeddings = 64, .tie_word_embeddings = tied}));
}

// Rows of lengths of their own, some tokens without a target.
MicroBatch PartOf(int step, int micro, int rank, int size, int rows, int rows_of_step_before) {
  const int first = rank * rows / size;
  Rows ids, labels;
  for (int row = first; row < (rank + 1) * rows / size; ++row) {
    Prng prng(static_cast<uint64_t>(step) * 1000 + micro * 100 + row);
    std::vector<int32_t> of_row(12);
    for (int32_t& id : of_row) id = static_cast<int32_t>(prng.Below(97));
    ids.push_back(of_row);
    for (int i = 0; i < row % 4; ++i) of_row[static_cast<size_t>(i)] = MicroBatch::kNoTarget;
    labels.push_back(of_row);
  }
  MicroBatch batch = ids.empty() ? MicroBatch{} : BatchOf(ids, labels);
  batch.first_row = rows_of_step_before + first;
  return batch;
}

AdapterRun Train(const AdapterPlan& plan) {
  AdapterRun run;
  ModelConfig config = SmallConfig(plan.tied);
  LoraConfig lora = Value(LoraConfig::Parse(plan.lora));
  AdapterLayout layout = Value(MakeAdapterLayout(config, lora));
  auto transports = MakeThreadTransports(plan.ranks);
  std::vector<absl::Status> statuses(static_cast<size_t>(plan.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SetComputeThreads(1);
      auto group = MakeMessageGroup(std::move(transports[static_cast<size_t>(rank)]), {.deadline = absl::Seconds(30)});
      auto body = [&]() -> absl::Status {
        auto base = RandomWeights(config, 5);
        auto values = NewAdapter(layout, lora, *base, 9);
        AdapterStart start{.layout = &layout, .values = values.get()};
        ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *base, group.get(), plan.engine, nullptr, &start));
        for (int step = 0; step < plan.steps; ++step) {
          std::vector<MicroBatch> parts;
          for (int micro = 0; micro < plan.micro_batches; ++micro) {
            parts.push_back(PartOf(step, micro, rank, plan.ranks, plan.rows, micro * plan.rows));
          }
          ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(parts, 0.02));
          if (rank == 0) run.steps.push_back(result);
        }
        ARGOSY_RETURN_IF_ERROR(engine->Flush());
        if (rank != 0) return absl::OkStatus();
        run.state_bytes = engine->StateBytes();
        for (const TensorRange& range : layout.Ranges()) {
          std::vector<float>& held = run.values[range.name];
          held.resize(static_cast<size_t>(range.elements));
          ARGOSY_RETURN_IF_ERROR(engine->ReadWeights({range.name, 0, range.elements}, std::as_writable_bytes(std::span(held))));
        }
        return absl::OkStatus();
      };
      statuses[static_cast<size_t>(rank)] = body();
      if (!statuses[static_cast<size_t>(rank)].ok()) group->Abort(Message(statuses[static_cast<size_t>(rank)]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  return run;
}

bool SameBits(const AdapterRun& a, const AdapterRun& b) {
  for (size_t i = 0; i < a.steps.size(); ++i) {
    if (a.steps[i].loss != b.steps[i].loss || a.steps[i].grad_norm != b.steps[i].grad_norm) return false;
  }
  return a.steps.size() == b.steps.size() && a.values == b.values && !a.values.empty();
}

const char* const kEverything =
    R"({"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        "embed_tokens", "lm_head"]})";

TEST_CASE("Adapters: all four stages and all ways of recomputing give equal bits, in fp32 and bf16, with dropout and accumulation") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool tied : {false, true}) {
      AdapterPlan plan{.lora = kEverything, .micro_batches = 2, .tied = tied, .engine = {.zero_stage = 0, .dtype = dtype, .weight_decay = 0.1}};
      AdapterRun zero = Train(plan);
      for (const auto& [name, values] : zero.values) {
        INFO(name);
        CHECK(std::any_of(values.begin(), values.end(), [](float x) { return x != 0; }));   // B was 0, and has learned
      }
      for (int stage : {1, 2, 3}) {
        plan.engine.zero_stage = stage;
        for (Recompute recompute : {Recompute::kFull, Recompute::kSelective, Recompute::kNone}) {
          if (stage != 3 && recompute != Recompute::kFull) continue;
          INFO(TorchName(dtype) << " tied " << tied << " stage " << stage << " " << RecomputeName(recompute));
          plan.engine.recompute = recompute;
          CHECK(SameBits(zero, Train(plan)));
        }
      }
    }
  }
}

TEST_CASE("Adapters: three ranks learn what one does, dropout included, and other seeds drop other elements") {
  AdapterPlan plan{.lora = kEverything, .engine = {.zero_stage = 3}};
  AdapterRun three = Train(plan);
  plan.ranks = 1;
  AdapterRun one = Train(plan);
  double gap = 0;
  for (size_t i = 0; i < one.steps.size(); ++i) gap = std::max(gap, std::abs(three.steps[i].loss / one.steps[i].loss - 1));
  CHECK(gap <= 2e-6);
  AdapterRun other = Train({.lora = kEverything, .ranks = 1, .engine = {.zero_stage = 3, .seed = 43}});
  CHECK(other.steps[0].loss == one.steps[0].loss);        // B is 0 at first
  CHECK(other.steps[2].loss != one.steps[2].loss);
  std::cout << fmt::format("adapters, 3 ranks against 1: losses off by {:.1e}\n", gap);
}

TEST_CASE("Adapters: a rank holds the base once and state for the adapters alone") {
  ModelConfig config = SmallConfig(false);
  AdapterRun run = Train({.ranks = 1, .engine = {.zero_stage = 2, .dtype = DType::kBF16}});
  int64_t base = 0, adapters = 0;
  for (const UnitLayout& unit : MakeLayout(config).units) base += unit.elements;
  for (const UnitAdapters& unit : Value(MakeAdapterLayout(config, LoraConfig{.rank = 4, .target_pattern = "all-linear"})).units) {
    adapters += unit.layout.elements;
  }
  CHECK(run.state_bytes == 2 * base + 16 * adapters);
}

TEST_CASE("Adapters: modules to save and biases learn in copies, and what is not named stays") {
  AdapterRun run = Train({.lora = R"({"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]})",
                          .engine = {.zero_stage = 3, .dtype = DType::kBF16}});
  auto base = RandomWeights(SmallConfig(false), 5);
  for (const std::string name : {"model.embed_tokens", "lm_head", "model.norm"}) {
    INFO(name);
    const std::vector<float>& learned = run.values.at("base_model.model." + name + ".weight");
    std::vector<float> before(learned.size());
    TensorRange range{.name = name + ".weight", .shape = name == "model.norm" ? std::vector<int64_t>{32} : std::vector<int64_t>{97, 32}};
    REQUIRE(base->Read(range, 0, before).ok());
    CHECK(before != learned);
  }
  // A model without biases has none to train.
  CHECK(Train({.lora = R"({"r": 2, "target_modules": ["q_proj"], "bias": "all"})", .steps = 1}).values.size() == 2 * 3);
}

TEST_CASE("Adapters: units below the first one that is trained have no backward") {
  std::string text = Print(TrainSchedule({.units = 4, .stage = 3, .trained = {false, false, true, false}}), {"embedding", "layer 0", "layer 1", "head"});
  CHECK(text ==
        "gather    micro 0  embedding\n"
        "gather    micro 0  layer 0\n"
        "forward   micro 0  embedding\n"
        "release   micro 0  embedding\n"
        "step      micro 0  layer 1\n"
        "gather    micro 0  layer 1\n"
        "forward   micro 0  layer 0\n"
        "release   micro 0  layer 0\n"
        "gather    micro 0  head\n"
        "forward   micro 0  layer 1\n"
        "loss      micro 0  head\n"
        "release   micro 0  head\n"
        "backward  micro 0  layer 1\n"
        "release   micro 0  layer 1\n"
        "reduce    micro 0  layer 1\n"
        "commit\n");
  // And learn the same with fewer lines: only the head, only the last layer, only the first.
  for (const char* which : {R"("target_modules": ["lm_head"])", R"("target_modules": ["down_proj"], "layers_to_transform": [2])",
                            R"("target_modules": ["q_proj"], "layers_to_transform": 0)"}) {
    AdapterPlan plan{.lora = fmt::format("{{\"r\": 2, {}}}", which), .engine = {.zero_stage = 0}};
    AdapterRun zero = Train(plan);
    INFO(which);
    CHECK(zero.values.size() == 2);
    for (Recompute recompute : {Recompute::kFull, Recompute::kNone}) {
      plan.engine.zero_stage = 3;
      plan.engine.recompute = recompute;
      CHECK(SameBits(zero, Train(plan)));
    }
  }
}

TEST_CASE("Kernels: an adapter's dropout keeps its share, scales what is left, and its backward is autograd's") {
  const int64_t n = 600, I = 40, O = 24, R = 4, T = 30;   // more tokens than are computed at once
  at::manual_seed(3);
  kernels::Dropout dropout{.share = 0.25, .seed = 11, .attempt = 2, .first_row = 5, .tokens = T};
  at::Tensor mask = at::zeros({n, I});
  kernels::AddAdapter(mask, at::ones({n, I}), {.a_RI = at::eye(I), .b_OR = at::eye(I), .module = 3, .dropout = &dropout});
  const double kept = mask.gt(0).to(at::kFloat).mean().item<double>();
  CHECK(kept == Approx(0.75).margin(0.01));
  CHECK(mask.max().item<double>() == Approx(1 / 0.75));
  CHECK(mask.mean().item<double>() == Approx(1.0).margin(0.02));

  at::Tensor x = at::randn({n, I}), a = at::randn({R, I}), b = at::randn({O, R}), grad_y = at::randn({n, O});
  at::Tensor xd = x.to(at::kDouble).requires_grad_(), ad = a.to(at::kDouble).requires_grad_(), bd = b.to(at::kDouble).requires_grad_();
  at::Tensor want = at::mm(at::mm(xd * mask.to(at::kDouble), ad.t()), bd.t()) * 0.5;
  at::Tensor objective = (want * grad_y.to(at::kDouble)).sum();
  objective.backward();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double near = type == at::kFloat ? 1e-6 : 2e-2;
    auto close = [&](const at::Tensor& got, const at::Tensor& expected) {
      return (got.to(at::kDouble) - expected).norm().item<double>() <= near * expected.norm().item<double>();
    };
    kernels::Adapter adapter{.a_RI = a, .b_OR = b, .scale = 0.5f, .module = 3, .dropout = &dropout};
    at::Tensor y = at::zeros({n, O}, type), grad_x = at::zeros({n, I}, type), grad_a = at::zeros({R, I}), grad_b = at::zeros({O, R});
    kernels::AddAdapter(y, x.to(type), adapter);
    CHECK(close(y, want.detach()));
    kernels::AdapterBackward(grad_y.to(type), x.to(type), adapter, grad_a, grad_b, grad_x);
    CHECK(close(grad_x, xd.grad()));
    CHECK(close(grad_a, ad.grad()));
    CHECK(close(grad_b, bd.grad()));
  }
  // Tokens chosen out of the batch drop what they drop in their places.
  at::Tensor places = at::arange(7, n, 13, at::kLong), chosen = at::zeros({places.size(0), I});
  kernels::Dropout of_places = dropout;
  of_places.places_n = places;
  kernels::AddAdapter(chosen, at::ones({places.size(0), I}), {.a_RI = at::eye(I), .b_OR = at::eye(I), .module = 3, .dropout = &of_places});
  CHECK(at::equal(chosen, mask.index_select(0, places)));
  // The rows of a later batch are other rows, and the same row the same.
  kernels::Dropout later = dropout;
  later.first_row = 6;
  at::Tensor shifted = at::zeros({n, I});
  kernels::AddAdapter(shifted, at::ones({n, I}), {.a_RI = at::eye(I), .b_OR = at::eye(I), .module = 3, .dropout = &later});
  CHECK(at::equal(shifted.narrow(0, 0, n - T), mask.narrow(0, T, n - T)));
  CHECK(!at::equal(shifted, mask));
}

}  // namespace
}  // namespace argosy::train
