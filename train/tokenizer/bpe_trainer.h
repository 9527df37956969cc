#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

struct BpeTrainerOptions {
  int32_t vocabulary_size = 1024;           // special tokens, the 256 bytes and the merges together
  std::vector<std::string> special_tokens;  // ids from 0, in this order
  bool individual_digits = false;           // every digit is a token of its own
  int64_t min_frequency = 2;                // a pair seen less often is not merged

  // Names among the special tokens (added to them where absent); empty: none.
  std::string bos_token, eos_token = "<|endoftext|>", pad_token, unknown_token;
  bool add_bos = false;                     // encoding puts bos_token in front
  PaddingSide padding_side = PaddingSide::kRight;
  int64_t model_max_length = 0;             // 0: not written
};

// A byte-level BPE tokenizer learnt from `texts`: the most frequent pair of neighbours becomes a token, again and again (Sennrich et
// al. 2016), over GPT-2's byte alphabet and pre-tokenizer. Special tokens are cut out of the texts first. Equal counts are
// decided by the smaller pair of ids, so equal input gives equal output. Fewer merges than asked for are no error: the texts had no more.
// Save() of the result writes files that Hugging Face's libraries load.
absl::StatusOr<Tokenizer> TrainBpe(const std::vector<std::string>& texts, const BpeTrainerOptions& options);

}  // namespace argosy::train
