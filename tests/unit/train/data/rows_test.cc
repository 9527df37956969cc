#include "train/data/rows.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/data/scratch.h"
#include "train/data/dataset.h"
#include "train/tokenizer/bpe_trainer.h"

namespace argosy::train {
namespace {

// Bytes, digits apart, and the marks of template 3; no merges, so that a reader can count tokens.
Tokenizer BytesAndMarks() {
  auto tokenizer = TrainBpe({}, {.vocabulary_size = 1 + 256, .eos_token = "<eos>"});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->AddTokens(PromptTokens(PromptType::kQuestionContext)) == 6);
  return *std::move(tokenizer);
}

}  // namespace

TEST_CASE("ReadSamples: an input row ends with EOS and is a target as a whole") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  auto samples = ReadSamples(scratch.Write("t.jsonl", "{\"input\": \"<START_A>95<END_A>\"}\n{\"input\": \"7\"}\n"), tokenizer, {});
  REQUIRE(samples.ok());
  REQUIRE(samples->size() == 2);
  std::vector<int32_t> first(samples->Sample(0).begin(), samples->Sample(0).end());
  CHECK(first == std::vector<int32_t>{*tokenizer.TokenToId("<START_A>"), *tokenizer.TokenToId("9"), *tokenizer.TokenToId("5"),
                                      *tokenizer.TokenToId("<END_A>"), *tokenizer.EosId()});
  CHECK(samples->loss_from == std::vector<int32_t>{0, 0});
  CHECK(samples->Length(1) == 2);
}

TEST_CASE("ReadSamples: the answer is what follows the marker") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"<START_Q>1+2<END_Q><START_A>3<END_A>\"}\n");
  auto samples = ReadSamples(path, tokenizer, {.answer_marker = "<START_A>"});
  REQUIRE(samples.ok());
  CHECK(samples->loss_from[0] == 6);
  auto all = ReadSamples(path, tokenizer, {.loss_on = LossOn::kAll, .answer_marker = "<START_A>"});
  REQUIRE(all.ok());
  CHECK(all->loss_from[0] == 0);
  CHECK(Message(ReadSamples(path, tokenizer, {.answer_marker = "<ANSWER>"}).status()) ==
        path + ":1: row 1 has no answer marker \"<ANSWER>\" in its \"input\"");
  CHECK(Message(ReadSamples(path, tokenizer, {.loss_on = LossOn::kAnswer}).status()).find("needs --answer-marker") != std::string::npos);
}

TEST_CASE("ReadSamples: question-answer rows take the template, and their answer is known") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"question\": \"1+2\", \"context\": \"\", \"answer\": \"3\"}\n");
  auto samples = ReadSamples(path, tokenizer, {.prompt_type = PromptType::kQuestionContext, .append_eos = false});
  REQUIRE(samples.ok());
  CHECK(tokenizer.Decode(samples->Sample(0), {.skip_special_tokens = false}) ==
        "<START_Q>1+2<END_Q><START_C><END_C><START_A>3<END_A>");
  CHECK(samples->loss_from[0] == 8);
  auto plain = ReadSamples(path, tokenizer, {.prompt_type = PromptType::kInstruction, .append_eos = false});
  REQUIRE(plain.ok());
  auto answer = plain->Sample(0).subspan(plain->loss_from[0]);
  CHECK(tokenizer.Decode(answer) == "3\n\n    ");
}

TEST_CASE("ReadSamples: long rows are cut or dropped, and counted") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"abcdefgh\"}\n{\"input\": \"ab\"}\n{\"input\": \"abcdefghi\"}\n");
  auto cut = ReadSamples(path, tokenizer, {.ctx_len = 4});
  REQUIRE(cut.ok());
  CHECK(cut->size() == 3);
  CHECK(cut->cut == 2);
  CHECK(cut->Length(0) == 4);
  CHECK(cut->Length(1) == 3);
  auto dropped = ReadSamples(path, tokenizer, {.ctx_len = 4, .long_rows = LongRows::kDrop});
  REQUIRE(dropped.ok());
  CHECK(dropped->size() == 1);
  CHECK(dropped->dropped == 2);
  CHECK(dropped->rows == 3);
  auto none = ReadSamples(path, tokenizer, {.ctx_len = 2, .long_rows = LongRows::kDrop});
  CHECK(Message(none.status()).find("none of 3 rows can be used (3 longer than --ctx-len 2 were dropped") != std::string::npos);
  auto two = ReadSamples(path, tokenizer, {.rows_max = 2});
  REQUIRE(two.ok());
  CHECK(two->size() == 2);
}

TEST_CASE("ReadSamples: a bad row is reported with its line") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"text\": \"b\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) ==
        path + ":2: row 2 has neither \"input\" nor \"question\" and \"answer\" (it has \"text\")");
  path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"input\": null}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2: \"input\" is null; expected text");
  path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"question\": \"b\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2 has no \"answer\" (it has \"question\")");
}

TEST_CASE("TokenizeRow: a token across the border belongs to the answer") {
  auto tokenizer = TrainBpe({"the cat the cat the cat"}, {.vocabulary_size = 1 + 256 + 8, .eos_token = "<eos>"});
  REQUIRE(tokenizer.ok());
  std::vector<int32_t> whole = tokenizer->Encode("the cat");
  REQUIRE(whole.size() == 2);  // "the", " cat"
  CHECK(TokenizeRow(*tokenizer, "the cat", 4).answer_from == 1);
  CHECK(TokenizeRow(*tokenizer, "the cat", 3).answer_from == 1);
  CHECK(TokenizeRow(*tokenizer, "the cat", 2).answer_from == 0);
}

}  // namespace argosy::train
