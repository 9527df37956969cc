#include "train/checkpoint/manifest.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/config/json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

std::string Hex(uint32_t crc) { return fmt::format("{:08x}", crc); }

absl::StatusOr<uint32_t> FromHex(const json& value) {
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    uint32_t crc = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
    if (error == std::errc() && end == text.data() + text.size()) return crc;
  }
  return InvalidArgument("{} is not a checksum", Shown(value));
}

}  // namespace

std::string CheckpointManifest::ToJson() const {
  json file = {{"format", 1}, {"step", notes.step}, {"epoch", notes.epoch}};
  json metrics = json::object();
  for (const auto& [name, value] : notes.metrics) metrics[name] = std::isfinite(value) ? json(value) : json(nullptr);
  file["metrics"] = std::move(metrics);
  json files_json = json::object();
  for (const auto& [name, record] : files) files_json[name] = {{"bytes", record.bytes}, {"crc32c", Hex(record.crc32c)}};
  file["files"] = std::move(files_json);
  json tensors_json = json::object();
  for (const auto& [name, crc] : tensors) tensors_json[name] = Hex(crc);
  file["tensors"] = std::move(tensors_json);
  return file.dump(1, ' ', true, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<CheckpointManifest> CheckpointManifest::Parse(std::string_view text) {
  json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return InvalidArgument("{} is not a JSON object", kManifestName);
  CheckpointManifest manifest;
  ARGOSY_RETURN_IF_ERROR(ReadInteger(file, "step", manifest.notes.step));
  ARGOSY_RETURN_IF_ERROR(ReadInteger(file, "epoch", manifest.notes.epoch));
  if (auto it = file.find("metrics"); it != file.end() && it->is_object()) {
    for (const auto& [name, value] : it->items()) {
      manifest.notes.metrics[name] = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
  }
  const json* files = FindValue(file, "files");
  if (files == nullptr || !files->is_object()) return InvalidArgument("{} lists no files", kManifestName);
  for (const auto& [name, record] : files->items()) {
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == ".." || !record.is_object()) {
      return InvalidArgument("{} lists \"{}\"", kManifestName, name);
    }
    File& entry = manifest.files[name];
    ARGOSY_RETURN_IF_ERROR(ReadInteger(record, "bytes", entry.bytes));
    const json* crc = FindValue(record, "crc32c");
    if (crc == nullptr) return InvalidArgument("{} has no checksum for \"{}\"", kManifestName, name);
    ARGOSY_ASSIGN_OR_RETURN(entry.crc32c, FromHex(*crc));
  }
  if (const json* tensors = FindValue(file, "tensors"); tensors != nullptr && tensors->is_object()) {
    for (const auto& [name, crc] : tensors->items()) {
      ARGOSY_ASSIGN_OR_RETURN(manifest.tensors[name], FromHex(crc));
    }
  }
  return manifest;
}

absl::StatusOr<CheckpointManifest> CheckpointManifest::Load(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / kManifestName).string();
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  absl::StatusOr<CheckpointManifest> manifest = Parse(text);
  if (!manifest.ok()) return Annotate(manifest.status(), directory);
  return manifest;
}

}  // namespace argosy::train
