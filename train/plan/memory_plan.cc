#include "train/plan/memory_plan.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "train/model/adapter_layout.h"
#include "train/model/kernel_sizes.h"
#include "train/model/layout.h"

namespace argosy::train {
namespace {

using kernels::kAdapterRows;
using kernels::kLogitsBytesMax;
using kernels::kProductRows;
using kernels::kQueriesOfBlock;

// Of weight_pull.h and checkpoint_writer.h: what rank 0 holds while it writes.
constexpr int64_t kSaveWindow = 256 << 20;
constexpr int64_t kDirtyPages = 64 << 20;
// Gradients of units on their way to their owners, beside the one that is being computed.
constexpr int64_t kReducesInFlight = 3;

// Measured: what libtorch, its kernels and the runtime's buffers take from a model's first step on.
constexpr int64_t kOther = 48 << 20;

// The largest share of `elements`, cut at multiples of the grain.
int64_t ShareOf(int64_t elements, int32_t ranks) {
  int64_t grains = (elements + kRangeGrain - 1) / kRangeGrain;
  return std::min(elements, (grains + ranks - 1) / ranks * kRangeGrain);
}

// What one layer's forward leaves for its backward (network.cc, LayerTape): queries, keys and values behind the rotary embedding, attention's output,
// gate and up; of each token and head a number in fp32. Where nothing is computed again, also the heads before their norm, if there is one, and the
// residual. The layer's input is the output of the one before.
int64_t LayerTape(const ModelConfig& config, int64_t tokens, int64_t size, Recompute recompute) {
  const int64_t heads = config.QuerySize() + config.KeyValueSize();
  const int64_t again = recompute == Recompute::kSelective ? 0 : config.hidden_size + (config.qk_norm ? heads : 0);
  return tokens * size * (again + heads + config.KeyValueSize() + config.QuerySize() + 2 * config.intermediate_size) +
         tokens * 4 * (2 + config.num_attention_heads);
}

// What a layer's backward has beside its tape: two of the gate's width, four of the model's, what attention computes with, and a product of
// weights on its way to their gradients.
int64_t LayerBackward(const ModelConfig& config, const PlanOptions& options, int64_t size) {
  const int64_t tokens = options.rows * options.ctx_len;
  // Beside adapters weights have no gradients; with dropout some tokens' dropped inputs are there in fp32.
  const int64_t weights = options.lora ? (options.lora->dropout > 0 ? std::min(tokens, kAdapterRows) * config.intermediate_size * 4 : 0)
                                       : config.hidden_size * std::min(kProductRows, config.intermediate_size) * size;
  // Attention is computed in fp32: three blocks of scores, queries, keys, values and their gradients.
  const int64_t attention = 3 * options.rows * config.num_attention_heads * std::min(kQueriesOfBlock, options.ctx_len) * options.ctx_len * 4 +
                            tokens * 4 * (2 * config.QuerySize() + 4 * config.KeyValueSize());
  return tokens * size * (2 * config.intermediate_size + 4 * config.hidden_size) + attention + weights;
}

// The head's loss (kernels.cc, LinearCrossEntropy). The matrix' gradient is summed in fp32: a tied one's where it is, another's beside it when it has
// several chunks of tokens, and stages 0 and 1 in bf16 before it is added to their own.
int64_t HeadTransient(const ModelConfig& config, int64_t tokens, int64_t size, int stage, bool frozen) {
  const int64_t chunk_max = std::max<int64_t>(64, kLogitsBytesMax / (config.vocab_size * size)), chunks = (tokens + chunk_max - 1) / chunk_max;
  const int64_t logits = (tokens + chunks - 1) / chunks * config.vocab_size * size;
  const int64_t rows = 4 * tokens * config.hidden_size * size;
  int64_t matrix = 0;
  if (size == 2 && !frozen) {
    const bool tied = config.tie_word_embeddings;
    matrix = std::min(kProductRows, config.vocab_size) * config.hidden_size * size;
    if (!tied && chunks > 1) matrix = config.vocab_size * config.hidden_size * (4 + size);
    if (!tied && stage <= 1) matrix += config.vocab_size * config.hidden_size * size;
  }
  return logits + rows + matrix;
}

// Of an element: moments, and the lower half of a bf16 weight's master.
int64_t OptimizerBytes(const PlanOptions& options) {
  if (options.lora) return 8;
  return (options.bf16_moments ? 4 : 8) + (options.bf16 ? 2 : 0);
}

// 0 where the config does not fit the model, which MakeAdapterLayout says.
int64_t AdapterElements(const ModelConfig& config, const LoraConfig& lora) {
  absl::StatusOr<AdapterLayout> layout = MakeAdapterLayout(config, lora);
  int64_t elements = 0;
  if (layout.ok()) for (const UnitAdapters& unit : layout->units) elements += unit.layout.elements;
  return elements;
}

}  // namespace

NodePlan PlanMemory(const ModelConfig& config, const PlanOptions& options) {
  const ModelLayout layout = MakeLayout(config);
  const int64_t size = options.bf16 ? 2 : 4;
  const int stage = options.zero_stage;
  const bool alone = options.ranks == 1;
  RankPlan rank;
  int64_t layer_elements = 0;
  std::vector<int64_t> elements;
  for (const UnitLayout& unit : layout.units) {
    elements.push_back(unit.elements);
    const int64_t share = ShareOf(unit.elements, options.ranks);
    const int64_t owned = stage == 0 ? unit.elements : share;
    rank.weights += (stage == 3 ? share : unit.elements) * size;
    if (options.lora) continue;
    const int64_t state = owned * OptimizerBytes(options);
    // In a file, this unit's, the next one's and the one's before are in memory at most.
    if (options.offload_file) rank.optimizer = std::max(rank.optimizer, 3 * state);
    else rank.optimizer += state;
    // Alone and without accumulation, gradients are of the type of the computation, but for a tied matrix' sum of both ends.
    const bool tied_matrix = layout.tied && &unit == &layout.units.front();
    rank.gradients += owned * (alone && options.micro_batches == 1 && !tied_matrix ? size : 4);
    if (stage <= 1 && !alone) rank.gradients += unit.elements * 4;
  }
  if (options.lora) {
    // Whole on every rank, in fp32: values, moments and gradients, and with other ranks its own sum of these.
    const int64_t trained = AdapterElements(config, *options.lora);
    rank.weights += trained * 4;
    if (!options.offload_file) rank.optimizer += trained * 8;
    rank.gradients += trained * (alone ? 4 : 8);
  }
  for (size_t unit = 1; unit + 1 < elements.size(); ++unit) layer_elements = std::max(layer_elements, elements[unit]);
  const int64_t head = elements.back(), embedding = elements.front();
  const int64_t tied = layout.tied ? embedding : 0;

  // Weights that are gathered at once: while the head works, the last layer and a tied embedding are there too; else a layer and the next.
  const int64_t gathered_head = stage == 3 ? (layer_elements + head + tied) * size : 0;
  const int64_t gathered_layer = stage == 3 ? 2 * layer_elements * size : 0;
  // Stages 2 and 3 hold gradients of units until their owners have them; a tied embedding's, in fp32, from the head to the end.
  const bool working = stage >= 2 && !alone && !options.lora;
  const int64_t working_tied = working ? tied * 4 : 0;
  const int64_t working_head = working ? head * size + working_tied : 0;
  const int64_t working_layer =
      working ? (1 + std::min<int64_t>(kReducesInFlight, config.num_hidden_layers)) * layer_elements * size + working_tied : 0;
  const int64_t working_embedding = working ? embedding * (layout.tied ? 4 : size) + kReducesInFlight * layer_elements * size : 0;

  const int64_t tokens = options.rows * options.ctx_len;
  const int64_t hidden = (config.num_hidden_layers + 1) * tokens * config.hidden_size * size;
  const int64_t tape = LayerTape(config, tokens, size, Recompute::kNone), left = LayerTape(config, tokens, size, options.recompute);
  const int64_t kept = options.recompute == Recompute::kFull ? 0 : left * config.num_hidden_layers;
  // The one layer whose backward runs has all of it.
  const int64_t backward = LayerBackward(config, options, size) + (options.recompute == Recompute::kFull ? tape : tape - left);

  // The peak is at the head's loss, in a layer's backward, or in the embedding's.
  struct Phase { int64_t gathered, activations; };
  const Phase phases[] = {
      {gathered_head + working_head, hidden + kept + HeadTransient(config, tokens, size, stage, options.lora.has_value())},
      {gathered_layer + working_layer, hidden + kept + backward},
      {working_embedding, tokens * config.hidden_size * (size + 4)},
  };
  const Phase& peak = *std::max_element(std::begin(phases), std::end(phases), [](const Phase& a, const Phase& b) {
    return a.gathered + a.activations < b.gathered + b.activations;
  });
  rank.gathered = peak.gathered;
  rank.activations = peak.activations;
  rank.other = kOther;
  return {.rank = rank, .ranks = std::min(options.ranks, options.ranks_per_node), .aggregation = kSaveWindow + kDirtyPages};
}

DiskPlan PlanDisk(const ModelConfig& config, const PlanOptions& options) {
  const int64_t parameters = options.lora ? AdapterElements(config, *options.lora) : config.ParameterCount();
  DiskPlan disk{.checkpoint = parameters * SizeOf(options.save_dtype), .state = options.save_state ? 12 * parameters : 0};
  const bool whole = options.lora || options.zero_stage == 0;
  if (options.offload_file) disk.offload = parameters / (whole ? 1 : options.ranks) * OptimizerBytes(options);
  return disk;
}

ReferenceRules PlanByReference(const ModelConfig& config, const PlanOptions& options) {
  const int64_t parameters = config.ParameterCount();
  return {.offload = 18 * parameters / options.ranks * std::min(options.ranks, options.ranks_per_node), .aggregation = 4 * parameters};
}

absl::StatusOr<ModelConfig> NamedModel(std::string_view name) {
  ModelPreset preset{.vocab_size = 32000, .max_position_embeddings = 4096, .dtype = DType::kBF16};
  if (name == "7b") {
    preset.hidden_size = 4096, preset.intermediate_size = 11008, preset.num_hidden_layers = 32, preset.num_attention_heads = 32,
    preset.num_key_value_heads = 32;
  } else if (name == "13b") {
    preset.hidden_size = 5120, preset.intermediate_size = 13824, preset.num_hidden_layers = 40, preset.num_attention_heads = 40,
    preset.num_key_value_heads = 40;
  } else if (name == "70b") {
    preset.hidden_size = 8192, preset.intermediate_size = 28672, preset.num_hidden_layers = 80, preset.num_attention_heads = 64,
    preset.num_key_value_heads = 8;
  } else {
    return NotFound("{} is no size known by name: 7b, 13b and 70b (Llama 2) are", name);
  }
  return ModelConfig::Make(preset);
}

Advice Advise(const ModelConfig& config, const PlanOptions& options, int64_t node_bytes) {
  Advice advice{.options = options};
  auto fits = [&] { return PlanMemory(config, advice.options).Total() <= node_bytes; };
  if ((advice.fits = fits())) return advice;
  for (Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (recompute <= options.recompute) continue;
    advice.options.recompute = recompute;
    advice.changes = {fmt::format("--recompute {}", RecomputeName(recompute))};
    if ((advice.fits = fits())) return advice;
  }
  if (options.ranks > 1) {
    for (int stage = options.zero_stage + 1; stage <= 3; ++stage) {
      advice.options.zero_stage = stage;
      if ((advice.fits = fits())) {
        advice.changes.push_back(fmt::format("--zero-stage {}", stage));
        return advice;
      }
    }
    if (options.zero_stage < 3) advice.changes.push_back("--zero-stage 3");
  }
  while (advice.options.rows > 1) {
    advice.options.rows /= 2;
    if ((advice.fits = fits())) break;
  }
  if (advice.options.rows != options.rows) {
    advice.changes.push_back(fmt::format("--batch-size-per-device {} --grad-accum {} times as large", advice.options.rows,
                                         (options.rows + advice.options.rows - 1) / advice.options.rows));
  }
  return advice;
}

absl::Status CheckFits(const ModelConfig& config, const PlanOptions& options, int64_t node_bytes) {
  const NodePlan plan = PlanMemory(config, options);
  if (plan.Total() <= node_bytes) return absl::OkStatus();
  const Advice advice = Advise(config, options, node_bytes);
  const double gb = 1e9;
  std::string way = advice.fits ? fmt::format("it would fit with {}", fmt::join(advice.changes, " and "))
                                : std::string("no stage, recomputing or smaller batch makes it fit: use more or larger nodes");
  return absl::ResourceExhaustedError(ToAbsl(fmt::format(
      "the run needs {:.2f} GB on rank 0's node ({} rank{} x {:.2f} GB: weights {:.2f}, optimizer {:.2f}, gradients {:.2f}, gathered {:.2f}, "
      "activations {:.2f}; and {:.2f} GB for saving), and a node has {:.2f} GB; {}",
      static_cast<double>(plan.Total()) / gb, plan.ranks, plan.ranks == 1 ? "" : "s", static_cast<double>(plan.rank.Total()) / gb,
      static_cast<double>(plan.rank.weights) / gb, static_cast<double>(plan.rank.optimizer) / gb, static_cast<double>(plan.rank.gradients) / gb,
      static_cast<double>(plan.rank.gathered) / gb, static_cast<double>(plan.rank.activations) / gb, static_cast<double>(plan.aggregation) / gb,
      static_cast<double>(node_bytes) / gb, way)));
}

}  // namespace argosy::train
