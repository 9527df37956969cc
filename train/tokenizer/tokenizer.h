#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/tokenizer/added_tokens.h"

namespace argosy::train {

enum class PaddingSide { kLeft, kRight };

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor puts around the text (BOS for Llama)
};
struct DecodeOptions {
  bool skip_special_tokens = true;
};
struct AddTokensOptions {
  bool special = true;
};

// The files beside tokenizer.json, as texts; empty where there is none.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::string added_tokens_json;
  std::string model_config_json;       // config.json: ids where the others name no token
  std::string generation_config_json;
  std::string chat_template_jinja;
  std::string tokenizer_model;         // SentencePiece's, read where there is no tokenizer.json
};

// Text <-> ids as Hugging Face's `tokenizers` does it, id for id, for BPE tokenizers (byte-level and byte fallback).
//
// Truncation and padding of tokenizer.json are kept in the file and not applied.
// Thread:   const calls from any thread.
// Failure:  loading refuses what it does not know by its name. Encoding and decoding never fail: ill-formed UTF-8 is read as U+FFFD, an
//           unknown id decodes to nothing.
class Tokenizer {
 public:
  // From a folder that has tokenizer.json, in Hugging Face's layout.
  static absl::StatusOr<Tokenizer> Load(const std::string& directory);
  static absl::StatusOr<Tokenizer> FromFiles(TokenizerFiles files);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options = {}) const;
  std::string Decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // The text as the model sees it: added tokens cut out, the rest normalized and cut by the pre-tokenizer.
  std::vector<Piece> Pieces(std::string_view text) const;

  // One more than the highest id: the rows that an embedding needs.
  int32_t VocabularySize() const;
  std::optional<int32_t> TokenToId(std::string_view token) const;
  std::optional<std::string> IdToToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  std::optional<int32_t> BosId() const;
  std::optional<int32_t> EosId() const;
  std::optional<int32_t> PadId() const;
  std::optional<int32_t> UnknownId() const;
  // "padding_side" of tokenizer_config.json; else left for Llama's tokenizer classes, right for others.
  PaddingSide padding_side() const;
  // chat_template.jinja, or "chat_template" of tokenizer_config.json (of several, the one named "default"); empty where there is none.
  const std::string& ChatTemplateSource() const;
  // In the order of their ids.
  std::vector<AddedToken> AddedTokens() const;

  // Adds those that the vocabulary lacks, with ids at its end in the order given, and marks the others as added. Returns how many
  // ids are new.
  int32_t AddTokens(std::span<const std::string> contents, AddTokensOptions options = {});

  // All that decides which ids a text or a conversation has, as text: equal texts, equal ids.
  std::string Identity() const;

  // Whether what `id` decodes to may still change with the next token: a byte of a character that byte fallback spells.
  bool IsByte(int32_t id) const;

  // Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json (when tokens lie beyond the model's own vocabulary)
  // and, from the folder it was loaded from, tokenizer.model, vocab.json, merges.txt and chat_template.jinja. Keys that
  // no added token changes stay as they were, and tokenizer.json byte for byte apart from its added tokens.
  absl::Status Save(const std::string& directory) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Text as its tokens come: the pieces that Push returns, and Finish's, are together what Decode makes of all tokens. A piece is held
// back while its last character is incomplete.
//
// Thread:   one.
// Lifetime: the tokenizer outlives it.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, DecodeOptions options = {}) : tokenizer_(tokenizer), options_(options) {}
  std::string Push(int32_t id);
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::vector<int32_t> ids_;   // the last ones written, which decide how the next begin, and those held back
  size_t written_ = 0;         // of ids_
};

}  // namespace argosy::train
