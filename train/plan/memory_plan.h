#pragma once

// What a run will take, from the model's shapes alone: before weights are downloaded or an actor is started.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/config/lora_config.h"
#include "train/config/model_config.h"
#include "train/config/recompute.h"

namespace argosy::train {

struct PlanOptions {
  int32_t ranks = 1;
  int32_t ranks_per_node = 1;
  int zero_stage = 3;
  bool bf16 = true;               // weights and computation, with exact fp32 masters; false: fp32
  Recompute recompute = Recompute::kFull;
  bool bf16_moments = false;
  bool offload_file = false;      // the optimizer's state between steps
  int32_t micro_batches = 1;      // of a step: several are summed in fp32
  int64_t rows = 1;               // of a rank's micro-batch
  int64_t ctx_len = 512;
  DType save_dtype = DType::kBF16;
  bool save_state = true;
  std::optional<LoraConfig> lora; // adapters beside frozen weights
};

// Bytes of one rank at the peak of a step.
struct RankPlan {
  int64_t weights = 0;
  int64_t optimizer = 0;          // moments and the masters' lower halves
  int64_t gradients = 0;
  int64_t gathered = 0;           // other ranks' weights, and gradients on their way, during a step
  int64_t activations = 0;
  int64_t other = 0;              // libtorch's own buffers, kernels and threads; streams to other ranks
  int64_t Total() const { return weights + optimizer + gradients + gathered + activations + other; }
};

struct NodePlan {
  RankPlan rank;                  // the largest
  int64_t ranks = 0;              // on one node
  int64_t aggregation = 0;        // rank 0's, while it writes a checkpoint
  int64_t Total() const { return rank.Total() * ranks + aggregation; }   // of rank 0's node
};

struct DiskPlan {
  int64_t checkpoint = 0;
  int64_t state = 0;
  int64_t offload = 0;            // of one rank's optimizer, on its node
};

// What the engine takes: every buffer that it keeps, the schedule's transient ones and one layer's activations.
NodePlan PlanMemory(const ModelConfig& config, const PlanOptions& options);
DiskPlan PlanDisk(const ModelConfig& config, const PlanOptions& options);

// The reference recipes' own estimates, to compare with. M parameters, N ranks, K ranks on a node.
struct ReferenceRules {
  int64_t offload = 0;            // 18 M / N K bytes of host memory for the optimizer
  int64_t aggregation = 0;        // 4 M bytes more on rank 0's node
};
ReferenceRules PlanByReference(const ModelConfig& config, const PlanOptions& options);

// Llama 2's sizes by name: "7b", "13b", "70b".
absl::StatusOr<ModelConfig> NamedModel(std::string_view name);

// The first of these that fits: the given options; recomputing more; higher stages too; fewer rows at a time. Empty `changes`: as given.
struct Advice {
  bool fits = false;
  PlanOptions options;
  std::vector<std::string> changes;   // "--zero-stage 3", ...
};
Advice Advise(const ModelConfig& config, const PlanOptions& options, int64_t node_bytes);

// Says what a run takes and what would make it fit; OK when it does. `node_bytes`: memory of the node that is smallest.
absl::Status CheckFits(const ModelConfig& config, const PlanOptions& options, int64_t node_bytes);

}  // namespace argosy::train
