#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace argosy::train {

// The special tokens around one text: "post_processor" of tokenizer.json. TemplateProcessing, ByteLevel (which only moves offsets),
// RobertaProcessing, BertProcessing and Sequence; others are refused by name.
class PostProcessor {
 public:
  static absl::StatusOr<PostProcessor> Parse(const nlohmann::json& part);  // null: nothing is added

  std::vector<int32_t> Apply(std::vector<int32_t> ids) const;
  // All that it ever adds.
  std::vector<int32_t> Ids() const { return Apply({}); }

 private:
  absl::Status Add(const nlohmann::json& part);
  struct Around {
    std::vector<int32_t> before, after;
  };
  std::vector<Around> steps_;
};

}  // namespace argosy::train
