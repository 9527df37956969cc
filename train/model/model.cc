#include "train/model/model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "runtime/base/status.h"
#include "train/model/network.h"

namespace argosy::train {

struct Model::State {
  State(const ModelConfig& config, DType dtype) : network(config), type(TorchType(dtype)) {}

  Network network;
  at::ScalarType type;
  std::vector<at::Tensor> flats;  // by unit

  at::Tensor HeadMatrix() const { return network.HeadMatrix(flats.back(), flats.front()); }

  at::Tensor Hidden(const PreparedBatch& batch, KvCache* cache) const {
    at::Tensor h = network.Embed(flats.front(), batch);
    for (int64_t i = 0; i < network.layers(); ++i) h = network.Layer(i, flats[i + 1], h, batch, cache);
    return h;
  }

  KvCache NewCache(int64_t capacity) const {
    const ModelConfig& config = network.config();
    KvCache cache{.capacity = capacity};
    for (int64_t i = 0; i < network.layers(); ++i) {
      for (auto* part : {&cache.keys_1KSH, &cache.values_1KSH}) {
        part->push_back(at::empty({1, config.num_key_value_heads, capacity, config.head_dim}, type));
      }
    }
    return cache;
  }
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return state_->network.config(); }

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelConfig& config, const WeightSource& source, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return InvalidArgument("weights are computed with in float32 or bfloat16, not in {}", TorchName(dtype));
  }
  auto state = std::make_unique<State>(config, dtype);
  constexpr int64_t kBlock = 1 << 20;
  std::vector<float> block;
  for (const UnitLayout& unit : state->network.layout().units) {
    at::Tensor flat = at::empty({unit.elements}, state->type);
    for (int64_t begin = 0; begin < unit.elements; begin += kBlock) {
      int64_t count = std::min(kBlock, unit.elements - begin);
      block.resize(count);
      ARGOSY_RETURN_IF_ERROR(ReadFlat(source, unit, begin, block));
      flat.narrow(0, begin, count).copy_(at::from_blob(block.data(), {count}, at::kFloat));
    }
    state->flats.push_back(std::move(flat));
  }
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& directory, DType dtype) {
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(directory));
  ARGOSY_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(directory));
  ARGOSY_RETURN_IF_ERROR(weights.Check(config.Tensors(config.dtype)));
  return Create(config, *WeightsFromHf(weights), dtype);
}

absl::StatusOr<std::vector<float>> Model::Logits(std::span<const int32_t> ids) const {
  at::NoGradGuard no_grad;
  if (ids.empty()) return std::vector<float>();
  ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, state_->network.PrepareRow(ids, 0, state_->type));
  at::Tensor logits =
      state_->network.Logits(state_->flats.back(), state_->HeadMatrix(), state_->Hidden(batch, nullptr)).to(at::kFloat).contiguous();
  return std::vector<float>(logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel());
}

absl::StatusOr<std::vector<int32_t>> Model::Generate(std::span<const int32_t> prompt, const GenerateOptions& options) const {
  at::NoGradGuard no_grad;
  if (prompt.empty()) return InvalidArgument("generation needs at least one token to go on from");
  if (options.max_new_tokens < 0) return InvalidArgument("max_new_tokens is {}: it must not be negative", options.max_new_tokens);
  std::vector<int32_t> stop = options.stop_tokens;
  if (stop.empty()) stop.assign(config().eos_token_ids.begin(), config().eos_token_ids.end());
  std::vector<int32_t> made;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  KvCache cache = state_->NewCache(static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  while (static_cast<int64_t>(made.size()) < options.max_new_tokens) {
    ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, state_->network.PrepareRow(next, cache.length, state_->type));
    at::Tensor hidden = state_->Hidden(batch, &cache);
    cache.length += batch.ctx;
    at::Tensor logits =
        state_->network.Logits(state_->flats.back(), state_->HeadMatrix(), hidden.narrow(1, batch.ctx - 1, 1));
    int32_t token = static_cast<int32_t>(logits.view({-1}).argmax().item<int64_t>());
    made.push_back(token);
    next.assign(1, token);
    if (!options.ignore_stop && std::find(stop.begin(), stop.end(), token) != stop.end()) break;
  }
  return made;
}

absl::StatusOr<BatchLoss> Model::Loss(const MicroBatch& micro_batch) const {
  at::NoGradGuard no_grad;
  if (micro_batch.rows == 0) return BatchLoss();
  ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, state_->network.Prepare(micro_batch, state_->type));
  LossSum sum = state_->network.Loss(state_->flats.back(), state_->HeadMatrix(), state_->Hidden(batch, nullptr), batch);
  return BatchLoss{.nll = sum.nll, .target_tokens = sum.targets};
}

void SetComputeThreads(int threads) { at::set_num_threads(threads); }

}  // namespace argosy::train
