#pragma once

// How much the kernels compute at a time: what memory they take beside their arguments, which plans reckon with. Free of torch.

#include <cstdint>

namespace argosy::train::kernels {

inline constexpr int64_t kQueriesOfBlock = 128;         // of attention
inline constexpr int64_t kLogitsBytesMax = 32 << 20;    // of one chunk of tokens
inline constexpr int64_t kProductRows = 4096;           // of a gradient that is added in another type than it is computed in

inline constexpr int64_t kAdapterRows = 512;            // tokens of an adapter's backward, whose dropped inputs are kept in fp32

}  // namespace argosy::train::kernels
