#include "train/model/network.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/model/tiny_assets.h"
#include "tests/unit/train/model/unit_pass.h"
#include "train/checkpoint/safetensors.h"
#include "train/model/kernels.h"
#include "train/model/model.h"
#include "train/model/row_kernels.h"
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
    std::vector<int32_t> foreign = {1, static_cast<int32_t>(model->config().vocab_size)};
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

// A gradient by autograd in float64 of sum(formula(inputs) * grad_out): what the kernels are held to.
std::vector<at::Tensor> Oracle(std::vector<at::Tensor> inputs, const at::Tensor& grad_out, const std::function<at::Tensor(const std::vector<at::Tensor>&)>& formula,
                               at::Tensor& out) {
  at::AutoGradMode recording(true);
  for (at::Tensor& input : inputs) input = input.detach().to(at::kDouble).clone().requires_grad_(true);
  at::Tensor result = formula(inputs);
  result.backward(grad_out.to(at::kDouble));
  out = result.detach();
  std::vector<at::Tensor> grads;
  for (const at::Tensor& input : inputs) grads.push_back(input.grad());
  return grads;
}

double Gap(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).norm().item<double>() / std::max(want.norm().item<double>(), 1e-30);
}

struct Precision {
  at::ScalarType type;
  double gap;
};
constexpr Precision kPrecisions[] = {{at::kFloat, 2e-6}, {at::kBFloat16, 8e-3}};

at::Tensor Normal(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator).to(type);
}

TEST_CASE("Kernels: exp is right to a few units in the last place, also where it underflows") {
  for (float x = -87.0f; x < 88.3f; x += 0.00731f) {
    double want = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(rows::Exp(x) - want) <= 2.5e-7 * want);
  }
  CHECK(rows::Exp(-1000.0f) < 1e-37f);
  CHECK(std::isfinite(rows::Exp(1000.0f)));
  CHECK(rows::Exp(0.0f) == 1.0f);
  CHECK(std::isnan(rows::Exp(std::nanf(""))));
}

TEST_CASE("Kernels: norms, rotary embedding and SwiGLU are the formula in float64, forward and backward, for odd widths too") {
  at::NoGradGuard no_grad;
  for (Precision precision : kPrecisions) {
    for (int64_t width : {8, 10, 96, 577}) {
      INFO(c10::toString(precision.type) << ", width " << width);
      at::Tensor x = Normal({3, 47, width}, precision.type, 1), w = Normal({width}, precision.type, 2), g = Normal({3, 47, width}, precision.type, 3),
                 add = Normal({3, 47, width}, precision.type, 4), inverse, want;
      auto norm = [](const std::vector<at::Tensor>& in) { return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-5) * in[1]; };
      std::vector<at::Tensor> grads = Oracle({x, w}, g, norm, want);
      CHECK(Gap(kernels::RmsNorm(x, w, 1e-5, inverse), want) < precision.gap);
      at::Tensor grad_w;
      CHECK(Gap(kernels::RmsNormBackward(x, w, inverse, g, add, grad_w), grads[0] + add.to(at::kDouble)) < precision.gap);
      CHECK(Gap(grad_w, grads[1]) < precision.gap);

      grads = Oracle({x, add}, g, [](const std::vector<at::Tensor>& in) { return at::silu(in[0]) * in[1]; }, want);
      CHECK(Gap(kernels::SwiGlu(x, add), want) < precision.gap);
      at::Tensor gate = x.clone(), up = add.clone();
      CHECK(Gap(kernels::SwiGluBackward(gate, up, g), want) < precision.gap);
      CHECK(Gap(gate, grads[0]) < precision.gap);
      CHECK(Gap(up, grads[1]) < precision.gap);
    }
    for (int64_t angle_rows : {1, 2}) {
      const int64_t B = 2, T = 33, N = 3, H = 10;
      at::Tensor angles = Normal({angle_rows, 1, T, H / 2}, at::kDouble, 5), both = at::cat({angles, angles}, -1);
      at::Tensor cos = both.cos().to(precision.type), sin = both.sin().to(precision.type), x = Normal({B, T, N, H}, precision.type, 6),
                 g = Normal({B, N, T, H}, precision.type, 7), want;
      auto rotate = [&](const std::vector<at::Tensor>& in) {
        at::Tensor turned = in[0].transpose(1, 2), half = at::cat({turned.narrow(-1, H / 2, H / 2).neg(), turned.narrow(-1, 0, H / 2)}, -1);
        return turned * cos.to(at::kDouble) + half * sin.to(at::kDouble);
      };
      std::vector<at::Tensor> grads = Oracle({x}, g, rotate, want);
      CHECK(Gap(kernels::Rotate(x, cos, sin), want) < precision.gap);
      CHECK(Gap(kernels::RotateBackward(g, cos, sin), grads[0]) < precision.gap);
    }
  }
}

TEST_CASE("Kernels: attention with segments, windows, shared key heads and tokens that see nothing is softmax attention in float64, across blocks") {
  at::NoGradGuard no_grad;
  const int64_t B = 2, H = 12;
  for (Precision precision : kPrecisions) {
    for (auto [N, K] : {std::pair<int64_t, int64_t>{4, 4}, {6, 2}, {3, 1}}) {
      for (int64_t T : {5, 128, 300}) {
        for (int64_t window : {0, 70}) {
          // Row 0: samples of 1, 2, 4, ... tokens; row 1: padding on the left, whose tokens see nothing.
          kernels::Visible visible{.rows = B};
          for (int64_t t = 0, begin = 0, length = 1; t < T; ++t) {
            if (t == begin + length) begin = t, length *= 2;
            visible.first.push_back(static_cast<int32_t>(std::max(begin, window > 0 ? t - window + 1 : 0)));
            visible.end.push_back(static_cast<int32_t>(t + 1));
          }
          const int64_t padding = T / 3;
          for (int64_t t = 0; t < T; ++t) {
            visible.first.push_back(static_cast<int32_t>(t < padding ? 0 : std::max(padding, window > 0 ? t - window + 1 : 0)));
            visible.end.push_back(static_cast<int32_t>(t < padding ? 0 : t + 1));
          }
          at::Tensor hidden = at::full({B, 1, T, T}, -1e30, at::kDouble);
          for (int64_t i = 0; i < B * T; ++i) {
            hidden.select(0, i / T).select(0, 0).select(0, i % T).narrow(0, visible.first[i], visible.end[i] - visible.first[i]).zero_();
          }
          at::Tensor q = Normal({B, N, T, H}, precision.type, 1), k = Normal({B, K, T, H}, precision.type, 2), v = Normal({B, K, T, H}, precision.type, 3),
                     g = Normal({B, T, N, H}, precision.type, 4), want, log_sums;
          auto attend = [&](const std::vector<at::Tensor>& in) {
            auto repeat = [&](const at::Tensor& x) { return x.unsqueeze(2).expand({B, K, N / K, T, H}).reshape({B, N, T, H}); };
            return at::matmul(at::softmax(at::matmul(in[0], repeat(in[1]).transpose(2, 3)) * 0.3 + hidden, -1), repeat(in[2])).transpose(1, 2);
          };
          std::vector<at::Tensor> grads = Oracle({q, k, v}, g, attend, want);
          INFO(c10::toString(precision.type) << ", " << N << " heads on " << K << ", " << T << " tokens, window " << window);
          at::Tensor out = kernels::Attention(q, k, v, visible, 0.3, log_sums);
          CHECK(Gap(out, want) < precision.gap);
          kernels::AttentionGradients got = kernels::AttentionBackward(q, k, v, visible, 0.3, log_sums, g);
          CHECK(Gap(got.q_BNTH, grads[0]) < 2 * precision.gap);
          CHECK(Gap(got.k_BKTH, grads[1]) < 2 * precision.gap);
          CHECK(Gap(got.v_BKTH, grads[2]) < 2 * precision.gap);
        }
      }
    }
  }
}

TEST_CASE("Kernels: cross-entropy and its gradient are log-softmax's in float64, for scores of any size") {
  at::NoGradGuard no_grad;
  for (Precision precision : kPrecisions) {
    for (double size : {1.0, 60.0}) {
      at::Tensor logits = (Normal({37, 1003}, at::kFloat, 1) * size).to(precision.type), targets = at::randint(1003, {37}, at::kLong), want;
      std::vector<at::Tensor> grads = Oracle({logits}, at::full({}, 0.25, at::kDouble), [&](const std::vector<at::Tensor>& in) {
        return at::log_softmax(in[0], -1).gather(1, targets.unsqueeze(1)).sum().neg();
      }, want);
      at::Tensor kept = logits.clone();
      double nll = kernels::CrossEntropy(kept, targets, 0.0);
      CHECK(nll == Approx(want.item<double>()).epsilon(1e-6));
      CHECK(at::equal(kept, logits));
      CHECK(kernels::CrossEntropy(kept, targets, 0.25) == nll);
      CHECK(Gap(kept, grads[0]) < precision.gap);
    }
  }
}

TEST_CASE("Kernels: the loss of a linear layer in chunks of tokens, and its gradients, are those of whole logits in float64") {
  at::NoGradGuard no_grad;
  // 70,000 words: three chunks of 100 tokens in fp32, two of 150 in bf16; 7,000 make one.
  for (int64_t vocabulary : {7'000, 70'000}) {
    for (Precision precision : kPrecisions) {
      INFO(c10::toString(precision.type) << ", " << vocabulary << " words");
      const int64_t tokens = 300, D = 12;
      at::Tensor hidden = Normal({tokens, D}, precision.type, 1), matrix = Normal({vocabulary, D}, precision.type, 2), want;
      at::Tensor targets = at::arange(tokens, at::kLong).mul_(vocabulary / tokens), before = Normal({vocabulary, D}, at::kFloat, 3) * 1e-3;
      std::vector<at::Tensor> grads = Oracle({hidden, matrix}, at::full({}, 0.25, at::kDouble), [&](const std::vector<at::Tensor>& in) {
        return at::log_softmax(at::mm(in[0], in[1].t()), -1).gather(1, targets.unsqueeze(1)).sum().neg();
      }, want);
      // Logits are rounded to bf16.
      const double loss_gap = precision.type == at::kFloat ? 1e-6 : 1e-3;
      CHECK(kernels::LinearCrossEntropy(hidden, matrix, targets) == Approx(want.item<double>()).epsilon(loss_gap));
      for (at::ScalarType type : {at::kFloat, precision.type}) {
        kernels::LinearCrossEntropyGradients got{.scale = 0.25, .matrix_VD = before.to(type, /*non_blocking=*/false, /*copy=*/true)};
        CHECK(kernels::LinearCrossEntropy(hidden, matrix, targets, &got) == Approx(want.item<double>()).epsilon(loss_gap));
        CHECK(Gap(got.matrix_VD, before.to(type).to(at::kDouble) + grads[1]) < 2 * precision.gap);
        CHECK(Gap(got.hidden_nD, grads[0]) < 4 * precision.gap);   // a sum over the vocabulary
      }
      CHECK(kernels::LinearCrossEntropy(hidden.narrow(0, 0, 0), matrix, targets.narrow(0, 0, 0)) == 0);
    }
  }
}

TEST_CASE("Network: a layer's gradients have the same bits whatever of it is computed again, also with norms of the heads and biases") {
  at::NoGradGuard no_grad;
  const std::string shape = R"("hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0)";
  for (const char* kind : {R"("model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"])", R"("model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"])",
                                  R"("model_type": "llama", "attention_bias": true, "mlp_bias": true, "architectures": ["LlamaForCausalLM"])"}) {
    Network network(Value(ModelConfig::Parse("{" + std::string(kind) + ", " + shape + "}")));
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      INFO(kind << ", " << c10::toString(type));
      at::Tensor flat = LoadFlats(network, *RandomWeights(network.config(), 3), type)[1], input = Normal({2, 9, 48}, type, 4), grad_out = Normal({2, 9, 48}, type, 5);
      flat.add_(Normal(flat.sizes(), type, 6) * 0.05);   // biases too
      std::vector<int32_t> row = {1, 2, 3, 4, 5, 6, 7, 8, 9};
      PreparedBatch batch = Value(network.Prepare(BatchOf({row, row}, {row, row}), type));
      at::Tensor want_flat = at::zeros_like(flat), want = network.LayerBackward(0, flat, input, grad_out, batch, want_flat);
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
        std::shared_ptr<LayerTape> tape = network.RecordLayer(0, flat, input, batch, recompute);
        CHECK(at::equal(Network::OutputOf(*tape), network.Layer(0, flat, input, batch)));
        at::Tensor got_flat = at::zeros_like(flat), got = network.Backward(*tape, 0, flat, grad_out, got_flat);
        CHECK(at::equal(got, want));
        CHECK(at::equal(got_flat, want_flat));
      }
      CHECK(want_flat.abs().max().item<double>() > 0);
    }
  }
}

TEST_CASE("Network: segments that are not runs are refused") {
  Network network(SmallConfig());
  auto prepare = [&](std::vector<int32_t> segments) {
    const auto tokens = static_cast<int32_t>(segments.size());
    MicroBatch batch{.rows = 1, .ctx = tokens, .input_ids = std::vector<int32_t>(segments.size(), 5), .targets = std::vector<int32_t>(segments.size(), -100),
                     .positions = std::vector<int32_t>(segments.size(), 0), .segments = std::move(segments)};
    return network.Prepare(batch, at::kFloat).status();
  };
  CHECK(prepare({-1, 0, 0, 1}).ok());
  CHECK(prepare({0, 1, 1, -1, -1}).ok());
  CHECK(Message(prepare({0, 1, 0})).find("segment 0 in several places") != std::string::npos);
  CHECK_FALSE(prepare({0, -1, 1}).ok());
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
  // 70,000 words make five chunks of 100 tokens.
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
