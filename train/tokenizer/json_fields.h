#pragma once

// Reads the parts of tokenizer.json with errors that name the part and the field.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"

namespace argosy::train {

inline absl::StatusOr<std::string> StringField(const nlohmann::json& part, std::string_view key, std::string_view where) {
  auto field = part.find(std::string(key));
  if (field == part.end() || !field->is_string()) return InvalidArgument("{}: \"{}\" is missing or no string", where, key);
  return field->get<std::string>();
}

inline bool BoolField(const nlohmann::json& part, std::string_view key, bool otherwise) {
  auto field = part.find(std::string(key));
  return field != part.end() && field->is_boolean() ? field->get<bool>() : otherwise;
}

// The "type" of a part that is an object.
inline absl::StatusOr<std::string> TypeOf(const nlohmann::json& part, std::string_view where) {
  if (!part.is_object()) return InvalidArgument("{}: expected an object, not {}", where, part.type_name());
  return StringField(part, "type", where);
}

}  // namespace argosy::train
