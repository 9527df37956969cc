#include "train/trainer/deal.h"

#include "tests/support/catch.h"
#include "train/data/batches.h"

namespace argosy::train {
namespace {

// A chunk of one step in which each rank computed its part of 1,000 tokens at its own speed.
std::vector<std::vector<StepReport>> Chunk(const std::vector<double>& parts, const std::vector<double>& tokens_per_second) {
  std::vector<std::vector<StepReport>> reports;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    double tokens = 1000 * parts[rank];
    reports.push_back({StepReport{.computed_tokens = static_cast<int64_t>(tokens),
                                  .times = {.forward = tokens / tokens_per_second[rank] / 3, .backward = tokens / tokens_per_second[rank] * 2 / 3}}});
  }
  return reports;
}

TEST_CASE("Deal: a rank of a third of the speed comes to have a third of the others' rows, and a slow step alone does not decide") {
  std::vector<double> parts(3, 1.0 / 3);
  const std::vector<double> speeds = {300, 100, 300};
  std::vector<double> once = DealBySpeed(Chunk(parts, speeds), {});
  CHECK(once[1] < 1.0 / 3);
  CHECK(once[1] > 1.0 / 7);
  for (int i = 0; i < 20; ++i) parts = DealBySpeed(Chunk(parts, speeds), parts);
  CHECK(parts[0] == Approx(3.0 / 7).epsilon(0.02));
  CHECK(parts[1] == Approx(1.0 / 7).epsilon(0.02));
  // Of 21 rows: 9, 3 and 9, so that all are done at once.
  std::vector<Pack> rows(21);
  CHECK(ShareOf(rows, 0, 3, parts).size() == 9);
  CHECK(ShareOf(rows, 1, 3, parts).size() == 3);
  CHECK(ShareOf(rows, 2, 3, parts).size() == 9);
}

TEST_CASE("Deal: a rank without rows keeps its part, none is left without any for good, and the parts add up to one") {
  std::vector<double> parts = {0.5, 0.0, 0.5};
  for (int i = 0; i < 10; ++i) {
    parts = DealBySpeed(Chunk(parts, {1000, 1, 1000}), parts);
    CHECK(parts[0] + parts[1] + parts[2] == Approx(1.0));
    CHECK(parts[1] > 0.01);
  }
  CHECK(DealBySpeed({{}, {}}, {}) == std::vector<double>{0.5, 0.5});
  // A table of another number of ranks says nothing.
  CHECK(DealBySpeed({{}, {}}, {0.2, 0.3, 0.5}) == std::vector<double>{0.5, 0.5});
}

}  // namespace
}  // namespace argosy::train
