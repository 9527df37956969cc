#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/data/dataset.h"
#include "train/tokenizer/chat_template.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeFlags {
  std::string directory, input = "-", special_token_path, save_path;
  bool decode = false, stream = false, no_special = false, keep_special = false, generation_prompt = false, answers = false;
};

class LineTokenizer {
 public:
  LineTokenizer(const Tokenizer& tokenizer, const TokenizeFlags& flags) : tokenizer_(tokenizer), flags_(flags) {}

  absl::StatusOr<Json> Answer(const Json& line, std::string_view where) {
    if (line.is_object() && line.contains("messages")) return Chat(line["messages"], where);
    if (flags_.decode) return Decode(line, where);
    Json text = line.is_object() && line.contains("text") ? line["text"] : line;
    if (!text.is_string()) return InvalidArgument("{}: expected a JSON string, {{\"text\"}} or {{\"messages\"}}", where);
    return Json(tokenizer_.Encode(text.get_ref<const std::string&>(), {.add_special_tokens = !flags_.no_special}));
  }

 private:
  absl::StatusOr<Json> Decode(const Json& line, std::string_view where) const {
    bool good = line.is_array();
    for (size_t i = 0; good && i < line.size(); ++i) good = line[i].is_number_integer() && line[i] >= 0 && line[i] < INT32_MAX;
    if (!good) return InvalidArgument("{}: expected a JSON array of token ids", where);
    auto ids = line.get<std::vector<int32_t>>();
    DecodeOptions options{.skip_special_tokens = !flags_.keep_special};
    if (!flags_.stream) return Json(tokenizer_.Decode(ids, options));
    Json pieces = Json::array();
    TextStream stream(tokenizer_, options);
    for (int32_t id : ids) pieces.push_back(stream.Push(id));
    pieces.push_back(stream.Finish());
    return pieces;
  }

  absl::StatusOr<Json> Chat(const Json& messages, std::string_view where) {
    if (!chat_) {
      ARGOSY_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Of(tokenizer_));
      chat_.emplace(std::move(parsed));
    }
    ARGOSY_RETURN_IF_ERROR(CheckMessages(messages, where));
    Json answer;
    std::string text;
    if (flags_.answers) {
      ARGOSY_ASSIGN_OR_RETURN(ChatText chat, chat_->RenderForTraining(messages));
      text = std::move(chat.text);
      answer["answers"] = Json::array();
      for (auto [begin, end] : chat.answers) answer["answers"].push_back(text.substr(begin, end - begin));
    } else {
      ARGOSY_ASSIGN_OR_RETURN(text, chat_->Render(messages, flags_.generation_prompt));
    }
    answer["ids"] = tokenizer_.Encode(text, {.add_special_tokens = false});
    answer["text"] = std::move(text);
    return answer;
  }

  const Tokenizer& tokenizer_;
  const TokenizeFlags& flags_;
  std::optional<ChatTemplate> chat_;
};

absl::Status Tokenize(const TokenizeFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(flags.directory));
  if (!flags.special_token_path.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadSpecialTokens(flags.special_token_path));
    tokenizer.AddTokens(tokens);
  }
  if (!flags.save_path.empty()) return tokenizer.Save(flags.save_path);
  std::ifstream file;
  if (flags.input != "-") {
    file.open(flags.input, std::ios::binary);
    if (!file) return NotFound("{}: cannot be read", flags.input);
  }
  std::istream& in = flags.input == "-" ? std::cin : file;
  LineTokenizer lines(tokenizer, flags);
  std::string text;
  for (size_t number = 1; std::getline(in, text); ++number) {
    std::string where = fmt::format("{}:{}", flags.input == "-" ? "stdin" : flags.input, number);
    Json line = Json::parse(text, nullptr, false);
    if (line.is_discarded()) return InvalidArgument("{}: not valid JSON", where);
    ARGOSY_ASSIGN_OR_RETURN(Json answer, lines.Answer(line, where));
    std::printf("%s\n", answer.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTokenizeCommand(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "Texts to token ids and back, a line of JSON each");
  tokenize->option_defaults()->ignore_underscore();
  tokenize->add_option("--model", flags->directory, "Folder with the tokenizer's files")->required();
  tokenize->add_option("--input", flags->input, "File of JSON strings, {\"text\"} or {\"messages\"}; -: standard input")->capture_default_str();
  tokenize->add_flag("--decode", flags->decode, "The lines are arrays of ids; print their texts");
  tokenize->add_flag("--stream", flags->stream, "With --decode: the pieces in which the text comes while its ids do");
  tokenize->add_flag("--keep-special", flags->keep_special, "With --decode: write special tokens too");
  tokenize->add_flag("--no-special", flags->no_special, "Without what the post-processor puts around a text");
  tokenize->add_flag("--add-generation-prompt", flags->generation_prompt, "{\"messages\"}: with the beginning of an answer");
  tokenize->add_flag("--answers", flags->answers, "{\"messages\"}: print what the assistant's part of the text is");
  tokenize->add_option("--special-token-path", flags->special_token_path, "tokens.json: tokens to add first");
  tokenize->add_option("--save", flags->save_path, "Write the tokenizer into this folder and do nothing else");
  tokenize->callback([flags] { MustSucceed(Tokenize(*flags)); });
}

}  // namespace argosy::train
