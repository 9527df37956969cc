#include "train/model/network.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// Frequencies of the rotary embedding in fp32, as modeling_rope_utils.py computes them. `length`: positions in use, for kDynamic.
at::Tensor InverseFrequencies(const ModelConfig& config, int64_t length) {
  const RopeConfig& rope = config.rope;
  double theta = rope.theta;
  double dim = static_cast<double>(config.head_dim);
  if (rope.type == RopeType::kDynamic && length > config.max_position_embeddings) {
    double stretch = rope.factor * static_cast<double>(length) / static_cast<double>(config.max_position_embeddings);
    theta *= std::pow(stretch - (rope.factor - 1), dim / (dim - 2));
  }
  at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat).div(dim);
  at::Tensor frequencies = at::pow(theta, exponents).reciprocal();
  if (rope.type == RopeType::kLinear) frequencies = frequencies.div(rope.factor);
  if (rope.type == RopeType::kLlama3) {
    float* f = frequencies.data_ptr<float>();
    double old_length = static_cast<double>(rope.original_max_position_embeddings);
    for (int64_t i = 0; i < frequencies.numel(); ++i) {
      double wavelength = 2 * std::numbers::pi / f[i];
      if (wavelength > old_length / rope.low_freq_factor) {
        f[i] = static_cast<float>(f[i] / rope.factor);
      } else if (wavelength >= old_length / rope.high_freq_factor) {
        double smooth = (old_length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        f[i] = static_cast<float>((1 - smooth) * f[i] / rope.factor + smooth * f[i]);
      }
    }
  }
  return frequencies;
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

double ScoreScale(const ModelConfig& config) { return 1.0 / std::sqrt(static_cast<double>(config.head_dim)); }

// [B, K, S, H] -> [B, K * times, S, H]; query heads g*times .. g*times+times-1 use key head g.
at::Tensor RepeatHeads(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  auto s = x.sizes();
  return x.unsqueeze(2).expand({s[0], s[1], times, s[2], s[3]}).reshape({s[0], s[1] * times, s[2], s[3]});
}

}  // namespace

at::ScalarType TorchType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF64:
      return at::kDouble;
    default:
      ARGOSY_CHECK(false, "{} is no type of the computation", TorchName(dtype));
  }
}

absl::StatusOr<at::Tensor> ReadFlatTensor(const WeightSource& source, const UnitLayout& unit, int64_t begin, int64_t end, at::ScalarType type) {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<float> block;
  at::Tensor read = at::empty({end - begin}, type);
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    block.resize(static_cast<size_t>(count));
    ARGOSY_RETURN_IF_ERROR(ReadFlat(source, unit, at, block));
    read.narrow(0, at - begin, count).copy_(at::from_blob(block.data(), {count}, at::kFloat));
  }
  return read;
}

Network::Network(ModelConfig config) : config_(std::move(config)), layout_(MakeLayout(config_)) {
  constexpr std::array<std::string_view, kSlots> kNames = {
      "input_layernorm.weight",    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
      "self_attn.o_proj.weight",   "self_attn.q_proj.bias",   "self_attn.k_proj.bias",   "self_attn.v_proj.bias",
      "self_attn.o_proj.bias",     "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
      "mlp.gate_proj.weight",      "mlp.up_proj.weight",      "mlp.down_proj.weight",    "mlp.gate_proj.bias",
      "mlp.up_proj.bias",          "mlp.down_proj.bias"};
  for (int64_t i = 0; i < layers(); ++i) {
    auto& ranges = layer_ranges_.emplace_back();
    for (size_t slot = 0; slot < kSlots; ++slot) ranges[slot] = layout_.units[i + 1].Find(kNames[slot]);
  }
}

Network::Network(ModelConfig config, AdapterLayout adapters) : Network(std::move(config)) {
  adapters_ = std::move(adapters);
  for (int64_t i = 0; i < layers(); ++i) {
    auto& trained = layer_trained_.emplace_back();
    const UnitAdapters& unit = adapters_->units[i + 1];
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (layer_ranges_[i][slot] == nullptr) continue;
      trained[slot].whole = unit.FindWhole(layer_ranges_[i][slot]->name);
      for (const AdaptedModule& module : unit.modules) {
        if (module.tensor == layer_ranges_[i][slot]->name) trained[slot].module = &module;
      }
    }
  }
}

absl::StatusOr<PreparedBatch> Network::Prepare(const MicroBatch& batch, at::ScalarType type) const {
  PreparedBatch out;
  out.rows = batch.rows;
  out.ctx = batch.ctx;
  int64_t tokens = out.rows * out.ctx;
  for (const auto* values : {&batch.input_ids, &batch.targets, &batch.positions, &batch.segments}) {
    if (static_cast<int64_t>(values->size()) != tokens) {
      return InvalidArgument("a micro-batch of {} x {} tokens has an array of {}", out.rows, out.ctx, values->size());
    }
  }
  std::vector<int64_t> index, targets;
  for (int64_t i = 0; i < tokens; ++i) {
    int64_t id = batch.input_ids[i], target = batch.targets[i];
    if (id < 0 || id >= config_.vocab_size || target >= config_.vocab_size || (target < 0 && target != MicroBatch::kNoTarget)) {
      return InvalidArgument("row {}, token {}: id {} with target {} in a vocabulary of {}", i / out.ctx, i % out.ctx, id, target,
                             config_.vocab_size);
    }
    if (target == MicroBatch::kNoTarget) continue;
    index.push_back(i);
    targets.push_back(target);
  }
  out.ids_BT = at::tensor(at::ArrayRef<int32_t>(batch.input_ids), at::kLong).view({out.rows, out.ctx});
  out.target_index_n = at::tensor(at::ArrayRef<int64_t>(index), at::kLong);
  out.targets_n = at::tensor(at::ArrayRef<int64_t>(targets), at::kLong);
  bool same = true;
  for (int64_t i = out.ctx; i < tokens && same; ++i) same = batch.positions[i] == batch.positions[i - out.ctx];
  int64_t position_rows = same ? std::min<int64_t>(1, out.rows) : out.rows;
  int64_t last = tokens == 0 ? 0 : *std::max_element(batch.positions.begin(), batch.positions.end());
  at::Tensor positions = at::tensor(at::ArrayRef<int32_t>(batch.positions), at::kFloat)
                             .narrow(0, 0, position_rows * out.ctx)
                             .view({position_rows, out.ctx});
  SetRotary(out, positions, last + 1, type);
  ARGOSY_RETURN_IF_ERROR(SetVisible(out, batch.segments.data()));
  return out;
}

absl::StatusOr<PreparedBatch> Network::PrepareRow(std::span<const int32_t> ids, at::ScalarType type, int64_t cache_row) const {
  PreparedBatch out{.rows = 1, .ctx = static_cast<int64_t>(ids.size()), .cache_row = cache_row};
  ARGOSY_RETURN_IF_ERROR(CheckIds(ids));
  out.ids_BT = at::tensor(at::ArrayRef<int32_t>(ids.data(), ids.size()), at::kLong).view({1, out.ctx});
  SetRotary(out, at::arange(out.ctx, at::kFloat).view({1, out.ctx}), out.ctx, type);
  ARGOSY_RETURN_IF_ERROR(SetVisible(out, nullptr));
  SetMasks(out, type);
  return out;
}

absl::StatusOr<PreparedBatch> Network::PrepareNext(std::span<const int32_t> ids, const KvCache& cache, at::ScalarType type) const {
  auto rows = static_cast<int64_t>(ids.size());
  PreparedBatch out{.rows = rows, .ctx = 1};
  ARGOSY_RETURN_IF_ERROR(CheckIds(ids));
  out.ids_BT = at::tensor(at::ArrayRef<int32_t>(ids.data(), ids.size()), at::kLong).view({rows, 1});
  // Row by row: with dynamic scaling a row's frequencies depend on its length.
  std::vector<at::Tensor> cosines, sines;
  for (int64_t length : cache.lengths) {
    SetRotary(out, at::full({1, 1}, static_cast<double>(length), at::kFloat), length + 1, type);
    cosines.push_back(out.cos_b1TH);
    sines.push_back(out.sin_b1TH);
  }
  out.cos_b1TH = at::cat(cosines);
  out.sin_b1TH = at::cat(sines);

  int64_t seen_max = cache.Longest() + 1;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    int64_t window = config_.layer_windows[layer];
    auto known = std::find_if(out.attention.begin(), out.attention.end(), [&](auto& a) { return a.window == window; });
    out.attention_of_layer.push_back(known - out.attention.begin());
    if (known != out.attention.end()) continue;
    PreparedBatch::Attention attention{.window = window, .causal = false};
    at::Tensor mask = at::zeros({rows, 1, 1, seen_max}, at::kFloat);
    bool all_seen = true;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t end = cache.lengths[row] + 1, first = window == 0 ? 0 : std::max<int64_t>(0, end - window);
      all_seen = all_seen && first == 0 && end == seen_max;
      float* of_row = mask.data_ptr<float>() + row * seen_max;
      std::fill(of_row, of_row + first, -std::numeric_limits<float>::infinity());
      std::fill(of_row + end, of_row + seen_max, -std::numeric_limits<float>::infinity());
    }
    if (!all_seen) attention.mask_b1TT = mask.to(type);
    out.attention.push_back(std::move(attention));
  }
  return out;
}

absl::Status Network::CheckIds(std::span<const int32_t> ids) const {
  for (int32_t id : ids) {
    if (id < 0 || id >= config_.vocab_size) return InvalidArgument("id {} in a vocabulary of {}", id, config_.vocab_size);
  }
  return absl::OkStatus();
}

int64_t KvCache::Longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }

void KvCache::Extend(int64_t layer, const PreparedBatch& batch, at::Tensor& k_BKTH, at::Tensor& v_BKTH) const {
  for (auto [all, fresh] : {std::pair{&keys_BKSH[layer], &k_BKTH}, std::pair{&values_BKSH[layer], &v_BKTH}}) {
    if (batch.cache_row >= 0) {
      // A prompt looks at nothing but itself.
      all->select(0, batch.cache_row).narrow(1, 0, batch.ctx).copy_(fresh->select(0, 0));
      continue;
    }
    for (int64_t row = 0; row < batch.rows; ++row) all->select(0, row).narrow(1, lengths[row], 1).copy_(fresh->select(0, row));
    *fresh = all->narrow(2, 0, Longest() + 1);
  }
}

void Network::SetRotary(PreparedBatch& batch, const at::Tensor& positions_bT, int64_t length, at::ScalarType type) const {
  at::Tensor angles = positions_bT.unsqueeze(-1) * InverseFrequencies(config_, length);
  angles = at::cat({angles, angles}, -1).unsqueeze(1);
  batch.cos_b1TH = angles.cos().to(type);
  batch.sin_b1TH = angles.sin().to(type);
}

// Which keys a token may see: itself and what is before it, within the layer's window, of its own segment, and no padding. A padding
// token sees every sample's tokens before it; in a left-padded row there are none, and transformers' eager attention, which adds the
// least fp32 number to every score there, then weighs all tokens of the row alike.
absl::Status Network::SetVisible(PreparedBatch& batch, const int32_t* segments) const {
  const int64_t B = batch.rows, T = batch.ctx;
  bool plain = true;
  if (segments != nullptr) {
    for (int64_t i = 0; i < B * T && plain; ++i) plain = segments[i] == segments[i - i % T] && segments[i] != MicroBatch::kPadding;
  }
  const int64_t rows = plain ? 1 : B;
  // Of each token the run of its segment that it stands in; of a padding token, all that is no padding.
  std::vector<int32_t> run_first(static_cast<size_t>(rows * T), 0), run_end(static_cast<size_t>(rows * T), static_cast<int32_t>(T));
  for (int64_t row = 0; row < rows && !plain; ++row) {
    const int32_t* segment = segments + row * T;
    std::vector<int32_t> seen;
    int64_t used_first = T, used_end = 0;
    for (int64_t begin = 0, end; begin < T; begin = end) {
      for (end = begin; end < T && segment[end] == segment[begin]; ++end) {}
      if (segment[begin] == MicroBatch::kPadding) continue;
      if (std::find(seen.begin(), seen.end(), segment[begin]) != seen.end() || (used_end > 0 && used_end != begin)) {
        return InvalidArgument("row {} has segment {} in several places, or padding between samples", row, segment[begin]);
      }
      seen.push_back(segment[begin]);
      used_first = std::min(used_first, begin);
      used_end = end;
      for (int64_t i = begin; i < end; ++i) {
        run_first[row * T + i] = static_cast<int32_t>(begin);
        run_end[row * T + i] = static_cast<int32_t>(end);
      }
    }
    for (int64_t i = 0; i < T; ++i) {
      if (segment[i] != MicroBatch::kPadding) continue;
      run_first[row * T + i] = static_cast<int32_t>(used_first);
      run_end[row * T + i] = static_cast<int32_t>(used_end);
    }
  }
  for (int64_t layer = 0; layer < layers(); ++layer) {
    int64_t window = config_.layer_windows[layer];
    if (window >= T) window = 0;
    auto known = std::find_if(batch.attention.begin(), batch.attention.end(), [&](auto& a) { return a.window == window; });
    batch.attention_of_layer.push_back(known - batch.attention.begin());
    if (known != batch.attention.end()) continue;
    PreparedBatch::Attention attention{.window = window};
    attention.visible.rows = rows;
    for (int64_t i = 0; i < rows * T; ++i) {
      const int64_t t = i % T;
      int64_t first = std::max<int64_t>(run_first[i], window == 0 ? 0 : t - window + 1), end = std::min<int64_t>(run_end[i], t + 1);
      if (first >= end) first = end = 0;
      attention.visible.first.push_back(static_cast<int32_t>(first));
      attention.visible.end.push_back(static_cast<int32_t>(end));
    }
    batch.attention.push_back(std::move(attention));
  }
  return absl::OkStatus();
}

// The same as masks, for a prompt whose keys go into a cache.
void Network::SetMasks(PreparedBatch& batch, at::ScalarType type) const {
  const int64_t T = batch.ctx;
  for (PreparedBatch::Attention& attention : batch.attention) {
    attention.causal = attention.window == 0;
    if (attention.causal) continue;
    at::Tensor hidden = at::ones({T, T}, at::kBool);
    for (int64_t i = 0; i < T; ++i) hidden.select(0, i).narrow(0, attention.visible.first[i], attention.visible.end[i] - attention.visible.first[i]).fill_(false);
    attention.mask_b1TT = at::zeros({1, 1, T, T}, type).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
}

at::Tensor Network::View(size_t unit, std::string_view suffix, const at::Tensor& flat) const {
  const TensorRange* range = layout_.units[unit].Find(suffix);
  ARGOSY_CHECK(range != nullptr, "unit {} has no {}", unit, suffix);
  return flat.narrow(0, range->offset, range->elements).view(range->shape);
}

at::Tensor Network::TrainedView(size_t unit, size_t range, const at::Tensor& flat) const {
  const TensorRange& place = adapters_->units[unit].layout.ranges[range];
  return flat.narrow(0, place.offset, place.elements).view(place.shape);
}

at::Tensor Network::Weight(size_t unit, std::string_view suffix, const UnitWeights& weights) const {
  const TensorRange* range = layout_.units[unit].Find(suffix);
  const WholeTensor* whole = adapters_ && range != nullptr ? adapters_->units[unit].FindWhole(range->name) : nullptr;
  return whole == nullptr ? View(unit, suffix, weights.base) : TrainedView(unit, whole->range, weights.adapter).to(weights.base.scalar_type());
}

at::Tensor Network::WeightGradient(size_t unit, std::string_view suffix, const UnitWeights& gradients) const {
  const TensorRange* range = layout_.units[unit].Find(suffix);
  const WholeTensor* whole = adapters_ && range != nullptr ? adapters_->units[unit].FindWhole(range->name) : nullptr;
  if (whole != nullptr) return TrainedView(unit, whole->range, gradients.adapter);
  return gradients.base.defined() ? View(unit, suffix, gradients.base) : at::Tensor();
}

const AdaptedModule* Network::ModuleOf(size_t unit, std::string_view name) const {
  if (!adapters_) return nullptr;
  for (const AdaptedModule& module : adapters_->units[unit].modules) {
    if (module.name == name) return &module;
  }
  return nullptr;
}

kernels::Adapter Network::AdapterOf(size_t unit, const AdaptedModule* module, const at::Tensor& flat) const {
  if (module == nullptr) return {};
  return {.a_RI = TrainedView(unit, module->a, flat), .b_OR = TrainedView(unit, module->b, flat), .scale = static_cast<float>(module->scale),
          .module = module->number};
}

at::Tensor Network::HeadMatrix(const UnitWeights& head, const UnitWeights& embedding) const {
  return layout_.tied ? View(0, "embed_tokens.weight", embedding.base) : Weight(head_unit(), "lm_head.weight", head);
}

at::Tensor Network::HeadMatrixGradient(const UnitWeights& head_gradient, const UnitWeights& embedding_gradient) const {
  return layout_.tied ? WeightGradient(0, "embed_tokens.weight", embedding_gradient) : WeightGradient(head_unit(), "lm_head.weight", head_gradient);
}

Network::LayerTensors Network::LayerGradients(int64_t layer, const UnitWeights& gradients) const {
  LayerTensors views;
  const size_t unit = static_cast<size_t>(layer) + 1;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const TensorRange* range = layer_ranges_[layer][slot];
    if (range == nullptr) continue;
    const Trained trained = adapters_ ? layer_trained_[layer][slot] : Trained{};
    if (trained.whole != nullptr) views.tensors[slot] = TrainedView(unit, trained.whole->range, gradients.adapter);
    else if (gradients.base.defined()) views.tensors[slot] = gradients.base.narrow(0, range->offset, range->elements).view(range->shape);
    views.adapters[slot] = AdapterOf(unit, trained.module, gradients.adapter);
  }
  return views;
}

// Weights lie as their gradients do; those with copies of their own are computed with in the base's type.
Network::LayerTensors Network::LayerViews(int64_t layer, const UnitWeights& weights) const {
  LayerTensors views = LayerGradients(layer, weights);
  for (at::Tensor& tensor : views.tensors) {
    if (tensor.defined()) tensor = tensor.to(weights.base.scalar_type());
  }
  return views;
}

at::Tensor Network::Product(const at::Tensor& x, const LayerTensors& w, Slot weight, Slot bias, const PreparedBatch& batch) const {
  at::Tensor y = Linear(x, w[weight], w[bias]);
  if (w.adapters[weight]) {
    kernels::Adapter adapter = w.adapters[weight];
    adapter.dropout = &batch.dropout;
    kernels::AddAdapter(y.view({-1, y.size(-1)}), x.reshape({-1, x.size(-1)}), adapter);
  }
  return y;
}

at::Tensor Network::Embed(const UnitWeights& weights, const PreparedBatch& batch) const {
  at::Tensor ids = batch.ids_BT.view({-1}), hidden;
  const WholeTensor* whole = adapters_ ? adapters_->units[0].FindWhole("model.embed_tokens.weight") : nullptr;
  if (whole != nullptr) hidden = TrainedView(0, whole->range, weights.adapter).index_select(0, ids).to(weights.base.scalar_type());
  else hidden = View(0, "embed_tokens.weight", weights.base).index_select(0, ids);
  if (kernels::Adapter adapter = AdapterOf(0, ModuleOf(0, "model.embed_tokens"), weights.adapter)) {
    at::Tensor low = adapter.a_RI.index_select(1, ids).t();
    hidden = hidden.to(at::kFloat).addmm_(low, adapter.b_OR.t(), 1, adapter.scale).to(hidden.scalar_type());
  }
  return hidden.view({batch.rows, batch.ctx, config_.hidden_size});
}

void Network::EmbedBackward(const at::Tensor& grad_hidden_BTD, const PreparedBatch& batch, const UnitWeights& gradients, const UnitWeights& weights) const {
  at::Tensor grad = WeightGradient(0, "embed_tokens.weight", gradients);
  at::Tensor rows = grad_hidden_BTD.reshape({-1, config_.hidden_size});
  at::Tensor ids = batch.ids_BT.view({-1});
  // As in transformers, whose embedding has a padding_idx: what config.json names as padding is not learned as an input. (Of an adapter, that is A.)
  at::Tensor padding;
  if (config_.pad_token_id) padding = (ids == *config_.pad_token_id).unsqueeze(1);
  if (kernels::Adapter adapter = AdapterOf(0, ModuleOf(0, "model.embed_tokens"), weights.adapter)) {
    const kernels::Adapter grads = AdapterOf(0, ModuleOf(0, "model.embed_tokens"), gradients.adapter);
    at::Tensor wide = rows.to(at::kFloat), low = adapter.a_RI.index_select(1, ids), grad_low = at::mm(wide, adapter.b_OR).mul_(adapter.scale);
    grads.b_OR.addmm_(wide.t(), low.t(), 1, adapter.scale);
    if (padding.defined()) grad_low.masked_fill_(padding, 0);
    grads.a_RI.index_add_(1, ids, grad_low.t());
  }
  if (!grad.defined()) return;
  if (padding.defined()) rows = rows.masked_fill(padding, 0);
  if (rows.scalar_type() == at::kFloat) {
    grad.index_add_(0, ids, rows);
    return;
  }
  // Summed per token in fp32 first: one rounding, however often a token occurs.
  auto [unique, place] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sums = at::zeros({unique.size(0), config_.hidden_size}, at::kFloat).index_add_(0, place, rows.to(at::kFloat));
  grad.index_add_(0, unique, sums.to(rows.scalar_type()).to(grad.scalar_type()));
}

at::Tensor Network::RmsNorm(const at::Tensor& x, const at::Tensor& weight) const {
  at::Tensor inverse;
  return kernels::RmsNorm(x.contiguous(), weight, config_.rms_norm_eps, inverse);
}

at::Tensor Network::AttendToCache(at::Tensor q_BNTH, at::Tensor k_BKSH, at::Tensor v_BKSH, const PreparedBatch::Attention& attention) const {
  int64_t times = config_.num_attention_heads / config_.num_key_value_heads;
  at::Tensor k = RepeatHeads(k_BKSH, times), v = RepeatHeads(v_BKSH, times);
  std::optional<at::Tensor> mask;
  if (attention.mask_b1TT.defined()) mask = attention.mask_b1TT;
  return at::scaled_dot_product_attention(q_BNTH, k, v, mask, /*dropout_p=*/0.0, attention.causal, ScoreScale(config_));
}

at::Tensor Network::ContinueLayer(int64_t layer, const LayerTensors& w, const at::Tensor& hidden_BTD, const PreparedBatch& batch,
                                  const KvCache& cache) const {
  int64_t B = batch.rows, T = batch.ctx, H = config_.head_dim;
  at::Tensor x = RmsNorm(hidden_BTD, w[kInputNorm]);
  at::Tensor q = Product(x, w, kQ, kQBias, batch).view({B, T, config_.num_attention_heads, H});
  at::Tensor k = Product(x, w, kK, kKBias, batch).view({B, T, config_.num_key_value_heads, H});
  at::Tensor v = Product(x, w, kV, kVBias, batch).view({B, T, config_.num_key_value_heads, H}).transpose(1, 2);
  if (config_.qk_norm) {
    q = RmsNorm(q, w[kQNorm]);
    k = RmsNorm(k, w[kKNorm]);
  }
  q = kernels::Rotate(q, batch.cos_b1TH, batch.sin_b1TH);
  k = kernels::Rotate(k, batch.cos_b1TH, batch.sin_b1TH);
  cache.Extend(layer, batch, k, v);
  at::Tensor mixed = AttendToCache(q, k, v, batch.attention[batch.attention_of_layer[layer]]).transpose(1, 2).reshape({B, T, config_.QuerySize()});
  at::Tensor h = hidden_BTD + Product(mixed, w, kO, kOBias, batch);
  at::Tensor y = RmsNorm(h, w[kPostNorm]);
  return h + Product(kernels::SwiGlu(Product(y, w, kGate, kGateBias, batch), Product(y, w, kUp, kUpBias, batch)), w, kDown, kDownBias, batch);
}

// What a layer's backward needs. The norms' and SwiGLU's outputs are computed again: they cost a pass over memory. With Recompute::kSelective so are
// the heads before their norm and the residual behind the attention.
struct LayerTape {
  const PreparedBatch* batch = nullptr;
  at::Tensor input_BTD, inverse_input;
  at::Tensor q_BTNH, k_BTKH, inverse_q, inverse_k;   // before the heads' norm, where there is one
  at::Tensor q_BNTH, k_BKTH, v_BKTH, log_sums, mixed_BTNH;
  at::Tensor middle_BTD, inverse_middle;             // behind the attention's residual
  at::Tensor gate_BTI, up_BTI;
  at::Tensor output_BTD;
};

at::Tensor Network::RunLayer(int64_t layer, const LayerTensors& w, const at::Tensor& hidden_BTD, LayerTape& tape) const {
  const PreparedBatch& batch = *tape.batch;
  int64_t B = batch.rows, T = batch.ctx, H = config_.head_dim;
  tape.input_BTD = hidden_BTD.contiguous();
  at::Tensor x = kernels::RmsNorm(tape.input_BTD, w[kInputNorm], config_.rms_norm_eps, tape.inverse_input);
  at::Tensor q = Product(x, w, kQ, kQBias, batch).view({B, T, config_.num_attention_heads, H});
  at::Tensor k = Product(x, w, kK, kKBias, batch).view({B, T, config_.num_key_value_heads, H});
  tape.v_BKTH = Product(x, w, kV, kVBias, batch).view({B, T, config_.num_key_value_heads, H}).transpose(1, 2).contiguous();
  if (config_.qk_norm) {
    tape.q_BTNH = q;
    tape.k_BTKH = k;
    q = kernels::RmsNorm(q, w[kQNorm], config_.rms_norm_eps, tape.inverse_q);
    k = kernels::RmsNorm(k, w[kKNorm], config_.rms_norm_eps, tape.inverse_k);
  }
  tape.q_BNTH = kernels::Rotate(q, batch.cos_b1TH, batch.sin_b1TH);
  tape.k_BKTH = kernels::Rotate(k, batch.cos_b1TH, batch.sin_b1TH);
  tape.mixed_BTNH = kernels::Attention(tape.q_BNTH, tape.k_BKTH, tape.v_BKTH, batch.attention[batch.attention_of_layer[layer]].visible, ScoreScale(config_),
                                       tape.log_sums);
  tape.middle_BTD = Middle(w, tape);
  at::Tensor y = kernels::RmsNorm(tape.middle_BTD, w[kPostNorm], config_.rms_norm_eps, tape.inverse_middle);
  tape.gate_BTI = Product(y, w, kGate, kGateBias, batch);
  tape.up_BTI = Product(y, w, kUp, kUpBias, batch);
  return y;
}

at::Tensor Network::Middle(const LayerTensors& w, const LayerTape& tape) const {
  return Product(tape.mixed_BTNH.flatten(2), w, kO, kOBias, *tape.batch).add_(tape.input_BTD);
}

at::Tensor Network::Gated(const LayerTensors& w, const LayerTape& tape) const {
  return Product(kernels::SwiGlu(tape.gate_BTI, tape.up_BTI), w, kDown, kDownBias, *tape.batch).add_(tape.middle_BTD);
}

at::Tensor Network::Layer(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD, const PreparedBatch& batch,
                          const KvCache* cache) const {
  if (cache != nullptr) return ContinueLayer(layer, LayerViews(layer, weights), hidden_BTD, batch, *cache);
  const LayerTensors w = LayerViews(layer, weights);
  LayerTape tape{.batch = &batch};
  RunLayer(layer, w, hidden_BTD, tape);
  return Gated(w, tape);
}

std::shared_ptr<LayerTape> Network::RecordLayer(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD,
                                                const PreparedBatch& batch, Recompute recompute) const {
  const LayerTensors w = LayerViews(layer, weights);
  auto tape = std::make_shared<LayerTape>(LayerTape{.batch = &batch});
  RunLayer(layer, w, hidden_BTD, *tape);
  tape->output_BTD = Gated(w, *tape);
  if (recompute == Recompute::kSelective) {
    tape->inverse_input = tape->inverse_middle = tape->middle_BTD = at::Tensor();
    tape->q_BTNH = tape->k_BTKH = tape->inverse_q = tape->inverse_k = at::Tensor();
  }
  return tape;
}

at::Tensor Network::OutputOf(const LayerTape& tape) { return tape.output_BTD; }

at::Tensor Network::Backward(LayerTape& tape, int64_t layer, const UnitWeights& weights, const at::Tensor& grad_out_BTD,
                             const UnitWeights& gradients) const {
  const LayerTensors w = LayerViews(layer, weights), grads = LayerGradients(layer, gradients);
  const PreparedBatch& batch = *tape.batch;
  const int64_t B = batch.rows, T = batch.ctx, n = B * T, D = config_.hidden_size;
  // The gradients of a product's weight and bias from the gradient of what it gave and from what it got.
  auto learn = [&](Slot weight, Slot bias, const at::Tensor& grad, const at::Tensor& in) {
    if (grads[weight].defined()) kernels::AddProduct(grads[weight], grad, in);
    if (grads[bias].defined()) grads[bias].add_(grad.sum(0, /*keepdim=*/false, at::kFloat).to(grad.scalar_type()).to(grads[bias].scalar_type()));
  };
  // The same of the product's adapter, whose part of the gradient of what it got is added to `grad_in`.
  auto adapt = [&](Slot weight, const at::Tensor& grad, const at::Tensor& in, const at::Tensor& grad_in) {
    if (!w.adapters[weight]) return;
    kernels::Adapter adapter = w.adapters[weight];
    adapter.dropout = &batch.dropout;
    kernels::AdapterBackward(grad, in, adapter, grads.adapters[weight].a_RI, grads.adapters[weight].b_OR, grad_in);
  };
  at::Tensor of_norm;
  auto learn_norm = [&](Slot weight) {
    if (grads[weight].defined()) grads[weight].add_(of_norm.to(w[weight].scalar_type()).to(grads[weight].scalar_type()));
  };
  at::Tensor none, grad_out = grad_out_BTD.contiguous(), grad_out_nD = grad_out.view({n, D});

  at::Tensor grad_gated = at::mm(grad_out_nD, w[kDown]);
  if (w.adapters[kDown]) adapt(kDown, grad_out_nD, kernels::SwiGlu(tape.gate_BTI, tape.up_BTI).view({n, -1}), grad_gated);
  at::Tensor gated = kernels::SwiGluBackward(tape.gate_BTI, tape.up_BTI, grad_gated);
  const at::Tensor grad_gate = tape.gate_BTI.view({n, -1}), grad_up = tape.up_BTI.view({n, -1});
  learn(kDown, kDownBias, grad_out_nD, gated.view({n, -1}));
  if (!tape.middle_BTD.defined()) tape.middle_BTD = Middle(w, tape);
  at::Tensor y = kernels::RmsNorm(tape.middle_BTD, w[kPostNorm], config_.rms_norm_eps, tape.inverse_middle).view({n, D});
  learn(kGate, kGateBias, grad_gate, y);
  learn(kUp, kUpBias, grad_up, y);
  at::Tensor grad_y = at::mm(grad_gate, w[kGate]).addmm_(grad_up, w[kUp]);
  adapt(kGate, grad_gate, y, grad_y);
  adapt(kUp, grad_up, y, grad_y);
  at::Tensor grad_middle = kernels::RmsNormBackward(tape.middle_BTD, w[kPostNorm], tape.inverse_middle, grad_y, grad_out, of_norm);
  learn_norm(kPostNorm);
  tape.gate_BTI = tape.up_BTI = tape.middle_BTD = gated = grad_gated = y = grad_y = none;

  at::Tensor grad_middle_nD = grad_middle.view({n, D});
  at::Tensor grad_mixed_n = at::mm(grad_middle_nD, w[kO]), grad_mixed = grad_mixed_n.view(tape.mixed_BTNH.sizes());
  adapt(kO, grad_middle_nD, tape.mixed_BTNH.view({n, -1}), grad_mixed_n);
  learn(kO, kOBias, grad_middle_nD, tape.mixed_BTNH.view({n, -1}));
  kernels::AttentionGradients attention =
      kernels::AttentionBackward(tape.q_BNTH, tape.k_BKTH, tape.v_BKTH, batch.attention[batch.attention_of_layer[layer]].visible, ScoreScale(config_),
                                 tape.log_sums, grad_mixed);
  at::Tensor grad_q = kernels::RotateBackward(attention.q_BNTH, batch.cos_b1TH, batch.sin_b1TH);
  at::Tensor grad_k = kernels::RotateBackward(attention.k_BKTH, batch.cos_b1TH, batch.sin_b1TH);
  at::Tensor grad_v = attention.v_BKTH.transpose(1, 2).reshape({n, -1});
  at::Tensor x = kernels::RmsNorm(tape.input_BTD, w[kInputNorm], config_.rms_norm_eps, tape.inverse_input);
  if (config_.qk_norm) {
    if (!tape.q_BTNH.defined()) {
      tape.q_BTNH = Product(x, w, kQ, kQBias, batch).view(grad_q.sizes());
      tape.k_BTKH = Product(x, w, kK, kKBias, batch).view(grad_k.sizes());
      kernels::RmsNorm(tape.q_BTNH, w[kQNorm], config_.rms_norm_eps, tape.inverse_q);
      kernels::RmsNorm(tape.k_BTKH, w[kKNorm], config_.rms_norm_eps, tape.inverse_k);
    }
    grad_q = kernels::RmsNormBackward(tape.q_BTNH, w[kQNorm], tape.inverse_q, grad_q, none, of_norm);
    learn_norm(kQNorm);
    grad_k = kernels::RmsNormBackward(tape.k_BTKH, w[kKNorm], tape.inverse_k, grad_k, none, of_norm);
    learn_norm(kKNorm);
  }
  grad_q = grad_q.view({n, -1});
  grad_k = grad_k.view({n, -1});
  x = x.view({n, D});
  learn(kQ, kQBias, grad_q, x);
  learn(kK, kKBias, grad_k, x);
  learn(kV, kVBias, grad_v, x);
  at::Tensor grad_x = at::mm(grad_q, w[kQ]).addmm_(grad_k, w[kK]).addmm_(grad_v, w[kV]);
  adapt(kQ, grad_q, x, grad_x);
  adapt(kK, grad_k, x, grad_x);
  adapt(kV, grad_v, x, grad_x);
  at::Tensor grad_input = kernels::RmsNormBackward(tape.input_BTD, w[kInputNorm], tape.inverse_input, grad_x, grad_middle, of_norm);
  learn_norm(kInputNorm);
  return grad_input;
}

at::Tensor Network::LayerBackward(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD,
                                  const at::Tensor& grad_out_BTD, const PreparedBatch& batch, const UnitWeights& gradients) const {
  LayerTape tape{.batch = &batch};
  RunLayer(layer, LayerViews(layer, weights), hidden_BTD, tape);   // without its last product, which the backward does not need
  return Backward(tape, layer, weights, grad_out_BTD, gradients);
}

LossSum Network::Loss(const UnitWeights& head, const at::Tensor& matrix_VD, const at::Tensor& hidden_BTD,
                      const PreparedBatch& batch, HeadGradients* gradients) const {
  LossSum sum{.targets = batch.targets_n.size(0)};
  at::Tensor norm = Weight(head_unit(), "model.norm.weight", head), inverse;
  kernels::Adapter adapter = AdapterOf(head_unit(), ModuleOf(head_unit(), "lm_head"), head.adapter);
  if (adapter) adapter.dropout = &batch.head_dropout;
  at::Tensor hidden = hidden_BTD.contiguous().view({-1, config_.hidden_size});
  const bool every = sum.targets == hidden.size(0);
  at::Tensor chosen = every ? hidden : hidden.index_select(0, batch.target_index_n);
  at::Tensor y = kernels::RmsNorm(chosen, norm, config_.rms_norm_eps, inverse);
  if (gradients == nullptr) {
    sum.nll = kernels::LinearCrossEntropy(y, matrix_VD, batch.targets_n, nullptr, adapter);
    return sum;
  }
  // A head of its own has its gradient rounded to the type in which some stages send it, so that all stages give equal bits; a tied one's is fp32
  // in every stage.
  const bool rounded = !layout_.tied && gradients->matrix_VD.defined() && gradients->matrix_VD.scalar_type() != y.scalar_type();
  const kernels::Adapter of_adapter = AdapterOf(head_unit(), ModuleOf(head_unit(), "lm_head"), gradients->head_flat.adapter);
  kernels::LinearCrossEntropyGradients linear{.scale = gradients->scale,
                                              .matrix_VD = rounded ? at::zeros_like(gradients->matrix_VD, y.scalar_type()) : gradients->matrix_VD,
                                              .a_RD = of_adapter.a_RI, .b_VR = of_adapter.b_OR};
  sum.nll = kernels::LinearCrossEntropy(y, matrix_VD, batch.targets_n, &linear, adapter);
  if (rounded) gradients->matrix_VD.add_(linear.matrix_VD);
  at::Tensor grad_norm;
  at::Tensor grad_chosen = kernels::RmsNormBackward(chosen, norm, inverse, linear.hidden_nD, {}, grad_norm);
  if (at::Tensor of_norm = WeightGradient(head_unit(), "model.norm.weight", gradients->head_flat); of_norm.defined()) {
    of_norm.add_(grad_norm.to(y.scalar_type()));
  }
  gradients->hidden_BTD = (every ? grad_chosen : at::zeros_like(hidden).index_copy_(0, batch.target_index_n, grad_chosen)).view(hidden_BTD.sizes());
  return sum;
}

at::Tensor Network::Logits(const UnitWeights& head, const at::Tensor& matrix_VD, const at::Tensor& hidden_BTD) const {
  at::Tensor y = RmsNorm(hidden_BTD, Weight(head_unit(), "model.norm.weight", head)), logits = at::linear(y, matrix_VD);
  if (kernels::Adapter adapter = AdapterOf(head_unit(), ModuleOf(head_unit(), "lm_head"), head.adapter)) {
    kernels::AddAdapter(logits.view({-1, logits.size(-1)}), y.reshape({-1, y.size(-1)}), adapter);
  }
  return logits;
}

}  // namespace argosy::train
