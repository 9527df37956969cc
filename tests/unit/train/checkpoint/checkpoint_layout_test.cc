#include "train/checkpoint/checkpoint_layout.h"

#include "nlohmann/json.hpp"
#include "tests/unit/train/checkpoint/support.h"
#include "train/checkpoint/crc32c.h"

namespace argosy::train {

TEST_CASE("PlanCheckpoint: the header is the reference writer's, byte for byte") {
  // What safetensors 0.8.0 writes for {"b": bf16 [3], "a": f32 [2,2], "c": f32 [1]} with metadata {"format": "pt"}.
  std::vector<TensorSpec> tensors = {{"b", {3}, DType::kBF16}, {"c", {1}, DType::kF32}, {"a", {2, 2}, DType::kF32}};
  CheckpointLayout layout = PlanCheckpoint(tensors).value();
  REQUIRE(layout.files.size() == 1);
  std::string text =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"c":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[20,26]}})";
  CHECK(layout.files[0].header == FileOf(text, ""));
  CHECK(layout.files[0].header.size() % 8 == 0);
  CHECK(layout.files[0].name == "model.safetensors");
  CHECK(layout.index_json.empty());
  CHECK(layout.tensor_bytes == 26);
  CHECK(layout.parameters == 8);
  CHECK(layout.files[0].bytes == static_cast<int64_t>(layout.files[0].header.size()) + 26);
}

TEST_CASE("PlanCheckpoint: shards are filled in order, a large tensor is alone, the index says where each is") {
  std::vector<TensorSpec> tensors = {
      {"z", {10}}, {"big", {100}}, {"y", {10}}, {"x", {10}}, {"w", {1}},  // 40, 400, 40, 40, 4 bytes
  };
  CheckpointLayout layout = PlanCheckpoint(tensors, {.shard_bytes_max = 100}).value();
  REQUIRE(layout.files.size() == 3);
  CHECK(layout.files[0].name == "model-00001-of-00003.safetensors");
  nlohmann::json index = nlohmann::json::parse(layout.index_json);
  CHECK(index["metadata"]["total_size"] == 524);
  CHECK(index["metadata"]["total_parameters"] == 131);
  // As huggingface_hub's splitter does: the large one's shard comes first because it is finished first.
  CHECK(index["weight_map"]["big"] == "model-00001-of-00003.safetensors");
  CHECK(index["weight_map"]["z"] == "model-00002-of-00003.safetensors");
  CHECK(index["weight_map"]["y"] == "model-00002-of-00003.safetensors");
  CHECK(index["weight_map"]["x"] == "model-00003-of-00003.safetensors");
  CHECK(layout.files[1].tensors[0].spec.name == "y");  // by name inside the file
  CHECK(PlanCheckpoint(tensors, {.shard_bytes_max = 0}).ok() == false);
}

TEST_CASE("PlanCheckpoint: extents lie where the header says, and a name given twice is refused") {
  std::vector<TensorSpec> tensors = {{"a", {4, 4}, DType::kBF16}, {"b", {2}, DType::kBF16}};
  CheckpointLayout layout = PlanCheckpoint(tensors).value();
  const PlacedTensor* b = layout.Find("b");
  REQUIRE(b != nullptr);
  CHECK(b->extent.begin == static_cast<int64_t>(layout.files[0].header.size()) + 32);
  const PlacedTensor* a = layout.Find("a");
  FileExtent part = layout.ExtentOf(*a, 5, 3);
  CHECK(part.begin == a->extent.begin + 10);
  CHECK(part.end == a->extent.begin + 16);
  CHECK(layout.Find("c") == nullptr);
  tensors.push_back({"a", {1}});
  CHECK(Contains(Message(PlanCheckpoint(tensors).status()), "\"a\" is given twice"));
}

TEST_CASE("Crc32c: two parts' checksums combine to that of both") {
  std::vector<std::byte> bytes(3'000'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  const uint32_t whole = ExtendCrc32c(0, bytes);
  for (size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{2'999'999}, bytes.size()}) {
    INFO("cut at " << cut);
    const auto all = std::span<const std::byte>(bytes);
    CHECK(CombineCrc32c(ExtendCrc32c(0, all.first(cut)), ExtendCrc32c(0, all.subspan(cut)), static_cast<int64_t>(bytes.size() - cut)) == whole);
  }
}

TEST_CASE("Crc32c: the standard's check value, whole or in pieces") {
  std::string_view digits = "123456789";
  auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  CHECK(ExtendCrc32c(0, bytes(digits)) == 0xe3069283u);
  CHECK(ExtendCrc32c(ExtendCrc32c(0, bytes(digits.substr(0, 4))), bytes(digits.substr(4))) == 0xe3069283u);
  CHECK(ExtendCrc32c(0, bytes("")) == 0u);
  CHECK(ExtendCrc32c(0, bytes(std::string(32, '\0'))) == 0x8a9136aau);  // RFC 3720, B.4
}

}  // namespace argosy::train
