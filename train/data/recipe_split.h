#pragma once

#include <cstdint>
#include <vector>

namespace argosy::train {

// The order in which NumPy's default_rng(seed).permutation(count) puts 0 to count - 1: SeedSequence, PCG64 (XSL-RR 128/64, O'Neill 2014)
// and a downward Fisher-Yates shuffle. The reference recipe splits its rows by it, so equal files give equal splits.
std::vector<int64_t> NumpyPermutation(uint64_t seed, int64_t count);

}  // namespace argosy::train
