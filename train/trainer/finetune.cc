#include "train/trainer/finetune.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "absl/time/clock.h"
#include "argosy/argosy.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/data/dataset.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/model_source.h"
#include "train/trainer/progress.h"
#include "train/trainer/rank_worker.h"
#include "train/trainer/run_spec.h"

namespace argosy::train {
namespace {

// Flushed line by line: a job's log is followed while it grows.
template <class... Args>
void Say(fmt::format_string<Args...> format, Args&&... args) {
  std::string line = fmt::format(format, std::forward<Args>(args)...);
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

absl::Status NeedFile(const std::string& flag, const std::string& path) {
  struct stat info;
  if (path.empty()) return InvalidArgument("{} is missing", flag);
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("{} {}", flag, path));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} {} is not a file", flag, path);
  return absl::OkStatus();
}

// One held-out row as text, cut where its answer begins.
struct HeldOut {
  std::vector<int32_t> prompt;
  std::string prompt_text;
  std::vector<int32_t> answer;
};

class Run {
 public:
  explicit Run(const FinetuneOptions& options) : options_(options) {}

  absl::Status Execute() {
    ARGOSY_RETURN_IF_ERROR(Prepare());
    ARGOSY_RETURN_IF_ERROR(Place());
    ARGOSY_RETURN_IF_ERROR(Load());
    if (options_.eval_first && eval_.size() > 0) ARGOSY_RETURN_IF_ERROR(EvaluateBase());
    if (options_.sample_prompts > 0 && !held_out_.empty() && !options_.random_weights) {
      ARGOSY_ASSIGN_OR_RETURN(base_answers_, Answer(options_.model_directory, base_vocab_size_, SampleCount()));
    }
    for (int64_t epoch = 0; epoch < epochs_; ++epoch) {
      ARGOSY_RETURN_IF_ERROR(TrainEpoch(epoch));
      if (epochs_table_.back().has_eval && Perplexity(epochs_table_.back().eval_loss) < options_.stop_perplexity) {
        Say("perplexity {:.3f} is below {}: stopping here", Perplexity(epochs_table_.back().eval_loss), options_.stop_perplexity);
        break;
      }
      if (options_.max_steps > 0 && steps_done_ >= options_.max_steps) break;
    }
    return Finish();
  }

 private:
  // Everything that can be wrong before an actor is started.
  absl::Status Prepare() {
    ARGOSY_RETURN_IF_ERROR(CheckFinetuneOptions(options_));
    if (!options_.metrics_path.empty()) {
      metrics_ = std::fopen(options_.metrics_path.c_str(), "w");
      if (metrics_ == nullptr) return ErrnoStatus(errno, "--metrics-path " + options_.metrics_path);
    }
    ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(options_.model_directory));
    ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(options_.model_directory));
    tokenizer_.emplace(std::move(tokenizer));
    int32_t added = 0;
    if (!options_.special_token_path.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadSpecialTokens(options_.special_token_path));
      added = tokenizer_->AddTokens(tokens);
    }
    spec_.model = {.directory = options_.model_directory,
                   .vocab_size = std::max<int64_t>(config.vocab_size, tokenizer_->VocabularySize()),
                   .random_weights = options_.random_weights, .seed = options_.seed};
    // The headers of the weights, as every rank will read them: a damaged model is refused while nothing runs.
    ARGOSY_RETURN_IF_ERROR(OpenModel(spec_.model).status());

    RowOptions rows = options_.rows;
    rows.append_eos = !options_.recipe_parity;   // the recipes' tokenizers append none
    ARGOSY_ASSIGN_OR_RETURN(train_, ReadSamples(options_.train_path, *tokenizer_, rows));
    if (!options_.test_path.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(eval_, ReadSamples(options_.test_path, *tokenizer_, rows));
    }
    FindHeldOut();

    SettingsContext context{.world_size = options_.scaling.num_workers, .hidden_size = config.hidden_size, .total_steps = 0,
                            .flags = options_.flags};
    std::string ds_json;
    if (!options_.ds_config_path.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(ds_json, ReadFile(options_.ds_config_path));
    }
    ARGOSY_ASSIGN_OR_RETURN(SettingsReport report, ResolveSettings(ds_json, context));
    settings_ = report.settings;

    FillBatch();
    BatchPlanOptions plan_options{.ctx_len = spec_.batch.ctx_len, .rows_per_step = settings_.train_batch_size,
                                  .micro_batches = spec_.batch.micro_batches, .seed = spec_.batch.seed,
                                  .shuffle = spec_.batch.shuffle, .pack = spec_.batch.pack};
    ARGOSY_ASSIGN_OR_RETURN(BatchPlan plan, BatchPlan::Make(train_, plan_options));
    plan_.emplace(std::move(plan));
    epochs_ = options_.as_test ? 1 : options_.num_epochs;
    total_steps_ = plan_->TotalSteps(epochs_);
    if (options_.max_steps > 0) total_steps_ = std::min(total_steps_, options_.max_steps);
    if (options_.as_test) total_steps_ = 1;
    context.total_steps = total_steps_;
    // Schedules whose length is "auto" are resolved against the run's own number of steps.
    ARGOSY_ASSIGN_OR_RETURN(report, ResolveSettings(ds_json, context));
    settings_ = report.settings;
    if (settings_.schedule.total_steps == 0) settings_.schedule.total_steps = total_steps_;
    ARGOSY_RETURN_IF_ERROR(CheckLrSchedule(settings_.schedule));
    FillEngine();
    base_vocab_size_ = config.vocab_size;
    weight_bytes_ = config.ParameterCount() * (save_dtype_ == DType::kF32 ? 4 : 2);

    Say("model:     {} ({} layers, {} parameters, vocabulary {}{})", options_.model_directory, config.num_hidden_layers,
        config.ParameterCount(), spec_.model.vocab_size, added > 0 ? fmt::format(", {} tokens added", added) : "");
    Say("data:      {} train rows ({} tokens), {} test rows; context {}{}", train_.size(), train_.tokens.size(), eval_.size(),
        spec_.batch.ctx_len, spec_.batch.pack ? ", packed" : "");
    if (train_.cut + train_.dropped > 0) Say("           {} rows were cut and {} dropped at {} tokens", train_.cut, train_.dropped, spec_.batch.ctx_len);
    Say("run:       {} ranks x {} rows x {} micro-batches = {} rows a step, {} steps in {} epochs, ZeRO-{}, {}, device {}",
        options_.scaling.num_workers, settings_.micro_batch_size, settings_.gradient_accumulation_steps, settings_.train_batch_size,
        total_steps_, epochs_, settings_.zero_stage, PrecisionName(settings_.precision), options_.device);
    if (!options_.recompute && settings_.zero_stage == 3) {
      Say("           --no-grad-ckpt: ZeRO-3 computes layers again all the same, because kept activations would hold gathered weights");
    }
    Say("\n{}", report.ToText());
    return absl::OkStatus();
  }

  void FillBatch() {
    BatchSpec& batch = spec_.batch;
    batch.ctx_len = options_.rows.ctx_len;
    batch.micro_batch_rows = settings_.micro_batch_size;
    batch.micro_batches = static_cast<int32_t>(settings_.gradient_accumulation_steps);
    batch.eval_batch_rows = options_.eval_batch_size > 0 ? options_.eval_batch_size : settings_.micro_batch_size;
    batch.eval_rows_max = options_.as_test ? batch.eval_batch_rows * options_.scaling.num_workers : options_.eval_rows;
    batch.seed = options_.seed;
    batch.recipe_parity = options_.recipe_parity;
    batch.shuffle = batch.pack = !options_.recipe_parity;
    if (!options_.pack) batch.pack = false;
    batch.pad_left = tokenizer_->padding_side() == PaddingSide::kLeft;
    batch.pad_id = tokenizer_->PadId().value_or(tokenizer_->EosId().value_or(0));
  }

  void FillEngine() {
    DType dtype = settings_.precision == Precision::kBf16 ? DType::kBF16 : DType::kF32;
    save_dtype_ = options_.save_dtype.empty() ? dtype : options_.save_dtype == "bf16" ? DType::kBF16 : DType::kF32;
    spec_.engine = {.zero_stage = settings_.zero_stage, .dtype = dtype, .adam_beta1 = settings_.adam_beta1,
                    .adam_beta2 = settings_.adam_beta2, .adam_eps = settings_.adam_eps, .weight_decay = settings_.weight_decay,
                    .decay_vectors = !options_.no_decay_1d, .max_grad_norm = settings_.gradient_clipping,
                    .recompute = options_.recompute};
    spec_.schedule = settings_.schedule;
    spec_.run_id = "finetune-" + TaskId::Random().Short();
  }

  // The prompts of held-out rows: everything before the first target.
  void FindHeldOut() {
    int64_t wanted = std::max(options_.sample_prompts, options_.exact_rows);
    for (int64_t i = 0; i < eval_.size() && static_cast<int64_t>(held_out_.size()) < wanted; ++i) {
      std::span<const int32_t> sample = eval_.Sample(i);
      int32_t from = eval_.loss_from[i];
      if (from < 2) {
        // The data does not tell the answer apart: show how it goes on after its first half.
        if (options_.exact_rows > 0) continue;
        from = static_cast<int32_t>(sample.size() / 2);
      }
      if (from < 1 || from >= static_cast<int32_t>(sample.size())) continue;
      HeldOut row;
      row.prompt.assign(sample.begin(), sample.begin() + from);
      row.answer.assign(sample.begin() + from, sample.end());
      row.prompt_text = tokenizer_->Decode(row.prompt);
      held_out_.push_back(std::move(row));
    }
  }

  absl::Status Place() {
    const ScalingConfig& scaling = options_.scaling;
    PlacementGroupOptions group{.strategy = GroupStrategy::kPack, .name = spec_.run_id};
    for (int32_t rank = 0; rank < scaling.num_workers; ++rank) {
      Bundle bundle{.resources = scaling.resources_per_worker, .label_selector = scaling.label_selector};
      if (rank == 0) {
        for (const auto& [name, amount] : scaling.trainer_resources) bundle.resources[name] += amount;
      }
      group.bundles.push_back(std::move(bundle));
    }
    group_ = CreatePlacementGroup(group);
    absl::Time begin = absl::Now();
    for (absl::Duration wait = absl::Seconds(2);; wait = absl::Seconds(10)) {
      absl::Duration left = scaling.start_timeout == absl::InfiniteDuration() ? wait : begin + scaling.start_timeout - absl::Now();
      if (group_->Wait(std::min(wait, std::max(left, absl::ZeroDuration())))) break;
      std::string reason = group_->PendingReason();
      if (absl::Now() - begin >= scaling.start_timeout) {
        Remove(*group_);
        return Unavailable("the {} workers could not be placed within --start-timeout {}: {}", scaling.num_workers,
                           FormatSeconds(absl::ToDoubleSeconds(scaling.start_timeout)), reason);
      }
      Say("waiting for {} workers to be placed ({}): {}", scaling.num_workers, FormatSeconds(SecondsSince(begin)), reason);
    }
    for (int32_t rank = 0; rank < scaling.num_workers; ++rank) {
      ranks_.push_back(Spawn<RankWorker>({.resources = group.bundles[rank].resources, .placement_group = group_->id(),
                                          .bundle_index = rank}, rank, scaling.num_workers));
    }
    std::vector<ObjectRef<RankHello>> hellos;
    for (const Actor<RankWorker>& rank : ranks_) hellos.push_back(rank.Call<&RankWorker::Hello>());
    hellos_ = Get(hellos);
    // The checkpoints go to rank 0's node, which may see other folders than this driver.
    Get(ranks_[0].Call<&RankWorker::PrepareOutput>(options_.output_dir, weight_bytes_));
    for (int32_t rank = 0; rank < scaling.num_workers; ++rank) {
      std::string with;
      for (const auto& [name, amount] : group.bundles[rank].resources) with += fmt::format("{}{}: {}", with.empty() ? "" : ", ", name, amount);
      Say("rank {}:    node {} (pid {}), device {}, holds {}", rank, hellos_[rank].node_name, hellos_[rank].pid, options_.device, with);
    }
    return absl::OkStatus();
  }

  absl::Status Load() {
    std::vector<Endpoint> endpoints;
    std::map<std::string, int> ranks_on_node;
    for (const RankHello& hello : hellos_) {
      endpoints.push_back(hello.endpoint);
      ++ranks_on_node[hello.endpoint.tcp.substr(0, hello.endpoint.tcp.rfind(':'))];
    }
    spec_.engine.threads = options_.threads;
    if (options_.threads == 0) {
      // Ranks that share a host share its cores.
      int most = 1;
      for (const auto& [host, count] : ranks_on_node) most = std::max(most, count);
      spec_.engine.threads = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) / most);
    }
    ObjectRef<ShippedSamples> train = Put(Ship(train_)), eval = Put(Ship(eval_));
    std::vector<ObjectRef<RankReady>> pending;
    for (const Actor<RankWorker>& rank : ranks_) pending.push_back(rank.Call<&RankWorker::Setup>(spec_, endpoints, train, eval));
    std::vector<RankReady> ready = Get(pending);
    for (size_t rank = 0; rank < ready.size(); ++rank) {
      Say("rank {}:    weights, gradients and optimizer {}, loaded in {}, {} threads", rank, FormatBytes(ready[rank].state_bytes),
          FormatSeconds(ready[rank].load_seconds), ready[rank].threads);
    }
    if (options_.print_schedule) Say("\n{}", Get(ranks_[0].Call<&RankWorker::Schedule>()));
    return absl::OkStatus();
  }

  EvalReport EvaluateAll() {
    std::vector<ObjectRef<EvalReport>> pending;
    for (const Actor<RankWorker>& rank : ranks_) pending.push_back(rank.Call<&RankWorker::Evaluate>());
    return Get(pending)[0];
  }

  double MeanLoss(const EvalReport& report) const {
    if (options_.recipe_parity) return report.batch_mean_loss;
    return report.target_tokens > 0 ? report.nll / static_cast<double>(report.target_tokens) : 0;
  }

  absl::Status EvaluateBase() {
    EvalReport report = EvaluateAll();
    EpochRow row{.eval_seconds = report.seconds, .eval_loss = MeanLoss(report), .has_eval = true};
    Say("base:      eval loss {:.4f}, perplexity {:.3f}", row.eval_loss, Perplexity(row.eval_loss));
    epochs_table_.push_back(row);
    return absl::OkStatus();
  }

  absl::Status TrainEpoch(int64_t epoch) {
    int64_t steps = plan_->StepsInEpoch(epoch);
    steps = std::min(steps, total_steps_ - steps_done_);
    EpochRow row{.epoch = epoch + 1, .steps = steps};
    absl::Time begin = absl::Now();
    double loss_sum = 0, tokens = 0, last_print = -1;
    int64_t chunk = 1;
    for (int64_t step = 0; step < steps;) {
      int64_t count = std::min(chunk, steps - step);
      absl::Time chunk_begin = absl::Now();
      std::vector<ObjectRef<std::vector<StepReport>>> pending;
      for (const Actor<RankWorker>& rank : ranks_) pending.push_back(rank.Call<&RankWorker::Train>(epoch, step, count));
      std::vector<std::vector<StepReport>> reports = Get(pending);
      double seconds = SecondsSince(chunk_begin);
      int64_t useful = 0, computed = 0;
      for (const std::vector<StepReport>& of_rank : reports) {
        for (const StepReport& report : of_rank) {
          useful += report.useful_tokens;
          computed += report.computed_tokens;
        }
      }
      for (const StepReport& report : reports[0]) {
        loss_sum += report.loss * static_cast<double>(report.target_tokens);
        tokens += static_cast<double>(report.target_tokens);
        Record({{"epoch", epoch + 1}, {"step", report.step + 1}, {"loss", report.loss}, {"lr", report.learning_rate},
                {"grad_norm", report.grad_norm}, {"target_tokens", report.target_tokens}, {"seconds", report.seconds}});
      }
      tokens_done_ += useful;
      step += count;
      steps_done_ += count;
      train_seconds_ += seconds;
      double elapsed = SecondsSince(begin);
      // A line a second at most, and the last of each epoch.
      if (last_print < 0 || elapsed - last_print >= 1 || step == steps) {
        last_print = elapsed;
        StepLine line{.report = reports[0].back(), .steps_in_epoch = steps, .epochs = epochs_,
                      .tokens_per_second = static_cast<double>(useful) / seconds,
                      .useful_share = computed > 0 ? static_cast<double>(useful) / static_cast<double>(computed) : 1,
                      .eta_seconds = train_seconds_ / static_cast<double>(steps_done_) * static_cast<double>(total_steps_ - steps_done_)};
        Say("{}", FormatStep(line));
      }
      // About half a second of steps at a time: progress is seen, and the calls cost nothing.
      double per_step = seconds / static_cast<double>(count);
      chunk = std::clamp<int64_t>(static_cast<int64_t>(0.5 / std::max(per_step, 1e-6)), 1, 1000);
    }
    row.train_seconds = SecondsSince(begin);
    row.train_loss = tokens > 0 ? loss_sum / tokens : 0;
    row.tokens_per_second = static_cast<double>(tokens_done_ - tokens_before_) / std::max(row.train_seconds, 1e-9);
    tokens_before_ = tokens_done_;
    if (eval_.size() > 0) {
      EvalReport report = EvaluateAll();
      row.has_eval = true;
      row.eval_loss = MeanLoss(report);
      row.eval_seconds = report.seconds;
      Say("epoch {}:   train loss {:.4f}, eval loss {:.4f}, perplexity {:.3f}", epoch + 1, row.train_loss, row.eval_loss,
          Perplexity(row.eval_loss));
    }
    ARGOSY_RETURN_IF_ERROR(SaveEpoch(epoch, &row));
    epochs_table_.push_back(row);
    nlohmann::json record{{"epoch", epoch + 1}, {"train_loss", row.train_loss}, {"train_seconds", row.train_seconds},
                          {"checkpoint", checkpoint_}};
    if (row.has_eval) {
      record["eval_loss"] = row.eval_loss;
      record["perplexity"] = Perplexity(row.eval_loss);
    }
    Record(record);
    return absl::OkStatus();
  }

  absl::Status SaveEpoch(int64_t epoch, EpochRow* row) {
    SaveSpec save{.directory = fmt::format("{}/epoch-{}", options_.output_dir, epoch + 1), .save_dtype = save_dtype_,
                  .shard_bytes_max = options_.shard_size_bytes, .step = steps_done_, .epoch = epoch + 1,
                  .num_to_keep = options_.num_checkpoints_to_keep};
    save.metrics["train_loss"] = row->train_loss;
    if (row->has_eval) {
      save.metrics["eval_loss"] = row->eval_loss;
      save.metrics["perplexity"] = Perplexity(row->eval_loss);
    }
    ARGOSY_ASSIGN_OR_RETURN(save.files, TokenizerFilesOfRun());
    Say("saving:    {} from {} ranks to {} on node {}", save_dtype_ == DType::kF32 ? "fp32 weights" : "bf16 weights", ranks_.size(),
        save.directory, hellos_[0].node_name);
    std::vector<ObjectRef<SaveReport>> pending;
    for (const Actor<RankWorker>& rank : ranks_) pending.push_back(rank.Call<&RankWorker::Save>(save));
    SaveReport report = Get(pending)[0];
    row->save_seconds = report.seconds;
    checkpoint_ = save.directory;
    Say("saved:     {} in {} file{}, {}", FormatBytes(report.bytes), report.files, report.files == 1 ? "" : "s",
        FormatSeconds(report.seconds));
    return absl::OkStatus();
  }

  // The tokenizer's files when the run added tokens; else they are copied from the source.
  absl::StatusOr<std::map<std::string, std::string>> TokenizerFilesOfRun() {
    std::map<std::string, std::string> files;
    if (options_.special_token_path.empty()) return files;
    std::string folder = (std::filesystem::temp_directory_path() / (spec_.run_id + "-XXXXXX")).string();
    if (::mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, folder);
    absl::Status status = tokenizer_->Save(folder);
    if (status.ok()) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        absl::StatusOr<std::string> content = ReadFile(entry.path().string());
        if (!content.ok()) { status = content.status(); break; }
        files[entry.path().filename().string()] = *std::move(content);
      }
    }
    std::filesystem::remove_all(folder);
    if (!status.ok()) return status;
    return files;
  }

  size_t SampleCount() const { return std::min<size_t>(options_.sample_prompts, held_out_.size()); }

  absl::StatusOr<std::vector<std::string>> Answer(const std::string& directory, int64_t vocab_size, size_t count) {
    GenerateSpec generate{.directory = directory, .max_new_tokens = options_.max_new_tokens};
    if (std::optional<int32_t> eos = tokenizer_->EosId()) generate.stop_tokens.push_back(*eos);
    if (std::optional<int32_t> end = tokenizer_->TokenToId("<END_A>")) generate.stop_tokens.push_back(*end);
    // The base model's vocabulary may lack the run's tokens: it cannot be asked with them.
    for (size_t i = 0; i < count; ++i) {
      for (int32_t id : held_out_[i].prompt) {
        if (id >= vocab_size) return std::vector<std::string>(count, "(the base model does not know the run's tokens)");
      }
      generate.prompts.push_back(held_out_[i].prompt);
    }
    std::vector<std::vector<int32_t>> ids = Get(ranks_[0].Call<&RankWorker::Generate>(generate));
    std::vector<std::string> answers;
    for (const std::vector<int32_t>& continuation : ids) answers.push_back(tokenizer_->Decode(continuation));
    return answers;
  }

  absl::Status Finish() {
    if (SampleCount() > 0) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> tuned, Answer(checkpoint_, spec_.model.vocab_size, SampleCount()));
      Say("\nheld-out prompts:");
      for (size_t i = 0; i < SampleCount(); ++i) {
        Say("  prompt:     {}", held_out_[i].prompt_text);
        Say("  expected:   {}", tokenizer_->Decode(held_out_[i].answer));
        if (i < base_answers_.size()) Say("  base:       {}", base_answers_[i]);
        Say("  fine-tuned: {}\n", tuned[i]);
      }
    }
    if (options_.exact_rows > 0) ARGOSY_RETURN_IF_ERROR(CountExact());
    Say("{}", FormatEpochTable(epochs_table_));
    const EpochRow& first = epochs_table_.front();
    const EpochRow& last = epochs_table_.back();
    if (first.steps == 0 && first.has_eval && last.has_eval) {
      Say("perplexity: {:.3f} -> {:.3f} ({:.1f}x lower)", Perplexity(first.eval_loss), Perplexity(last.eval_loss),
          Perplexity(first.eval_loss) / Perplexity(last.eval_loss));
    }
    Say("checkpoint: {}", checkpoint_);
    ranks_.clear();
    Remove(*group_);
    if (metrics_ != nullptr) std::fclose(metrics_);
    return absl::OkStatus();
  }

  absl::Status CountExact() {
    size_t count = std::min<size_t>(options_.exact_rows, held_out_.size());
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> answers, Answer(checkpoint_, spec_.model.vocab_size, count));
    size_t exact = 0;
    for (size_t i = 0; i < count; ++i) exact += answers[i] == tokenizer_->Decode(held_out_[i].answer);
    Say("exact:     {} of {} held-out answers ({:.1f}%)", exact, count, count > 0 ? 100.0 * static_cast<double>(exact) / static_cast<double>(count) : 0.0);
    Record({{"exact", exact}, {"exact_of", count}});
    return absl::OkStatus();
  }

  void Record(const nlohmann::json& record) {
    if (metrics_ == nullptr) return;
    std::string line = record.dump() + "\n";
    std::fwrite(line.data(), 1, line.size(), metrics_);
    std::fflush(metrics_);
  }

  const FinetuneOptions& options_;
  std::optional<Tokenizer> tokenizer_;
  SampleSet train_, eval_;
  std::vector<HeldOut> held_out_;
  std::optional<BatchPlan> plan_;
  TrainSettings settings_;
  RunSpec spec_;
  DType save_dtype_ = DType::kF32;
  std::optional<PlacementGroup> group_;
  std::vector<Actor<RankWorker>> ranks_;
  std::vector<RankHello> hellos_;
  std::vector<std::string> base_answers_;
  std::vector<EpochRow> epochs_table_;
  int64_t base_vocab_size_ = 0, weight_bytes_ = 0;
  int64_t epochs_ = 1, total_steps_ = 0, steps_done_ = 0, tokens_done_ = 0, tokens_before_ = 0;
  double train_seconds_ = 0;
  std::string checkpoint_;
  std::FILE* metrics_ = nullptr;
};

}  // namespace

absl::Status CheckFinetuneOptions(const FinetuneOptions& options) {
  if (options.model_directory.empty()) return InvalidArgument("--model-name is missing: the folder of a Hugging Face model");
  if (options.output_dir.empty()) return InvalidArgument("--output-dir is missing: the folder that gets the checkpoints");
  ARGOSY_RETURN_IF_ERROR(NeedFile("--train-path", options.train_path));
  if (!options.test_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--test-path", options.test_path));
  if (!options.special_token_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--special-token-path", options.special_token_path));
  if (!options.ds_config_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--ds-config", options.ds_config_path));
  if (options.scaling.num_workers < 1) return InvalidArgument("--num-devices {}: at least 1", options.scaling.num_workers);
  if (options.num_epochs < 1) return InvalidArgument("--num-epochs {}: at least 1", options.num_epochs);
  if (options.rows.ctx_len < 2) return InvalidArgument("--ctx-len {}: at least 2", options.rows.ctx_len);
  if (options.device != "cpu") {
    return InvalidArgument("--device {}: this build trains on \"cpu\" only; a GPU's slot is then computed by its node's CPU", options.device);
  }
  if (!options.save_dtype.empty() && options.save_dtype != "fp32" && options.save_dtype != "bf16") {
    return InvalidArgument("--save-dtype {}: \"fp32\" or \"bf16\"", options.save_dtype);
  }
  return absl::OkStatus();
}

absl::Status Finetune(const FinetuneOptions& given) {
  // Ranks have working folders of their own: what they are told must not depend on this one.
  FinetuneOptions options = given;
  for (std::string* path : {&options.model_directory, &options.output_dir}) {
    std::error_code error;
    std::filesystem::path absolute = std::filesystem::absolute(*path, error).lexically_normal();
    if (error) return InvalidArgument("{}: {}", *path, error.message());
    *path = absolute.has_filename() ? absolute.string() : absolute.parent_path().string();   // "run/" is "run"
  }
  try {
    return Run(options).Execute();
  } catch (const UnschedulableError& error) {
    return absl::UnavailableError(error.what());
  } catch (const TaskError& error) {
    // A rank's own message names the rank, and the node where that matters.
    return absl::InternalError(error.message());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace argosy::train
