#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::train {

// One question with its answer. GSM8K's rows have no context, which is not the same as an empty one (prompt type 2).
struct QaRow {
  std::string question;
  std::optional<std::string> context;
  std::string answer;
  // Rows of one group never stand on both sides of a split; 0: a group of its own.
  uint64_t group = 0;
};

// The three prompt templates of the reference recipe's --prompt-type.
enum class PromptType {
  kInstruction = 1,      // plain text: instruction, input, response
  kQuestionAnswer = 2,   // <START_Q>question context<END_Q><START_A>answer<END_A>; without a context, no space either
  kQuestionContext = 3,  // <START_Q>question<END_Q><START_C>context<END_C><START_A>answer<END_A>
};

absl::StatusOr<PromptType> ParsePromptType(int64_t number);  // 1, 2 or 3

// A row as text: what a model is trained on is prompt + answer + end.
struct Prompt {
  std::string prompt;  // up to where the answer begins
  std::string answer;
  std::string end;     // closes the answer

  std::string Text() const { return prompt + answer + end; }
};
Prompt FormatPrompt(PromptType type, const QaRow& row);

// The marks that the template writes, to be added to the tokenizer; none for type 1.
std::vector<std::string> PromptTokens(PromptType type);

}  // namespace argosy::train
