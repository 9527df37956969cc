#pragma once

// The units' computations. Private to the torch targets: it needs ATen's headers.

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "train/config/model_config.h"
#include "train/config/recompute.h"
#include "train/data/batches.h"
#include "train/model/adapter_layout.h"
#include "train/model/kernels.h"
#include "train/model/layout.h"

namespace argosy::train {

at::ScalarType TorchType(DType dtype);

// Elements [begin, end) of a unit's flat buffer in `type`, read a block at a time.
absl::StatusOr<at::Tensor> ReadFlatTensor(const WeightSource& source, const UnitLayout& unit, int64_t begin, int64_t end, at::ScalarType type);

// What one layer's backward needs when its forward is not to be computed again: it holds the layer's activations.
struct LayerTape;

// What all layers of one forward pass share. Shapes: B rows, T tokens a row, H head_dim, n targets.
struct PreparedBatch {
  int64_t rows = 0;
  int64_t ctx = 0;
  at::Tensor ids_BT;       // int64
  at::Tensor cos_b1TH;     // b = 1 when all rows have the same positions; of the computation's type
  at::Tensor sin_b1TH;
  struct Attention {
    int64_t window = 0;
    kernels::Visible visible;   // of a batch without a cache
    bool causal = true;         // of a continuation of a cache: plain causal attention, or with a mask that is added to the scores
    at::Tensor mask_b1TT;
  };
  std::vector<Attention> attention;      // one per different window
  std::vector<size_t> attention_of_layer;
  at::Tensor target_index_n;  // int64, into B*T; ascending
  at::Tensor targets_n;       // int64
  int64_t cache_row = -1;     // of a KvCache, whose continuation this is; -1: one token of every row
  kernels::Dropout dropout;   // of the adapters, while training
  kernels::Dropout head_dropout;   // the same at the tokens that have a target
};

// A unit's flat buffers, wherever they are: its own, and with adapters what is trained beside it, in fp32. As gradients: the first is undefined where
// the base is frozen.
struct UnitWeights {
  UnitWeights() = default;
  UnitWeights(at::Tensor flat) : base(std::move(flat)) {}   // NOLINT: most units are one buffer
  UnitWeights(at::Tensor flat, at::Tensor trained) : base(std::move(flat)), adapter(std::move(trained)) {}
  at::Tensor base, adapter;
};

// Keys and values of the tokens so far, of several texts that grow together. Rows have lengths of their own.
struct KvCache {
  std::vector<int64_t> lengths;         // by row
  std::vector<at::Tensor> keys_BKSH;    // by layer; S is the room of a row
  std::vector<at::Tensor> values_BKSH;

  int64_t Longest() const;
  // Puts a layer's new keys and values behind those of their rows, and makes the two all that the new tokens may look at. The caller
  // moves `lengths` after the last layer.
  void Extend(int64_t layer, const PreparedBatch& batch, at::Tensor& k_BKTH, at::Tensor& v_BKTH) const;
};

struct LossSum {
  double nll = 0;  // over the targets
  int64_t targets = 0;
};

// Where the head's backward leaves its results.
struct HeadGradients {
  double scale = 1;        // d(objective) / d(nll)
  UnitWeights head_flat;   // added to
  at::Tensor matrix_VD;    // of the head or, tied, of the embedding; added to; undefined: frozen
  at::Tensor hidden_BTD;   // out
};

// Forward and backward of each unit, for weights that the caller passes: views of the unit's flat buffer, wherever that is.
// The formulas and the places where bf16 turns to fp32 and back are transformers' (modeling_llama.py and its relatives, 5.24).
//
// Thread:   any; nothing changes after construction. Computation uses the calling thread's torch threads.
// Failure:  none; ids were checked against the vocabulary by Prepare.
class Network {
 public:
  explicit Network(ModelConfig config);
  Network(const Network&) = delete;   // it points into its own layouts, which only a move takes along
  Network(Network&&) = default;
  // With low-rank adapters beside the weights, and some tensors replaced by ones that are trained.
  Network(ModelConfig config, AdapterLayout adapters);

  // Null without adapters.
  const AdapterLayout* adapters() const { return adapters_ ? &*adapters_ : nullptr; }
  const ModelConfig& config() const { return config_; }
  const ModelLayout& layout() const { return layout_; }
  int64_t layers() const { return config_.num_hidden_layers; }
  size_t head_unit() const { return layout_.units.size() - 1; }

  // The segments of a row must each be one run of tokens, and so must all that is no padding.
  absl::StatusOr<PreparedBatch> Prepare(const MicroBatch& batch, at::ScalarType type) const;
  // One row of ids from its beginning, without targets: a prompt, of the row `cache_row`.
  absl::StatusOr<PreparedBatch> PrepareRow(std::span<const int32_t> ids, at::ScalarType type, int64_t cache_row = 0) const;
  // The next token of every row of a cache.
  absl::StatusOr<PreparedBatch> PrepareNext(std::span<const int32_t> ids, const KvCache& cache, at::ScalarType type) const;

  // A tensor of a unit as a view of its flat buffer.
  at::Tensor View(size_t unit, std::string_view suffix, const at::Tensor& flat) const;
  // [V, D]: the head's own matrix, or the embedding's.
  at::Tensor HeadMatrix(const UnitWeights& head, const UnitWeights& embedding) const;
  // Of their gradients: undefined where the matrix is frozen.
  at::Tensor HeadMatrixGradient(const UnitWeights& head_gradient, const UnitWeights& embedding_gradient) const;

  at::Tensor Embed(const UnitWeights& weights, const PreparedBatch& batch) const;
  // `weights` are needed where the embedding has an adapter.
  void EmbedBackward(const at::Tensor& grad_hidden_BTD, const PreparedBatch& batch, const UnitWeights& gradients, const UnitWeights& weights = {}) const;

  at::Tensor Layer(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD, const PreparedBatch& batch,
                   const KvCache* cache = nullptr) const;
  // The same, remembering what Backward needs; `batch` must live until then.
  std::shared_ptr<LayerTape> RecordLayer(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD, const PreparedBatch& batch,
                                         Recompute recompute = Recompute::kNone) const;
  static at::Tensor OutputOf(const LayerTape& tape);
  // Returns the gradient of the layer's input and adds the weights' to `gradients`. Once for each tape, which is used up. The weights have the values
  // that they had in the forward; in between they may be gone.
  at::Tensor Backward(LayerTape& tape, int64_t layer, const UnitWeights& weights, const at::Tensor& grad_out_BTD, const UnitWeights& gradients) const;
  // Computes the layer again from its input, then backward.
  at::Tensor LayerBackward(int64_t layer, const UnitWeights& weights, const at::Tensor& hidden_BTD, const at::Tensor& grad_out_BTD,
                           const PreparedBatch& batch, const UnitWeights& gradients) const;

  // Final norm, head and cross-entropy, in chunks of tokens: [tokens, vocabulary] never exists whole. With `gradients`, the backward
  // of each chunk follows its forward.
  LossSum Loss(const UnitWeights& head, const at::Tensor& matrix_VD, const at::Tensor& hidden_BTD, const PreparedBatch& batch,
               HeadGradients* gradients = nullptr) const;
  at::Tensor Logits(const UnitWeights& head, const at::Tensor& matrix_VD, const at::Tensor& hidden_BTD) const;

 private:
  friend struct LayerTape;
  enum Slot : size_t {
    kInputNorm, kQ, kK, kV, kO, kQBias, kKBias, kVBias, kOBias, kQNorm, kKNorm, kPostNorm, kGate, kUp, kDown,
    kGateBias, kUpBias, kDownBias, kSlots,
  };
  struct LayerTensors {
    std::array<at::Tensor, kSlots> tensors;           // undefined: the layer has none, or (gradients) it is frozen
    std::array<kernels::Adapter, kSlots> adapters;    // of products
    const at::Tensor& operator[](size_t slot) const { return tensors[slot]; }
  };
  // What the slots of a unit's list of tensors are in the buffer of what is trained.
  struct Trained {
    const WholeTensor* whole = nullptr;
    const AdaptedModule* module = nullptr;
  };

  // A tensor of the unit: the trained one, in the base's type, where there is one.
  at::Tensor Weight(size_t unit, std::string_view suffix, const UnitWeights& weights) const;
  at::Tensor WeightGradient(size_t unit, std::string_view suffix, const UnitWeights& gradients) const;
  const AdaptedModule* ModuleOf(size_t unit, std::string_view name) const;
  // As weights, or as gradients.
  kernels::Adapter AdapterOf(size_t unit, const AdaptedModule* module, const at::Tensor& flat) const;
  at::Tensor TrainedView(size_t unit, size_t range, const at::Tensor& flat) const;
  LayerTensors LayerViews(int64_t layer, const UnitWeights& weights) const;
  LayerTensors LayerGradients(int64_t layer, const UnitWeights& gradients) const;
  // A product of the layer with its adapter.
  at::Tensor Product(const at::Tensor& x, const LayerTensors& w, Slot weight, Slot bias, const PreparedBatch& batch) const;
  // Up to the layer's last product, filling in the tape.
  at::Tensor RunLayer(int64_t layer, const LayerTensors& w, const at::Tensor& hidden_BTD, LayerTape& tape) const;
  at::Tensor Gated(const LayerTensors& w, const LayerTape& tape) const;
  // Attention's output through its product, added to the layer's input.
  at::Tensor Middle(const LayerTensors& w, const LayerTape& tape) const;
  at::Tensor ContinueLayer(int64_t layer, const LayerTensors& w, const at::Tensor& hidden_BTD, const PreparedBatch& batch, const KvCache& cache) const;
  at::Tensor AttendToCache(at::Tensor q_BNTH, at::Tensor k_BKSH, at::Tensor v_BKSH, const PreparedBatch::Attention& attention) const;
  at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight) const;
  absl::Status CheckIds(std::span<const int32_t> ids) const;
  void SetRotary(PreparedBatch& batch, const at::Tensor& positions_bT, int64_t length, at::ScalarType type) const;
  absl::Status SetVisible(PreparedBatch& batch, const int32_t* segments) const;
  void SetMasks(PreparedBatch& batch, at::ScalarType type) const;

  ModelConfig config_;
  ModelLayout layout_;
  std::optional<AdapterLayout> adapters_;
  std::vector<std::array<const TensorRange*, kSlots>> layer_ranges_;
  std::vector<std::array<Trained, kSlots>> layer_trained_;
};

}  // namespace argosy::train
