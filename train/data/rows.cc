#include "train/data/rows.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "train/data/dataset.h"
#include "train/data/qa_json.h"
#include "train/tokenizer/chat_template.h"

namespace argosy::train {
namespace {

class SampleReader : public RowVisitor {
 public:
  SampleReader(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options, SampleSink& sink)
      : path_(path), tokenizer_(tokenizer), options_(options), sink_(sink) {}

  absl::Status Row(std::string_view text, size_t line) override {
    if (options_.rows_max > 0 && counts.rows >= options_.rows_max) return absl::OkStatus();
    absl::StatusOr<Learned> row = Read(text, fmt::format("{}:{}: row {}", path_, line, ++counts.rows));
    return row.ok() ? Append(*std::move(row)) : Skip(row.status());
  }

  absl::Status Bad(absl::Status why) override {
    ++counts.rows;
    return Skip(std::move(why));
  }

  SampleCounts counts;
  int64_t samples = 0;

 private:
  // A row's tokens, and of each whether it is to be learned.
  struct Learned {
    std::vector<int32_t> ids;
    std::vector<uint8_t> is_target;
    bool ends_itself = false;
  };

  absl::Status Skip(absl::Status why) {
    if (!options_.skip_bad_rows) return why;
    if (counts.bad++ == 0) counts.first_bad = Message(why);
    return absl::OkStatus();
  }

  absl::StatusOr<Learned> Read(std::string_view text, const std::string& where) {
    ARGOSY_ASSIGN_OR_RETURN(nlohmann::json row, ParseRow(text, where));
    if (row.contains("messages")) return Conversation(text, where);
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
      return InvalidArgument("{} has neither \"input\", \"text\", \"messages\", nor \"question\" and \"answer\" (it has {})", where, KeysOf(row));
    }
    TokenizedRow tokens = TokenizeRow(tokenizer_, input, answer_begin.value_or(0), {.add_special_tokens = options_.add_special_tokens});
    Learned learned{.ids = std::move(tokens.ids)};
    learned.is_target.assign(learned.ids.size(), 1);
    std::fill_n(learned.is_target.begin(), std::min<size_t>(tokens.answer_from, learned.ids.size()), 0);
    return learned;
  }

  // The template writes all there is, special tokens included.
  absl::StatusOr<Learned> Conversation(std::string_view text, const std::string& where) {
    if (!chat_) {
      absl::StatusOr<ChatTemplate> chat = ChatTemplate::Of(tokenizer_);
      if (!chat.ok()) return Annotate(chat.status(), where + " has \"messages\"");
      chat_.emplace(*std::move(chat));
    }
    // Templates may write the keys of an object: in the order of the file.
    nlohmann::ordered_json messages = nlohmann::ordered_json::parse(text)["messages"];
    ARGOSY_RETURN_IF_ERROR(CheckMessages(messages, where));
    const bool all = options_.loss_on == LossOn::kAll;
    ChatText chat;
    if (all) {
      absl::StatusOr<std::string> rendered = chat_->Render(messages, false);
      if (!rendered.ok()) return Annotate(rendered.status(), where);
      chat.text = *std::move(rendered);
    } else {
      absl::StatusOr<ChatText> rendered = chat_->RenderForTraining(messages);
      if (!rendered.ok()) return Annotate(rendered.status(), where);
      chat = *std::move(rendered);
      if (chat.answers.empty()) return InvalidArgument("{} has no message of the assistant to learn from; --loss-on all learns the whole of it", where);
    }
    constexpr EncodeOptions kAsWritten{.add_special_tokens = false};
    Learned learned{.ids = tokenizer_.Encode(chat.text, kAsWritten), .ends_itself = true};
    learned.is_target.assign(learned.ids.size(), all ? 1 : 0);
    for (auto [begin, end] : chat.answers) {
      // A token across the beginning of an answer belongs to it, one across its end does not.
      size_t from = TokensOf(learned.ids, std::string_view(chat.text).substr(0, begin)), to = TokensOf(learned.ids, std::string_view(chat.text).substr(0, end));
      for (size_t i = from; i < to; ++i) learned.is_target[i] = 1;
    }
    return learned;
  }

  // How many of `ids` are those of the text's beginning alone.
  size_t TokensOf(std::span<const int32_t> ids, std::string_view beginning) const {
    std::vector<int32_t> prefix = tokenizer_.Encode(beginning, {.add_special_tokens = false});
    return static_cast<size_t>(std::mismatch(ids.begin(), ids.end(), prefix.begin(), prefix.end()).first - ids.begin());
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

  absl::Status Append(Learned row) {
    if (options_.append_eos && !row.ends_itself && tokenizer_.EosId() && (row.ids.empty() || row.ids.back() != *tokenizer_.EosId())) {
      row.ids.push_back(*tokenizer_.EosId());
      row.is_target.push_back(1);
    }
    if (row.ids.empty()) {
      ++counts.empty;
      return absl::OkStatus();
    }
    const auto length = static_cast<int64_t>(row.ids.size());
    if (length > options_.ctx_len) {
      switch (options_.long_rows) {
        case LongRows::kDrop:
          ++counts.dropped;
          counts.tokens_dropped += length;
          return absl::OkStatus();
        case LongRows::kSplit:
          ++counts.split;
          for (size_t begin = 0; begin < row.ids.size(); begin += static_cast<size_t>(options_.ctx_len)) {
            size_t count = std::min(row.ids.size() - begin, static_cast<size_t>(options_.ctx_len));
            ARGOSY_RETURN_IF_ERROR(Add(std::span(row.ids).subspan(begin, count), std::span(row.is_target).subspan(begin, count)));
          }
          return absl::OkStatus();
        case LongRows::kCut:
          ++counts.cut;
          counts.tokens_cut += length - options_.ctx_len;
          row.ids.resize(static_cast<size_t>(options_.ctx_len));
          row.is_target.resize(row.ids.size());
          break;
      }
    }
    return Add(row.ids, row.is_target);
  }

  absl::Status Add(std::span<const int32_t> ids, std::span<const uint8_t> is_target) {
    ++samples;
    counts.target_tokens += std::count(is_target.begin() + 1, is_target.end(), 1);
    return sink_.Add(ids, is_target);
  }

  const std::string& path_;
  const Tokenizer& tokenizer_;
  const RowOptions& options_;
  SampleSink& sink_;
  std::optional<ChatTemplate> chat_;
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

absl::StatusOr<SampleCounts> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options, SampleSink& sink) {
  if (options.ctx_len < 2) return InvalidArgument("--ctx-len {} is below 2", options.ctx_len);
  if (options.append_eos && !tokenizer.EosId()) {
    return InvalidArgument("the tokenizer names no EOS token, which is to end each row; name one in tokenizer_config.json or do not append it");
  }
  SampleReader reader(path, tokenizer, options, sink);
  ARGOSY_RETURN_IF_ERROR(VisitRows(path, reader));
  const SampleCounts& counts = reader.counts;
  if (counts.rows == 0) return InvalidArgument("{}: has no rows", path);
  if (reader.samples == 0) {
    return InvalidArgument("{}: none of {} rows can be used ({} longer than --ctx-len {} were dropped, {} are empty, {} are bad{})", path, counts.rows,
                           counts.dropped, options.ctx_len, counts.empty, counts.bad, counts.bad > 0 ? ", the first: " + counts.first_bad : "");
  }
  if (counts.target_tokens == 0) {
    return InvalidArgument("{}: no token of its {} rows is to be learned: every answer begins behind --ctx-len {}, or rows have one token; give a longer --ctx-len, "
                           "or --loss-on all", path, counts.rows, options.ctx_len);
  }
  return std::move(reader.counts);
}

absl::StatusOr<SampleSet> ReadSamples(const std::string& path, const Tokenizer& tokenizer, const RowOptions& options) {
  struct Memory : SampleSink {
    SampleVectors vectors;
    absl::Status Add(std::span<const int32_t> ids, std::span<const uint8_t> is_target) override {
      vectors.Add(ids, is_target);
      return absl::OkStatus();
    }
  } memory;
  ARGOSY_ASSIGN_OR_RETURN(SampleCounts counts, ReadSamples(path, tokenizer, options, memory));
  return std::move(memory.vectors).Finish(std::move(counts));
}

}  // namespace argosy::train
