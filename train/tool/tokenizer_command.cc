#include <cstdio>
#include <memory>

#include "runtime/base/status.h"
#include "train/data/dataset.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

struct TokenizerFlags {
  std::vector<std::string> text_paths;
  std::string special_token_path, output_dir, padding_side = "right";
  BpeTrainerOptions bpe{.vocabulary_size = 8192};
};

absl::Status Train(TokenizerFlags& flags) {
  if (flags.padding_side == "left") flags.bpe.padding_side = PaddingSide::kLeft;
  else if (flags.padding_side != "right") return InvalidArgument("--padding-side {}: left or right", flags.padding_side);
  if (!flags.special_token_path.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(flags.bpe.special_tokens, ReadSpecialTokens(flags.special_token_path));
  }
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (const std::string& path : flags.text_paths) {
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> more, ReadTexts(path));
    for (std::string& text : more) {
      bytes += text.size();
      texts.push_back(std::move(text));
    }
  }
  ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, TrainBpe(texts, flags.bpe));
  ARGOSY_RETURN_IF_ERROR(tokenizer.Save(flags.output_dir));
  size_t tokens = 0;
  for (const std::string& text : texts) tokens += tokenizer.Encode(text, {.add_special_tokens = false}).size();
  std::printf("tokenizer: %s (%d tokens, learnt from %zu texts)\n", flags.output_dir.c_str(), static_cast<int>(tokenizer.VocabularySize()), texts.size());
  if (tokens > 0) std::printf("           %.2f bytes a token over them\n", static_cast<double>(bytes) / static_cast<double>(tokens));
  if (tokenizer.VocabularySize() < flags.bpe.vocabulary_size) {
    std::printf("           fewer than --vocabulary-size %d: no other pair occurs %lld times\n", flags.bpe.vocabulary_size,
                static_cast<long long>(flags.bpe.min_frequency));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTokenizerCommand(CLI::App& app) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Make tokenizers");
  tokenizer->require_subcommand(1);
  auto flags = std::make_shared<TokenizerFlags>();
  BpeTrainerOptions& bpe = flags->bpe;
  CLI::App* train = tokenizer->add_subcommand("train", "Learn a byte-level BPE tokenizer from texts, in Hugging Face's files");
  train->option_defaults()->ignore_underscore();
  train->add_option("--train-text", flags->text_paths, "Files to learn from, read into memory: .txt with a text a line, or rows as finetune takes them")->required();
  train->add_option("--output-dir", flags->output_dir, "Folder that gets tokenizer.json and its companions")->required();
  train->add_option("--vocabulary-size", bpe.vocabulary_size, "At most: special tokens, 256 bytes and merges")->capture_default_str();
  train->add_option("--special-token-path", flags->special_token_path, "tokens.json: tokens of their own, whose ids come first");
  train->add_option("--min-frequency", bpe.min_frequency, "A pair that occurs less often is not merged")->capture_default_str();
  train->add_flag("--individual-digits", bpe.individual_digits, "Every digit is a token of its own");
  train->add_option("--bos-token", bpe.bos_token, "");
  train->add_flag("--add-bos", bpe.add_bos, "Encoding puts --bos-token in front");
  train->add_option("--eos-token", bpe.eos_token, "")->capture_default_str();
  train->add_option("--pad-token", bpe.pad_token, "");
  train->add_option("--unk-token", bpe.unknown_token, "");
  train->add_option("--padding-side", flags->padding_side, "left or right")->capture_default_str();
  train->add_option("--model-max-length", bpe.model_max_length, "Written into tokenizer_config.json; 0: not");
  train->callback([flags] { MustSucceed(Train(*flags)); });
}

}  // namespace argosy::train
