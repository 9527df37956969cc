#pragma once

// Short spellings for the scheduler's tests.

#include <map>
#include <string>
#include <string_view>

#include "runtime/base/id.h"
#include "runtime/base/resources.h"
#include "runtime/base/status.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::scheduler::testing {

inline ResourceSet Res(const std::map<std::string, double>& amounts) {
  absl::StatusOr<ResourceSet> set = ResourceSet::FromMap(amounts);
  ARGOSY_CHECK(set.ok(), "{}", Message(set.status()));
  return *set;
}

inline LabelSelector Select(std::string_view text) {
  absl::StatusOr<LabelSelector> selector = LabelSelector::Parse(text);
  ARGOSY_CHECK(selector.ok(), "{}", Message(selector.status()));
  return *selector;
}

inline NodeId N(uint64_t number) { return NodeId::FromNumber(number); }
inline GroupId G(uint64_t number) { return GroupId::FromNumber(number); }
inline LeaseId L(uint64_t number) { return LeaseId::FromNumber(number); }
inline JobId J(uint64_t number) { return JobId::FromNumber(number); }

// Node `number`, named "n<number>".
inline void AddNode(ClusterView& view, uint64_t number, const std::map<std::string, double>& total,
                    const Labels& labels = {}) {
  absl::Status added = view.AddNode(N(number), fmt::format("n{}", number), Res(total), labels);
  ARGOSY_CHECK(added.ok(), "{}", Message(added));
}

inline Demand Needs(const std::map<std::string, double>& amounts, Strategy strategy = DefaultStrategy{},
                    std::string_view labels = "") {
  return {Res(amounts), Select(labels), strategy, {}};
}

inline absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

}  // namespace argosy::scheduler::testing
