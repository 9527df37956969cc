#include "train/data/prompt.h"

#include "runtime/base/status.h"

namespace argosy::train {

absl::StatusOr<PromptType> ParsePromptType(int64_t number) {
  if (number < 1 || number > 3) return InvalidArgument("prompt type {} is none of 1, 2, 3", number);
  return static_cast<PromptType>(number);
}

Prompt FormatPrompt(PromptType type, const QaRow& row) {
  const std::string context = row.context.value_or("");
  switch (type) {
    case PromptType::kInstruction:
      return {.prompt = "Below is an instruction that describes a task, paired with an input\n"
                        "    that provides further context. Write a response that appropriately completes\n"
                        "    the request.\n\n"
                        "    ### Instruction:\n    " + row.question + "\n\n"
                        "    ### Input:\n    " + context + "\n\n"
                        "    ### Response:\n    ",
              .answer = row.answer,
              .end = "\n\n    "};
    case PromptType::kQuestionAnswer:
      return {.prompt = "<START_Q>" + row.question + (row.context ? " " + *row.context : "") + "<END_Q><START_A>", .answer = row.answer, .end = "<END_A>"};
    case PromptType::kQuestionContext:
      return {.prompt = "<START_Q>" + row.question + "<END_Q><START_C>" + context + "<END_C><START_A>",
              .answer = row.answer,
              .end = "<END_A>"};
  }
  ARGOSY_CHECK(false, "prompt type {}", static_cast<int>(type));
}

std::vector<std::string> PromptTokens(PromptType type) {
  switch (type) {
    case PromptType::kInstruction: return {};
    case PromptType::kQuestionAnswer: return {"<START_Q>", "<END_Q>", "<START_A>", "<END_A>"};
    case PromptType::kQuestionContext: return {"<START_Q>", "<END_Q>", "<START_C>", "<END_C>", "<START_A>", "<END_A>"};
  }
  ARGOSY_CHECK(false, "prompt type {}", static_cast<int>(type));
}

}  // namespace argosy::train
