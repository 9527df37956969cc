#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"

namespace argosy::head {

// Questions that were sent to nodes: gathers the answers of each round until all are there, a node is gone, or the time is up.
//
// Thread:   its owner's; `done` runs inside Answer, NodeGone or Expire, or inside Begin when nobody is asked.
// Failure:  a node that does not answer has UNAVAILABLE or DEADLINE_EXCEEDED as its answer; late and unasked answers are ignored.
class NodeQuestions {
 public:
  using Answers = std::map<NodeId, absl::StatusOr<std::string>>;
  using Done = std::function<void(Answers answers)>;

  // The number to send with the question.
  uint64_t Begin(const std::set<NodeId>& nodes, absl::Time until, Done done);
  void Answer(NodeId node, uint64_t number, absl::StatusOr<std::string> answer);
  void NodeGone(NodeId node, const std::string& why);
  void Expire(absl::Time now);
  size_t size() const { return rounds_.size(); }

 private:
  struct Round {
    std::set<NodeId> open;
    absl::Time until;
    Answers answers;
    Done done;
  };
  void FinishIfComplete(uint64_t number);

  std::map<uint64_t, Round> rounds_;
  uint64_t next_ = 1;
};

}  // namespace argosy::head
