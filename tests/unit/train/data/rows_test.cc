#include "train/data/rows.h"

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/train/data/scratch.h"
#include "nlohmann/json.hpp"
#include "train/data/batches.h"
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
  CHECK((samples->FirstTarget(0) == 0 && samples->FirstTarget(1) == 0));
  CHECK(samples->Length(1) == 2);
}

TEST_CASE("ReadSamples: the answer is what follows the marker") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"<START_Q>1+2<END_Q><START_A>3<END_A>\"}\n");
  auto samples = ReadSamples(path, tokenizer, {.answer_marker = "<START_A>"});
  REQUIRE(samples.ok());
  CHECK(samples->FirstTarget(0) == 6);
  auto all = ReadSamples(path, tokenizer, {.loss_on = LossOn::kAll, .answer_marker = "<START_A>"});
  REQUIRE(all.ok());
  CHECK(all->FirstTarget(0) == 0);
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
  CHECK(samples->FirstTarget(0) == 8);
  auto plain = ReadSamples(path, tokenizer, {.prompt_type = PromptType::kInstruction, .append_eos = false});
  REQUIRE(plain.ok());
  auto answer = plain->Sample(0).subspan(plain->FirstTarget(0));
  CHECK(tokenizer.Decode(answer) == "3\n\n    ");
}

TEST_CASE("ReadSamples: long rows are cut or dropped, and counted") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"abcdefgh\"}\n{\"input\": \"ab\"}\n{\"input\": \"abcdefghi\"}\n");
  auto cut = ReadSamples(path, tokenizer, {.ctx_len = 4});
  REQUIRE(cut.ok());
  CHECK(cut->size() == 3);
  CHECK(cut->counts.cut == 2);
  CHECK(cut->Length(0) == 4);
  CHECK(cut->Length(1) == 3);
  auto dropped = ReadSamples(path, tokenizer, {.ctx_len = 4, .long_rows = LongRows::kDrop});
  REQUIRE(dropped.ok());
  CHECK(dropped->size() == 1);
  CHECK(dropped->counts.dropped == 2);
  CHECK(dropped->counts.rows == 3);
  CHECK((dropped->counts.tokens_dropped == 9 + 10 && dropped->counts.tokens_cut == 0));
  CHECK((cut->counts.tokens_cut == 5 + 6 && cut->counts.tokens_dropped == 0 && cut->counts.target_tokens == 3 + 2 + 3));
  auto none = ReadSamples(path, tokenizer, {.ctx_len = 2, .long_rows = LongRows::kDrop});
  CHECK(Message(none.status()).find("none of 3 rows can be used (3 longer than --ctx-len 2 were dropped") != std::string::npos);
  auto two = ReadSamples(path, tokenizer, {.rows_max = 2});
  REQUIRE(two.ok());
  CHECK(two->size() == 2);
}

TEST_CASE("ReadSamples: a bad row is reported with its line") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"words\": \"b\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) ==
        path + ":2: row 2 has neither \"input\", \"text\", \"messages\", nor \"question\" and \"answer\" (it has \"words\")");
  path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"input\": null}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2: \"input\" is null; expected text");
  path = scratch.Write("t.jsonl", "{\"input\": \"a\"}\n{\"question\": \"b\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2 has no \"answer\" (it has \"question\")");
}

TEST_CASE("ReadSamples: bad rows are skipped and counted when that is asked for") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"ab\"}\n{\"input\": 3}\nno json\n\n{\"input\": \"\xff\"}\n{\"input\": \"cd\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2: \"input\" is number; expected text");
  auto samples = ReadSamples(path, tokenizer, {.skip_bad_rows = true});
  REQUIRE(samples.ok());
  CHECK(samples->size() == 2);
  CHECK(samples->counts.rows == 5);
  CHECK(samples->counts.bad == 3);
  CHECK(samples->counts.first_bad == path + ":2: row 2: \"input\" is number; expected text");
  path = scratch.Write("t.jsonl", "{\"input\": \"ab\"}\n{\"input\": \"\xff\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 2 is not valid UTF-8");
}

TEST_CASE("ReadSamples: CSV has its columns as fields, quotes and line ends as RFC 4180 has them") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.csv", "\xef\xbb\xbfquestion,context,answer\r\n1+1,,2\r\n\"a \"\"b\"\",\nc\",\"x\",d\r\n\r\nlast,,e");
  auto rows = ReadQaRows(path);
  INFO(rows.status());
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 3);
  CHECK((*rows)[0].answer == "2");
  CHECK((*rows)[0].context == "");
  CHECK((*rows)[1].question == "a \"b\",\nc");
  CHECK((*rows)[1].context == "x");
  CHECK((*rows)[2].answer == "e");
  auto samples = ReadSamples(path, tokenizer, {.prompt_type = PromptType::kQuestionContext});
  REQUIRE(samples.ok());
  CHECK(samples->size() == 3);
  CHECK(samples->FirstTarget(0) > 0);

  path = scratch.Write("t.csv", "text\nabc\na,b\n\"open\n\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":3: row 2 has 2 fields; the header has 1");
  CHECK(Message(ReadSamples(path, tokenizer, {.skip_bad_rows = true}).status()) == path + ":4: a quoted field that begins here is not closed");
  path = scratch.Write("t.csv", "text\n\"a\"b\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()).find(":2: \"b\" stands behind a quoted field") != std::string::npos);
  path = scratch.Write("t.csv", "text\n\xff\nok\n");
  CHECK(Message(ReadSamples(path, tokenizer, {}).status()) == path + ":2: row 1 \"text\" is not valid UTF-8");
  CHECK(Message(ReadSamples(scratch.Write("t.csv", ""), tokenizer, {}).status()).find("has no rows") != std::string::npos);
}

TEST_CASE("ReadSamples: plain text is a row a line, and long rows can be split") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.txt", "abcdefg\r\n\n  \nhi");
  auto whole = ReadSamples(path, tokenizer, {});
  REQUIRE(whole.ok());
  CHECK(whole->size() == 2);
  CHECK(whole->Length(0) == 8);   // with EOS
  auto split = ReadSamples(path, tokenizer, {.ctx_len = 3, .long_rows = LongRows::kSplit});
  REQUIRE(split.ok());
  CHECK(split->counts.split == 1);
  REQUIRE(split->size() == 4);
  CHECK(split->Length(0) == 3);
  CHECK(split->Length(2) == 2);
  CHECK(std::ranges::equal(split->tokens, whole->tokens));
  // The answer of a split row goes on in the next part.
  path = scratch.Write("t.jsonl", "{\"input\": \"abcd=efgh\"}\n");
  auto answer = ReadSamples(path, tokenizer, {.ctx_len = 4, .answer_marker = "=", .long_rows = LongRows::kSplit});
  REQUIRE(answer.ok());
  CHECK((answer->FirstTarget(0) == 4 && answer->FirstTarget(1) == 1 && answer->FirstTarget(2) == 0));
}

namespace {

// Bytes and the marks of a small chat template.
Tokenizer ForChats(const Scratch& scratch, std::string_view chat_template) {
  Tokenizer bytes = BytesAndMarks();
  std::vector<std::string> marks = {"<|user|>", "<|assistant|>", "<|end|>"};
  REQUIRE(bytes.AddTokens(marks) == 3);
  REQUIRE(bytes.Save(scratch.path()).ok());
  auto config = nlohmann::json::parse(ReadFile(scratch / "tokenizer_config.json").value());
  config["chat_template"] = chat_template;
  scratch.Write("tokenizer_config.json", config.dump());
  auto loaded = Tokenizer::Load(scratch.path());
  INFO(loaded.status());
  REQUIRE(loaded.ok());
  return *std::move(loaded);
}

std::string Learned(const SampleSet& samples, int64_t i, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < samples.Length(i); ++t) {
    if (samples.Targets(i)[t]) ids.push_back(samples.Sample(i)[t]);
  }
  return tokenizer.Decode(ids, {.skip_special_tokens = false});
}

constexpr char kChat[] = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
constexpr char kChatThatTells[] = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
                                  "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}";

}  // namespace

TEST_CASE("ReadSamples: of a conversation what the assistant says is learned, or all of it") {
  Scratch scratch;
  Tokenizer tokenizer = ForChats(scratch, kChat);
  std::string path = scratch.Write("t.jsonl",
      R"({"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "yz"}]})"
      "\n{\"input\": \"plain\"}\n");
  const std::string text = "<|user|>1+1<|end|>\n<|assistant|>2<|end|>\n<|user|>x<|end|>\n<|assistant|>yz<|end|>\n";
  for (LossOn loss_on : {LossOn::kAuto, LossOn::kAll}) {
    auto samples = ReadSamples(path, tokenizer, {.loss_on = loss_on});
    INFO(samples.status());
    REQUIRE(samples.ok());
    REQUIRE(samples->size() == 2);
    CHECK(tokenizer.Decode(samples->Sample(0), {.skip_special_tokens = false}) == text);   // the template ends it: no EOS
    CHECK(Learned(*samples, 0, tokenizer) == (loss_on == LossOn::kAll ? text : "2<|end|>\nyz<|end|>\n"));
    CHECK(Learned(*samples, 1, tokenizer) == "plain<eos>");
    CHECK(samples->counts.target_tokens == (loss_on == LossOn::kAll ? samples->Length(0) - 1 : 3 + 4) + 5);
    CHECK(samples->FirstTarget(0) == (loss_on == LossOn::kAll ? 0 : 7));
  }
  // Both presets: the second learns padding and prompt whatever the rows say.
  auto samples = ReadSamples(path, tokenizer, {.append_eos = false});
  MicroBatch packed = BuildMicroBatch(*samples, std::vector<Pack>{{0}}, {.ctx_len = 64});
  CHECK(packed.target_tokens == 7);
  MicroBatch parity = BuildMicroBatch(*samples, std::vector<Pack>{{0}}, {.ctx_len = 64, .recipe_parity = true});
  CHECK(parity.target_tokens == 63);

  Tokenizer tells = ForChats(scratch, kChatThatTells);
  auto told = ReadSamples(path, tells, {.loss_on = LossOn::kAuto});
  REQUIRE(told.ok());
  CHECK(Learned(*told, 0, tells) == "2<|end|>yz<|end|>");
}

TEST_CASE("ReadSamples: a conversation that cannot be learned from says why, with its line") {
  Scratch scratch;
  Tokenizer tokenizer = ForChats(scratch, kChat);
  auto error = [&](const std::string& row, const Tokenizer& with) { return Message(ReadSamples(scratch.Write("t.jsonl", row), with, {}).status()); };
  const std::string where = scratch / "t.jsonl:1: row 1";
  CHECK(error(R"({"messages": [{"role": "user", "content": "a"}]})", tokenizer) ==
        where + " has no message of the assistant to learn from; --loss-on all learns the whole of it");
  CHECK(error(R"({"messages": [{"role": "user"}]})", tokenizer) == where + ": message 1 has no \"content\"");
  CHECK(error(R"({"messages": "a"})", tokenizer).starts_with(where + ": \"messages\" is string"));
  CHECK(error(R"({"messages": [{"role": "user", "content": "a"}]})", BytesAndMarks()).find("has no chat template") != std::string::npos);
}

TEST_CASE("ReadSamples: rows without a token to learn are refused") {
  Scratch scratch;
  Tokenizer tokenizer = BytesAndMarks();
  std::string path = scratch.Write("t.jsonl", "{\"input\": \"abcd=ef\"}\n");
  CHECK(Message(ReadSamples(path, tokenizer, {.ctx_len = 4, .answer_marker = "="}).status()).find("no token of its 1 rows is to be learned") != std::string::npos);
  CHECK(ReadSamples(path, tokenizer, {.ctx_len = 8, .answer_marker = "="}).ok());
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
