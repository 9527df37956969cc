#include "train/checkpoint/safetensors.h"

#include <cmath>
#include <cstring>

#include "nlohmann/json.hpp"
#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/unit/train/checkpoint/support.h"
#include "tests/support/assets.h"
#include "train/checkpoint/checkpoint_layout.h"

namespace argosy::train {
namespace {

constexpr char kTwoTensors[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";

std::string TwoTensorsData() {
  float a[4] = {1.0f, -2.0f, 3.5f, 1e-3f};
  uint16_t b[3] = {Bf16FromFloat(0.5f), Bf16FromFloat(-8.0f), Bf16FromFloat(3.140625f)};
  return std::string(reinterpret_cast<char*>(a), 16) + std::string(reinterpret_cast<char*>(b), 6);
}

std::string OpenError(const TemporaryFolder& directory, std::string_view content) {
  std::string path = directory / "model.safetensors";
  Put(path, content);
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  REQUIRE_FALSE(file.ok());
  CHECK(Contains(Message(file.status()), path));
  return Message(file.status());
}

}  // namespace

TEST_CASE("SafetensorsFile: reads names, types, shapes and metadata in the order of the bytes") {
  TemporaryFolder directory;
  Put(directory / "model.safetensors", FileOf(kTwoTensors, TwoTensorsData()));
  SafetensorsFile file = SafetensorsFile::Open(directory / "model.safetensors").value();
  REQUIRE(file.Tensors().size() == 2);
  CHECK(file.Tensors()[0].name == "a");
  CHECK(file.Tensors()[0].shape == std::vector<int64_t>{2, 2});
  CHECK(file.Tensors()[1].dtype == DType::kBF16);
  CHECK(file.Tensors()[1].elements == 3);
  CHECK(file.Metadata().at("format") == "pt");
  CHECK(file.Find("c") == nullptr);
  float a[4];
  REQUIRE(file.ReadBytes(*file.Find("a"), 0, std::as_writable_bytes(std::span(a))).ok());
  CHECK(a[2] == 3.5f);
  CHECK_FALSE(file.ReadBytes(*file.Find("a"), 4, std::as_writable_bytes(std::span(a))).ok());
}

TEST_CASE("SafetensorsFile: scalars, empty tensors and an empty file are fine") {
  TemporaryFolder directory;
  Put(directory / "s", FileOf(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]}})", "1234"));
  SafetensorsFile file = SafetensorsFile::Open(directory / "s").value();
  CHECK(file.Find("s")->elements == 1);
  CHECK(file.Find("e")->elements == 0);
  Put(directory / "none", FileOf("{}", ""));
  CHECK(SafetensorsFile::Open(directory / "none").value().Tensors().empty());
}

TEST_CASE("SafetensorsFile: a damaged header is refused with the file, the tensor and what is wrong") {
  TemporaryFolder directory;
  auto one = [](const std::string& entry) { return FileOf("{\"w\":" + entry + "}", std::string(16, 'x')); };
  CHECK(Contains(OpenError(directory, ""), "0 bytes"));
  CHECK(Contains(OpenError(directory, std::string(8, '\xff')), "damaged"));
  CHECK(Contains(OpenError(directory, FileOf("[1]", "")), "does not start with"));
  CHECK(Contains(OpenError(directory, FileOf("{\"w\":}", "")), "not a JSON object"));
  std::string text = OpenError(directory, one(R"({"dtype":"F31","shape":[4],"data_offsets":[0,16]})"));
  CHECK(Contains(text, "tensor \"w\""));
  CHECK(Contains(text, "F31"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})")), "takes 20 bytes"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[8],"data_offsets":[0,32]})")), "cut short"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})")), "tensors end at byte"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[3],"data_offsets":[4,16]})")), "belong to no tensor"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})")), "data_offsets"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[4],"data_offsets":[-4,12]})")), "data_offsets"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})")), "shape"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]})")), "too large"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,16]})")), "too large"));
  CHECK(Contains(OpenError(directory, one(R"({"shape":[4],"data_offsets":[0,16]})")), "dtype"));
  CHECK(Contains(OpenError(directory, one(R"({"dtype":"F32","data_offsets":[0,16]})")), "shape"));
  CHECK(Contains(OpenError(directory, one(R"("text")")), "not an object"));
  const char* overlap = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})";
  text = OpenError(directory, FileOf(overlap, std::string(16, 'x')));
  CHECK(Contains(text, "\"b\" overlaps \"a\" by 4 bytes"));
  const char* twice = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  CHECK(Contains(OpenError(directory, FileOf(twice, std::string(16, 'x'))), "\"a\" twice"));
  CHECK(Contains(OpenError(directory, FileOf(R"({"__metadata__":{"n":1}})", "")), "not a string"));
}

TEST_CASE("SafetensorsFile: a file cut at any length is refused, and never crashes") {
  TemporaryFolder directory;
  std::string whole = FileOf(kTwoTensors, TwoTensorsData());
  for (size_t n = 0; n < whole.size(); ++n) OpenError(directory, std::string_view(whole).substr(0, n));
  OpenError(directory, whole + "x");
  Put(directory / "model.safetensors", whole);
  CHECK(SafetensorsFile::Open(directory / "model.safetensors").ok());
}

TEST_CASE("SafetensorsFile: random damage to the header never crashes, and what still opens reads inside the file") {
  TemporaryFolder directory;
  const std::string whole = FileOf(kTwoTensors, TwoTensorsData());
  const std::string path = directory / "model.safetensors";
  Prng prng(20261130);
  const std::string alphabet = "{}[],:\"0123456789-eE.abFSU\\ \x00\xff";
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    const int changes = 1 + static_cast<int>(prng.Next() % 4);
    for (int i = 0; i < changes; ++i) {
      size_t at = prng.Next() % (whole.size() - 22);
      damaged[at] = prng.Next() % 2 == 0 ? alphabet[prng.Next() % alphabet.size()] : static_cast<char>(prng.Next());
    }
    Put(path, damaged);
    absl::StatusOr<HfWeights> weights = HfWeights::Open(directory.path());
    if (!weights.ok()) continue;
    for (const StoredTensor& tensor : weights->Files().front().Tensors()) {
      CHECK(tensor.offset + tensor.bytes <= static_cast<int64_t>(damaged.size()));
      std::vector<float> values(static_cast<size_t>(tensor.elements));
      (void)weights->ReadRange(tensor.name, 0, values);
    }
  }
}

TEST_CASE("HfWeights: ranges are read and converted exactly from every float type") {
  TemporaryFolder directory;
  const char* header = R"({"f32":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"bf16":{"dtype":"BF16","shape":[2,2],"data_offsets":[16,24]},"f16":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},"ids":{"dtype":"I64","shape":[1],"data_offsets":[32,40]}})";
  float f32[4] = {1.0f, -2.5f, std::bit_cast<float>(0x3f808001u), 1e30f};
  uint16_t bf16[4] = {0x3f80, 0xc020, 0x7f80, 0x0001};
  uint16_t f16[4] = {0x3c00, 0xc100, 0x7bff, 0x0001};
  int64_t ids = 7;
  std::string data(40, '\0');
  std::memcpy(data.data(), f32, 16);
  std::memcpy(data.data() + 16, bf16, 8);
  std::memcpy(data.data() + 24, f16, 8);
  std::memcpy(data.data() + 32, &ids, 8);
  Put(directory / "model.safetensors", FileOf(header, data));
  HfWeights weights = HfWeights::Open(directory.path()).value();

  std::vector<float> values(3);
  REQUIRE(weights.ReadRange("f32", 1, values).ok());
  CHECK(values == std::vector<float>{-2.5f, f32[2], 1e30f});
  REQUIRE(weights.ReadRange("bf16", 0, values).ok());
  CHECK(values == std::vector<float>{1.0f, -2.5f, INFINITY});
  REQUIRE(weights.ReadRange("f16", 1, values).ok());
  CHECK(values == std::vector<float>{-2.5f, 65504.0f, std::ldexp(1.0f, -24)});

  std::vector<uint16_t> bits(2);
  REQUIRE(weights.ReadRangeBf16("f32", 1, bits).ok());
  CHECK(bits == std::vector<uint16_t>{0xc020, 0x3f81});
  REQUIRE(weights.ReadRangeBf16("bf16", 2, bits).ok());
  CHECK(bits == std::vector<uint16_t>{0x7f80, 0x0001});
  REQUIRE(weights.ReadRangeBf16("f16", 0, bits).ok());
  CHECK(bits == std::vector<uint16_t>{0x3f80, 0xc020});

  CHECK(weights.ReadRange("f32", 4, std::span<float>()).ok());
  CHECK_FALSE(weights.ReadRange("f32", 2, values).ok());
  CHECK_FALSE(weights.ReadRange("f32", -1, values).ok());
  CHECK(Contains(Message(weights.ReadRange("ids", 0, std::span(values).first(1))), "I64"));
  CHECK(Contains(Message(weights.ReadRange("gone", 0, values)), "\"gone\""));
}

TEST_CASE("HfWeights: a range larger than the read buffer is read whole") {
  TemporaryFolder directory;
  const int64_t count = 1'500'000;  // 3 MB of bf16
  std::vector<uint16_t> stored(count);
  for (int64_t i = 0; i < count; ++i) stored[i] = Bf16FromFloat(static_cast<float>(i % 251));
  std::string header = fmt::format(R"({{"w":{{"dtype":"BF16","shape":[{}],"data_offsets":[0,{}]}}}})", count, 2 * count);
  Put(directory / "model.safetensors", FileOf(header, std::string_view(reinterpret_cast<const char*>(stored.data()), 2 * count)));
  HfWeights weights = HfWeights::Open(directory.path()).value();
  std::vector<float> values(count - 3);
  REQUIRE(weights.ReadRange("w", 3, values).ok());
  bool equal = true;
  for (int64_t i = 0; i < count - 3; ++i) equal = equal && values[i] == static_cast<float>((i + 3) % 251);
  CHECK(equal);
}

TEST_CASE("HfWeights: a missing shard, a misplaced tensor and a double one are named") {
  TemporaryFolder directory;
  auto shard = [&](const char* file, const char* tensor) {
    Put(directory / file, FileOf(fmt::format(R"({{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}})", tensor), "1234"));
  };
  auto error = [&] { return Message(HfWeights::Open(directory.path()).status()); };
  CHECK(Contains(error(), "no weights"));
  Put(directory / "model.safetensors.index.json", "{}");
  CHECK(Contains(error(), "weight_map"));
  Put(directory / "model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  shard("one.safetensors", "a");
  std::string text = error();
  CHECK(Contains(text, "two.safetensors"));
  CHECK(Contains(text, "1 of the 2 shards"));
  shard("two.safetensors", "c");
  text = error();
  CHECK(Contains(text, "\"b\""));
  CHECK(Contains(text, "two.safetensors"));
  shard("two.safetensors", "b");
  HfWeights weights = HfWeights::Open(directory.path()).value();
  CHECK((weights.Has("a") && weights.Has("b") && !weights.Has("c")));
  shard("two.safetensors", "a");
  CHECK(Contains(error(), "two files"));
  Put(directory / "model.safetensors.index.json", R"({"weight_map": {"a": "../one.safetensors"}})");
  CHECK(Contains(error(), "not a file name"));
}

TEST_CASE("HfWeights: Check names the tensor whose shape disagrees or that is missing") {
  TemporaryFolder directory;
  Put(directory / "model.safetensors", FileOf(kTwoTensors, TwoTensorsData()));
  HfWeights weights = HfWeights::Open(directory.path()).value();
  std::vector<TensorSpec> wanted = {{"a", {2, 2}}, {"b", {3}}};
  CHECK(weights.Check(wanted).ok());
  CHECK(weights.MainDType() == DType::kF32);
  wanted[1].shape = {4};
  std::string text = Message(weights.Check(wanted));
  CHECK(Contains(text, "\"b\" has shape [3], config.json asks for [4]"));
  wanted[1] = {"model.layers.1.mlp.up_proj.weight", {3}};
  CHECK(Contains(Message(weights.Check(wanted)), "model.layers.1.mlp.up_proj.weight"));
}

// A file of zeros with these tensors.
std::string FileOfZeros(const std::vector<TensorSpec>& specs) {
  CheckpointLayout layout = PlanCheckpoint(specs, {.shard_bytes_max = INT64_MAX}).value();
  return layout.files[0].header + std::string(static_cast<size_t>(layout.tensor_bytes), '\0');
}

TEST_CASE("HfWeights: of a model all tensors that are missing, surplus or of another shape are named, layers as ranges") {
  TemporaryFolder directory;
  ModelConfig config = ModelConfig::Make({.vocab_size = 70, .hidden_size = 8, .intermediate_size = 12, .num_hidden_layers = 5, .num_attention_heads = 2,
                                          .num_key_value_heads = 2}).value();
  auto check = [&](const std::vector<TensorSpec>& stored, const ModelConfig& as) {
    Put(directory / "model.safetensors", FileOfZeros(stored));
    return Message(HfWeights::Open(directory.path()).value().CheckModel(as));
  };
  std::vector<TensorSpec> stored = config.Tensors(DType::kF32);
  CHECK(check(stored, config).empty());
  stored.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", {2}});   // as old files have it
  CHECK(check(stored, config).empty());
  std::erase_if(stored, [](const TensorSpec& spec) { return spec.name.ends_with("up_proj.weight") || spec.name == "model.layers.3.mlp.down_proj.weight"; });
  for (int layer : {0, 1, 4}) stored.push_back({fmt::format("model.layers.{}.self_attn.q_proj.bias", layer), {8}});
  stored.push_back({"model.extra", {3}});
  for (TensorSpec& spec : stored) {
    if (spec.name == "model.norm.weight") spec.shape = {9};
  }
  const std::string text = check(stored, config);
  INFO(text);
  CHECK(Contains(text, "\"model.norm.weight\" has shape [9], config.json asks for [8]"));
  CHECK(Contains(text, "lacks 6 tensors that config.json asks for: model.layers.*.mlp.up_proj.weight (layers 0 to 4), model.layers.3.mlp.down_proj.weight"));
  CHECK(Contains(text, "has 4 tensors that config.json has no place for: model.extra, model.layers.*.self_attn.q_proj.bias (layers 0, 1, 4)"));

  ModelConfig tied = ModelConfig::Parse(config.ToJson({.tie_word_embeddings = true})).value();
  CHECK(check(config.Tensors(DType::kF32), tied).empty());   // both zero: the same matrix twice
  std::string bytes = FileOfZeros(config.Tensors(DType::kF32));
  CheckpointLayout layout = PlanCheckpoint(config.Tensors(DType::kF32), {}).value();
  bytes[static_cast<size_t>(layout.Find("lm_head.weight")->extent.begin) + 3] = '\x3f';
  Put(directory / "model.safetensors", bytes);
  CHECK(Contains(Message(HfWeights::Open(directory.path()).value().CheckModel(tied)), "tie_word_embeddings"));
}

TEST_CASE("HfWeights: every tiny model holds what its config asks for, sharded or not") {
  auto root = testing::FindAsset("tiny");
  if (!root) return;
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*root)) {
    std::string directory = entry.path().string();
    if (!std::filesystem::exists(directory + "/config.json")) continue;
    INFO(directory);
    ModelConfig config = ModelConfig::Load(directory).value();
    absl::StatusOr<HfWeights> weights = HfWeights::Open(directory);
    INFO(weights.status().ToString());
    REQUIRE(weights.ok());
    absl::Status check = weights->Check(config.Tensors(config.dtype));
    INFO(check.ToString());
    CHECK(check.ok());
    CHECK(weights->MainDType() == config.dtype);
    ++models;
  }
  CHECK(models >= 10);
  std::string whole = root->string() + "/llama2-mha", sharded = root->string() + "/llama2-mha-sharded";
  HfWeights a = HfWeights::Open(whole).value(), b = HfWeights::Open(sharded).value();
  CHECK(b.Files().size() == 5);
  for (const TensorSpec& spec : ModelConfig::Load(whole)->Tensors(DType::kF32)) {
    std::vector<float> left(spec.Elements()), right(spec.Elements());
    REQUIRE(a.ReadRange(spec.name, 0, left).ok());
    REQUIRE(b.ReadRange(spec.name, 0, right).ok());
    CHECK(left == right);
  }
}

}  // namespace argosy::train
