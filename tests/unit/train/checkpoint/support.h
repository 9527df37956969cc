#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/checkpoint_writer.h"

namespace argosy::train {

using testing::TemporaryFolder;

// Removed first: replacing a file makes some file systems wait for the disk.
inline void Put(const std::string& path, std::string_view content) {
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  REQUIRE(file);
}

// A safetensors file's bytes.
inline std::string FileOf(std::string header, std::string_view data) {
  header.append((8 - header.size() % 8) % 8, ' ');
  uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data);
}

template <class T>
std::span<const std::byte> BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The float that tests expect at `index` of the tensor.
inline float ValueAt(std::string_view tensor, int64_t index) {
  return static_cast<float>(std::hash<std::string_view>()(tensor) % 97) + static_cast<float>(index) * 0.5f;
}

inline std::vector<float> ValuesOf(const TensorSpec& spec, float plus = 0.0f) {
  std::vector<float> values(static_cast<size_t>(spec.Elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(spec.name, static_cast<int64_t>(i)) + plus;
  return values;
}

// Writes every tensor (all fp32), `piece` bytes at a time, up to `stop_after` bytes.
inline void Fill(CheckpointWriter& writer, float plus = 0.0f, size_t piece = 1 << 20, size_t stop_after = SIZE_MAX) {
  size_t written = 0;
  for (const PlannedFile& file : writer.Layout().files) {
    for (const PlacedTensor& tensor : file.tensors) {
      std::vector<float> values = ValuesOf(tensor.spec, plus);
      std::span<const std::byte> bytes = BytesOf(values);
      for (size_t begin = 0; begin < bytes.size(); begin += piece) {
        if (written >= stop_after) return;
        std::span<const std::byte> part = bytes.subspan(begin, std::min(piece, bytes.size() - begin));
        absl::Status status = writer.Write(tensor.spec.name, static_cast<int64_t>(begin), part);
        INFO(status.ToString());
        REQUIRE(status.ok());
        written += part.size();
      }
    }
  }
}

// What stands in a folder.
inline std::set<std::string> Names(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace argosy::train
