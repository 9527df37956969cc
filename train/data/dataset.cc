#include "train/data/dataset.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/data/qa_json.h"
#include "train/data/recipe_split.h"
#include "train/tokenizer/json_scan.h"
#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = " \t\r\n";

std::string Quoted(const std::string& text) { return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace); }

std::string InputLine(const std::string& input) { return "{\"input\": " + Quoted(input) + "}\n"; }

// Which rows are held out, in their order, and the others in theirs.
struct Split {
  std::vector<int64_t> train, test;
};

Split SplitRows(const std::vector<QaRow>& rows, int64_t test_count, uint64_t seed) {
  auto count = static_cast<int64_t>(rows.size());
  std::vector<int64_t> order = NumpyPermutation(seed, count);
  Split split;
  // The first rows of the permutation are the test rows. A group goes where its first row goes.
  std::map<uint64_t, std::vector<int64_t>> members;
  for (int64_t i : order) {
    if (rows[i].group != 0) members[rows[i].group].push_back(i);
  }
  std::set<uint64_t> held_out;
  for (int64_t i : order) {
    uint64_t group = rows[i].group;
    if (group == 0) {
      (static_cast<int64_t>(split.test.size()) < test_count ? split.test : split.train).push_back(i);
    } else if (held_out.contains(group)) {
      continue;  // already written with the group's first row
    } else if (static_cast<int64_t>(split.test.size() + members[group].size()) <= test_count) {
      held_out.insert(group);
      split.test.insert(split.test.end(), members[group].begin(), members[group].end());
    } else {
      split.train.push_back(i);
    }
  }
  return split;
}

// Records of a CSV file, read character by character.
class CsvReader {
 public:
  CsvReader(std::istream& file, const std::string& path) : file_(file), path_(path) {}

  // The fields of the next record that is not blank; none at the end. `line` is where it begins.
  absl::StatusOr<bool> Next(std::vector<std::string>& fields, size_t& line) {
    while (file_.peek() != std::istream::traits_type::eof()) {
      line = line_;
      ARGOSY_RETURN_IF_ERROR(Record(fields));
      if (fields.size() > 1 || fields[0].find_first_not_of(kSpace) != std::string::npos) return true;
    }
    return false;
  }

 private:
  int Take() {
    int c = file_.get();
    if (c == '\n') ++line_;
    return c;
  }

  absl::Status Record(std::vector<std::string>& fields) {
    constexpr int kEnd = std::istream::traits_type::eof();
    fields.assign(1, "");
    for (int c = Take();; c = Take()) {
      if (c == kEnd || c == '\n') break;
      if (c == ',') {
        fields.emplace_back();
      } else if (c == '"' && fields.back().empty()) {
        size_t opened = line_;
        for (c = Take(); c != '"' || file_.peek() == '"'; c = Take()) {
          if (c == kEnd) return InvalidArgument("{}:{}: a quoted field that begins here is not closed", path_, opened);
          fields.back() += static_cast<char>(c);
          if (c == '"') Take();   // two quotes are one
        }
        int next = file_.peek();
        if (next != ',' && next != '\n' && next != '\r' && next != kEnd) {
          return InvalidArgument("{}:{}: \"{}\" stands behind a quoted field; quotes inside one are written twice", path_, line_, static_cast<char>(next));
        }
      } else {
        fields.back() += static_cast<char>(c);
      }
    }
    if (fields.back().ends_with('\r')) fields.back().pop_back();
    return absl::OkStatus();
  }

  std::istream& file_;
  const std::string& path_;
  size_t line_ = 1;
};

absl::Status VisitCsv(std::istream& file, const std::string& path, RowVisitor& visitor) {
  CsvReader reader(file, path);
  std::vector<std::string> columns, fields;
  size_t line = 0;
  ARGOSY_ASSIGN_OR_RETURN(bool has_header, reader.Next(columns, line));
  if (!has_header) return InvalidArgument("{}: has no rows", path);
  if (columns[0].starts_with("\xef\xbb\xbf")) columns[0].erase(0, 3);
  for (const std::string& column : columns) {
    if (!unicode::IsValid(column)) return InvalidArgument("{}:{}: the header is not valid UTF-8", path, line);
  }
  for (size_t row = 1;; ++row) {
    ARGOSY_ASSIGN_OR_RETURN(bool more, reader.Next(fields, line));
    if (!more) return absl::OkStatus();
    std::string wrong;
    if (fields.size() != columns.size()) wrong = fmt::format("has {} fields; the header has {}", fields.size(), columns.size());
    Json object = Json::object();
    for (size_t i = 0; i < fields.size() && wrong.empty(); ++i) {
      if (!unicode::IsValid(fields[i])) wrong = fmt::format("\"{}\" is not valid UTF-8", columns[i]);
      else object[columns[i]] = fields[i];
    }
    if (wrong.empty()) ARGOSY_RETURN_IF_ERROR(visitor.Row(object.dump(), line));
    else ARGOSY_RETURN_IF_ERROR(visitor.Bad(InvalidArgument("{}:{}: row {} {}", path, line, row, wrong)));
  }
}

absl::Status VisitText(std::istream& file, const std::string& path, RowVisitor& visitor) {
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(kSpace) == std::string::npos) continue;
    if (unicode::IsValid(line)) ARGOSY_RETURN_IF_ERROR(visitor.Row(Json({{"text", line}}).dump(), number));
    else ARGOSY_RETURN_IF_ERROR(visitor.Bad(InvalidArgument("{}:{}: the line is not valid UTF-8", path, number)));
  }
  return absl::OkStatus();
}

absl::Status VisitOpened(std::ifstream& file, const std::string& path, RowVisitor& visitor) {
  if (path.ends_with(".csv")) return VisitCsv(file, path, visitor);
  if (path.ends_with(".txt")) return VisitText(file, path, visitor);
  // The first line that is not blank tells the layouts apart: a whole object in it is JSON lines.
  std::string line;
  size_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.find_first_not_of(kSpace) != std::string::npos) break;
  }
  if (number == 1 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
  size_t first = line.find_first_not_of(kSpace);
  if (first == std::string::npos) return InvalidArgument("{}: has no rows", path);
  if (line[first] != '{' && line[first] != '[') {
    return InvalidArgument("{}:{}: expected a JSON object or array, found \"{}\"", path, number, line.substr(first, 20));
  }
  bool lines = line[first] == '{' && Json::accept(line);
  if (lines && file.peek() == std::ifstream::traits_type::eof()) {
    // One line in all: a row, or an object of rows.
    Json only = Json::parse(line);
    lines = only.empty() || !only.begin()->is_object();
  }
  if (lines) {
    do {
      if (line.find_first_not_of(kSpace) != std::string::npos) ARGOSY_RETURN_IF_ERROR(visitor.Row(line, number));
    } while (++number, std::getline(file, line));
    return absl::OkStatus();
  }
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (text.starts_with("\xef\xbb\xbf")) text.replace(0, 3, "   ");
  absl::StatusOr<std::vector<JsonMember>> members = ScanJsonMembers(text);
  if (!members.ok()) {
    // No document. JSON lines whose first one is broken look like this: then the row's error says more.
    if (line[first] == '{') ARGOSY_RETURN_IF_ERROR(visitor.Row(line, number));
    return Annotate(members.status(), path);
  }
  if (members->empty()) return InvalidArgument("{}: has no rows", path);
  size_t at = 0, current = 1;
  for (const JsonMember& member : *members) {
    current += LineOf(std::string_view(text).substr(at, member.begin - at), member.begin - at) - 1;
    at = member.begin;
    ARGOSY_RETURN_IF_ERROR(visitor.Row(std::string_view(text).substr(member.begin, member.end - member.begin), current));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VisitRows(const std::string& path, RowVisitor& visitor) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return InvalidArgument("{} is a folder: give the file of rows in it", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, path);
  absl::Status visited = VisitOpened(file, path, visitor);
  // A disk that fails looks like an end of the file.
  if (file.bad()) return Internal("{}: reading it failed", path);
  return visited;
}

absl::StatusOr<std::vector<QaRow>> ReadQaRows(const std::string& path) {
  struct Reader : RowVisitor {
    std::string path;
    std::vector<QaRow> rows;
    absl::Status Row(std::string_view text, size_t line) override {
      std::string where = fmt::format("{}:{}: row {}", path, line, rows.size() + 1);
      ARGOSY_ASSIGN_OR_RETURN(Json json, ParseRow(text, where));
      ARGOSY_ASSIGN_OR_RETURN(QaRow row, QaFromJson(json, where));
      rows.push_back(std::move(row));
      return absl::OkStatus();
    }
  } reader;
  reader.path = path;
  ARGOSY_RETURN_IF_ERROR(VisitRows(path, reader));
  return std::move(reader.rows);
}

absl::StatusOr<std::vector<std::string>> ReadTexts(const std::string& path) {
  struct Reader : RowVisitor {
    std::string path;
    int64_t rows = 0;
    std::vector<std::string> texts;
    absl::Status Row(std::string_view text, size_t line) override {
      std::string where = fmt::format("{}:{}: row {}", path, line, ++rows);
      ARGOSY_ASSIGN_OR_RETURN(Json row, ParseRow(text, where));
      if (row.contains("messages")) {
        if (!row["messages"].is_array()) return InvalidArgument("{}: \"messages\" is {}; expected a list", where, row["messages"].type_name());
        for (const Json& message : row["messages"]) {
          if (message.is_object() && message.contains("content") && message["content"].is_string()) texts.push_back(message["content"].get<std::string>());
        }
        return absl::OkStatus();
      }
      if (row.contains("question") || row.contains("QUESTION")) {
        ARGOSY_ASSIGN_OR_RETURN(QaRow qa, QaFromJson(row, where));
        for (std::string* part : {&qa.question, &qa.answer}) texts.push_back(std::move(*part));
        if (qa.context) texts.push_back(*std::move(qa.context));
        return absl::OkStatus();
      }
      ARGOSY_ASSIGN_OR_RETURN(std::string whole, TextField(row, row.contains("input") ? "input" : "text", where));
      texts.push_back(std::move(whole));
      return absl::OkStatus();
    }
  } reader;
  reader.path = path;
  ARGOSY_RETURN_IF_ERROR(VisitRows(path, reader));
  return std::move(reader.texts);
}

absl::Status WriteQaRows(const std::string& path, const std::vector<QaRow>& rows) {
  std::string text;
  for (const QaRow& row : rows) {
    text += "{\"question\": " + Quoted(row.question);
    if (row.context) text += ", \"context\": " + Quoted(*row.context);
    text += ", \"answer\": " + Quoted(row.answer) + "}\n";
  }
  return WriteFileAtomic(path, text);
}

absl::StatusOr<CreatedDataset> CreateDataset(const std::vector<QaRow>& rows, const CreateDatasetOptions& options) {
  if (!(options.test_split > 0 && options.test_split < 1)) {
    return InvalidArgument("--test-split {} is not between 0 and 1", options.test_split);
  }
  auto count = static_cast<int64_t>(rows.size());
  auto test_count = static_cast<int64_t>(std::ceil(options.test_split * static_cast<double>(count)));
  if (test_count < 1 || test_count >= count) {
    return InvalidArgument("--test-split {} of {} rows leaves {} to train on and {} to test", options.test_split, count, count - test_count,
                           test_count);
  }
  Split split = SplitRows(rows, test_count, options.seed);
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(options.output_dir));
  CreatedDataset created{.train_rows = static_cast<int64_t>(split.train.size()), .test_rows = static_cast<int64_t>(split.test.size()),
                         .train_path = options.output_dir + "/train.jsonl", .test_path = options.output_dir + "/test.jsonl"};
  for (const auto& [path, indices] : {std::pair{&created.train_path, &split.train}, std::pair{&created.test_path, &split.test}}) {
    std::string text;
    for (int64_t i : *indices) text += InputLine(FormatPrompt(options.prompt_type, rows[i]).Text());
    ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(*path, text));
  }
  if (std::vector<std::string> tokens = PromptTokens(options.prompt_type); !tokens.empty()) {
    created.tokens_path = options.output_dir + "/tokens.json";
    std::string text = "{\"tokens\": [";
    for (size_t i = 0; i < tokens.size(); ++i) text += (i ? ", " : "") + Quoted(tokens[i]);
    ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(created.tokens_path, text + "]}\n"));
  }
  return created;
}

absl::StatusOr<CreatedDataset> CreateDataset(const std::string& dataset_path, const CreateDatasetOptions& options) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<QaRow> rows, ReadQaRows(dataset_path));
  return CreateDataset(rows, options);
}

absl::StatusOr<std::vector<std::string>> ReadSpecialTokens(const std::string& path) {
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  Json json = Json::parse(text, nullptr, false);
  auto wrong = [&](std::string_view what) {
    return InvalidArgument("{}: {}; expected {{\"tokens\": [\"<START_Q>\", ...]}}", path, what);
  };
  if (json.is_discarded()) return wrong("not valid JSON");
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) return wrong("\"tokens\" is missing or no array");
  std::vector<std::string> tokens;
  for (const auto& token : json["tokens"]) {
    if (!token.is_string() || token.get_ref<const std::string&>().empty()) return wrong(fmt::format("the token {} is no text", token.dump()));
    tokens.push_back(token.get<std::string>());
  }
  return tokens;
}

}  // namespace argosy::train
