#include "train/trainer/finetune.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/time/clock.h"
#include "argosy/argosy.h"
#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/checkpoint/crc32c.h"
#include "train/checkpoint/s3_client.h"
#include "train/data/dataset.h"
#include "train/data/token_cache.h"
#include "train/plan/memory_plan.h"
#include "train/tokenizer/tokenizer.h"
#include "train/trainer/model_source.h"
#include "train/trainer/deal.h"
#include "train/trainer/progress.h"
#include "train/trainer/rank_set.h"
#include "train/trainer/rank_worker.h"
#include "train/trainer/run_log.h"
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

volatile std::sig_atomic_t stop_signal = 0;
int StopSignal() { return stop_signal; }

// SIGTERM and SIGINT are asks to end at the next commit point; a second one ends the process as ever.
class StopSignals {
 public:
  StopSignals() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = [](int number) { stop_signal = number; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
  }
  ~StopSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopSignals(const StopSignals&) = delete;

 private:
  static constexpr std::array<int, 2> kSignals = {SIGTERM, SIGINT};
  std::array<struct sigaction, 2> before_{};
};

// A smaller model's time is not in its products.
constexpr int64_t kMfuParametersMin = 10'000'000;

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
    for (;;) {
      absl::Status status = RunOnce();
      if (!IsRankLost(status)) return status;
      ranks_.reset();
      if (++failures_ > options_.failure.max_failures) {
        return Internal("{}. The run has lost ranks {} time{}, --max-failures allows {}{}", Message(status), failures_,
                        failures_ == 1 ? "" : "s", options_.failure.max_failures,
                        options_.save_state == SaveStateMode::kNone ? "" : "; --resume goes on from its last training state");
      }
      Say("lost:      {}\n           failure {} of at most {}: the ranks start again from the last training state", Message(status), failures_,
          options_.failure.max_failures);
      Record({{"failure", failures_}, {"reason", Message(status)}, {"total_step", state_.steps_done}});
    }
  }

 private:
  // Everything that can be wrong before an actor is started.
  absl::Status Prepare() {
    ARGOSY_RETURN_IF_ERROR(CheckFinetuneOptions(options_));
    ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(options_.model_directory));
    ARGOSY_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(options_.model_directory));
    tokenizer_.emplace(std::move(tokenizer));
    if (tokenizer_->VocabularySize() > config.vocab_size && !options_.grow_vocabulary) {
      return InvalidArgument("the tokenizer of {} has ids up to {}, its config.json \"vocab_size\" {}: they do not belong together, or the model was not resized "
                             "for tokens that were added; give --grow-vocabulary to add {} new rows to its embedding", options_.model_directory,
                             tokenizer_->VocabularySize() - 1, config.vocab_size, tokenizer_->VocabularySize() - config.vocab_size);
    }
    int32_t added = 0;
    if (!options_.special_token_path.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadSpecialTokens(options_.special_token_path));
      added = tokenizer_->AddTokens(tokens);
    }
    spec_.model = {.directory = options_.model_directory,
                   .vocab_size = std::max<int64_t>(config.vocab_size, tokenizer_->VocabularySize()),
                   .random_weights = options_.random_weights, .seed = options_.seed};
    // The headers of the weights, as every rank will read them: a damaged model is refused while nothing runs.
    ARGOSY_ASSIGN_OR_RETURN(ModelWithWeights model, OpenModel(spec_.model));
    parameters_ = trained_ = config.ParameterCount();
    if (options_.lora) ARGOSY_RETURN_IF_ERROR(PrepareAdapter(model));

    RowOptions rows = options_.rows;
    rows.append_eos = !options_.recipe_parity;   // the recipes' tokenizers append none
    ARGOSY_RETURN_IF_ERROR(ReadRows(options_.train_path, rows, train_cache_, train_));
    if (!options_.test_path.empty()) ARGOSY_RETURN_IF_ERROR(ReadRows(options_.test_path, rows, eval_cache_, eval_));
    FindHeldOut();
    ARGOSY_RETURN_IF_ERROR(CheckLengths(config));

    SettingsContext context{.world_size = options_.scaling.num_workers, .hidden_size = config.hidden_size, .total_steps = 0,
                            .flags = options_.flags};
    ARGOSY_ASSIGN_OR_RETURN(SettingsReport report, ResolveSettings(options_.ds_config, context));
    settings_ = report.settings;
    if (settings_.moments == Precision::kBf16 && options_.lora) {
      return InvalidArgument("moments in bf16 with --lora: adapters are trained in fp32, moments too");
    }

    FillBatch();
    epochs_ = options_.as_test ? 1 : options_.num_epochs;
    ARGOSY_RETURN_IF_ERROR(MakePlan());
    context.total_steps = total_steps_;
    // Schedules whose length is "auto" are resolved against the run's own number of steps.
    ARGOSY_ASSIGN_OR_RETURN(report, ResolveSettings(options_.ds_config, context));
    settings_ = report.settings;
    if (settings_.schedule.total_steps == 0) settings_.schedule.total_steps = total_steps_;
    ARGOSY_RETURN_IF_ERROR(CheckLrSchedule(settings_.schedule));
    FillEngine();
    base_vocab_size_ = config.vocab_size;
    FillIdentity(config);
    // Frozen weights have no gradients of their own: a third less.
    flops_per_token_ = (options_.lora ? 4.0 : 6.0) * static_cast<double>(parameters_) +
                       6.0 * static_cast<double>(config.num_hidden_layers * config.QuerySize() * spec_.batch.ctx_len);
    ARGOSY_RETURN_IF_ERROR(CheckMemory(config));
    // An adapter brings the embeddings whose rows are not the base's; a full checkpoint has all rows of all.
    const int64_t new_rows = spec_.model.vocab_size - config.vocab_size;
    const int64_t matrices = config.tie_word_embeddings ? 1 : 2;
    const int64_t embeddings = new_rows == 0 ? 0 : matrices * config.hidden_size * (options_.lora ? spec_.model.vocab_size : new_rows);
    weight_bytes_ = (trained_ + embeddings) * SizeOf(save_dtype_);

    Say("model:     {} ({} layers, {} parameters, vocabulary {}{})", options_.model_directory, config.num_hidden_layers,
        config.ParameterCount(), spec_.model.vocab_size, added > 0 ? fmt::format(", {} tokens added", added) : "");
    if (options_.lora) {
      Say("lora:      {}: {} modules, {} of {} parameters are trained ({:.2f}%){}", lora_.ToText(), adapted_modules_, trained_, parameters_ + trained_,
          100.0 * static_cast<double>(trained_) / static_cast<double>(parameters_ + trained_),
          options_.adapter_directory.empty() ? "" : ", from " + options_.adapter_directory);
    }
    Say("data:      {} train rows ({} tokens), {} test rows; context {}{}", train_.size(), train_.tokens.size(), eval_.size(),
        spec_.batch.ctx_len, spec_.batch.pack ? ", packed" : "");
    SayTokens();
    Say("run:       {} ranks x {} rows x {} micro-batches = {} rows a step, {} steps in {} epochs, ZeRO-{}, {}, device {}",
        options_.scaling.num_workers, settings_.micro_batch_size, settings_.gradient_accumulation_steps, settings_.train_batch_size,
        total_steps_, epochs_, settings_.zero_stage, PrecisionName(settings_.precision), options_.device);
    Say("\n{}", report.ToText());
    return absl::OkStatus();
  }

  // What is adapted, and that it fits the model: as every rank will find it.
  absl::Status PrepareAdapter(const ModelWithWeights& model) {
    lora_ = LoraConfig::Default();
    const std::string& file = options_.adapter_directory.empty() ? options_.lora_config_path : options_.adapter_directory;
    if (!file.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(lora_, LoraConfig::Load(file));
    }
    spec_.adapter = {.config = lora_.ToJson(), .directory = options_.adapter_directory};
    absl::StatusOr<RunAdapter> adapter = OpenRunAdapter(spec_.adapter, model, options_.seed);
    if (!adapter.ok()) return options_.adapter_directory.empty() ? Annotate(adapter.status(), file.empty() ? "--lora" : file) : adapter.status();
    trained_ = adapter->layout.ParameterCount();
    adapted_modules_ = adapter->layout.ModuleCount();
    return absl::OkStatus();
  }

  absl::Status ReadRows(const std::string& path, const RowOptions& rows, CachedSamples& cache, SampleSet& samples) {
    if (options_.token_cache.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(samples, ReadSamples(path, *tokenizer_, rows));
      return absl::OkStatus();
    }
    ARGOSY_ASSIGN_OR_RETURN(cache, ReadSamplesCached(path, *tokenizer_, rows, options_.token_cache));
    samples = cache.samples;
    Say("tokens:    {} ({})", cache.path, cache.note);
    return absl::OkStatus();
  }

  // Where every token of the rows that could be read has gone.
  void SayTokens() const {
    const SampleCounts& counts = train_.counts;
    Say("           {} of the training tokens are to be learned{}", spec_.batch.recipe_parity ? "all, padding too," : fmt::to_string(counts.target_tokens),
        counts.tokens_cut + counts.tokens_dropped > 0
            ? fmt::format("; {} were cut off and {} went with dropped rows", counts.tokens_cut, counts.tokens_dropped) : "");
    if (counts.cut + counts.dropped > 0) Say("           {} rows were cut and {} dropped at {} tokens", counts.cut, counts.dropped, spec_.batch.ctx_len);
    if (counts.split > 0) Say("           {} rows were split at {} tokens", counts.split, spec_.batch.ctx_len);
    for (const SampleSet* set : {&train_, &eval_}) {
      if (set->counts.bad > 0) Say("           bad rows: {} skipped, the first: {}", set->counts.bad, set->counts.first_bad);
    }
  }

  // Whether the model has positions for the longest row, and the tokenizer a token to pad with.
  absl::Status CheckLengths(const ModelConfig& config) const {
    int64_t longest = options_.recipe_parity ? options_.rows.ctx_len : 0;
    for (const SampleSet* set : {&train_, &eval_}) {
      for (int64_t i = 0; i < set->size(); ++i) longest = std::max<int64_t>(longest, set->Length(i));
    }
    if (longest > config.max_position_embeddings && config.rope.type != RopeType::kDynamic) {
      return InvalidArgument("rows of {} tokens (--ctx-len {}) are longer than what the model was made for (\"max_position_embeddings\" {} in {}/config.json): "
                             "give --ctx-len {}", longest, options_.rows.ctx_len, config.max_position_embeddings, options_.model_directory,
                             config.max_position_embeddings);
    }
    if (!tokenizer_->PadId() && !tokenizer_->EosId()) {
      return InvalidArgument("the tokenizer of {} names neither a pad_token nor an eos_token to pad rows with: name one in tokenizer_config.json",
                             options_.model_directory);
    }
    return absl::OkStatus();
  }

  void FillBatch() {
    BatchSpec& batch = spec_.batch;
    batch.ctx_len = options_.rows.ctx_len;
    batch.rows_per_step = settings_.train_batch_size;
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
                    .adam_beta2 = settings_.adam_beta2, .adam_eps = settings_.adam_eps,
                    .moments = settings_.moments == Precision::kBf16 ? DType::kBF16 : DType::kF32, .offload = settings_.offload_folder,
                    .weight_decay = settings_.weight_decay,
                    .decay_vectors = !options_.no_decay_1d, .max_grad_norm = settings_.gradient_clipping,
                    .freeze = options_.freeze, .recompute = options_.recompute};
    spec_.schedule = settings_.schedule;
    spec_.storage = {.url = options_.storage_path, .endpoint = options_.s3_endpoint};
    while (spec_.storage.url.ends_with('/')) spec_.storage.url.pop_back();
    spec_.collective_timeout_seconds = absl::ToDoubleSeconds(options_.failure.collective_timeout);
    run_name_ = "finetune-" + TaskId::Random().Short();
  }

  // The rows of every step, and how many steps there are.
  absl::Status MakePlan() {
    BatchPlanOptions options{.ctx_len = spec_.batch.ctx_len, .rows_per_step = spec_.batch.rows_per_step,
                             .micro_batches = spec_.batch.micro_batches, .seed = spec_.batch.seed, .shuffle = spec_.batch.shuffle,
                             .pack = spec_.batch.pack};
    ARGOSY_ASSIGN_OR_RETURN(BatchPlan plan, BatchPlan::Make(train_, options));
    plan_.emplace(std::move(plan));
    total_steps_ = plan_->TotalSteps(epochs_);
    if (options_.max_steps > 0) total_steps_ = std::min(total_steps_, options_.max_steps);
    if (options_.as_test) total_steps_ = 1;
    return absl::OkStatus();
  }

  // What fits no node is refused before anything is placed.
  absl::Status CheckMemory(const ModelConfig& config) {
    double most = 0;
    int32_t hosts = 0;
    for (const Node& node : Nodes()) {
      bool takes_one = node.alive;
      for (const auto& [name, amount] : options_.scaling.resources_per_worker) {
        auto it = node.resources.find(name);
        takes_one = takes_one && (amount <= 0 || (it != node.resources.end() && it->second >= amount));
      }
      auto memory = node.resources.find("memory");
      if (!takes_one || memory == node.resources.end()) continue;
      ++hosts;
      most = std::max(most, memory->second);
    }
    if (hosts == 0) return absl::OkStatus();   // they may join later
    ModelConfig grown = config;
    grown.vocab_size = spec_.model.vocab_size;
    PlanOptions plan{.ranks = options_.scaling.num_workers, .ranks_per_node = (options_.scaling.num_workers + hosts - 1) / hosts,
                     .zero_stage = spec_.engine.zero_stage, .bf16 = spec_.engine.dtype == DType::kBF16, .recompute = options_.recompute,
                     .bf16_moments = settings_.moments == Precision::kBf16, .offload_file = !settings_.offload_folder.empty(),
                     .micro_batches = spec_.batch.micro_batches, .rows = settings_.micro_batch_size, .ctx_len = spec_.batch.ctx_len};
    if (options_.lora) plan.lora = lora_;
    return CheckFits(grown, plan, static_cast<int64_t>(most));
  }

  void FillIdentity(const ModelConfig& config) {
    uint32_t data = 0;
    data = ExtendCrc32c(data, std::as_bytes(train_.tokens));
    data = ExtendCrc32c(data, std::as_bytes(train_.begins));
    data = ExtendCrc32c(data, std::as_bytes(train_.is_target));
    identity_ = {
        {"model", fmt::format("{} of {} layers, width {}, {} parameters, vocabulary {}", FamilyName(config.family), config.num_hidden_layers,
                              config.hidden_size, config.ParameterCount(), spec_.model.vocab_size)},
        {"training data", fmt::format("{} rows, {} tokens, checksum {:08x}", train_.size(), train_.tokens.size(), data)},
        {"context length", fmt::to_string(spec_.batch.ctx_len)},
        {"seed", fmt::to_string(spec_.batch.seed)},
        {"rows", spec_.batch.recipe_parity ? "as the recipe" : spec_.batch.pack ? "packed" : "one sample a row"},
        {"precision", std::string(PrecisionName(settings_.precision))},
        {std::string(kTrainedNote), std::string(kAllWeights)},
    };
    if (options_.lora) {
      // The text names what one looks at first, the checksum stands for the rest of the config.
      const std::string config = lora_.ToJson();
      identity_[std::string(kTrainedNote)] = fmt::format("adapters: {}; {} parameters, config {:08x}", lora_.ToText(), trained_,
                                                         ExtendCrc32c(0, std::as_bytes(std::span(config))));
    }
  }

  std::map<std::string, std::string> Settings() const {
    const LrScheduleConfig& schedule = spec_.schedule;
    return {{"ranks", fmt::to_string(ranks_->size())},
            {"ZeRO stage", fmt::to_string(spec_.engine.zero_stage)},
            {"learning rate", fmt::format("{}", schedule.lr)},
            {"schedule", fmt::format("{} of {} steps", LrScheduleName(schedule.type), schedule.total_steps)},
            {"weight decay", fmt::format("{}", spec_.engine.weight_decay)},
            {"betas", fmt::format("{}, {}", spec_.engine.adam_beta1, spec_.engine.adam_beta2)},
            {"moments", std::string(PrecisionName(settings_.moments))},
            {"gradient clipping", fmt::format("{}", spec_.engine.max_grad_norm)},
            {"epochs", fmt::to_string(epochs_)}};
  }

  // The prompts of held-out rows: everything before the first target.
  void FindHeldOut() {
    int64_t wanted = std::max(options_.sample_prompts, options_.exact_rows);
    for (int64_t i = 0; i < eval_.size() && static_cast<int64_t>(held_out_.size()) < wanted; ++i) {
      std::span<const int32_t> sample = eval_.Sample(i);
      int32_t from = eval_.FirstTarget(i);
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

  // From the placing of ranks to the end of the run, or to the loss of one.
  absl::Status RunOnce() {
    ARGOSY_RETURN_IF_ERROR(Place());
    ARGOSY_RETURN_IF_ERROR(FindStart());
    ARGOSY_RETURN_IF_ERROR(Load());
    // Not before: a run that cannot begin leaves nothing.
    ARGOSY_RETURN_IF_ERROR(ranks_->CallRank0<&RankWorker::OpenLog>(options_.output_dir, state_.steps_done).status());
    if (state_.steps_done == 0 && state_.epochs.empty()) {
      if (options_.eval_first && eval_.size() > 0) ARGOSY_RETURN_IF_ERROR(EvaluateBase());
    }
    if (options_.sample_prompts > 0 && !held_out_.empty() && !options_.random_weights && base_answers_.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(base_answers_, Answer(/*tuned=*/false, SampleCount()));
    }
    while (state_.epoch < epochs_ && state_.steps_done < total_steps_) {
      if (BelowStopPerplexity()) {
        Say("perplexity {:.3f} is below {}: stopping here", Perplexity(state_.epochs.back().eval_loss), options_.stop_perplexity);
        break;
      }
      ARGOSY_RETURN_IF_ERROR(TrainEpoch());
    }
    return Finish();
  }

  bool BelowStopPerplexity() const {
    return !state_.epochs.empty() && state_.epochs.back().epoch > 0 && state_.epochs.back().has_eval &&
           Perplexity(state_.epochs.back().eval_loss) < options_.stop_perplexity;
  }

  // All ranks at first. After a failure a spare may take the place of what was lost, for a while; then fewer do.
  absl::Status Place() {
    RankSetOptions options{.scaling = options_.scaling, .ranks = options_.scaling.num_workers, .timeout = options_.scaling.start_timeout};
    absl::Time begin = absl::Now();
    options.waiting = [&](const std::string& reason) {
      if (!reason.empty()) Say("waiting for {} workers to be placed ({}): {}", options.ranks, FormatSeconds(SecondsSince(begin)), reason);
      return StopSignal() == 0;
    };
    if (failures_ > 0) options.timeout = options_.failure.replace_timeout;
    for (;;) {
      options.name = spec_.run_id = fmt::format("{}-{}", run_name_, ++formations_);
      absl::StatusOr<std::unique_ptr<RankSet>> ranks = RankSet::Start(options);
      if (ranks.ok()) {
        ranks_ = *std::move(ranks);
        break;
      }
      if (ranks.status().code() != absl::StatusCode::kDeadlineExceeded) return ranks.status();
      if (failures_ == 0) {
        return FailedPrecondition("the {} workers could not be placed within --start-timeout {}: {}", options.ranks,
                                  FormatSeconds(absl::ToDoubleSeconds(options.timeout)), Message(ranks.status()));
      }
      if (options.ranks == 1) return FailedPrecondition("not one rank can be placed: {}", Message(ranks.status()));
      --options.ranks;
      options.timeout = std::min(options.timeout, absl::Seconds(5));
      Say("going on with {} ranks: {}", options.ranks, Message(ranks.status()));
    }
    for (int32_t rank = 0; rank < ranks_->size(); ++rank) {
      const RankHello& hello = ranks_->hellos()[rank];
      std::string with;
      for (const auto& [name, amount] : ranks_->resources(rank)) with += fmt::format("{}{}: {}", with.empty() ? "" : ", ", name, amount);
      Say("rank {}:    node {} (pid {}), device {}, holds {}", rank, hello.node_name, hello.pid, options_.device, with);
    }
    return absl::OkStatus();
  }

  // The checkpoints go to rank 0's node, which may see other folders than this driver: what is there decides where the run begins.
  absl::Status FindStart() {
    int64_t bytes = (spec_.storage.url.empty() ? weight_bytes_ : 0) + (options_.save_state == SaveStateMode::kNone ? 0 : 12 * trained_);
    const bool goes_on = options_.resume || failures_ > 0;
    ARGOSY_ASSIGN_OR_RETURN(std::vector<OutputReport> reports, ranks_->CallRank0<&RankWorker::PrepareOutput>(options_.output_dir, bytes, goes_on, spec_.storage));
    OutputReport& found = reports[0];
    const bool any = !found.checkpoints.empty() || !found.state_directory.empty();
    if (any && failures_ == 0 && !options_.resume) {
      std::string what = found.checkpoints.empty() ? "" : fmt::format("{}", fmt::join(found.checkpoints, ", "));
      if (!found.state_directory.empty()) {
        what += fmt::format("{}a training state of step {}", what.empty() ? "" : ", ", found.state.steps_done);
      }
      if (!options_.overwrite) {
        return FailedPrecondition("--output-dir {} on node {} holds an earlier run ({}): --resume goes on with it, --overwrite removes it, or "
                                  "give another folder", options_.output_dir, ranks_->hellos()[0].node_name, what);
      }
      ARGOSY_RETURN_IF_ERROR(ranks_->CallRank0<&RankWorker::ClearOutput>(options_.output_dir, spec_.storage).status());
      Say("removed:   {} of the earlier run in {}", what, options_.output_dir);
      found = {};
    }
    if (!found.damaged.empty() && found.state_directory.empty()) {
      return FailedPrecondition("no training state in {} on node {} is whole: {}", options_.output_dir, ranks_->hellos()[0].node_name,
                                fmt::join(found.damaged, "; "));
    }
    for (const std::string& damage : found.damaged) Say("damaged:   {}: an earlier state is used", damage);
    TrainingState start;
    spec_.resume = {};
    if (!found.state_directory.empty()) {
      ARGOSY_RETURN_IF_ERROR(Annotate(CheckIdentity(found.state, identity_), found.state_directory));
      start = found.state;
      spec_.resume = {found.state_directory, start.optimizer_steps, start.skipped};
    } else if (!found.checkpoints.empty()) {
      if (options_.resume && failures_ == 0) {
        return FailedPrecondition("--resume: {} on node {} has {}, but no training state to go on from (--save-state none?): give one of "
                                  "these folders as --model-name and another --output-dir", options_.output_dir,
                                  ranks_->hellos()[0].node_name, fmt::join(found.checkpoints, ", "));
      }
    }
    if (spec_.resume.directory.empty() && options_.resume && failures_ == 0) {
      Say("resume:    {} holds nothing yet: the run begins", options_.output_dir);
    }
    state_ = std::move(start);
    state_.identity = identity_;
    // The parts of other ranks than these say nothing.
    if (!options_.balance || static_cast<int32_t>(state_.deal.size()) != ranks_->size()) state_.deal.clear();
    ARGOSY_RETURN_IF_ERROR(FixRows());
    if (!spec_.resume.directory.empty()) {
      Say("resume:    from {}: epoch {}, step {} of {}", spec_.resume.directory, state_.epoch + 1, state_.steps_done, total_steps_);
      for (const std::string& change : ChangedSettings(state_, Settings())) Say("           {}", change);
    }
    state_.settings = Settings();
    return RewindMetrics();
  }

  // A step has the same rows whatever the number of ranks; each micro-batch has at most as many a rank as the flags say.
  absl::Status FixRows() {
    BatchSpec& batch = spec_.batch;
    batch.rows_per_step = state_.rows_per_step > 0 ? state_.rows_per_step : settings_.train_batch_size;
    if (batch.rows_per_step != settings_.train_batch_size) {
      Say("           {} rows a step, as before, where the flags give {}", batch.rows_per_step, settings_.train_batch_size);
    }
    state_.rows_per_step = batch.rows_per_step;
    const int64_t at_once = settings_.micro_batch_size * ranks_->size();
    batch.micro_batches = static_cast<int32_t>((batch.rows_per_step + at_once - 1) / at_once);
    return MakePlan();
  }

  absl::Status Load() {
    std::vector<Endpoint> endpoints;
    std::map<std::string, int> ranks_on_node;
    for (const RankHello& hello : ranks_->hellos()) {
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
    ARGOSY_RETURN_IF_ERROR(ShipRows());
    ARGOSY_ASSIGN_OR_RETURN(std::vector<RankReady> ready, ranks_->CallAll<&RankWorker::Setup>(spec_, endpoints, shipped_train_, shipped_eval_));
    for (size_t rank = 0; rank < ready.size(); ++rank) {
      const int64_t offloaded = ready[rank].offloaded_bytes;
      Say("rank {}:    weights, gradients and optimizer {}{}, loaded in {}, {} threads", rank, FormatBytes(ready[rank].state_bytes),
          offloaded > 0 ? fmt::format(" and {} in a file of {}", FormatBytes(offloaded), spec_.engine.offload) : "",
          FormatSeconds(ready[rank].load_seconds), ready[rank].threads);
    }
    if (parameters_ >= kMfuParametersMin && peak_flops_ == 0) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<double> peaks, ranks_->CallAll<&RankWorker::MeasurePeak>());
      for (double peak : peaks) peak_flops_ += peak;
      Say("peak:      {:.0f} GFLOP/s in bf16 products of 2048, all ranks at once", peak_flops_ / 1e9);
    }
    if (options_.print_schedule && failures_ == 0) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> schedule, ranks_->CallRank0<&RankWorker::Schedule>());
      Say("\n{}", schedule[0]);
    }
    return absl::OkStatus();
  }

  // By path where all ranks see the caches, which may be more than the object store holds.
  absl::Status ShipRows() {
    bool by_path = !train_cache_.path.empty();
    for (const CachedSamples* cache : {&train_cache_, &eval_cache_}) {
      if (!by_path || cache->path.empty()) continue;
      ARGOSY_ASSIGN_OR_RETURN(std::vector<bool> sees, ranks_->CallAll<&RankWorker::SeesTokens>(cache->path, cache->id));
      by_path = std::all_of(sees.begin(), sees.end(), [](bool one) { return one; });
    }
    if (by_path) {
      shipped_train_ = Put(ShippedSamples{.cache_path = train_cache_.path, .cache_id = train_cache_.id});
      shipped_eval_ = Put(eval_cache_.path.empty() ? ShippedSamples{} : ShippedSamples{.cache_path = eval_cache_.path, .cache_id = eval_cache_.id});
      arrays_shipped_ = false;
      return absl::OkStatus();
    }
    if (!train_cache_.path.empty()) Say("           not every rank sees the token cache: the rows are sent to all");
    if (arrays_shipped_) return absl::OkStatus();
    shipped_train_ = Put(Ship(train_));
    shipped_eval_ = Put(Ship(eval_));
    arrays_shipped_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<EvalReport> EvaluateAll() {
    ARGOSY_ASSIGN_OR_RETURN(std::vector<EvalReport> reports, ranks_->CallAll<&RankWorker::Evaluate>());
    return reports[0];
  }

  double MeanLoss(const EvalReport& report) const {
    if (options_.recipe_parity) return report.batch_mean_loss;
    return report.target_tokens > 0 ? report.nll / static_cast<double>(report.target_tokens) : 0;
  }

  absl::Status EvaluateBase() {
    ARGOSY_ASSIGN_OR_RETURN(EvalReport report, EvaluateAll());
    EpochRecord row{.eval_seconds = report.seconds, .eval_loss = MeanLoss(report), .has_eval = true};
    Say("base:      eval loss {:.4f}, perplexity {:.3f}", row.eval_loss, Perplexity(row.eval_loss));
    state_.epochs.push_back(row);
    Record({{"base_eval_loss", row.eval_loss}, {"base_perplexity", Perplexity(row.eval_loss)}, {"total_step", 0}});
    return SendLog();
  }

  // The rest of the epoch that the run stands in.
  absl::Status TrainEpoch() {
    const int64_t epoch = state_.epoch;
    const int64_t steps = std::min(plan_->StepsInEpoch(epoch), total_steps_ - state_.steps_done + state_.step);
    double last_print = -1;
    const absl::Time begin = absl::Now();
    const double seconds_before = state_.epoch_seconds;
    int64_t chunk = 1;
    while (state_.step < steps) {
      if (StopSignal() != 0) return Stop();
      int64_t count = std::min(chunk, steps - state_.step);
      if (state_.steps_done == 0) ARGOSY_RETURN_IF_ERROR(StartTrace());
      if (options_.profile_steps > traced_steps_) count = std::min(count, options_.profile_steps - traced_steps_);
      if (options_.save_every > 0) count = std::min(count, options_.save_every - state_.steps_done % options_.save_every);
      absl::Time chunk_begin = absl::Now();
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::vector<StepReport>> reports, ranks_->CallAll<&RankWorker::Train>(epoch, state_.step, count, state_.deal));
      double seconds = SecondsSince(chunk_begin);
      int64_t useful = 0, computed = 0, peak_bytes = 0;
      for (const std::vector<StepReport>& of_rank : reports) {
        for (const StepReport& report : of_rank) {
          useful += report.useful_tokens;
          computed += report.computed_tokens;
          peak_bytes = std::max(peak_bytes, report.peak_bytes);
        }
      }
      peak_bytes_ = std::max(peak_bytes_, peak_bytes);
      const double mfu = peak_flops_ > 0 ? flops_per_token_ * static_cast<double>(computed) / seconds / peak_flops_ : 0;
      for (size_t i = 0; i < reports[0].size(); ++i) {
        const StepReport& report = reports[0][i];
        state_.loss_sum += report.loss * static_cast<double>(report.target_tokens);
        state_.target_tokens += static_cast<double>(report.target_tokens);
        ++state_.steps_done;
        int64_t tokens = 0;
        for (const std::vector<StepReport>& of_rank : reports) tokens += of_rank[i].useful_tokens;
        nlohmann::json record{{"epoch", epoch + 1}, {"step", report.step + 1}, {"total_step", state_.steps_done}, {"loss", report.loss},
                              {"perplexity_of_step", Perplexity(report.loss)}, {"lr", report.learning_rate}, {"grad_norm", report.grad_norm},
                              {"target_tokens", report.target_tokens}, {"seconds", report.seconds},
                              {"tokens_per_second", static_cast<double>(tokens) / std::max(report.seconds, 1e-9)},
                              {"useful_share", computed > 0 ? static_cast<double>(useful) / static_cast<double>(computed) : 1.0},
                              {"forward_seconds", report.times.forward}, {"backward_seconds", report.times.backward},
                              {"optimizer_seconds", report.times.optimizer}, {"waiting_seconds", report.times.waiting},
                              {"peak_bytes", peak_bytes}};
        if (mfu > 0) record["mfu"] = mfu;
        if (report.skipped) record["skipped"] = true;
        if (!state_.deal.empty()) record["deal"] = state_.deal;
        Record(record);
        if (options_.recipe_parity) Say("{}", FormatRecipeStep(report));
        ARGOSY_RETURN_IF_ERROR(CountSkipped(reports, i));
      }
      if (options_.balance) state_.deal = DealBySpeed(reports, state_.deal);
      ARGOSY_RETURN_IF_ERROR(SendLog());
      ARGOSY_RETURN_IF_ERROR(EndTrace(count));
      state_.epoch_tokens += useful;
      state_.step += count;
      state_.epoch_seconds = seconds_before + SecondsSince(begin);
      timed_steps_ += count;
      timed_seconds_ += seconds;
      double elapsed = SecondsSince(begin);
      // A line a second at most, and the last of each epoch.
      if (last_print < 0 || elapsed - last_print >= 1 || state_.step == steps) {
        last_print = elapsed;
        StepLine line{.report = reports[0].back(), .steps_in_epoch = steps, .epochs = epochs_,
                      .tokens_per_second = static_cast<double>(useful) / seconds,
                      .useful_share = computed > 0 ? static_cast<double>(useful) / static_cast<double>(computed) : 1,
                      .eta_seconds = timed_seconds_ / static_cast<double>(timed_steps_) *
                                     static_cast<double>(total_steps_ - state_.steps_done),
                      .done_share = static_cast<double>(state_.steps_done) / static_cast<double>(total_steps_), .mfu = mfu,
                      .peak_bytes = peak_bytes_};
        Say("{}", FormatStep(line));
      }
      // About half a second of steps at a time: progress is seen, and the calls cost nothing.
      double per_step = seconds / static_cast<double>(count);
      chunk = std::clamp<int64_t>(static_cast<int64_t>(0.5 / std::max(per_step, 1e-6)), 1, 1000);
      if (options_.save_every > 0 && state_.steps_done % options_.save_every == 0 && state_.step < steps) {
        ARGOSY_RETURN_IF_ERROR(SaveState());
      }
    }
    return EndEpoch(steps);
  }

  // A step that is not finite changes nothing; a run of them will not end by itself.
  absl::Status CountSkipped(const std::vector<std::vector<StepReport>>& reports, size_t i) {
    if (!reports[0][i].skipped) {
      skipped_in_a_row_ = 0;
      return absl::OkStatus();
    }
    ++skipped_in_a_row_;
    std::string where;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (!reports[rank][i].not_finite.empty()) where += fmt::format("{}rank {}: {}", where.empty() ? "" : "; ", rank, reports[rank][i].not_finite);
    }
    std::string text = fmt::format("step {} is not finite (loss {}, gradient norm {}){}{}", state_.steps_done, reports[0][i].loss,
                                   reports[0][i].grad_norm, where.empty() ? "" : ", first in ", where);
    if (skipped_in_a_row_ < options_.failure.max_skipped_steps) {
      if (skipped_in_a_row_ == 1) Say("skipped:   {}", text);
      return absl::OkStatus();
    }
    return FailedPrecondition("{}, and {} steps in a row were not (--max-skipped-steps). Checkpoints and states before it are good; a lower "
                              "--learning-rate, a longer --warmup-steps or other rows may help", text, skipped_in_a_row_);
  }

  // The first steps of the run, line by line.
  absl::Status StartTrace() {
    if (options_.profile_steps == 0 || traced_steps_ > 0) return absl::OkStatus();
    return ranks_->CallAll<&RankWorker::StartTrace>().status();
  }

  absl::Status EndTrace(int64_t steps) {
    if (options_.profile_steps == 0 || traced_steps_ >= options_.profile_steps) return absl::OkStatus();
    traced_steps_ += steps;
    if (traced_steps_ < options_.profile_steps) return absl::OkStatus();
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::vector<TracedLine>> traces, ranks_->CallAll<&RankWorker::TakeTrace>());
    nlohmann::json events = nlohmann::json::array();
    for (size_t rank = 0; rank < traces.size(); ++rank) {
      events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
      for (const TracedLine& line : traces[rank]) {
        events.push_back({{"name", line.name}, {"ph", "X"}, {"pid", rank}, {"tid", 0}, {"ts", line.begin * 1e6}, {"dur", line.seconds * 1e6},
                          {"args", {{"micro_batch", line.micro_batch}}}});
      }
    }
    std::string path = options_.output_dir + "/profile.json";
    ARGOSY_RETURN_IF_ERROR(ranks_->CallRank0<&RankWorker::WriteOutput>(path, nlohmann::json{{"traceEvents", events}}.dump()).status());
    Say("profile:   {} steps of {} ranks in {} (open it in a Chrome trace viewer)", traced_steps_, traces.size(), path);
    return absl::OkStatus();
  }

  absl::Status EndEpoch(int64_t steps) {
    const int64_t epoch = state_.epoch;
    EpochRecord row{.epoch = epoch + 1, .steps = steps, .train_seconds = state_.epoch_seconds,
                    .train_loss = state_.target_tokens > 0 ? state_.loss_sum / state_.target_tokens : 0,
                    .tokens_per_second = static_cast<double>(state_.epoch_tokens) / std::max(state_.epoch_seconds, 1e-9)};
    if (eval_.size() > 0) {
      ARGOSY_ASSIGN_OR_RETURN(EvalReport report, EvaluateAll());
      row.has_eval = true;
      row.eval_loss = MeanLoss(report);
      row.eval_seconds = report.seconds;
      Say("epoch {}:   train loss {:.4f}, eval loss {:.4f}, perplexity {:.3f}", epoch + 1, row.train_loss, row.eval_loss,
          Perplexity(row.eval_loss));
    }
    ARGOSY_RETURN_IF_ERROR(SaveEpoch(epoch, &row));
    nlohmann::json record{{"epoch", epoch + 1}, {"total_step", state_.steps_done}, {"train_loss", row.train_loss},
                          {"train_seconds", row.train_seconds}, {"checkpoint", state_.checkpoint}};
    if (row.has_eval) {
      record["eval_loss"] = row.eval_loss;
      record["perplexity"] = Perplexity(row.eval_loss);
      record["eval_seconds"] = row.eval_seconds;
    }
    Record(record);
    ARGOSY_RETURN_IF_ERROR(SendLog());
    // One that --max-steps had ended early has a record already.
    if (!state_.epochs.empty() && state_.epochs.back().epoch == row.epoch) state_.epochs.pop_back();
    state_.epochs.push_back(row);
    if (steps == plan_->StepsInEpoch(epoch)) {
      state_.epoch = epoch + 1;
      state_.step = 0;
      state_.loss_sum = state_.target_tokens = state_.epoch_seconds = 0;
      state_.epoch_tokens = 0;
    }
    return options_.save_state == SaveStateMode::kNone ? absl::OkStatus() : SaveState();
  }

  absl::Status SaveEpoch(int64_t epoch, EpochRecord* row) {
    SaveSpec save{.directory = fmt::format("{}/epoch-{}", spec_.storage.url.empty() ? options_.output_dir : spec_.storage.url, epoch + 1), .save_dtype = save_dtype_,
                  .shard_bytes_max = options_.shard_size_bytes, .step = state_.steps_done, .epoch = epoch + 1,
                  .num_to_keep = options_.num_checkpoints_to_keep, .best_metric = options_.best_metric, .by_ranks = options_.save_by_ranks};
    if (!spec_.storage.url.empty()) save.by_ranks = false;
    save.metrics["train_loss"] = row->train_loss;
    if (row->has_eval) {
      save.metrics["eval_loss"] = row->eval_loss;
      save.metrics["perplexity"] = Perplexity(row->eval_loss);
    }
    ARGOSY_ASSIGN_OR_RETURN(save.files, TokenizerFilesOfRun());
    Say("saving:    {} {} from {} ranks to {} on node {}", save_dtype_ == DType::kF32 ? "fp32" : "bf16", options_.lora ? "adapters" : "weights", ranks_->size(),
        save.directory, ranks_->hellos()[0].node_name);
    ARGOSY_ASSIGN_OR_RETURN(std::vector<SaveReport> reports, ranks_->CallAll<&RankWorker::Save>(save));
    const SaveReport& report = reports[0];
    row->save_seconds = report.seconds;
    state_.checkpoint = save.directory;
    Say("saved:     {} in {} file{}, {}", FormatBytes(report.bytes), report.files, report.files == 1 ? "" : "s",
        FormatSeconds(report.seconds));
    return absl::OkStatus();
  }

  absl::Status SaveState() {
    SaveStateSpec save{.directory = fmt::format("{}/{}/step-{:07}", options_.output_dir, kStateFolder, state_.steps_done),
                       .shard_bytes_max = options_.shard_size_bytes, .state = state_,
                       .num_to_keep = options_.save_state == SaveStateMode::kAll ? 0 : options_.states_to_keep, .by_ranks = options_.save_by_ranks};
    ARGOSY_ASSIGN_OR_RETURN(std::vector<SaveReport> reports, ranks_->CallAll<&RankWorker::SaveState>(save));
    Say("state:     {} of step {}, {}", FormatBytes(reports[0].bytes), state_.steps_done, FormatSeconds(reports[0].seconds));
    return absl::OkStatus();
  }

  // At the commit point after a signal.
  absl::Status Stop() {
    std::string_view name = StopSignal() == SIGINT ? "SIGINT" : "SIGTERM";
    if (options_.save_state == SaveStateMode::kNone) {
      return absl::CancelledError(ToAbsl(fmt::format("{} ended the run after step {} of {}; --save-state none: nothing was saved of it", name,
                                                     state_.steps_done, total_steps_)));
    }
    ARGOSY_RETURN_IF_ERROR(SaveState());
    return absl::CancelledError(ToAbsl(fmt::format("{} ended the run after step {} of {}; its training state is saved, --resume goes on "
                                                   "from there", name, state_.steps_done, total_steps_)));
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

  // By the base model, or by what the newest checkpoint has made of it.
  absl::StatusOr<std::vector<std::string>> Answer(bool tuned, size_t count) {
    const int64_t vocab_size = tuned ? spec_.model.vocab_size : base_vocab_size_;
    GenerateSpec generate{.directory = tuned && !options_.lora ? state_.checkpoint : options_.model_directory,
                          .adapter = tuned && options_.lora ? state_.checkpoint : "", .max_new_tokens = options_.max_new_tokens};
    if (std::optional<int32_t> eos = tokenizer_->EosId()) generate.stop_tokens.push_back(*eos);
    if (std::optional<int32_t> end = tokenizer_->TokenToId("<END_A>")) generate.stop_tokens.push_back(*end);
    // The base model's vocabulary may lack the run's tokens: it cannot be asked with them.
    for (size_t i = 0; i < count; ++i) {
      for (int32_t id : held_out_[i].prompt) {
        if (id >= vocab_size) return std::vector<std::string>(count, "(the base model does not know the run's tokens)");
      }
      generate.prompts.push_back(held_out_[i].prompt);
    }
    ARGOSY_ASSIGN_OR_RETURN(auto ids, ranks_->CallRank0<&RankWorker::Generate>(generate));
    std::vector<std::string> answers;
    for (const std::vector<int32_t>& continuation : ids[0]) answers.push_back(tokenizer_->Decode(continuation));
    return answers;
  }

  absl::Status Finish() {
    if (SampleCount() > 0 && !spec_.storage.url.empty()) {
      Say("held-out prompts are not answered: the checkpoint is in S3 and not on a node");
    } else if (SampleCount() > 0) {
      ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> tuned, Answer(/*tuned=*/true, SampleCount()));
      Say("\nheld-out prompts:");
      for (size_t i = 0; i < SampleCount(); ++i) {
        Say("  prompt:     {}", held_out_[i].prompt_text);
        Say("  expected:   {}", tokenizer_->Decode(held_out_[i].answer));
        if (i < base_answers_.size()) Say("  base:       {}", base_answers_[i]);
        Say("  fine-tuned: {}\n", tuned[i]);
      }
    }
    if (options_.exact_rows > 0) ARGOSY_RETURN_IF_ERROR(CountExact());
    ARGOSY_RETURN_IF_ERROR(SendLog());
    Say("{}", FormatEpochTable(state_.epochs));
    const EpochRecord& first = state_.epochs.front();
    const EpochRecord& last = state_.epochs.back();
    if (first.steps == 0 && first.has_eval && last.has_eval) {
      Say("perplexity: {:.3f} -> {:.3f} ({:.1f}x lower)", Perplexity(first.eval_loss), Perplexity(last.eval_loss),
          Perplexity(first.eval_loss) / Perplexity(last.eval_loss));
    }
    Say("checkpoint: {}", state_.checkpoint);
    if (options_.lora) Say("            an adapter: argosy merge-lora --adapter {} --output-dir DIR makes a model of it", state_.checkpoint);
    ranks_.reset();
    return absl::OkStatus();
  }

  absl::Status CountExact() {
    size_t count = std::min<size_t>(options_.exact_rows, held_out_.size());
    ARGOSY_ASSIGN_OR_RETURN(std::vector<std::string> answers, Answer(/*tuned=*/true, count));
    size_t exact = 0;
    for (size_t i = 0; i < count; ++i) exact += answers[i] == tokenizer_->Decode(held_out_[i].answer);
    Say("exact:     {} of {} held-out answers ({:.1f}%)", exact, count, count > 0 ? 100.0 * static_cast<double>(exact) / static_cast<double>(count) : 0.0);
    Record({{"exact", exact}, {"exact_of", count}});
    return absl::OkStatus();
  }

  // To rank 0's node, where the checkpoints are.
  absl::Status SendLog() {
    if (log_.empty()) return absl::OkStatus();
    return ranks_->CallRank0<&RankWorker::AppendLog>(std::exchange(log_, "")).status();
  }

  // A new run begins the files; one that goes on keeps the records up to where it does.
  absl::Status RewindMetrics() {
    const bool goes_on = options_.resume || failures_ > 0;
    if (options_.metrics_path.empty()) return absl::OkStatus();
    std::string kept;
    if (absl::StatusOr<std::string> old = ReadFile(options_.metrics_path); old.ok() && goes_on) kept = KeepRecords(*old, state_.steps_done);
    metrics_.reset();
    ARGOSY_RETURN_IF_ERROR(Annotate(WriteFileAtomic(options_.metrics_path, kept), "--metrics-path"));
    metrics_.reset(std::fopen(options_.metrics_path.c_str(), "a"));
    if (metrics_ == nullptr) return ErrnoStatus(errno, "--metrics-path " + options_.metrics_path);
    return absl::OkStatus();
  }

  void Record(const nlohmann::json& record) {
    std::string line = record.dump() + "\n";
    log_ += line;
    if (metrics_ == nullptr) return;
    std::fwrite(line.data(), 1, line.size(), metrics_.get());
    std::fflush(metrics_.get());
  }

  const FinetuneOptions& options_;
  std::optional<Tokenizer> tokenizer_;
  SampleSet train_, eval_;
  CachedSamples train_cache_, eval_cache_;   // without a path when there is no cache
  std::vector<HeldOut> held_out_;
  std::optional<BatchPlan> plan_;
  TrainSettings settings_;
  RunSpec spec_;
  DType save_dtype_ = DType::kF32;
  std::string run_name_;
  std::map<std::string, std::string> identity_;
  ObjectRef<ShippedSamples> shipped_train_, shipped_eval_;
  bool arrays_shipped_ = false;
  std::unique_ptr<RankSet> ranks_;
  int64_t failures_ = 0, formations_ = 0;   // ranks were lost, and started, so many times
  TrainingState state_;              // where the run stands
  std::vector<std::string> base_answers_;
  int64_t base_vocab_size_ = 0, weight_bytes_ = 0, parameters_ = 0;
  int64_t trained_ = 0, adapted_modules_ = 0;   // parameters; modules with an adapter
  LoraConfig lora_;
  int64_t epochs_ = 1, total_steps_ = 0;
  int64_t timed_steps_ = 0;          // by this process, for the time that is left
  double timed_seconds_ = 0;
  struct CloseFile { void operator()(std::FILE* file) const { std::fclose(file); } };
  std::unique_ptr<std::FILE, CloseFile> metrics_;
  std::string log_;                  // records that rank 0 does not have yet
  double peak_flops_ = 0, flops_per_token_ = 0;
  int64_t peak_bytes_ = 0, skipped_in_a_row_ = 0, traced_steps_ = 0;
};

}  // namespace

absl::Status CheckFinetuneOptions(const FinetuneOptions& options) {
  if (options.model_directory.empty()) return InvalidArgument("--model-name is missing: the folder of a Hugging Face model");
  if (options.output_dir.empty()) return InvalidArgument("--output-dir is missing: the folder that gets the checkpoints");
  ARGOSY_RETURN_IF_ERROR(NeedFile("--train-path", options.train_path));
  if (!options.test_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--test-path", options.test_path));
  if (!options.special_token_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--special-token-path", options.special_token_path));
  if (!options.lora_config_path.empty()) ARGOSY_RETURN_IF_ERROR(NeedFile("--lora-config", options.lora_config_path));
  if (!options.lora_config_path.empty() && !options.adapter_directory.empty()) {
    return InvalidArgument("--lora-config and --adapter: an adapter has its own {}", kAdapterConfigName);
  }
  if (options.lora && !options.freeze.empty()) return InvalidArgument("--freeze with --lora: beside adapters all weights stay as they are");
  if (options.lora && options.random_weights) return InvalidArgument("--random-weights with --lora: adapters need a base that was trained");
  if (options.scaling.num_workers < 1) return InvalidArgument("--num-devices {}: at least 1", options.scaling.num_workers);
  if (options.num_epochs < 1) return InvalidArgument("--num-epochs {}: at least 1", options.num_epochs);
  if (options.rows.ctx_len < 2) return InvalidArgument("--ctx-len {}: at least 2", options.rows.ctx_len);
  if (options.device != "cpu") {
    return InvalidArgument("--device {}: this build trains on \"cpu\" only; a GPU's slot is then computed by its node's CPU", options.device);
  }
  if (options.save_every < 0) return InvalidArgument("--save-every {}: a number of steps, or 0 for epochs' ends only", options.save_every);
  if (options.save_every > 0 && options.save_state == SaveStateMode::kNone) {
    return InvalidArgument("--save-every {} saves training states, which --save-state none rules out", options.save_every);
  }
  if (!options.storage_path.empty()) {
    ARGOSY_RETURN_IF_ERROR(Annotate(ParseS3Url(options.storage_path).status(), "--storage-path"));
    if (options.exact_rows > 0) return InvalidArgument("--exact-rows with --storage-path: the checkpoint is then in S3, and no node has it to answer with");
  } else if (!options.s3_endpoint.empty()) {
    return InvalidArgument("--s3-endpoint is for --storage-path");
  }
  if (options.resume && options.overwrite) return InvalidArgument("--resume and --overwrite: one goes on with a run, the other removes it");
  if (options.failure.max_failures < 0) return InvalidArgument("--max-failures {}: at least 0", options.failure.max_failures);
  if (options.failure.max_skipped_steps < 1) return InvalidArgument("--max-skipped-steps {}: at least 1", options.failure.max_skipped_steps);
  if (options.profile_steps < 0 || options.profile_steps > 1000) {
    return InvalidArgument("--profile {}: 1 to 1000 steps, 0 for none", options.profile_steps);
  }
  if (options.failure.collective_timeout < absl::Seconds(1)) return InvalidArgument("--collective-timeout: at least 1 second");
  if (!options.best_metric.empty() && options.best_metric != "train_loss" && options.best_metric != "eval_loss" &&
      options.best_metric != "perplexity") {
    return InvalidArgument("--keep-best-by {}: train_loss, eval_loss or perplexity", options.best_metric);
  }
  if (options.best_metric != "" && options.best_metric != "train_loss" && options.test_path.empty()) {
    return InvalidArgument("--keep-best-by {} needs --test-path: nothing is evaluated without it", options.best_metric);
  }
  if (!options.save_dtype.empty() && options.save_dtype != "fp32" && options.save_dtype != "bf16") {
    return InvalidArgument("--save-dtype {}: \"fp32\" or \"bf16\"", options.save_dtype);
  }
  return absl::OkStatus();
}

absl::Status Finetune(const FinetuneOptions& given) {
  // Ranks have working folders of their own: what they are told must not depend on this one.
  FinetuneOptions options = given;
  for (std::string* path : {&options.model_directory, &options.output_dir, &options.token_cache, &options.adapter_directory}) {
    if (path->empty()) continue;
    std::error_code error;
    std::filesystem::path absolute = std::filesystem::absolute(*path, error).lexically_normal();
    if (error) return InvalidArgument("{}: {}", *path, error.message());
    *path = absolute.has_filename() ? absolute.string() : absolute.parent_path().string();   // "run/" is "run"
  }
  StopSignals signals;
  try {
    return Run(options).Execute();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace argosy::train
