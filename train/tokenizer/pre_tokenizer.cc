#include "train/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/pattern.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

constexpr std::string_view kPreTokenizerField = "pre_tokenizer";

// What becomes of the delimiters that a pattern finds.
enum class Delimiter { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

absl::StatusOr<Delimiter> ParseDelimiter(const nlohmann::json& part, std::string_view otherwise) {
  std::string name = part.value("behavior", std::string(otherwise));
  if (name == "Removed") return Delimiter::kRemoved;
  if (name == "Isolated") return Delimiter::kIsolated;
  if (name == "MergedWithPrevious") return Delimiter::kMergedWithPrevious;
  if (name == "MergedWithNext") return Delimiter::kMergedWithNext;
  if (name == "Contiguous") return Delimiter::kContiguous;
  return InvalidArgument("{}: behavior \"{}\" is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                         kPreTokenizerField, name);
}

using Spans = std::vector<std::pair<size_t, size_t>>;
using Finder = std::function<Spans(std::string_view)>;

struct Cut {
  size_t begin, end;
  bool match;
};

// Matches and what lies between them, covering the text.
std::vector<Cut> Cover(const Spans& matches, size_t size, bool invert) {
  std::vector<Cut> cuts;
  size_t last = 0;
  for (auto [begin, end] : matches) {
    if (last != begin) cuts.push_back({last, begin, invert});
    cuts.push_back({begin, end, !invert});
    last = end;
  }
  if (last != size) cuts.push_back({last, size, invert});
  return cuts;
}

Spans Arrange(const std::vector<Cut>& cuts, Delimiter delimiter) {
  Spans spans;
  bool last_match = false;
  switch (delimiter) {
    case Delimiter::kIsolated:
      for (const Cut& cut : cuts) spans.emplace_back(cut.begin, cut.end);
      break;
    case Delimiter::kRemoved:
      for (const Cut& cut : cuts) {
        if (!cut.match) spans.emplace_back(cut.begin, cut.end);
      }
      break;
    case Delimiter::kContiguous:
      for (const Cut& cut : cuts) {
        if (cut.match == last_match && !spans.empty()) spans.back().second = cut.end;
        else spans.emplace_back(cut.begin, cut.end);
        last_match = cut.match;
      }
      break;
    case Delimiter::kMergedWithPrevious:
      for (const Cut& cut : cuts) {
        if (cut.match && !last_match && !spans.empty()) spans.back().second = cut.end;
        else spans.emplace_back(cut.begin, cut.end);
        last_match = cut.match;
      }
      break;
    case Delimiter::kMergedWithNext:
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        if (cut->match && !last_match && !spans.empty()) spans.back().first = cut->begin;
        else spans.emplace_back(cut->begin, cut->end);
        last_match = cut->match;
      }
      spans = Spans(spans.rbegin(), spans.rend());
      break;
  }
  return spans;
}

// Runs `edit` on each piece that is no token, then cuts it where `find` says (not at all without one).
void CutPieces(std::vector<Piece>& pieces, const std::function<void(Piece&)>& edit, const Finder& find, Delimiter delimiter,
               bool invert) {
  std::vector<Piece> out;
  out.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.token >= 0) {
      out.push_back(std::move(piece));
      continue;
    }
    if (edit) edit(piece);
    if (!find) {
      if (!piece.text.empty()) out.push_back(std::move(piece));
      continue;
    }
    for (auto [begin, end] : Arrange(Cover(find(piece.text), piece.text.size(), invert), delimiter)) {
      if (begin == end) continue;
      out.push_back({.text = piece.text.substr(begin, end - begin), .at_start = piece.at_start && begin == 0});
    }
  }
  pieces = std::move(out);
}

Finder EachCodePoint(bool (*wanted)(char32_t)) {
  return [wanted](std::string_view text) {
    Spans spans;
    for (size_t at = 0; at < text.size();) {
      size_t begin = at;
      if (wanted(unicode::Next(text, at))) spans.emplace_back(begin, at);
    }
    return spans;
  };
}

Finder EachMatch(Pattern pattern) {
  return [pattern = std::move(pattern)](std::string_view text) { return pattern.FindAll(text); };
}

absl::StatusOr<Finder> EachMatchOf(std::string_view regex) {
  ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse({{"pattern", {{"Regex", std::string(regex)}}}}, kPreTokenizerField));
  return EachMatch(std::move(pattern));
}

// The pattern of GPT-2's tokenizer (encoder.py of its release).
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ as Rust's regex crate, which runs this one, reads \w (unicode::IsWord).
constexpr std::string_view kWordsAndOthers =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}]+)"
    R"(|[^\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}\s]+)";

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const nlohmann::json& part) {
  PreTokenizer pre_tokenizer;
  if (!part.is_null()) ARGOSY_RETURN_IF_ERROR(pre_tokenizer.Add(part));
  return pre_tokenizer;
}

absl::Status PreTokenizer::Add(const nlohmann::json& part) {
  ARGOSY_ASSIGN_OR_RETURN(std::string type, TypeOf(part, kPreTokenizerField));
  auto cut_at = [this](Finder find, Delimiter delimiter, bool invert = false) {
    steps_.push_back([find = std::move(find), delimiter, invert](std::vector<Piece>& pieces) {
      CutPieces(pieces, nullptr, find, delimiter, invert);
    });
  };
  if (type == "Sequence") {
    auto list = part.find("pretokenizers");
    if (list == part.end() || !list->is_array()) return InvalidArgument("{} Sequence: \"pretokenizers\" is missing", kPreTokenizerField);
    for (const auto& item : *list) ARGOSY_RETURN_IF_ERROR(Add(item));
  } else if (type == "ByteLevel") {
    bool add_prefix_space = BoolField(part, "add_prefix_space", true);
    Finder find;
    if (BoolField(part, "use_regex", true)) {
      ARGOSY_ASSIGN_OR_RETURN(find, EachMatchOf(kGpt2));
    }
    steps_.push_back([add_prefix_space, find](std::vector<Piece>& pieces) {
      CutPieces(pieces, [&](Piece& piece) {
        if (add_prefix_space && !piece.text.starts_with(' ')) piece.text.insert(0, " ");
      }, find, Delimiter::kIsolated, false);
      for (Piece& piece : pieces) {
        if (piece.token < 0) piece.text = unicode::BytesToAlphabet(piece.text);
      }
    });
  } else if (type == "Split") {
    ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(part, "pre_tokenizer Split"));
    ARGOSY_ASSIGN_OR_RETURN(Delimiter delimiter, ParseDelimiter(part, ""));
    cut_at(EachMatch(std::move(pattern)), delimiter, BoolField(part, "invert", false));
  } else if (type == "Digits") {
    bool individual = BoolField(part, "individual_digits", false);
    cut_at(EachCodePoint(unicode::IsNumeric), individual ? Delimiter::kIsolated : Delimiter::kContiguous);
  } else if (type == "Punctuation") {
    ARGOSY_ASSIGN_OR_RETURN(Delimiter delimiter, ParseDelimiter(part, "Isolated"));
    cut_at(EachCodePoint(unicode::IsPunctuation), delimiter);
  } else if (type == "WhitespaceSplit") {
    cut_at(EachCodePoint(unicode::IsWhitespace), Delimiter::kRemoved);
  } else if (type == "Whitespace") {
    ARGOSY_ASSIGN_OR_RETURN(Finder find, EachMatchOf(kWordsAndOthers));
    cut_at(std::move(find), Delimiter::kRemoved, true);
  } else if (type == "CharDelimiterSplit") {
    ARGOSY_ASSIGN_OR_RETURN(std::string delimiter, StringField(part, "delimiter", "pre_tokenizer CharDelimiterSplit"));
    ARGOSY_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse({{"pattern", {{"String", delimiter}}}}, kPreTokenizerField));
    cut_at(EachMatch(std::move(pattern)), Delimiter::kRemoved);
  } else if (type == "Metaspace") {
    ARGOSY_ASSIGN_OR_RETURN(std::string replacement, StringField(part, "replacement", "pre_tokenizer Metaspace"));
    std::string scheme = part.value("prepend_scheme", std::string());
    // Files from before prepend_scheme have add_prefix_space.
    if (scheme.empty()) scheme = BoolField(part, "add_prefix_space", true) ? "always" : "never";
    if (scheme != "always" && scheme != "never" && scheme != "first") {
      return InvalidArgument("pre_tokenizer Metaspace: prepend_scheme \"{}\" is none of always, never, first", scheme);
    }
    ARGOSY_ASSIGN_OR_RETURN(Pattern space, Pattern::Parse({{"pattern", {{"String", " "}}}}, kPreTokenizerField));
    ARGOSY_ASSIGN_OR_RETURN(Pattern mark, Pattern::Parse({{"pattern", {{"String", replacement}}}}, kPreTokenizerField));
    Finder find = BoolField(part, "split", true) ? EachMatch(mark) : Finder();
    steps_.push_back([replacement, scheme, space, find](std::vector<Piece>& pieces) {
      CutPieces(pieces, [&](Piece& piece) {
        piece.text = space.ReplaceAll(piece.text, replacement);
        bool wanted = scheme == "always" || (scheme == "first" && piece.at_start);
        if (wanted && !piece.text.starts_with(replacement)) piece.text.insert(0, replacement);
      }, find, Delimiter::kMergedWithNext, false);
    });
  } else {
    return InvalidArgument(
        "pre_tokenizer {} is not supported; supported: Sequence, ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, "
        "Punctuation, CharDelimiterSplit",
        type);
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
