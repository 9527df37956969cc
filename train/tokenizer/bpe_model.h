#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace argosy::train {

// "model" of tokenizer.json, of type BPE: the vocabulary, the merges, and how a piece becomes tokens. Merging takes
// O(n log n) in the piece's length.
//
// Thread:   const calls from any thread.
// Failure:  Parse names the field; a piece never fails.
class BpeModel {
 public:
  static absl::StatusOr<BpeModel> Parse(const nlohmann::json& part);

  // Appends the tokens of one piece.
  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;
  // None where no token has the id.
  const std::string* IdToToken(int32_t id) const;
  size_t Size() const { return ids_.size(); }
  // One more than the highest id.
  int32_t IdsEnd() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  struct Merge {
    uint32_t rank;
    int32_t token;
  };
  // What frequent short pieces became. Full at kEntriesMax, then only read.
  struct Cache {
    static constexpr size_t kEntriesMax = 1 << 16;
    static constexpr size_t kBytesMax = 48;
    std::shared_mutex mutex;
    absl::flat_hash_map<std::string, std::vector<int32_t>> entries;
  };

  std::vector<int32_t> Symbols(std::string_view piece) const;
  void MergeAll(std::vector<int32_t>& symbols) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // keys of ids_ held in names_
  std::vector<std::unique_ptr<std::string>> names_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::optional<int32_t> unknown_;
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::unique_ptr<Cache> cache_ = std::make_unique<Cache>();
};

}  // namespace argosy::train
