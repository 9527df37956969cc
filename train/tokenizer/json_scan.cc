#include "train/tokenizer/json_scan.h"

#include <algorithm>

#include "nlohmann/json.hpp"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<JsonMember>> Run() {
    std::vector<JsonMember> members;
    SkipSpace();
    if (at_ >= text_.size()) return Error("an object or an array");
    bool object = text_[at_] == '{';
    if (!object && text_[at_] != '[') return Error("an object or an array");
    char close = object ? '}' : ']';
    ++at_;
    SkipSpace();
    if (Take(close)) return Finish(std::move(members));
    while (true) {
      JsonMember member;
      SkipSpace();
      if (object) {
        size_t begin = at_;
        if (at_ >= text_.size() || text_[at_] != '"' || !SkipString()) return Error("a key");
        nlohmann::json key = nlohmann::json::parse(text_.substr(begin, at_ - begin), nullptr, false);
        if (!key.is_string()) return Error("a key");
        member.key = key.get<std::string>();
        SkipSpace();
        if (!Take(':')) return Error("':'");
        SkipSpace();
      }
      member.begin = at_;
      if (!SkipValue()) return Error("the end of a value");
      member.end = at_;
      if (member.end == member.begin) return Error("a value");
      members.push_back(std::move(member));
      SkipSpace();
      if (Take(',')) continue;
      if (Take(close)) return Finish(std::move(members));
      return Error(object ? "',' or '}'" : "',' or ']'");
    }
  }

 private:
  absl::Status Error(std::string_view wanted) const {
    return InvalidArgument("line {}: expected {} at byte {}", LineOf(text_, std::min(at_, text_.size())), wanted, at_);
  }
  absl::StatusOr<std::vector<JsonMember>> Finish(std::vector<JsonMember> members) {
    SkipSpace();
    if (at_ != text_.size()) return Error("the end of the text");
    return members;
  }
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool SkipString() {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') ++at_;
      else if (text_[at_] == '"') return ++at_, true;
    }
    return false;
  }
  bool SkipValue() {
    size_t depth = 0;
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '"') {
        if (!SkipString()) return false;
        if (depth == 0) return true;
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        if (depth == 0) return true;
        ++at_;
        if (--depth == 0) return true;
      } else if (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
        return true;
      } else {
        ++at_;
      }
    }
    return depth == 0;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<JsonMember>> ScanJsonMembers(std::string_view text) { return Scanner(text).Run(); }

size_t LineOf(std::string_view text, size_t at) {
  return 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(std::min(at, text.size())), '\n'));
}

}  // namespace argosy::train
