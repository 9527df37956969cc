#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace argosy::train {

// What a layer's forward leaves for its backward, beside the layer's input; the rest is computed again, by the same operations: the results are equal
// to the last bit.
enum class Recompute : uint8_t {
  kNone,       // all that costs a product: queries, keys and values, attention's output, the residual behind it, gate and up
  kSelective,  // queries, keys and values behind the rotary embedding, attention's output and its log-sum-exp, gate and up
  kFull,       // nothing
};

// "none", "selective", "full".
std::string_view RecomputeName(Recompute recompute);
absl::StatusOr<Recompute> RecomputeFromName(std::string_view name);

}  // namespace argosy::train
