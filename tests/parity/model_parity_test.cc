// Our numbers against those that make_models.py had transformers and torch compute, in float64, for the models of a folder:
// tests/parity/models, or $ARGOSY_PARITY_MODELS (any that make_models.py made, under other seeds and shapes).

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/model/unit_pass.h"
#include "train/checkpoint/safetensors.h"
#include "train/collective/group.h"
#include "train/data/batches.h"
#include "train/model/model.h"
#include "train/model/network.h"
#include "train/model/weight_source.h"
#include "train/parallel/engine.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;
using Row = std::vector<int32_t>;
using Rows = std::vector<Row>;

// How far ours may be from float64, in units of what transformers' own float32 run is.
constexpr double kNoiseFactor = 4;
constexpr double kBf16Factor = 1.5;

struct Expected {
  std::string name, directory;
  Json json;
  SafetensorsFile tensors;

  at::Tensor Tensor(const std::string& key) const {
    INFO(key);
    return ReadTensor(tensors, key);
  }
};

std::vector<Expected> Models() {
  SetComputeThreads(1);   // matrices of a few hundred numbers
  const char* given = std::getenv("ARGOSY_PARITY_MODELS");
  std::filesystem::path folder = given ? given : "tests/parity/models";
  std::vector<std::string> directories;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) directories.push_back(entry.path().string());
  std::sort(directories.begin(), directories.end());
  std::vector<Expected> models;
  for (const std::string& directory : directories) {
    models.push_back({std::filesystem::path(directory).filename().string(), directory, Json::parse(Value(ReadFile(directory + "/expected.json"))),
                      Value(SafetensorsFile::Open(directory + "/expected.safetensors"))});
  }
  REQUIRE(!models.empty());
  return models;
}

void Append(MicroBatch& batch, int32_t id, int32_t target, int32_t position, int32_t segment) {
  batch.input_ids.push_back(id);
  batch.targets.push_back(target == -100 ? MicroBatch::kNoTarget : target);
  batch.positions.push_back(position);
  batch.segments.push_back(segment);
  batch.target_tokens += batch.targets.back() != MicroBatch::kNoTarget;
}

// Labels and mask as transformers takes them.
MicroBatch BatchOf(const Rows& ids, const Rows& labels, const Rows& mask = {}) {
  MicroBatch batch{.rows = static_cast<int32_t>(ids.size()), .ctx = static_cast<int32_t>(ids[0].size())};
  for (size_t row = 0; row < ids.size(); ++row) {
    for (size_t i = 0; i < ids[row].size(); ++i) {
      bool shown = mask.empty() || mask[row][i] != 0;
      Append(batch, ids[row][i], i + 1 < ids[row].size() ? labels[row][i + 1] : -100, static_cast<int32_t>(i), shown ? 0 : MicroBatch::kPadding);
    }
  }
  return batch;
}

// All samples in one row, with `padding` tokens behind them.
MicroBatch PackOf(const Rows& samples, int padding) {
  MicroBatch batch{.rows = 1};
  int32_t segment = 0;
  for (const Row& sample : samples) {
    for (size_t i = 0; i < sample.size(); ++i) {
      Append(batch, sample[i], i + 1 < sample.size() ? sample[i + 1] : -100, static_cast<int32_t>(i), segment);
    }
    ++segment;
  }
  for (int i = 0; i < padding; ++i) Append(batch, 2, -100, i, MicroBatch::kPadding);
  batch.ctx = static_cast<int32_t>(batch.input_ids.size());
  return batch;
}

MicroBatch BatchOfCase(const std::string& name, const Json& one) {
  if (name == "packed") {
    Rows samples;
    for (const Json& sample : one["samples"]) samples.push_back(sample.get<Row>());
    return PackOf(samples, 3);
  }
  return BatchOf(one["ids"], one["labels"], one.contains("mask") ? one["mask"].get<Rows>() : Rows());
}

std::vector<at::Tensor> LoadFlats(const Network& network, const std::string& directory, at::ScalarType type) {
  HfWeights weights = Value(HfWeights::Open(directory));
  REQUIRE(weights.Check(network.config().Tensors(DType::kF32)).ok());
  return LoadFlats(network, *WeightsFromHf(weights), type);
}

Pass RunUnits(const Network& network, const std::vector<at::Tensor>& flats, const MicroBatch& micro_batch) {
  return RunUnits(network, flats, Value(network.Prepare(micro_batch, flats.front().scalar_type())));
}

TEST_CASE("Parity: logits, loss and every gradient of plain, padded and packed rows are within fp32's noise of float64") {
  for (const Expected& expected : Models()) {
    INFO(expected.name);
    Network network(Value(ModelConfig::Load(expected.directory)));
    auto flats = LoadFlats(network, expected.directory, at::kFloat);
    double logits_most = 0, grads_most = 0, loss_most = 0;
    for (const auto& [name, one] : expected.json["cases"].items()) {
      INFO(name);
      Pass pass = RunUnits(network, flats, BatchOfCase(name, one));
      at::Tensor want = expected.Tensor(name + ".logits");
      at::Tensor got = name == "packed" ? pass.logits[0].narrow(0, 0, want.size(0)) : pass.logits;
      double logits = MaxDifference(got, want) / one["noise"]["logits"].get<double>();
      CHECK(logits <= kNoiseFactor);
      double loss = pass.loss.nll / static_cast<double>(pass.loss.targets);
      CHECK(loss == Approx(one["loss"].get<double>()).epsilon(1e-6));
      double grads = 0;
      for (size_t unit = 0; unit < flats.size(); ++unit) {
        for (const TensorRange& range : network.layout().units[unit].ranges) {
          INFO(range.name);
          double gap = MaxDifference(network.View(unit, range.name, pass.grads[unit]), expected.Tensor(name + ".grad." + range.name));
          gap /= one["noise"]["grads"].get<double>();
          CHECK(gap <= kNoiseFactor);
          grads = std::max(grads, gap);
        }
      }
      logits_most = std::max(logits_most, logits);
      grads_most = std::max(grads_most, grads);
      loss_most = std::max(loss_most, std::abs(loss / one["loss"].get<double>() - 1));
    }
    std::cout << fmt::format("{:24} logits {:.1f} x noise, gradients {:.1f} x noise, loss {:.1e}\n", expected.name, logits_most, grads_most, loss_most);
  }
}

TEST_CASE("Parity: in bf16, logits and gradients are as near to float64 as transformers' own") {
  for (const Expected& expected : Models()) {
    INFO(expected.name);
    Network network(Value(ModelConfig::Load(expected.directory)));
    auto flats = LoadFlats(network, expected.directory, at::kBFloat16);
    double logits_most = 0, grads_most = 0;
    for (const auto& [name, one] : expected.json["cases"].items()) {
      INFO(name);
      Pass pass = RunUnits(network, flats, BatchOfCase(name, one));
      at::Tensor want = expected.Tensor(name + ".logits");
      at::Tensor got = name == "packed" ? pass.logits[0].narrow(0, 0, want.size(0)) : pass.logits;
      double logits = (got.to(at::kDouble) - want).norm().item<double>() / one["bf16"]["logits"].get<double>();
      CHECK(logits <= kBf16Factor);
      double squares = 0;
      for (size_t unit = 0; unit < flats.size(); ++unit) {
        for (const TensorRange& range : network.layout().units[unit].ranges) {
          at::Tensor gap = network.View(unit, range.name, pass.grads[unit]).to(at::kDouble) - expected.Tensor(name + ".grad." + range.name);
          squares += gap.square().sum().item<double>();
        }
      }
      double grads = std::sqrt(squares) / one["bf16"]["grads"].get<double>();
      CHECK(grads <= kBf16Factor);
      logits_most = std::max(logits_most, logits);
      grads_most = std::max(grads_most, grads);
    }
    std::cout << fmt::format("{:24} in bf16: logits {:.2f} x, gradients {:.2f} x transformers' own gap\n", expected.name, logits_most, grads_most);
  }
}

TEST_CASE("Parity: greedy generation with the key-value cache is transformers', also past the trained length") {
  for (const Expected& expected : Models()) {
    INFO(expected.name);
    auto model = Value(Model::Load(expected.directory, DType::kF32));
    Row prompt = expected.json["greedy"]["prompt"], continuation = expected.json["greedy"]["continuation"];
    int64_t count = static_cast<int64_t>(continuation.size());
    CHECK(Value(model->Generate(prompt, {.max_new_tokens = count, .ignore_stop = true})) == continuation);
  }
}

TEST_CASE("Parity: six AdamW steps with accumulation, clipping and warm-up are those of torch in float64") {
  for (const Expected& expected : Models()) {
    for (int stage : {0, 3}) {
      INFO(expected.name << ", stage " << stage);
      ModelConfig config = Value(ModelConfig::Load(expected.directory));
      HfWeights weights = Value(HfWeights::Open(expected.directory));
      auto group = MakeLoopbackGroup();
      EngineOptions options{.zero_stage = stage, .weight_decay = 0.01, .decay_vectors = false, .max_grad_norm = 0.5};
      auto engine = Value(Engine::Create(config, *WeightsFromHf(weights), group.get(), options));
      const Json& train = expected.json["train"];
      std::vector<std::vector<Rows>> batches = train["batches"];
      double loss_gap = 0, norm_gap = 0, weight_gap = 0;
      int64_t weight_count = 0;
      for (size_t step = 0; step < train["log"].size(); ++step) {
        const Json& want = train["log"][step];
        std::vector<MicroBatch> micro_batches;
        for (const Rows& rows : batches[step % batches.size()]) micro_batches.push_back(BatchOf(rows, rows));
        StepResult result = Value(engine->TrainStep(micro_batches, want["lr"].get<double>()));
        INFO("step " << step);
        CHECK(result.loss == Approx(want["loss"].get<double>()).epsilon(2e-6));
        CHECK(result.grad_norm == Approx(want["grad_norm"].get<double>()).epsilon(2e-5));
        loss_gap = std::max(loss_gap, std::abs(result.loss / want["loss"].get<double>() - 1));
        norm_gap = std::max(norm_gap, std::abs(result.grad_norm / want["grad_norm"].get<double>() - 1));
      }
      REQUIRE(engine->Flush().ok());
      for (const Extent& extent : engine->ExtentsOf(0)) {
        std::vector<float> got(static_cast<size_t>(extent.count));
        REQUIRE(engine->ReadWeights(extent, std::as_writable_bytes(std::span(got))).ok());
        at::Tensor want = expected.Tensor("trained." + extent.tensor).view({-1}).narrow(0, extent.begin, extent.count);
        at::Tensor ours = at::from_blob(got.data(), {extent.count}, at::kFloat);
        weight_gap += (ours - want).abs().sum(at::kDouble).item<double>();
        weight_count += extent.count;
      }
      // Where a gradient is nearly zero, Adam divides noise by noise: the mean over the model tells.
      weight_gap /= static_cast<double>(weight_count);
      CHECK(weight_gap < 5e-7);
      std::cout << fmt::format("{:24} stage {}: losses {:.1e}, norms {:.1e}, weights {:.1e} (mean absolute)\n", expected.name, stage, loss_gap, norm_gap,
                               weight_gap);
    }
  }
}

}  // namespace
}  // namespace argosy::train
