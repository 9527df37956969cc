#include "train/tokenizer/chat_template.h"

#include "absl/time/clock.h"
#include "runtime/base/status.h"

namespace argosy::train {

using OrderedJson = nlohmann::ordered_json;

absl::StatusOr<ChatTemplate> ChatTemplate::Of(const Tokenizer& tokenizer) {
  const std::string& source = tokenizer.ChatTemplateSource();
  if (source.empty()) {
    return InvalidArgument("the tokenizer has no chat template (\"chat_template\" in tokenizer_config.json, or chat_template.jinja): use a model that has "
                           "one, or give the text itself");
  }
  ARGOSY_ASSIGN_OR_RETURN(JinjaTemplate parsed, JinjaTemplate::Parse(source));
  OrderedJson tokens = OrderedJson::object();
  for (auto [name, id] : {std::pair{"bos_token", tokenizer.BosId()}, std::pair{"eos_token", tokenizer.EosId()}, std::pair{"pad_token", tokenizer.PadId()},
                          std::pair{"unk_token", tokenizer.UnknownId()}}) {
    if (!id) continue;
    if (std::optional<std::string> token = tokenizer.IdToToken(*id)) tokens[name] = *token;
  }
  return ChatTemplate(std::move(parsed), std::move(tokens));
}

absl::StatusOr<RenderedTemplate> ChatTemplate::RenderAll(const OrderedJson& messages, bool add_generation_prompt) const {
  OrderedJson variables = tokens_;
  variables["messages"] = messages;
  variables["add_generation_prompt"] = add_generation_prompt;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  return template_.Render(variables, absl::ToUnixSeconds(absl::Now()));
}

absl::StatusOr<std::string> ChatTemplate::Render(const OrderedJson& messages, bool add_generation_prompt) const {
  ARGOSY_ASSIGN_OR_RETURN(RenderedTemplate rendered, RenderAll(messages, add_generation_prompt));
  return std::move(rendered.text);
}

absl::StatusOr<ChatText> ChatTemplate::RenderForTraining(const OrderedJson& messages) const {
  ARGOSY_ASSIGN_OR_RETURN(RenderedTemplate whole, RenderAll(messages, false));
  ChatText chat{.text = std::move(whole.text), .answers = std::move(whole.generated)};
  if (!chat.answers.empty()) return chat;
  OrderedJson so_far = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].value("role", std::string()) == "assistant") {
      ARGOSY_ASSIGN_OR_RETURN(std::string before, Render(so_far, true));
      so_far.push_back(messages[i]);
      ARGOSY_ASSIGN_OR_RETURN(std::string after, Render(so_far, false));
      if (!chat.text.starts_with(before) || !chat.text.starts_with(after) || after.size() < before.size()) {
        return InvalidArgument("the chat template writes message {} otherwise when others follow, so that its answer cannot be told apart: mark answers by "
                               "{{% generation %}} in the template, or train on everything with --loss-on all", i + 1);
      }
      chat.answers.emplace_back(before.size(), after.size());
    } else {
      so_far.push_back(messages[i]);
    }
  }
  return chat;
}

absl::Status CheckMessages(const OrderedJson& messages, std::string_view where) {
  if (!messages.is_array() || messages.empty()) {
    return InvalidArgument("{}: \"messages\" is {}; expected a list of {{\"role\": ..., \"content\": ...}}", where,
                           messages.is_array() ? "empty" : messages.type_name());
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if (!message.is_object()) return InvalidArgument("{}: message {} is {}; expected an object", where, i + 1, message.type_name());
    for (const char* key : {"role", "content"}) {
      auto field = message.find(key);
      if (field == message.end()) return InvalidArgument("{}: message {} has no \"{}\"", where, i + 1, key);
      if (!field->is_string() && (key == std::string_view("role") || !(field->is_array() || field->is_null()))) {
        return InvalidArgument("{}: message {}: \"{}\" is {}; expected text", where, i + 1, key, field->type_name());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
