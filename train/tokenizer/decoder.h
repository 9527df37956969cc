#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace argosy::train {

// How tokens become text again: "decoder" of tokenizer.json. ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder and
// Sequence; others are refused by name.
class Decoder {
 public:
  static absl::StatusOr<Decoder> Parse(const nlohmann::json& part);  // null: tokens with a space between them

  std::string Apply(std::vector<std::string> tokens) const;

 private:
  absl::Status Add(const nlohmann::json& part);
  bool joins_with_spaces_ = false;
  std::vector<std::function<void(std::vector<std::string>&)>> steps_;
};

}  // namespace argosy::train
