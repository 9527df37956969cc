#include "train/tokenizer/bpe_model.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <queue>

#include "train/tokenizer/json_fields.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string OptionalString(const nlohmann::json& part, const char* key) {
  auto field = part.find(key);
  return field != part.end() && field->is_string() ? field->get<std::string>() : std::string();
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Parse(const nlohmann::json& part) {
  if (!part.is_object()) return InvalidArgument("model: expected an object, not {}", part.type_name());
  std::string type = part.value("type", std::string("BPE"));
  if (type != "BPE") return InvalidArgument("model type {} is not supported; supported: BPE", type);
  if (auto dropout = part.find("dropout"); dropout != part.end() && dropout->is_number() && dropout->get<double>() != 0) {
    return InvalidArgument("model: dropout {} would make tokens random; set it to null", dropout->get<double>());
  }
  auto vocabulary = part.find("vocab");
  auto merges = part.find("merges");
  if (vocabulary == part.end() || !vocabulary->is_object()) return InvalidArgument("model: \"vocab\" is missing or no object");
  if (merges == part.end() || !merges->is_array()) return InvalidArgument("model: \"merges\" is missing or no array");

  BpeModel model;
  constexpr int64_t kIdsMax = 1 << 24;
  model.ids_.reserve(vocabulary->size());
  for (const auto& [token, id] : vocabulary->items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kIdsMax) {
      return InvalidArgument("model: the id of \"{}\" is {}; expected 0 to {}", token, id.dump(), kIdsMax - 1);
    }
    auto number = id.get<int32_t>();
    if (static_cast<size_t>(number) >= model.tokens_.size()) model.tokens_.resize(number + 1, nullptr);
    if (model.tokens_[number]) return InvalidArgument("model: \"{}\" and \"{}\" have the same id {}", *model.tokens_[number], token, number);
    model.names_.push_back(std::make_unique<std::string>(token));
    model.tokens_[number] = model.names_.back().get();
    model.ids_.emplace(token, number);
  }

  model.prefix_ = OptionalString(part, "continuing_subword_prefix");
  model.suffix_ = OptionalString(part, "end_of_word_suffix");
  model.fuse_unknown_ = BoolField(part, "fuse_unk", false);
  model.byte_fallback_ = BoolField(part, "byte_fallback", false);
  model.ignore_merges_ = BoolField(part, "ignore_merges", false);
  if (std::string unknown = OptionalString(part, "unk_token"); !unknown.empty()) {
    model.unknown_ = model.TokenToId(unknown);
    if (!model.unknown_) return InvalidArgument("model: unk_token \"{}\" is not in the vocabulary", unknown);
  }

  model.merges_.reserve(merges->size());
  uint32_t rank = 0;
  for (const auto& merge : *merges) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& both = merge.get_ref<const std::string&>();
      size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        return InvalidArgument("model: merge {} \"{}\" is not two tokens with one space between them", rank, both);
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      return InvalidArgument("model: merge {} is {}; expected \"a b\" or [\"a\", \"b\"]", rank, merge.dump());
    }
    std::string joined = left + (right.starts_with(model.prefix_) ? right.substr(model.prefix_.size()) : right);
    auto left_id = model.TokenToId(left), right_id = model.TokenToId(right), joined_id = model.TokenToId(joined);
    if (!left_id || !right_id || !joined_id) {
      return InvalidArgument("model: merge {} of \"{}\" and \"{}\" needs \"{}\" in the vocabulary", rank, left, right,
                             !left_id ? left : !right_id ? right : joined);
    }
    model.merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{rank++, *joined_id});
  }
  return model;
}

std::optional<int32_t> BpeModel::TokenToId(std::string_view token) const {
  auto found = ids_.find(ToAbsl(token));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* BpeModel::IdToToken(int32_t id) const {
  return id >= 0 && id < IdsEnd() ? tokens_[id] : nullptr;
}

void BpeModel::Tokenize(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  bool cached = piece.size() <= Cache::kBytesMax;
  bool full = false;
  if (cached) {
    std::shared_lock lock(cache_->mutex);
    if (auto found = cache_->entries.find(ToAbsl(piece)); found != cache_->entries.end()) {
      out.insert(out.end(), found->second.begin(), found->second.end());
      return;
    }
    full = cache_->entries.size() >= Cache::kEntriesMax;
  }
  if (ignore_merges_) {
    if (auto whole = TokenToId(piece)) {
      out.push_back(*whole);
      return;
    }
  }
  std::vector<int32_t> symbols = Symbols(piece);
  MergeAll(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (cached && !full) {
    std::unique_lock lock(cache_->mutex);
    cache_->entries.emplace(piece, std::move(symbols));
  }
}

// One symbol a code point; those outside the vocabulary become their bytes, or the unknown token, or nothing.
std::vector<int32_t> BpeModel::Symbols(std::string_view piece) const {
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  bool pending = false;  // an unknown token not yet written: a run of them may become one
  std::string decorated;
  for (size_t at = 0; at < piece.size();) {
    size_t begin = at;
    unicode::Next(piece, at);
    std::string_view symbol = piece.substr(begin, at - begin);
    if ((begin > 0 && !prefix_.empty()) || (at == piece.size() && !suffix_.empty())) {
      decorated = (begin > 0 ? prefix_ : std::string()) + std::string(symbol) + (at == piece.size() ? suffix_ : std::string());
      symbol = decorated;
    }
    if (auto id = TokenToId(symbol)) {
      if (std::exchange(pending, false)) symbols.push_back(*unknown_);
      symbols.push_back(*id);
      continue;
    }
    if (byte_fallback_) {
      std::vector<int32_t> bytes;
      for (char b : symbol) {
        if (auto id = TokenToId(fmt::format("<0x{:02X}>", static_cast<uint8_t>(b)))) bytes.push_back(*id);
      }
      if (bytes.size() == symbol.size()) {
        symbols.insert(symbols.end(), bytes.begin(), bytes.end());
        continue;
      }
    }
    if (unknown_) {
      if (pending && !fuse_unknown_) symbols.push_back(*unknown_);
      pending = true;
    }
  }
  if (pending) symbols.push_back(*unknown_);
  return symbols;
}

// The merge of lowest rank first, leftmost among equals, over a linked list of symbols.
void BpeModel::MergeAll(std::vector<int32_t>& symbols) const {
  struct Node {
    int32_t symbol;
    int32_t previous, next;  // -1: none
    bool alive;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t token;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  auto count = static_cast<int32_t>(symbols.size());
  if (count < 2) return;
  std::vector<Node> nodes(symbols.size());
  for (int32_t i = 0; i < count; ++i) nodes[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1, true};

  std::vector<Candidate> initial;
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (auto merge = merges_.find(PairKey(symbols[i], symbols[i + 1])); merge != merges_.end()) {
      initial.push_back({merge->second.rank, i, merge->second.token});
    }
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(initial));
  auto propose = [&](int32_t left) {
    if (left < 0 || nodes[left].next < 0) return;
    auto merge = merges_.find(PairKey(nodes[left].symbol, nodes[nodes[left].next].symbol));
    if (merge != merges_.end()) queue.push({merge->second.rank, left, merge->second.token});
  };
  while (!queue.empty()) {
    Candidate top = queue.top();
    queue.pop();
    Node& left = nodes[top.at];
    if (!left.alive || left.next < 0) continue;
    Node& right = nodes[left.next];
    // The pair may have changed since it was proposed.
    auto merge = merges_.find(PairKey(left.symbol, right.symbol));
    if (merge == merges_.end() || merge->second.token != top.token) continue;
    left.symbol = top.token;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) nodes[left.next].previous = top.at;
    propose(left.previous);
    propose(top.at);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = nodes[i].next) symbols.push_back(nodes[i].symbol);
}

}  // namespace argosy::train
