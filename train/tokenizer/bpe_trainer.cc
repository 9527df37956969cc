#include "train/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Pair = std::pair<int32_t, int32_t>;

struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

struct Learner {
  std::vector<Word> words;
  absl::flat_hash_map<Pair, int64_t> counts;
  absl::flat_hash_map<Pair, absl::flat_hash_set<size_t>> places;  // words in which the pair is or was

  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };
  std::priority_queue<Candidate> queue;

  void Start() {
    for (size_t w = 0; w < words.size(); ++w) {
      const auto& symbols = words[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        Pair pair{symbols[i], symbols[i + 1]};
        counts[pair] += words[w].count;
        places[pair].insert(w);
      }
    }
    for (const auto& [pair, count] : counts) queue.push({count, pair});
  }

  // The best pair whose count is current, or none of at least `min_frequency`.
  std::optional<Pair> Pop(int64_t min_frequency) {
    while (!queue.empty()) {
      Candidate top = queue.top();
      queue.pop();
      int64_t count = counts[top.pair];
      if (count != top.count) {
        if (count > 0) queue.push({count, top.pair});
        continue;
      }
      if (count < min_frequency) return std::nullopt;
      return top.pair;
    }
    return std::nullopt;
  }

  void Merge(Pair pair, int32_t token) {
    absl::flat_hash_set<size_t> where = std::move(places[pair]);
    absl::flat_hash_set<Pair> grown;
    for (size_t w : where) {
      Word& word = words[w];
      std::vector<int32_t>& symbols = word.symbols;
      auto change = [&](int32_t left, int32_t right, int64_t by) {
        Pair changed{left, right};
        counts[changed] += by;
        if (by > 0) {
          places[changed].insert(w);
          grown.insert(changed);
        }
      };
      size_t out = 0;
      for (size_t i = 0; i < symbols.size(); ++i) {
        if (i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second) {
          if (out > 0) {
            change(symbols[out - 1], pair.first, -word.count);
            change(symbols[out - 1], token, word.count);
          }
          if (i + 2 < symbols.size()) {
            change(pair.second, symbols[i + 2], -word.count);
            change(token, symbols[i + 2], word.count);
          }
          symbols[out++] = token;
          ++i;
        } else {
          symbols[out++] = symbols[i];
        }
      }
      symbols.resize(out);
    }
    counts.erase(pair);
    places.erase(pair);
    for (const Pair& changed : grown) {
      if (auto count = counts.find(changed); count != counts.end() && count->second > 0) queue.push({count->second, changed});
    }
  }
};

OrderedJson TokenizerJson(const BpeTrainerOptions& options, const std::vector<std::string>& special, const OrderedJson& vocabulary,
                          const OrderedJson& merges) {
  OrderedJson byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  OrderedJson pre_tokenizer = byte_level;
  if (options.individual_digits) {
    OrderedJson digits = {{"type", "Digits"}, {"individual_digits", true}};
    pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({digits, byte_level})}};
  }
  OrderedJson added = OrderedJson::array();
  for (size_t i = 0; i < special.size(); ++i) {
    added.push_back({{"id", i}, {"content", special[i]}, {"single_word", false}, {"lstrip", false}, {"rstrip", false},
                     {"normalized", false}, {"special", true}});
  }
  OrderedJson post_processor = byte_level;
  if (options.add_bos) {
    size_t bos = static_cast<size_t>(std::find(special.begin(), special.end(), options.bos_token) - special.begin());
    auto token = [&](int type) { return OrderedJson{{"SpecialToken", {{"id", options.bos_token}, {"type_id", type}}}}; };
    auto sequence = [](const char* id, int type) { return OrderedJson{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
    post_processor = {
        {"type", "TemplateProcessing"},
        {"single", OrderedJson::array({token(0), sequence("A", 0)})},
        {"pair", OrderedJson::array({token(0), sequence("A", 0), token(1), sequence("B", 1)})},
        {"special_tokens", {{options.bos_token, {{"id", options.bos_token}, {"ids", OrderedJson::array({bos})},
                                                 {"tokens", OrderedJson::array({options.bos_token})}}}}}};
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", post_processor},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"dropout", nullptr},
                     {"unk_token", options.unknown_token.empty() ? OrderedJson(nullptr) : OrderedJson(options.unknown_token)},
                     {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr}, {"fuse_unk", false},
                     {"byte_fallback", false}, {"ignore_merges", false}, {"vocab", vocabulary}, {"merges", merges}}}};
}

TokenizerFiles Files(const BpeTrainerOptions& options, const std::vector<std::string>& special, const OrderedJson& vocabulary,
                     const OrderedJson& merges) {
  OrderedJson map = OrderedJson::object();
  for (const auto& [key, token] : {std::pair{"bos_token", &options.bos_token}, std::pair{"eos_token", &options.eos_token},
                                   std::pair{"pad_token", &options.pad_token}, std::pair{"unk_token", &options.unknown_token}}) {
    if (!token->empty()) map[key] = *token;
  }
  OrderedJson config = map;
  config["clean_up_tokenization_spaces"] = false;
  if (options.model_max_length > 0) config["model_max_length"] = options.model_max_length;
  config["padding_side"] = options.padding_side == PaddingSide::kLeft ? "left" : "right";
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return {.tokenizer_json = TokenizerJson(options, special, vocabulary, merges).dump(2) + "\n",
          .tokenizer_config_json = config.dump(2) + "\n",
          .special_tokens_map_json = map.dump(2) + "\n"};
}

}  // namespace

absl::StatusOr<Tokenizer> TrainBpe(const std::vector<std::string>& texts, const BpeTrainerOptions& options) {
  std::vector<std::string> special;
  auto name = [&](const std::string& token) {
    if (!token.empty() && std::find(special.begin(), special.end(), token) == special.end()) special.push_back(token);
  };
  for (const std::string& token : options.special_tokens) name(token);
  for (const std::string* token : {&options.bos_token, &options.eos_token, &options.pad_token, &options.unknown_token}) name(*token);
  if (options.add_bos && options.bos_token.empty()) return InvalidArgument("add_bos needs a bos_token");
  auto least = static_cast<int32_t>(special.size()) + 256;
  if (options.vocabulary_size < least) {
    return InvalidArgument("vocabulary_size {} is too small; {} special tokens and 256 bytes need {}", options.vocabulary_size,
                           special.size(), least);
  }

  // Ids: special tokens, then the byte alphabet in the order of its code points.
  std::vector<std::string> tokens = special;
  std::vector<char32_t> alphabet;
  for (int b = 0; b < 256; ++b) alphabet.push_back(unicode::ByteToCodePoint(static_cast<uint8_t>(b)));
  std::sort(alphabet.begin(), alphabet.end());
  std::map<char32_t, int32_t> id_of;
  for (char32_t c : alphabet) {
    id_of[c] = static_cast<int32_t>(tokens.size());
    unicode::Append(tokens.emplace_back(), c);
  }
  // Objects are filled by push_back of pairs: no search for the key each time, the tokens are distinct.
  OrderedJson vocabulary = OrderedJson::object();
  auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
  auto add_entry = [&](size_t id) { entries.push_back({tokens[id], OrderedJson(id)}); };
  for (size_t i = 0; i < tokens.size(); ++i) add_entry(i);

  OrderedJson merges = OrderedJson::array();
  ARGOSY_ASSIGN_OR_RETURN(Tokenizer bytes_only, Tokenizer::FromFiles(Files(options, special, vocabulary, merges)));
  absl::flat_hash_map<std::string, size_t> index;
  Learner learner;
  for (const std::string& text : texts) {
    for (Piece& piece : bytes_only.Pieces(text)) {
      if (piece.token >= 0) continue;
      auto [found, inserted] = index.try_emplace(std::move(piece.text), learner.words.size());
      if (inserted) {
        Word& word = learner.words.emplace_back(Word{{}, 0});
        for (size_t at = 0; at < found->first.size();) word.symbols.push_back(id_of.at(unicode::Next(found->first, at)));
      }
      ++learner.words[found->second].count;
    }
  }
  learner.Start();
  absl::flat_hash_map<std::string, int32_t> known;
  for (size_t i = 0; i < tokens.size(); ++i) known[tokens[i]] = static_cast<int32_t>(i);
  while (static_cast<int32_t>(tokens.size()) < options.vocabulary_size) {
    std::optional<Pair> best = learner.Pop(options.min_frequency);
    if (!best) break;
    std::string joined = tokens[best->first] + tokens[best->second];
    // Two pairs can spell one token: the second merge then gives the same id.
    auto [entry, inserted] = known.try_emplace(joined, static_cast<int32_t>(tokens.size()));
    merges.push_back({tokens[best->first], tokens[best->second]});
    if (inserted) {
      tokens.push_back(joined);
      add_entry(tokens.size() - 1);
    }
    learner.Merge(*best, entry->second);
  }
  return Tokenizer::FromFiles(Files(options, special, vocabulary, merges));
}

}  // namespace argosy::train
