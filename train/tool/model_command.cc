#include <cstdio>
#include <memory>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/data/dataset.h"
#include "train/model/layout.h"
#include "train/model/weight_source.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

struct ModelFlags {
  std::string preset = "nano", text_path, special_token_path, output_dir;
  int32_t vocabulary_size = 512;
  uint64_t seed = 42;
  ModelPreset sizes;
};

absl::Status Init(ModelFlags& flags) {
  if (flags.preset != "nano") return InvalidArgument("--preset {}: only \"nano\" is there", flags.preset);
  std::vector<std::string> marks;
  if (!flags.special_token_path.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(marks, ReadSpecialTokens(flags.special_token_path));
  }
  ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> texts, ReadTexts(flags.text_path));
  BpeTrainerOptions bpe{.vocabulary_size = flags.vocabulary_size, .special_tokens = marks, .individual_digits = true};
  ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, TrainBpe(texts, bpe));
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(flags.output_dir));
  ARGOSY_RETURN_IF_ERROR(tokenizer.Save(flags.output_dir));

  flags.sizes.vocab_size = tokenizer.VocabularySize();
  if (std::optional<int32_t> eos = tokenizer.EosId()) flags.sizes.eos_token_id = flags.sizes.bos_token_id = flags.sizes.pad_token_id = *eos;
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Make(flags.sizes));
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(flags.output_dir + "/config.json", config.ToJson()));
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(flags.output_dir + "/generation_config.json", config.GenerationConfigJson()));

  // The weights by the same random source that every rank of a run could use, in the order of the file.
  ARGOSY_ASSIGN_OR_RETURN(CheckpointLayout layout, PlanCheckpoint(config.Tensors(DType::kF32), {.shard_bytes_max = INT64_MAX}));
  std::unique_ptr<WeightSource> weights = RandomWeights(config, flags.seed);
  ModelLayout units = MakeLayout(config);
  std::string content = layout.files[0].header;
  for (const PlacedTensor& tensor : layout.files[0].tensors) {
    std::vector<float> values(static_cast<size_t>(tensor.spec.Elements()));
    const TensorRange* range = nullptr;
    for (const UnitLayout& unit : units.units) {
      for (const TensorRange& candidate : unit.ranges) {
        if (candidate.name == tensor.spec.name) range = &candidate;
      }
    }
    if (range == nullptr) return Internal("tensor {} is in no unit", tensor.spec.name);
    ARGOSY_RETURN_IF_ERROR(weights->Read(*range, 0, values));
    content.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  ARGOSY_RETURN_IF_ERROR(WriteFileAtomic(flags.output_dir + "/model.safetensors", content));
  std::printf("model:   %s (%lld parameters, %lld layers of width %lld, vocabulary %lld)\n", flags.output_dir.c_str(),
              static_cast<long long>(config.ParameterCount()), static_cast<long long>(config.num_hidden_layers),
              static_cast<long long>(config.hidden_size), static_cast<long long>(config.vocab_size));
  return absl::OkStatus();
}

}  // namespace

void AddModelCommand(CLI::App& app) {
  CLI::App* model = app.add_subcommand("model", "Make models");
  model->require_subcommand(1);
  auto flags = std::make_shared<ModelFlags>();
  CLI::App* init = model->add_subcommand("init", "Make a small Llama with random weights and a BPE tokenizer trained on a text");
  init->option_defaults()->ignore_underscore();
  init->add_option("--preset", flags->preset, "nano")->capture_default_str();
  init->add_option("--train-text", flags->text_path, "Rows that the tokenizer is trained on: JSON lines of {\"input\"}")->required();
  init->add_option("--special-token-path", flags->special_token_path, "tokens.json: tokens of their own from the start");
  init->add_option("--output-dir", flags->output_dir, "Folder that gets the model")->required();
  init->add_option("--vocabulary-size", flags->vocabulary_size, "At most")->capture_default_str();
  init->add_option("--hidden-size", flags->sizes.hidden_size, "")->capture_default_str();
  init->add_option("--intermediate-size", flags->sizes.intermediate_size, "")->capture_default_str();
  init->add_option("--layers", flags->sizes.num_hidden_layers, "")->capture_default_str();
  init->add_option("--heads", flags->sizes.num_attention_heads, "")->capture_default_str();
  init->add_option("--kv-heads", flags->sizes.num_key_value_heads, "")->capture_default_str();
  init->add_option("--seed", flags->seed, "")->capture_default_str();
  init->callback([flags] { MustSucceed(Init(*flags)); });
}

}  // namespace argosy::train
