#pragma once

// A model's units run one by one as the engine runs them, for tests that compare what comes out with other libraries.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/catch.h"
#include "train/checkpoint/safetensors.h"
#include "train/model/network.h"
#include "train/model/weight_source.h"

namespace argosy::train {

template <class T>
T Value(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return std::move(value).value();
}

inline at::Tensor ReadTensor(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* stored = file.Find(name);
  REQUIRE(stored != nullptr);
  at::Tensor tensor = at::empty(stored->shape, at::kFloat);
  REQUIRE(stored->dtype == DType::kF32);
  REQUIRE(file.ReadBytes(*stored, 0, {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(stored->bytes)}).ok());
  return tensor;
}

inline std::vector<at::Tensor> LoadFlats(const Network& network, const WeightSource& source, at::ScalarType type) {
  std::vector<at::Tensor> flats;
  for (const UnitLayout& unit : network.layout().units) {
    at::Tensor flat = at::empty({unit.elements}, at::kFloat);
    REQUIRE(ReadFlat(source, unit, 0, {flat.data_ptr<float>(), static_cast<size_t>(unit.elements)}).ok());
    flats.push_back(flat.to(type));
  }
  return flats;
}

struct Pass {
  LossSum loss;
  at::Tensor logits;
  std::vector<at::Tensor> grads;  // flat, by unit
};

// Forward, and backward unit by unit, of the mean loss: the engine's order without the engine.
inline Pass RunUnits(const Network& network, const std::vector<at::Tensor>& flats, const PreparedBatch& batch) {
  at::NoGradGuard no_grad;
  Pass pass;
  for (const at::Tensor& flat : flats) pass.grads.push_back(at::zeros_like(flat));
  std::vector<at::Tensor> hidden = {network.Embed(flats.front(), batch)};
  for (int64_t i = 0; i < network.layers(); ++i) hidden.push_back(network.Layer(i, flats[i + 1], hidden.back(), batch));
  at::Tensor matrix = network.HeadMatrix(flats.back(), flats.front());
  pass.logits = network.Logits(flats.back(), matrix, hidden.back());
  HeadGradients head{.scale = 1.0 / static_cast<double>(batch.targets_n.size(0)),
                     .head_flat = pass.grads.back(),
                     .matrix_VD = network.HeadMatrix(pass.grads.back(), pass.grads.front())};
  pass.loss = network.Loss(flats.back(), matrix, hidden.back(), batch, &head);
  at::Tensor grad = head.hidden_BTD;
  for (int64_t i = network.layers() - 1; i >= 0; --i) {
    grad = network.LayerBackward(i, flats[i + 1], hidden[i], grad, batch, pass.grads[i + 1]);
  }
  network.EmbedBackward(grad, batch, pass.grads.front());
  return pass;
}

inline double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace argosy::train
