#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "train/tokenizer/piece.h"

namespace argosy::train {

// How the text is cut into the pieces that merges never cross: "pre_tokenizer" of tokenizer.json. ByteLevel, Split, Digits,
// Metaspace, Sequence, Whitespace, WhitespaceSplit, Punctuation and CharDelimiterSplit; others are refused by name.
class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Parse(const nlohmann::json& part);  // null: nothing is cut

  // Cuts the pieces that are not tokens yet. No empty piece remains.
  void Apply(std::vector<Piece>& pieces) const {
    for (const auto& step : steps_) step(pieces);
  }

 private:
  absl::Status Add(const nlohmann::json& part);
  std::vector<std::function<void(std::vector<Piece>&)>> steps_;
};

}  // namespace argosy::train
