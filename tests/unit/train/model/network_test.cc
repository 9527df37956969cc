#include "train/model/network.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <iostream>
#include <map>

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/model/tiny_assets.h"
#include "tests/unit/train/model/unit_pass.h"
#include "train/checkpoint/safetensors.h"
#include "train/model/model.h"
#include "train/model/weight_source.h"

namespace argosy::train {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

TEST_CASE("Network: logits, loss and every gradient are transformers', within the noise of fp32") {
  for (const std::string& name : TinyVariants()) {
    std::optional<std::string> directory = TinyCheckpoint(name);
    if (!directory) return;
    INFO(name);
    nlohmann::json expected = ReadJson(*directory + "/expected.json");
    SafetensorsFile tensors = Value(SafetensorsFile::Open(*directory + "/expected.safetensors"));
    Network network(Value(ModelConfig::Load(*directory)));
    HfWeights weights = Value(HfWeights::Open(*directory));
    REQUIRE(weights.Check(network.config().Tensors(DType::kF32)).ok());
    auto flats = LoadFlats(network, *WeightsFromHf(weights), at::kFloat);
    Rows ids = expected["input_ids"];
    Pass pass = RunUnits(network, flats, Value(network.Prepare(BatchOf(ids, ids), at::kFloat)));
    double noise_logits = expected["noise"]["logits"], noise_grads = expected["noise"]["grads"];

    double logits_gap = MaxDifference(pass.logits, ReadTensor(tensors, "logits"));
    CHECK(logits_gap <= 4 * noise_logits);
    double loss = pass.loss.nll / pass.loss.targets;
    CHECK(loss == Approx(expected["loss_float64"].get<double>()).epsilon(1e-6));
    double grads_gap = 0;
    for (size_t unit = 0; unit < flats.size(); ++unit) {
      for (const TensorRange& range : network.layout().units[unit].ranges) {
        at::Tensor want = ReadTensor(tensors, "grad." + range.name);
        double gap = MaxDifference(network.View(unit, range.name, pass.grads[unit]), want);
        INFO(range.name << " " << gap);
        CHECK(gap <= 4 * noise_grads);
        grads_gap = std::max(grads_gap, gap);
      }
    }
    const auto& padded = expected["padded"];
    Rows pad_ids = padded["input_ids"], pad_mask = padded["attention_mask"], pad_labels = padded["labels"];
    PreparedBatch pad = Value(network.Prepare(BatchOf(pad_ids, pad_labels, pad_mask), at::kFloat));
    Pass pad_pass = RunUnits(network, flats, pad);
    // In fp64 transformers itself has NaN for tokens that see nothing: padding farther than a window behind its row.
    const auto& pad_loss = padded["loss_float64"].is_null() ? padded["loss"] : padded["loss_float64"];
    CHECK(pad_pass.loss.nll / pad_pass.loss.targets == Approx(pad_loss.get<double>()).epsilon(1e-6));
    at::Tensor shown = at::tensor(at::ArrayRef<int32_t>(padded["attention_mask"].get<Rows>()[0]), at::kFloat);
    at::Tensor visible = at::stack({shown, at::tensor(at::ArrayRef<int32_t>(pad_mask[1]), at::kFloat)}).unsqueeze(-1);
    CHECK(MaxDifference(pad_pass.logits * visible, ReadTensor(tensors, "padded.logits")) <= 4 * noise_logits);
    std::cout << fmt::format("{:18} logits {:.1f} x noise, gradients {:.1f} x noise, loss off by {:.1e}\n", name,
                             logits_gap / noise_logits, grads_gap / noise_grads,
                             std::abs(loss - expected["loss_float64"].get<double>()));
  }
}

TEST_CASE("Network: in bf16 the gap to fp32 is at most 1.5 times transformers' own") {
  std::optional<std::string> directory = TinyCheckpoint("llama3-gqa-bf16");
  if (!directory) return;
  nlohmann::json expected = ReadJson(*directory + "/expected.json");
  SafetensorsFile tensors = Value(SafetensorsFile::Open(*directory + "/expected.safetensors"));
  Network network(Value(ModelConfig::Load(*directory)));
  HfWeights weights = Value(HfWeights::Open(*directory));
  auto flats = LoadFlats(network, *WeightsFromHf(weights), at::kBFloat16);
  Rows ids = expected["input_ids"];
  Pass pass = RunUnits(network, flats, Value(network.Prepare(BatchOf(ids, ids), at::kBFloat16)));
  at::Tensor wide = ReadTensor(tensors, "logits");
  auto gap = [&](const at::Tensor& logits) { return (logits.to(at::kFloat) - wide).square().mean().sqrt().item<double>(); };
  double theirs = gap(ReadTensor(tensors, "logits_computed_in_bf16"));
  double ours = gap(pass.logits);
  std::cout << fmt::format("bf16 logits: our rms gap {:.2e}, transformers' {:.2e}\n", ours, theirs);
  CHECK(ours <= 1.5 * theirs);
  CHECK(pass.loss.nll / pass.loss.targets == Approx(expected["loss_computed_in_bf16"].get<double>()).epsilon(2e-3));
  for (size_t unit = 0; unit < flats.size(); ++unit) {
    for (const TensorRange& range : network.layout().units[unit].ranges) {
      at::Tensor want = ReadTensor(tensors, "grad." + range.name);
      at::Tensor got = network.View(unit, range.name, pass.grads[unit]).to(at::kFloat);
      INFO(range.name);
      CHECK((got - want).norm().item<double>() <= 0.03 * want.norm().item<double>());
    }
  }
}

TEST_CASE("Model: greedy generation with the key-value cache continues as transformers does") {
  for (const std::string& name : TinyVariants()) {
    std::optional<std::string> directory = TinyCheckpoint(name);
    if (!directory) return;
    INFO(name);
    nlohmann::json expected = ReadJson(*directory + "/expected.json");
    auto model = Value(Model::Load(*directory, DType::kF32));
    std::vector<int32_t> all = expected["greedy"], prompt(all.begin(), all.begin() + 5);
    std::vector<int32_t> made = Value(model->Generate(prompt, {.max_new_tokens = 16, .ignore_stop = true}));
    CHECK(made == std::vector<int32_t>(all.begin() + 5, all.end()));
    // Stops after a stop token, which it returns.
    std::vector<int32_t> stopped = Value(model->Generate(prompt, {.max_new_tokens = 16, .stop_tokens = {made[3]}}));
    CHECK(stopped.size() <= 4);
    CHECK(stopped.back() == made[3]);
    CHECK(!model->Generate(std::vector<int32_t>(), {}).ok());
    std::vector<int32_t> foreign = {1, 512};
    CHECK(!model->Generate(foreign, {}).ok());
  }
}

ModelConfig SmallConfig() {
  return Value(ModelConfig::Make({.vocab_size = 97, .hidden_size = 32, .intermediate_size = 48, .num_hidden_layers = 2,
                                  .num_attention_heads = 4, .num_key_value_heads = 2, .max_position_embeddings = 64}));
}

TEST_CASE("Network: samples packed into one row give what each gives alone, and padding gives nothing") {
  Network network(SmallConfig());
  auto flats = LoadFlats(network, *RandomWeights(network.config(), 3), at::kFloat);
  Rows samples = {{5, 6, 7, 8, 9}, {11, 12, 13}, {21, 22, 23, 24, 25, 26, 27}};
  double nll = 0;
  std::vector<at::Tensor> grads;
  for (const auto& sample : samples) {
    Pass alone = RunUnits(network, flats, Value(network.Prepare(BatchOf({sample}, {sample}), at::kFloat)));
    nll += alone.loss.nll;
    for (size_t unit = 0; unit < flats.size(); ++unit) {
      at::Tensor sum = alone.grads[unit] * static_cast<double>(alone.loss.targets);
      if (grads.size() <= unit) {
        grads.push_back(sum);
      } else {
        grads[unit].add_(sum);
      }
    }
  }
  MicroBatch packed{.rows = 2, .ctx = 9};
  auto add = [&](int32_t id, int32_t target, int32_t position, int32_t segment) {
    packed.input_ids.push_back(id);
    packed.targets.push_back(target);
    packed.positions.push_back(position);
    packed.segments.push_back(segment);
    packed.target_tokens += target != MicroBatch::kNoTarget;
  };
  auto add_sample = [&](const std::vector<int32_t>& sample, int32_t segment) {
    for (size_t i = 0; i < sample.size(); ++i) add(sample[i], i + 1 < sample.size() ? sample[i + 1] : MicroBatch::kNoTarget, i, segment);
  };
  add_sample(samples[0], 0);
  add_sample(samples[1], 1);
  add(2, MicroBatch::kNoTarget, 0, MicroBatch::kPadding);
  add_sample(samples[2], 0);
  add(2, MicroBatch::kNoTarget, 0, MicroBatch::kPadding);
  add(2, MicroBatch::kNoTarget, 1, MicroBatch::kPadding);
  Pass together = RunUnits(network, flats, Value(network.Prepare(packed, at::kFloat)));
  CHECK(together.loss.targets == 12);
  CHECK(together.loss.nll == Approx(nll).epsilon(1e-6));
  for (size_t unit = 0; unit < flats.size(); ++unit) {
    CHECK(MaxDifference(together.grads[unit] * 12.0, grads[unit]) < 2e-6);
  }
  std::vector<at::Tensor> narrow;
  for (const at::Tensor& flat : flats) narrow.push_back(flat.to(at::kBFloat16));
  Pass in_bf16 = RunUnits(network, narrow, Value(network.Prepare(packed, at::kBFloat16)));
  CHECK(in_bf16.loss.nll == Approx(nll).epsilon(2e-3));
  for (size_t unit = 0; unit < flats.size(); ++unit) {
    at::Tensor gap = in_bf16.grads[unit].to(at::kFloat) * 12.0 - grads[unit];
    CHECK(gap.norm().item<double>() < 0.03 * grads[unit].norm().item<double>());
  }
}

TEST_CASE("Network: a batch without targets has no loss and no gradient") {
  Network network(SmallConfig());
  auto flats = LoadFlats(network, *RandomWeights(network.config(), 3), at::kFloat);
  MicroBatch batch = BatchOf({{5, 6, 7}}, {{-100, -100, -100}});
  Pass pass = RunUnits(network, flats, Value(network.Prepare(batch, at::kFloat)));
  CHECK(pass.loss.nll == 0);
  CHECK(pass.loss.targets == 0);
  for (const at::Tensor& grad : pass.grads) CHECK(grad.abs().max().item<double>() == 0);
}

TEST_CASE("Network: the chunked loss equals the whole one") {
  // 70,000 words make chunks of 239 tokens.
  Network network(Value(ModelConfig::Make({.vocab_size = 70000, .hidden_size = 16, .intermediate_size = 16, .num_hidden_layers = 1,
                                           .num_attention_heads = 2, .num_key_value_heads = 2, .max_position_embeddings = 512})));
  auto flats = LoadFlats(network, *RandomWeights(network.config(), 4), at::kFloat);
  std::vector<int32_t> row(500);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<int32_t>(i * 137 % 70000);
  PreparedBatch batch = Value(network.Prepare(BatchOf({row}, {row}), at::kFloat));
  Pass pass = RunUnits(network, flats, batch);
  at::Tensor logits = pass.logits.view({500, -1}).narrow(0, 0, 499).to(at::kDouble);
  at::Tensor targets = batch.targets_n.unsqueeze(1);
  double whole = -at::log_softmax(logits, -1).gather(1, targets).sum().item<double>();
  CHECK(pass.loss.nll == Approx(whole).epsilon(1e-7));
  at::Tensor grad_logits = at::softmax(logits, -1);
  grad_logits.scatter_add_(1, targets, at::full({499, 1}, -1.0, at::kDouble));
  // Every column of the gradient of the head's matrix sums the rows of d(logits) against the normed hidden states; the sum over the
  // vocabulary is zero for each of them.
  at::Tensor grad = network.HeadMatrix(pass.grads.back(), pass.grads.front());
  CHECK(grad.sum(0).abs().max().item<double>() < 1e-4);
  CHECK(grad.abs().max().item<double>() > 1e-5);
}

TEST_CASE("RandomWeights: any part of a tensor can be made alone, with the right spread") {
  ModelConfig config = SmallConfig();
  ModelLayout layout = MakeLayout(config);
  auto source = RandomWeights(config, 42);
  const UnitLayout& unit = layout.units[1];
  std::vector<float> whole(unit.elements);
  REQUIRE(ReadFlat(*source, unit, 0, whole).ok());
  for (int64_t begin : {0, 64, 1000, 4096}) {
    std::vector<float> part(333);
    REQUIRE(ReadFlat(*source, unit, begin, part).ok());
    CHECK(std::equal(part.begin(), part.end(), whole.begin() + begin));
  }
  const TensorRange* up = unit.Find("mlp.up_proj.weight");
  double sum = 0, square = 0;
  for (int64_t i = 0; i < up->elements; ++i) {
    sum += whole[up->offset + i];
    square += whole[up->offset + i] * whole[up->offset + i];
  }
  CHECK(std::abs(sum / up->elements) < 0.002);
  CHECK(std::sqrt(square / up->elements) == Approx(0.02).epsilon(0.05));
  CHECK(whole[unit.Find("input_layernorm.weight")->offset] == 1.0f);
}

TEST_CASE("GrownVocabulary: old rows stay, new ones start at the mean of the old with a trace of noise") {
  ModelConfig old_config = SmallConfig();
  auto old_source = RandomWeights(old_config, 8);
  ModelConfig config = Value(ModelConfig::Make({.vocab_size = 100, .hidden_size = 32, .intermediate_size = 48, .num_hidden_layers = 2,
                                                .num_attention_heads = 4, .num_key_value_heads = 2, .max_position_embeddings = 64}));
  auto source = Value(GrownVocabulary(*old_source, config, 97, 1));
  ModelLayout layout = MakeLayout(config), old_layout = MakeLayout(old_config);
  for (size_t unit : {size_t{0}, layout.units.size() - 1}) {
    const TensorRange* now = layout.units[unit].Find(unit == 0 ? "embed_tokens.weight" : "lm_head.weight");
    const TensorRange* before = old_layout.units[unit].Find(unit == 0 ? "embed_tokens.weight" : "lm_head.weight");
    std::vector<float> rows(now->elements), old_rows(before->elements);
    REQUIRE(source->Read(*now, 0, rows).ok());
    REQUIRE(old_source->Read(*before, 0, old_rows).ok());
    CHECK(std::equal(old_rows.begin(), old_rows.end(), rows.begin()));
    for (int64_t column = 0; column < 32; ++column) {
      double mean = 0;
      for (int64_t row = 0; row < 97; ++row) mean += old_rows[row * 32 + column] / 97.0;
      for (int64_t row = 97; row < 100; ++row) CHECK(std::abs(rows[row * 32 + column] - mean) < 1e-5);
    }
    CHECK(rows[97 * 32] != rows[98 * 32]);
    std::vector<float> part(50);
    REQUIRE(source->Read(*now, 97 * 32 - 20, part).ok());
    CHECK(std::equal(part.begin(), part.end(), rows.begin() + 97 * 32 - 20));
  }
  CHECK(!GrownVocabulary(*old_source, config, 101, 1).ok());
}

}  // namespace
}  // namespace argosy::train
