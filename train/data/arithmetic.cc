#include "train/data/arithmetic.h"

#include <algorithm>
#include <string>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

std::string Padded(int64_t number, size_t width) {
  std::string digits = std::to_string(number);
  return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
}

}  // namespace

absl::StatusOr<std::vector<QaRow>> MakeSums(const ArithmeticOptions& options) {
  constexpr int64_t kBoundMax = 4096;
  int64_t bound = options.operand_bound;
  if (bound < 2 || bound > kBoundMax) return InvalidArgument("operand bound {} is not within 2 to {}", bound, kBoundMax);
  if (options.rows < 2 || options.rows > bound * bound) {
    return InvalidArgument("{} rows cannot be had: operands below {} make {} different sums (and 2 rows are the least)", options.rows,
                           bound, bound * bound);
  }
  std::vector<int64_t> pairs(static_cast<size_t>(bound * bound));
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<int64_t>(i);
  Prng prng(options.seed);
  size_t operand_width = std::to_string(bound - 1).size();
  size_t answer_width = std::to_string(2 * (bound - 1)).size();
  std::vector<QaRow> rows;
  rows.reserve(static_cast<size_t>(options.rows));
  for (size_t i = 0; i < static_cast<size_t>(options.rows); ++i) {
    std::swap(pairs[i], pairs[i + prng.Below(pairs.size() - i)]);
    int64_t a = pairs[i] / bound, b = pairs[i] % bound;
    rows.push_back({.question = Padded(a, operand_width) + "+" + Padded(b, operand_width),
                    .context = "",
                    .answer = Padded(a + b, answer_width),
                    .group = static_cast<uint64_t>(std::min(a, b) * bound + std::max(a, b) + 1)});
  }
  return rows;
}

}  // namespace argosy::train
