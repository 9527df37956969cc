#include "train/data/rows.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "train/data/dataset.h"
#include "train/data/qa_json.h"

namespace argosy::train {
namespace {

class SampleReader : public RowVisitor {
 public:
  SampleReader(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options)
      : path_(path), tokenizer_(tokenizer), options_(options) {}

  absl::Status Row(std::string_view text, size_t line) override {
    if (options_.rows_max > 0 && set.rows >= options_.rows_max) return absl::OkStatus();
    absl::Status status = Read(text, fmt::format("{}:{}: row {}", path_, line, ++set.rows));
    return status.ok() ? status : Skip(std::move(status));
  }

  absl::Status Bad(absl::Status why) override {
    ++set.rows;
    return Skip(std::move(why));
  }

  SampleSet set;

 private:
  absl::Status Skip(absl::Status why) {
    if (!options_.skip_bad_rows) return why;
    if (set.bad++ == 0) set.first_bad = Message(why);
    return absl::OkStatus();
  }

  absl::Status Read(std::string_view text, const std::string& where) {
    ARGOSY_ASSIGN_OR_RETURN(nlohmann::json row, ParseRow(text, where));
    std::string input;
    std::optional<size_t> answer_begin;
    const char* whole = row.contains("input") ? "input" : row.contains("text") ? "text" : nullptr;
    if (whole != nullptr) {
      ARGOSY_ASSIGN_OR_RETURN(input, TextField(row, whole, where));
      ARGOSY_ASSIGN_OR_RETURN(answer_begin, AnswerOfInput(input, where));
    } else if (row.contains("question") || row.contains("QUESTION")) {
      ARGOSY_ASSIGN_OR_RETURN(QaRow qa, QaFromJson(row, where));
      Prompt prompt = FormatPrompt(options_.prompt_type, qa);
      input = prompt.Text();
      if (options_.loss_on != LossOn::kAll) answer_begin = prompt.prompt.size();
    } else {
      return InvalidArgument("{} has neither \"input\", \"text\", nor \"question\" and \"answer\" (it has {})", where, KeysOf(row));
    }
    Append(TokenizeRow(tokenizer_, input, answer_begin.value_or(0), {.add_special_tokens = options_.add_special_tokens}));
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<size_t>> AnswerOfInput(const std::string& input, std::string_view where) const {
    if (options_.loss_on == LossOn::kAll || (options_.loss_on == LossOn::kAuto && options_.answer_marker.empty())) {
      return std::optional<size_t>();
    }
    if (options_.answer_marker.empty()) {
      return InvalidArgument("{} does not tell its answer apart: --loss-on answer needs --answer-marker for {{\"input\"}} rows", where);
    }
    size_t at = input.rfind(options_.answer_marker);
    if (at == std::string::npos) {
      return InvalidArgument("{} has no answer marker \"{}\" in its \"input\"", where, options_.answer_marker);
    }
    return std::optional<size_t>(at + options_.answer_marker.size());
  }

  void Append(TokenizedRow row) {
    if (options_.append_eos && tokenizer_.EosId() && (row.ids.empty() || row.ids.back() != *tokenizer_.EosId())) {
      row.ids.push_back(*tokenizer_.EosId());
    }
    if (row.ids.empty()) {
      ++set.empty;
      return;
    }
    if (static_cast<int64_t>(row.ids.size()) > options_.ctx_len) {
      if (options_.long_rows == LongRows::kDrop) {
        ++set.dropped;
        return;
      }
      if (options_.long_rows == LongRows::kSplit) {
        ++set.split;
        for (size_t begin = 0; begin < row.ids.size(); begin += static_cast<size_t>(options_.ctx_len)) {
          size_t count = std::min(row.ids.size() - begin, static_cast<size_t>(options_.ctx_len));
          Add(std::span(row.ids).subspan(begin, count), std::max<int64_t>(0, row.answer_from - static_cast<int64_t>(begin)));
        }
        return;
      }
      ++set.cut;
      row.ids.resize(static_cast<size_t>(options_.ctx_len));
    }
    Add(row.ids, row.answer_from);
  }

  void Add(std::span<const int32_t> ids, int64_t answer_from) {
    set.tokens.insert(set.tokens.end(), ids.begin(), ids.end());
    set.begins.push_back(static_cast<int64_t>(set.tokens.size()));
    set.loss_from.push_back(static_cast<int32_t>(std::min(answer_from, static_cast<int64_t>(ids.size()))));
  }

  const std::string& path_;
  const Tokenizer& tokenizer_;
  const RowOptions& options_;
};

}  // namespace

TokenizedRow TokenizeRow(const Tokenizer& tokenizer, const std::string& text, size_t answer_begin, EncodeOptions options) {
  TokenizedRow row{.ids = tokenizer.Encode(text, options)};
  if (answer_begin == 0) return row;
  // What the text before the answer alone would give is the prompt, as far as both agree.
  std::vector<int32_t> prompt = tokenizer.Encode(std::string_view(text).substr(0, answer_begin), options);
  auto differ = std::mismatch(row.ids.begin(), row.ids.end(), prompt.begin(), prompt.end());
  row.answer_from = static_cast<int32_t>(differ.first - row.ids.begin());
  return row;
}

absl::StatusOr<SampleSet> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options) {
  if (options.ctx_len < 2) return InvalidArgument("--ctx-len {} is below 2", options.ctx_len);
  if (options.append_eos && !tokenizer.EosId()) {
    return InvalidArgument("the tokenizer names no EOS token, which is to end each row; name one in tokenizer_config.json or do not append it");
  }
  SampleReader reader(path, tokenizer, options);
  ARGOSY_RETURN_IF_ERROR(VisitRows(path, reader));
  const SampleSet& set = reader.set;
  if (set.size() == 0) {
    return InvalidArgument("{}: none of {} rows can be used ({} longer than --ctx-len {} were dropped, {} are empty, {} are bad{})", path, set.rows, set.dropped,
                           options.ctx_len, set.empty, set.bad, set.bad > 0 ? ", the first: " + set.first_bad : "");
  }
  bool has_target = false;
  for (int64_t i = 0; i < set.size() && !has_target; ++i) has_target = std::max(set.loss_from[i], 1) < set.Length(i);
  if (!has_target) {
    return InvalidArgument("{}: no token of its {} rows is to be learned: every answer begins behind --ctx-len {}, or rows have one token; give a longer --ctx-len, "
                           "or --loss-on all", path, set.rows, options.ctx_len);
  }
  return std::move(reader.set);
}

}  // namespace argosy::train
