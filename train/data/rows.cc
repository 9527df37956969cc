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
    std::string where = fmt::format("{}:{}: row {}", path_, line, ++set.rows);
    ARGOSY_ASSIGN_OR_RETURN(nlohmann::json row, ParseRow(text, where));
    std::string input;
    std::optional<size_t> answer_begin;
    if (row.contains("input")) {
      ARGOSY_ASSIGN_OR_RETURN(input, TextField(row, "input", where));
      ARGOSY_ASSIGN_OR_RETURN(answer_begin, AnswerOfInput(input, where));
    } else if (row.contains("question") || row.contains("QUESTION")) {
      ARGOSY_ASSIGN_OR_RETURN(QaRow qa, QaFromJson(row, where));
      Prompt prompt = FormatPrompt(options_.prompt_type, qa);
      input = prompt.Text();
      if (options_.loss_on != LossOn::kAll) answer_begin = prompt.prompt.size();
    } else {
      return InvalidArgument("{} has neither \"input\" nor \"question\" and \"answer\" (it has {})", where, KeysOf(row));
    }
    Append(TokenizeRow(tokenizer_, input, answer_begin.value_or(0), {.add_special_tokens = options_.add_special_tokens}));
    return absl::OkStatus();
  }

  SampleSet set;

 private:
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
      ++set.cut;
      row.ids.resize(static_cast<size_t>(options_.ctx_len));
    }
    set.tokens.insert(set.tokens.end(), row.ids.begin(), row.ids.end());
    set.begins.push_back(static_cast<int64_t>(set.tokens.size()));
    set.loss_from.push_back(std::min(row.answer_from, static_cast<int32_t>(row.ids.size())));
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
  if (reader.set.size() == 0) {
    return InvalidArgument("{}: none of {} rows can be used ({} longer than --ctx-len {} were dropped, {} are empty)", path, reader.set.rows,
                           reader.set.dropped, options.ctx_len, reader.set.empty);
  }
  return std::move(reader.set);
}

}  // namespace argosy::train
