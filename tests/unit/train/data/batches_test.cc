#include "train/data/batches.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/base/prng.h"
#include "tests/support/catch.h"

namespace argosy::train {
namespace {

// Samples of the given lengths; token t of sample s is 100 * s + t.
SampleSet Samples(const std::vector<int32_t>& lengths, std::vector<int32_t> loss_from = {}) {
  SampleVectors set;
  for (size_t s = 0; s < lengths.size(); ++s) {
    std::vector<int32_t> ids(static_cast<size_t>(lengths[s]));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(100 * s));
    std::vector<uint8_t> is_target(ids.size(), 1);
    if (!loss_from.empty()) std::fill_n(is_target.begin(), loss_from[s], 0);
    set.Add(ids, is_target);
  }
  return std::move(set).Finish({.rows = static_cast<int64_t>(lengths.size())});
}

SampleSet RandomSamples(int64_t count, int32_t longest, uint64_t seed) {
  Prng prng(seed);
  std::vector<int32_t> lengths(static_cast<size_t>(count));
  for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(prng.Below(static_cast<uint64_t>(longest)));
  return Samples(lengths);
}

std::vector<int64_t> AllOf(BatchPlan& plan, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t step = 0; step < plan.StepsInEpoch(epoch); ++step) {
    for (const auto& micro_batch : plan.Step(epoch, step).micro_batches) {
      for (const Pack& pack : micro_batch) all.insert(all.end(), pack.begin(), pack.end());
    }
  }
  return all;
}

using Ints = std::vector<int32_t>;

}  // namespace

TEST_CASE("BatchPlan: an epoch holds every sample once, in packs that fit") {
  SampleSet samples = RandomSamples(20'000, 60, 3);
  auto plan = BatchPlan::Make(samples, {.ctx_len = 64, .rows_per_step = 48, .micro_batches = 3});
  REQUIRE(plan.ok());
  int64_t useful = 0, rows = 0;
  for (int64_t step = 0; step < plan->StepsInEpoch(0); ++step) {
    StepRows step_rows = plan->Step(0, step);
    REQUIRE(step_rows.micro_batches.size() == 3);
    rows += step_rows.Rows();
    if (step + 1 < plan->StepsInEpoch(0)) REQUIRE(step_rows.Rows() == 48);
    for (const auto& micro_batch : step_rows.micro_batches) {
      for (const Pack& pack : micro_batch) {
        int64_t length = 0;
        for (int64_t sample : pack) length += samples.Length(sample);
        REQUIRE(length <= 64);
        useful += length;
      }
    }
  }
  CHECK(rows == plan->RowsInEpoch(0));
  CHECK(static_cast<double>(useful) / static_cast<double>(rows * 64) > 0.97);
  std::vector<int64_t> all = AllOf(*plan, 0);
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(20'000);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
}

TEST_CASE("BatchPlan: is the same for the same seed, and another for another epoch or seed") {
  SampleSet samples = RandomSamples(1000, 30, 5);
  auto make = [&](uint64_t seed) { return *BatchPlan::Make(samples, {.ctx_len = 64, .rows_per_step = 8, .seed = seed}); };
  BatchPlan a = make(42), b = make(42), c = make(43);
  CHECK(AllOf(a, 1) == AllOf(b, 1));
  CHECK(AllOf(a, 0) != AllOf(a, 1));
  CHECK(AllOf(a, 0) != AllOf(c, 0));
  // A step does not depend on which were asked for before: what a resumed run relies on.
  BatchPlan resumed = make(42);
  CHECK(resumed.Step(3, 7).micro_batches == a.Step(3, 7).micro_batches);
  CHECK(a.TotalSteps(3) == a.StepsInEpoch(0) + a.StepsInEpoch(1) + a.StepsInEpoch(2));
}

TEST_CASE("BatchPlan: recipe parity is one sample a row in file order") {
  SampleSet samples = Samples({3, 5, 2, 4, 1});
  auto plan = BatchPlan::Make(samples, BatchPlanOptions::RecipeParity(8, 2, 1));
  REQUIRE(plan.ok());
  CHECK(plan->StepsInEpoch(0) == 3);
  CHECK(plan->Step(0, 0).micro_batches == std::vector<std::vector<Pack>>{{{0}, {1}}});
  CHECK(plan->Step(0, 2).micro_batches == std::vector<std::vector<Pack>>{{{4}}});
  CHECK(AllOf(*plan, 0) == AllOf(*plan, 1));
}

TEST_CASE("BatchPlan: a last step with fewer rows than micro-batches keeps their number") {
  SampleSet samples = Samples({1, 1, 1, 1, 1});
  auto plan = BatchPlan::Make(samples, {.ctx_len = 8, .rows_per_step = 4, .micro_batches = 4, .shuffle = false, .pack = false});
  REQUIRE(plan.ok());
  StepRows last = plan->Step(0, 1);
  CHECK(last.micro_batches.size() == 4);
  CHECK(last.Rows() == 1);
}

TEST_CASE("BatchPlan: what cannot be planned is refused") {
  CHECK_FALSE(BatchPlan::Make(Samples({}), {}).ok());
  CHECK_FALSE(BatchPlan::Make(Samples({9}), {.ctx_len = 8}).ok());
  CHECK_FALSE(BatchPlan::Make(Samples({1}), {.rows_per_step = 0}).ok());
  CHECK_FALSE(BatchPlan::Make(Samples({1}), {.micro_batches = 0}).ok());
}

TEST_CASE("PackFirstFitDecreasing: the longest first, each into the first pack with room") {
  std::vector<int32_t> lengths = {2, 7, 4, 5, 3, 1};
  std::vector<int64_t> samples = {0, 1, 2, 3, 4, 5};
  CHECK(PackFirstFitDecreasing(samples, lengths, 8) == std::vector<Pack>{{1, 5}, {3, 4}, {2, 0}});
}

TEST_CASE("PackFirstFitDecreasing: agrees with the plain search on random lengths") {
  Prng prng(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> lengths(200);
    for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(prng.Below(40));
    std::vector<int64_t> samples(200);
    std::iota(samples.begin(), samples.end(), 0);
    std::vector<int64_t> order = samples;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    std::vector<Pack> expected;
    std::vector<int32_t> room;
    for (int64_t sample : order) {
      size_t pack = 0;
      while (pack < room.size() && room[pack] < lengths[sample]) ++pack;
      if (pack == room.size()) {
        room.push_back(40);
        expected.emplace_back();
      }
      room[pack] -= lengths[sample];
      expected[pack].push_back(sample);
    }
    REQUIRE(PackFirstFitDecreasing(samples, lengths, 40) == expected);
  }
}

TEST_CASE("ShareOf: the ranks' parts are the whole in order, in proportion to their weights") {
  std::vector<Pack> rows;
  for (int64_t i = 0; i < 10; ++i) rows.push_back({i});
  for (std::vector<double> weights : std::vector<std::vector<double>>{{}, {1, 1, 1, 1}, {2, 1, 1, 0}, {0, 0, 0, 5}, {0, 0, 0, 0}, {0.1, 0.7, 0.1, 0.1}}) {
    std::vector<Pack> joined;
    for (int32_t rank = 0; rank < 4; ++rank) {
      auto part = ShareOf(rows, rank, 4, weights);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    CHECK(joined == rows);
  }
  CHECK(ShareOf(rows, 0, 4, std::vector<double>{2, 1, 1, 0}).size() == 5);
  CHECK(ShareOf(rows, 3, 4, std::vector<double>{2, 1, 1, 0}).empty());
  CHECK(ShareOf(std::span(rows).first(2), 0, 3).empty());
}

TEST_CASE("EvalBatches: every sample once, and as many batches on every rank") {
  std::set<int64_t> seen;
  for (int32_t rank = 0; rank < 3; ++rank) {
    auto batches = EvalBatches(10, 2, rank, 3);
    CHECK(batches.size() == 2);
    for (const auto& batch : batches) {
      CHECK(batch.size() <= 2);
      for (const Pack& pack : batch) CHECK(seen.insert(pack.at(0)).second);
    }
  }
  CHECK(seen.size() == 10);
  CHECK(EvalBatches(1, 4, 0, 3).size() == 1);
  CHECK(EvalBatches(1, 4, 0, 3)[0].empty());
}

TEST_CASE("BuildMicroBatch: packed samples have own positions and segments, and no target across their border") {
  SampleSet samples = Samples({3, 2, 4});
  std::vector<Pack> packs = {{0, 1}, {2}};
  MicroBatch batch = BuildMicroBatch(samples, packs, {.ctx_len = 64, .pad_id = 7});
  CHECK(batch.rows == 2);
  CHECK(batch.ctx == 8);
  CHECK(batch.input_ids == Ints{0, 1, 2, 100, 101, 7, 7, 7, 200, 201, 202, 203, 7, 7, 7, 7});
  CHECK(batch.targets == Ints{1, 2, -100, 101, -100, -100, -100, -100, 201, 202, 203, -100, -100, -100, -100, -100});
  CHECK(batch.positions == Ints{0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0});
  CHECK(batch.segments == Ints{0, 0, 0, 1, 1, -1, -1, -1, 0, 0, 0, 0, -1, -1, -1, -1});
  CHECK(batch.target_tokens == 6);
  CHECK(batch.useful_tokens == 9);
  CHECK(batch.UsefulShare() == Approx(9.0 / 16));
}

TEST_CASE("BuildMicroBatch: only tokens of the answer are targets where it is known") {
  SampleSet samples = Samples({5, 3}, {3, 3});
  MicroBatch batch = BuildMicroBatch(samples, std::vector<Pack>{{0, 1}}, {.ctx_len = 8});
  CHECK(batch.targets == Ints{-100, -100, 3, 4, -100, -100, -100, -100});
  CHECK(batch.target_tokens == 2);
}

TEST_CASE("BuildMicroBatch: recipe parity pads on its side, counts positions across and has every next token as target") {
  SampleSet samples = Samples({3}, {2});
  BatchLayout layout{.ctx_len = 6, .pad_id = 9, .padding_side = PaddingSide::kLeft, .recipe_parity = true};
  MicroBatch left = BuildMicroBatch(samples, std::vector<Pack>{{0}}, layout);
  CHECK(left.input_ids == Ints{9, 9, 9, 0, 1, 2});
  CHECK(left.targets == Ints{9, 9, 0, 1, 2, -100});
  CHECK(left.positions == Ints{0, 1, 2, 3, 4, 5});
  CHECK(left.segments == Ints{-1, -1, -1, 0, 0, 0});
  CHECK(left.target_tokens == 5);
  CHECK(left.useful_tokens == 3);
  layout.padding_side = PaddingSide::kRight;
  MicroBatch right = BuildMicroBatch(samples, std::vector<Pack>{{0}}, layout);
  CHECK(right.input_ids == Ints{0, 1, 2, 9, 9, 9});
  CHECK(right.targets == Ints{1, 2, 9, 9, 9, -100});
}

TEST_CASE("BuildMicroBatch: over an epoch every token is computed once and every target learned once, whatever the packing and the ranks") {
  Prng prng(11);
  SampleVectors vectors;
  int64_t targets = 0;
  for (int s = 0; s < 700; ++s) {
    std::vector<int32_t> ids(1 + prng.Below(50));
    std::vector<uint8_t> is_target(ids.size());
    for (size_t t = 0; t < ids.size(); ++t) {
      is_target[t] = prng.Below(3) == 0;
      targets += t > 0 && is_target[t];
    }
    vectors.Add(ids, is_target);
  }
  const SampleSet samples = std::move(vectors).Finish({.target_tokens = targets});
  for (bool pack : {true, false}) {
    for (int32_t ranks : {1, 3}) {
      auto plan = BatchPlan::Make(samples, {.ctx_len = 64, .rows_per_step = 24, .micro_batches = 2, .pack = pack});
      REQUIRE(plan.ok());
      int64_t useful = 0, learned = 0, cells = 0;
      for (int64_t step = 0; step < plan->StepsInEpoch(3); ++step) {
        for (const std::vector<Pack>& micro : plan->Step(3, step).micro_batches) {
          for (int32_t rank = 0; rank < ranks; ++rank) {
            MicroBatch batch = BuildMicroBatch(samples, ShareOf(micro, rank, ranks), {.ctx_len = 64});
            useful += batch.useful_tokens;
            learned += batch.target_tokens;
            cells += static_cast<int64_t>(batch.input_ids.size());
          }
        }
      }
      INFO("pack " << pack << ", " << ranks << " ranks");
      CHECK(useful == static_cast<int64_t>(samples.tokens.size()));
      CHECK(learned == samples.counts.target_tokens);
      CHECK(cells >= useful);
    }
  }
}

TEST_CASE("BuildMicroBatch: no rows make an empty batch") {
  MicroBatch batch = BuildMicroBatch(Samples({3}), {}, {});
  CHECK(batch.rows == 0);
  CHECK(batch.input_ids.empty());
  CHECK(batch.target_tokens == 0);
}

}  // namespace argosy::train
