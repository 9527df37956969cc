#include "train/data/dataset.h"

#include <cstdio>
#include <filesystem>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/assets.h"
#include "tests/support/catch.h"
#include "tests/unit/train/data/scratch.h"
#include "train/data/arithmetic.h"

namespace argosy::train {
namespace {

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::string text = *ReadFile(path);
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string ErrorOf(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

TEST_CASE("FormatPrompt: the three templates are the recipe's, byte for byte") {
  QaRow row{.question = "Why?", .context = "Because.", .answer = "So."};
  CHECK(FormatPrompt(PromptType::kInstruction, row).Text() ==
        "Below is an instruction that describes a task, paired with an input\n    that provides further context. Write a response "
        "that appropriately completes\n    the request.\n\n    ### Instruction:\n    Why?\n\n    ### Input:\n    Because.\n\n    "
        "### Response:\n    So.\n\n    ");
  CHECK(FormatPrompt(PromptType::kQuestionAnswer, row).Text() == "<START_Q>Why? Because.<END_Q><START_A>So.<END_A>");
  CHECK(FormatPrompt(PromptType::kQuestionContext, row).Text() ==
        "<START_Q>Why?<END_Q><START_C>Because.<END_C><START_A>So.<END_A>");
  row.context.reset();
  CHECK(FormatPrompt(PromptType::kQuestionAnswer, row).Text() == "<START_Q>Why?<END_Q><START_A>So.<END_A>");
  CHECK(ParsePromptType(4).status().message() == "prompt type 4 is none of 1, 2, 3");
}

TEST_CASE("CreateDataset: writes rows of exactly one key, and the tokens of the template") {
  Scratch scratch;
  std::vector<QaRow> rows;
  for (int i = 0; i < 10; ++i) rows.push_back({.question = fmt::format("q{}", i), .context = "\u00fc\"", .answer = fmt::format("a{}", i)});
  auto created = CreateDataset(rows, {.output_dir = scratch / "data", .prompt_type = PromptType::kQuestionContext});
  REQUIRE(created.ok());
  CHECK(created->train_rows == 8);
  CHECK(created->test_rows == 2);
  // numpy's permutation of 10 with seed 42 begins with 5, 6.
  auto test = Lines(created->test_path);
  REQUIRE(test.size() == 2);
  CHECK(test[0] == R"({"input": "<START_Q>q5<END_Q><START_C>\u00fc\"<END_C><START_A>a5<END_A>"})");
  CHECK(nlohmann::json::parse(test[1])["input"] == "<START_Q>q6<END_Q><START_C>\u00fc\"<END_C><START_A>a6<END_A>");
  auto train = Lines(created->train_path);
  REQUIRE(train.size() == 8);
  for (const std::string& line : train) CHECK(nlohmann::json::parse(line).size() == 1);
  CHECK(*ReadFile(created->tokens_path) ==
        "{\"tokens\": [\"<START_Q>\", \"<END_Q>\", \"<START_C>\", \"<END_C>\", \"<START_A>\", \"<END_A>\"]}\n");
  CHECK(*ReadSpecialTokens(created->tokens_path) == PromptTokens(PromptType::kQuestionContext));

  auto plain = CreateDataset(rows, {.output_dir = scratch / "plain", .prompt_type = PromptType::kInstruction});
  REQUIRE(plain.ok());
  CHECK(plain->tokens_path.empty());
  CHECK_FALSE(std::filesystem::exists(scratch / "plain/tokens.json"));
}

TEST_CASE("CreateDataset: no sum of the test rows is in the training rows, in either order") {
  Scratch scratch;
  auto sums = MakeSums({.rows = 10'000});
  REQUIRE(sums.ok());
  auto created = CreateDataset(*sums, {.output_dir = scratch / "", .prompt_type = PromptType::kQuestionContext, .test_split = 0.1});
  REQUIRE(created.ok());
  CHECK(created->train_rows + created->test_rows == 10'000);
  CHECK(created->test_rows >= 990);
  CHECK(created->test_rows <= 1000);
  auto operands = [](const std::string& line) {
    size_t at = line.find("<START_Q>") + 9;
    return std::pair(std::stoi(line.substr(at, 2)), std::stoi(line.substr(at + 3, 2)));
  };
  std::set<std::pair<int, int>> trained;
  for (const std::string& line : Lines(created->train_path)) trained.insert(operands(line));
  CHECK(trained.size() == static_cast<size_t>(created->train_rows));
  for (const std::string& line : Lines(created->test_path)) {
    auto [a, b] = operands(line);
    CHECK_FALSE(trained.contains({a, b}));
    CHECK_FALSE(trained.contains({b, a}));
  }
}

TEST_CASE("ReadQaRows: takes JSON lines, arrays, GSM8K's and PubMedQA's files") {
  Scratch scratch;
  scratch.Write("lines.jsonl", "{\"question\":\"q\",\"context\":\"c\",\"answer\":\"a\"}\n\n{\"question\":\"r\",\"answer\":\"b\"}\n");
  auto lines = ReadQaRows(scratch / "lines.jsonl");
  REQUIRE(lines.ok());
  REQUIRE(lines->size() == 2);
  CHECK((*lines)[0].context == "c");
  CHECK_FALSE((*lines)[1].context.has_value());

  scratch.Write("array.json", "[\n  {\"question\":\"q\",\n   \"answer\":\"a\"},\n  {\"question\":\"[r]}\",\"answer\":\"b\"}]");
  auto array = ReadQaRows(scratch / "array.json");
  REQUIRE(array.ok());
  CHECK(array->at(1).question == "[r]}");

  scratch.Write("keyed.json", "{\n \"17\": {\"QUESTION\": \"q\", \"CONTEXTS\": [\"one.\", \"two.\"], \"LONG_ANSWER\": \"l\"},\n"
                              " \"3\": {\"QUESTION\": \"r\", \"CONTEXTS\": [], \"LONG_ANSWER\": \"m\"}\n}\n");
  auto keyed = ReadQaRows(scratch / "keyed.json");
  REQUIRE(keyed.ok());
  REQUIRE(keyed->size() == 2);
  CHECK((*keyed)[0].context == "one.two.");
  CHECK((*keyed)[1].question == "r");  // in the file's order

  scratch.Write("one.json", R"({"question":"q","answer":"a"})");
  CHECK(ReadQaRows(scratch / "one.json")->size() == 1);
  scratch.Write("one_keyed.json", R"({"9": {"question":"q","answer":"a"}, "8": {"question":"q","answer":"a"}})");
  CHECK(ReadQaRows(scratch / "one_keyed.json")->size() == 2);
}

TEST_CASE("ReadQaRows: an error names the file, the line, the row and the field") {
  Scratch scratch;
  std::string good = "{\"question\":\"q\",\"context\":\"c\",\"answer\":\"a\"}\n";
  auto error = [&](const std::string& content) {
    scratch.Write("x.jsonl", content);
    std::string message = ErrorOf(ReadQaRows(scratch / "x.jsonl").status());
    std::string prefix = scratch / "";
    return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
  };
  CHECK(ErrorOf(ReadQaRows(scratch / ".").status()).find("is a folder") != std::string::npos);
  CHECK(ErrorOf(ReadQaRows(scratch / "none.jsonl").status()).find("No such file") != std::string::npos);
  CHECK(error(good + "\n" + "{\"question\":\"q\",\"context\":\"c\"}\n") == "x.jsonl:3: row 2 has no \"answer\" (it has \"context\", \"question\")");
  CHECK(error(good + "{\"question\":5,\"answer\":\"a\"}\n") == "x.jsonl:2: row 2: \"question\" is number; expected text");
  CHECK(error(good + "{\"question\":\"q\",\n") == "x.jsonl:2: row 2 is not valid JSON");
  CHECK(error("{\"question\":\"q\",\"answer\n" + good) == "x.jsonl:1: row 1 is not valid JSON");
  CHECK(error("[\n" + good + ",\n{\"answer\":\"a\"}]") == "x.jsonl:4: row 2 has no \"question\" (it has \"answer\")");
  CHECK(error("\n \n") == "x.jsonl: has no rows");
  CHECK(error("hello\n") == "x.jsonl:1: expected a JSON object or array, found \"hello\"");
  CHECK(error("[]") == "x.jsonl: has no rows");
  CHECK(ErrorOf(ReadQaRows(scratch / "absent.json").status()).find("absent.json") != std::string::npos);
}

TEST_CASE("CreateDataset: a split that leaves a side empty is refused") {
  Scratch scratch;
  std::vector<QaRow> one = {{.question = "q", .answer = "a"}};
  CHECK(ErrorOf(CreateDataset(one, {.output_dir = scratch / "d"}).status()) == "--test-split 0.2 of 1 rows leaves 0 to train on and 1 to test");
  CHECK_FALSE(CreateDataset(one, {.output_dir = scratch / "d", .test_split = 1.5}).ok());
  CHECK_FALSE(std::filesystem::exists(scratch / "d"));
}

TEST_CASE("ReadSpecialTokens: a file of another shape is refused with the shape wanted") {
  Scratch scratch;
  for (const char* content : {"[]", "{\"tokens\": \"x\"}", "{\"tokens\": [1]}", "{"}) {
    scratch.Write("tokens.json", content);
    CHECK(ErrorOf(ReadSpecialTokens(scratch / "tokens.json").status()).find("expected {\"tokens\": [") != std::string::npos);
  }
}

TEST_CASE("WriteQaRows: what is written is read back") {
  Scratch scratch;
  std::vector<QaRow> rows = {{.question = "q\n\"", .context = "", .answer = "\u00e9"}, {.question = "r", .answer = "b"}};
  REQUIRE(WriteQaRows(scratch / "rows.json", rows).ok());
  auto read = ReadQaRows(scratch / "rows.json");
  REQUIRE(read.ok());
  CHECK((*read)[0].question == rows[0].question);
  CHECK((*read)[0].context == "");
  CHECK((*read)[0].answer == rows[0].answer);
  CHECK_FALSE((*read)[1].context.has_value());
}

TEST_CASE("ReadQaRows: GSM8K and PubMedQA as they are published") {
  auto data = testing::FindAsset("data");
  if (!data) return;
  auto gsm8k = ReadQaRows(*data / "gsm8k/train.jsonl");
  REQUIRE(gsm8k.ok());
  CHECK(gsm8k->size() == 7473);
  auto pubmedqa = ReadQaRows(*data / "pubmedqa/ori_pqal.json");
  REQUIRE(pubmedqa.ok());
  CHECK(pubmedqa->size() == 1000);
  CHECK((*pubmedqa)[0].question.starts_with("Do mitochondria play a role in remodelling lace plant leaves"));
  CHECK((*pubmedqa)[0].context->find(". ") != std::string::npos);
}

}  // namespace argosy::train
