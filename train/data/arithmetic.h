#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "train/data/prompt.h"

namespace argosy::train {

struct ArithmeticOptions {
  int64_t rows = 10'000;
  int64_t operand_bound = 100;  // operands are 0 to operand_bound - 1
  uint64_t seed = 42;
};

// Sums in random order, none twice: {"question": "37+58", "context": "", "answer": "95"}. Every number has the digits that the largest one
// needs ("05+09" is "014" below 100), so that a digit's place in the row says what it counts: a small model learns
// the carry from a few thousand rows. 37+58 and 58+37 are one group, so that a held-out sum is not seen in training the other way round.
absl::StatusOr<std::vector<QaRow>> MakeSums(const ArithmeticOptions& options);

}  // namespace argosy::train
