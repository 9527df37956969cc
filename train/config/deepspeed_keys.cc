#include "train/config/deepspeed_keys.h"

namespace argosy::train {
namespace {

using enum KeyKind;
using enum KeyFate;

constexpr std::string_view kByUnit = "weights are gathered and gradients reduced a layer at a time";
constexpr std::string_view kAlways = "always so here";
constexpr std::string_view kNoLossScale = "bf16 and fp32 need no loss scaling";
constexpr std::string_view kMetricsElsewhere = "metrics are reported by the run itself";
constexpr std::string_view kNotReported = "nothing of the kind is reported";
constexpr std::string_view kHostMemory = "on --device cpu the optimizer's state lies in host memory already";

constexpr DeepSpeedKey kKeys[] = {
    {"train_batch_size", kInteger, kHonoured, ""},
    {"train_micro_batch_size_per_gpu", kInteger, kHonoured, ""},
    {"gradient_accumulation_steps", kInteger, kHonoured, ""},
    {"gradient_clipping", kNumber, kHonoured, ""},
    {"steps_per_print", kInteger, kIgnored, "a line a second is printed"},
    {"wall_clock_breakdown", kBool, kIgnored, kNotReported},

    {"optimizer", kSection, kHonoured, ""},
    {"optimizer.type", kText, kHonoured, ""},
    {"optimizer.params", kSection, kHonoured, ""},
    {"optimizer.params.lr", kNumber, kHonoured, ""},
    {"optimizer.params.betas", kList, kHonoured, ""},
    {"optimizer.params.eps", kNumber, kHonoured, ""},
    {"optimizer.params.weight_decay", kNumber, kHonoured, ""},
    {"optimizer.params.bias_correction", kBool, kHonoured, ""},
    {"optimizer.params.adam_w_mode", kBool, kHonoured, ""},
    {"optimizer.params.amsgrad", kBool, kRefusedIfTrue, "AdamW has no AMSGrad variant here: set it to false"},
    {"optimizer.params.torch_adam", kBool, kIgnored, "the formula is torch's AdamW"},
    {"optimizer.params.fused", kBool, kIgnored, kAlways},
    {"optimizer.params.max_grad_norm", kNumber, kHonoured, ""},
    {"optimizer.legacy_fusion", kBool, kIgnored, kAlways},

    {"scheduler", kSection, kHonoured, ""},
    {"scheduler.type", kText, kHonoured, ""},
    {"scheduler.params", kSection, kHonoured, ""},
    {"scheduler.params.warmup_min_lr", kNumber, kHonoured, ""},
    {"scheduler.params.warmup_max_lr", kNumber, kHonoured, ""},
    {"scheduler.params.warmup_num_steps", kInteger, kHonoured, ""},
    {"scheduler.params.warmup_type", kText, kHonoured, ""},
    {"scheduler.params.total_num_steps", kInteger, kHonoured, ""},
    {"scheduler.params.warmup_min_ratio", kNumber, kHonoured, ""},
    {"scheduler.params.cos_min_ratio", kNumber, kHonoured, ""},
    {"scheduler.params.last_batch_iteration", kInteger, kIgnored, "the schedule begins at the run's first step"},

    {"bf16", kSection, kHonoured, ""},
    {"bf16.enabled", kBool, kHonoured, ""},
    {"bf16.check_grad_overflow", kBool, kIgnored, "a step with non-finite gradients is always skipped and counted"},
    {"bf16.immediate_grad_update", kBool, kIgnored, kByUnit},
    {"bf16.bf16_master_weights_and_grads", kBool, kRefusedIfTrue, "master weights are exact fp32 here: set it to false"},
    {"bf16.bf16_optimizer_states", kBool, kHonoured, ""},
    {"bf16.loss_scale", kNumber, kIgnored, kNoLossScale},
    {"bf16.initial_scale_power", kInteger, kIgnored, kNoLossScale},
    {"bf16.loss_scale_window", kInteger, kIgnored, kNoLossScale},
    {"bf16.hysteresis", kInteger, kIgnored, kNoLossScale},
    {"bf16.min_loss_scale", kNumber, kIgnored, kNoLossScale},

    {"fp16", kSection, kHonoured, ""},
    {"fp16.enabled", kBool, kHonoured, ""},
    {"fp16.auto_cast", kBool, kIgnored, "fp16 is not used"},
    {"fp16.loss_scale", kNumber, kIgnored, kNoLossScale},
    {"fp16.initial_scale_power", kInteger, kIgnored, kNoLossScale},
    {"fp16.loss_scale_window", kInteger, kIgnored, kNoLossScale},
    {"fp16.hysteresis", kInteger, kIgnored, kNoLossScale},
    {"fp16.consecutive_hysteresis", kBool, kIgnored, kNoLossScale},
    {"fp16.min_loss_scale", kNumber, kIgnored, kNoLossScale},
    {"fp16.fp16_master_weights_and_grads", kBool, kIgnored, "fp16 is not used"},

    {"zero_optimization", kSection, kHonoured, ""},
    {"zero_optimization.stage", kInteger, kHonoured, ""},
    {"zero_optimization.overlap_comm", kBool, kIgnored, "communication always overlaps with computing"},
    {"zero_optimization.offload_optimizer", kSection, kHonoured, ""},
    {"zero_optimization.offload_optimizer.device", kText, kHonoured, kHostMemory},
    {"zero_optimization.offload_optimizer.pin_memory", kBool, kIgnored, kHostMemory},
    {"zero_optimization.offload_optimizer.nvme_path", kText, kHonoured, ""},
    {"zero_optimization.offload_optimizer.buffer_count", kInteger, kIgnored, kByUnit},
    {"zero_optimization.offload_optimizer.pipeline_read", kBool, kIgnored, kByUnit},
    {"zero_optimization.offload_optimizer.pipeline_write", kBool, kIgnored, kByUnit},
    {"zero_optimization.offload_optimizer.pipeline", kBool, kIgnored, kByUnit},
    {"zero_optimization.offload_optimizer.fast_init", kBool, kIgnored, kAlways},
    {"zero_optimization.offload_optimizer.ratio", kNumber, kIgnored, kHostMemory},
    {"zero_optimization.offload_optimizer.super_offload", kBool, kIgnored, kByUnit},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kNumber, kIgnored, "threads are set by the run"},
    {"zero_optimization.offload_param", kSection, kHonoured, ""},
    {"zero_optimization.offload_param.device", kText, kHonoured, ""},
    {"zero_optimization.offload_param.pin_memory", kBool, kIgnored, "parameter shards stay on the device"},
    {"zero_optimization.offload_param.nvme_path", kText, kIgnored, "nothing is offloaded to NVMe"},
    {"zero_optimization.offload_param.buffer_count", kInteger, kIgnored, "parameter shards stay on the device"},
    {"zero_optimization.offload_param.buffer_size", kSize, kIgnored, "parameter shards stay on the device"},
    {"zero_optimization.offload_param.max_in_cpu", kSize, kIgnored, "parameter shards stay on the device"},
    {"zero_optimization.contiguous_gradients", kBool, kIgnored, kAlways},
    {"zero_optimization.reduce_scatter", kBool, kIgnored, kAlways},
    {"zero_optimization.reduce_bucket_size", kSize, kIgnored, kByUnit},
    {"zero_optimization.allgather_bucket_size", kSize, kIgnored, kByUnit},
    {"zero_optimization.allgather_partitions", kBool, kIgnored, kByUnit},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kBool, kIgnored, kByUnit},
    {"zero_optimization.round_robin_gradients", kBool, kIgnored, "every rank owns an equal share of every layer"},
    {"zero_optimization.sub_group_size", kSize, kIgnored, "the optimizer steps a layer at a time"},
    {"zero_optimization.stage3_prefetch_bucket_size", kSize, kIgnored, "the next layer is gathered while one computes"},
    {"zero_optimization.stage3_param_persistence_threshold", kSize, kIgnored, kByUnit},
    {"zero_optimization.stage3_model_persistence_threshold", kSize, kIgnored, kByUnit},
    {"zero_optimization.stage3_max_live_parameters", kSize, kIgnored, "at most two layers are gathered at a time"},
    {"zero_optimization.stage3_max_reuse_distance", kSize, kIgnored, "at most two layers are gathered at a time"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kBool, kIgnored, "a checkpoint always has whole weights"},
    {"zero_optimization.stage3_module_granularity_threshold", kSize, kIgnored, kByUnit},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kBool, kIgnored, kByUnit},
    {"zero_optimization.stage3_allgather_sequential", kBool, kIgnored, kByUnit},
    {"zero_optimization.load_from_fp32_weights", kBool, kIgnored, kAlways},
    {"zero_optimization.elastic_checkpoint", kBool, kIgnored, "a checkpoint always has whole weights"},
    {"zero_optimization.ignore_unused_parameters", kBool, kIgnored, "every parameter is used"},
    {"zero_optimization.legacy_stage1", kBool, kIgnored, "there is one stage 1"},
    {"zero_optimization.memory_efficient_linear", kBool, kIgnored, kAlways},
    {"zero_optimization.override_module_apply", kBool, kIgnored, "there are no module hooks"},
    {"zero_optimization.log_trace_cache_warnings", kBool, kIgnored, "there is no trace: the schedule is explicit"},
    {"zero_optimization.enable_sanity_checks", kBool, kIgnored, kAlways},
    {"zero_optimization.pipeline_loading_checkpoint", kBool, kIgnored, "every rank reads only its own share"},
    {"zero_optimization.cpu_offload", kBool, kHonoured, ""},
    {"zero_optimization.cpu_offload_param", kBool, kHonoured, ""},
    {"zero_optimization.cpu_offload_use_pin_memory", kBool, kIgnored, kHostMemory},
    {"zero_optimization.zero_hpz_partition_size", kInteger, kIgnored, "weights have one partition over all ranks"},
    {"zero_optimization.mics_shard_size", kInteger, kIgnored, "weights have one partition over all ranks"},
    {"zero_optimization.mics_hierarchical_params_gather", kBool, kIgnored, "weights have one partition over all ranks"},
    {"zero_optimization.zero_quantized_weights", kBool, kRefusedIfTrue, "weights travel as they are: set it to false"},
    {"zero_optimization.zero_quantized_nontrainable_weights", kBool, kRefusedIfTrue, "weights travel as they are: set it to false"},
    {"zero_optimization.zero_quantized_gradients", kBool, kRefusedIfTrue, "gradients travel unquantised: set it to false"},
    {"zero_optimization.zeropp_loco_param", kAny, kIgnored, "gradients travel unquantised"},
    {"zero_optimization.leaf_module", kAny, kIgnored, "the units of the schedule are the layers"},
    {"zero_optimization.zenflow", kAny, kIgnored, "every step updates every parameter"},

    {"managed_gradient_accumulation", kBool, kHonoured, ""},
    {"gradient_allreduce_op", kText, kHonoured, ""},
    {"prescale_gradients", kBool, kIgnored, "gradients are summed in fp32, which needs no scaling"},
    {"gradient_predivide_factor", kNumber, kIgnored, "gradients are summed in fp32, which needs no scaling"},
    {"communication_data_type", kText, kIgnored, "gradients travel in the training precision and are summed in fp32"},
    {"seq_parallel_communication_data_type", kText, kIgnored, "there is no sequence parallelism"},
    {"sequence_parallel_size", kInteger, kHonoured, ""},
    {"sparse_gradients", kBool, kIgnored, "gradients are dense"},
    {"disable_allgather", kBool, kIgnored, kByUnit},
    {"dataloader_drop_last", kBool, kIgnored, "every row is used once an epoch"},
    {"memory_breakdown", kBool, kIgnored, kNotReported},
    {"dump_state", kBool, kIgnored, "this table is always printed"},
    {"zero_allow_untested_optimizer", kBool, kIgnored, "AdamW is the optimizer"},
    {"zero_force_ds_cpu_optimizer", kBool, kIgnored, "AdamW is the optimizer"},
    {"data_types", kAny, kIgnored, "gradients are accumulated in fp32"},
    {"aio", kAny, kIgnored, "the optimizer's state is a file that is mapped into memory"},
    {"activation_checkpointing", kAny, kIgnored, "--recompute says what of a layer is computed again in the backward; all by default"},
    {"checkpoint", kAny, kIgnored, "a checkpoint always has whole weights"},
    {"comms_logger", kAny, kIgnored, kNotReported},
    {"flops_profiler", kAny, kIgnored, kNotReported},
    {"tensorboard", kAny, kIgnored, kMetricsElsewhere},
    {"wandb", kAny, kIgnored, kMetricsElsewhere},
    {"csv_monitor", kAny, kIgnored, kMetricsElsewhere},
    {"comet", kAny, kIgnored, kMetricsElsewhere},
    {"compile", kAny, kIgnored, "there is nothing to compile"},
    {"timers", kAny, kIgnored, kNotReported},
    {"nebula", kAny, kIgnored, "checkpoints are written by the run itself"},
    {"datastates_ckpt", kAny, kIgnored, "checkpoints are written by the run itself"},
    {"hybrid_engine", kAny, kIgnored, "there is one engine"},
    {"pipeline", kAny, kIgnored, "there is no pipeline parallelism"},
    {"eigenvalue", kAny, kIgnored, "only compression uses it"},
    {"use_data_before_expert_parallelism", kBool, kIgnored, "there are no experts"},
    {"graph_harvesting", kBool, kIgnored, "the schedule is explicit"},

    {"torch_autocast", kAny, kRefusedIfEnabled, "use \"bf16\": {\"enabled\": true}"},
    {"amp", kAny, kRefusedIfEnabled, "use \"bf16\": {\"enabled\": true}"},
    {"elasticity", kAny, kRefusedIfEnabled, "the rows of an optimizer step are fixed for the run: give train_batch_size"},
    {"autotuning", kAny, kRefusedIfEnabled, "set its \"enabled\" to false"},
    {"curriculum_learning", kAny, kRefusedIfEnabled, "set its \"enabled\" to false"},
    {"data_efficiency", kAny, kRefusedIfEnabled, "set its \"enabled\" to false"},
    {"progressive_layer_drop", kAny, kRefusedIfEnabled, "set its \"enabled\" to false"},
    {"compression_training", kAny, kRefusedIfEnabled, "remove it"},
    {"weight_quantization", kAny, kRefusedIfEnabled, "remove it"},
    {"sparse_attention", kAny, kRefusedIfEnabled, "attention is dense: remove it"},
    {"tensor_parallel", kAny, kRefusedIfEnabled, "remove it"},
    {"expert_parallel", kAny, kRefusedIfEnabled, "remove it"},
};

constexpr DeepSpeedAlias kAliases[] = {
    {"bfloat16", "bf16", true},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size", false},
    {"zero_optimization.param_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold", false},
    {"zero_optimization.model_persistence_threshold", "zero_optimization.stage3_model_persistence_threshold", false},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters", false},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance", false},
    {"zero_optimization.gather_16bit_weights_on_model_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
    {"zero_optimization.module_granularity_threshold", "zero_optimization.stage3_module_granularity_threshold", false},
    {"zero_optimization.use_all_reduce_for_fetch_params", "zero_optimization.stage3_use_all_reduce_for_fetch_params", false},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential", false},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save", true},
};

}  // namespace

std::span<const DeepSpeedKey> DeepSpeedKeys() { return kKeys; }
std::span<const DeepSpeedAlias> DeepSpeedAliases() { return kAliases; }

const DeepSpeedKey* FindDeepSpeedKey(std::string_view path) {
  for (const DeepSpeedKey& key : DeepSpeedKeys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace argosy::train
