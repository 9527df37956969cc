#pragma once

// Labels are string facts about a node; a selector is a conjunction of conditions on them.

#include <compare>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace argosy::scheduler {

using Labels = std::map<std::string, std::string>;

// "k=v,k2=v2" as the flag --labels spells it; empty text is no labels. Errors name the term and what would be accepted.
absl::StatusOr<Labels> ParseLabels(std::string_view text);
// Keys and values: letters, digits and - _ . / :, beginning with a letter or digit, 1 to 253 long.
absl::Status CheckLabels(const Labels& labels);
// "k=v, k2=v2", or "none".
std::string LabelsToString(const Labels& labels);

// Which labels a node must have. Kept as one condition a key, so that equal meanings compare equal: terms on the same
// key are merged.
//
//   k=v   k!=v   k in (a,b)   k not in (a,b)   k exists
//
// `!=` and `not in` also match nodes without the key.
//
// Thread:   a value.
// Failure:  terms that no label could satisfy together (k=a,k=b) are refused when parsed.
class LabelSelector {
 public:
  struct Condition {
    enum class Kind { kIn, kNotIn, kExists };   // kExists: has the key, with a value that is not in `values`
    Kind kind = Kind::kExists;
    std::set<std::string> values;

    bool Matches(const std::string* value) const;   // null: the node lacks the key
    friend bool operator==(const Condition&, const Condition&) = default;
    friend auto operator<=>(const Condition&, const Condition&) = default;
  };

  // The selector that matches everything.
  LabelSelector() = default;

  // Comma separated terms, spelled as above; empty text matches everything.
  static absl::StatusOr<LabelSelector> Parse(std::string_view text);
  // {"k":"v"}, {"k":"!v"}, {"k":"in(a,b)"}, {"k":"!in(a,b)"}; ours: {"k":"exists()"}, {"k":"exists(!in(a,b))"}.
  static absl::StatusOr<LabelSelector> FromMap(const std::map<std::string, std::string>& map);
  // The canonical map: FromMap(ToMap()) is equal to this.
  std::map<std::string, std::string> ToMap() const;
  // What Parse reads, e.g. "accelerator-type in (A100,H100), zone!=b"; empty when it matches everything.
  std::string ToString() const;

  bool IsEmpty() const { return conditions_.empty(); }
  bool Matches(const Labels& labels) const;
  const std::map<std::string, Condition>& conditions() const { return conditions_; }

  friend bool operator==(const LabelSelector&, const LabelSelector&) = default;
  friend auto operator<=>(const LabelSelector&, const LabelSelector&) = default;

 private:
  absl::Status Add(const std::string& key, Condition condition);

  std::map<std::string, Condition> conditions_;
};

// One condition in the spelling of Parse, e.g. "zone not in (a,b)".
std::string ConditionToString(const std::string& key, const LabelSelector::Condition& condition);

}  // namespace argosy::scheduler
