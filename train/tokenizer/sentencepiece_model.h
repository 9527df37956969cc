#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace argosy::train {

// The tokenizer.json that means what a SentencePiece model (tokenizer.model) of the BPE kind does: merges in the order of the pieces' scores,
// byte fallback, blocks for spaces. `config` is tokenizer_config.json, which says what goes around a text (add_bos_token, add_eos_token)
// and whether a block is put behind special tokens too ("legacy").
//
// Unigram models, and those that normalize (nmt_nfkc) or drop extra spaces, are refused by name.
absl::StatusOr<std::string> TokenizerJsonFromSentencePiece(std::string_view model, const nlohmann::json& config);

}  // namespace argosy::train
