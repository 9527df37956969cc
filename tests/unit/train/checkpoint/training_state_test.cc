#include "train/checkpoint/training_state.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/unit/train/checkpoint/support.h"

namespace argosy::train {
namespace {

ModelConfig Tiny() {
  return ModelConfig::Make({.vocab_size = 11, .hidden_size = 8, .intermediate_size = 12, .num_hidden_layers = 2, .num_attention_heads = 2,
                            .num_key_value_heads = 1, .max_position_embeddings = 16, .tie_word_embeddings = true}).value();
}

TrainingState Example() {
  TrainingState state{.epoch = 2, .step = 7, .steps_done = 107, .optimizer_steps = 105, .skipped = 2, .rows_per_step = 24,
                      .loss_sum = 0.1 + 0.2, .target_tokens = 1234, .epoch_seconds = 3.5, .epoch_tokens = 999};
  state.epochs = {{.eval_loss = 5.5, .has_eval = true}, {.epoch = 1, .steps = 50, .train_loss = std::numeric_limits<double>::infinity()}};
  state.checkpoint = "/out/epoch-2";
  state.deal = {0.25, 0.1 + 0.2, 0.45};
  state.identity = {{"seed", "42"}, {"trained", "adapters of 7 modules"}, {"training data", "9 rows"}};
  state.settings = {{"ranks", "3"}};
  return state;
}

std::string Save(const std::string& directory, const TrainingState& state) {
  CheckpointWriterOptions options;
  options.directory = directory;
  options.layout = PlanCheckpoint(StateTensors(Tiny()), {.stem = kStateStem}).value();
  options.notes.step = state.steps_done;
  auto writer = CheckpointWriter::Create(std::move(options)).value();
  REQUIRE(writer->AddFile(kStateJsonName, state.ToJson()).ok());
  Fill(*writer);
  REQUIRE(writer->Commit().ok());
  return directory;
}

TEST_CASE("Training state: what it says comes back to the bit, infinities too") {
  TrainingState state = Example();
  TrainingState back = TrainingState::Parse(state.ToJson()).value();
  CHECK(back.ToJson() == state.ToJson());
  CHECK(back.loss_sum == 0.1 + 0.2);
  CHECK(back.steps_done == 107);
  CHECK(back.deal == state.deal);
  CHECK(std::isinf(back.epochs[1].train_loss));
  CHECK(back.identity == state.identity);
}

TEST_CASE("Training state: text of another format, or that is no state, is refused in words") {
  auto message = [](std::string_view text) { return std::string(TrainingState::Parse(text).status().message()); };
  CHECK(message("{").find("not a JSON object") != std::string::npos);
  CHECK(message(R"({"format": 9})").find("format 9") != std::string::npos);
  std::string text = Example().ToJson();
  std::string negative = text;
  negative.replace(negative.find("\"step\": 7"), 9, "\"step\": -7");
  CHECK(message(negative).find("\"step\" is -7") != std::string::npos);
  std::string nameless = text;
  nameless.replace(nameless.find("\"identity\""), 10, "\"identify\"");
  CHECK(message(nameless).find("identity") != std::string::npos);
}

TEST_CASE("Training state: it has three tensors for each of the model's, whose names come apart again") {
  std::vector<TensorSpec> tensors = Tiny().Tensors(DType::kF32), parts = StateTensors(Tiny());
  REQUIRE(parts.size() == 3 * tensors.size());
  CHECK(parts[0].name == "master." + tensors[0].name);
  for (TensorPart part : {TensorPart::kWeights, TensorPart::kMaster, TensorPart::kMoment1, TensorPart::kMoment2}) {
    PartName name = ParsePartName(NameOfPart(part, "model.norm.weight"));
    CHECK(name.part == part);
    CHECK(name.tensor == "model.norm.weight");
  }
}

TEST_CASE("Training state: the newest finished one is found, and one that is being written is not") {
  TemporaryFolder root;
  CHECK(!NewestState(root.path()).value().has_value());
  TrainingState state = Example();
  for (int64_t step : {9, 100, 20}) {
    state.steps_done = step;
    Save(fmt::format("{}/{}/step-{:07}", root.path(), kStateFolder, step), state);
  }
  std::filesystem::create_directories(fmt::format("{}/{}/.step-0000200.partial", root.path(), kStateFolder));
  std::filesystem::create_directories(fmt::format("{}/{}/step-0000300", root.path(), kStateFolder));   // without a manifest
  CHECK(NewestState(root.path()).value().value() == fmt::format("{}/{}/step-0000100", root.path(), kStateFolder));
}

TEST_CASE("Training state: one changed byte, a cut file and a missing file are each named") {
  TemporaryFolder root;
  std::string directory = Save(root / "state", Example());
  REQUIRE(VerifyCheckpoint(directory).ok());
  std::string path = directory + "/training_state.safetensors";
  auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  auto flip = [&](int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  };
  for (int64_t at : {int64_t{9}, size / 2, size - 1}) {
    flip(at);
    absl::Status status = VerifyCheckpoint(directory);
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(std::string(status.message()).find(path) != std::string::npos);
    flip(at);
  }
  REQUIRE(VerifyCheckpoint(directory).ok());
  std::filesystem::resize_file(path, size - 4);
  CHECK(std::string(VerifyCheckpoint(directory).message()).find("damaged") != std::string::npos);
  std::filesystem::remove(path);
  CHECK(std::string(VerifyCheckpoint(directory).message()).find(path) != std::string::npos);
}

TEST_CASE("Training state: the newest that is whole is used, and why newer ones are not is said") {
  TemporaryFolder root;
  CHECK(NewestUsableState(root.path()).value().directory.empty());
  TrainingState state = Example();
  const auto place = [&](int64_t step) { return fmt::format("{}/{}/step-{:07}", root.path(), kStateFolder, step); };
  for (int64_t step : {9, 20, 100, 300}) Save(place(step), state);
  CHECK(NewestUsableState(root.path()).value().directory == place(300));
  std::filesystem::resize_file(place(300) + "/training_state.safetensors", 100);
  std::filesystem::remove(place(100) + "/argosy_checkpoint.json");
  UsableState usable = NewestUsableState(root.path()).value();
  CHECK(usable.directory == place(20));
  REQUIRE(usable.damaged.size() == 2);
  CHECK(usable.damaged[0].find(place(300)) != std::string::npos);
  CHECK(usable.damaged[0].find("100 bytes of") != std::string::npos);
  CHECK(usable.damaged[1].find(place(100)) != std::string::npos);
  for (int64_t step : {9, 20}) std::filesystem::remove(place(step) + "/training_state.json");
  usable = NewestUsableState(root.path()).value();
  CHECK(usable.directory.empty());
  CHECK(usable.damaged.size() == 4);
}

TEST_CASE("Training state: another run's is refused with every difference; changed settings are told") {
  TrainingState state = Example();
  CHECK(CheckIdentity(state, state.identity).ok());
  absl::Status status = CheckIdentity(state, {{"seed", "7"}, {"training data", "8 rows"}});
  CHECK(std::string(status.message()).find("seed is 7 and was 42") != std::string::npos);
  CHECK(std::string(status.message()).find("training data is 8 rows and was 9 rows") != std::string::npos);
  // One of before there were adapters is of a run of all weights.
  state.identity.erase("trained");
  std::map<std::string, std::string> now = state.identity;
  now["trained"] = "all weights";
  CHECK(CheckIdentity(TrainingState::Parse(state.ToJson()).value(), now).ok());
  now["trained"] = "adapters";
  CHECK_FALSE(CheckIdentity(TrainingState::Parse(state.ToJson()).value(), now).ok());
  CHECK(ChangedSettings(state, {{"ranks", "2"}, {"new", "x"}}) == std::vector<std::string>{"ranks 3 -> 2"});
}

}  // namespace
}  // namespace argosy::train
