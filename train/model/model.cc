#include "train/model/model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "runtime/base/status.h"
#include "train/model/network.h"

namespace argosy::train {

struct Model::State {
  State(Network made, DType dtype) : network(std::move(made)), type(TorchType(dtype)) {}

  Network network;
  at::ScalarType type;
  std::vector<UnitWeights> flats;  // by unit

  // Fills a buffer of each unit.
  absl::Status Fill(const WeightSource& source);
  at::Tensor HeadMatrix() const { return network.HeadMatrix(flats.back(), flats.front()); }

  at::Tensor Hidden(const PreparedBatch& batch, const KvCache* cache) const {
    at::Tensor h = network.Embed(flats.front(), batch);
    for (int64_t i = 0; i < network.layers(); ++i) h = network.Layer(i, flats[i + 1], h, batch, cache);
    return h;
  }

  KvCache NewCache(int64_t rows, int64_t room) const {
    const ModelConfig& config = network.config();
    KvCache cache;
    for (int64_t i = 0; i < network.layers(); ++i) {
      for (auto* part : {&cache.keys_BKSH, &cache.values_BKSH}) {
        part->push_back(at::zeros({rows, config.num_key_value_heads, room, config.head_dim}, type));
      }
    }
    return cache;
  }

  // The likeliest token after each row's last one.
  std::vector<int32_t> Likeliest(const at::Tensor& hidden_BTD) const {
    at::Tensor last = hidden_BTD.narrow(1, hidden_BTD.size(1) - 1, 1);
    at::Tensor best = network.Logits(flats.back(), HeadMatrix(), last).argmax(-1).view({-1}).to(at::kInt).contiguous();
    return std::vector<int32_t>(best.data_ptr<int32_t>(), best.data_ptr<int32_t>() + best.numel());
  }

  // `made` gets the continuations of prompts[first, first + made.size()).
  absl::Status Generate(std::span<const std::vector<int32_t>> prompts, size_t first, const GenerateOptions& options,
                        std::span<std::vector<int32_t>> made) const;
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return state_->network.config(); }

absl::Status Model::State::Fill(const WeightSource& source) {
  for (const UnitLayout& unit : network.layout().units) {
    ARGOSY_ASSIGN_OR_RETURN(at::Tensor flat, ReadFlatTensor(source, unit, 0, unit.elements, type));
    flats.emplace_back(std::move(flat));
  }
  return absl::OkStatus();
}

static absl::Status CheckType(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16) return absl::OkStatus();
  return InvalidArgument("weights are computed with in float32 or bfloat16, not in {}", TorchName(dtype));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelConfig& config, const WeightSource& source, DType dtype) {
  ARGOSY_RETURN_IF_ERROR(CheckType(dtype));
  auto state = std::make_unique<State>(Network(config), dtype);
  ARGOSY_RETURN_IF_ERROR(state->Fill(source));
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelConfig& base_config, const WeightSource& base, const std::string& adapter_directory,
                                                     DType dtype) {
  ARGOSY_RETURN_IF_ERROR(CheckType(dtype));
  ARGOSY_ASSIGN_OR_RETURN(StoredAdapter adapter, OpenAdapter(adapter_directory, base_config, base));
  auto state = std::make_unique<State>(Network(adapter.config, adapter.layout), dtype);
  ARGOSY_RETURN_IF_ERROR(state->Fill(*adapter.base));
  for (size_t unit = 0; unit < state->flats.size(); ++unit) {
    const UnitLayout& trained = adapter.layout.units[unit].layout;
    ARGOSY_ASSIGN_OR_RETURN(state->flats[unit].adapter, ReadFlatTensor(*adapter.values, trained, 0, trained.elements, at::kFloat));
  }
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& directory, DType dtype, const std::string& adapter_directory) {
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(directory));
  ARGOSY_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(directory));
  ARGOSY_RETURN_IF_ERROR(weights.CheckModel(config));
  if (adapter_directory.empty()) return Create(config, *WeightsFromHf(weights), dtype);
  return Create(config, *WeightsFromHf(weights), adapter_directory, dtype);
}

absl::StatusOr<std::vector<float>> Model::Logits(std::span<const int32_t> ids) const {
  at::NoGradGuard no_grad;
  if (ids.empty()) return std::vector<float>();
  ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, state_->network.PrepareRow(ids, state_->type));
  at::Tensor logits =
      state_->network.Logits(state_->flats.back(), state_->HeadMatrix(), state_->Hidden(batch, nullptr)).to(at::kFloat).contiguous();
  return std::vector<float>(logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel());
}

absl::Status Model::State::Generate(std::span<const std::vector<int32_t>> prompts, size_t first, const GenerateOptions& options,
                                    std::span<std::vector<int32_t>> made) const {
  std::vector<int32_t> stop = options.stop_tokens;
  if (stop.empty()) stop.assign(network.config().eos_token_ids.begin(), network.config().eos_token_ids.end());
  size_t longest = 0;
  for (size_t row = 0; row < made.size(); ++row) longest = std::max(longest, prompts[first + row].size());
  KvCache cache = NewCache(static_cast<int64_t>(made.size()), static_cast<int64_t>(longest) + options.max_new_tokens);
  std::vector<int32_t> next;
  for (size_t row = 0; row < made.size(); ++row) {
    const std::vector<int32_t>& prompt = prompts[first + row];
    ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, network.PrepareRow(prompt, type, static_cast<int64_t>(row)));
    next.push_back(Likeliest(Hidden(batch, &cache)).front());
    cache.lengths.push_back(static_cast<int64_t>(prompt.size()));
  }
  std::vector<bool> ended(made.size(), false);
  for (int64_t count = 0; count < options.max_new_tokens; ++count) {
    if (count > 0) {
      ARGOSY_ASSIGN_OR_RETURN(PreparedBatch batch, network.PrepareNext(next, cache, type));
      next = Likeliest(Hidden(batch, &cache));
      // A row that has ended stays where it is: its place is written again and again.
      for (size_t row = 0; row < made.size(); ++row) cache.lengths[row] += !ended[row];
    }
    bool all_ended = true;
    for (size_t row = 0; row < made.size(); ++row) {
      if (ended[row]) continue;
      made[row].push_back(next[row]);
      if (options.on_token) options.on_token(first + row, next[row]);
      ended[row] = !options.ignore_stop && std::find(stop.begin(), stop.end(), next[row]) != stop.end();
      all_ended = all_ended && ended[row];
    }
    if (all_ended) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> Model::Generate(std::span<const std::vector<int32_t>> prompts,
                                                                  const GenerateOptions& options) const {
  at::NoGradGuard no_grad;
  if (options.max_new_tokens < 0) return InvalidArgument("max_new_tokens is {}: it must not be negative", options.max_new_tokens);
  if (options.rows_max < 1) return InvalidArgument("{} prompts at a time: it must be 1 or more", options.rows_max);
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) return InvalidArgument("prompt {} has no tokens: generation needs at least one to go on from", i + 1);
  }
  std::vector<std::vector<int32_t>> made(prompts.size());
  if (options.max_new_tokens == 0) return made;
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(options.rows_max)) {
    size_t count = std::min(static_cast<size_t>(options.rows_max), prompts.size() - first);
    ARGOSY_RETURN_IF_ERROR(state_->Generate(prompts, first, options, std::span(made).subspan(first, count)));
  }
  return made;
}

absl::StatusOr<std::vector<int32_t>> Model::Generate(const std::vector<int32_t>& prompt, const GenerateOptions& options) const {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> made, Generate(std::span(&prompt, 1), options));
  return std::move(made.front());
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
