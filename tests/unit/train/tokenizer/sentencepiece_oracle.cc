#include "tests/unit/train/tokenizer/sentencepiece_oracle.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <stdexcept>

namespace argosy::train {
namespace {

void Require(const sentencepiece::util::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace

struct SentencePieceOracle::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceOracle::SentencePieceOracle(const std::string& path) : impl_(std::make_unique<Impl>()) { Require(impl_->processor.Load(path)); }
SentencePieceOracle::~SentencePieceOracle() = default;

int SentencePieceOracle::PieceCount() const { return impl_->processor.GetPieceSize(); }
int SentencePieceOracle::BosId() const { return impl_->processor.bos_id(); }

std::vector<int> SentencePieceOracle::Encode(const std::string& text) const {
  std::vector<int> ids;
  Require(impl_->processor.Encode(text, &ids));
  return ids;
}

std::string SentencePieceOracle::Decode(const std::vector<int>& ids) const {
  std::string text;
  Require(impl_->processor.Decode(ids, &text));
  return text;
}

std::string SentencePieceOracle::Train(const std::string& flags) {
  auto status = sentencepiece::SentencePieceTrainer::Train(flags);
  return status.ok() ? "" : status.ToString();
}

}  // namespace argosy::train
