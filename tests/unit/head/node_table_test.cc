#include "runtime/head/node_table.h"

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {


NodeDescription Node(uint64_t number, bool head = false) {
  NodeDescription node;
  node.id = NodeId::FromNumber(number);
  node.name = "n" + std::to_string(number);
  node.is_head_node = head;
  return node;
}

TEST_CASE("NodeTable: a node is lost after the time-out without a word, not when its stream breaks") {
  NodeTable nodes({.timeout = absl::Seconds(10)});
  auto admitted = nodes.Register(Node(1), kT0);
  CHECK(admitted.admission == NodeTable::Admission::kJoined);
  nodes.Disconnected(NodeId::FromNumber(1), admitted.epoch);
  CHECK(nodes.Expire(kT0 + absl::Seconds(9.9), 0).empty());
  CHECK(nodes.Find(NodeId::FromNumber(1))->alive);
  CHECK(nodes.Expire(kT0 + absl::Seconds(10), 77) == std::vector<NodeId>{NodeId::FromNumber(1)});
  CHECK(nodes.Find(NodeId::FromNumber(1))->lost_unix_ms == 77);
  CHECK(nodes.Expire(kT0 + absl::Seconds(20), 0).empty());
}

TEST_CASE("NodeTable: a node that was declared dead may not rejoin under its id") {
  NodeTable nodes({.timeout = absl::Seconds(10)});
  uint64_t epoch = nodes.Register(Node(1), kT0).epoch;
  nodes.Expire(kT0 + absl::Seconds(11), 0);
  CHECK(nodes.Register(Node(1), kT0 + absl::Seconds(12)).admission == NodeTable::Admission::kDeclaredDead);
  CHECK(!nodes.Heard(NodeId::FromNumber(1), epoch, kT0 + absl::Seconds(12)));
  CHECK(nodes.Register(Node(2), kT0 + absl::Seconds(12)).admission == NodeTable::Admission::kJoined);
}

TEST_CASE("NodeTable: words of an older registration are refused by epoch") {
  NodeTable nodes({});
  uint64_t first = nodes.Register(Node(1), kT0).epoch;
  auto second = nodes.Register(Node(1), kT0 + absl::Seconds(1));
  CHECK(second.admission == NodeTable::Admission::kRejoined);
  CHECK(second.epoch > first);
  CHECK(!nodes.Heard(NodeId::FromNumber(1), first, kT0 + absl::Seconds(2)));
  CHECK(nodes.Heard(NodeId::FromNumber(1), second.epoch, kT0 + absl::Seconds(2)));
  nodes.Disconnected(NodeId::FromNumber(1), first);
  CHECK(nodes.Find(NodeId::FromNumber(1))->connected);
}

TEST_CASE("NodeTable: after a restart a node has the whole time-out to rejoin, and the dead stay dead") {
  NodeTable nodes({.timeout = absl::Seconds(10)});
  nodes.Restore(Node(1), true, 0, "", kT0);
  nodes.Restore(Node(2), false, 5, "gone", kT0);
  CHECK(nodes.Register(Node(2), kT0).admission == NodeTable::Admission::kDeclaredDead);
  CHECK(nodes.Register(Node(1), kT0 + absl::Seconds(5)).admission == NodeTable::Admission::kRejoined);
  CHECK(nodes.Expire(kT0 + absl::Seconds(11), 0).empty());
}

TEST_CASE("NodeTable: only the newest lost nodes stay listed, and the head's node is found") {
  NodeTable nodes({.timeout = absl::Seconds(1), .lost_max = 1});
  nodes.Register(Node(1), kT0);
  nodes.Register(Node(2), kT0);
  CHECK(nodes.HeadNode() == nullptr);
  nodes.Expire(kT0 + absl::Seconds(2), 0);
  nodes.Register(Node(3, true), kT0 + absl::Seconds(2));
  CHECK(nodes.TrimLost() == std::vector<NodeId>{NodeId::FromNumber(1)});
  REQUIRE(nodes.HeadNode() != nullptr);
  CHECK(nodes.HeadNode()->description.name == "n3");
  CHECK(nodes.alive_count() == 1);
}

}  // namespace
}  // namespace argosy::head
