#include "train/config/deepspeed_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/config/deepspeed_file.h"
#include "train/config/deepspeed_keys.h"
#include "train/config/json.h"
#include "train/config/relaxed_json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultMicroBatch = 16;
constexpr double kDefaultLr = 5e-6;
constexpr double kDeepSpeedLr = 1e-3;       // of its optimizers and of warmup_max_lr, where the file does not say
constexpr int64_t kDeepSpeedWarmup = 1000;  // of its schedulers

std::string Text(int64_t value) { return fmt::format("{}", value); }
std::string Text(double value) { return fmt::format("{}", value); }
std::string Text(bool value) { return value ? "true" : "false"; }

// Makes one report from one file and one context.
class Resolver {
 public:
  explicit Resolver(const SettingsContext& context) : context_(context), flags_(context.flags) {}

  SettingsReport Run(std::string_view text) {
    DeepSpeedFile file = ReadDeepSpeedFile(text);
    given_ = std::move(file.values);
    report_.errors = std::move(file.errors);
    report_.warnings = std::move(file.warnings);
    ResolveBatch();
    ResolvePrecision();
    ResolveZero();
    ResolveOptimizer();
    ResolveSchedule();
    ResolveRest();
    ListTheOthers();
    return std::move(report_);
  }

 private:
  TrainSettings& Settings() { return report_.settings; }

  template <class... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    report_.errors.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Warn(fmt::format_string<Args...> format, Args&&... args) {
    report_.warnings.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void Row(std::string_view key, std::string value, std::string source, std::string note = "", ValueUse use = ValueUse::kHonoured) {
    report_.values.push_back({std::string(key), std::move(value), std::move(source), use, std::move(note)});
  }

  // --- What the file gives.

  bool IsAuto(std::string_view path) const {
    auto it = given_.find(path);
    return it != given_.end() && IsAutoText(it->second);
  }
  // Null when absent or "auto".
  const json* Given(std::string_view path) const {
    auto it = given_.find(path);
    return it == given_.end() || IsAutoText(it->second) ? nullptr : &it->second;
  }
  template <class T>
  std::optional<T> GivenAs(std::string_view path) const {
    const json* value = Given(path);
    if (value == nullptr) return std::nullopt;
    return value->get<T>();
  }

  // Flag, then file, then fallback; adds the row.
  template <class T>
  T Pick(std::string_view path, const std::optional<T>& flag, std::string_view flag_name, T fallback, std::string_view fallback_source = "default") {
    std::optional<T> file = GivenAs<T>(path);
    if (flag) {
      std::string note;
      if (file && *file != *flag) {
        note = fmt::format("overrides {} of the file", Text(*file));
        Warn("{} {} overrides \"{}\": {} of the file", flag_name, Text(*flag), path, Text(*file));
      }
      Row(path, Text(*flag), fmt::format("flag {}", flag_name), std::move(note));
      return *flag;
    }
    if (file) {
      Row(path, Text(*file), "file");
      return *file;
    }
    Row(path, Text(fallback), IsAuto(path) ? "auto" : std::string(fallback_source));
    return fallback;
  }

  // --- Batch sizes.

  struct BatchPart {
    std::string_view key;
    std::optional<int64_t> value;
    std::string source;
  };

  BatchPart Part(std::string_view key, const std::optional<int64_t>& flag, std::string_view flag_name) {
    BatchPart part{key, GivenAs<int64_t>(key), "file"};
    if (flag) {
      if (part.value && *part.value != *flag) {
        Warn("{} {} overrides \"{}\": {} of the file", flag_name, *flag, key, *part.value);
      }
      part.value = flag;
      part.source = fmt::format("flag {}", flag_name);
    }
    if (part.value && *part.value <= 0) {
      Error("\"{}\" is {} ({}): it has to be greater than 0", key, *part.value, part.source);
      part.value.reset();
      batch_failed_ = true;
    }
    return part;
  }

  static std::string Said(const BatchPart& part) { return fmt::format("{} = {} ({})", part.key, part.value.value_or(0), part.source); }

  // "504 or 756": the multiples of `unit` around `value`.
  static std::string Nearest(int64_t value, int64_t unit) {
    int64_t below = value / unit * unit;
    if (below == 0) return Text(unit);
    return fmt::format("{} or {}", below, below + unit);
  }

  void ResolveBatch() {
    const int64_t world = std::max<int64_t>(1, context_.world_size);
    BatchPart total = Part("train_batch_size", std::nullopt, "");
    BatchPart micro = Part("train_micro_batch_size_per_gpu", flags_.micro_batch_size, "--batch-size-per-device");
    BatchPart accumulation = Part("gradient_accumulation_steps", flags_.gradient_accumulation_steps, "--grad-accum");
    if (batch_failed_) return;
    const std::string ranks = fmt::format("{} rank{}", world, world == 1 ? "" : "s");

    auto infer = [](BatchPart& part, int64_t value, std::string source = "inferred") {
      part.value = value;
      part.source = std::move(source);
    };
    if (total.value && !micro.value && !accumulation.value) infer(accumulation, 1);
    if (!total.value) {
      auto fallback = [&](const BatchPart& part) { return std::string(IsAuto(part.key) ? "auto" : "default"); };
      if (!micro.value) infer(micro, kDefaultMicroBatch, fallback(micro));
      if (!accumulation.value) infer(accumulation, 1, fallback(accumulation));
      int64_t product = 0;
      if (__builtin_mul_overflow(*micro.value, *accumulation.value, &product) || __builtin_mul_overflow(product, world, &product)) {
        Error("{} x {} x {} is too large a batch", Said(micro), Said(accumulation), ranks);
        return;
      }
      infer(total, product);
    } else if (micro.value && accumulation.value) {
      const __int128 product = static_cast<__int128>(*micro.value) * *accumulation.value * world;
      if (product != *total.value) {
        int64_t step = 0;
        bool fits = !__builtin_mul_overflow(*micro.value, world, &step);
        std::string ways = product <= INT64_MAX ? fmt::format("set train_batch_size to {}, or to \"auto\"", static_cast<int64_t>(product))
                                                : std::string("set train_batch_size to \"auto\"");
        if (fits && *total.value % step == 0) {
          ways += fmt::format("; or gradient_accumulation_steps to {}", *total.value / step);
        } else if (fits) {
          ways += fmt::format("; with this micro-batch and {}, train_batch_size must be a multiple of {}: {}", ranks, step,
                              Nearest(*total.value, step));
        }
        Error("batch sizes do not multiply out: {} is not {} x {} x {} = {}: {}", Said(total), Said(micro), Said(accumulation), ranks,
              product <= INT64_MAX ? Text(static_cast<int64_t>(product)) : std::string("more than fits 64 bits"), ways);
        return;
      }
    } else {
      // One of the two is inferred: total / (the other x world), which must come out even.
      BatchPart& known = micro.value ? micro : accumulation;
      BatchPart& unknown = micro.value ? accumulation : micro;
      int64_t unit = 0;
      if (__builtin_mul_overflow(*known.value, world, &unit) || *total.value % unit != 0) {
        if (unit <= 0) {
          Error("{} x {} is too large a batch", Said(known), ranks);
          return;
        }
        Error("batch sizes do not multiply out: {} cannot be divided by {} x {} = {}, so that {} cannot be inferred: the nearest values of "
              "train_batch_size that work are {}",
              Said(total), Said(known), ranks, unit, unknown.key, Nearest(*total.value, unit));
        return;
      }
      infer(unknown, *total.value / unit);
    }
    Settings().train_batch_size = *total.value;
    Settings().micro_batch_size = *micro.value;
    Settings().gradient_accumulation_steps = *accumulation.value;
    Row(total.key, Text(*total.value), total.source, fmt::format("= {} x {} x {}", *micro.value, *accumulation.value, ranks));
    Row(micro.key, Text(*micro.value), micro.source);
    Row(accumulation.key, Text(*accumulation.value), accumulation.source);
  }

  // --- Precision.

  void ResolvePrecision() {
    if (GivenAs<bool>("fp16.enabled").value_or(false)) {
      if (GivenAs<bool>("bf16.enabled").value_or(false)) Error("\"fp16\" and \"bf16\" cannot both be enabled: keep \"bf16\"");
      Row("fp16.enabled", "true", "file", "training in fp16 is not supported", ValueUse::kRefused);
      Error("\"fp16\": {{\"enabled\": true}} is refused: training in fp16 needs loss scaling and loses small gradients; set it to false and "
            "\"bf16\": {{\"enabled\": true}}, or train in fp32 with --mx no");
    }
    std::optional<bool> file = GivenAs<bool>("bf16.enabled");
    std::optional<Precision> from_file;
    if (file) from_file = *file ? Precision::kBf16 : Precision::kFp32;
    Precision precision = flags_.precision.value_or(from_file.value_or(Precision::kBf16));
    std::string source = flags_.precision ? "flag --mx" : file ? "file" : IsAuto("bf16.enabled") ? "auto" : "default";
    std::string note;
    if (flags_.precision && from_file && *flags_.precision != *from_file) {
      note = fmt::format("overrides {} of the file", Text(*file));
      Warn("--mx {} overrides \"bf16.enabled\": {} of the file", PrecisionName(precision), Text(*file));
    } else if (precision == Precision::kFp32) {
      note = "training in fp32";
    }
    Settings().precision = precision;
    Row("bf16.enabled", Text(precision == Precision::kBf16), std::move(source), std::move(note));

    constexpr std::string_view kMoments = "bf16.bf16_optimizer_states";
    const std::optional<bool> narrow = GivenAs<bool>(kMoments);
    if (!narrow && !flags_.moments) return;
    Settings().moments = flags_.moments.value_or(narrow.value_or(false) ? Precision::kBf16 : Precision::kFp32);
    Row(kMoments, Text(Settings().moments == Precision::kBf16), flags_.moments ? "flag --moments" : "file",
        flags_.moments && narrow && *narrow != (*flags_.moments == Precision::kBf16) ? fmt::format("overrides {} of the file", Text(*narrow)) : "");
    if (Settings().moments == Precision::kBf16 && precision != Precision::kBf16) {
      Error("moments in bf16 are for training in bf16: give {} too, or moments in fp32", flags_.precision ? "--mx bf16" : "\"bf16\": {\"enabled\": true}");
    }
  }

  // --- ZeRO and offload.

  void ResolveZero() {
    std::optional<int64_t> flag;
    if (flags_.zero_stage) flag = *flags_.zero_stage;
    const bool has_section = std::any_of(given_.begin(), given_.end(), [](const auto& entry) { return entry.first.starts_with("zero_optimization."); });
    // DeepSpeed's own default is 0; a run that says nothing at all shards everything.
    int64_t stage = Pick<int64_t>("zero_optimization.stage", flag, "--zero-stage", has_section || !given_.empty() ? 0 : 3);
    if (stage < 0 || stage > 3) Error("\"zero_optimization.stage\" is {}: it must be 0, 1, 2 or 3", stage);
    else Settings().zero_stage = static_cast<int>(stage);

    if (std::optional<bool> old = GivenAs<bool>("zero_optimization.cpu_offload")) {
      Warn("\"zero_optimization.cpu_offload\" is an old name of \"offload_optimizer\": {{\"device\": \"cpu\"}}");
      if (given_.contains("zero_optimization.offload_optimizer.device")) {
        Error("\"cpu_offload\" and \"offload_optimizer\" are two names of the same setting: give one of them");
      } else {
        given_["zero_optimization.offload_optimizer.device"] = *old ? "cpu" : "none";
      }
    }
    if (std::optional<bool> old = GivenAs<bool>("zero_optimization.cpu_offload_param")) {
      Warn("\"zero_optimization.cpu_offload_param\" is an old name of \"offload_param\": {{\"device\": \"cpu\"}}");
      if (given_.contains("zero_optimization.offload_param.device")) {
        Error("\"cpu_offload_param\" and \"offload_param\" are two names of the same setting: give one of them");
      } else if (*old) {
        given_["zero_optimization.offload_param.device"] = "cpu";
      }
    }
    if (GivenAs<int64_t>("zero_optimization.allgather_bucket_size").value_or(0) % 2 != 0) {
      Error("\"zero_optimization.allgather_bucket_size\" is {}: it must be even", GivenAs<int64_t>("zero_optimization.allgather_bucket_size").value_or(0));
    }
    ResolveOffload();
  }

  void ResolveOffload() {
    constexpr std::string_view kDevice = "zero_optimization.offload_optimizer.device";
    constexpr std::string_view kFolder = "zero_optimization.offload_optimizer.nvme_path";
    const std::string file = GivenAs<std::string>(kDevice).value_or("none");
    if (file != "none" && file != "cpu" && file != "nvme") {
      Error("\"{}\" is \"{}\": it must be \"none\", \"cpu\" or \"nvme\"", kDevice, file);
      return;
    }
    const std::string in_file = GivenAs<std::string>(kFolder).value_or("");
    if (file == "nvme" && in_file.empty() && !flags_.offload) {
      Error("\"{}\" is \"nvme\" without \"nvme_path\": name the folder, on each rank's node, that gets the optimizer's state", kDevice);
    }
    const bool by_flag = flags_.offload.has_value();
    std::string device = file, note;
    if (by_flag) device = *flags_.offload == "none" || *flags_.offload == "cpu" ? *flags_.offload : "nvme";
    if (device == "nvme") {
      Settings().offload_folder = by_flag ? *flags_.offload : in_file;
      note = "in a file of " + Settings().offload_folder;
    }
    if (device == "cpu" || (device == "none" && !by_flag)) note = FindDeepSpeedKey(kDevice)->note;
    if (by_flag && given_.contains(kDevice)) {
      note += fmt::format("{}overrides {} of the file", note.empty() ? "" : "; ", file);
      Warn("--offload {} overrides \"{}\": \"{}\" of the file", *flags_.offload, kDevice, file);
    }
    if (by_flag || given_.contains(kDevice)) {
      Row(kDevice, device, by_flag ? "flag --offload" : IsAuto(kDevice) ? "auto" : "file", note, device == "none" && !by_flag ? ValueUse::kIgnored : ValueUse::kHonoured);
    }

    const int stage = Settings().zero_stage;
    if (file != "none" && stage == 0) {
      Error("\"{}\" is \"{}\" in stage 0, which has no sharded optimizer state: set \"zero_optimization.stage\" to 1, 2 or 3", kDevice, file);
    }
    if (std::optional<double> ratio = GivenAs<double>("zero_optimization.offload_optimizer.ratio")) {
      if (!(*ratio >= 0 && *ratio <= 1)) Error("\"zero_optimization.offload_optimizer.ratio\" is {}: it must be from 0 to 1", *ratio);
      else if (*ratio < 1 && stage != 3) Error("\"zero_optimization.offload_optimizer.ratio\" is {} in stage {}: only stage 3 offloads a part", *ratio, stage);
    }

    constexpr std::string_view kParam = "zero_optimization.offload_param.device";
    if (std::optional<std::string> param = GivenAs<std::string>(kParam)) {
      if (*param == "cpu" || *param == "nvme") {
        if (stage != 3) Error("\"{}\" is \"{}\" in stage {}: only stage 3 has parameters to offload", kParam, *param, stage);
        Row(kParam, *param, "file", "parameter shards stay on the device", ValueUse::kIgnored);
        Warn("\"{}\" is \"{}\": parameter shards stay on the device, which needs 2 bytes a parameter divided by the ranks there", kParam, *param);
      } else if (*param != "none") {
        Error("\"{}\" is \"{}\": it must be \"none\", \"cpu\" or \"nvme\"", kParam, *param);
      } else {
        Row(kParam, "none", "file");
      }
    }
  }

  // --- Optimizer.

  void ResolveOptimizer() {
    has_optimizer_ = std::any_of(given_.begin(), given_.end(), [](const auto& entry) { return entry.first.starts_with("optimizer."); });
    std::string type = GivenAs<std::string>("optimizer.type").value_or("AdamW");
    const std::string lower = absl::AsciiStrToLower(type);
    const bool plain_adam = lower == "adam" && !GivenAs<bool>("optimizer.params.adam_w_mode").value_or(true);
    if ((lower != "adam" && lower != "adamw") || plain_adam) {
      Row("optimizer.type", type, "file", "AdamW is the optimizer here", ValueUse::kRefused);
      Error("\"optimizer.type\" is \"{}\"{}: accepted are \"AdamW\", and \"Adam\", which means AdamW as in DeepSpeed", type,
            plain_adam ? " with \"adam_w_mode\": false" : "");
    } else {
      Row("optimizer.type", "AdamW", Given("optimizer.type") != nullptr ? "file" : IsAuto("optimizer.type") ? "auto" : "default",
          lower == "adam" && Given("optimizer.type") != nullptr ? "Adam means AdamW" : "");
    }
    if (!GivenAs<bool>("optimizer.params.bias_correction").value_or(true)) {
      Row("optimizer.params.bias_correction", "false", "file", "set it to true", ValueUse::kRefused);
      Error("\"optimizer.params.bias_correction\" is false: AdamW always corrects its moments here; set it to true");
    }
    if (Given("optimizer.params.max_grad_norm") != nullptr) {
      Error("\"optimizer.params.max_grad_norm\" is no optimizer parameter: use \"gradient_clipping\" at the top level");
    }
    lr_is_auto_ = IsAuto("optimizer.params.lr");
    const bool peer_default = has_optimizer_ && !lr_is_auto_;
    lr_ = Pick<double>("optimizer.params.lr", flags_.learning_rate, "--learning-rate", peer_default ? kDeepSpeedLr : kDefaultLr,
                       peer_default ? "DeepSpeed's default" : "default");
    if (!(lr_ >= 0.0) || !std::isfinite(lr_)) Error("\"optimizer.params.lr\" is {}: it must be 0 or more", lr_);
    ResolveBetas();
    TrainSettings& settings = Settings();
    settings.adam_eps = Pick<double>("optimizer.params.eps", flags_.adam_eps, "--adam-eps", settings.adam_eps);
    if (!(settings.adam_eps >= 0.0) || !std::isfinite(settings.adam_eps)) {
      Error("\"optimizer.params.eps\" is {}: it must be 0 or more", settings.adam_eps);
    }
    settings.weight_decay = Pick<double>("optimizer.params.weight_decay", flags_.weight_decay, "--weight-decay", settings.weight_decay);
    if (!(settings.weight_decay >= 0.0) || !std::isfinite(settings.weight_decay)) {
      Error("\"optimizer.params.weight_decay\" is {}: it must be 0 or more", settings.weight_decay);
    }
  }

  void ResolveBetas() {
    constexpr std::string_view kBetas = "optimizer.params.betas";
    double betas[2] = {Settings().adam_beta1, Settings().adam_beta2};
    std::string source = IsAuto(kBetas) ? "auto" : "default";
    if (const json* list = Given(kBetas)) {
      if (list->size() != 2 || !(*list)[0].is_number() || !(*list)[1].is_number()) {
        Error("\"{}\" is {}: it must be two numbers, as [0.9, 0.999]", kBetas, Shown(*list));
        return;
      }
      betas[0] = (*list)[0].get<double>();
      betas[1] = (*list)[1].get<double>();
      source = "file";
    }
    if (flags_.adam_beta1 || flags_.adam_beta2) {
      betas[0] = flags_.adam_beta1.value_or(betas[0]);
      betas[1] = flags_.adam_beta2.value_or(betas[1]);
      source = "flag --adam-betas";
    }
    for (double beta : betas) {
      if (!(beta >= 0.0 && beta < 1.0)) Error("\"{}\" has {}: each must be at least 0 and below 1", kBetas, beta);
    }
    Settings().adam_beta1 = betas[0];
    Settings().adam_beta2 = betas[1];
    Row(kBetas, fmt::format("[{}, {}]", betas[0], betas[1]), std::move(source));
  }

  // --- Schedule.

  void ResolveSchedule() {
    LrScheduleConfig& schedule = Settings().schedule;
    schedule = LrScheduleConfig{};
    schedule.lr = lr_;
    schedule.world_size = std::max<int64_t>(1, context_.world_size);
    schedule.total_steps = context_.total_steps;
    std::optional<std::string> type = GivenAs<std::string>("scheduler.type");
    if (!type && std::any_of(given_.begin(), given_.end(), [](const auto& entry) { return entry.first.starts_with("scheduler.params."); })) {
      Error("\"scheduler\" has params and no \"type\": give WarmupLR, WarmupDecayLR or WarmupCosineLR");
    }
    if (flags_.lr_scheduler || !type) {
      schedule.type = flags_.lr_scheduler.value_or(LrScheduleType::kLinear);
      if (flags_.lr_scheduler && type) Warn("--lr-scheduler {} overrides the scheduler {} of the file", LrScheduleName(schedule.type), *type);
      Row("scheduler.type", std::string(LrScheduleName(schedule.type)), flags_.lr_scheduler ? "flag --lr-scheduler" : "default");
      ResolveOwnWarmup(schedule);
    } else {
      absl::StatusOr<LrScheduleType> known = LrScheduleTypeFromName(*type);
      const bool from_deepspeed = known.ok() && *known >= LrScheduleType::kWarmupLr;
      if (!from_deepspeed) {
        Row("scheduler.type", *type, "file", "not available", ValueUse::kRefused);
        Error("\"scheduler.type\" is \"{}\": accepted are WarmupLR, WarmupDecayLR and WarmupCosineLR; without a scheduler in the file "
              "--lr-scheduler linear, cosine and constant are there too", *type);
        return;
      }
      schedule.type = *known;
      Row("scheduler.type", std::string(LrScheduleName(schedule.type)), "file");
      ResolveDeepSpeedSchedule(schedule);
    }
    if (absl::Status status = CheckLrSchedule(schedule); !status.ok() && report_.errors.empty()) report_.errors.push_back(Message(status));
  }

  void ResolveOwnWarmup(LrScheduleConfig& schedule) {
    if (flags_.warmup_steps && flags_.warmup_ratio) Error("--warmup-steps and --warmup-ratio say the same thing in two ways: give one of them");
    if (flags_.warmup_ratio) {
      schedule.warmup_ratio = *flags_.warmup_ratio;
      Row("warmup_ratio", Text(schedule.warmup_ratio), "flag --warmup-ratio");
    } else {
      schedule.warmup_steps = flags_.warmup_steps.value_or(schedule.warmup_steps);
      Row("warmup_steps", Text(schedule.warmup_steps), flags_.warmup_steps ? "flag --warmup-steps" : "default", "optimizer steps");
    }
    schedule.min_lr = flags_.min_lr.value_or(0.0);
    if (flags_.min_lr) Row("min_lr", Text(schedule.min_lr), "flag --min-lr");
  }

  void ResolveDeepSpeedSchedule(LrScheduleConfig& schedule) {
    const bool cosine = schedule.type == LrScheduleType::kWarmupCosineLr;
    constexpr std::string_view kWarmup = "scheduler.params.warmup_num_steps";
    constexpr std::string_view kTotal = "scheduler.params.total_num_steps";
    constexpr std::string_view kMaxLr = "scheduler.params.warmup_max_lr";
    const bool warmup_auto = IsAuto(kWarmup);
    if (warmup_auto && flags_.warmup_ratio) {
      schedule.warmup_ratio = *flags_.warmup_ratio;
      Row(kWarmup, fmt::format("{} of all steps", schedule.warmup_ratio), "flag --warmup-ratio");
    } else {
      schedule.warmup_steps = Pick<int64_t>(kWarmup, flags_.warmup_steps, "--warmup-steps", warmup_auto ? 10 : kDeepSpeedWarmup,
                                            "DeepSpeed's default");
      if (schedule.warmup_steps <= 0) Error("\"{}\" is {}: it must be a positive integer", kWarmup, schedule.warmup_steps);
    }
    std::string warmup_type = GivenAs<std::string>("scheduler.params.warmup_type").value_or("log");
    if (warmup_type != "log" && warmup_type != "linear") {
      Warn("\"scheduler.params.warmup_type\" is \"{}\", which is not known: \"log\" is used", warmup_type);
      warmup_type = "log";
    }
    schedule.log_warmup = warmup_type == "log";
    Row("scheduler.params.warmup_type", warmup_type, Given("scheduler.params.warmup_type") != nullptr ? "file" : "DeepSpeed's default");
    if (cosine) {
      schedule.warmup_min_ratio = Pick<double>("scheduler.params.warmup_min_ratio", std::nullopt, "", 0.0, "DeepSpeed's default");
      schedule.cosine_min_ratio = Pick<double>("scheduler.params.cos_min_ratio", std::nullopt, "", 1e-4, "DeepSpeed's default");
    } else {
      schedule.min_lr = Pick<double>("scheduler.params.warmup_min_lr", flags_.min_lr, "--min-lr", 0.0, "DeepSpeed's default");
      // WarmupLR falls back on the optimizer's rate, WarmupDecayLR on a constant.
      const bool own = schedule.type == LrScheduleType::kWarmupDecayLr && !IsAuto(kMaxLr) && Given(kMaxLr) == nullptr && !flags_.learning_rate;
      schedule.lr = Pick<double>(kMaxLr, flags_.learning_rate, "--learning-rate", own ? kDeepSpeedLr : lr_,
                                 own ? "DeepSpeed's default" : "optimizer.params.lr");
      if (schedule.lr != lr_) {
        Warn("the schedule's peak is \"{}\" = {}, not \"optimizer.params.lr\" = {}", kMaxLr, schedule.lr, lr_);
      }
    }
    if (schedule.type == LrScheduleType::kWarmupLr) return;
    if (std::optional<int64_t> total = GivenAs<int64_t>(kTotal)) {
      schedule.total_steps = *total;
      if (*total <= 0) Error("\"{}\" is {}: it must be a positive integer", kTotal, *total);
      Row(kTotal, Text(*total), "file");
      if (context_.total_steps > 0 && context_.total_steps != *total) {
        Warn("\"{}\" is {}, the run has {} optimizer steps", kTotal, *total, context_.total_steps);
      }
    } else {
      Row(kTotal, schedule.total_steps > 0 ? Text(schedule.total_steps) : "the run's", IsAuto(kTotal) ? "auto" : "inferred", "optimizer steps");
    }
    if (schedule.total_steps > 0 && schedule.warmup_ratio < 0 && schedule.total_steps < schedule.warmup_steps) {
      Warn("\"{}\" = {} is less than \"{}\" = {}: the rate never reaches its peak", kTotal, schedule.total_steps, kWarmup, schedule.warmup_steps);
    }
  }

  // --- The rest.

  void ResolveRest() {
    TrainSettings& settings = Settings();
    settings.gradient_clipping = Pick<double>("gradient_clipping", flags_.max_grad_norm, "--max-grad-norm", settings.gradient_clipping);
    if (!(settings.gradient_clipping >= 0.0) || !std::isfinite(settings.gradient_clipping)) {
      Error("\"gradient_clipping\" is {}: it must be 0 (off) or more", settings.gradient_clipping);
    }
    std::string op = GivenAs<std::string>("gradient_allreduce_op").value_or("mean");
    if (op != "mean") {
      Row("gradient_allreduce_op", op, "file", "set it to \"mean\"", ValueUse::kRefused);
      Error("\"gradient_allreduce_op\" is \"{}\": the loss is the mean over all target tokens of a step, so only \"mean\" is accepted", op);
    }
    if (!GivenAs<bool>("managed_gradient_accumulation").value_or(true)) {
      Row("managed_gradient_accumulation", "false", "file", "set it to true", ValueUse::kRefused);
      Error("\"managed_gradient_accumulation\" is false: the run itself decides when an optimizer step is due; set it to true");
    }
    CheckNames("communication_data_type", {"fp16", "bf16", "fp32"});
    if (const json* checkpoint = Given("checkpoint"); checkpoint != nullptr && checkpoint->is_object() && checkpoint->contains("tag_validation")) {
      const json& value = (*checkpoint)["tag_validation"];
      const std::string lower = value.is_string() ? absl::AsciiStrToLower(value.get<std::string>()) : "";
      if (lower != "ignore" && lower != "warn" && lower != "fail") {
        Error("\"checkpoint.tag_validation\" is {}: it must be \"Ignore\", \"Warn\" or \"Fail\"", Shown(value));
      }
    }
    if (const json* types = Given("data_types"); types != nullptr && types->is_object() && types->contains("grad_accum_dtype")) {
      const json& value = (*types)["grad_accum_dtype"];
      if (!value.is_null() && value != "fp32" && value != "fp16" && value != "bf16") {
        Error("\"data_types.grad_accum_dtype\" is {}: it must be \"fp32\", \"fp16\" or \"bf16\"", Shown(value));
      }
    }
    if (int64_t size = GivenAs<int64_t>("sequence_parallel_size").value_or(1); size != 1) {
      Row("sequence_parallel_size", Text(size), "file", "set it to 1", ValueUse::kRefused);
      Error("\"sequence_parallel_size\" is {}: sequences are not split over ranks; set it to 1", size);
    }
  }

  void CheckNames(std::string_view path, std::initializer_list<std::string_view> accepted) {
    std::optional<std::string> name = GivenAs<std::string>(path);
    if (!name || std::find(accepted.begin(), accepted.end(), *name) != accepted.end()) return;
    Error("\"{}\" is \"{}\": accepted are {}", path, *name, fmt::join(accepted, ", "));
  }

  // "auto" sizes as transformers resolves them, for the table.
  std::string AutoText(std::string_view path) const {
    const int64_t h = context_.hidden_size;
    if (h > 0) {
      if (path == "zero_optimization.reduce_bucket_size") return Text(h * h);
      if (path == "zero_optimization.stage3_prefetch_bucket_size") return Text(static_cast<int64_t>(0.9 * static_cast<double>(h) * static_cast<double>(h)));
      if (path == "zero_optimization.stage3_param_persistence_threshold") return Text(10 * h);
    }
    return "auto";
  }

  void ListTheOthers() {
    for (const auto& [path, value] : given_) {
      const DeepSpeedKey* key = FindDeepSpeedKey(path);
      if (key == nullptr || key->fate == KeyFate::kHonoured) continue;
      bool refused = key->fate == KeyFate::kRefusedIfTrue && value.is_boolean() && value.get<bool>();
      if (key->fate == KeyFate::kRefusedIfEnabled && value.is_object()) {
        auto enabled = value.find("enabled");
        refused = enabled == value.end() ? !value.empty() : enabled->is_boolean() && enabled->get<bool>();
      }
      if (refused) {
        Row(path, Shown(value), "file", std::string(key->note), ValueUse::kRefused);
        Error("\"{}\" is {}: {}", path, Shown(value), key->note);
      } else {
        const bool automatic = IsAutoText(value);
        Row(path, automatic ? AutoText(path) : Shown(value), automatic ? "auto" : "file", std::string(key->note), ValueUse::kIgnored);
      }
    }
  }

  const SettingsContext& context_;
  const CommandLineSettings& flags_;
  SettingsReport report_;
  std::map<std::string, json, std::less<>> given_;  // canonical path -> value, "auto" included
  bool batch_failed_ = false;
  bool has_optimizer_ = false;
  bool lr_is_auto_ = false;
  double lr_ = kDefaultLr;
};

}  // namespace

absl::StatusOr<Precision> PrecisionFromName(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(ToAbsl(name));
  if (lower == "bf16" || lower == "bfloat16") return Precision::kBf16;
  if (lower == "no" || lower == "fp32" || lower == "float32") return Precision::kFp32;
  if (lower == "fp16" || lower == "float16") {
    return InvalidArgument("training in fp16 needs loss scaling and loses small gradients, and is not supported: use --mx bf16, or --mx no for fp32");
  }
  if (lower == "fp8") return InvalidArgument("training in fp8 is not supported: use --mx bf16, or --mx no for fp32");
  return InvalidArgument("precision \"{}\" is not known: accepted are bf16 and fp32 (or no)", name);
}

std::string_view PrecisionName(Precision precision) { return precision == Precision::kBf16 ? "bf16" : "fp32"; }

std::string SettingsReport::ToText() const {
  size_t key_width = 3, value_width = 5, source_width = 4;
  for (const EffectiveValue& value : values) {
    key_width = std::max(key_width, value.key.size());
    value_width = std::max(value_width, value.value.size());
    source_width = std::max(source_width, value.source.size());
  }
  std::string text;
  auto section = [&](ValueUse use, std::string_view title) {
    bool first = true;
    for (const EffectiveValue& value : values) {
      if (value.use != use) continue;
      if (first) text += fmt::format("{}\n", title);
      first = false;
      std::string line = fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}", value.key, key_width, value.value, value_width, value.source, source_width,
                                     value.note);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  };
  section(ValueUse::kHonoured, "Settings:");
  section(ValueUse::kIgnored, "Ignored (results are the same without):");
  section(ValueUse::kRefused, "Refused:");
  for (const std::string& warning : warnings) text += fmt::format("warning: {}\n", warning);
  for (const std::string& error : errors) text += fmt::format("error: {}\n", error);
  return text;
}

absl::StatusOr<std::string> ReadDeepSpeedText(const std::string& path_or_base64) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path_or_base64, error);
  if (std::filesystem::is_regular_file(status) || std::filesystem::is_fifo(status)) {
    ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path_or_base64));
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return InvalidArgument("{} is empty: the least that a DeepSpeed file has is {{}}", path_or_base64);
    return text;
  }
  std::string text;
  const bool decoded = absl::WebSafeBase64Unescape(path_or_base64, &text) || absl::Base64Unescape(path_or_base64, &text);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (decoded && begin != std::string::npos && text[begin] == '{') return text;
  // A file may do without the outer braces; the name of a file that is not there is seldom such text.
  if (decoded && begin != std::string::npos) {
    const json object = json::parse(JsonFromHjson(text).text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && !object.empty()) return text;
  }
  const std::string shown = path_or_base64.size() > 80 ? path_or_base64.substr(0, 77) + "..." : path_or_base64;
  return NotFound("{} is no file, and no DeepSpeed file in base64 either", shown);
}

SettingsReport ValidateDeepSpeedConfig(std::string_view json_text, const SettingsContext& context) {
  return Resolver(context).Run(json_text);
}

absl::StatusOr<SettingsReport> ResolveSettings(std::string_view json_text, const SettingsContext& context) {
  SettingsReport report = ValidateDeepSpeedConfig(json_text, context);
  if (report.ok()) return report;
  if (report.errors.size() == 1) return InvalidArgument("{}", report.errors.front());
  std::string text = fmt::format("{} things are wrong:", report.errors.size());
  for (const std::string& error : report.errors) text += fmt::format("\n  - {}", error);
  return InvalidArgument("{}", text);
}

}  // namespace argosy::train
