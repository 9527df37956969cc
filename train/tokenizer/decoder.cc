#include "train/tokenizer/decoder.h"

#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/pattern.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using Tokens = std::vector<std::string>;

void Fuse(Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

// Back from the byte alphabet. A token with any other code point (an added token) is its own bytes.
void ByteLevel(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    std::string decoded;
    bool in_alphabet = true;
    for (size_t at = 0; at < token.size() && in_alphabet;) {
      int byte = unicode::CodePointToByte(unicode::Next(token, at));
      if (byte < 0) in_alphabet = false;
      else decoded += static_cast<char>(byte);
    }
    bytes += in_alphabet ? decoded : token;
  }
  tokens.assign(1, unicode::ToValid(bytes));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// A run of <0xNN> tokens is the text of its bytes, or one U+FFFD a byte where they are no text.
void ByteFallback(Tokens& tokens) {
  Tokens out;
  std::string run;
  auto flush = [&] {
    if (run.empty()) return;
    if (unicode::IsValid(run)) out.push_back(run);
    else out.insert(out.end(), run.size(), "\xef\xbf\xbd");
    run.clear();
  };
  for (std::string& token : tokens) {
    bool byte = token.size() == 6 && token.starts_with("<0x") && token[5] == '>' && HexDigit(token[3]) >= 0 && HexDigit(token[4]) >= 0;
    if (byte) {
      run += static_cast<char>(HexDigit(token[3]) * 16 + HexDigit(token[4]));
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

void Strip(std::string& token, const std::string& content, size_t start, size_t stop) {
  size_t begin = 0, end = token.size();
  for (size_t i = 0; i < start && token.compare(begin, content.size(), content) == 0; ++i) begin += content.size();
  for (size_t i = 0; i < stop && end >= begin + content.size() && token.compare(end - content.size(), content.size(), content) == 0; ++i) {
    end -= content.size();
  }
  token = token.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<Decoder> Decoder::Parse(const nlohmann::json& part) {
  Decoder decoder;
  decoder.joins_with_spaces_ = part.is_null();
  if (!part.is_null()) ARGOSY_RETURN_IF_ERROR(decoder.Add(part));
  return decoder;
}

absl::Status Decoder::Add(const nlohmann::json& part) {
  ARGOSY_ASSIGN_OR_RETURN(std::string type, TypeOf(part, "decoder"));
  if (type == "Sequence") {
    auto list = part.find("decoders");
    if (list == part.end() || !list->is_array()) return InvalidArgument("decoder Sequence: \"decoders\" is missing");
    for (const auto& item : *list) ARGOSY_RETURN_IF_ERROR(Add(item));
  } else if (type == "ByteLevel") {
    steps_.push_back(ByteLevel);
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback);
  } else if (type == "Fuse") {
    steps_.push_back(Fuse);
  } else if (type == "Replace") {
    ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(part, "decoder Replace"));
    ARGOSY_ASSIGN_OR_RETURN(std::string content, StringField(part, "content", "decoder Replace"));
    steps_.push_back([pattern, content](Tokens& tokens) {
      for (std::string& token : tokens) token = pattern.ReplaceAll(token, content);
    });
  } else if (type == "Strip") {
    ARGOSY_ASSIGN_OR_RETURN(std::string content, StringField(part, "content", "decoder Strip"));
    if (content.empty()) return InvalidArgument("decoder Strip: \"content\" is empty");
    size_t start = part.value("start", size_t{0}), stop = part.value("stop", size_t{0});
    steps_.push_back([content, start, stop](Tokens& tokens) {
      for (std::string& token : tokens) Strip(token, content, start, stop);
    });
  } else if (type == "Metaspace") {
    ARGOSY_ASSIGN_OR_RETURN(std::string replacement, StringField(part, "replacement", "decoder Metaspace"));
    std::string scheme = part.value("prepend_scheme", std::string());
    if (scheme.empty()) scheme = BoolField(part, "add_prefix_space", true) ? "always" : "never";
    ARGOSY_ASSIGN_OR_RETURN(Pattern mark, Pattern::Parse({{"pattern", {{"String", replacement}}}}, "decoder Metaspace"));
    steps_.push_back([mark, scheme](Tokens& tokens) {
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = mark.ReplaceAll(tokens[i], i == 0 && scheme != "never" ? "" : " ");
    });
  } else if (type == "BPEDecoder") {
    std::string suffix = part.value("suffix", std::string("</w>"));
    ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse({{"pattern", {{"String", suffix}}}}, "decoder BPEDecoder"));
    steps_.push_back([pattern](Tokens& tokens) {
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = pattern.ReplaceAll(tokens[i], i + 1 == tokens.size() ? "" : " ");
    });
  } else {
    return InvalidArgument(
        "decoder {} is not supported; supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder", type);
  }
  return absl::OkStatus();
}

std::string Decoder::Apply(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (joins_with_spaces_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace argosy::train
