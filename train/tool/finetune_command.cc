#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "argosy/argosy.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "train/tool/commands.h"
#include "train/trainer/finetune.h"

namespace argosy::train {
namespace {

std::map<std::string, double> ResourcesFromJson(const std::string& flag, const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  std::map<std::string, double> resources;
  bool good = json.is_object();
  if (good) {
    for (const auto& [name, amount] : json.items()) {
      good = good && amount.is_number() && amount.get<double>() >= 0;
      if (good) resources[name] = amount.get<double>();
    }
  }
  if (!good) throw CommandFailed(fmt::format("{} '{}': want a JSON object of amounts, e.g. '{{\"GPU\": 1}}'", flag, text));
  return resources;
}

struct FinetuneFlags {
  FinetuneOptions options;
  std::string mixed_precision, moments, scheduler, loss_on = "auto", resources_per_worker, trainer_resources, betas, long_rows = "cut", bad_rows = "fail", hf_token, ds_config,
      save_state = "last", recompute;
  int prompt_type = 1;
  bool no_grad_ckpt = false;
  double start_timeout = 0, replace_timeout = 30, collective_timeout = 60;
};

}  // namespace

void AddFinetuneCommand(CLI::App& app, ProcessArguments process) {
  auto flags = std::make_shared<FinetuneFlags>();
  FinetuneOptions& o = flags->options;
  CommandLineSettings& s = o.flags;
  CLI::App* finetune = app.add_subcommand("finetune", "Fine-tune a model on the cluster that this process belongs to");
  finetune->option_defaults()->ignore_underscore();
  finetune->get_option("--help")->ignore_underscore();

  finetune->add_option("--model-name", o.model_directory, "Folder of a Hugging Face model (-mn)")->required();
  finetune->add_option("--output-dir", o.output_dir, "Folder on rank 0's node that gets the checkpoints")->required();
  finetune->add_option("--train-path", o.train_path, "Rows to train on: JSON lines of {\"input\"}, {\"question\",\"context\",\"answer\"} or {\"messages\"}")
      ->default_str("./data/train.jsonl");
  finetune->add_option("--test-path", o.test_path, "Held-out rows, evaluated after each epoch; ./data/test.jsonl where neither path is given and it is there");
  finetune->add_option("--token-cache", o.token_cache, "Folder that keeps the rows as tokens: for files larger than memory, and the next run");
  finetune->add_option("--special-token-path", o.special_token_path, "tokens.json: tokens to add to the tokenizer");
  finetune->add_option("--ds-config", flags->ds_config, "DeepSpeed JSON: a file, or its text in base64 (-dc)");
  finetune->add_option("--num-devices", o.scaling.num_workers, "Ranks, one a GPU (-nd)")->capture_default_str();
  finetune->add_option("--batch-size-per-device", s.micro_batch_size, "Rows of one rank and micro-batch (-bs)");
  finetune->add_option("--eval-batch-size-per-device", o.eval_batch_size, "Rows of one rank when evaluating (-ebs)");
  finetune->add_option("--grad-accum", s.gradient_accumulation_steps, "Micro-batches of an optimizer step (-ga)");
  finetune->add_option("--num-epochs", o.num_epochs, "(-ne)")->capture_default_str();
  finetune->add_option("--max-steps", o.max_steps, "Stop after so many optimizer steps; 0: whole epochs");
  finetune->add_option("--ctx-len", o.rows.ctx_len, "Tokens of a row")->capture_default_str();
  finetune->add_option("--learning-rate,--lr", s.learning_rate, "Peak learning rate (-lr)");
  finetune->add_option("--mx", flags->mixed_precision, "Precision: no (fp32) or bf16");
  finetune->add_option("--lr-scheduler", flags->scheduler, "linear, cosine, constant or recipe");
  finetune->add_option("--warmup-steps", s.warmup_steps, "");
  finetune->add_option("--warmup-ratio", s.warmup_ratio, "");
  finetune->add_option("--min-lr", s.min_lr, "");
  finetune->add_option("--weight-decay", s.weight_decay, "");
  finetune->add_flag("--no-decay-1d", o.no_decay_1d, "No weight decay of norms and biases");
  finetune->add_option("--max-grad-norm", s.max_grad_norm, "0: no clipping");
  finetune->add_option("--adam-betas", flags->betas, "B1,B2");
  finetune->add_option("--adam-eps", s.adam_eps, "");
  finetune->add_option("--zero-stage", s.zero_stage, "0, 1, 2 or 3");
  finetune->add_option("--offload", s.offload, "Where ranks keep the optimizer's state: none, cpu (memory), or a folder on their nodes' disks");
  finetune->add_option("--moments", flags->moments, "Precision of the optimizer's moments: fp32 (default) or bf16");
  finetune->add_option("--seed", o.seed, "")->capture_default_str();
  finetune->add_flag("--pack,!--no-pack", o.pack, "Several samples in a row (default)");
  finetune->add_flag("--recipe-parity", o.recipe_parity, "Rows padded to the context length, padding and prompt are targets, file order");
  finetune->add_option("--loss-on", flags->loss_on, "auto, all, answer, or assistant: the answers of {\"messages\"} rows")->capture_default_str();
  finetune->add_option("--answer-marker", o.rows.answer_marker, "In {\"input\"} rows the answer follows this text, e.g. <START_A>");
  finetune->add_option("--prompt-type", flags->prompt_type, "Template of {\"question\",\"context\",\"answer\"} rows: 1, 2 or 3")->capture_default_str();
  finetune->add_option("--long-rows", flags->long_rows, "cut, drop or split")->capture_default_str();
  finetune->add_option("--bad-rows", flags->bad_rows, "fail, or skip rows that cannot be read")->capture_default_str();
  finetune->add_option("--stop-perplexity", o.stop_perplexity, "Stop after an epoch that evaluates below it");
  finetune->add_option("--num-checkpoints-to-keep", o.num_checkpoints_to_keep, "0: all");
  finetune->add_option("--keep-best-by", o.best_metric, "Which checkpoints are kept: train_loss, eval_loss or perplexity; the newest too");
  finetune->add_flag("--resume", o.resume, "Go on with the run in --output-dir from its newest training state");
  finetune->add_flag("--overwrite", o.overwrite, "Remove an earlier run from --output-dir");
  finetune->add_option("--save-state", flags->save_state, "Training states that stay: last, so many of the newest, all or none")->capture_default_str();
  finetune->add_option("--storage-path", o.storage_path, "s3://BUCKET/PREFIX that gets the checkpoints of weights in place of --output-dir");
  finetune->add_option("--s3-endpoint", o.s3_endpoint, "http://HOST:PORT of a server that is not Amazon's");
  finetune->add_flag("--save-by-ranks", o.save_by_ranks,
                     "Each rank writes its own bytes of checkpoints and states: for an --output-dir on storage that all nodes share");
  finetune->add_option("--save-every", o.save_every, "Save the training state after every so many steps too; 0: at epochs' ends only");
  finetune->add_option("--max-failures", o.failure.max_failures, "Times that ranks may be lost before the run fails")->capture_default_str();
  finetune->add_option("--max-skipped-steps", o.failure.max_skipped_steps, "Steps in a row that may be skipped because they are not finite")
      ->capture_default_str();
  finetune->add_option("--freeze", o.freeze, "Regular expressions: tensors whose names match one are not trained; give it once for each");
  finetune->add_flag("--balance", o.balance, "Deal the rows of a step in proportion to the ranks' measured speed");
  finetune->add_option("--profile", o.profile_steps, "Write the first so many steps, line by line, to profile.json of --output-dir");
  finetune->add_option("--replace-timeout", flags->replace_timeout, "Seconds to wait for a spare in place of a lost rank, before fewer go on")
      ->capture_default_str();
  finetune->add_option("--collective-timeout", flags->collective_timeout, "Seconds after which a rank that does not answer counts as lost")
      ->capture_default_str();
  finetune->add_flag("--as-test", o.as_test, "One step, one evaluation batch, one epoch");
  finetune->add_option("--eval-rows", o.eval_rows, "Evaluate on the first so many held-out rows; 0: all");
  finetune->add_flag("--eval-first,!--no-eval-first", o.eval_first, "Evaluate the base model too (default)");
  finetune->add_option("--sample-prompts", o.sample_prompts, "Held-out prompts answered by base and fine-tuned model")->capture_default_str();
  finetune->add_option("--exact-rows", o.exact_rows, "Held-out rows whose greedy answer is compared with the true one");
  finetune->add_option("--max-new-tokens", o.max_new_tokens, "Of a generated answer")->capture_default_str();
  finetune->add_option("--device", o.device, "cpu")->capture_default_str();
  finetune->add_option("--threads", o.threads, "Compute threads of a rank; 0: the host's cores shared by its ranks");
  finetune->add_option("--save-dtype", o.save_dtype, "fp32 or bf16; what is trained in when not given");
  finetune->add_option("--shard-size", o.shard_size_bytes, "Bytes of one weights file")->capture_default_str();
  finetune->add_flag("--random-weights", o.random_weights, "Train the model's architecture from new weights");
  finetune->add_option("--resources-per-worker", flags->resources_per_worker, "JSON, default {\"GPU\": 1}");
  finetune->add_option("--trainer-resources", flags->trainer_resources, "JSON, added to rank 0's, e.g. {\"large_cpu_mem\": 0.01}");
  finetune->add_option("--start-timeout", flags->start_timeout, "Seconds that the workers may wait to be placed; 0: without end");
  finetune->add_option("--metrics-path", o.metrics_path, "JSON lines of every step and epoch");
  finetune->add_flag("--print-schedule", o.print_schedule, "Print the lines of one training step");
  CLI::Option* recompute = finetune->add_option("--recompute", flags->recompute, "Of a layer in its backward: none, selective or full (default)");
  finetune->add_flag("--no-grad-ckpt", flags->no_grad_ckpt, "--recompute none")->excludes(recompute);
  finetune->add_flag("--grow-vocabulary", o.grow_vocabulary, "New rows of the embedding where the tokenizer knows more ids than the model");
  finetune->add_flag("--lora", o.lora, "Train low-rank adapters beside the weights; as ./lora_configs/lora.json says, where it is there and --lora-config is not");
  finetune->add_option("--lora-config", o.lora_config_path, "peft's adapter_config.json for the new adapter (implies --lora)");
  finetune->add_option("--adapter", o.adapter_directory, "Folder of an adapter to go on from (implies --lora)");
  finetune->add_option("--hf-token", flags->hf_token, "Taken for compatibility: models are read from folders (-hft)");

  finetune->callback([flags, process] {
    FinetuneOptions& o = flags->options;
    // A worker process of a run serves from here on and does not come back.
    if (process.is_worker) Connect(process.argc, process.argv);
    if (!o.lora_config_path.empty() || !o.adapter_directory.empty()) o.lora = true;
    if (std::error_code error; o.lora && o.lora_config_path.empty() && o.adapter_directory.empty() &&
                               std::filesystem::exists("./lora_configs/lora.json", error)) {
      o.lora_config_path = "./lora_configs/lora.json";
    }
    if (o.train_path.empty()) {
      o.train_path = "./data/train.jsonl";
      if (std::error_code error; o.test_path.empty() && std::filesystem::exists("./data/test.jsonl", error)) o.test_path = "./data/test.jsonl";
    }
    if (!flags->mixed_precision.empty()) {
      absl::StatusOr<Precision> precision = PrecisionFromName(flags->mixed_precision);
      if (!precision.ok()) throw CommandFailed("--mx " + Message(precision.status()));
      o.flags.precision = *precision;
    }
    if (!flags->moments.empty()) {
      absl::StatusOr<Precision> moments = PrecisionFromName(flags->moments);
      if (!moments.ok()) throw CommandFailed(fmt::format("--moments {}: fp32 or bf16", flags->moments));
      o.flags.moments = *moments;
    }
    if (o.flags.offload && *o.flags.offload != "none" && *o.flags.offload != "cpu" && !o.flags.offload->starts_with('/')) {
      throw CommandFailed(fmt::format("--offload {}: none, cpu, or the whole path of a folder, which begins with /", *o.flags.offload));
    }
    if (flags->no_grad_ckpt) o.recompute = Recompute::kNone;
    if (!flags->recompute.empty()) {
      absl::StatusOr<Recompute> recompute = RecomputeFromName(flags->recompute);
      if (!recompute.ok()) throw CommandFailed("--recompute " + Message(recompute.status()));
      o.recompute = *recompute;
    }
    if (!flags->scheduler.empty()) {
      absl::StatusOr<LrScheduleType> type = LrScheduleTypeFromName(flags->scheduler);
      if (!type.ok()) throw CommandFailed("--lr-scheduler " + Message(type.status()));
      o.flags.lr_scheduler = *type;
    }
    if (!flags->betas.empty()) {
      double beta1, beta2;
      char rest;
      if (std::sscanf(flags->betas.c_str(), "%lf,%lf%c", &beta1, &beta2, &rest) != 2) {
        throw CommandFailed(fmt::format("--adam-betas {}: want two numbers, e.g. 0.9,0.999", flags->betas));
      }
      o.flags.adam_beta1 = beta1;
      o.flags.adam_beta2 = beta2;
    }
    if (flags->loss_on == "all") o.rows.loss_on = LossOn::kAll;
    else if (flags->loss_on == "answer" || flags->loss_on == "assistant") o.rows.loss_on = LossOn::kAnswer;
    else if (flags->loss_on != "auto") throw CommandFailed(fmt::format("--loss-on {}: auto, all, answer or assistant", flags->loss_on));
    if (flags->long_rows == "drop") o.rows.long_rows = LongRows::kDrop;
    else if (flags->long_rows == "split") o.rows.long_rows = LongRows::kSplit;
    else if (flags->long_rows != "cut") throw CommandFailed(fmt::format("--long-rows {}: cut, drop or split", flags->long_rows));
    if (flags->bad_rows == "skip") o.rows.skip_bad_rows = true;
    else if (flags->bad_rows != "fail") throw CommandFailed(fmt::format("--bad-rows {}: fail or skip", flags->bad_rows));
    absl::StatusOr<PromptType> prompt = ParsePromptType(flags->prompt_type);
    if (!prompt.ok()) throw CommandFailed("--prompt-type " + Message(prompt.status()));
    o.rows.prompt_type = *prompt;
    if (!flags->resources_per_worker.empty()) {
      o.scaling.resources_per_worker = ResourcesFromJson("--resources-per-worker", flags->resources_per_worker);
    }
    if (!flags->trainer_resources.empty()) {
      o.scaling.trainer_resources = ResourcesFromJson("--trainer-resources", flags->trainer_resources);
    }
    if (flags->save_state == "all") o.save_state = SaveStateMode::kAll;
    else if (flags->save_state == "none") o.save_state = SaveStateMode::kNone;
    else if (flags->save_state != "last" && (!absl::SimpleAtoi(flags->save_state, &o.states_to_keep) || o.states_to_keep < 1)) {
      throw CommandFailed(fmt::format("--save-state {}: last, all, none, or how many of the newest stay", flags->save_state));
    }
    o.failure.replace_timeout = absl::Seconds(std::max(0.0, flags->replace_timeout));
    o.failure.collective_timeout = absl::Seconds(flags->collective_timeout);
    if (flags->start_timeout > 0) o.scaling.start_timeout = absl::Seconds(flags->start_timeout);
    if (!flags->ds_config.empty()) {
      absl::StatusOr<std::string> text = ReadDeepSpeedText(flags->ds_config);
      if (!text.ok()) throw CommandFailed("--ds-config: " + Message(text.status()));
      o.ds_config = *std::move(text);
    }
    MustSucceed(CheckFinetuneOptions(o));
    Runtime runtime = Connect(process.argc, process.argv);
    MustSucceed(Finetune(o));
  });
}

}  // namespace argosy::train
