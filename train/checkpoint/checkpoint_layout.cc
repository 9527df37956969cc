#include "train/checkpoint/checkpoint_layout.h"

#include <algorithm>
#include <cstring>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "spdlog/fmt/ranges.h"

namespace argosy::train {
namespace {

// The header as the reference writer has it: metadata first, tensors in the order of their bytes, no spaces, padded to 8.
std::string MakeHeader(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); };
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      text += fmt::format("{}{}:{}", first ? "" : ",", quoted(key), quoted(value));
      first = false;
    }
    text += "}";
  }
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "", quoted(tensor.name),
                        SafetensorsName(tensor.dtype), fmt::join(tensor.shape, ","), offset, offset + tensor.Bytes());
    offset += tensor.Bytes();
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  uint64_t size = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &size, 8);
  return header + text;
}

// Shards by position in `tensors`.
std::vector<std::vector<size_t>> CutShards(std::span<const TensorSpec> tensors, int64_t shard_bytes_max) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> current;
  int64_t current_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t bytes = tensors[i].Bytes();
    if (bytes > shard_bytes_max) {  // alone; the shard being filled goes on
      shards.push_back({i});
      continue;
    }
    if (current_bytes + bytes > shard_bytes_max) {
      shards.push_back(std::move(current));
      current.clear();
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

}  // namespace

const PlacedTensor* CheckpointLayout::Find(std::string_view name) const {
  auto it = by_name.find(std::string(name));
  return it == by_name.end() ? nullptr : &files[it->second.first].tensors[it->second.second];
}

FileExtent CheckpointLayout::ExtentOf(const PlacedTensor& tensor, int64_t element_begin, int64_t element_count) const {
  const int64_t size = SizeOf(tensor.spec.dtype);
  ARGOSY_CHECK(element_begin >= 0 && element_count >= 0 && element_begin + element_count <= tensor.spec.Elements(),
               "elements {} + {} of {}", element_begin, element_count, tensor.spec.name);
  int64_t begin = tensor.extent.begin + element_begin * size;
  return {tensor.extent.file, begin, begin + element_count * size};
}

int64_t CheckpointLayout::FileBytes() const {
  int64_t bytes = 0;
  for (const PlannedFile& file : files) bytes += file.bytes;
  return bytes;
}

absl::StatusOr<CheckpointLayout> PlanCheckpoint(std::span<const TensorSpec> tensors, const LayoutOptions& options) {
  if (options.shard_bytes_max <= 0) return InvalidArgument("the shard size is {}: it must be above 0", options.shard_bytes_max);
  CheckpointLayout layout;
  std::vector<std::vector<size_t>> shards = CutShards(tensors, options.shard_bytes_max);
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t f = 0; f < shards.size(); ++f) {
    PlannedFile file;
    file.name = shards.size() == 1 ? fmt::format("{}.safetensors", options.stem)
                                   : fmt::format("{}-{:05}-of-{:05}.safetensors", options.stem, f + 1, shards.size());
    std::vector<TensorSpec> sorted;
    for (size_t i : shards[f]) sorted.push_back(tensors[i]);
    std::sort(sorted.begin(), sorted.end(), [](const TensorSpec& a, const TensorSpec& b) {
      return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
    });
    file.header = MakeHeader(sorted, options.metadata);
    int64_t offset = static_cast<int64_t>(file.header.size());
    for (TensorSpec& spec : sorted) {
      const int64_t bytes = spec.Bytes();
      layout.tensor_bytes += bytes;
      layout.parameters += spec.Elements();
      if (!layout.by_name.emplace(spec.name, std::pair(f, file.tensors.size())).second) {
        return InvalidArgument("tensor \"{}\" is given twice", spec.name);
      }
      weight_map[spec.name] = file.name;
      file.tensors.push_back({std::move(spec), {f, offset, offset + bytes}});
      offset += bytes;
    }
    file.bytes = offset;
    layout.files.push_back(std::move(file));
  }
  if (layout.files.size() > 1) {
    nlohmann::json index = {{"metadata", {{"total_parameters", layout.parameters}, {"total_size", layout.tensor_bytes}}},
                            {"weight_map", std::move(weight_map)}};
    layout.index_json = index.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return layout;
}

}  // namespace argosy::train
