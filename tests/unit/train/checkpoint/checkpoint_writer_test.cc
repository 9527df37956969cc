#include "train/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "tests/unit/train/checkpoint/support.h"
#include "train/checkpoint/retention.h"
#include "train/checkpoint/safetensors.h"

namespace argosy::train {
namespace {

const std::vector<TensorSpec> kTensors = {{"embed", {50, 8}}, {"layer.weight", {30, 8}}, {"norm", {8}}, {"empty", {0, 3}}};

CheckpointLayout Layout(int64_t shard_bytes_max = kShardBytesDefault) {
  return PlanCheckpoint(kTensors, {.shard_bytes_max = shard_bytes_max}).value();
}

std::unique_ptr<CheckpointWriter> Writer(const std::string& directory, int64_t shard_bytes_max = kShardBytesDefault, int64_t step = 1) {
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer =
      CheckpointWriter::Create({.directory = directory, .layout = Layout(shard_bytes_max), .notes = {.step = step}});
  INFO(writer.status().ToString());
  REQUIRE(writer.ok());
  return *std::move(writer);
}

void Commit(CheckpointWriter& writer) {
  absl::Status status = writer.Commit();
  INFO(status.ToString());
  REQUIRE(status.ok());
}

void CheckValues(const std::string& directory, float plus = 0.0f) {
  absl::StatusOr<HfWeights> weights = HfWeights::Open(directory);
  INFO(weights.status().ToString());
  REQUIRE(weights.ok());
  REQUIRE(weights->Check(kTensors).ok());
  for (const TensorSpec& spec : kTensors) {
    std::vector<float> values(static_cast<size_t>(spec.Elements()));
    REQUIRE(weights->ReadRange(spec.name, 0, values).ok());
    CHECK(values == ValuesOf(spec, plus));
  }
}

}  // namespace

TEST_CASE("CheckpointWriter: what is written in pieces of any size reads back, whole or in shards") {
  for (size_t piece : {size_t{7}, size_t{1} << 20}) {
    for (int64_t shard : {int64_t{1000}, kShardBytesDefault}) {
      TemporaryFolder root;
      std::unique_ptr<CheckpointWriter> writer = Writer(root / "ckpt", shard);
      Fill(*writer, 0.0f, piece);
      CHECK_FALSE(writer->Next());
      CHECK_FALSE(std::filesystem::exists(root / "ckpt"));  // nothing shows before Commit
      Commit(*writer);
      CheckValues(root / "ckpt");
      CHECK(std::filesystem::exists(root / "ckpt/model.safetensors.index.json") == (shard == 1000));
      writer.reset();
      CHECK(Names(root.path()) == std::set<std::string>{"ckpt"});
    }
  }
}

TEST_CASE("CheckpointWriter: bytes out of order, too many or too few are refused") {
  TemporaryFolder root;
  std::unique_ptr<CheckpointWriter> writer = Writer(root / "ckpt");
  std::vector<float> two(2);
  CHECK(Contains(Message(writer->Write("norm", 0, BytesOf(two))), "\"embed\""));
  CHECK_FALSE(writer->Write("embed", 4, BytesOf(two)).ok());
  REQUIRE(writer->Write("embed", 0, BytesOf(two)).ok());
  CHECK(Contains(Message(writer->Write("embed", 0, BytesOf(two))), "byte 8"));
  std::vector<float> many(401);
  CHECK(Contains(Message(writer->Write("embed", 8, BytesOf(many))), "pass the end"));
  CHECK(Contains(Message(writer->Commit()), "lacks bytes"));
  writer.reset();
  CHECK(Names(root.path()).empty());

  writer = Writer(root / "ckpt");
  Fill(*writer);
  CHECK(Contains(Message(writer->Append(BytesOf(two))), "more than"));
}

TEST_CASE("PieceWriter: three processes' pieces, cut anywhere, make the checkpoint that one writer makes, byte for byte") {
  for (int64_t shard : {kShardBytesDefault, int64_t{1000}}) {
    TemporaryFolder root;
    auto alone = Writer(root / "alone", shard);
    Fill(*alone);
    Commit(*alone);
    auto writer = Writer(root / "together", shard);
    absl::StatusOr<std::string> hidden = writer->MakeFiles();
    REQUIRE(hidden.ok());
    std::vector<WrittenPiece> pieces;
    for (int rank : {2, 0, 1}) {
      PieceWriter part(*hidden, writer->Layout());
      for (const TensorSpec& spec : kTensors) {
        const std::vector<float> values = ValuesOf(spec);
        const std::span<const std::byte> bytes = BytesOf(values);
        // In two writes: they become one piece.
        const size_t begin = bytes.size() * rank / 3, end = bytes.size() * (rank + 1) / 3, middle = (begin + end) / 2;
        REQUIRE(part.Write(spec.name, static_cast<int64_t>(begin), bytes.subspan(begin, middle - begin)).ok());
        REQUIRE(part.Write(spec.name, static_cast<int64_t>(middle), bytes.subspan(middle, end - middle)).ok());
      }
      absl::StatusOr<std::vector<WrittenPiece>> written = part.Finish();
      REQUIRE(written.ok());
      CHECK(written->size() <= kTensors.size());
      pieces.insert(pieces.end(), written->begin(), written->end());
    }
    REQUIRE(writer->AddPieces(pieces).ok());
    CHECK(!std::filesystem::exists(root / "together"));
    Commit(*writer);
    CheckValues(root / "together");
    CHECK(Names(root / "together") == Names(root / "alone"));
    for (const std::string& name : Names(root / "alone")) {
      INFO(name);
      CHECK(ReadFile((root / "together") + "/" + name).value() == ReadFile((root / "alone") + "/" + name).value());
    }
  }
}

TEST_CASE("PieceWriter: bytes that nobody wrote, that two wrote, or that changed on storage are named, and nothing appears") {
  TemporaryFolder root;
  const auto with = [&](int64_t end_of_first, int64_t begin_of_second, bool damage) {
    auto writer = Writer(root / "made");
    const std::string hidden = writer->MakeFiles().value();
    PieceWriter part(hidden, writer->Layout());
    for (const TensorSpec& spec : kTensors) {
      const std::vector<float> values = ValuesOf(spec);
      const std::span<const std::byte> bytes = BytesOf(values);
      if (spec.name != "layer.weight") {
        REQUIRE(part.Write(spec.name, 0, bytes).ok());
        continue;
      }
      REQUIRE(part.Write(spec.name, begin_of_second, bytes.subspan(static_cast<size_t>(begin_of_second))).ok());
      REQUIRE(part.Write(spec.name, 0, bytes.first(static_cast<size_t>(end_of_first))).ok());
    }
    absl::StatusOr<std::vector<WrittenPiece>> pieces = part.Finish();
    REQUIRE(pieces.ok());
    absl::Status status = writer->AddPieces(*pieces);
    if (!status.ok()) return Message(status);
    if (damage) {
      std::fstream file(hidden + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-5, std::ios::end);
      file.put('!');
    }
    return Message(writer->Commit());
  };
  CHECK(Contains(with(400, 408, false), "from 400 on were written by nobody"));
  CHECK(Contains(with(400, 396, false), "from 396 on were written twice"));
  CHECK(Contains(with(400, 400, true), "read back differs"));
  CHECK(!std::filesystem::exists(root / "made"));
  CHECK(with(400, 400, false).empty());
  CheckValues(root / "made");
  auto writer = Writer(root / "other");
  CHECK(Contains(Message(PieceWriter(root / "elsewhere", writer->Layout()).Write("norm", 0, BytesOf(std::vector<float>(8)))), "all ranks' nodes share"));
}

TEST_CASE("CheckpointWriter: a new checkpoint replaces the old one, an abandoned one leaves it whole") {
  TemporaryFolder root;
  const std::string directory = root / "ckpt";
  std::unique_ptr<CheckpointWriter> writer = Writer(directory, 1000);
  Fill(*writer);
  Commit(*writer);
  writer.reset();

  writer = Writer(directory);
  Fill(*writer, 1.0f, 64, 700);
  CheckValues(directory);  // readable while its successor is being written
  writer.reset();
  CheckValues(directory);
  CHECK(Names(root.path()) == std::set<std::string>{"ckpt"});

  writer = Writer(directory);
  Fill(*writer, 2.0f);
  Commit(*writer);
  CheckValues(directory, 2.0f);
  CHECK(Names(directory) == std::set<std::string>{"argosy_checkpoint.json", "model.safetensors"});  // the old shards are gone
  CHECK(Names(root.path()) == std::set<std::string>{"ckpt"});
}

TEST_CASE("CheckpointWriter: a process killed at any point leaves the previous checkpoint whole, and the next one succeeds") {
  TemporaryFolder root;
  const std::string directory = root / "ckpt";
  {
    std::unique_ptr<CheckpointWriter> writer = Writer(directory);
    Fill(*writer);
    Commit(*writer);
  }
  for (size_t stop : {size_t{0}, size_t{100}, size_t{1600}, size_t{2592}}) {
    pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::unique_ptr<CheckpointWriter> writer = Writer(directory, 1000);
      Fill(*writer, 5.0f, 50, stop);
      ::_exit(0);  // no destructor runs
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(Names(root.path()).contains(".ckpt.partial"));
    CheckValues(directory);
  }
  std::unique_ptr<CheckpointWriter> writer = Writer(directory);
  Fill(*writer, 3.0f);
  Commit(*writer);
  CheckValues(directory, 3.0f);
  CHECK(Names(root.path()) == std::set<std::string>{"ckpt"});
}

TEST_CASE("CheckpointWriter: a run that died between two renames gets its checkpoint back") {
  TemporaryFolder root;
  {
    std::unique_ptr<CheckpointWriter> writer = Writer(root / "ckpt");
    Fill(*writer);
    Commit(*writer);
  }
  std::filesystem::rename(root / "ckpt", root / ".ckpt.old");
  Writer(root / "ckpt").reset();
  CheckValues(root / "ckpt");
}

TEST_CASE("CheckpointWriter: two writers of one directory do not meet") {
  TemporaryFolder root;
  std::unique_ptr<CheckpointWriter> writer = Writer(root / "ckpt");
  absl::Status second = CheckpointWriter::Create({.directory = root / "ckpt", .layout = Layout()}).status();
  CHECK(Contains(Message(second), "another process"));
  Fill(*writer);
  Commit(*writer);
  CheckValues(root / "ckpt");
}

TEST_CASE("CheckpointWriter: what is not a checkpoint of ours is never replaced") {
  TemporaryFolder root;
  const std::string directory = root / "data";
  REQUIRE(MakeDirectories(directory).ok());
  Put(directory + "/dataset.json", "precious");
  auto error = [&] { return Message(CheckpointWriter::Create({.directory = directory, .layout = Layout()}).status()); };
  CHECK(Contains(error(), "dataset.json"));
  std::filesystem::remove(directory + "/dataset.json");
  std::unique_ptr<CheckpointWriter> writer = Writer(directory);  // an empty one is fine
  Fill(*writer);
  Commit(*writer);
  writer.reset();
  Put(directory + "/notes.txt", "precious");
  CHECK(Contains(error(), "notes.txt"));
  CHECK(ReadFile(directory + "/notes.txt").value() == "precious");

  // Also when the file comes while a successor is being written.
  std::filesystem::remove(directory + "/notes.txt");
  writer = Writer(directory);
  Fill(*writer);
  Put(directory + "/notes.txt", "precious");
  CHECK(Contains(Message(writer->Commit()), "notes.txt"));
  CHECK(ReadFile(directory + "/notes.txt").value() == "precious");
  Put(root / "file", "x");
  CHECK(Contains(Message(CheckpointWriter::Create({.directory = root / "file", .layout = Layout()}).status()), "not a directory"));
}

TEST_CASE("CheckpointWriter: bytes damaged on storage before Commit are found, and the previous checkpoint stays") {
  TemporaryFolder root;
  const std::string directory = root / "ckpt";
  {
    std::unique_ptr<CheckpointWriter> writer = Writer(directory);
    Fill(*writer);
    Commit(*writer);
  }
  std::unique_ptr<CheckpointWriter> writer = Writer(directory);
  const PlacedTensor* tensor = writer->Layout().Find("layer.weight");
  Fill(*writer, 9.0f);
  UniqueFd fd(::open((root / ".ckpt.partial/model.safetensors").c_str(), O_WRONLY));
  REQUIRE(fd.ok());
  REQUIRE(::pwrite(fd.get(), "?", 1, tensor->extent.begin + 17) == 1);
  absl::Status status = writer->Commit();
  CHECK(absl::IsDataLoss(status));
  CHECK(Contains(Message(status), "\"layer.weight\""));
  writer.reset();
  CheckValues(directory);
}

TEST_CASE("CheckpointWriter: more than the free space is refused before anything is written") {
  TemporaryFolder root;
  std::vector<TensorSpec> huge = {{"w", {int64_t{1} << 50}}};
  absl::Status status = CheckpointWriter::Create({.directory = root / "ckpt", .layout = PlanCheckpoint(huge).value()}).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Contains(Message(status), "free there"));
  CHECK(Names(root.path()).empty());
}

TEST_CASE("CheckpointWriter: config, tokenizer and generation files come along") {
  TemporaryFolder root;
  REQUIRE(MakeDirectories(root / "source").ok());
  Put(root / "source/tokenizer.json", "{\"old\": 1}");
  Put(root / "source/tokenizer.model", "sp");
  Put(root / "source/README.md", "not copied");
  ModelConfig config = ModelConfig::Nano(100).value();
  std::unique_ptr<CheckpointWriter> writer = Writer(root / "ckpt");
  CHECK_FALSE(writer->AddFile("../escape", "x").ok());
  CHECK_FALSE(writer->AddFile("model.safetensors", "x").ok());
  CHECK_FALSE(writer->AddFile("argosy_checkpoint.json", "x").ok());
  Fill(*writer);
  ModelFiles files{.config = &config, .changes = {.vocab_size = 104}, .source_directory = root / "source",
                   .contents = {{"tokenizer.json", "{\"new\": 1}"}}};
  REQUIRE(AddModelFiles(*writer, files).ok());
  Commit(*writer);
  CHECK(ReadFile(root / "ckpt/tokenizer.json").value() == "{\"new\": 1}");
  CHECK(ReadFile(root / "ckpt/tokenizer.model").value() == "sp");
  CHECK_FALSE(std::filesystem::exists(root / "ckpt/README.md"));
  CHECK(ModelConfig::Load(root / "ckpt")->vocab_size == 104);
  CHECK(std::filesystem::exists(root / "ckpt/generation_config.json"));
  CheckpointManifest manifest = CheckpointManifest::Load(root / "ckpt").value();
  CHECK(manifest.files.contains("config.json"));
  CHECK(manifest.tensors.size() == kTensors.size());
}

}  // namespace argosy::train
