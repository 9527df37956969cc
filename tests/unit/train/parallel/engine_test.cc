#include "train/parallel/engine.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/train/model/tiny_assets.h"
#include "train/checkpoint/safetensors.h"
#include "train/collective/thread_transport.h"
#include "train/model/model.h"
#include "train/parallel/schedule.h"

namespace argosy::train {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

template <class T>
T Value(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return std::move(value).value();
}

std::vector<absl::Status> RunRanks(int size, const std::function<absl::Status(Group&)>& body) {
  auto transports = MakeThreadTransports(size);
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SetComputeThreads(1);
      auto group = MakeMessageGroup(std::move(transports[rank]), {.deadline = absl::Seconds(30)});
      statuses[rank] = body(*group);
      if (!statuses[rank].ok()) group->Abort(Message(statuses[rank]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void CheckAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    CHECK(status.ok());
  }
}

// Everything a run leaves behind, comparable bit for bit.
struct Run {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<std::byte>> weights;
};

// The parts of step `step`: `rows` rows in all, dealt in order to ranks and micro-batches.
MicroBatch PartOf(int64_t vocab, int step, int micro, int rank, int size, int rows) {
  Rows mine;
  for (int row = rank * rows / size; row < (rank + 1) * rows / size; ++row) {
    Prng prng(static_cast<uint64_t>(step) * 1000 + micro * 100 + row);
    std::vector<int32_t>& ids = mine.emplace_back(12);
    for (int32_t& id : ids) id = static_cast<int32_t>(prng.Below(vocab));
  }
  if (mine.empty()) return {};
  return BatchOf(mine, mine);
}

struct Plan {
  int ranks = 3;
  int steps = 4;
  int micro_batches = 1;
  int rows = 6;  // of a micro-batch, over all ranks
  bool tied = false;
  EngineOptions engine;
};

ModelConfig SmallConfig(bool tied) {
  return Value(ModelConfig::Make({.vocab_size = 97, .hidden_size = 32, .intermediate_size = 48, .num_hidden_layers = 3,
                                  .num_attention_heads = 4, .num_key_value_heads = 2, .max_position_embeddings = 64,
                                  .tie_word_embeddings = tied}));
}

absl::Status Pull(Engine& engine, Group& group, DType dtype, Run& run) {
  ARGOSY_RETURN_IF_ERROR(engine.Flush());
  // Rank 0 gets every rank's extents, as a checkpoint's writer does.
  std::vector<std::byte> own;
  for (const Extent& extent : engine.ExtentsOf(group.rank())) {
    std::vector<std::byte> part(extent.count * SizeOf(dtype));
    ARGOSY_RETURN_IF_ERROR(engine.ReadWeights(extent, part));
    own.insert(own.end(), part.begin(), part.end());
  }
  std::vector<std::vector<std::byte>> all;
  ARGOSY_RETURN_IF_ERROR(group.Gather(0, own, &all, {}).Wait());
  if (group.rank() != 0) return absl::OkStatus();
  for (const UnitLayout& unit : engine.layout().units) {
    for (const TensorRange& range : unit.ranges) run.weights[range.name].resize(range.elements * SizeOf(dtype));
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    size_t at = 0;
    for (const Extent& extent : engine.ExtentsOf(rank)) {
      size_t bytes = extent.count * SizeOf(dtype);
      std::memcpy(run.weights[extent.tensor].data() + extent.begin * SizeOf(dtype), all[rank].data() + at, bytes);
      at += bytes;
    }
    if (at != all[rank].size()) return Internal("rank {} sent {} bytes for {}", rank, all[rank].size(), at);
  }
  return absl::OkStatus();
}

Run Train(const Plan& plan) {
  Run run;
  ModelConfig config = SmallConfig(plan.tied);
  CheckAllOk(RunRanks(plan.ranks, [&](Group& group) -> absl::Status {
    auto source = RandomWeights(config, 5);
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *source, &group, plan.engine));
    for (int step = 0; step < plan.steps; ++step) {
      std::vector<MicroBatch> parts;
      for (int micro = 0; micro < plan.micro_batches; ++micro) {
        parts.push_back(PartOf(config.vocab_size, step, micro, group.rank(), group.size(), plan.rows));
      }
      ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(parts, 0.01 / (step + 1)));
      if (group.rank() == 0) run.steps.push_back(result);
    }
    return Pull(*engine, group, plan.engine.dtype, run);
  }));
  return run;
}

bool SameBits(const Run& a, const Run& b) {
  if (a.steps.size() != b.steps.size()) return false;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    if (a.steps[i].loss != b.steps[i].loss || a.steps[i].grad_norm != b.steps[i].grad_norm) return false;
  }
  return a.weights == b.weights && !a.weights.empty();
}

double LossGap(const Run& a, const Run& b) {
  double gap = 0;
  for (size_t i = 0; i < a.steps.size(); ++i) gap = std::max(gap, std::abs(a.steps[i].loss / b.steps[i].loss - 1));
  return gap;
}

TEST_CASE("Schedule: stage 3 gathers each unit before its use and releases it after, with the tied matrix kept for the head") {
  std::string text = Print(TrainSchedule({.units = 4, .stage = 3, .micro_batches = 1, .tied = true}),
                           {"embedding", "layer 0", "layer 1", "head"});
  CHECK(text ==
        "step      micro 0  embedding\n"
        "gather    micro 0  embedding\n"
        "step      micro 0  layer 0\n"
        "gather    micro 0  layer 0\n"
        "forward   micro 0  embedding\n"
        "release   micro 0  embedding\n"
        "step      micro 0  layer 1\n"
        "gather    micro 0  layer 1\n"
        "forward   micro 0  layer 0\n"
        "release   micro 0  layer 0\n"
        "step      micro 0  head\n"
        "gather    micro 0  head\n"
        "gather    micro 0  embedding\n"
        "forward   micro 0  layer 1\n"
        "loss      micro 0  head\n"
        "release   micro 0  head\n"
        "release   micro 0  embedding\n"
        "reduce    micro 0  head\n"
        "gather    micro 0  layer 0\n"
        "backward  micro 0  layer 1\n"
        "release   micro 0  layer 1\n"
        "reduce    micro 0  layer 1\n"
        "backward  micro 0  layer 0\n"
        "release   micro 0  layer 0\n"
        "reduce    micro 0  layer 0\n"
        "backward  micro 0  embedding\n"
        "reduce    micro 0  embedding\n"
        "commit\n");
}

TEST_CASE("Schedule: every stage uses only weights that are there, reduces each unit, and leaves nothing gathered") {
  for (int stage : {0, 1, 2, 3}) {
    for (bool tied : {false, true}) {
      for (int micro_batches : {1, 3}) {
        for (int units : {3, 4, 9}) {
          INFO(stage << " " << tied << " " << micro_batches << " " << units);
          std::vector<bool> here(units, stage < 3);
          std::vector<int> reduces(units, 0), backwards(units, 0), steps(units, 0);
          int most = 0;
          auto schedule = TrainSchedule({.units = units, .stage = stage, .micro_batches = micro_batches, .tied = tied});
          for (const Line& line : schedule) {
            int unit = line.unit;
            switch (line.action) {
              case Action::kStep: ++steps[unit]; break;
              case Action::kGather: here[unit] = true; break;
              case Action::kRelease:
                CHECK(here[unit]);
                here[unit] = false;
                break;
              case Action::kForward: CHECK(here[unit]); break;
              case Action::kLoss:
                CHECK(here[unit]);
                if (tied) CHECK(here[0]);
                ++backwards[unit];
                break;
              case Action::kBackward:
                if (unit > 0) CHECK(here[unit]);
                ++backwards[unit];
                break;
              case Action::kReduce:
                CHECK(backwards[unit] == line.micro_batch + 1);
                ++reduces[unit];
                break;
              case Action::kCommit: break;
            }
            if (stage == 3) most = std::max(most, static_cast<int>(std::count(here.begin(), here.end(), true)));
          }
          for (int unit = 0; unit < units; ++unit) {
            CHECK(steps[unit] == 1);
            CHECK(backwards[unit] == micro_batches);
            CHECK(reduces[unit] == (stage >= 2 ? micro_batches : 1));
            CHECK(here[unit] == (stage < 3));
          }
          CHECK(most <= 3);
          CHECK(schedule.back().action == Action::kCommit);
        }
      }
    }
  }
}

TEST_CASE("Engine: six AdamW steps with accumulation, clipping and warm-up are those of transformers and torch") {
  for (const std::string& name : TinyVariants()) {
    std::optional<std::string> directory = TinyCheckpoint(name);
    if (!directory) return;
    INFO(name);
    nlohmann::json expected = ReadJson(*directory + "/expected.json");
    ModelConfig config = Value(ModelConfig::Load(*directory));
    HfWeights weights = Value(HfWeights::Open(*directory));
    auto group = MakeLoopbackGroup();
    EngineOptions options{.weight_decay = 0.01, .decay_vectors = false, .max_grad_norm = 1.0};
    auto engine = Value(Engine::Create(config, *WeightsFromHf(weights), group.get(), options));
    std::vector<std::vector<Rows>> batches = expected["train"]["batches"];
    const auto& log = expected["train"]["log"];
    double loss_gap = 0, norm_gap = 0;
    for (size_t step = 0; step < log.size(); ++step) {
      std::vector<MicroBatch> micro;
      for (const Rows& rows : batches[step % 3]) micro.push_back(BatchOf(rows, rows));
      StepResult result = Value(engine->TrainStep(micro, log[step]["lr"].get<double>()));
      std::vector<double> losses = log[step]["micro_losses"];
      double want = (losses[0] + losses[1]) / 2, want_norm = log[step]["grad_norm"];
      INFO("step " << step << ": " << result.loss << " for " << want << ", norm " << result.grad_norm << " for " << want_norm);
      CHECK(result.loss == Approx(want).epsilon(1e-5));
      CHECK(result.grad_norm == Approx(want_norm).epsilon(1e-4));
      CHECK(result.target_tokens == 2 * 2 * 31);
      loss_gap = std::max(loss_gap, std::abs(result.loss / want - 1));
      norm_gap = std::max(norm_gap, std::abs(result.grad_norm / want_norm - 1));
    }
    REQUIRE(engine->Flush().ok());
    SafetensorsFile trained = Value(SafetensorsFile::Open(*directory + "/expected.safetensors"));
    double weight_gap = 0;
    for (const Extent& extent : engine->ExtentsOf(0)) {
      std::vector<float> got(extent.count), want(extent.count);
      REQUIRE(engine->ReadWeights(extent, std::as_writable_bytes(std::span(got))).ok());
      const StoredTensor* stored = trained.Find("trained." + extent.tensor);
      REQUIRE(stored != nullptr);
      REQUIRE(stored->elements == extent.count);
      REQUIRE(trained.ReadBytes(*stored, 0, std::as_writable_bytes(std::span(want))).ok());
      // Where a gradient is nearly zero, Adam divides noise by noise: the mean tells, the largest gap is bounded by the steps.
      double sum = 0;
      for (size_t i = 0; i < got.size(); ++i) sum += std::abs(got[i] - want[i]);
      weight_gap = std::max(weight_gap, sum / static_cast<double>(got.size()));
    }
    CHECK(weight_gap < 1e-6);
    std::cout << fmt::format("{:18} loss {:.1e}, norm {:.1e}, weights {:.1e} (mean absolute)\n", name, loss_gap, norm_gap, weight_gap);
  }
}

TEST_CASE("Engine: ZeRO-2 and ZeRO-3 give equal bits on 3 ranks, in fp32 and bf16, tied or not, with accumulation") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool tied : {false, true}) {
      INFO(TorchName(dtype) << " tied " << tied);
      Plan plan{.micro_batches = 2, .tied = tied, .engine = {.zero_stage = 2, .dtype = dtype, .weight_decay = 0.1}};
      Run two = Train(plan);
      plan.engine.zero_stage = 3;
      Run three = Train(plan);
      CHECK(SameBits(two, three));
      CHECK(two.steps.front().loss == Approx(std::log(97)).epsilon(0.02));
    }
  }
}

TEST_CASE("Engine: without accumulation all four stages give equal bits") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool tied : {false, true}) {
      Plan plan{.tied = tied, .engine = {.zero_stage = 0, .dtype = dtype, .weight_decay = 0.1}};
      Run zero = Train(plan);
      for (int stage : {1, 2, 3}) {
        INFO(TorchName(dtype) << " tied " << tied << " stage " << stage);
        plan.engine.zero_stage = stage;
        CHECK(SameBits(zero, Train(plan)));
      }
    }
  }
}

TEST_CASE("Engine: keeping activations gives the bits of computing them again") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int stage : {1, 2, 3}) {
      Plan plan{.micro_batches = 2, .engine = {.zero_stage = stage, .dtype = dtype}};
      Run again = Train(plan);
      for (Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
        INFO(TorchName(dtype) << " stage " << stage << " recompute " << RecomputeName(recompute));
        plan.engine.recompute = recompute;
        CHECK(SameBits(again, Train(plan)));
      }
    }
  }
}

TEST_CASE("Engine: alone, whose gradients are of the computation's type, a rank learns the bits that it learns beside one without rows") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool tied : {false, true}) {
      for (int micro_batches : {1, 2}) {
        // In fp32 the product of a second micro-batch is added to the first's as it is made, and rounded otherwise than two whole ones.
        if (dtype == DType::kF32 && micro_batches == 2) continue;
        // Without clipping: norms are summed share by share.
        Plan plan{.ranks = 2, .micro_batches = micro_batches, .rows = 1, .tied = tied, .engine = {.zero_stage = 2, .dtype = dtype, .max_grad_norm = 0}};
        const auto beside = Train(plan).weights;
        plan.ranks = 1;
        for (int stage : {0, 1, 2, 3}) {
          INFO(TorchName(dtype) << " tied " << tied << " stage " << stage << ", " << micro_batches << " micro-batches");
          plan.engine.zero_stage = stage;
          CHECK(Train(plan).weights == beside);
        }
      }
    }
  }
}

// A training state as files hold it: every part of every tensor, whole.
struct Saved {
  OptimizerStart start;
  std::map<TensorPart, std::map<std::string, std::vector<float>>> parts;
};

class SavedSource final : public WeightSource {
 public:
  explicit SavedSource(const std::map<std::string, std::vector<float>>& tensors) : tensors_(tensors) {}
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    std::copy_n(tensors_.at(tensor.name).begin() + begin, out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const std::map<std::string, std::vector<float>>& tensors_;
};

// Steps [begin, end) on ranks of their own, from a state or from new weights; what is left behind, and the state to go on from.
Run TrainPart(const Plan& plan, int begin, int end, const Saved* from, Saved* saved) {
  Run run;
  ModelConfig config = SmallConfig(plan.tied);
  std::mutex mutex;
  CheckAllOk(RunRanks(plan.ranks, [&](Group& group) -> absl::Status {
    std::unique_ptr<WeightSource> source = RandomWeights(config, 5), moment1, moment2;
    OptimizerStart start;
    if (from != nullptr) {
      source = std::make_unique<SavedSource>(from->parts.at(TensorPart::kMaster));
      moment1 = std::make_unique<SavedSource>(from->parts.at(TensorPart::kMoment1));
      moment2 = std::make_unique<SavedSource>(from->parts.at(TensorPart::kMoment2));
      start = {from->start.steps, from->start.skipped, moment1.get(), moment2.get()};
    }
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *source, &group, plan.engine, from != nullptr ? &start : nullptr));
    for (int step = begin; step < end; ++step) {
      std::vector<MicroBatch> parts;
      for (int micro = 0; micro < plan.micro_batches; ++micro) {
        parts.push_back(PartOf(config.vocab_size, step, micro, group.rank(), group.size(), plan.rows));
      }
      ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(parts, 0.01 / (step + 1)));
      if (group.rank() == 0) run.steps.push_back(result);
    }
    if (saved != nullptr) {
      ARGOSY_RETURN_IF_ERROR(engine->Flush());
      std::lock_guard lock(mutex);
      saved->start = {.steps = engine->steps(), .skipped = engine->skipped()};
      for (TensorPart part : {TensorPart::kMaster, TensorPart::kMoment1, TensorPart::kMoment2}) {
        for (const Extent& extent : engine->ExtentsOf(group.rank())) {
          std::vector<float>& whole = saved->parts[part][extent.tensor];
          if (whole.empty()) {
            for (const UnitLayout& unit : engine->layout().units) {
              for (const TensorRange& range : unit.ranges) {
                if (range.name == extent.tensor) whole.resize(range.elements);
              }
            }
          }
          ARGOSY_RETURN_IF_ERROR(engine->ReadState(part, extent, std::span(whole).subspan(extent.begin, extent.count)));
        }
      }
    }
    return Pull(*engine, group, plan.engine.dtype, run);
  }));
  return run;
}

TEST_CASE("Engine: a run that goes on from a saved state has the bits of one that never stopped, in every stage and precision") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int stage : {0, 1, 2, 3}) {
      INFO(stage << " " << TorchName(dtype));
      Plan plan{.tied = stage % 2 == 1, .engine = {.zero_stage = stage, .dtype = dtype, .weight_decay = 0.1, .max_grad_norm = 0.5}};
      Run whole = TrainPart(plan, 0, 6, nullptr, nullptr);
      Saved saved;
      Run first = TrainPart(plan, 0, 3, nullptr, &saved);
      CHECK(saved.start.steps == 3);
      Run second = TrainPart(plan, 3, 6, &saved, nullptr);
      first.steps.insert(first.steps.end(), second.steps.begin(), second.steps.end());
      first.weights = second.weights;
      CHECK(SameBits(first, whole));
    }
  }
}

TEST_CASE("Engine: moments in bf16 give equal bits in every stage, and a run that goes on has the bits of one that never stopped") {
  Plan plan{.engine = {.zero_stage = 0, .dtype = DType::kBF16, .moments = DType::kBF16, .weight_decay = 0.1}};
  Run whole = TrainPart(plan, 0, 6, nullptr, nullptr);
  for (int stage : {1, 2, 3}) {
    INFO("stage " << stage);
    plan.engine.zero_stage = stage;
    Saved saved;
    Run first = TrainPart(plan, 0, 3, nullptr, &saved);
    Run second = TrainPart(plan, 3, 6, &saved, nullptr);
    first.steps.insert(first.steps.end(), second.steps.begin(), second.steps.end());
    first.weights = second.weights;
    CHECK(SameBits(first, whole));
  }
  // They learn what moments in fp32 learn, by other bits.
  plan.engine.moments = DType::kF32;
  Run wide = TrainPart(plan, 0, 6, nullptr, nullptr);
  CHECK_FALSE(wide.weights == whole.weights);
  CHECK(LossGap(wide, whole) <= 2e-3);
  plan.engine.dtype = DType::kF32;
  plan.engine.moments = DType::kBF16;
  auto source = RandomWeights(SmallConfig(false), 5);
  auto group = MakeLoopbackGroup();
  CHECK(Engine::Create(SmallConfig(false), *source, group.get(), plan.engine).status().message().find("trained in bfloat16") != std::string_view::npos);
}

TEST_CASE("Engine: an optimizer's state in a file gives the bits of one in memory, in every stage and precision, and goes on") {
  testing::TemporaryFolder folder;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int stage : {0, 1, 2, 3}) {
      INFO(stage << " " << TorchName(dtype));
      Plan plan{.engine = {.zero_stage = stage, .dtype = dtype, .moments = dtype, .weight_decay = 0.1}};
      Run memory = TrainPart(plan, 0, 6, nullptr, nullptr);
      plan.engine.offload = folder.path();
      Saved saved;
      Run first = TrainPart(plan, 0, 3, nullptr, &saved);
      Run second = TrainPart(plan, 3, 6, &saved, nullptr);
      first.steps.insert(first.steps.end(), second.steps.begin(), second.steps.end());
      first.weights = second.weights;
      CHECK(SameBits(first, memory));
    }
  }
  // What is in the file is no longer in memory.
  ModelConfig config = SmallConfig(false);
  auto source = RandomWeights(config, 5);
  auto group = MakeLoopbackGroup();
  auto here = Value(Engine::Create(config, *source, group.get(), {.dtype = DType::kBF16}));
  auto there = Value(Engine::Create(config, *source, group.get(), {.dtype = DType::kBF16, .offload = folder.path()}));
  CHECK(here->OffloadedBytes() == 0);
  CHECK(there->OffloadedBytes() >= 10 * config.ParameterCount());
  CHECK(here->StateBytes() - there->StateBytes() == there->OffloadedBytes());
  CHECK(Engine::Create(config, *source, group.get(), {.offload = folder / "none"}).status().message().find("cannot be kept in") != std::string_view::npos);
}

TEST_CASE("Engine: a saved state loads on other numbers of ranks and in other stages, and the same steps follow") {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    INFO(TorchName(dtype));
    Plan plan{.ranks = 1, .engine = {.zero_stage = 0, .dtype = dtype, .weight_decay = 0.1}};
    Run whole = TrainPart(plan, 0, 9, nullptr, nullptr);
    // 2 ranks in stage 2, then 3 in stage 3, then 1 in stage 1.
    Run pieces;
    Saved saved;
    const std::pair<int, int> parts[] = {{2, 2}, {3, 3}, {1, 1}};
    for (int i = 0; i < 3; ++i) {
      plan.ranks = parts[i].first;
      plan.engine.zero_stage = parts[i].second;
      Saved next;
      Run part = TrainPart(plan, 3 * i, 3 * i + 3, i > 0 ? &saved : nullptr, &next);
      pieces.steps.insert(pieces.steps.end(), part.steps.begin(), part.steps.end());
      saved = std::move(next);
    }
    CHECK(saved.start.steps == 9);
    REQUIRE(pieces.steps.size() == whole.steps.size());
    CHECK(LossGap(pieces, whole) <= (dtype == DType::kF32 ? 2e-6 : 2e-3));

    // Saving what was loaded gives the same bits, whoever holds which share.
    Saved again;
    plan.ranks = 3;
    plan.engine.zero_stage = 3;
    TrainPart(plan, 0, 0, &saved, &again);
    CHECK(again.parts == saved.parts);
  }
}

TEST_CASE("Engine: 1 and 3 ranks agree, also when a rank has no rows") {
  for (bool tied : {false, true}) {
    for (int rows : {6, 2}) {
      Plan plan{.ranks = 1, .steps = 10, .micro_batches = 2, .rows = rows, .tied = tied, .engine = {.zero_stage = 3}};
      Run one = Train(plan);
      plan.ranks = 3;
      Run three = Train(plan);
      double gap = LossGap(one, three);
      INFO("tied " << tied << " rows " << rows << " gap " << gap);
      CHECK(gap < 2e-6);
      plan.engine.zero_stage = 0;
      CHECK(LossGap(one, Train(plan)) < 2e-6);
      plan.engine.dtype = DType::kBF16;
      Run three_bf16 = Train(plan);
      plan.ranks = 1;
      double gap_bf16 = LossGap(Train(plan), three_bf16);
      INFO("bf16 gap " << gap_bf16);
      CHECK(gap_bf16 < 2e-3);
      std::cout << fmt::format("1 and 3 ranks, tied {}, {} rows: fp32 {:.1e}, bf16 {:.1e}\n", tied, rows, gap, gap_bf16);
    }
  }
}

TEST_CASE("Engine: training learns, and Evaluate sees the step that is due") {
  ModelConfig config = SmallConfig(false);
  auto group = MakeLoopbackGroup();
  auto engine = Value(Engine::Create(config, *RandomWeights(config, 1), group.get(), {.zero_stage = 3, .dtype = DType::kBF16}));
  std::vector<MicroBatch> batch = {PartOf(97, 0, 0, 0, 1, 4)};
  EvaluateResult before = Value(engine->Evaluate(batch[0]));
  StepResult first = Value(engine->TrainStep(batch, 0.01));
  CHECK(first.loss == Approx(before.nll / static_cast<double>(before.target_tokens)).epsilon(1e-9));
  EvaluateResult after = Value(engine->Evaluate(batch[0]));
  CHECK(after.nll < before.nll * 0.98);
  StepResult second = Value(engine->TrainStep(batch, 0.01));
  CHECK(second.loss == Approx(after.nll / static_cast<double>(after.target_tokens)).epsilon(1e-9));
  for (int i = 0; i < 60; ++i) Value(engine->TrainStep(batch, 0.01));
  EvaluateResult last = Value(engine->Evaluate(batch[0]));
  CHECK(last.nll < before.nll * 0.2);
  CHECK(engine->steps() == 62);
}

TEST_CASE("Engine: weights read after Flush are what Model computes the same loss with") {
  ModelConfig config = SmallConfig(true);
  auto group = MakeLoopbackGroup();
  auto engine = Value(Engine::Create(config, *RandomWeights(config, 1), group.get(), {}));
  std::vector<MicroBatch> batch = {PartOf(97, 0, 0, 0, 1, 4)};
  Value(engine->TrainStep(batch, 0.01));
  Extent norm{.tensor = "model.norm.weight", .begin = 0, .count = 32};
  std::vector<float> values(32);
  CHECK(!engine->ReadWeights(norm, std::as_writable_bytes(std::span(values))).ok());
  REQUIRE(engine->Flush().ok());
  CHECK(engine->ReadWeights(norm, std::as_writable_bytes(std::span(values))).ok());

  class FromEngine final : public WeightSource {
   public:
    explicit FromEngine(const Engine& engine) : engine_(engine) {}
    absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
      return engine_.ReadWeights({tensor.name, begin, static_cast<int64_t>(out.size())}, std::as_writable_bytes(out));
    }
    const Engine& engine_;
  };
  auto model = Value(Model::Create(config, FromEngine(*engine), DType::kF32));
  BatchLoss loss = Value(model->Loss(batch[0]));
  EvaluateResult seen = Value(engine->Evaluate(batch[0]));
  CHECK(loss.nll == Approx(seen.nll).epsilon(1e-9));
  CHECK(!engine->ReadWeights({.tensor = "model.nothing", .count = 1}, std::as_writable_bytes(std::span(values).first(1))).ok());
  CHECK(!engine->ReadWeights({"model.norm.weight", 1, 32}, std::as_writable_bytes(std::span(values))).ok());
}

TEST_CASE("Engine: a step that is not finite changes nothing and is counted, on every rank") {
  ModelConfig config = SmallConfig(false);
  class WithInfinity final : public WeightSource {
   public:
    explicit WithInfinity(const ModelConfig& config) : inner_(RandomWeights(config, 1)) {}
    absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
      ARGOSY_RETURN_IF_ERROR(inner_->Read(tensor, begin, out));
      if (tensor.name == "model.norm.weight" && begin == 0) out[0] = std::numeric_limits<float>::infinity();
      return absl::OkStatus();
    }
    std::unique_ptr<WeightSource> inner_;
  };
  std::mutex mutex;
  std::vector<std::string> named;
  CheckAllOk(RunRanks(3, [&](Group& group) -> absl::Status {
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, WithInfinity(config), &group, {.zero_stage = 3}));
    Run before, after;
    ARGOSY_RETURN_IF_ERROR(Pull(*engine, group, DType::kF32, before));
    for (int step = 0; step < 2; ++step) {
      std::vector<MicroBatch> parts = {PartOf(97, step, 0, group.rank(), 3, 6)};
      ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(parts, 0.01));
      if (!result.skipped) return Internal("the step was not skipped: loss {}, norm {}", result.loss, result.grad_norm);
      std::lock_guard lock(mutex);
      if (result.not_finite.starts_with("weight ")) named.push_back(result.not_finite);
      else if (!result.not_finite.starts_with("gradient of ")) return Internal("rank {} names \"{}\"", group.rank(), result.not_finite);
    }
    ARGOSY_RETURN_IF_ERROR(Pull(*engine, group, DType::kF32, after));
    if (before.weights != after.weights) return Internal("weights changed");
    if (engine->skipped() != 2 || engine->steps() != 0) return Internal("{} skipped", engine->skipped());
    return absl::OkStatus();
  }));
  // The one rank that owns the place says so, in both steps.
  CHECK(named == std::vector<std::string>(2, "weight model.norm.weight (head, element 0)"));
}

TEST_CASE("Engine: frozen tensors keep their bits in every stage, and the others learn the same") {
  std::vector<Run> runs;
  const std::vector<std::string> freeze = {"embed_tokens", "layers\\.1\\.mlp"};
  for (int stage : {0, 1, 2, 3}) {
    runs.push_back(Train({.engine = {.zero_stage = stage, .weight_decay = 0.1, .freeze = freeze}}));
    CHECK(SameBits(runs[0], runs.back()));
  }
  Run untrained = Train({.steps = 0, .engine = {.zero_stage = 3}}), all = Train({.engine = {.zero_stage = 0, .weight_decay = 0.1}});
  for (const auto& [name, bytes] : runs[0].weights) {
    bool frozen = name.find("embed_tokens") != std::string::npos || name.find("layers.1.mlp") != std::string::npos;
    INFO(name);
    CHECK((bytes == untrained.weights[name]) == frozen);
  }
  CHECK(runs[0].steps[0].grad_norm < all.steps[0].grad_norm);
  ModelConfig config = SmallConfig(false);
  auto group = MakeLoopbackGroup();
  for (const char* pattern : {"nothing_of_this_name", "[", "."}) {
    absl::Status status = Engine::Create(config, *RandomWeights(config, 1), group.get(), {.freeze = {pattern}}).status();
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(Message(status).find("freeze") != std::string::npos);
  }
}

TEST_CASE("Engine: a trace has each line of the schedule in its order, and the times of a step add up to less than it took") {
  ModelConfig config = SmallConfig(false);
  CheckAllOk(RunRanks(2, [&](Group& group) -> absl::Status {
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *RandomWeights(config, 1), &group, {.zero_stage = 3}));
    std::vector<TracedLine> lines;
    engine->TraceInto(&lines);
    std::vector<MicroBatch> parts = {PartOf(97, 0, 0, group.rank(), 2, 4)};
    absl::Time begin = absl::Now();
    ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(parts, 0.01));
    double took = absl::ToDoubleSeconds(absl::Now() - begin);
    engine->TraceInto(nullptr);
    std::string traced;
    for (const TracedLine& line : lines) traced += line.name + "\n";
    std::string planned;
    for (const Line& line : TrainSchedule({.units = 5, .stage = 3})) {
      planned += std::string(Name(line.action)) + (line.unit >= 0 ? " " + engine->layout().units[line.unit].name : "") + "\n";
    }
    if (traced != planned) return Internal("traced\n{}\nplanned\n{}", traced, planned);
    const StepTimes& times = result.times;
    if (!(times.forward > 0 && times.backward > 0 && times.forward + times.backward + times.optimizer + times.waiting <= took)) {
      return Internal("{} {} {} {} of {}", times.forward, times.backward, times.optimizer, times.waiting, took);
    }
    return absl::OkStatus();
  }));
}

TEST_CASE("Engine: what ranks cannot agree on is an error on all of them, not a hang") {
  ModelConfig config = SmallConfig(false);
  auto statuses = RunRanks(2, [&](Group& group) -> absl::Status {
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *RandomWeights(config, 1), &group, {}));
    std::vector<MicroBatch> parts(group.rank() + 1, PartOf(97, 0, 0, 0, 1, 2));
    return engine->TrainStep(parts, 0.01).status();
  });
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(Message(status).find("micro-batches") != std::string::npos);
  }
  statuses = RunRanks(2, [&](Group& group) -> absl::Status {
    ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *RandomWeights(config, 1), &group, {}));
    std::vector<MicroBatch> parts = {PartOf(97, 0, 0, 0, 1, 2)};
    if (group.rank() == 1) parts[0].input_ids[3] = 97;
    return engine->TrainStep(parts, 0.01).status();
  });
  for (const absl::Status& status : statuses) CHECK(!status.ok());
  CHECK(Message(statuses[1]).find("vocabulary of 97") != std::string::npos);
  auto alone = MakeLoopbackGroup();
  CHECK(!Engine::Create(config, *RandomWeights(config, 1), alone.get(), {.zero_stage = 4}).ok());
}

TEST_CASE("Engine: a small model's step is fast enough to be driven by") {
  // Width 64, 2 layers, 16 rows of 24 tokens: what the embedded example trains.
  ModelConfig config = Value(ModelConfig::Nano(96));
  auto group = MakeLoopbackGroup();
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    auto engine = Value(Engine::Create(config, *RandomWeights(config, 1), group.get(), {.dtype = dtype, .recompute = Recompute::kNone, .threads = 1}));
    Rows rows(16, std::vector<int32_t>(24, 5));
    std::vector<MicroBatch> batch = {BatchOf(rows, rows)};
    for (int i = 0; i < 5; ++i) Value(engine->TrainStep(batch, 1e-3));
    absl::Time start = absl::Now();
    constexpr int kSteps = 30;
    for (int i = 0; i < kSteps; ++i) Value(engine->TrainStep(batch, 1e-3));
    double milliseconds = absl::ToDoubleMilliseconds(absl::Now() - start) / kSteps;
    std::cout << fmt::format("nano, 16 x 24 tokens, {}: {:.2f} ms a step\n", TorchName(dtype), milliseconds);
    CHECK(milliseconds < 500);
  }
}

}  // namespace
}  // namespace argosy::train
