#include "train/trainer/resized_weights.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// Thread: any; the means are computed once, by the first reader that needs them.
class ResizedWeights : public WeightSource {
 public:
  ResizedWeights(std::unique_ptr<WeightSource> source, const HfWeights& files, int64_t old_vocab, int64_t hidden)
      : source_(std::move(source)), files_(files), old_vocab_(old_vocab), hidden_(hidden) {}

  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    bool resized = tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight";
    int64_t old_elements = old_vocab_ * hidden_;
    int64_t from_files = resized ? std::clamp<int64_t>(old_elements - begin, 0, static_cast<int64_t>(out.size()))
                                 : static_cast<int64_t>(out.size());
    if (from_files > 0) ARGOSY_RETURN_IF_ERROR(source_->Read(tensor, begin, out.first(from_files)));
    if (from_files == static_cast<int64_t>(out.size())) return absl::OkStatus();
    ARGOSY_ASSIGN_OR_RETURN(const std::vector<float>* mean, MeanRow(tensor.name));
    for (int64_t i = from_files; i < static_cast<int64_t>(out.size()); ++i) out[i] = (*mean)[(begin + i) % hidden_];
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const std::vector<float>*> MeanRow(const std::string& name) const {
    std::lock_guard lock(mutex_);
    std::vector<float>& mean = means_[name];
    if (!mean.empty()) return &mean;
    std::vector<double> sum(hidden_);
    std::vector<float> row(hidden_);
    for (int64_t i = 0; i < old_vocab_; ++i) {
      ARGOSY_RETURN_IF_ERROR(files_.ReadRange(name, i * hidden_, row));
      for (int64_t j = 0; j < hidden_; ++j) sum[j] += row[j];
    }
    mean.resize(hidden_);
    for (int64_t j = 0; j < hidden_; ++j) mean[j] = static_cast<float>(sum[j] / static_cast<double>(old_vocab_));
    return &mean;
  }

  std::unique_ptr<WeightSource> source_;
  const HfWeights& files_;
  int64_t old_vocab_, hidden_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> means_;
};

}  // namespace

absl::StatusOr<ModelWithWeights> OpenModel(const ModelSource& model) {
  ModelWithWeights result;
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig stored, ModelConfig::Load(model.directory));
  int64_t vocab = model.vocab_size == 0 ? stored.vocab_size : model.vocab_size;
  if (vocab < stored.vocab_size) {
    return InvalidArgument("vocabulary of {} rows: the model in {} has {} already", vocab, model.directory, stored.vocab_size);
  }
  result.config = stored;
  if (vocab != stored.vocab_size) {
    ARGOSY_ASSIGN_OR_RETURN(result.config, ModelConfig::Parse(stored.ToJson({.vocab_size = vocab})));
  }
  if (model.random_weights) {
    result.source = RandomWeights(result.config, model.seed);
    return result;
  }
  ARGOSY_ASSIGN_OR_RETURN(HfWeights files, HfWeights::Open(model.directory));
  ARGOSY_RETURN_IF_ERROR(files.Check(stored.Tensors(stored.dtype)));
  result.files = std::make_unique<HfWeights>(std::move(files));
  result.source = WeightsFromHf(*result.files);
  if (vocab != stored.vocab_size) {
    result.source = std::make_unique<ResizedWeights>(std::move(result.source), *result.files, stored.vocab_size, stored.hidden_size);
  }
  return result;
}

}  // namespace argosy::train
