#include "train/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <optional>

#include "runtime/base/status.h"
#include "spdlog/spdlog.h"

namespace argosy::train {
namespace {

// Members of a class. PCRE2's own \s also holds U+180E, and its \w lacks marks and connectors. Oniguruma reads \w by a table of its own
// below U+0100, where the superscripts and fractions are in.
constexpr std::string_view kSpaceMembers =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWordMembers =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})"
    R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kHexMembers = "0-9a-fA-F";

// The members that the escape's small letter stands for.
std::optional<std::string_view> MembersOf(char lower) {
  switch (lower) {
    case 's': return kSpaceMembers;
    case 'w': return kWordMembers;
    case 'h': return kHexMembers;
    default: return std::nullopt;
  }
}

// {n}, {n,}, {,m}, {n,m} at `at`: its end, or npos when the brace is a literal.
size_t IntervalEnd(std::string_view pattern, size_t at) {
  size_t i = at + 1;
  size_t digits = 0;
  while (i < pattern.size() && (std::isdigit(static_cast<unsigned char>(pattern[i])) || pattern[i] == ',')) {
    if (pattern[i] != ',') ++digits;
    ++i;
  }
  return i < pattern.size() && pattern[i] == '}' && digits > 0 ? i + 1 : std::string_view::npos;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      char c = pattern_[at_];
      if (c == '\\') {
        ARGOSY_RETURN_IF_ERROR(Escape());
      } else if (c == '[') {
        ARGOSY_RETURN_IF_ERROR(Class());
      } else if (c == '(') {
        Open();
      } else if (c == ')') {
        out_ += c;
        ++at_;
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
      } else if (c == '{' && IntervalEnd(pattern_, at_) != std::string_view::npos) {
        Interval();
      } else if (c == '*' || c == '+' || c == '?') {
        out_ += c;
        ++at_;
      } else {
        atom_ = out_.size();
        size_t end = at_ + 1;
        while (end < pattern_.size() && (static_cast<unsigned char>(pattern_[end]) & 0xc0) == 0x80) ++end;
        out_ += pattern_.substr(at_, end - at_);
        at_ = end;
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Refuse(std::string_view what) {
    return InvalidArgument("the pattern {} uses {} at byte {}, which is not supported", pattern_, what, at_);
  }

  absl::Status Escape() {
    atom_ = out_.size();
    if (at_ + 1 >= pattern_.size()) return Refuse("a backslash at its end");
    char c = pattern_[at_ + 1];
    char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (auto members = MembersOf(lower)) {
      out_ += c == lower ? "[" : "[^";
      out_ += *members;
      out_ += ']';
      at_ += 2;
    } else if (lower == 'b') {  // a border of words is one by the same \w
      std::string_view negated = c == 'b' ? "!" : "=";
      out_ += fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWordMembers, negated, c == 'b' ? "=" : "!");
      at_ += 2;
    } else {
      CopyEscape();
    }
    return absl::OkStatus();
  }

  // One escape as it is, apart from \uHHHH.
  void CopyEscape() {
    char c = pattern_[at_ + 1];
    if (c == 'u' && at_ + 6 <= pattern_.size()) {
      out_ += "\\x{";
      out_ += pattern_.substr(at_ + 2, 4);
      out_ += '}';
      at_ += 6;
      return;
    }
    out_ += pattern_.substr(at_, 2);
    at_ += 2;
    bool braced = c == 'p' || c == 'P' || c == 'x' || c == 'k' || c == 'g';
    if (braced && at_ < pattern_.size() && pattern_[at_] == '{') {
      size_t end = pattern_.find('}', at_);
      end = end == std::string_view::npos ? pattern_.size() : end + 1;
      out_ += pattern_.substr(at_, end - at_);
      at_ = end;
    }
  }

  absl::Status Class() {
    atom_ = out_.size();
    out_ += '[';
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    for (bool first = true;; first = false) {
      if (at_ >= pattern_.size()) return Refuse("a character class without end");
      char c = pattern_[at_];
      if (c == ']' && !first) break;
      if (c == '[') {
        if (at_ + 1 >= pattern_.size() || pattern_[at_ + 1] != ':') return Refuse("a class inside a class");
        size_t end = pattern_.find(":]", at_ + 2);
        if (end == std::string_view::npos) return Refuse("a class inside a class");
        out_ += pattern_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (c == '&' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '&') {
        return Refuse("a class intersection (&&)");
      } else if (c == '\\' && at_ + 1 < pattern_.size()) {
        char e = pattern_[at_ + 1];
        if (auto members = MembersOf(e)) {
          out_ += *members;
          at_ += 2;
        } else if (e == 'W' || e == 'H') {
          return Refuse(fmt::format("\\{} inside a class", e));
        } else {
          CopyEscape();
        }
      } else {
        out_ += c;
        ++at_;
      }
    }
    out_ += ']';
    ++at_;
    return absl::OkStatus();
  }

  void Open() {
    groups_.push_back(out_.size());
    out_ += '(';
    ++at_;
    if (at_ >= pattern_.size() || pattern_[at_] != '?') return;
    out_ += '?';
    ++at_;
    // Ruby's flag m lets the dot match a line end: PCRE2's s.
    while (at_ < pattern_.size() && (std::isalpha(static_cast<unsigned char>(pattern_[at_])) || pattern_[at_] == '-')) {
      char c = pattern_[at_++];
      out_ += c == 'm' ? 's' : c;
    }
    if (at_ < pattern_.size() && pattern_[at_] == ')') {  // flags to the end of the enclosing group
      out_ += ')';
      ++at_;
      groups_.pop_back();
      return;
    }
    if (at_ < pattern_.size() && std::string_view(":=!><#").find(pattern_[at_]) != std::string_view::npos) {
      out_ += pattern_[at_++];
      if (out_.back() == '<' && at_ < pattern_.size() && (pattern_[at_] == '=' || pattern_[at_] == '!')) out_ += pattern_[at_++];
    }
  }

  void Interval() {
    size_t end = IntervalEnd(pattern_, at_);
    std::string interval(pattern_.substr(at_, end - at_));
    if (interval[1] == ',') interval.insert(1, "0");
    out_ += interval;
    at_ = end;
    // A plus here repeats the interval; to PCRE2 it would mean "possessive".
    if (at_ < pattern_.size() && pattern_[at_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;              // where the last atom begins in out_
  std::vector<size_t> groups_;   // where the open groups begin in out_
};

struct MatchContext {
  pcre2_match_context_8* context = pcre2_match_context_create(nullptr);
  MatchContext() {
    pcre2_set_match_limit(context, 0xffffffffu);
    pcre2_set_heap_limit(context, 4u << 20);  // KiB: 4 GiB
  }
  ~MatchContext() { pcre2_match_context_free(context); }
};

}  // namespace

absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern) { return Translator(pattern).Run(); }

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  ARGOSY_ASSIGN_OR_RETURN(std::string translated, ToPcre2Syntax(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return InvalidArgument("the pattern {} does not compile: {} at byte {} of {}", pattern,
                           reinterpret_cast<const char*>(message), offset, translated);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  return Regex(std::shared_ptr<pcre2_real_code_8>(code, &pcre2_code_free));
}

std::vector<std::pair<size_t, size_t>> Regex::FindAll(std::string_view subject) const {
  static thread_local MatchContext limits;
  std::vector<std::pair<size_t, size_t>> found;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  auto text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  size_t from = 0;
  std::optional<size_t> last_end;
  while (from <= subject.size()) {
    int rc = pcre2_match(code_.get(), text, subject.size(), from, PCRE2_NO_UTF_CHECK, match.get(), limits.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_.get(), text, subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(), limits.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      spdlog::error("a tokenizer pattern ran out of its limits on a text of {} bytes (PCRE2 error {}); the rest of the text is one piece",
                    subject.size(), rc);
      break;
    }
    PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    size_t begin = ends[0], end = ends[1];
    if (begin == end && last_end == end) {  // an empty match right behind the last one does not count
      ++from;
      while (from < subject.size() && (static_cast<unsigned char>(subject[from]) & 0xc0) == 0x80) ++from;
      continue;
    }
    found.emplace_back(begin, end);
    from = end;
    last_end = end;
  }
  return found;
}

}  // namespace argosy::train
