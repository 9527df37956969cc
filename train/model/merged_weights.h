#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/model/adapter_layout.h"

namespace argosy::train {

// An adapter added to its base: the weights of a plain model. Each element is base + scale * (B A), computed in fp32.
//
// Thread:   one.
// Lifetime: `adapter` outlives it.
// Memory:   one module's A and B.
class MergedWeights final : public WeightSource {
 public:
  // Refuses adapters of a tied embedding or head, whose two ends would differ; with `untie` the head becomes a tensor of its own.
  static absl::StatusOr<std::unique_ptr<MergedWeights>> Make(const StoredAdapter& adapter, bool untie);

  // Of the result.
  const ModelConfig& config() const { return config_; }
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override;
  // The largest change of a weight so far.
  double change_max() const { return change_max_; }

 private:
  MergedWeights(const StoredAdapter& adapter, ModelConfig config) : adapter_(adapter), config_(std::move(config)) {}
  absl::Status Hold(const UnitAdapters& unit, const AdaptedModule& module) const;

  const StoredAdapter& adapter_;
  ModelConfig config_;
  mutable const AdaptedModule* held_ = nullptr;
  mutable std::vector<float> a_, b_;   // of `held_`: [rank, in] and [out, rank], an embedding's as if it were [vocabulary, width]
  mutable double change_max_ = 0;
};

}  // namespace argosy::train
