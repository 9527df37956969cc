#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::train {

// A member of a JSON object, or an element of an array (its key is empty), as the bytes [begin, end) of the text.
struct JsonMember {
  std::string key;
  size_t begin = 0;
  size_t end = 0;
};

// The members of the object or array that `text` is, in the order of the text. Values are found, not validated: who reads one
// parses it. This is how a big file keeps its order and its untouched bytes, and how an error finds its line.
absl::StatusOr<std::vector<JsonMember>> ScanJsonMembers(std::string_view text);

// 1-based line of byte `at`.
size_t LineOf(std::string_view text, size_t at);

}  // namespace argosy::train
