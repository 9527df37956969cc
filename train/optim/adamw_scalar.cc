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
    AdamWElement(master, slice.moment1[i], slice.moment2[i], gradient, scalars);
    SplitFloat halves = Split(master);
    parameter[i] = halves.parameter;
    low[i] = halves.low;
  }
}

}  // namespace argosy::train
