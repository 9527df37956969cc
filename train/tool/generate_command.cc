#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/data/dataset.h"
#include "train/data/qa_json.h"
#include "train/model/adapter_layout.h"
#include "train/model/model.h"
#include "train/tokenizer/chat_template.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

struct GenerateFlags {
  std::string directory, adapter, prompts_path, ids, system, dtype = "fp32", logits_path;
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 64, batch_size = 16;
  int threads = 0;
  bool chat = false, score = false;
};

absl::StatusOr<std::vector<Ids>> IdsFromJson(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  auto is_ids = [](const Json& list) {
    if (!list.is_array() || list.empty()) return false;
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= INT32_MAX) return false;
    }
    return true;
  };
  if (is_ids(json)) return std::vector<Ids>{json.get<Ids>()};
  bool good = json.is_array() && !json.empty();
  for (size_t i = 0; good && i < json.size(); ++i) good = is_ids(json[i]);
  if (!good) return InvalidArgument("--ids '{}': want a JSON array of token ids, e.g. [1, 450, 7483], or an array of such arrays", text);
  return json.get<std::vector<Ids>>();
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

// What is to be continued: texts, or conversations for the chat template.
struct Prompts {
  std::vector<Ids> ids;
  std::optional<Tokenizer> tokenizer;   // none when ids were given
  bool many = false;                    // the answers are JSON lines
};

// Rows of {"prompt"}, {"input"} or {"messages"}.
class PromptReader : public RowVisitor {
 public:
  PromptReader(const std::string& path, const Tokenizer& tokenizer, const ChatTemplate* chat, std::string system)
      : path_(path), tokenizer_(tokenizer), chat_(chat), system_(std::move(system)) {}

  absl::Status Row(std::string_view text, size_t line) override {
    std::string where = fmt::format("{}:{}: row {}", path_, line, ids.size() + 1);
    ARGOSY_ASSIGN_OR_RETURN(Json row, ParseRow(text, where));
    if (row.contains("messages")) {
      if (chat_ == nullptr) return InvalidArgument("{} has \"messages\": give --chat", where);
      auto messages = nlohmann::ordered_json::parse(text)["messages"];
      ARGOSY_RETURN_IF_ERROR(CheckMessages(messages, where));
      absl::StatusOr<std::string> rendered = chat_->Render(messages, true);
      if (!rendered.ok()) return Annotate(rendered.status(), where);
      ids.push_back(tokenizer_.Encode(*rendered, {.add_special_tokens = false}));
      return absl::OkStatus();
    }
    ARGOSY_ASSIGN_OR_RETURN(std::string prompt, TextField(row, row.contains("prompt") ? "prompt" : "input", where));
    absl::StatusOr<Ids> encoded = Encode(prompt);
    if (!encoded.ok()) return Annotate(encoded.status(), where);
    ids.push_back(*std::move(encoded));
    return absl::OkStatus();
  }

  absl::StatusOr<Ids> Encode(const std::string& prompt) const {
    Ids encoded;
    if (chat_ == nullptr) {
      encoded = tokenizer_.Encode(prompt);
    } else {
      nlohmann::ordered_json messages = nlohmann::ordered_json::array();
      if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
      messages.push_back({{"role", "user"}, {"content", prompt}});
      ARGOSY_ASSIGN_OR_RETURN(std::string rendered, chat_->Render(messages, true));
      encoded = tokenizer_.Encode(rendered, {.add_special_tokens = false});
    }
    if (encoded.empty()) return InvalidArgument("the prompt \"{}\" has no tokens", prompt);
    return encoded;
  }

  std::vector<Ids> ids;

 private:
  const std::string& path_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  std::string system_;
};

absl::StatusOr<Prompts> ReadPrompts(const GenerateFlags& flags) {
  int sources = !flags.prompts.empty() + !flags.ids.empty() + !flags.prompts_path.empty();
  if (sources != 1) return InvalidArgument("give one of --prompt TEXT (as often as wanted), --prompts-path FILE, --ids JSON");
  Prompts prompts;
  if (!flags.ids.empty()) {
    if (flags.chat) return InvalidArgument("--chat needs --prompt or --prompts-path: ids are taken as they are");
    ARGOSY_ASSIGN_OR_RETURN(prompts.ids, IdsFromJson(flags.ids));
    prompts.many = prompts.ids.size() > 1;
    return prompts;
  }
  // An adapter that tokens were added for has a tokenizer of its own.
  const bool of_adapter = !flags.adapter.empty() && std::filesystem::exists(flags.adapter + "/tokenizer_config.json");
  ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(of_adapter ? flags.adapter : flags.directory));
  prompts.tokenizer.emplace(std::move(tokenizer));
  std::optional<ChatTemplate> chat;
  if (flags.chat) {
    ARGOSY_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Of(*prompts.tokenizer));
    chat.emplace(std::move(parsed));
  } else if (!flags.system.empty()) {
    return InvalidArgument("--system is part of a chat: give --chat too");
  }
  PromptReader reader(flags.prompts_path, *prompts.tokenizer, chat ? &*chat : nullptr, flags.system);
  if (!flags.prompts_path.empty()) ARGOSY_RETURN_IF_ERROR(VisitRows(flags.prompts_path, reader));
  for (const std::string& prompt : flags.prompts) {
    ARGOSY_ASSIGN_OR_RETURN(Ids encoded, reader.Encode(prompt));
    reader.ids.push_back(std::move(encoded));
  }
  prompts.ids = std::move(reader.ids);
  prompts.many = prompts.ids.size() > 1 || !flags.prompts_path.empty();
  return prompts;
}

absl::Status Score(const Model& model, const Prompts& prompts) {
  double nll = 0;
  int64_t targets = 0;
  for (const Ids& ids : prompts.ids) {
    MicroBatch batch{.rows = 1, .ctx = static_cast<int32_t>(ids.size()), .input_ids = ids};
    for (size_t i = 0; i < ids.size(); ++i) {
      batch.targets.push_back(i + 1 < ids.size() ? ids[i + 1] : MicroBatch::kNoTarget);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.segments.push_back(0);
    }
    ARGOSY_ASSIGN_OR_RETURN(BatchLoss loss, model.Loss(batch));
    nll += loss.nll;
    targets += loss.target_tokens;
    std::printf("%s\n", Json({{"nll", loss.target_tokens > 0 ? loss.nll / static_cast<double>(loss.target_tokens) : 0.0},
                              {"tokens", loss.target_tokens}}).dump().c_str());
    std::fflush(stdout);
  }
  std::printf("mean NLL %.4f over %lld tokens\n", targets > 0 ? nll / static_cast<double>(targets) : 0.0, static_cast<long long>(targets));
  return absl::OkStatus();
}

absl::Status Generate(GenerateFlags flags) {
  DType dtype;
  if (flags.dtype == "fp32") dtype = DType::kF32;
  else if (flags.dtype == "bf16") dtype = DType::kBF16;
  else return InvalidArgument("--dtype {}: fp32 or bf16", flags.dtype);
  if (flags.batch_size < 1) return InvalidArgument("--batch-size {}: at least 1", flags.batch_size);
  if (flags.max_new_tokens < 0) return InvalidArgument("--max-new-tokens {}: at least 0", flags.max_new_tokens);
  if (flags.threads < 0) return InvalidArgument("--threads {}: at least 1, or 0 for all cores", flags.threads);
  if (!flags.adapter.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(flags.directory, BaseOfAdapter(flags.adapter, flags.directory));
  } else if (flags.directory.empty()) {
    return InvalidArgument("--model is missing: the folder of a Hugging Face model; or --adapter, whose config names one");
  }
  ARGOSY_ASSIGN_OR_RETURN(Prompts prompts, ReadPrompts(flags));
  if (flags.threads > 0) SetComputeThreads(flags.threads);
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(flags.directory, dtype, flags.adapter));
  if (flags.score) return Score(*model, prompts);
  if (!flags.logits_path.empty()) {
    if (prompts.ids.size() != 1) return InvalidArgument("--logits takes one prompt, {} are given", prompts.ids.size());
    ARGOSY_ASSIGN_OR_RETURN(std::vector<float> logits, model->Logits(prompts.ids[0]));
    ARGOSY_RETURN_IF_ERROR(WriteLogits(flags.logits_path, logits, static_cast<int64_t>(prompts.ids[0].size())));
  }
  if (flags.max_new_tokens <= 0) return absl::OkStatus();
  GenerateOptions options{.max_new_tokens = flags.max_new_tokens, .rows_max = flags.batch_size};
  if (flags.chat && prompts.tokenizer) {
    // A chat model ends its answer by the tokenizer's EOS, which config.json need not name.
    options.stop_tokens.assign(model->config().eos_token_ids.begin(), model->config().eos_token_ids.end());
    if (std::optional<int32_t> eos = prompts.tokenizer->EosId()) options.stop_tokens.push_back(*eos);
  }
  if (!prompts.many && prompts.tokenizer) {
    TextStream stream(*prompts.tokenizer);
    auto write = [](const std::string& text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
    options.on_token = [&](size_t, int32_t token) { write(stream.Push(token)); };
    ARGOSY_RETURN_IF_ERROR(model->Generate(prompts.ids, options).status());
    write(stream.Finish() + "\n");
    return absl::OkStatus();
  }
  ARGOSY_ASSIGN_OR_RETURN(std::vector<Ids> made, model->Generate(prompts.ids, options));
  for (const Ids& ids : made) {
    Json line = ids;
    if (prompts.tokenizer) line = {{"text", prompts.tokenizer->Decode(ids)}, {"ids", ids}};
    std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* generate = app.add_subcommand("generate", "Continue prompts greedily, or write a prompt's logits");
  generate->option_defaults()->ignore_underscore();
  generate->add_option("--model", flags->directory, "Folder of a Hugging Face model; of the adapter's base, where its config does not name it");
  generate->add_option("--adapter", flags->adapter, "Folder of an adapter to put beside the weights");
  generate->add_option("--prompt", flags->prompts, "Text to continue; of several, each answer is a line of JSON")->allow_extra_args(false);
  generate->add_option("--prompts-path", flags->prompts_path, "JSON lines of {\"prompt\"}, {\"input\"} or, with --chat, {\"messages\"}");
  generate->add_option("--ids", flags->ids, "Prompts as token ids: a JSON array, or an array of arrays; the answers are ids too");
  generate->add_flag("--chat", flags->chat, "Each prompt is a user's message: put through the model's chat template");
  generate->add_option("--system", flags->system, "With --chat: the system's message before it");
  generate->add_flag("--score", flags->score, "Print the mean negative log-likelihood of each prompt's tokens instead");
  generate->add_option("--dtype", flags->dtype, "fp32 or bf16")->capture_default_str();
  generate->add_option("--max-new-tokens", flags->max_new_tokens, "0: none")->capture_default_str();
  generate->add_option("--batch-size", flags->batch_size, "Prompts that are continued together")->capture_default_str();
  generate->add_option("--logits", flags->logits_path, "Safetensors file that gets the prompt's logits, [tokens, vocabulary]");
  generate->add_option("--threads", flags->threads, "Compute threads; 0: all cores");
  generate->callback([flags] { MustSucceed(Generate(*flags)); });
}

}  // namespace argosy::train
