#include "train/trainer/model_source.h"

#include "runtime/base/status.h"

namespace argosy::train {

absl::StatusOr<ModelWithWeights> OpenModel(const ModelSource& model) {
  ModelWithWeights result;
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig files_config, ModelConfig::Load(model.directory));
  int64_t vocab = model.vocab_size == 0 ? files_config.vocab_size : model.vocab_size;
  if (vocab < files_config.vocab_size) {
    return InvalidArgument("vocabulary of {} rows: the model in {} has {} already", vocab, model.directory, files_config.vocab_size);
  }
  result.config = files_config;
  result.files_vocab_size = files_config.vocab_size;
  if (vocab != files_config.vocab_size) {
    ARGOSY_ASSIGN_OR_RETURN(result.config, ModelConfig::Parse(files_config.ToJson({.vocab_size = vocab})));
  }
  if (model.random_weights) {
    result.stored = RandomWeights(result.config, model.seed);
    return result;
  }
  ARGOSY_ASSIGN_OR_RETURN(HfWeights files, HfWeights::Open(model.directory));
  ARGOSY_RETURN_IF_ERROR(files.CheckModel(files_config));
  result.files = std::make_unique<HfWeights>(std::move(files));
  result.stored = WeightsFromHf(*result.files);
  if (vocab != files_config.vocab_size) {
    ARGOSY_ASSIGN_OR_RETURN(result.grown, GrownVocabulary(*result.stored, result.config, files_config.vocab_size, model.seed));
  }
  return result;
}

absl::StatusOr<RunAdapter> OpenRunAdapter(const AdapterSpec& spec, const ModelWithWeights& model, uint64_t seed) {
  RunAdapter adapter;
  ARGOSY_ASSIGN_OR_RETURN(adapter.lora, LoraConfig::Parse(spec.config));
  if (!spec.directory.empty()) {
    ARGOSY_ASSIGN_OR_RETURN(adapter.stored, OpenAdapter(spec.directory, model.config, model.source()));
    if (adapter.stored.config.vocab_size != model.config.vocab_size) {
      return InvalidArgument("the adapter in {} has a vocabulary of {}, the run's is {}: give the tokens that it was trained with (--special-token-path)",
                             spec.directory, adapter.stored.config.vocab_size, model.config.vocab_size);
    }
    adapter.layout = adapter.stored.layout;
    return adapter;
  }
  if (adapter.lora.init == LoraInit::kNone) {
    return InvalidArgument("\"init_lora_weights\" is false, which begins with a B that is not 0: true or \"gaussian\"");
  }
  ARGOSY_ASSIGN_OR_RETURN(adapter.layout, MakeAdapterLayout(model.config, adapter.lora));
  adapter.fresh = NewAdapter(adapter.layout, adapter.lora, model.source(), seed);
  return adapter;
}

}  // namespace argosy::train
