#pragma once

// Typed reads from a JSON object that say which key was wrong, what it held, and what was wanted. Included by .cc files only.

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"

namespace argosy::train {

// The value as the file would write it, cut to fit a message.
inline std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Null when the key is absent or null.
inline const nlohmann::json* FindValue(const nlohmann::json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  auto it = object.find(std::string(key));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// Integers, and floats that are integral ("5e8").
inline std::optional<int64_t> AsInteger(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    uint64_t wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(wide);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    double number = value.get<double>();
    if (std::isfinite(number) && std::floor(number) == number && std::abs(number) < 9.0e18) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

inline absl::Status ReadInteger(const nlohmann::json& object, std::string_view key, int64_t& out) {
  const nlohmann::json* value = FindValue(object, key);
  if (value == nullptr) return absl::OkStatus();
  std::optional<int64_t> number = AsInteger(*value);
  if (!number) return InvalidArgument("\"{}\" is {}: it must be an integer", key, Shown(*value));
  out = *number;
  return absl::OkStatus();
}

inline absl::Status ReadDouble(const nlohmann::json& object, std::string_view key, double& out) {
  const nlohmann::json* value = FindValue(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return InvalidArgument("\"{}\" is {}: it must be a number", key, Shown(*value));
  out = value->get<double>();
  return absl::OkStatus();
}

inline absl::Status ReadBool(const nlohmann::json& object, std::string_view key, bool& out) {
  const nlohmann::json* value = FindValue(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return InvalidArgument("\"{}\" is {}: it must be true or false", key, Shown(*value));
  out = value->get<bool>();
  return absl::OkStatus();
}

inline absl::Status ReadString(const nlohmann::json& object, std::string_view key, std::string& out) {
  const nlohmann::json* value = FindValue(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return InvalidArgument("\"{}\" is {}: it must be a string", key, Shown(*value));
  out = value->get<std::string>();
  return absl::OkStatus();
}

}  // namespace argosy::train
