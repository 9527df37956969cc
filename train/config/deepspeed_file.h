#pragma once

// A DeepSpeed file as it is written, before anything is decided. Included by .cc files only.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace argosy::train {

struct DeepSpeedFile {
  // By canonical path ("zero_optimization.stage"), of the kind that the key wants, or "auto". Null values are left out.
  std::map<std::string, nlohmann::json, std::less<>> values;
  std::vector<std::string> warnings;   // old spellings, keys that nobody knows
  std::vector<std::string> errors;     // broken syntax, keys given twice, values of another kind
};

bool IsAutoText(const nlohmann::json& value);

// `text` is Hjson, of which JSON is a part; empty = no file. Never fails: what is wrong is in `errors`.
DeepSpeedFile ReadDeepSpeedFile(std::string_view text);

}  // namespace argosy::train
