#pragma once

// What every rank of a run must agree on; sent to each as one value.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "argosy/array.h"
#include "argosy/channel.h"
#include "runtime/base/codec.h"
#include "train/checkpoint/training_state.h"
#include "train/config/dtype.h"
#include "train/config/lr_schedule.h"
#include "train/config/recompute.h"
#include "train/data/batches.h"
#include "train/data/samples.h"
#include "train/parallel/engine.h"

namespace argosy::train {

struct ModelSource {
  std::string directory;        // HF directory, read by every rank on its own node
  int64_t vocab_size = 0;       // rows of the embedding: more than the files have when tokens were added
  bool random_weights = false;  // keep the config, forget the weights
  uint64_t seed = 42;
};

// Adapters to train in place of the model's weights.
struct AdapterSpec {
  std::string config;           // adapter_config.json; empty: the weights are trained
  std::string directory;        // of an adapter to go on from, read by every rank on its own node; empty: a new one
};

struct EngineSpec {
  int32_t zero_stage = 3;
  DType dtype = DType::kF32;    // of weights and computation
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  DType moments = DType::kF32;
  std::string offload;          // folder of the optimizer's state, on the rank's node; empty: memory
  double weight_decay = 0;
  bool decay_vectors = true;
  double max_grad_norm = 1.0;
  std::vector<std::string> freeze;   // tensors whose names match any of these regular expressions are not trained
  Recompute recompute = Recompute::kFull;   // of a layer in its backward
  int32_t threads = 1;          // torch threads of a rank; 0: the node's cores shared by its ranks
};

struct BatchSpec {
  int32_t ctx_len = 512;
  int64_t rows_per_step = 16;          // of all ranks and micro-batches; fixed for the run, whatever the number of ranks
  int32_t micro_batches = 1;           // gradient accumulation
  int64_t eval_batch_rows = 16;
  int64_t eval_rows_max = 0;           // 0: all
  uint64_t seed = 42;
  bool shuffle = true;
  bool pack = true;
  bool recipe_parity = false;
  bool pad_left = false;
  int32_t pad_id = 0;
};

// A training state to go on from.
struct ResumeSpec {
  std::string directory;               // on rank 0's node; empty: from the model's weights
  int64_t optimizer_steps = 0;
  int64_t skipped = 0;
};

// Where finished checkpoints go when that is not the output folder. Credentials are each node's own.
struct StorageSpec {
  std::string url;                     // s3://bucket/prefix; empty: the output folder
  std::string endpoint;                // http://host:port; empty: what the node's environment says
};

struct RunSpec {
  std::string run_id;                  // names the run's channels
  ModelSource model;
  AdapterSpec adapter;
  EngineSpec engine;
  BatchSpec batch;
  LrScheduleConfig schedule;           // total_steps set
  double collective_timeout_seconds = 60;
  StorageSpec storage;
  ResumeSpec resume;
};

// A SampleSet on its way to the ranks: by its token cache's path where every rank sees that file, else through the object store, where the bytes
// are written once and read in place.
struct ShippedSamples {
  Array<int32_t> tokens;
  Array<int64_t> begins;
  Array<uint8_t> is_target;
  std::string cache_path;              // empty: the arrays have them
  uint32_t cache_id = 0;
};
ShippedSamples Ship(const SampleSet& samples);
absl::StatusOr<SampleSet> Unship(const ShippedSamples& samples);

// Who a rank is.
struct RankHello {
  Endpoint endpoint;
  std::string node_name;
  std::string node_id;     // hex
  uint32_t pid = 0;
  std::vector<uint32_t> gpu_ids;
};

// What rank 0 finds where the checkpoints are to go.
struct OutputReport {
  std::vector<std::string> checkpoints;   // names of finished ones, oldest first
  std::string state_directory;            // of the newest training state that is whole; empty: none
  std::vector<std::string> damaged;       // why newer ones are not
  TrainingState state;
};

struct RankReady {
  int64_t state_bytes = 0;         // weights, gradients and optimizer of this rank, in memory
  int64_t offloaded_bytes = 0;     // of the optimizer, in a file
  int64_t steps_per_epoch = 0;     // of epoch 0
  double load_seconds = 0;
  int64_t parameters = 0;
  int64_t trained = 0;             // of them; of adapters beside them
  int32_t threads = 0;
};

struct StepReport {
  int64_t epoch = 0;
  int64_t step = 0;                // within the epoch, from 0
  double loss = 0;                 // mean over the step's target tokens
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t target_tokens = 0;
  int64_t useful_tokens = 0;       // of this rank
  int64_t computed_tokens = 0;     // of this rank, padding included
  double seconds = 0;
  bool skipped = false;
  std::string not_finite;          // of a skipped step: this rank's first tensor that is not finite
  StepTimes times;
  int64_t peak_bytes = 0;          // of this rank's memory so far, above what it was before the model was there
};

struct EvalReport {
  double nll = 0;                  // summed over all ranks' targets
  int64_t target_tokens = 0;
  double batch_mean_loss = 0;      // mean of batch means over batches and ranks, as the recipes report it
  double seconds = 0;
};

struct SaveSpec {
  std::string directory;           // on rank 0's node, or s3://bucket/prefix/name
  DType save_dtype = DType::kF32;
  int64_t shard_bytes_max = 5'000'000'000;
  std::map<std::string, std::string> files;   // tokenizer files as the run changed them
  int64_t step = 0, epoch = 0;
  std::map<std::string, double> metrics;
  int64_t num_to_keep = 0;         // 0: all checkpoints beside it stay
  std::string best_metric;         // the ones that are kept are the best by it; empty: the newest
  bool by_ranks = false;           // each writes its own bytes, on storage that all of them see; false: rank 0 writes all
  int64_t bos_id = -1, eos_id = -1, pad_id = -1;   // -1: as in the source
};

struct SaveStateSpec {
  std::string directory;           // on rank 0's node
  int64_t shard_bytes_max = 5'000'000'000;
  TrainingState state;             // rank 0 adds the optimizer's counts
  int64_t num_to_keep = 1;         // older states beside it go once it is there; 0: all stay
  bool by_ranks = false;           // as of SaveSpec
};

struct SaveReport {
  int64_t bytes = 0;
  int64_t files = 0;
  double seconds = 0;
};

struct GenerateSpec {
  std::string directory;
  std::string adapter;             // folder of an adapter beside it; empty: none
  std::vector<std::vector<int32_t>> prompts;
  int32_t max_new_tokens = 32;
  std::vector<int32_t> stop_tokens;
};

}  // namespace argosy::train
