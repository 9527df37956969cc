#include "train/tokenizer/normalizer.h"

#include <map>

#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/pattern.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

constexpr std::string_view kNormalizerField = "normalizer";

void Strip(Piece& piece, bool left, bool right) {
  std::string_view text = piece.text;
  size_t begin = 0, end = text.size();
  if (left) {
    for (size_t at = 0; at < text.size();) {
      if (!unicode::IsWhitespace(unicode::Next(text, at))) break;
      begin = at;
    }
  }
  if (right) {
    while (end > begin) {
      size_t last = end - 1;
      while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
      size_t at = last;
      if (!unicode::IsWhitespace(unicode::Next(text, at))) break;
      end = last;
    }
  }
  if (begin > 0) piece.at_start = false;
  piece.text = piece.text.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Parse(const nlohmann::json& part) {
  Normalizer normalizer;
  if (!part.is_null()) ARGOSY_RETURN_IF_ERROR(normalizer.Add(part));
  return normalizer;
}

absl::Status Normalizer::Add(const nlohmann::json& part) {
  ARGOSY_ASSIGN_OR_RETURN(std::string type, TypeOf(part, kNormalizerField));
  static const std::map<std::string, unicode::NormalForm> kForms = {{"NFC", unicode::NormalForm::kNfc},
                                                                     {"NFD", unicode::NormalForm::kNfd},
                                                                     {"NFKC", unicode::NormalForm::kNfkc},
                                                                     {"NFKD", unicode::NormalForm::kNfkd}};
  if (type == "Sequence") {
    auto list = part.find("normalizers");
    if (list == part.end() || !list->is_array()) return InvalidArgument("{} Sequence: \"normalizers\" is missing", kNormalizerField);
    for (const auto& item : *list) ARGOSY_RETURN_IF_ERROR(Add(item));
  } else if (auto form = kForms.find(type); form != kForms.end()) {
    steps_.push_back([form = form->second](Piece& piece) { piece.text = unicode::Normalize(piece.text, form); });
  } else if (type == "Prepend") {
    ARGOSY_ASSIGN_OR_RETURN(std::string prefix, StringField(part, "prepend", "normalizer Prepend"));
    steps_.push_back([prefix](Piece& piece) {
      if (!piece.text.empty()) piece.text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(part, "normalizer Replace"));
    ARGOSY_ASSIGN_OR_RETURN(std::string content, StringField(part, "content", "normalizer Replace"));
    steps_.push_back([pattern, content](Piece& piece) { piece.text = pattern.ReplaceAll(piece.text, content); });
  } else if (type == "Strip") {
    bool left = BoolField(part, "strip_left", true), right = BoolField(part, "strip_right", true);
    steps_.push_back([left, right](Piece& piece) { Strip(piece, left, right); });
  } else if (type == "Lowercase") {
    steps_.push_back([](Piece& piece) { piece.text = unicode::Lowercase(piece.text); });
  } else if (type == "ByteLevel") {
    steps_.push_back([](Piece& piece) { piece.text = unicode::BytesToAlphabet(piece.text); });
  } else {
    return InvalidArgument(
        "normalizer {} is not supported; supported: Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Strip, Lowercase, ByteLevel",
        type);
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
