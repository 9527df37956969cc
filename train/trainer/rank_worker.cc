#include "train/trainer/rank_worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "argosy/context.h"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/spdlog.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/checkpoint/retention.h"
#include "train/checkpoint/s3_checkpoint.h"
#include "train/collective/group.h"
#include "train/data/token_cache.h"
#include "train/model/model.h"
#include "train/parallel/engine.h"
#include "train/trainer/channel_transport.h"
#include "train/trainer/memory_watch.h"
#include "train/trainer/model_source.h"
#include "train/trainer/progress.h"
#include "train/trainer/run_log.h"
#include "train/trainer/state_load.h"
#include "train/trainer/weight_pull.h"

namespace argosy::train {
namespace {

constexpr absl::Duration kChannelTimeout = absl::Seconds(60);
// Rank 0 may be busy for long, with its own part and with ranks before this one.
constexpr absl::Duration kTurnTimeout = absl::Minutes(30);

// At this module's edge statuses become what the API carries: exceptions.
void ThrowIfError(const absl::Status& status, int rank) {
  if (status.ok()) return;
  std::string text = fmt::format("rank {}: {}", rank, Message(status));
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      throw PeerLost(text);
    default:
      throw std::runtime_error(text);
  }
}
template <class T>
T ValueOrThrow(absl::StatusOr<T> value, int rank) {
  ThrowIfError(value.status(), rank);
  return *std::move(value);
}

}  // namespace

ShippedSamples Ship(const SampleSet& samples) {
  return {.tokens = Array<int32_t>(samples.tokens.data(), samples.tokens.size(), samples.owner),
          .begins = Array<int64_t>(samples.begins.data(), samples.begins.size(), samples.owner),
          .is_target = Array<uint8_t>(samples.is_target.data(), samples.is_target.size(), samples.owner)};
}

absl::StatusOr<SampleSet> Unship(const ShippedSamples& shipped) {
  if (!shipped.cache_path.empty()) return OpenTokenCache(shipped.cache_path, shipped.cache_id);
  return SampleSet{.tokens = shipped.tokens, .begins = shipped.begins, .is_target = shipped.is_target, .owner = std::make_shared<ShippedSamples>(shipped)};
}

struct RankWorker::State {
  int rank = 0;
  int world = 1;
  RunSpec spec;
  SampleSet train, eval;
  std::optional<BatchPlan> plan;
  std::unique_ptr<Transport> weights;   // of Save alone
  std::unique_ptr<Group> group;
  std::unique_ptr<Engine> engine;       // after the group, which must outlive it
  ModelConfig config;
  std::optional<ModelWithWeights> model;   // what the adapter is beside; kept where there is one
  std::optional<RunAdapter> adapter;
  std::unique_ptr<MemoryWatch> memory;
  std::vector<TracedLine> trace;
  RunLog log;

  // An error inside a sequence of collectives: the peers are told at once, instead of waiting for this rank until their deadline.
  template <class T>
  T ValueOrAbort(absl::StatusOr<T> value) {
    AbortIfError(value.status());
    return *std::move(value);
  }
  void AbortIfError(const absl::Status& status) {
    if (!status.ok() && group) group->Abort(fmt::format("rank {}: {}", rank, Message(status)));
    ThrowIfError(status, rank);
  }

  // The tensors that are trained: of the model, or of the adapters.
  std::vector<TensorRange> TrainedRanges() const { return adapter ? adapter->layout.Ranges() : MakeLayout(config).Ranges(); }
  std::vector<TensorSpec> TrainedTensors(DType as) const { return adapter ? adapter->layout.Tensors(as) : config.Tensors(as); }

  // What an adapter's file has beside the adapter, as peft's has it: embeddings whose rows are not those of the base's files.
  std::map<std::string, PullOptions::Frozen> Embeddings() const {
    std::map<std::string, PullOptions::Frozen> embeddings;
    if (!adapter || model->files_vocab_size == config.vocab_size) return embeddings;
    const ModelLayout layout = MakeLayout(config);
    for (size_t unit : {size_t{0}, layout.units.size() - 1}) {
      for (const TensorRange& range : layout.units[unit].ranges) {
        if (!range.is_matrix()) continue;
        const std::string module = range.name.substr(0, range.name.rfind('.'));
        const std::vector<AdaptedModule>& adapted = adapter->layout.units[unit].modules;
        const bool targeted = std::any_of(adapted.begin(), adapted.end(), [&](const AdaptedModule& one) { return one.name == module; });
        if (adapter->layout.units[unit].FindWhole(range.name) != nullptr) continue;
        embeddings[fmt::format("base_model.model.{}{}.weight", module, targeted ? ".base_layer" : "")] = {&adapter->base(*model), range};
      }
    }
    return embeddings;
  }

  absl::StatusOr<CheckpointLayout> PlanSave(const SaveSpec& save) const {
    std::vector<TensorSpec> tensors = TrainedTensors(save.save_dtype);
    if (!adapter) return PlanCheckpoint(tensors, {.shard_bytes_max = save.shard_bytes_max});
    for (const auto& [name, frozen] : Embeddings()) tensors.push_back({.name = name, .shape = frozen.range.shape, .dtype = save.save_dtype});
    return PlanCheckpoint(tensors, {.shard_bytes_max = INT64_MAX, .stem = "adapter_model"});
  }

  // Rank 0 reads for itself, then for the others in turn. `model` has what is not trained.
  absl::StatusOr<std::unique_ptr<Engine>> LoadState(const EngineOptions& options, const ModelWithWeights& model) {
    std::unique_ptr<StateSource> source;
    if (rank == 0) {
      ARGOSY_ASSIGN_OR_RETURN(source, StateSource::Open(spec.resume.directory, TrainedRanges()));
    } else {
      source = StateSource::Remote(*weights, TrainedRanges(), kTurnTimeout);
    }
    OptimizerStart start{.steps = spec.resume.optimizer_steps, .skipped = spec.resume.skipped, .moment1 = &source->moment1(),
                         .moment2 = &source->moment2()};
    AdapterStart beside{.layout = adapter ? &adapter->layout : nullptr, .values = &source->masters()};
    ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> loaded,
                            Engine::Create(config, adapter ? adapter->base(model) : source->masters(), group.get(), options, &start,
                                           adapter ? &beside : nullptr));
    if (rank != 0) {
      ARGOSY_RETURN_IF_ERROR(source->Done());
    } else {
      for (int peer = 1; peer < world; ++peer) ARGOSY_RETURN_IF_ERROR(source->Serve(*weights, peer, kTurnTimeout));
    }
    return loaded;
  }

  BatchLayout Layout() const {
    return {.ctx_len = spec.batch.ctx_len, .pad_id = spec.batch.pad_id,
            .padding_side = spec.batch.pad_left ? PaddingSide::kLeft : PaddingSide::kRight,
            .recipe_parity = spec.batch.recipe_parity};
  }
};

RankWorker::RankWorker(int rank, int world_size) : state_(std::make_unique<State>()) {
  state_->rank = rank;
  state_->world = world_size;
}
RankWorker::~RankWorker() = default;

RankHello RankWorker::Hello() {
  RuntimeContext context = GetRuntimeContext();
  return {.endpoint = ThisEndpoint(), .node_name = context.node_name, .node_id = context.node_id.Hex(),
          .pid = static_cast<uint32_t>(::getpid()), .gpu_ids = context.gpu_ids};
}

OutputReport RankWorker::PrepareOutput(std::string directory, int64_t bytes, bool goes_on, StorageSpec storage) {
  auto inspect = [&]() -> absl::StatusOr<OutputReport> {
    ARGOSY_RETURN_IF_ERROR(MakeDirectories(directory));
    ARGOSY_RETURN_IF_ERROR(CheckSpace(directory, bytes));
    OutputReport report;
    std::vector<SavedCheckpoint> checkpoints;
    if (storage.url.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(checkpoints, ListCheckpoints(directory));
    } else {
      ARGOSY_ASSIGN_OR_RETURN(S3Location parent, ParseS3Url(storage.url));
      ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<S3Client> client, S3Client::Create(parent.bucket, {.endpoint = storage.endpoint}));
      ARGOSY_RETURN_IF_ERROR(CheckS3Access(*client, parent));
      ARGOSY_ASSIGN_OR_RETURN(checkpoints, ListS3Checkpoints(*client, parent));
    }
    for (const SavedCheckpoint& checkpoint : checkpoints) {
      report.checkpoints.push_back(std::filesystem::path(checkpoint.directory).filename().string());
    }
    if (goes_on) {
      ARGOSY_ASSIGN_OR_RETURN(UsableState usable, NewestUsableState(directory));
      report.state_directory = std::move(usable.directory);
      report.damaged = std::move(usable.damaged);
    } else {
      ARGOSY_ASSIGN_OR_RETURN(std::optional<std::string> newest, NewestState(directory));
      report.state_directory = newest.value_or("");
    }
    if (!report.state_directory.empty()) {
      ARGOSY_ASSIGN_OR_RETURN(report.state, TrainingState::Load(report.state_directory));
    }
    return report;
  };
  absl::StatusOr<OutputReport> report = inspect();
  ThrowIfError(Annotate(report.status(), "node " + GetRuntimeContext().node_name), state_->rank);
  return *std::move(report);
}

bool RankWorker::SeesTokens(std::string path, uint32_t id) { return OpenTokenCache(path, id).ok(); }

int64_t RankWorker::ClearOutput(std::string directory, StorageSpec storage) {
  int64_t removed = 0;
  if (!storage.url.empty()) {
    S3Location in = ValueOrThrow(ParseS3Url(storage.url), state_->rank);
    std::unique_ptr<S3Client> client = ValueOrThrow(S3Client::Create(in.bucket, {.endpoint = storage.endpoint}), state_->rank);
    for (const SavedCheckpoint& checkpoint : ValueOrThrow(ListS3Checkpoints(*client, in), state_->rank)) {
      ThrowIfError(RemoveS3Checkpoint(*client, ValueOrThrow(ParseS3Url(checkpoint.directory), state_->rank)), state_->rank);
      ++removed;
    }
  }
  for (const std::string& parent : {directory, directory + "/" + kStateFolder}) {
    std::vector<SavedCheckpoint> checkpoints = ValueOrThrow(ListCheckpoints(parent), state_->rank);
    for (const SavedCheckpoint& checkpoint : checkpoints) ThrowIfError(RemoveCheckpoint(checkpoint.directory), state_->rank);
    removed += static_cast<int64_t>(checkpoints.size());
  }
  return removed;
}

RankReady RankWorker::Setup(RunSpec spec, std::vector<Endpoint> endpoints, ShippedSamples train, ShippedSamples eval) {
  State& s = *state_;
  absl::Time begin = absl::Now();
  s.spec = std::move(spec);
  s.train = ValueOrThrow(Unship(train), s.rank);
  s.eval = ValueOrThrow(Unship(eval), s.rank);
  const BatchSpec& batch = s.spec.batch;
  BatchPlanOptions plan{.ctx_len = batch.ctx_len, .rows_per_step = batch.rows_per_step,
                        .micro_batches = batch.micro_batches, .seed = batch.seed, .shuffle = batch.shuffle, .pack = batch.pack};
  s.plan.emplace(ValueOrThrow(BatchPlan::Make(s.train, plan), s.rank));

  std::unique_ptr<Transport> transport;
  if (s.world > 1) {
    transport = ValueOrThrow(ChannelTransport::Open(s.rank, endpoints, s.spec.run_id + "/group", kChannelTimeout), s.rank);
    s.weights = ValueOrThrow(ChannelTransport::Open(s.rank, endpoints, s.spec.run_id + "/weights", kChannelTimeout), s.rank);
    s.group = MakeMessageGroup(std::move(transport), {.deadline = absl::Seconds(s.spec.collective_timeout_seconds)});
  } else {
    s.weights = ValueOrThrow(ChannelTransport::Open(0, endpoints, s.spec.run_id + "/weights", kChannelTimeout), s.rank);
    s.group = MakeLoopbackGroup();
  }

  const ModelSource& model = s.spec.model;
  absl::StatusOr<ModelWithWeights> loaded = OpenModel(model);
  if (!loaded.ok()) {
    // The path was right where the driver runs: say on which node it is not.
    ThrowIfError(Annotate(loaded.status(), "node " + GetRuntimeContext().node_name), s.rank);
  }
  s.config = loaded->config;
  s.memory = std::make_unique<MemoryWatch>();
  const EngineSpec& engine = s.spec.engine;
  EngineOptions options{.zero_stage = engine.zero_stage, .dtype = engine.dtype,
                        .adamw = {.beta1 = engine.adam_beta1, .beta2 = engine.adam_beta2, .eps = engine.adam_eps},
                        .moments = engine.moments, .offload = engine.offload, .weight_decay = engine.weight_decay, .decay_vectors = engine.decay_vectors,
                        .max_grad_norm = engine.max_grad_norm, .freeze = engine.freeze, .recompute = engine.recompute, .seed = batch.seed, .threads = engine.threads};
  s.model.emplace(*std::move(loaded));
  if (!s.spec.adapter.config.empty()) s.adapter.emplace(s.ValueOrAbort(OpenRunAdapter(s.spec.adapter, *s.model, model.seed)));
  AdapterStart beside{.layout = s.adapter ? &s.adapter->layout : nullptr, .values = s.adapter ? &s.adapter->values() : nullptr};
  s.engine = s.spec.resume.directory.empty()
                 ? s.ValueOrAbort(Engine::Create(s.config, s.adapter ? s.adapter->base(*s.model) : s.model->source(), s.group.get(), options, nullptr,
                                                 s.adapter ? &beside : nullptr))
                 : s.ValueOrAbort(s.LoadState(options, *s.model));
  if (!s.adapter) s.model.reset();
  const int64_t trained = s.adapter ? s.adapter->layout.ParameterCount() : s.config.ParameterCount();
  spdlog::info("rank {} of {}: {} parameters, {} of them trained, {} bytes of state, loaded in {:.1f} s", s.rank, s.world, s.config.ParameterCount(),
               trained, s.engine->StateBytes(), SecondsSince(begin));
  return {.state_bytes = s.engine->StateBytes(), .offloaded_bytes = s.engine->OffloadedBytes(), .steps_per_epoch = s.plan->StepsInEpoch(0), .load_seconds = SecondsSince(begin),
          .parameters = s.config.ParameterCount(), .trained = trained, .threads = engine.threads};
}

std::vector<StepReport> RankWorker::Train(int64_t epoch, int64_t first, int64_t count, std::vector<double> deal) {
  State& s = *state_;
  std::vector<StepReport> reports;
  const BatchLayout layout = s.Layout();
  for (int64_t step = first; step < first + count; ++step) {
    absl::Time begin = absl::Now();
    StepReport report{.epoch = epoch, .step = step};
    StepRows rows = s.plan->Step(epoch, step);
    std::vector<MicroBatch> batches;
    int64_t rows_before = 0;
    for (const std::vector<Pack>& micro : rows.micro_batches) {
      std::span<const Pack> mine = ShareOf(micro, s.rank, s.world, deal);
      batches.push_back(BuildMicroBatch(s.train, mine, layout));
      batches.back().first_row = rows_before + (mine.data() - micro.data());
      rows_before += static_cast<int64_t>(micro.size());
      report.useful_tokens += batches.back().useful_tokens;
      report.computed_tokens += static_cast<int64_t>(batches.back().input_ids.size());
    }
    report.learning_rate = LearningRate(s.spec.schedule, s.engine->steps());
    StepResult result = s.ValueOrAbort(s.engine->TrainStep(batches, report.learning_rate));
    report.loss = result.loss;
    report.grad_norm = result.grad_norm;
    report.target_tokens = result.target_tokens;
    report.skipped = result.skipped;
    report.not_finite = result.not_finite;
    report.times = result.times;
    report.peak_bytes = s.memory->PeakBytes();
    report.seconds = SecondsSince(begin);
    reports.push_back(report);
  }
  return reports;
}

EvalReport RankWorker::Evaluate() {
  State& s = *state_;
  absl::Time begin = absl::Now();
  const BatchSpec& batch = s.spec.batch;
  int64_t rows = batch.eval_rows_max > 0 ? std::min(batch.eval_rows_max, s.eval.size()) : s.eval.size();
  // nll, targets, sum of batch means, batches: summed over the ranks.
  std::array<double, 4> sums{};
  for (const std::vector<Pack>& packs : EvalBatches(rows, batch.eval_batch_rows, s.rank, s.world)) {
    EvaluateResult result = s.ValueOrAbort(s.engine->Evaluate(BuildMicroBatch(s.eval, packs, s.Layout())));
    sums[0] += result.nll;
    sums[1] += static_cast<double>(result.target_tokens);
    if (result.target_tokens > 0) {
      sums[2] += result.nll / static_cast<double>(result.target_tokens);
      sums[3] += 1;
    }
  }
  s.AbortIfError(s.group->AllReduce(std::span<double>(sums), {.step = s.engine->steps()}).Wait());
  return {.nll = sums[0], .target_tokens = static_cast<int64_t>(sums[1]), .batch_mean_loss = sums[3] > 0 ? sums[2] / sums[3] : 0,
          .seconds = SecondsSince(begin)};
}

SaveReport RankWorker::Save(SaveSpec spec) {
  State& s = *state_;
  absl::Time begin = absl::Now();
  s.AbortIfError(s.engine->Flush());
  const DType have = s.engine->trained_dtype();
  const absl::Duration deadline = absl::Seconds(s.spec.collective_timeout_seconds);
  if (s.rank != 0 && !spec.by_ranks) {
    ThrowIfError(ServeWeights(*s.engine, *s.weights, have, kTurnTimeout), s.rank);
    return {.seconds = SecondsSince(begin)};
  }
  auto text_of = [](int64_t id) { return id < 0 ? std::optional<int64_t>() : std::optional<int64_t>(id); };
  CheckpointLayout layout = ValueOrThrow(s.PlanSave(spec), s.rank);
  PullOptions pull{.zero_stage = s.engine->trained_stage(), .engine_dtype = have, .save_dtype = spec.save_dtype, .deadline = deadline,
                   .frozen = s.Embeddings()};
  if (s.rank != 0) {
    ThrowIfError(WriteOwn(*s.engine, *s.weights, layout, pull, kTurnTimeout), s.rank);
    return {.seconds = SecondsSince(begin)};
  }
  CheckpointWriterOptions options;
  options.directory = spec.directory;
  options.layout = layout;
  options.notes = {.step = spec.step, .epoch = spec.epoch, .metrics = spec.metrics};
  const std::string parent = spec.directory.substr(0, spec.directory.rfind('/'));
  std::unique_ptr<S3Client> client;   // outlives the writer
  S3Location place;
  if (IsS3Url(spec.directory)) {
    place = ValueOrThrow(ParseS3Url(spec.directory), s.rank);
    client = ValueOrThrow(S3Client::Create(place.bucket, {.endpoint = s.spec.storage.endpoint}), s.rank);
    options.sink = ValueOrThrow(SendToS3(*client, place), s.rank);
  }
  std::unique_ptr<CheckpointWriter> writer = ValueOrThrow(CheckpointWriter::Create(std::move(options)), s.rank);
  ModelFiles files{.config = s.adapter ? nullptr : &s.config,
                   .changes = {.vocab_size = s.config.vocab_size, .dtype = spec.save_dtype, .bos_token_id = text_of(spec.bos_id),
                               .eos_token_id = text_of(spec.eos_id), .pad_token_id = text_of(spec.pad_id)},
                   .source_directory = s.spec.model.directory, .contents = spec.files};
  if (s.adapter) {
    // Beside its base's tokenizer, without what would make it a model of its own.
    LoraConfig written = s.adapter->lora;
    written.base_model = s.spec.model.directory;
    ThrowIfError(writer->AddFile(kAdapterConfigName, written.ToJson()), s.rank);
  }
  ThrowIfError(AddModelFiles(*writer, files), s.rank);
  ThrowIfError(spec.by_ranks ? WriteTogether(*s.engine, *s.weights, *writer, pull, kTurnTimeout)
                             : PullWeights(*s.engine, *s.weights, *writer, pull), s.rank);
  ThrowIfError(writer->Commit(), s.rank);
  if (spec.num_to_keep > 0) {
    const RetentionPolicy policy{.num_to_keep = spec.num_to_keep, .metric = spec.best_metric};
    ThrowIfError(client != nullptr ? ApplyS3Retention(*client, ValueOrThrow(ParseS3Url(parent), s.rank), policy) : ApplyRetention(parent, policy), s.rank);
  }
  return {.bytes = layout.FileBytes(), .files = static_cast<int64_t>(layout.files.size()), .seconds = SecondsSince(begin)};
}

SaveReport RankWorker::SaveState(SaveStateSpec spec) {
  State& s = *state_;
  absl::Time begin = absl::Now();
  s.AbortIfError(s.engine->Flush());
  PullOptions pull{.zero_stage = s.engine->trained_stage(), .engine_dtype = s.engine->trained_dtype(),
                   .deadline = absl::Seconds(s.spec.collective_timeout_seconds)};
  CheckpointLayout layout = ValueOrThrow(PlanCheckpoint(StateTensors(s.TrainedTensors(DType::kF32)), {.shard_bytes_max = spec.shard_bytes_max, .stem = kStateStem}), s.rank);
  if (s.rank != 0) {
    ThrowIfError(spec.by_ranks ? WriteOwn(*s.engine, *s.weights, layout, pull, kTurnTimeout)
                               : ServeWeights(*s.engine, *s.weights, s.engine->trained_dtype(), kTurnTimeout), s.rank);
    return {.seconds = SecondsSince(begin)};
  }
  spec.state.optimizer_steps = s.engine->steps();
  spec.state.skipped = s.engine->skipped();
  CheckpointWriterOptions options;
  options.directory = spec.directory;
  options.layout = std::move(layout);
  options.notes = {.step = spec.state.steps_done, .epoch = spec.state.epoch};
  std::unique_ptr<CheckpointWriter> writer = ValueOrThrow(CheckpointWriter::Create(std::move(options)), s.rank);
  ThrowIfError(writer->AddFile(kStateJsonName, spec.state.ToJson()), s.rank);
  ThrowIfError(spec.by_ranks ? WriteTogether(*s.engine, *s.weights, *writer, pull, kTurnTimeout)
                             : PullWeights(*s.engine, *s.weights, *writer, pull), s.rank);
  ThrowIfError(writer->Commit(), s.rank);
  if (spec.num_to_keep > 0) {
    std::string parent = spec.directory.substr(0, spec.directory.rfind('/'));
    ThrowIfError(ApplyRetention(parent, {.num_to_keep = spec.num_to_keep}), s.rank);
  }
  return {.bytes = writer->Layout().FileBytes(), .files = static_cast<int64_t>(writer->Layout().files.size()),
          .seconds = SecondsSince(begin)};
}

std::vector<std::vector<int32_t>> RankWorker::Generate(GenerateSpec spec) {
  State& s = *state_;
  std::unique_ptr<Model> model = ValueOrThrow(Model::Load(spec.directory, s.spec.engine.dtype, spec.adapter), s.rank);
  std::vector<std::vector<int32_t>> results;
  for (const std::vector<int32_t>& prompt : spec.prompts) {
    results.push_back(ValueOrThrow(
        model->Generate(prompt, {.max_new_tokens = spec.max_new_tokens, .stop_tokens = spec.stop_tokens}), s.rank));
  }
  return results;
}

double RankWorker::MeasurePeak() { return PeakFlops(state_->spec.engine.threads); }

bool RankWorker::StartTrace() {
  state_->trace.clear();
  state_->engine->TraceInto(&state_->trace);
  return true;
}

std::vector<TracedLine> RankWorker::TakeTrace() {
  state_->engine->TraceInto(nullptr);
  return std::exchange(state_->trace, {});
}

bool RankWorker::OpenLog(std::string directory, int64_t total_step) {
  ThrowIfError(state_->log.Open(directory, total_step), state_->rank);
  return true;
}

bool RankWorker::AppendLog(std::string lines) {
  ThrowIfError(state_->log.Append(lines), state_->rank);
  return true;
}

bool RankWorker::WriteOutput(std::string path, std::string content) {
  ThrowIfError(WriteFileAtomic(path, content), state_->rank);
  return true;
}

std::string RankWorker::Schedule() { return state_->engine->PrintSchedule(state_->spec.batch.micro_batches); }

}  // namespace argosy::train
