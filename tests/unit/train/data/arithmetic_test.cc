#include <map>
#include <set>

#include "tests/support/catch.h"
#include "train/data/arithmetic.h"
#include "train/data/recipe_split.h"

namespace argosy::train {

TEST_CASE("MakeSums: every row is a right sum of fixed width, and none comes twice") {
  auto rows = MakeSums({.rows = 10'000});
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 10'000);
  std::set<std::string> questions;
  for (const QaRow& row : *rows) {
    REQUIRE(row.question.size() == 5);
    REQUIRE(row.question[2] == '+');
    REQUIRE(row.answer.size() == 3);
    REQUIRE(row.context == "");
    REQUIRE(std::stoi(row.question.substr(0, 2)) + std::stoi(row.question.substr(3)) == std::stoi(row.answer));
    questions.insert(row.question);
  }
  CHECK(questions.size() == 10'000);
}

TEST_CASE("MakeSums: both orders of the operands are one group") {
  auto rows = MakeSums({.rows = 100, .operand_bound = 10});
  REQUIRE(rows.ok());
  std::map<std::string, uint64_t> group;
  for (const QaRow& row : *rows) group[row.question] = row.group;
  CHECK(group.at("3+5") == group.at("5+3"));
  CHECK(group.at("3+5") != group.at("2+6"));
  std::set<uint64_t> groups;
  for (const auto& [question, id] : group) {
    CHECK(id != 0);
    groups.insert(id);
  }
  CHECK(groups.size() == 55);
}

TEST_CASE("MakeSums: the seed decides the order, and more rows than sums are refused") {
  auto a = MakeSums({.rows = 50, .seed = 1}), b = MakeSums({.rows = 50, .seed = 1}), c = MakeSums({.rows = 50, .seed = 2});
  REQUIRE((a.ok() && b.ok() && c.ok()));
  CHECK((*a)[7].question == (*b)[7].question);
  CHECK(((*a)[0].question != (*c)[0].question || (*a)[1].question != (*c)[1].question));
  CHECK(MakeSums({.rows = 101, .operand_bound = 10}).status().message() ==
        "101 rows cannot be had: operands below 10 make 100 different sums (and 2 rows are the least)");
  CHECK_FALSE(MakeSums({.rows = 10, .operand_bound = 1}).ok());
}

TEST_CASE("NumpyPermutation: is what numpy.random.default_rng(seed).permutation(n) gives") {
  CHECK(NumpyPermutation(42, 10) == std::vector<int64_t>{5, 6, 0, 7, 3, 2, 4, 9, 1, 8});
  auto seven = NumpyPermutation(7, 1000);
  CHECK(std::vector<int64_t>(seven.begin(), seven.begin() + 8) == std::vector<int64_t>{816, 923, 151, 900, 213, 100, 851, 503});
  auto large = NumpyPermutation((uint64_t{1} << 40) + 5, 100'000);
  CHECK(std::vector<int64_t>(large.begin(), large.begin() + 5) == std::vector<int64_t>{82642, 36657, 2527, 2685, 64017});
}

}  // namespace argosy::train
