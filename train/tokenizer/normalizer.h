#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "train/tokenizer/piece.h"

namespace argosy::train {

// What is done to the text before it is cut: "normalizer" of tokenizer.json. Prepend, Replace, Sequence, NFC, NFD, NFKC, NFKD, Strip,
// Lowercase and ByteLevel; others are refused by name.
class Normalizer {
 public:
  static absl::StatusOr<Normalizer> Parse(const nlohmann::json& part);  // null: nothing is done

  void Apply(Piece& piece) const {
    for (const auto& step : steps_) step(piece);
  }

 private:
  absl::Status Add(const nlohmann::json& part);
  std::vector<std::function<void(Piece&)>> steps_;
};

}  // namespace argosy::train
