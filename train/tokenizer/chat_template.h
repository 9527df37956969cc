#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "train/tokenizer/jinja.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

// A conversation as text, and the byte ranges that an assistant wrote.
struct ChatText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> answers;  // ascending
};

// The chat template of a tokenizer: how a list of messages, {"role", "content"} and whatever else the template asks for, becomes text.
//
// Thread:   const calls from any thread.
// Failure:  a tokenizer without a template, and constructs outside JinjaTemplate's subset, are refused by name.
class ChatTemplate {
 public:
  static absl::StatusOr<ChatTemplate> Of(const Tokenizer& tokenizer);

  // With the beginning of an answer behind the last message, when asked for. Tokenized without the post-processor's special tokens: the
  // template writes its own.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& messages, bool add_generation_prompt) const;

  // Where each assistant message's text stands, its end mark included: by the template's {% generation %} blocks, or else by rendering the
  // conversation up to each answer, which the template must continue and not rewrite.
  absl::StatusOr<ChatText> RenderForTraining(const nlohmann::ordered_json& messages) const;

 private:
  ChatTemplate(JinjaTemplate parsed, nlohmann::ordered_json tokens) : template_(std::move(parsed)), tokens_(std::move(tokens)) {}
  absl::StatusOr<RenderedTemplate> RenderAll(const nlohmann::ordered_json& messages, bool add_generation_prompt) const;

  JinjaTemplate template_;
  nlohmann::ordered_json tokens_;  // bos_token, eos_token, ...
};

// {"messages": [...]}'s list as it must be: objects with a text "role". `where` begins every message.
absl::Status CheckMessages(const nlohmann::ordered_json& messages, std::string_view where);

}  // namespace argosy::train
