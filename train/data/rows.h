#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "train/data/prompt.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

enum class LossOn {
  kAuto,    // the answer where the data tells it apart, else all tokens
  kAll,
  kAnswer,  // a row that does not tell its answer apart is an error
};
enum class LongRows {
  kCut,
  kDrop,
  kSplit,  // into samples of ctx_len, each trained on its own
};

struct RowOptions {
  int32_t ctx_len = 512;
  LossOn loss_on = LossOn::kAuto;
  // For {"input"} and {"text"} rows: the answer is what follows the last occurrence of this text, e.g. "<START_A>".
  std::string answer_marker;
  // For {"question","context","answer"} rows.
  PromptType prompt_type = PromptType::kInstruction;
  LongRows long_rows = LongRows::kCut;
  bool add_special_tokens = true;  // those of the tokenizer's post-processor (BOS for Llama)
  bool append_eos = true;
  int64_t rows_max = 0;            // only the first so many rows; 0: all
  bool skip_bad_rows = false;      // rows that cannot be read are counted instead of being an error
};

// The tokens of a file's rows, one after the other.
struct SampleSet {
  std::vector<int32_t> tokens;
  std::vector<int64_t> begins = {0};    // sample i is tokens[begins[i], begins[i + 1])
  std::vector<int32_t> loss_from;       // index within the sample of the first token that is a target
  int64_t rows = 0;                     // of the file
  int64_t cut = 0, dropped = 0, split = 0;   // of them, longer than ctx_len
  int64_t empty = 0;                    // of them, without any token; never samples
  int64_t bad = 0;                      // of them, skipped
  std::string first_bad;                // why the first of those was

  int64_t size() const { return static_cast<int64_t>(begins.size()) - 1; }
  std::span<const int32_t> Sample(int64_t i) const {
    return std::span(tokens).subspan(begins[i], begins[i + 1] - begins[i]);
  }
  int32_t Length(int64_t i) const { return static_cast<int32_t>(begins[i + 1] - begins[i]); }
};

// Reads {"input": "..."}, {"text": "..."} or {"question","context","answer"} rows, from any file that VisitRows reads. A bad row is an error with
// its file and line, or skipped and counted. A file without one usable row, or without one token to learn, is an error.
absl::StatusOr<SampleSet> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options);

// The tokens of one text, without truncation, and the index of the first that belongs to text[answer_begin, ...). A token that straddles
// the border belongs to the answer.
struct TokenizedRow {
  std::vector<int32_t> ids;
  int32_t answer_from = 0;
};
TokenizedRow TokenizeRow(const Tokenizer& tokenizer, const std::string& text, size_t answer_begin, EncodeOptions options = {});

}  // namespace argosy::train
