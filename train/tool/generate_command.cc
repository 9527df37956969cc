#include <cstdio>
#include <fstream>
#include <memory>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/model/model.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

struct Flags {
  std::string directory, prompt, ids, dtype = "fp32", logits_path;
  int64_t max_new_tokens = 64;
  int threads = 0;
};

std::vector<int32_t> IdsFromJson(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  std::vector<int32_t> ids;
  bool good = json.is_array() && !json.empty();
  if (good) {
    for (const nlohmann::json& id : json) good = good && id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < INT32_MAX;
    if (good) ids = json.get<std::vector<int32_t>>();
  }
  if (!good) throw CommandFailed(fmt::format("--ids '{}': want a JSON array of token ids, e.g. [1, 450, 7483]", text));
  return ids;
}

// {"logits": [tokens, vocabulary]} in fp32.
absl::Status WriteLogits(const std::string& path, const std::vector<float>& logits, int64_t tokens) {
  int64_t vocab = static_cast<int64_t>(logits.size()) / tokens;
  TensorSpec spec{.name = "logits", .shape = {tokens, vocab}, .dtype = DType::kF32};
  ARGOSY_ASSIGN_OR_RETURN(CheckpointLayout layout, PlanCheckpoint(std::span(&spec, 1), {.shard_bytes_max = INT64_MAX}));
  std::ofstream file(path, std::ios::binary);
  file.write(layout.files[0].header.data(), static_cast<std::streamsize>(layout.files[0].header.size()));
  file.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(float)));
  file.close();
  if (!file) return InvalidArgument("--logits {}: cannot be written", path);
  return absl::OkStatus();
}

absl::Status Generate(const Flags& flags) {
  DType dtype;
  if (flags.dtype == "fp32") dtype = DType::kF32;
  else if (flags.dtype == "bf16") dtype = DType::kBF16;
  else return InvalidArgument("--dtype {}: fp32 or bf16", flags.dtype);
  if (flags.prompt.empty() == flags.ids.empty()) return InvalidArgument("give either --prompt TEXT or --ids JSON");
  if (flags.threads > 0) SetComputeThreads(flags.threads);
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(flags.directory, dtype));
  std::optional<Tokenizer> tokenizer;
  std::vector<int32_t> ids;
  if (!flags.ids.empty()) {
    ids = IdsFromJson(flags.ids);
  } else {
    ARGOSY_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(flags.directory));
    tokenizer.emplace(std::move(loaded));
    ids = tokenizer->Encode(flags.prompt);
    if (ids.empty()) return InvalidArgument("--prompt '{}' has no tokens", flags.prompt);
  }
  if (!flags.logits_path.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(std::vector<float> logits, model->Logits(ids));
    ARGOSY_RETURN_IF_ERROR(WriteLogits(flags.logits_path, logits, static_cast<int64_t>(ids.size())));
  }
  if (flags.max_new_tokens <= 0) return absl::OkStatus();
  ARGOSY_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, model->Generate(ids, {.max_new_tokens = flags.max_new_tokens}));
  if (tokenizer) std::printf("%s\n", tokenizer->Decode(tokens).c_str());
  else std::printf("%s\n", nlohmann::json(tokens).dump().c_str());
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* generate = app.add_subcommand("generate", "Continue a prompt greedily, or write a prompt's logits");
  generate->add_option("--model", flags->directory, "Folder of a Hugging Face model")->required();
  generate->add_option("--prompt", flags->prompt, "Text to continue");
  generate->add_option("--ids", flags->ids, "The same as token ids: a JSON array; the answer is ids too");
  generate->add_option("--dtype", flags->dtype, "fp32 or bf16")->capture_default_str();
  generate->add_option("--max-new-tokens", flags->max_new_tokens, "0: none")->capture_default_str();
  generate->add_option("--logits", flags->logits_path, "Safetensors file that gets the prompt's logits, [tokens, vocabulary]");
  generate->add_option("--threads", flags->threads, "Compute threads; 0: all cores");
  generate->callback([flags] { MustSucceed(Generate(*flags)); });
}

}  // namespace argosy::train
