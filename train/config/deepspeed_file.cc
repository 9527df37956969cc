#include "train/config/deepspeed_file.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "runtime/base/status.h"
#include "train/config/deepspeed_keys.h"
#include "train/config/json.h"
#include "train/config/relaxed_json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

std::string_view LeafOf(std::string_view path) { return path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1); }
std::string_view SectionOf(std::string_view path) {
  size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

const DeepSpeedAlias* FindAlias(std::string_view path) {
  for (const DeepSpeedAlias& alias : DeepSpeedAliases()) {
    if (alias.path == path) return &alias;
  }
  return nullptr;
}

// "did you mean": a sibling spelled nearly so, or the same name in another section.
std::string Suggestion(std::string_view path) {
  const std::string leaf = absl::AsciiStrToLower(ToAbsl(LeafOf(path)));
  if (leaf == "max_grad_norm" || leaf == "grad_clip" || leaf == "clip_grad") return "gradient_clipping";
  NearestName nearest(leaf);
  auto consider = [&](std::string_view candidate) {
    if (SectionOf(candidate) == SectionOf(path)) nearest.Consider(EditDistance(leaf, LeafOf(candidate)), candidate);
  };
  for (const DeepSpeedKey& key : DeepSpeedKeys()) consider(key.path);
  for (const DeepSpeedAlias& alias : DeepSpeedAliases()) consider(alias.path);
  if (!nearest.best().empty()) return nearest.best();
  for (const DeepSpeedKey& key : DeepSpeedKeys()) {
    if (LeafOf(key.path) == leaf) return std::string(key.path);
  }
  return {};
}

// The source's byte that the parser's count of bytes stands for; it points behind the character that was wrong.
size_t PlaceOf(const PlainJson& plain, size_t byte) {
  return byte == 0 ? 0 : plain.places[std::min(byte - 1, plain.places.size() - 1)] + 1;
}

// Parses with duplicate keys and broken syntax reported where they are.
json ParseFile(std::string_view text, std::vector<std::string>& errors) {
  const PlainJson plain = JsonFromHjson(text);
  std::vector<std::set<std::string>> keys;
  auto callback = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty() && !keys.back().insert(parsed.get<std::string>()).second) {
      errors.push_back(fmt::format("\"{}\" is given twice: remove one of the two", parsed.get<std::string>()));
    }
    return true;
  };
  json file;
  try {
    file = json::parse(plain.text, callback);
  } catch (const json::parse_error& error) {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line 3, column 5: ..."
    size_t detail = what.find("syntax error");
    errors.push_back(fmt::format("it is not valid JSON at {}: {}", PlaceInText(text, PlaceOf(plain, error.byte)),
                                 detail == std::string::npos ? what : what.substr(detail)));
    return json::object();
  } catch (const json::exception& error) {   // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    const std::string what = error.what();
    const size_t detail = what.find("] ");
    errors.push_back(fmt::format("it cannot be read: {}", detail == std::string::npos ? what : what.substr(detail + 2)));
    return json::object();
  }
  if (!file.is_object()) {
    errors.push_back("it must be a JSON object: { \"zero_optimization\": { ... }, ... }");
    return json::object();
  }
  return file;
}

class Reader {
 public:
  DeepSpeedFile Run(std::string_view text) {
    json object = json::object();
    if (!text.empty()) object = ParseFile(text, file_.errors);
    Flatten(object, "");
    return std::move(file_);
  }

 private:
  template <class... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    file_.errors.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Warn(fmt::format_string<Args...> format, Args&&... args) {
    file_.warnings.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void Flatten(const json& object, const std::string& prefix) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = prefix + name;
      std::string canonical = path;
      if (const DeepSpeedAlias* alias = FindAlias(path)) {
        canonical = alias->canonical;
        if (object.contains(std::string(LeafOf(canonical)))) {
          Error("\"{}\" and \"{}\" are two names of the same setting: give one of them", path, canonical);
          continue;
        }
        if (alias->deprecated) Warn("\"{}\" is an old name of \"{}\"", path, canonical);
      }
      const DeepSpeedKey* key = FindDeepSpeedKey(canonical);
      if (key == nullptr) {
        Unknown(path, prefix.empty());
        continue;
      }
      if (value.is_null()) continue;
      if (key->kind == KeyKind::kSection) {
        if (canonical == "zero_optimization" && value.is_boolean()) {
          Warn("\"zero_optimization\": {} is an old spelling of \"stage\": {}", Shown(value), value.get<bool>() ? 1 : 0);
          file_.values["zero_optimization.stage"] = value.get<bool>() ? 1 : 0;
        } else if (!value.is_object()) {
          if (!IsAutoText(value)) Error("\"{}\" is {}: it must be an object", path, Shown(value));
        } else {
          Flatten(value, canonical + ".");
        }
        continue;
      }
      Take(*key, path, value);
    }
  }

  void Unknown(const std::string& path, bool top_level) {
    const std::string suggestion = Suggestion(path);
    if (!suggestion.empty()) Error("\"{}\" is not a known key: did you mean \"{}\"?", path, suggestion);
    else if (top_level) Warn("\"{}\" is not a known key: it is ignored", path);
    else Error("\"{}\" is not a known key", path);
  }

  void Take(const DeepSpeedKey& key, const std::string& path, const json& value) {
    if (IsAutoText(value)) {
      file_.values[std::string(key.path)] = value;
      return;
    }
    json taken = value;
    const char* wanted = nullptr;
    switch (key.kind) {
      case KeyKind::kInteger:
      case KeyKind::kSize:
        if (std::optional<int64_t> number = value.is_number() ? AsInteger(value) : std::nullopt) {
          taken = *number;
        } else if (key.kind == KeyKind::kSize && value.is_number_float() && std::isfinite(value.get<double>()) &&
                   std::abs(value.get<double>()) < 9e18) {
          taken = static_cast<int64_t>(std::floor(value.get<double>()));
          Warn("\"{}\" is {}: it counts elements, so {} is used", path, Shown(value), taken.get<int64_t>());
        } else {
          wanted = "an integer";
        }
        break;
      case KeyKind::kNumber: if (!value.is_number()) wanted = "a number"; break;
      case KeyKind::kBool: if (!value.is_boolean()) wanted = "true or false"; break;
      case KeyKind::kText: if (!value.is_string()) wanted = "a string"; break;
      case KeyKind::kList: if (!value.is_array()) wanted = "a list"; break;
      case KeyKind::kSection:
      case KeyKind::kAny: break;
    }
    if (wanted != nullptr) {
      Error("\"{}\" is {}{}: it must be {}{}", path, Shown(value), value.is_string() ? " (a string)" : "", wanted,
            key.fate == KeyFate::kHonoured ? " or \"auto\"" : "");
      return;
    }
    file_.values[std::string(key.path)] = std::move(taken);
  }

  DeepSpeedFile file_;
};

}  // namespace

bool IsAutoText(const json& value) { return value.is_string() && value.get<std::string>() == "auto"; }

DeepSpeedFile ReadDeepSpeedFile(std::string_view text) { return Reader().Run(text); }

}  // namespace argosy::train
