// What goes on in the cluster, of the head's core: prints of workers on their way to drivers, questions to nodes.

#include <algorithm>
#include <utility>

#include "runtime/base/codec.h"
#include "runtime/base/status.h"
#include "runtime/head/head_core.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

constexpr absl::Duration kFlushWait = absl::Seconds(1);
// What passes through the head of one job's prints, bytes: a burst (where PrintsFlow starts), and a second.
constexpr double kPrintsBurst = 8 << 20;
constexpr double kPrintsRate = 4 << 20;

}  // namespace

void HeadCore::AskNodes(const std::set<NodeId>& nodes, const NodeQuestion& question, absl::Duration wait, NodeQuestions::Done done) {
  uint64_t number = questions_.Begin(nodes, Now() + wait, std::move(done));
  for (NodeId node : nodes) Send(node, AskNode{number, question});
}

std::set<NodeId> HeadCore::ConnectedNodes() const {
  std::set<NodeId> nodes;
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive && node->connected) nodes.insert(node->description.id);
  }
  return nodes;
}

void HeadCore::On(NodeId node, NodeAnswer message) { questions_.Answer(node, message.number, std::move(message.body)); }

void HeadCore::On(NodeId node, CarriedPrints message) {
  auto driver = drivers_.find(message.job);
  // The driver has left (a detached actor prints), or does not want to see it: the node need not send more.
  if (driver == drivers_.end() || driver->second.quiet) return Send(node, MutePrints{message.job});
  PrintsFlow& flow = prints_flow_[message.job];
  flow.room = std::min(kPrintsBurst, flow.room + absl::ToDoubleSeconds(Now() - flow.at) * kPrintsRate);
  flow.at = Now();
  double size = static_cast<double>(message.body.size());
  if (size > flow.room) {
    flow.dropped += message.body.size();
    return;
  }
  flow.room -= size;
  if (flow.dropped > 0) {
    // The count goes with what is shown next.
    if (absl::StatusOr<JobPrints> prints = Decode<JobPrints>(message.body); prints.ok() && !prints->lines.empty()) {
      prints->lines.front().skipped += std::exchange(flow.dropped, 0);
      message.body = Encode(*prints);
    }
  }
  Send(driver->second.driver.node, std::move(message));
}

void HeadCore::On(NodeId node, FlushPrints message) {
  std::set<NodeId> others = ConnectedNodes();
  others.erase(node);
  // The answers of the other nodes come after what they had printed, and this one goes after that to the driver's node.
  AskNodes(others, FlushPrintsQuestion{message.job}, kFlushWait,
           [this, node, job = message.job](const NodeQuestions::Answers&) { Send(node, PrintsFlushed{job}); });
}

}  // namespace argosy::head
