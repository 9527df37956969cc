#include "runtime/head/node_questions.h"

#include <optional>

#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {

const NodeId kA = NodeId::FromNumber(1);
const NodeId kB = NodeId::FromNumber(2);

struct Fixture {
  NodeQuestions questions;
  std::optional<NodeQuestions::Answers> answers;
  uint64_t Begin(const std::set<NodeId>& nodes) {
    return questions.Begin(nodes, kT0, [this](NodeQuestions::Answers given) { answers = std::move(given); });
  }
};

}  // namespace

TEST_CASE("NodeQuestions: a round ends with the last answer; repeats and strangers change nothing") {
  Fixture f;
  uint64_t number = f.Begin({kA, kB});
  f.questions.Answer(kA, number, std::string("a"));
  f.questions.Answer(kA, number, std::string("again"));
  f.questions.Answer(NodeId::FromNumber(3), number, std::string("stranger"));
  f.questions.Answer(kB, number + 1, std::string("another round"));
  CHECK_FALSE(f.answers.has_value());
  f.questions.Answer(kB, number, InvalidArgument("no"));
  REQUIRE(f.answers.has_value());
  CHECK(*f.answers->at(kA) == "a");
  CHECK(Message(f.answers->at(kB).status()) == "no");
  CHECK(f.questions.size() == 0);
}

TEST_CASE("NodeQuestions: nodes that are gone or late have an error for an answer") {
  Fixture f;
  uint64_t number = f.Begin({kA, kB});
  f.questions.NodeGone(kA, "it is lost");
  f.questions.Expire(kT0 - absl::Seconds(1));
  CHECK_FALSE(f.answers.has_value());
  f.questions.Expire(kT0);
  REQUIRE(f.answers.has_value());
  CHECK(absl::IsUnavailable(f.answers->at(kA).status()));
  CHECK(absl::IsDeadlineExceeded(f.answers->at(kB).status()));
  f.answers.reset();
  f.questions.Answer(kB, number, std::string("late"));
  CHECK_FALSE(f.answers.has_value());
}

TEST_CASE("NodeQuestions: asking nobody is answered at once") {
  Fixture f;
  f.Begin({});
  REQUIRE(f.answers.has_value());
  CHECK(f.answers->empty());
}

}  // namespace argosy::head
