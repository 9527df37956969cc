#include <cstdio>
#include <memory>

#include "runtime/base/status.h"
#include "train/model/adapter_layout.h"
#include "train/plan/memory_plan.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};

double Gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

struct PlanFlags {
  std::string model;
  PlanOptions options;
  std::string precision = "bf16", moments = "fp32", offload = "none";
  double node_memory_gb = 0;
  bool lora = false;
  std::string lora_config;
};

absl::StatusOr<ModelConfig> ModelOf(const std::string& name) {
  absl::StatusOr<ModelConfig> named = NamedModel(name);
  return named.ok() ? named : ModelConfig::Load(name);
}

absl::Status Check(const PlanFlags& flags) {
  const PlanOptions& o = flags.options;
  if (o.ranks < 1) return InvalidArgument("--num-devices {}: at least 1", o.ranks);
  if (o.ranks_per_node < 1) return InvalidArgument("--gpus-per-node {}: at least 1", o.ranks_per_node);
  if (o.zero_stage < 0 || o.zero_stage > 3) return InvalidArgument("--zero-stage {}: 0, 1, 2 or 3", o.zero_stage);
  if (o.rows < 1) return InvalidArgument("--batch-size-per-device {}: at least 1", o.rows);
  if (o.micro_batches < 1) return InvalidArgument("--grad-accum {}: at least 1", o.micro_batches);
  if (o.ctx_len < 2) return InvalidArgument("--ctx-len {}: at least 2", o.ctx_len);
  if (flags.precision != "bf16" && flags.precision != "no") return InvalidArgument("--mx {}: no (fp32) or bf16", flags.precision);
  if (flags.moments != "fp32" && flags.moments != "bf16") return InvalidArgument("--moments {}: fp32 or bf16", flags.moments);
  if (flags.moments == "bf16" && (flags.precision != "bf16" || flags.lora || !flags.lora_config.empty())) {
    return InvalidArgument("--moments bf16 is for weights that are trained in bf16");
  }
  if (flags.offload != "none" && flags.offload != "cpu" && !flags.offload.starts_with('/')) {
    return InvalidArgument("--offload {}: none, cpu, or a folder, which begins with /", flags.offload);
  }
  if (flags.node_memory_gb < 0) return InvalidArgument("--node-memory {}: GB of a node", flags.node_memory_gb);
  return absl::OkStatus();
}

void PrintRow(const PlanOptions& options, const ModelConfig& config, int64_t node_bytes) {
  NodePlan plan = PlanMemory(config, options);
  const RankPlan& rank = plan.rank;
  std::string fits = node_bytes == 0 ? "" : plan.Total() <= node_bytes ? "  fits" : "  no";
  fmt::print("{:>5} {:>9} {:>9.2f} {:>10.2f} {:>10.2f} {:>9.2f} {:>12.2f} {:>10.2f} {:>12.2f}{}\n", options.zero_stage,
             RecomputeName(options.recompute), Gb(rank.weights), Gb(rank.optimizer), Gb(rank.gradients),
             Gb(rank.gathered), Gb(rank.activations), Gb(rank.Total()), Gb(plan.Total()), fits);
}

absl::Status Plan(const PlanFlags& flags) {
  ARGOSY_RETURN_IF_ERROR(Check(flags));
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelOf(flags.model));
  PlanOptions options = flags.options;
  options.bf16 = flags.precision == "bf16";
  options.bf16_moments = flags.moments == "bf16";
  options.offload_file = flags.offload.starts_with('/');
  options.save_dtype = options.bf16 ? DType::kBF16 : DType::kF32;
  int64_t trained = config.ParameterCount();
  if (flags.lora || !flags.lora_config.empty()) {
    options.lora = LoraConfig::Default();
    if (!flags.lora_config.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(options.lora, LoraConfig::Load(flags.lora_config));
    }
    absl::StatusOr<AdapterLayout> adapters = MakeAdapterLayout(config, *options.lora);
    if (!adapters.ok()) return Annotate(adapters.status(), flags.lora_config.empty() ? "--lora" : flags.lora_config);
    trained = adapters->ParameterCount();
  }
  const auto node_bytes = static_cast<int64_t>(flags.node_memory_gb * 1e9);
  fmt::print("model:     {}: {} parameters, {} layers of width {}, vocabulary {}\n", flags.model, config.ParameterCount(),
             config.num_hidden_layers, config.hidden_size, config.vocab_size);
  if (options.lora) fmt::print("lora:      {}: {} parameters are trained, beside weights that stay as they are\n", options.lora->ToText(), trained);
  fmt::print("run:       {} ranks, {} on a node; {} rows x {} tokens a rank and micro-batch; {}\n\n", options.ranks,
             std::min(options.ranks, options.ranks_per_node), options.rows, options.ctx_len, options.bf16 ? "bf16" : "fp32");
  fmt::print("GB of one rank, and of rank 0's node with what saving takes there\n");
  fmt::print("{:>5} {:>9} {:>9} {:>10} {:>10} {:>9} {:>12} {:>10} {:>12}\n", "stage", "recompute", "weights", "optimizer", "gradients",
             "gathered", "activations", "rank", "node");
  for (int stage = 0; stage <= 3; ++stage) {
    PlanOptions row = options;
    row.zero_stage = stage;
    for (Recompute recompute : kRecomputes) {
      row.recompute = recompute;
      PrintRow(row, config, node_bytes);
    }
  }
  const DiskPlan disk = PlanDisk(config, options);
  fmt::print("\ndisk:      {:.2f} GB a checkpoint, {:.2f} GB a training state (and the next one beside it until it is whole)\n",
             Gb(disk.checkpoint), Gb(disk.state));
  if (options.offload_file) {
    fmt::print("offload:   {:.2f} GB in {} a rank, of the stage that --zero-stage says ({})\n", Gb(disk.offload), flags.offload, options.zero_stage);
  }
  const ReferenceRules rules = PlanByReference(config, options);
  fmt::print("reference: the recipes count 18 M/N K = {:.0f} GB for the optimizer on a node, and 4 M = {:.0f} GB more on rank 0's: {:.0f} GB\n",
             Gb(rules.offload), Gb(rules.aggregation), Gb(rules.offload + rules.aggregation));
  if (node_bytes > 0) {
    // A lower stage moves less between ranks, kept activations compute less.
    for (int stage = 0; stage <= 3; ++stage) {
      for (Recompute recompute : kRecomputes) {
        PlanOptions cheapest = options;
        cheapest.zero_stage = stage;
        cheapest.recompute = recompute;
        if (PlanMemory(config, cheapest).Total() > node_bytes) continue;
        fmt::print("cheapest:  --zero-stage {} --recompute {} fits\n", stage, RecomputeName(recompute));
        return absl::OkStatus();
      }
    }
    return CheckFits(config, options, node_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app.add_subcommand("plan", "Print the memory and disk that a run takes, from the model's shapes alone");
  plan->option_defaults()->ignore_underscore();
  plan->add_option("--model-name,--model", flags->model, "7b, 13b, 70b (Llama 2), or a folder with config.json (-mn)")->required();
  plan->add_option("--num-devices,--workers", flags->options.ranks, "Ranks (-nd)")->capture_default_str();
  plan->add_option("--gpus-per-node,--ranks-per-node", flags->options.ranks_per_node, "Ranks on one node")->capture_default_str();
  plan->add_option("--batch-size-per-device", flags->options.rows, "Rows of a rank and micro-batch (-bs)")->capture_default_str();
  plan->add_option("--grad-accum", flags->options.micro_batches, "Micro-batches of a step (-ga)")->capture_default_str();
  plan->add_option("--ctx-len", flags->options.ctx_len, "Tokens of a row")->capture_default_str();
  plan->add_option("--zero-stage", flags->options.zero_stage, "For the advice: the stage that the run would use")->capture_default_str();
  plan->add_option("--mx", flags->precision, "no (fp32) or bf16")->capture_default_str();
  plan->add_option("--moments", flags->moments, "Of the optimizer: fp32 or bf16")->capture_default_str();
  plan->add_option("--offload", flags->offload, "Of the optimizer's state: none, cpu, or a folder on the nodes' disks")->capture_default_str();
  plan->add_flag("--lora", flags->lora, "Train low-rank adapters beside the weights");
  plan->add_option("--lora-config", flags->lora_config, "peft's adapter_config.json (implies --lora)");
  plan->add_option("--node-memory", flags->node_memory_gb, "GB of a node: says what fits");
  plan->callback([flags] { MustSucceed(Plan(*flags)); });
}

}  // namespace argosy::train
