#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace argosy::train {

// What became of a file's rows. Every row is a sample, several (split), or one of dropped, empty and bad; every token of a row that can be
// read is in `tokens`, `tokens_cut` or `tokens_dropped`.
struct SampleCounts {
  int64_t rows = 0;                          // of the file
  int64_t cut = 0, dropped = 0, split = 0;   // of them, longer than ctx_len
  int64_t empty = 0;                         // of them, without any token; never samples
  int64_t bad = 0;                           // of them, skipped
  std::string first_bad;                     // why the first of those was
  int64_t tokens_cut = 0, tokens_dropped = 0;
  int64_t target_tokens = 0;                 // that are predicted: not a sample's first one, which nothing comes before

  friend bool operator==(const SampleCounts&, const SampleCounts&) = default;
};

// The tokens of a file's rows, one sample after the other. The arrays are someone's: vectors, a mapped file, the object store's memory.
struct SampleSet {
  std::span<const int32_t> tokens;
  std::span<const int64_t> begins;           // sample i is tokens[begins[i], begins[i + 1])
  std::span<const uint8_t> is_target;        // of each token: 1 when it is to be learned
  std::shared_ptr<const void> owner;         // of the arrays
  SampleCounts counts;

  int64_t size() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }
  int32_t Length(int64_t i) const { return static_cast<int32_t>(begins[i + 1] - begins[i]); }
  std::span<const int32_t> Sample(int64_t i) const { return tokens.subspan(begins[i], begins[i + 1] - begins[i]); }
  std::span<const uint8_t> Targets(int64_t i) const { return is_target.subspan(begins[i], begins[i + 1] - begins[i]); }
  // The index of the sample's first token that is to be learned; its length when there is none.
  int32_t FirstTarget(int64_t i) const {
    std::span<const uint8_t> targets = Targets(i);
    size_t first = 0;
    while (first < targets.size() && targets[first] == 0) ++first;
    return static_cast<int32_t>(first);
  }
};

// A SampleSet as it grows in memory.
struct SampleVectors {
  std::vector<int32_t> tokens;
  std::vector<int64_t> begins = {0};
  std::vector<uint8_t> is_target;

  void Add(std::span<const int32_t> ids, std::span<const uint8_t> targets) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    is_target.insert(is_target.end(), targets.begin(), targets.end());
    begins.push_back(static_cast<int64_t>(tokens.size()));
  }
  SampleSet Finish(SampleCounts counts) && {
    auto owner = std::make_shared<const SampleVectors>(std::move(*this));
    return {.tokens = owner->tokens, .begins = owner->begins, .is_target = owner->is_target, .owner = owner, .counts = std::move(counts)};
  }
};

}  // namespace argosy::train
