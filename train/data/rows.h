#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "train/data/prompt.h"
#include "train/data/samples.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

enum class LossOn {
  kAuto,    // the answer where the data tells it apart, else all tokens
  kAll,
  kAnswer,  // a row that does not tell its answer apart is an error; of a conversation, what the assistant says
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
  bool append_eos = true;          // conversations end as their template ends them
  int64_t rows_max = 0;            // only the first so many rows; 0: all
  bool skip_bad_rows = false;      // rows that cannot be read are counted instead of being an error
};

// Where the samples of a file go, in its order.
class SampleSink {
 public:
  virtual ~SampleSink() = default;
  virtual absl::Status Add(std::span<const int32_t> ids, std::span<const uint8_t> is_target) = 0;
};

// Reads {"input": "..."}, {"text": "..."}, {"question","context","answer"} or {"messages": [{"role","content"}, ...]} rows, from any file that
// VisitRows reads. Conversations are written by the tokenizer's chat template, and what the assistant says in them is the answer. A bad row is an
// error with its file and line, or skipped and counted. A file without one usable row, or without one token to learn, is an error.
// Memory: the tokens; JSON lines, CSV and text are streamed.
absl::StatusOr<SampleSet> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options);

// The same, handed to `sink` sample by sample, so that memory is bounded by the longest row.
absl::StatusOr<SampleCounts> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options, SampleSink& sink);

// The tokens of one text, without truncation, and the index of the first that belongs to text[answer_begin, ...). A token that straddles
// the border belongs to the answer.
struct TokenizedRow {
  std::vector<int32_t> ids;
  int32_t answer_from = 0;
};
TokenizedRow TokenizeRow(const Tokenizer& tokenizer, const std::string& text, size_t answer_begin, EncodeOptions options = {});

}  // namespace argosy::train
