#include "train/tokenizer/pattern.h"

#include "train/tokenizer/json_fields.h"

namespace argosy::train {

absl::StatusOr<Pattern> Pattern::Parse(const nlohmann::json& part, std::string_view where) {
  auto field = part.find("pattern");
  if (field == part.end() || !field->is_object()) return InvalidArgument("{}: \"pattern\" is missing or no object", where);
  Pattern pattern;
  if (field->contains("String")) {
    ARGOSY_ASSIGN_OR_RETURN(pattern.literal_, StringField(*field, "String", where));
    if (pattern.literal_.empty()) return InvalidArgument("{}: the pattern is empty", where);
    return pattern;
  }
  ARGOSY_ASSIGN_OR_RETURN(std::string text, StringField(*field, "Regex", where));
  absl::StatusOr<Regex> regex = Regex::Compile(text);
  if (!regex.ok()) return Annotate(regex.status(), where);
  pattern.regex_ = *std::move(regex);
  return pattern;
}

std::vector<std::pair<size_t, size_t>> Pattern::FindAll(std::string_view text) const {
  if (regex_) return regex_->FindAll(text);
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at + literal_.size())) {
    found.emplace_back(at, at + literal_.size());
  }
  return found;
}

std::string Pattern::ReplaceAll(std::string_view text, std::string_view content) const {
  std::string out;
  size_t copied = 0;
  for (auto [begin, end] : FindAll(text)) {
    out += text.substr(copied, begin - copied);
    out += content;
    copied = end;
  }
  out += text.substr(copied);
  return out;
}

}  // namespace argosy::train
