#include "train/model/merged_weights.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/base/status.h"

namespace argosy::train {

absl::StatusOr<std::unique_ptr<MergedWeights>> MergedWeights::Make(const StoredAdapter& adapter, bool untie) {
  const ModelConfig& base = adapter.config;
  ModelConfig config = base;
  for (const UnitAdapters& unit : adapter.layout.units) {
    for (const AdaptedModule& module : unit.modules) {
      if (!base.tie_word_embeddings || (module.name != "model.embed_tokens" && module.name != "lm_head")) continue;
      if (!untie) {
        return InvalidArgument("the adapter changes {}, and the base's embedding and head are one matrix (\"tie_word_embeddings\"): merged into it, the "
                               "change would be in both; --untie writes the head as a tensor of its own", module.name);
      }
    }
  }
  if (untie && base.tie_word_embeddings) {
    ARGOSY_ASSIGN_OR_RETURN(config, ModelConfig::Parse(base.ToJson({.tie_word_embeddings = false})));
  }
  return std::unique_ptr<MergedWeights>(new MergedWeights(adapter, std::move(config)));
}

absl::Status MergedWeights::Hold(const UnitAdapters& unit, const AdaptedModule& module) const {
  if (held_ == &module) return absl::OkStatus();
  held_ = nullptr;
  const TensorRange &a = unit.layout.ranges[module.a], &b = unit.layout.ranges[module.b];
  a_.resize(static_cast<size_t>(a.elements));
  b_.resize(static_cast<size_t>(b.elements));
  ARGOSY_RETURN_IF_ERROR(adapter_.values->Read(a, 0, a_));
  ARGOSY_RETURN_IF_ERROR(adapter_.values->Read(b, 0, b_));
  if (module.embedding) {
    // The matrix is (B A)' = A' B': A' takes the place of B, and B' that of A.
    auto transposed = [](const std::vector<float>& x, int64_t rows, int64_t columns) {
      std::vector<float> y(x.size());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) y[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
      }
      return y;
    };
    std::vector<float> left = transposed(a_, a.shape[0], a.shape[1]);
    a_ = transposed(b_, b.shape[0], b.shape[1]);
    b_ = std::move(left);
  }
  held_ = &module;
  return absl::OkStatus();
}

absl::Status MergedWeights::Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const {
  const bool untied_head = tensor.name == "lm_head.weight" && adapter_.config.tie_word_embeddings;
  TensorRange of_base = tensor;
  if (untied_head) of_base.name = "model.embed_tokens.weight";
  const std::string module_name = tensor.name.substr(0, tensor.name.rfind('.'));
  for (const UnitAdapters& unit : adapter_.layout.units) {
    if (const WholeTensor* whole = unit.FindWhole(tensor.name)) return adapter_.values->Read(unit.layout.ranges[whole->range], begin, out);
  }
  ARGOSY_RETURN_IF_ERROR(adapter_.base->Read(of_base, begin, out));
  for (const UnitAdapters& unit : adapter_.layout.units) {
    for (const AdaptedModule& module : unit.modules) {
      if (module.name != module_name || !tensor.is_matrix()) continue;
      ARGOSY_RETURN_IF_ERROR(Hold(unit, module));
      const int64_t columns = tensor.shape[1], rank = module.rank;
      const auto scale = static_cast<float>(module.scale);
      std::vector<float> change(static_cast<size_t>(columns));
      const int64_t end = begin + static_cast<int64_t>(out.size());
      for (int64_t at = begin; at < end;) {
        const int64_t row = at / columns, from = at % columns, to = std::min(columns, from + end - at);
        std::fill(change.begin(), change.end(), 0.0f);
        for (int64_t k = 0; k < rank; ++k) {
          const float factor = b_[static_cast<size_t>(row * rank + k)];
          const float* of_a = a_.data() + k * columns;
          for (int64_t j = from; j < to; ++j) change[static_cast<size_t>(j)] += factor * of_a[j];
        }
        float most = 0;
        for (int64_t j = from; j < to; ++j) {
          const float by = change[static_cast<size_t>(j)] * scale;
          most = std::max(most, std::abs(by));
          out[static_cast<size_t>(at - begin + j - from)] += by;
        }
        change_max_ = std::max<double>(change_max_, most);
        at += to - from;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
