#include "tests/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/checkpoint/safetensors.h"
#include "train/config/deepspeed_config.h"
#include "train/data/rows.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/jinja.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::fuzz {
namespace {

using namespace argosy::train;

// A path that reads these bytes.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    ARGOSY_CHECK(fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

struct TemporaryFolder {
  std::string path = (std::filesystem::temp_directory_path() / "argosy-fuzz-XXXXXX").string();
  TemporaryFolder() { ARGOSY_CHECK(::mkdtemp(path.data()) != nullptr); }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// tokenizer.json. What loads must encode anything, and its own ids must decode.
void ReadTokenizer(std::string_view input) {
  auto tokenizer = Tokenizer::FromFiles({.tokenizer_json = std::string(input)});
  if (!tokenizer.ok()) {
    ARGOSY_CHECK(!tokenizer.status().message().empty());
    return;
  }
  for (std::string_view text : {std::string_view("abcde  <s>é\n1234 ▁日本\xff", 24), input.substr(0, 200)}) {
    std::vector<int32_t> ids = tokenizer->Encode(text);
    for (int32_t id : ids) ARGOSY_CHECK(id >= 0 && id < tokenizer->VocabularySize(), "id {} of {}", id, tokenizer->VocabularySize());
    (void)tokenizer->Decode(ids);
    TextStream stream(*tokenizer);
    std::string pieces;
    for (int32_t id : ids) pieces += stream.Push(id);
    pieces += stream.Finish();
  }
}

// A weights file. What opens must read inside itself.
void ReadSafetensors(std::string_view input) {
  MemoryFile memory(input);
  auto file = SafetensorsFile::Open(memory.path());
  if (!file.ok()) return;
  for (const StoredTensor& tensor : file->Tensors()) {
    ARGOSY_CHECK(tensor.offset >= 0 && tensor.bytes >= 0 && tensor.offset + tensor.bytes <= static_cast<int64_t>(input.size()), "{}", tensor.name);
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    ARGOSY_CHECK(file->ReadBytes(tensor, 0, bytes).ok());
  }
}

// A DeepSpeed file. It is good, or has errors; one that is good gives settings that a run can have.
void ReadDeepSpeed(std::string_view input) {
  SettingsReport report = ValidateDeepSpeedConfig(input, {.world_size = 3, .hidden_size = 64, .total_steps = 10});
  ARGOSY_CHECK(!report.ToText().empty());
  if (!report.ok()) return;
  const TrainSettings& s = report.settings;
  ARGOSY_CHECK(s.micro_batch_size > 0 && s.gradient_accumulation_steps > 0 && s.train_batch_size > 0 && s.zero_stage >= 0 && s.zero_stage <= 3);
  for (int64_t step : {0, 1, 9, 100}) (void)LearningRate(s.schedule, step);
}

// A chat template, on a conversation.
void RenderTemplate(std::string_view input) {
  auto parsed = JinjaTemplate::Parse(input);
  if (!parsed.ok()) return;
  static const auto kVariables = nlohmann::ordered_json::parse(R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Hello", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
      "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "tools": null})");
  auto rendered = parsed->Render(kVariables, 86400);
  if (!rendered.ok()) return;
  for (auto [begin, end] : rendered->generated) ARGOSY_CHECK(begin < end && end <= rendered->text.size());
}

// Rows of a data set; the first byte chooses among the layouts.
void ReadRows(std::string_view input) {
  static const Tokenizer kTokenizer = TrainBpe({}, {.vocabulary_size = 257}).value();
  if (input.empty()) return;
  constexpr const char* kLayouts[] = {".jsonl", ".csv", ".txt"};
  static const TemporaryFolder kFolder;
  const std::string path = kFolder.path + "/rows" + kLayouts[static_cast<uint8_t>(input[0]) % 3];
  std::ofstream(path, std::ios::binary | std::ios::trunc) << input.substr(1);
  for (bool skip : {false, true}) {
    auto samples = ReadSamples(path, kTokenizer, {.ctx_len = 32, .skip_bad_rows = skip});
    if (!samples.ok()) continue;
    ARGOSY_CHECK(samples->counts.target_tokens > 0 && samples->is_target.size() == samples->tokens.size());
  }
}

constexpr Target kTargets[] = {{"tokenizer", ReadTokenizer}, {"safetensors", ReadSafetensors}, {"deepspeed", ReadDeepSpeed},
                               {"jinja", RenderTemplate}, {"rows", ReadRows}};

}  // namespace

std::span<const Target> Targets() { return kTargets; }

}  // namespace argosy::fuzz

#ifdef ARGOSY_FUZZ_TARGET
// libFuzzer's entry, one executable a target.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kName = ARGOSY_FUZZ_TARGET;
  for (const argosy::fuzz::Target& target : argosy::fuzz::Targets()) {
    if (target.name == kName) target.run(std::string_view(reinterpret_cast<const char*>(data), size));
  }
  return 0;
}
#endif
