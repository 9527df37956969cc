#include "runtime/head/node_questions.h"

#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::head {

uint64_t NodeQuestions::Begin(const std::set<NodeId>& nodes, absl::Time until, Done done) {
  uint64_t number = next_++;
  rounds_[number] = {nodes, until, {}, std::move(done)};
  FinishIfComplete(number);
  return number;
}

void NodeQuestions::Answer(NodeId node, uint64_t number, absl::StatusOr<std::string> answer) {
  auto at = rounds_.find(number);
  if (at == rounds_.end() || at->second.open.erase(node) == 0) return;
  at->second.answers.emplace(node, std::move(answer));
  FinishIfComplete(number);
}

void NodeQuestions::NodeGone(NodeId node, const std::string& why) {
  std::vector<uint64_t> asked;
  for (const auto& [number, round] : rounds_) {
    if (round.open.contains(node)) asked.push_back(number);
  }
  for (uint64_t number : asked) Answer(node, number, Unavailable("node {} did not answer: {}", node.Short(), why));
}

void NodeQuestions::Expire(absl::Time now) {
  std::vector<std::pair<NodeId, uint64_t>> late;
  for (const auto& [number, round] : rounds_) {
    if (round.until > now) continue;
    for (NodeId node : round.open) late.emplace_back(node, number);
  }
  for (auto [node, number] : late) {
    Answer(node, number, MakeStatus(absl::StatusCode::kDeadlineExceeded, "node {} did not answer in time", node.Short()));
  }
}

void NodeQuestions::FinishIfComplete(uint64_t number) {
  auto at = rounds_.find(number);
  if (!at->second.open.empty()) return;
  Round round = std::move(at->second);
  rounds_.erase(at);
  round.done(std::move(round.answers));
}

}  // namespace argosy::head
