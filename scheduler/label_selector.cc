#include "scheduler/label_selector.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::scheduler {
namespace {

using Condition = LabelSelector::Condition;
using Kind = Condition::Kind;

constexpr size_t kLabelLengthMax = 253;
constexpr char kTermForms[] = "k=v, k!=v, k in (a,b), k not in (a,b) or k exists";
constexpr char kMapForms[] = "v, !v, in(a,b), !in(a,b), exists() or exists(!in(a,b))";

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// Trimmed parts between commas that are outside parentheses.
std::vector<std::string_view> SplitTerms(std::string_view text) {
  std::vector<std::string_view> terms;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth <= 0)) {
      terms.push_back(Trim(text.substr(begin, i - begin)));
      begin = i + 1;
    } else if (text[i] == '(') {
      ++depth;
    } else if (text[i] == ')') {
      --depth;
    }
  }
  return terms;
}

absl::Status CheckWord(std::string_view what, std::string_view word) {
  auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("-_./:").find(c) != std::string_view::npos;
  };
  if (!word.empty() && word.size() <= kLabelLengthMax && std::isalnum(static_cast<unsigned char>(word.front())) &&
      std::all_of(word.begin(), word.end(), is_plain)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "\"{}\" is not a label {}: want 1 to {} letters, digits or - _ . / :, beginning with a letter or digit", word,
      what, kLabelLengthMax);
}

absl::StatusOr<std::set<std::string>> ParseValues(std::string_view list) {
  std::set<std::string> values;
  for (std::string_view value : SplitTerms(list)) {
    ARGOSY_RETURN_IF_ERROR(CheckWord("value", value));
    values.insert(std::string(value));
  }
  return values;
}

std::string Join(const std::set<std::string>& values) {
  std::string text;
  for (const std::string& value : values) {
    if (!text.empty()) text += ',';
    text += value;
  }
  return text;
}

// When `text` is `opening` ... ")": what is between.
std::optional<std::string_view> Between(std::string_view text, std::string_view opening) {
  if (text.size() <= opening.size() || text.substr(0, opening.size()) != opening || text.back() != ')')
    return std::nullopt;
  return Trim(text.substr(opening.size(), text.size() - opening.size() - 1));
}

bool EndsWithWord(std::string_view text, std::string_view word) {
  return text.size() > word.size() && text.substr(text.size() - word.size()) == word &&
         std::isspace(static_cast<unsigned char>(text[text.size() - word.size() - 1]));
}

absl::StatusOr<std::pair<std::string, Condition>> ParseTerm(std::string_view term) {
  std::string_view key;
  Condition condition;
  if (!term.empty() && term.back() == ')') {
    size_t open = term.find('(');
    if (open == std::string_view::npos) return InvalidArgument("label selector term \"{}\": want {}", term, kTermForms);
    std::string_view head = Trim(term.substr(0, open));
    if (!EndsWithWord(head, "in")) return InvalidArgument("label selector term \"{}\": want {}", term, kTermForms);
    key = Trim(head.substr(0, head.size() - 2));
    condition.kind = Kind::kIn;
    if (EndsWithWord(key, "not")) {
      key = Trim(key.substr(0, key.size() - 3));
      condition.kind = Kind::kNotIn;
    }
    ARGOSY_ASSIGN_OR_RETURN(condition.values, ParseValues(term.substr(open + 1, term.size() - open - 2)));
  } else if (size_t at = term.find("!="); at != std::string_view::npos) {
    key = Trim(term.substr(0, at));
    condition.kind = Kind::kNotIn;
    std::string_view value = Trim(term.substr(at + 2));
    ARGOSY_RETURN_IF_ERROR(CheckWord("value", value));
    condition.values.insert(std::string(value));
  } else if (size_t equals = term.find('='); equals != std::string_view::npos) {
    key = Trim(term.substr(0, equals));
    condition.kind = Kind::kIn;
    std::string_view value = term.substr(equals + 1);
    if (!value.empty() && value.front() == '=') value.remove_prefix(1);
    value = Trim(value);
    ARGOSY_RETURN_IF_ERROR(CheckWord("value", value));
    condition.values.insert(std::string(value));
  } else if (EndsWithWord(term, "exists")) {
    key = Trim(term.substr(0, term.size() - 6));
    condition.kind = Kind::kExists;
  } else {
    return InvalidArgument("label selector term \"{}\": want {}", term, kTermForms);
  }
  ARGOSY_RETURN_IF_ERROR(CheckWord("key", key));
  return std::pair<std::string, Condition>(std::string(key), std::move(condition));
}

absl::StatusOr<Condition> ParseMapValue(std::string_view text) {
  Condition condition;
  if (auto list = Between(text, "in(")) {
    condition.kind = Kind::kIn;
    ARGOSY_ASSIGN_OR_RETURN(condition.values, ParseValues(*list));
  } else if (auto excluded = Between(text, "!in(")) {
    condition.kind = Kind::kNotIn;
    ARGOSY_ASSIGN_OR_RETURN(condition.values, ParseValues(*excluded));
  } else if (auto inside = Between(text, "exists(")) {
    condition.kind = Kind::kExists;
    if (auto but = Between(*inside, "!in(")) {
      ARGOSY_ASSIGN_OR_RETURN(condition.values, ParseValues(*but));
    } else if (!inside->empty()) {
      return InvalidArgument("\"{}\": want {}", text, kMapForms);
    }
  } else {
    condition.kind = Kind::kIn;
    std::string_view value = text;
    if (!value.empty() && value.front() == '!') {
      condition.kind = Kind::kNotIn;
      value = Trim(value.substr(1));
    }
    if (!CheckWord("value", value).ok()) return InvalidArgument("\"{}\": want {}", text, kMapForms);
    condition.values.insert(std::string(value));
  }
  return condition;
}

// What matches both.
Condition Both(const Condition& a, const Condition& b) {
  const bool a_in = a.kind == Kind::kIn, b_in = b.kind == Kind::kIn;
  Condition both;
  if (a_in && b_in) {
    both.kind = Kind::kIn;
    std::set_intersection(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                          std::inserter(both.values, both.values.end()));
  } else if (a_in || b_in) {
    const Condition& in = a_in ? a : b;
    const Condition& out = a_in ? b : a;
    both.kind = Kind::kIn;
    std::set_difference(in.values.begin(), in.values.end(), out.values.begin(), out.values.end(),
                        std::inserter(both.values, both.values.end()));
  } else {
    both.kind = a.kind == Kind::kExists || b.kind == Kind::kExists ? Kind::kExists : Kind::kNotIn;
    std::set_union(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                   std::inserter(both.values, both.values.end()));
  }
  return both;
}

}  // namespace

absl::StatusOr<Labels> ParseLabels(std::string_view text) {
  Labels labels;
  if (Trim(text).empty()) return labels;
  for (std::string_view term : SplitTerms(text)) {
    size_t at = term.find('=');
    if (at == std::string_view::npos)
      return InvalidArgument("label \"{}\": want key=value, several separated by commas", term);
    std::string key(Trim(term.substr(0, at)));
    std::string value(Trim(term.substr(at + 1)));
    ARGOSY_RETURN_IF_ERROR(CheckWord("key", key));
    ARGOSY_RETURN_IF_ERROR(CheckWord("value", value));
    auto [it, is_new] = labels.emplace(key, value);
    if (!is_new && it->second != value)
      return InvalidArgument("label {} is given twice: {} and {}", key, it->second, value);
  }
  return labels;
}

absl::Status CheckLabels(const Labels& labels) {
  for (const auto& [key, value] : labels) {
    ARGOSY_RETURN_IF_ERROR(CheckWord("key", key));
    ARGOSY_RETURN_IF_ERROR(CheckWord("value", value));
  }
  return absl::OkStatus();
}

std::string LabelsToString(const Labels& labels) {
  if (labels.empty()) return "none";
  std::string text;
  for (const auto& [key, value] : labels) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", key, value);
  return text;
}

bool LabelSelector::Condition::Matches(const std::string* value) const {
  switch (kind) {
    case Kind::kIn: return value != nullptr && values.contains(*value);
    case Kind::kNotIn: return value == nullptr || !values.contains(*value);
    case Kind::kExists: return value != nullptr && !values.contains(*value);
  }
  return false;
}

absl::Status LabelSelector::Add(const std::string& key, Condition condition) {
  auto [it, is_new] = conditions_.emplace(key, condition);
  if (is_new) return absl::OkStatus();
  Condition both = Both(it->second, condition);
  if (both.kind == Kind::kIn && both.values.empty()) {
    return InvalidArgument("label selector: no node can match both \"{}\" and \"{}\"",
                           ConditionToString(key, it->second), ConditionToString(key, condition));
  }
  it->second = std::move(both);
  return absl::OkStatus();
}

absl::StatusOr<LabelSelector> LabelSelector::Parse(std::string_view text) {
  LabelSelector selector;
  if (Trim(text).empty()) return selector;
  for (std::string_view term : SplitTerms(text)) {
    ARGOSY_ASSIGN_OR_RETURN(auto parsed, ParseTerm(term));
    ARGOSY_RETURN_IF_ERROR(selector.Add(parsed.first, std::move(parsed.second)));
  }
  return selector;
}

absl::StatusOr<LabelSelector> LabelSelector::FromMap(const std::map<std::string, std::string>& map) {
  LabelSelector selector;
  for (const auto& [key, text] : map) {
    ARGOSY_RETURN_IF_ERROR(CheckWord("key", key));
    absl::StatusOr<Condition> condition = ParseMapValue(Trim(text));
    if (!condition.ok()) return Annotate(condition.status(), fmt::format("label selector {}", key));
    ARGOSY_RETURN_IF_ERROR(selector.Add(key, *std::move(condition)));
  }
  return selector;
}

std::map<std::string, std::string> LabelSelector::ToMap() const {
  std::map<std::string, std::string> map;
  for (const auto& [key, condition] : conditions_) {
    const bool one = condition.values.size() == 1;
    std::string list = Join(condition.values);
    switch (condition.kind) {
      case Kind::kIn: map[key] = one ? list : fmt::format("in({})", list); break;
      case Kind::kNotIn: map[key] = one ? "!" + list : fmt::format("!in({})", list); break;
      case Kind::kExists: map[key] = list.empty() ? "exists()" : fmt::format("exists(!in({}))", list); break;
    }
  }
  return map;
}

std::string ConditionToString(const std::string& key, const Condition& condition) {
  const bool one = condition.values.size() == 1;
  std::string list = Join(condition.values);
  switch (condition.kind) {
    case Kind::kIn: return one ? fmt::format("{}={}", key, list) : fmt::format("{} in ({})", key, list);
    case Kind::kNotIn: return one ? fmt::format("{}!={}", key, list) : fmt::format("{} not in ({})", key, list);
    case Kind::kExists: break;
  }
  if (list.empty()) return fmt::format("{} exists", key);
  return fmt::format("{} exists, {}", key,
                     one ? fmt::format("{}!={}", key, list) : fmt::format("{} not in ({})", key, list));
}

std::string LabelSelector::ToString() const {
  std::string text;
  for (const auto& [key, condition] : conditions_) {
    if (!text.empty()) text += ", ";
    text += ConditionToString(key, condition);
  }
  return text;
}

bool LabelSelector::Matches(const Labels& labels) const {
  for (const auto& [key, condition] : conditions_) {
    auto it = labels.find(key);
    if (!condition.Matches(it == labels.end() ? nullptr : &it->second)) return false;
  }
  return true;
}

}  // namespace argosy::scheduler
