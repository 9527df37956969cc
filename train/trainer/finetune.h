#pragma once

// `argosy finetune`: from an HF directory and a dataset to an HF checkpoint, on as many actors as there are GPUs asked for.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "train/config/deepspeed_config.h"
#include "train/config/recompute.h"
#include "train/data/rows.h"

namespace argosy::train {

// How many actors, with what, and where.
struct ScalingConfig {
  int32_t num_workers = 1;
  std::map<std::string, double> resources_per_worker = {{"GPU", 1}};
  std::map<std::string, double> trainer_resources;           // merged into rank 0's bundle, e.g. {{"large_cpu_mem", 0.01}}
  std::map<std::string, std::string> label_selector;         // of every rank
  absl::Duration start_timeout = absl::InfiniteDuration();   // to be placed; UNAVAILABLE with the scheduler's reason after it
};

// What happens when a rank dies, or does not answer the others.
struct FailureConfig {
  int64_t max_failures = 3;                                  // the run ends with the next one
  int64_t max_skipped_steps = 10;                            // in a row, whose loss or gradient is not finite
  absl::Duration replace_timeout = absl::Seconds(30);        // for a spare to take the lost place; then fewer ranks go on
  absl::Duration collective_timeout = absl::Seconds(60);     // of one operation between ranks: one that does not come is taken for hung
};

// Which training states stay: the newest ones, all, or none is written.
enum class SaveStateMode { kNewest, kAll, kNone };

struct FinetuneOptions {
  std::string model_directory;
  std::string output_dir;
  std::string storage_path;         // s3://bucket/prefix that gets the checkpoints in place of output_dir; empty: output_dir
  std::string s3_endpoint;          // http://host:port; empty: what rank 0's node says
  std::string train_path;
  std::string test_path;            // empty: no evaluation
  std::string token_cache;          // folder of the rows as tokens, reused by later runs; empty: they are kept in memory
  std::string special_token_path;   // tokens.json; empty: none
  std::string ds_config;            // the text of a DeepSpeed JSON; empty: none
  CommandLineSettings flags;        // wins over the file
  ScalingConfig scaling;

  int64_t num_epochs = 1;
  int64_t max_steps = 0;            // 0: whole epochs
  int64_t eval_batch_size = 0;      // rows a rank; 0: as for training
  int64_t eval_rows = 0;            // 0: all
  bool eval_first = true;           // evaluate before the first step, to have something to compare with
  double stop_perplexity = 0;       // end after an epoch that evaluates below it
  bool as_test = false;             // one step, one evaluation batch, one epoch; weights loaded, checkpoint written
  int64_t num_checkpoints_to_keep = 0;   // 0: all
  std::string best_metric;          // those that are kept are the best by it, and the newest; empty: the newest
  bool resume = false;              // go on from the newest training state in output_dir
  bool overwrite = false;           // remove an earlier run from output_dir
  SaveStateMode save_state = SaveStateMode::kNewest;   // at each epoch's end
  int64_t states_to_keep = 1;       // of the newest ones
  bool save_by_ranks = false;       // each writes its own bytes of checkpoints and states, in an output_dir on storage that all of them see
  int64_t save_every = 0;           // training state after so many steps too; 0: no
  FailureConfig failure;

  RowOptions rows;
  bool pack = true;
  bool balance = false;             // deal a step's rows in proportion to the ranks' measured speed; sums are then rounded otherwise
  bool recipe_parity = false;
  uint64_t seed = 42;
  bool no_decay_1d = false;
  Recompute recompute = Recompute::kFull;   // of a layer in its backward
  bool lora = false;                // train low-rank adapters beside the weights
  std::string lora_config_path;     // adapter_config.json of a new adapter; empty: LoraConfig::Default()
  std::string adapter_directory;    // an adapter to go on from; empty: a new one
  bool random_weights = false;
  bool grow_vocabulary = false;     // new rows where the tokenizer knows more ids than the model; without it only for tokens of special_token_path
  std::string device = "cpu";
  int32_t threads = 0;              // torch threads a rank; 0: the node's CPUs by its ranks
  std::string save_dtype;           // "fp32", "bf16"; empty: what is trained in
  int64_t shard_size_bytes = 5'000'000'000;

  int64_t sample_prompts = 3;       // held-out prompts answered by the base and by the fine-tuned model
  int64_t exact_rows = 0;           // held-out rows whose greedy answer is compared with the true one; 0: none
  int32_t max_new_tokens = 48;
  std::string metrics_path;         // JSON lines of every step and epoch; empty: none
  bool print_schedule = false;
  int64_t profile_steps = 0;        // the first so many steps, line by line, into output_dir/profile.json
  std::vector<std::string> freeze;  // regular expressions: tensors that keep their values
};

// Runs on the driver; prints its progress to stdout. The error names what was wrong and what would be right. Needs a connected runtime.
absl::Status Finetune(const FinetuneOptions& options);

// What can be checked before a runtime is there: paths, names, numbers.
absl::Status CheckFinetuneOptions(const FinetuneOptions& options);

}  // namespace argosy::train
