#include "train/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/base/status.h"
#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

// sentencepiece_model.proto's numbers.
enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum ModelType : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

// The fields of a protobuf message, one after the other.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  // False at the end, and where the message breaks.
  bool Next() {
    if (broken_ || at_ == bytes_.size()) return false;
    std::optional<uint64_t> tag = Varint();
    if (!tag) return Break();
    field = *tag >> 3;
    switch (*tag & 7) {
      case 0: {
        std::optional<uint64_t> value = Varint();
        if (!value) return Break();
        number = *value;
        return true;
      }
      case 1: return Take(8);
      case 5:
        if (!Take(4)) return false;
        number = 0;
        for (int i = 3; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
        return true;
      case 2: {
        std::optional<uint64_t> size = Varint();
        return size ? Take(*size) : Break();
      }
      default: return Break();
    }
  }
  bool broken() const { return broken_; }
  float Float() const { return std::bit_cast<float>(static_cast<uint32_t>(number)); }

  uint64_t field = 0;
  uint64_t number = 0;      // of varints and fixed32
  std::string_view bytes;   // of what has a length

 private:
  bool Break() {
    broken_ = true;
    return false;
  }
  bool Take(uint64_t size) {
    if (size > bytes_.size() - at_) return Break();
    bytes = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
      auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  std::string_view bytes_;
  size_t at_ = 0;
  bool broken_ = false;
};

struct SpPiece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct SpModel {
  std::vector<SpPiece> pieces;
  uint64_t type = kUnigram;
  bool whitespace_as_suffix = false;
  std::string normalizer = "";
  bool has_charsmap = false, add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  int64_t bos = 1, eos = 2;
};

absl::StatusOr<SpModel> Read(std::string_view bytes) {
  SpModel model;
  WireReader reader(bytes);
  bool broken = false;
  while (reader.Next()) {
    WireReader inner(reader.bytes);
    if (reader.field == 1) {
      SpPiece piece;
      while (inner.Next()) {
        if (inner.field == 1) piece.text = std::string(inner.bytes);
        if (inner.field == 2) piece.score = inner.Float();
        if (inner.field == 3) piece.type = inner.number;
      }
      model.pieces.push_back(std::move(piece));
    } else if (reader.field == 2) {
      while (inner.Next()) {
        if (inner.field == 3) model.type = inner.number;
        if (inner.field == 24) model.whitespace_as_suffix = inner.number != 0;
        if (inner.field == 41) model.bos = static_cast<int32_t>(inner.number);
        if (inner.field == 42) model.eos = static_cast<int32_t>(inner.number);
      }
    } else if (reader.field == 3) {
      while (inner.Next()) {
        if (inner.field == 1) model.normalizer = std::string(inner.bytes);
        if (inner.field == 2) model.has_charsmap = !inner.bytes.empty();
        if (inner.field == 3) model.add_dummy_prefix = inner.number != 0;
        if (inner.field == 4) model.remove_extra_whitespaces = inner.number != 0;
        if (inner.field == 5) model.escape_whitespaces = inner.number != 0;
      }
    }
    broken = broken || inner.broken();
  }
  if (reader.broken() || broken || model.pieces.empty()) return InvalidArgument("is no SentencePiece model (or a damaged one)");
  for (const SpPiece& piece : model.pieces) {
    if (!unicode::IsValid(piece.text)) return InvalidArgument("has a piece that is no UTF-8: the file is damaged");
  }
  return model;
}

absl::Status CheckSupported(const SpModel& model) {
  constexpr std::string_view kWayOut = "make a tokenizer.json of it once: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) in transformers";
  if (model.type != kBpe) {
    std::string_view name = model.type == kUnigram ? "Unigram" : model.type == kWord ? "Word" : "Char";
    return InvalidArgument("is of the {} kind; supported is BPE", name);
  }
  if (model.has_charsmap) return InvalidArgument("normalizes its text (\"{}\"), which is not done here; {}", model.normalizer, kWayOut);
  if (model.remove_extra_whitespaces) return InvalidArgument("drops extra spaces (remove_extra_whitespaces), which is not done here; {}", kWayOut);
  if (model.whitespace_as_suffix || !model.escape_whitespaces) return InvalidArgument("treats spaces in a way that is not supported; {}", kWayOut);
  return absl::OkStatus();
}

OrderedJson Added(size_t id, const std::string& content, bool special) {
  return {{"id", id},          {"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},   {"normalized", !special}, {"special", special}};
}

// Every pair of pieces that makes a third, ordered by the third's score, which is the order SentencePiece merges in.
OrderedJson Merges(const SpModel& model, const absl::flat_hash_map<std::string, size_t>& ids) {
  struct Merge {
    float score;
    size_t left, right;
    std::string_view text;
    size_t cut;
  };
  std::vector<Merge> merges;
  for (const SpPiece& piece : model.pieces) {
    if (piece.type != kNormal && piece.type != kUnused) continue;
    for (size_t at = 0; at < piece.text.size();) {
      unicode::Next(piece.text, at);
      if (at == piece.text.size()) break;
      auto left = ids.find(piece.text.substr(0, at)), right = ids.find(piece.text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({piece.score, left->second, right->second, piece.text, at});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left, a.right) < std::pair(b.left, b.right);
  });
  OrderedJson list = OrderedJson::array();
  for (const Merge& merge : merges) list.push_back({std::string(merge.text.substr(0, merge.cut)), std::string(merge.text.substr(merge.cut))});
  return list;
}

}  // namespace

absl::StatusOr<std::string> TokenizerJsonFromSentencePiece(std::string_view bytes, const nlohmann::json& config) {
  ARGOSY_ASSIGN_OR_RETURN(SpModel model, Read(bytes));
  ARGOSY_RETURN_IF_ERROR(CheckSupported(model));
  absl::flat_hash_map<std::string, size_t> ids;
  OrderedJson vocabulary = OrderedJson::object(), added = OrderedJson::array(), unknown;
  bool byte_fallback = false;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SpPiece& piece = model.pieces[id];
    if (!ids.emplace(piece.text, id).second) return InvalidArgument("has the piece \"{}\" twice: the file is damaged", piece.text);
    vocabulary[piece.text] = id;
    byte_fallback = byte_fallback || piece.type == kByte;
    if (piece.type == kUnknown) unknown = piece.text;
    if (piece.type == kUnknown || piece.type == kControl || piece.type == kUserDefined) added.push_back(Added(id, piece.text, piece.type != kUserDefined));
  }
  constexpr const char* kBlock = "▁";
  bool legacy = BoolField(config, "legacy", true);
  OrderedJson normalizer, pre_tokenizer;
  if (legacy) {
    normalizer = {{"type", "Sequence"}, {"normalizers", OrderedJson::array()}};
    if (model.add_dummy_prefix) normalizer["normalizers"].push_back({{"type", "Prepend"}, {"prepend", kBlock}});
    normalizer["normalizers"].push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlock}});
  } else {
    pre_tokenizer = {{"type", "Metaspace"}, {"replacement", kBlock}, {"prepend_scheme", model.add_dummy_prefix ? "first" : "never"}, {"split", false}};
  }
  OrderedJson decoders = {{{"type", "Replace"}, {"pattern", {{"String", kBlock}}}, {"content", " "}}, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (model.add_dummy_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});

  OrderedJson single = OrderedJson::array(), special = OrderedJson::object();
  auto around = [&](const char* flag, bool otherwise, int64_t id) {
    if (id < 0 || id >= static_cast<int64_t>(model.pieces.size()) || !BoolField(config, flag, otherwise)) return;
    const std::string& token = model.pieces[id].text;
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  around("add_bos_token", true, model.bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  around("add_eos_token", false, model.eos);

  OrderedJson json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added}, {"normalizer", normalizer},
               {"pre_tokenizer", pre_tokenizer},
               {"post_processor", {{"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", special}}},
               {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
               {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", unknown}, {"continuing_subword_prefix", nullptr},
                          {"end_of_word_suffix", nullptr}, {"fuse_unk", true}, {"byte_fallback", byte_fallback}, {"ignore_merges", false},
                          {"vocab", vocabulary}, {"merges", Merges(model, ids)}}}};
  return json.dump(2);
}

}  // namespace argosy::train
