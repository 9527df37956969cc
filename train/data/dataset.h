#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/data/prompt.h"

namespace argosy::train {

// Rows of a question-answer file: JSON lines, a JSON array, or one JSON object of rows by key. A row has question, context and answer; GSM8K's
// rows have no context; PubMedQA's have QUESTION, CONTEXTS (joined without a separator) and LONG_ANSWER. Errors name the file, the line and
// what the row lacks.
absl::StatusOr<std::vector<QaRow>> ReadQaRows(const std::string& path);

// JSON lines of {"question","context","answer"}.
absl::Status WriteQaRows(const std::string& path, const std::vector<QaRow>& rows);

struct CreateDatasetOptions {
  std::string output_dir = "data";
  PromptType prompt_type = PromptType::kInstruction;
  double test_split = 0.2;  // of the rows, rounded up
  uint64_t seed = 42;
};

struct CreatedDataset {
  int64_t train_rows = 0, test_rows = 0;
  std::string train_path, test_path;
  std::string tokens_path;  // empty for prompt type 1
};

// Splits the rows and writes train.jsonl and test.jsonl, rows exactly {"input": "..."}, and for prompt types 2 and 3 tokens.json with the
// template's marks, into the output folder. Rows without groups are split just as the reference recipe does with the same seed.
absl::StatusOr<CreatedDataset> CreateDataset(const std::vector<QaRow>& rows, const CreateDatasetOptions& options);

// The same from a file (--dataset-path).
absl::StatusOr<CreatedDataset> CreateDataset(const std::string& dataset_path, const CreateDatasetOptions& options);

// The tokens of a tokens.json, {"tokens": ["<START_Q>", ...]} (--special-token-path).
absl::StatusOr<std::vector<std::string>> ReadSpecialTokens(const std::string& path);

// The texts of a file's rows, as a tokenizer learns from them: "input" or "text"; question, context and answer; what a conversation's messages say.
absl::StatusOr<std::vector<std::string>> ReadTexts(const std::string& path);

// Every reader of rows shares this: calls Row for every row of the file, in order, with the row as JSON. By the file's name:
//   x.csv   records of RFC 4180 under a header of column names: objects of texts
//   x.txt   lines: {"text": line}
//   else    values of a JSON array or object, or JSON lines
// Blank lines are skipped. `line` is 1-based. CSV, text and JSON lines are streamed: the file may be larger than memory.
class RowVisitor {
 public:
  virtual ~RowVisitor() = default;
  virtual absl::Status Row(std::string_view text, size_t line) = 0;
  // A row that is no row; the message has its file and line. What it returns ends the visit unless it is OK.
  virtual absl::Status Bad(absl::Status why) { return why; }
};
absl::Status VisitRows(const std::string& path, RowVisitor& visitor);

}  // namespace argosy::train
