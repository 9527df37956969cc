#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "train/tokenizer/regex.h"

namespace argosy::train {

// "pattern" of tokenizer.json: {"String": "..."} or {"Regex": "..."}.
class Pattern {
 public:
  // From part["pattern"]; `where` names the part in errors.
  static absl::StatusOr<Pattern> Parse(const nlohmann::json& part, std::string_view where);

  std::vector<std::pair<size_t, size_t>> FindAll(std::string_view text) const;
  std::string ReplaceAll(std::string_view text, std::string_view content) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace argosy::train
