#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/data/prompt.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {

// One row as a JSON object; `where` ("file:line: row n") begins every message.
inline absl::StatusOr<nlohmann::json> ParseRow(std::string_view text, std::string_view where) {
  nlohmann::json row = nlohmann::json::parse(text, nullptr, false);
  if (row.is_discarded() && !unicode::IsValid(text)) return InvalidArgument("{} is not valid UTF-8", where);
  if (row.is_discarded()) return InvalidArgument("{} is not valid JSON", where);
  if (!row.is_object()) return InvalidArgument("{} is {}; expected an object", where, row.type_name());
  return row;
}

inline std::string KeysOf(const nlohmann::json& row) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "\"" : ", \"") + key + "\"";
  return keys.empty() ? "nothing" : keys;
}

inline absl::StatusOr<std::string> TextField(const nlohmann::json& row, const char* key, std::string_view where) {
  auto field = row.find(key);
  if (field == row.end()) return InvalidArgument("{} has no \"{}\" (it has {})", where, key, KeysOf(row));
  if (!field->is_string()) return InvalidArgument("{}: \"{}\" is {}; expected text", where, key, field->type_name());
  return field->get<std::string>();
}

// {"question","context","answer"}, {"question","answer"}, or PubMedQA's {"QUESTION","CONTEXTS","LONG_ANSWER"}.
inline absl::StatusOr<QaRow> QaFromJson(const nlohmann::json& row, std::string_view where) {
  QaRow qa;
  if (row.contains("QUESTION")) {
    ARGOSY_ASSIGN_OR_RETURN(qa.question, TextField(row, "QUESTION", where));
    auto contexts = row.find("CONTEXTS");
    if (contexts == row.end()) return InvalidArgument("{} has no \"CONTEXTS\" (it has {})", where, KeysOf(row));
    if (!contexts->is_array()) return InvalidArgument("{}: \"CONTEXTS\" is {}; expected a list of texts", where, contexts->type_name());
    qa.context.emplace();
    for (const auto& context : *contexts) {
      if (!context.is_string()) return InvalidArgument("{}: \"CONTEXTS\" holds {}; expected texts", where, context.type_name());
      *qa.context += context.get_ref<const std::string&>();
    }
    ARGOSY_ASSIGN_OR_RETURN(qa.answer, TextField(row, "LONG_ANSWER", where));
    return qa;
  }
  ARGOSY_ASSIGN_OR_RETURN(qa.question, TextField(row, "question", where));
  if (row.contains("context")) {
    ARGOSY_ASSIGN_OR_RETURN(qa.context, TextField(row, "context", where));
  }
  ARGOSY_ASSIGN_OR_RETURN(qa.answer, TextField(row, "answer", where));
  return qa;
}

}  // namespace argosy::train
