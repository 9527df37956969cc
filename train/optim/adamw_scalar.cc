// Built without vectorisation: the oracle must not share the passes' code generation.
#include "train/optim/adamw.h"

namespace argosy::train {

void AdamWStepF32Scalar(std::span<float> parameter, const AdamWSlice& slice, const AdamWScalars& scalars) {
  for (size_t i = 0; i < parameter.size(); ++i) {
    AdamWElement(parameter[i], slice.moment1[i], slice.moment2[i], slice.gradient[i], scalars);
  }
}

void AdamWStepBf16Scalar(std::span<uint16_t> parameter, std::span<uint16_t> low, const AdamWSlice& slice,
                         const AdamWScalars& scalars) {
  for (size_t i = 0; i < parameter.size(); ++i) {
    float master = Join({parameter[i], low[i]});
    const float gradient = slice.gradient_bf16.empty() ? slice.gradient[i] : FloatFromBf16(slice.gradient_bf16[i]);
    if (slice.moment1_bf16.empty()) {
      AdamWElement(master, slice.moment1[i], slice.moment2[i], gradient, scalars);
    } else {
      float moment1 = FloatFromBf16(slice.moment1_bf16[i]), moment2 = FloatFromBf16(slice.moment2_bf16[i]);
      AdamWElement(master, moment1, moment2, gradient, scalars);
      const uint32_t random = RoundingBits(slice.key, slice.first + static_cast<uint32_t>(i));
      slice.moment1_bf16[i] = RoundToBf16(moment1, random & 0xffffu);
      slice.moment2_bf16[i] = RoundToBf16(moment2, random >> 16);
    }
    SplitFloat halves = Split(master);
    parameter[i] = halves.parameter;
    low[i] = halves.low;
  }
}

}  // namespace argosy::train
