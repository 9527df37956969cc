#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace argosy::train {

// A compiled pattern as tokenizer.json writes them: Oniguruma's Ruby syntax over Unicode, run by PCRE2 (UTF, UCP, JIT where it is).
// What the two read differently (\s, \w, \h, {n,m}+, the flag m, ^ and $) is rewritten; class intersections and nested
// classes are refused.
//
// Thread:   const calls from any thread.
// Failure:  Compile names the pattern and the place.
class Regex {
 public:
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Non-overlapping matches [begin, end), left to right, of valid UTF-8.
  std::vector<std::pair<size_t, size_t>> FindAll(std::string_view subject) const;

 private:
  explicit Regex(std::shared_ptr<pcre2_real_code_8> code) : code_(std::move(code)) {}
  std::shared_ptr<pcre2_real_code_8> code_;
};

// The same pattern in PCRE2's syntax.
absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern);

}  // namespace argosy::train
