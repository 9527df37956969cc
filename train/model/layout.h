#pragma once

// How a model's tensors lie in the flat buffers of its units. Free of torch: plans and checkpoints use it too.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/config/model_config.h"

namespace argosy::train {

// One tensor's place in its unit's flat buffer.
struct TensorRange {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in elements, a multiple of kRangeGrain
  int64_t elements = 0;
  bool is_matrix() const { return shape.size() > 1; }
};

// Ranges and shares begin at multiples of this many elements: a cache line at least, whatever the element type.
inline constexpr int64_t kRangeGrain = 64;

// A unit's flat buffer: its tensors in checkpoint-file order, each padded with zeros to the grain.
struct UnitLayout {
  std::string name;
  std::vector<TensorRange> ranges;
  int64_t elements = 0;  // padding included; a multiple of kRangeGrain

  // Null when the unit has no such tensor. `suffix` may be the end of the name: "mlp.up_proj.weight".
  const TensorRange* Find(std::string_view suffix) const;
};

struct ModelLayout {
  std::vector<UnitLayout> units;  // embedding, decoder layers, head
  bool tied = false;              // the head's matrix is the embedding's

  int64_t ElementsMax() const;  // of the largest unit
  int64_t ParameterCount() const;
  std::vector<TensorRange> Ranges() const;   // of all units
};

ModelLayout MakeLayout(const ModelConfig& config);

}  // namespace argosy::train
