// A whole training step of SmolLM2-135M's shapes on one rank, bf16: step_bench [ROWS] [CONTEXT] [THREADS] [STEPS] [STAGE] [none|selective|full] [RANK].
// With a RANK adapters of that rank, beside all products of the layers, are trained in place of the weights; 0: the weights.
// Tokens are random and weights are too; the loss shows that the optimizer works. Memory is the process's highest resident set, libraries included,
// which is what peers report.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "train/collective/group.h"
#include "train/data/batches.h"
#include "train/model/weight_source.h"
#include "train/parallel/engine.h"

namespace argosy::train {
namespace {

double ResidentGbMax() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  long long kb = 0;
  char line[256];
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) std::sscanf(line, "VmHWM: %lld kB", &kb);
  if (file != nullptr) std::fclose(file);
  return static_cast<double>(kb) * 1024 / 1e9;
}

MicroBatch RandomRows(int32_t rows, int32_t ctx, int64_t vocabulary, uint64_t seed) {
  MicroBatch batch{.rows = rows, .ctx = ctx};
  Prng prng(seed);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t t = 0; t < ctx; ++t) {
      batch.input_ids.push_back(static_cast<int32_t>(prng.Below(vocabulary)));
      batch.positions.push_back(t);
      batch.segments.push_back(0);
    }
    for (int32_t t = 0; t < ctx; ++t) {
      batch.targets.push_back(t + 1 < ctx ? batch.input_ids[static_cast<size_t>(row) * ctx + t + 1] : MicroBatch::kNoTarget);
      batch.target_tokens += t + 1 < ctx;
    }
  }
  return batch;
}

absl::Status Measure(int32_t rows, int32_t ctx, int threads, int steps, int rank, EngineOptions options) {
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Make({.vocab_size = 49152, .hidden_size = 576, .intermediate_size = 1536,
                                                                 .num_hidden_layers = 30, .num_attention_heads = 9, .num_key_value_heads = 3,
                                                                 .max_position_embeddings = 8192, .tie_word_embeddings = true}));
  options.dtype = DType::kBF16;
  options.threads = threads;
  const double before = ResidentGbMax();
  auto group = MakeLoopbackGroup();
  std::unique_ptr<WeightSource> weights = RandomWeights(config, 1), values;
  AdapterLayout layout;
  AdapterStart adapter{.layout = &layout};
  if (rank > 0) {
    LoraConfig lora{.rank = rank, .alpha = 2.0 * rank, .target_pattern = "all-linear"};
    ARGOSY_ASSIGN_OR_RETURN(layout, MakeAdapterLayout(config, lora));
    values = NewAdapter(layout, lora, *weights, 1);
    adapter.values = values.get();
  }
  ARGOSY_ASSIGN_OR_RETURN(auto engine, Engine::Create(config, *weights, group.get(), options, nullptr, rank > 0 ? &adapter : nullptr));
  std::vector<double> seconds;
  StepTimes times;
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<MicroBatch> batch = {RandomRows(rows, ctx, config.vocab_size, static_cast<uint64_t>(step))};
    const absl::Time begin = absl::Now();
    ARGOSY_ASSIGN_OR_RETURN(StepResult result, engine->TrainStep(batch, 1e-4));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    times = result.times;
    loss = result.loss;
  }
  // The first makes pages and kernels.
  std::vector<double> counted(seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end());
  std::sort(counted.begin(), counted.end());
  const double median = counted[counted.size() / 2];
  std::printf("step %.0f ms (median of %zu, best %.0f), %.0f tokens/s; last: forward and loss %.0f, backward %.0f, optimizer %.0f ms; "
              "state %.3f GB, peak %.2f GB (%.2f before the model); loss %.3f\n",
              1e3 * median, counted.size(), 1e3 * counted.front(), rows * ctx / median, 1e3 * times.forward, 1e3 * times.backward, 1e3 * times.optimizer,
              static_cast<double>(engine->StateBytes()) / 1e9, ResidentGbMax(), before, loss);
  return absl::OkStatus();
}

}  // namespace
}  // namespace argosy::train

int main(int argc, char** argv) {
  using namespace argosy::train;
  auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int rows = argument(1, 2), ctx = argument(2, 512), threads = argument(3, 2), steps = argument(4, 6), stage = argument(5, 0), rank = argument(7, 0);
  const absl::StatusOr<Recompute> recompute = RecomputeFromName(argc > 6 ? argv[6] : "none");
  if (rows < 1 || ctx < 2 || threads < 1 || steps < 1 || rank < 0 || !recompute.ok()) {
    std::fprintf(stderr, "usage: step_bench [ROWS] [CONTEXT] [THREADS] [STEPS] [STAGE] [none|selective|full] [RANK]\n");
    return 2;
  }
  absl::Status status = Measure(rows, ctx, threads, steps, rank, {.zero_stage = stage, .recompute = *recompute});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", argosy::Message(status).c_str());
    return 1;
  }
  return 0;
}
