#include "train/parallel/engine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <regex>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "train/model/network.h"
#include "train/optim/state_file.h"
#include "train/parallel/schedule.h"

namespace argosy::train {
namespace {

constexpr size_t kReducesInFlightMax = 2;

std::span<float> Floats(const at::Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}; }
std::span<uint16_t> Bits(const at::Tensor& tensor) {
  return {static_cast<uint16_t*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}
std::span<std::byte> Bytes(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel() * tensor.element_size())};
}

// Flat buffers that come and go during a step. Sizes that several units share (the layers') are kept for reuse.
class BufferPool {
 public:
  void Keep(int64_t elements) { kept_[elements]; }
  at::Tensor Take(int64_t elements, at::ScalarType type) {
    auto it = kept_.find(elements);
    if (it != kept_.end()) {
      for (auto buffer = it->second.begin(); buffer != it->second.end(); ++buffer) {
        if (buffer->scalar_type() != type) continue;
        at::Tensor taken = std::move(*buffer);
        it->second.erase(buffer);
        return taken;
      }
    }
    return at::empty({elements}, type);
  }
  void Give(at::Tensor buffer) {
    auto it = kept_.find(buffer.numel());
    if (it != kept_.end()) it->second.push_back(std::move(buffer));
  }

 private:
  std::map<int64_t, std::vector<at::Tensor>> kept_;
};

// Of a unit, what is trained: its weights, or with adapters the buffer beside them.
struct UnitState {
  Cuts cuts;
  int64_t begin = 0;  // this rank's share of the flat buffer
  int64_t count = 0;
  // What the optimizer of this rank steps: the share, or in stage 0 everything.
  int64_t owned_begin = 0;
  int64_t owned_count = 0;
  std::vector<bool> frozen;   // by range of the layout

  at::Tensor full;   // all weights; in stage 3 only from gather to release
  at::Tensor share;  // a view of `full`, or in stage 3 the storage itself
  at::Tensor low;    // bf16 only: lower halves of the owned masters
  at::Tensor moment1;
  at::Tensor moment2;
  std::span<std::byte> offloaded;   // where the three above are, when that is a file
  at::Tensor gradient;  // of the owned elements: fp32, or alone and without accumulation in the type of the computation
  at::Tensor local;     // stages 0-1: this rank's own sum over micro-batches, fp32, whole unit
  at::Tensor working;   // stages 2-3: the micro-batch's gradient until its reduce

  bool step_due = false;
  bool stale = false;  // stages 1-2: others' shares have been stepped since the last gather
  bool gathering = false;
  Pending gather;
};

// The frozen weights that adapters are beside.
struct BaseState {
  Cuts cuts;
  at::Tensor full;    // in stage 3 only from gather to release
  at::Tensor share;   // stage 3 only
  bool gathering = false;
  Pending gather;
};

struct Reduce {
  Pending pending;
  at::Tensor buffer;
};

}  // namespace

struct Engine::State {
  State(Network made, Group* group, const EngineOptions& options)
      : network(std::move(made)), group(group), options(options), type(TorchType(options.dtype)), units(network.layout().units.size()) {
    if (network.adapters() != nullptr) bases.resize(units.size());
  }

  Network network;
  Group* group;
  EngineOptions options;
  std::unique_ptr<StateFile> file;   // of the units' moments and lower halves; outlives them
  at::ScalarType type;
  std::vector<UnitState> units;
  std::vector<BaseState> bases;   // by unit; with adapters only
  BufferPool pool;
  std::deque<Reduce> reduces;

  size_t first_trained = 0;   // unit below which nothing is trained
  int64_t calls = 0;    // collective calls of TrainStep, Evaluate and Flush so far: the step that messages carry
  int64_t steps = 0;
  int64_t skipped = 0;
  // The update that the last commit decided.
  double lr = 0;
  double gradient_scale = 1;

  // Of the step under way.
  double loss_scale = 0;
  double nll = 0;
  std::vector<PreparedBatch> batches;
  std::vector<at::Tensor> hidden;  // by unit: what it made
  std::vector<std::shared_ptr<LayerTape>> tapes;  // by unit, where nothing is computed again
  at::Tensor grad_hidden;
  StepTimes times;
  std::vector<TracedLine>* trace = nullptr;
  absl::Time trace_begin;

  bool adapters() const { return !bases.empty(); }
  // Of what is trained.
  int stage() const { return adapters() ? 0 : options.zero_stage; }
  DType dtype() const { return adapters() ? DType::kF32 : options.dtype; }
  bool bf16() const { return dtype() == DType::kBF16; }
  bool sharded_weights() const { return stage() == 3; }
  bool local_sums() const { return stage() <= 1; }
  size_t head() const { return units.size() - 1; }
  const UnitLayout& Layout(size_t unit) const { return adapters() ? network.adapters()->units[unit].layout : network.layout().units[unit]; }
  // The unit's buffers while it is computed with.
  UnitWeights Weights(size_t unit) const { return adapters() ? UnitWeights(bases[unit].full, units[unit].full) : UnitWeights(units[unit].full); }
  UnitWeights Gradients(at::Tensor buffer) const { return adapters() ? UnitWeights(at::Tensor(), std::move(buffer)) : UnitWeights(std::move(buffer)); }
  Where At(int32_t unit) const { return {.step = calls, .unit = unit}; }
  // Alone, the backward adds to the optimizer's gradient directly.
  bool direct() const { return group->size() == 1; }
  // Of one micro-batch. A tied matrix gets its gradient from both ends of the model, summed in fp32.
  at::ScalarType GradientType(size_t unit) const { return adapters() || (unit == 0 && network.layout().tied) ? at::kFloat : type; }

  ScheduleOptions ScheduleFor(int micro_batches) const {
    ScheduleOptions schedule{.units = static_cast<int32_t>(units.size()),
                             .stage = options.zero_stage,
                             .micro_batches = micro_batches,
                             .tied = network.layout().tied};
    for (size_t unit = 0; adapters() && unit < units.size(); ++unit) schedule.trained.push_back(Layout(unit).elements > 0);
    return schedule;
  }

  absl::Status Load(const WeightSource& source, const OptimizerStart* optimizer);
  absl::Status LoadBase(const WeightSource& source);
  // Elements of the optimizer's state, all 0.
  absl::Status MakeOptimizer();
  absl::Status LoadRange(const WeightSource& source, size_t unit, int64_t begin, int64_t count, const at::Tensor& weights);

  absl::Status Run(const std::vector<Line>& schedule, bool training);
  absl::Status Step(size_t unit);
  void StartGather(size_t unit);
  absl::Status FinishGather(size_t unit);
  void Release(size_t unit);
  // The buffer that the unit's backward adds to, zeroed when this is its first use.
  at::Tensor GradientBuffer(size_t unit, int32_t micro_batch);
  absl::Status StartReduce(size_t unit, int32_t micro_batch);
  absl::Status FinishReduce();
  absl::Status Forward(size_t unit, int32_t micro_batch, bool training);
  absl::Status Loss(int32_t micro_batch, bool training);
  absl::Status Backward(size_t unit, int32_t micro_batch);
  absl::Status Commit(StepResult& result);
  void SetDropout(PreparedBatch& batch, const MicroBatch& micro_batch) const;
  absl::Status Freeze();
  void ForgetFrozen();
  double ShareSquares() const;
  std::string FirstNotFinite() const;
  // Waits, and counts the time.
  absl::Status WaitFor(Pending& pending) {
    absl::Time begin = absl::Now();
    absl::Status status = pending.Wait();
    times.waiting += absl::ToDoubleSeconds(absl::Now() - begin);
    return status;
  }
};

absl::Status Engine::State::LoadRange(const WeightSource& source, size_t unit, int64_t begin, int64_t count,
                                      const at::Tensor& weights) {
  // `weights` holds the elements from `begin` on.
  constexpr int64_t kBlock = 1 << 20;
  std::vector<float> block;
  UnitState& state = units[unit];
  for (int64_t at = 0; at < count; at += kBlock) {
    block.resize(std::min(kBlock, count - at));
    ARGOSY_RETURN_IF_ERROR(ReadFlat(source, Layout(unit), begin + at, block));
    if (!bf16()) {
      std::copy(block.begin(), block.end(), Floats(weights).begin() + at);
      continue;
    }
    std::span<uint16_t> parameters = Bits(weights), low = Bits(state.low);
    for (int64_t i = 0; i < static_cast<int64_t>(block.size()); ++i) {
      SplitFloat halves = Split(block[i]);
      parameters[at + i] = halves.parameter;
      int64_t owned = begin + at + i - state.owned_begin;
      if (owned >= 0 && owned < state.owned_count) low[owned] = halves.low;
    }
  }
  return absl::OkStatus();
}

// Reads the unit's elements from `begin` on into all of `moments`, a block at a time.
static absl::Status ReadMoments(const WeightSource& source, const UnitLayout& unit, int64_t begin, const at::Tensor& moments) {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<float> block;
  for (int64_t at = 0; at < moments.numel(); at += kBlock) {
    block.resize(std::min(kBlock, moments.numel() - at));
    ARGOSY_RETURN_IF_ERROR(ReadFlat(source, unit, begin + at, block));
    if (moments.scalar_type() == at::kFloat) {
      std::copy(block.begin(), block.end(), Floats(moments).begin() + at);
    } else {
      std::transform(block.begin(), block.end(), Bits(moments).begin() + at, Bf16FromFloat);
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::State::MakeOptimizer() {
  const at::ScalarType moments = TorchType(options.moments);
  const int64_t size = (bf16() ? 2 : 0) + 2 * SizeOf(options.moments);
  if (!options.offload.empty()) {
    int64_t bytes = 0;
    for (const UnitState& state : units) bytes += StateFile::Rounded(state.owned_count * size);
    ARGOSY_ASSIGN_OR_RETURN(file, StateFile::Create(options.offload, bytes));
  }
  for (UnitState& state : units) {
    std::span<std::byte> rest;
    if (file != nullptr) rest = state.offloaded = file->Take(state.owned_count * size);
    auto zeros = [&](at::ScalarType type) {
      if (file == nullptr) return at::zeros({state.owned_count}, type);
      const size_t bytes = static_cast<size_t>(state.owned_count) * at::elementSize(type);
      at::Tensor tensor = at::from_blob(rest.data(), {state.owned_count}, type);
      rest = rest.subspan(bytes);
      return tensor;
    };
    state.moment1 = zeros(moments);
    state.moment2 = zeros(moments);
    if (bf16()) state.low = zeros(at::kShort);
  }
  return absl::OkStatus();
}

absl::Status Engine::State::LoadBase(const WeightSource& source) {
  std::map<int64_t, int> sizes;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    BaseState& state = bases[unit];
    const UnitLayout& layout = network.layout().units[unit];
    if (++sizes[layout.elements] == 2) pool.Keep(layout.elements);
    state.cuts = CutEvenly(layout.elements, group->size());
    const bool sharded = options.zero_stage == 3;
    const int64_t begin = sharded ? state.cuts[group->rank()] : 0, end = sharded ? state.cuts[group->rank() + 1] : layout.elements;
    ARGOSY_ASSIGN_OR_RETURN((sharded ? state.share : state.full), ReadFlatTensor(source, layout, begin, end, type));
  }
  return absl::OkStatus();
}

absl::Status Engine::State::Load(const WeightSource& source, const OptimizerStart* optimizer) {
  if (optimizer != nullptr) {
    steps = optimizer->steps;
    skipped = optimizer->skipped;
  }
  std::map<int64_t, int> sizes;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    UnitState& state = units[unit];
    int64_t elements = Layout(unit).elements;
    if (!adapters() && ++sizes[elements] == 2) pool.Keep(elements);
    state.cuts = CutEvenly(elements, group->size());
    state.begin = state.cuts[group->rank()];
    state.count = state.cuts[group->rank() + 1] - state.begin;
    bool everything = stage() == 0;
    state.owned_begin = everything ? 0 : state.begin;
    state.owned_count = everything ? elements : state.count;
  }
  ARGOSY_RETURN_IF_ERROR(MakeOptimizer());
  for (size_t unit = 0; unit < units.size(); ++unit) {
    UnitState& state = units[unit];
    const int64_t elements = Layout(unit).elements;
    if (sharded_weights()) {
      state.share = at::empty({state.count}, TorchType(dtype()));
      ARGOSY_RETURN_IF_ERROR(LoadRange(source, unit, state.begin, state.count, state.share));
    } else {
      state.full = at::empty({elements}, TorchType(dtype()));
      state.share = state.full.narrow(0, state.begin, state.count);
      ARGOSY_RETURN_IF_ERROR(LoadRange(source, unit, 0, elements, state.full));
    }
    if (optimizer != nullptr) {
      ARGOSY_RETURN_IF_ERROR(ReadMoments(*optimizer->moment1, Layout(unit), state.owned_begin, state.moment1));
      ARGOSY_RETURN_IF_ERROR(ReadMoments(*optimizer->moment2, Layout(unit), state.owned_begin, state.moment2));
    }
    if (file != nullptr) ARGOSY_RETURN_IF_ERROR(file->Leave(state.offloaded));
    state.gradient = at::zeros({state.owned_count}, direct() ? GradientType(unit) : at::kFloat);
    if (local_sums() && !direct()) state.local = at::zeros({elements}, at::kFloat);
  }
  return absl::OkStatus();
}

absl::Status Engine::State::Step(size_t unit) {
  UnitState& state = units[unit];
  if (!state.step_due) return absl::OkStatus();
  state.step_due = false;
  // Steps go up the units.
  if (file != nullptr && unit + 1 < units.size()) file->Expect(units[unit + 1].offloaded);
  const auto key = static_cast<uint32_t>(options.seed + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(steps) + 0x632be59bu * (unit + 1));
  state.stale = !sharded_weights() && stage() > 0 && group->size() > 1;
  AdamWScalars decayed = ScalarsFor(options.adamw, steps, lr, options.weight_decay, gradient_scale);
  AdamWScalars plain = ScalarsFor(options.adamw, steps, lr, 0.0, gradient_scale);
  at::Tensor weights = stage() == 0 ? state.full : state.share;
  int64_t owned_end = state.owned_begin + state.owned_count;
  for (size_t r = 0; r < Layout(unit).ranges.size(); ++r) {
    const TensorRange& range = Layout(unit).ranges[r];
    int64_t from = std::max(range.offset, state.owned_begin) - state.owned_begin;
    int64_t to = std::min(range.offset + range.elements, owned_end) - state.owned_begin;
    if (from >= to || state.frozen[r]) continue;
    const AdamWScalars& scalars = range.is_matrix() || options.decay_vectors ? decayed : plain;
    at::parallel_for(from, to, /*grain_size=*/1 << 15, [&](int64_t begin, int64_t end) {
      size_t count = end - begin;
      // An element's number in its unit: the bits do not depend on how it is cut.
      AdamWSlice slice{.first = static_cast<uint32_t>(state.owned_begin + begin), .key = key};
      if (options.moments == DType::kF32) {
        slice.moment1 = Floats(state.moment1).subspan(begin, count);
        slice.moment2 = Floats(state.moment2).subspan(begin, count);
      } else {
        slice.moment1_bf16 = Bits(state.moment1).subspan(begin, count);
        slice.moment2_bf16 = Bits(state.moment2).subspan(begin, count);
      }
      if (state.gradient.scalar_type() == at::kFloat) {
        slice.gradient = Floats(state.gradient).subspan(begin, count);
      } else {
        slice.gradient_bf16 = Bits(state.gradient).subspan(begin, count);
      }
      if (bf16()) {
        AdamWStepBf16(Bits(weights).subspan(begin, count), Bits(state.low).subspan(begin, count), slice, scalars);
      } else {
        AdamWStepF32(Floats(weights).subspan(begin, count), slice, scalars);
      }
    });
  }
  return file != nullptr ? file->Leave(state.offloaded) : absl::OkStatus();
}

void Engine::State::StartGather(size_t unit) {
  if (adapters()) {
    BaseState& base = bases[unit];
    if (base.gathering || base.full.defined()) return;
    base.full = pool.Take(network.layout().units[unit].elements, type);
    base.gathering = true;
    base.gather = group->AllGather(Bytes(base.share), Bytes(base.full), base.cuts, SizeOf(options.dtype), At(static_cast<int32_t>(unit)));
    return;
  }
  UnitState& state = units[unit];
  if (state.gathering) return;
  if (sharded_weights()) {
    if (state.full.defined()) return;
    state.full = pool.Take(Layout(unit).elements, type);
  } else if (!state.stale) {
    return;
  }
  state.stale = false;
  state.gathering = true;
  state.gather = group->AllGather(Bytes(state.share), Bytes(state.full), state.cuts, SizeOf(options.dtype),
                                  At(static_cast<int32_t>(unit)));
}

absl::Status Engine::State::FinishGather(size_t unit) {
  if (adapters()) {
    BaseState& base = bases[unit];
    if (std::exchange(base.gathering, false)) ARGOSY_RETURN_IF_ERROR(WaitFor(base.gather));
    ARGOSY_CHECK(base.full.defined(), "unit {} is used without its weights", unit);
    return absl::OkStatus();
  }
  UnitState& state = units[unit];
  if (state.gathering) {
    state.gathering = false;
    ARGOSY_RETURN_IF_ERROR(WaitFor(state.gather));
  }
  ARGOSY_CHECK(state.full.defined(), "unit {} is used without its weights", unit);
  return absl::OkStatus();
}

void Engine::State::Release(size_t unit) {
  at::Tensor& full = adapters() ? bases[unit].full : units[unit].full;
  pool.Give(std::move(full));
  full = at::Tensor();
}

at::Tensor Engine::State::GradientBuffer(size_t unit, int32_t micro_batch) {
  UnitState& state = units[unit];
  if (direct() || local_sums()) {
    // The tied embedding's buffer is met first by the head, then by its own backward.
    const bool met = unit == 0 && network.layout().tied && !adapters(), first = micro_batch == 0 && !(met && state.working.defined());
    // What the last commit decided has been stepped by now: only then does the buffer change its type.
    const at::ScalarType wanted = batches.size() > 1 ? at::kFloat : GradientType(unit);
    if (direct() && first && state.gradient.scalar_type() != wanted) {
      state.gradient = at::Tensor();
      state.gradient = at::empty({state.owned_count}, wanted);
    }
    at::Tensor buffer = direct() ? state.gradient : state.local;
    if (first) buffer.zero_();
    if (met) state.working = state.working.defined() ? at::Tensor() : buffer;
    return buffer;
  }
  if (!state.working.defined()) {
    state.working = pool.Take(Layout(unit).elements, GradientType(unit));
    state.working.zero_();
  }
  return state.working;
}

absl::Status Engine::State::StartReduce(size_t unit, int32_t micro_batch) {
  UnitState& state = units[unit];
  if (direct()) return absl::OkStatus();
  at::Tensor buffer = local_sums() ? state.local : std::move(state.working);
  if (!local_sums()) state.working = at::Tensor();
  ConstElements input = buffer.scalar_type() == at::kFloat ? ConstElements(std::span<const float>(Floats(buffer)))
                                                           : ConstElements(std::span<const uint16_t>(Bits(buffer)));
  at::Tensor target = state.gradient;
  if (stage() == 0) target = target.narrow(0, state.begin, state.count);
  Into into = micro_batch == 0 || local_sums() ? Into::kReplace : Into::kAdd;
  Pending pending = group->ReduceScatter(input, state.cuts, Floats(target), into, At(static_cast<int32_t>(unit)));
  reduces.push_back({std::move(pending), local_sums() ? at::Tensor() : std::move(buffer)});
  while (reduces.size() > kReducesInFlightMax) ARGOSY_RETURN_IF_ERROR(FinishReduce());
  return absl::OkStatus();
}

absl::Status Engine::State::FinishReduce() {
  Reduce reduce = std::move(reduces.front());
  reduces.pop_front();
  absl::Status status = WaitFor(reduce.pending);
  if (reduce.buffer.defined()) pool.Give(std::move(reduce.buffer));
  return status;
}

absl::Status Engine::State::Forward(size_t unit, int32_t micro_batch, bool training) {
  ARGOSY_RETURN_IF_ERROR(FinishGather(unit));
  const PreparedBatch& batch = batches[micro_batch];
  if (batch.rows == 0) return absl::OkStatus();
  int64_t layer = static_cast<int64_t>(unit) - 1;
  // What has no backward leaves nothing for it.
  const bool learns = training && unit >= first_trained;
  if (unit == 0) {
    hidden[unit] = network.Embed(Weights(0), batch);
  } else if (learns && options.recompute != Recompute::kFull) {
    tapes[unit] = network.RecordLayer(layer, Weights(unit), hidden[unit - 1], batch, options.recompute);
    hidden[unit] = Network::OutputOf(*tapes[unit]);
  } else {
    hidden[unit] = network.Layer(layer, Weights(unit), hidden[unit - 1], batch);
  }
  if (unit > 0 && !learns) hidden[unit - 1] = at::Tensor();
  return absl::OkStatus();
}

absl::Status Engine::State::Loss(int32_t micro_batch, bool training) {
  ARGOSY_RETURN_IF_ERROR(FinishGather(head()));
  bool tied = network.layout().tied;
  if (tied) ARGOSY_RETURN_IF_ERROR(FinishGather(0));
  const PreparedBatch& batch = batches[micro_batch];
  HeadGradients gradients{.scale = loss_scale};
  if (training) {
    gradients.head_flat = Gradients(GradientBuffer(head(), micro_batch));
    UnitWeights embedding = tied && !adapters() ? UnitWeights(GradientBuffer(0, micro_batch)) : UnitWeights();
    gradients.matrix_VD = network.HeadMatrixGradient(gradients.head_flat, embedding);
  }
  if (batch.rows == 0) return absl::OkStatus();
  const UnitWeights weights = Weights(head());
  nll += network.Loss(weights, network.HeadMatrix(weights, Weights(0)), hidden[head() - 1], batch, training ? &gradients : nullptr).nll;
  grad_hidden = gradients.hidden_BTD;
  return absl::OkStatus();
}

absl::Status Engine::State::Backward(size_t unit, int32_t micro_batch) {
  const UnitWeights gradient = Gradients(GradientBuffer(unit, micro_batch));
  const PreparedBatch& batch = batches[micro_batch];
  if (unit == 0) {
    if (batch.rows > 0) network.EmbedBackward(grad_hidden, batch, gradient, Weights(0));
    grad_hidden = at::Tensor();
    return absl::OkStatus();
  }
  ARGOSY_RETURN_IF_ERROR(FinishGather(unit));
  if (batch.rows == 0) return absl::OkStatus();
  int64_t layer = static_cast<int64_t>(unit) - 1;
  if (tapes[unit] != nullptr) {
    grad_hidden = network.Backward(*tapes[unit], layer, Weights(unit), grad_hidden, gradient);
    tapes[unit] = nullptr;
  } else {
    grad_hidden = network.LayerBackward(layer, Weights(unit), hidden[unit - 1], grad_hidden, batch, gradient);
  }
  hidden[unit] = at::Tensor();
  return absl::OkStatus();
}

absl::Status Engine::State::Freeze() {
  for (size_t unit = 0; unit < units.size(); ++unit) units[unit].frozen.assign(Layout(unit).ranges.size(), false);
  size_t frozen = 0, all = 0;
  for (const std::string& pattern : options.freeze) {
    std::optional<std::regex> regex;
    try {
      regex.emplace(pattern);
    } catch (const std::regex_error& error) {
      return InvalidArgument("freeze \"{}\" is no regular expression: {}", pattern, error.what());
    }
    size_t matches = 0;
    for (size_t unit = 0; unit < units.size(); ++unit) {
      for (size_t r = 0; r < Layout(unit).ranges.size(); ++r) {
        if (!std::regex_search(Layout(unit).ranges[r].name, *regex)) continue;
        ++matches;
        units[unit].frozen[r] = true;
      }
    }
    if (matches == 0) {
      return InvalidArgument("freeze \"{}\" matches no tensor: the names are like {}", pattern, Layout(1).ranges.front().name);
    }
  }
  for (const UnitState& state : units) {
    all += state.frozen.size();
    frozen += static_cast<size_t>(std::count(state.frozen.begin(), state.frozen.end(), true));
  }
  if (frozen == all) return InvalidArgument("freeze leaves no tensor to train");
  return absl::OkStatus();
}

// Gradients of frozen tensors are made with the others and count in nothing.
void Engine::State::ForgetFrozen() {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    UnitState& state = units[unit];
    for (size_t r = 0; r < state.frozen.size(); ++r) {
      if (!state.frozen[r]) continue;
      const TensorRange& range = Layout(unit).ranges[r];
      int64_t from = std::max(range.offset, state.owned_begin), to = std::min(range.offset + range.elements, state.owned_begin + state.owned_count);
      if (from < to) state.gradient.narrow(0, from - state.owned_begin, to - from).zero_();
    }
  }
}

double Engine::State::ShareSquares() const {
  double sum = 0;
  for (const UnitState& state : units) {
    const bool wide = state.gradient.scalar_type() == at::kFloat;
    const at::Tensor share = state.gradient.narrow(0, state.begin - state.owned_begin, state.count);
    // Blocks of one size, whatever the number of threads: the sum's order is fixed.
    constexpr int64_t kBlock = 1 << 16;
    int64_t blocks = (state.count + kBlock - 1) / kBlock;
    std::vector<double> sums(blocks);
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t count = std::min(kBlock, state.count - i * kBlock);
        sums[i] = wide ? SumOfSquares(std::span<const float>(Floats(share).subspan(i * kBlock, count)))
                       : SumOfSquares(std::span<const uint16_t>(Bits(share).subspan(i * kBlock, count)));
      }
    });
    for (double block : sums) sum += block;
  }
  return sum;
}

// Weights first: they spoil everything else. Then gradients in the order in which the backward makes them, so that the first is where it began.
std::string Engine::State::FirstNotFinite() const {
  auto first = [&](size_t unit, int64_t begin, int64_t count, const std::function<bool(int64_t)>& finite) -> std::string {
    for (const TensorRange& range : Layout(unit).ranges) {
      int64_t from = std::max(range.offset, begin), to = std::min(range.offset + range.elements, begin + count);
      for (int64_t i = from; i < to; ++i) {
        if (!finite(i - begin)) return fmt::format("{} ({}, element {})", range.name, Layout(unit).name, i - range.offset);
      }
    }
    return "";
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const UnitState& state = units[unit];
    const at::Tensor& weights = state.share;
    std::string name = first(unit, state.begin, state.count, [&](int64_t i) {
      return bf16() ? (Bits(weights)[i] & 0x7f80u) != 0x7f80u : std::isfinite(Floats(weights)[i]);
    });
    if (!name.empty()) return "weight " + name;
  }
  for (size_t unit = units.size(); unit-- > 0;) {
    const UnitState& state = units[unit];
    std::string name = first(unit, state.owned_begin, state.owned_count, [&](int64_t i) {
      return state.gradient.scalar_type() == at::kFloat ? std::isfinite(Floats(state.gradient)[i]) : (Bits(state.gradient)[i] & 0x7f80u) != 0x7f80u;
    });
    if (!name.empty()) return "gradient of " + name;
  }
  return "";
}

absl::Status Engine::State::Commit(StepResult& result) {
  while (!reduces.empty()) ARGOSY_RETURN_IF_ERROR(FinishReduce());
  if (stage() == 0 && group->size() > 1) {
    for (size_t unit = 0; unit < units.size(); ++unit) {
      UnitState& state = units[unit];
      if (Layout(unit).elements == 0) continue;
      Pending gather = group->AllGather(Bytes(state.gradient.narrow(0, state.begin, state.count)), Bytes(state.gradient), state.cuts,
                                        sizeof(float), At(static_cast<int32_t>(unit)));
      ARGOSY_RETURN_IF_ERROR(WaitFor(gather));
    }
  }
  ForgetFrozen();
  double sums[2] = {ShareSquares(), nll};
  Pending summed = group->AllReduce(std::span<double>(sums), At(-1));
  ARGOSY_RETURN_IF_ERROR(WaitFor(summed));
  result.grad_norm = std::sqrt(sums[0]);
  result.loss = sums[1] / static_cast<double>(result.target_tokens);
  result.skipped = !std::isfinite(result.grad_norm) || !std::isfinite(result.loss);
  if (result.skipped) {
    ++skipped;
    result.not_finite = FirstNotFinite();
    return absl::OkStatus();
  }
  ++steps;
  gradient_scale = ClipScale(result.grad_norm, options.max_grad_norm);
  for (UnitState& state : units) state.step_due = true;
  return absl::OkStatus();
}

absl::Status Engine::State::Run(const std::vector<Line>& schedule, bool training) {
  hidden.assign(units.size(), at::Tensor());
  tapes.assign(units.size(), nullptr);
  for (const Line& line : schedule) {
    auto unit = static_cast<size_t>(line.unit);
    const absl::Time begin = absl::Now();
    const double waited = times.waiting;
    switch (line.action) {
      case Action::kStep:
        ARGOSY_RETURN_IF_ERROR(Step(unit));
        break;
      case Action::kGather:
        StartGather(unit);
        break;
      case Action::kForward:
        ARGOSY_RETURN_IF_ERROR(Forward(unit, line.micro_batch, training));
        break;
      case Action::kLoss:
        ARGOSY_RETURN_IF_ERROR(Loss(line.micro_batch, training));
        break;
      case Action::kBackward:
        ARGOSY_RETURN_IF_ERROR(Backward(unit, line.micro_batch));
        break;
      case Action::kRelease:
        Release(unit);
        break;
      case Action::kReduce:
        ARGOSY_RETURN_IF_ERROR(StartReduce(unit, line.micro_batch));
        break;
      case Action::kCommit:
        break;  // by TrainStep, which has the result
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    if (trace != nullptr && line.unit >= 0) {
      trace->push_back({fmt::format("{} {}", Name(line.action), Layout(unit).name), line.micro_batch,
                        absl::ToDoubleSeconds(begin - trace_begin), seconds});
    }
    const double worked = seconds - (times.waiting - waited);
    if (line.action == Action::kForward || line.action == Action::kLoss) times.forward += worked;
    if (line.action == Action::kBackward) times.backward += worked;
    if (line.action == Action::kStep) times.optimizer += worked;
  }
  hidden.clear();
  return absl::OkStatus();
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}

Engine::~Engine() {
  // Buffers must not go while the group still moves their bytes.
  for (UnitState& unit : state_->units) {
    if (unit.gathering) (void)unit.gather.Wait();
  }
  for (BaseState& unit : state_->bases) {
    if (unit.gathering) (void)unit.gather.Wait();
  }
  while (!state_->reduces.empty()) (void)state_->FinishReduce();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const ModelConfig& config, const WeightSource& source, Group* group,
                                                       const EngineOptions& options, const OptimizerStart* optimizer,
                                                       const AdapterStart* adapter) {
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    return InvalidArgument("zero_stage is {}: it is 0, 1, 2 or 3", options.zero_stage);
  }
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    return InvalidArgument("training computes in float32 or bfloat16, not in {}", TorchName(options.dtype));
  }
  if (options.moments != DType::kF32 && options.moments != DType::kBF16) {
    return InvalidArgument("moments are float32 or bfloat16, not {}", TorchName(options.moments));
  }
  if (options.moments == DType::kBF16 && (options.dtype != DType::kBF16 || adapter != nullptr)) {
    return InvalidArgument("moments in bfloat16 are for weights that are trained in bfloat16{}", adapter != nullptr ? ", and adapters are fp32" : "");
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  if (adapter != nullptr && !options.freeze.empty()) return InvalidArgument("freeze is for full training: beside adapters all weights stay as they are");
  auto state = std::make_unique<State>(adapter == nullptr ? Network(config) : Network(config, *adapter->layout), group, options);
  ARGOSY_RETURN_IF_ERROR(state->Freeze());
  if (adapter != nullptr) {
    ARGOSY_RETURN_IF_ERROR(state->LoadBase(source));
    while (state->Layout(state->first_trained).elements == 0) ++state->first_trained;
  }
  ARGOSY_RETURN_IF_ERROR(state->Load(adapter != nullptr ? *adapter->values : source, optimizer));
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

void Engine::State::SetDropout(PreparedBatch& batch, const MicroBatch& micro_batch) const {
  batch.dropout = {.share = network.adapters()->dropout, .seed = options.seed, .attempt = static_cast<uint32_t>(steps + skipped),
                   .first_row = static_cast<uint32_t>(micro_batch.first_row), .tokens = std::max<int64_t>(1, batch.ctx)};
  batch.head_dropout = batch.dropout;
  if (batch.target_index_n.size(0) != batch.rows * batch.ctx) batch.head_dropout.places_n = batch.target_index_n;
}

absl::StatusOr<StepResult> Engine::TrainStep(std::span<const MicroBatch> micro_batches, double lr) {
  at::NoGradGuard no_grad;
  State& state = *state_;
  ++state.calls;
  state.times = {};
  // What follows is the last commit's until its steps have run: see Step.
  std::vector<PreparedBatch> batches;
  int64_t targets = 0;
  absl::Status bad;
  for (const MicroBatch& micro_batch : micro_batches) {
    auto prepared = state.network.Prepare(micro_batch, state.type);
    if (!prepared.ok()) {
      bad = prepared.status();
      break;
    }
    targets += prepared->targets_n.size(0);
    if (state.adapters() && state.network.adapters()->dropout > 0) state.SetDropout(*prepared, micro_batch);
    batches.push_back(std::move(prepared).value());
  }
  // One that cannot go on tells the others, so that all stop here.
  double sums[3] = {static_cast<double>(targets), static_cast<double>(micro_batches.size()), bad.ok() ? 0.0 : 1.0};
  ARGOSY_RETURN_IF_ERROR(state.group->AllReduce(std::span<double>(sums), state.At(-1)).Wait());
  ARGOSY_RETURN_IF_ERROR(bad);
  if (sums[2] > 0) return FailedPrecondition("another rank refused its micro-batches");
  if (sums[1] != static_cast<double>(micro_batches.size()) * state.group->size()) {
    return FailedPrecondition("rank {} has {} micro-batches, the {} ranks have {} together: all must have the same number",
                              state.group->rank(), micro_batches.size(), state.group->size(), sums[1]);
  }
  if (sums[0] == 0) return InvalidArgument("the step has no target tokens on any rank");
  StepResult result;
  result.target_tokens = static_cast<int64_t>(sums[0]);
  state.loss_scale = 1.0 / sums[0];
  state.nll = 0;
  state.batches = std::move(batches);
  ARGOSY_RETURN_IF_ERROR(
      state.Run(TrainSchedule(state.ScheduleFor(static_cast<int>(micro_batches.size()))), /*training=*/true));
  const absl::Time commit = absl::Now();
  ARGOSY_RETURN_IF_ERROR(state.Commit(result));
  if (state.trace != nullptr) {
    state.trace->push_back({"commit", 0, absl::ToDoubleSeconds(commit - state.trace_begin), absl::ToDoubleSeconds(absl::Now() - commit)});
  }
  result.times = state.times;
  if (!result.skipped) state.lr = lr;
  return result;
}

absl::StatusOr<EvaluateResult> Engine::Evaluate(const MicroBatch& batch) {
  at::NoGradGuard no_grad;
  State& state = *state_;
  ++state.calls;
  ARGOSY_ASSIGN_OR_RETURN(PreparedBatch prepared, state.network.Prepare(batch, state.type));
  EvaluateResult result{.target_tokens = prepared.targets_n.size(0)};
  state.batches.clear();
  state.batches.push_back(std::move(prepared));
  state.nll = 0;
  ARGOSY_RETURN_IF_ERROR(state.Run(EvaluateSchedule(state.ScheduleFor(1)), /*training=*/false));
  result.nll = state.nll;
  return result;
}

absl::Status Engine::Flush() {
  at::NoGradGuard no_grad;
  State& state = *state_;
  ++state.calls;
  for (size_t unit = 0; unit < state.units.size(); ++unit) {
    ARGOSY_RETURN_IF_ERROR(state.Step(unit));
    if (!state.sharded_weights() && !state.adapters()) state.StartGather(unit);
  }
  if (state.sharded_weights() || state.adapters()) return absl::OkStatus();
  for (size_t unit = 0; unit < state.units.size(); ++unit) ARGOSY_RETURN_IF_ERROR(state.FinishGather(unit));
  return absl::OkStatus();
}

int64_t Engine::steps() const { return state_->steps; }
int64_t Engine::skipped() const { return state_->skipped; }
const ModelConfig& Engine::config() const { return state_->network.config(); }
const ModelLayout& Engine::layout() const { return state_->network.layout(); }
int Engine::trained_stage() const { return state_->stage(); }
DType Engine::trained_dtype() const { return state_->dtype(); }

std::vector<Extent> Engine::ExtentsOf(int rank) const {
  std::vector<Extent> extents;
  for (size_t unit = 0; unit < state_->units.size(); ++unit) {
    const Cuts& cuts = state_->units[unit].cuts;
    for (const TensorRange& range : state_->Layout(unit).ranges) {
      int64_t from = std::max(range.offset, cuts[rank]), to = std::min(range.offset + range.elements, cuts[rank + 1]);
      if (from < to) extents.push_back({.tensor = range.name, .begin = from - range.offset, .count = to - from});
    }
  }
  return extents;
}

absl::Status Engine::ReadWeights(const Extent& extent, std::span<std::byte> out) const {
  int64_t size = SizeOf(state_->dtype());
  if (static_cast<int64_t>(out.size()) != extent.count * size) {
    return InvalidArgument("{} elements of {} take {} bytes, not {}", extent.count, extent.tensor, extent.count * size, out.size());
  }
  for (size_t unit = 0; unit < state_->units.size(); ++unit) {
    for (const TensorRange& range : state_->Layout(unit).ranges) {
      if (range.name != extent.tensor) continue;
      const UnitState& state = state_->units[unit];
      if (state.step_due || state.stale) return FailedPrecondition("weights are read after Flush, not before");
      int64_t held_begin = state_->sharded_weights() ? state.begin : 0;
      int64_t held_end = state_->sharded_weights() ? state.begin + state.count : state_->Layout(unit).elements;
      int64_t begin = range.offset + extent.begin;
      if (extent.begin < 0 || extent.count < 0 || extent.begin + extent.count > range.elements || begin < held_begin ||
          begin + extent.count > held_end) {
        return InvalidArgument("rank {} does not hold elements {} to {} of {}", state_->group->rank(), extent.begin,
                               extent.begin + extent.count, extent.tensor);
      }
      const at::Tensor& weights = state_->sharded_weights() ? state.share : state.full;
      std::memcpy(out.data(), Bytes(weights).data() + (begin - held_begin) * size, out.size());
      return absl::OkStatus();
    }
  }
  return NotFound("the model has no tensor {}", extent.tensor);
}

absl::Status Engine::ReadState(TensorPart part, const Extent& extent, std::span<float> out) const {
  if (static_cast<int64_t>(out.size()) != extent.count) {
    return InvalidArgument("{} elements of {} do not fit {}", extent.count, extent.tensor, out.size());
  }
  for (size_t unit = 0; unit < state_->units.size(); ++unit) {
    for (const TensorRange& range : state_->Layout(unit).ranges) {
      if (range.name != extent.tensor) continue;
      const UnitState& state = state_->units[unit];
      if (state.step_due) return FailedPrecondition("the optimizer's state is read after Flush, not before");
      int64_t begin = range.offset + extent.begin - state.owned_begin;
      if (extent.begin < 0 || extent.count < 0 || extent.begin + extent.count > range.elements || begin < 0 ||
          begin + extent.count > state.owned_count) {
        return InvalidArgument("rank {} does not own elements {} to {} of {}", state_->group->rank(), extent.begin,
                               extent.begin + extent.count, extent.tensor);
      }
      if (part == TensorPart::kMoment1 || part == TensorPart::kMoment2) {
        const at::Tensor& moments = part == TensorPart::kMoment1 ? state.moment1 : state.moment2;
        if (moments.scalar_type() == at::kFloat) std::copy_n(Floats(moments).begin() + begin, extent.count, out.begin());
        else std::transform(Bits(moments).begin() + begin, Bits(moments).begin() + begin + extent.count, out.begin(), FloatFromBf16);
        return absl::OkStatus();
      }
      const at::Tensor& weights = state_->stage() == 0 ? state.full : state.share;
      if (!state_->bf16()) {
        std::copy_n(Floats(weights).begin() + begin, extent.count, out.begin());
        return absl::OkStatus();
      }
      std::span<const uint16_t> parameters = Bits(weights), low = Bits(state.low);
      for (int64_t i = 0; i < extent.count; ++i) out[i] = Join({parameters[begin + i], low[begin + i]});
      return absl::OkStatus();
    }
  }
  return NotFound("the model has no tensor {}", extent.tensor);
}

int64_t Engine::StateBytes() const {
  int64_t bytes = 0;
  for (const UnitState& state : state_->units) {
    for (const at::Tensor& tensor : {state_->sharded_weights() ? state.share : state.full, state.low, state.moment1, state.moment2,
                                     state.gradient, state.local}) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
    bytes -= static_cast<int64_t>(state.offloaded.size());
  }
  for (const BaseState& state : state_->bases) {
    for (const at::Tensor& tensor : {state.full, state.share}) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

int64_t Engine::OffloadedBytes() const {
  int64_t bytes = 0;
  for (const UnitState& state : state_->units) bytes += static_cast<int64_t>(state.offloaded.size());
  return bytes;
}

void Engine::TraceInto(std::vector<TracedLine>* lines) {
  state_->trace = lines;
  state_->trace_begin = absl::Now();
}

std::string Engine::PrintSchedule(int micro_batches) const {
  std::vector<std::string> names;
  for (const UnitLayout& unit : state_->network.layout().units) names.push_back(unit.name);
  return Print(TrainSchedule(state_->ScheduleFor(micro_batches)), names);
}

double PeakFlops(int threads) {
  at::NoGradGuard no_grad;
  if (threads > 0) at::set_num_threads(threads);
  constexpr int64_t kSide = 2048;
  at::Tensor a = at::ones({kSide, kSide}, at::kBFloat16), b = at::ones({kSide, kSide}, at::kBFloat16), c = at::empty({kSide, kSide}, at::kBFloat16);
  double best = 1e9;
  for (int i = 0; i < 4; ++i) {   // the first touches pages and makes kernels
    absl::Time begin = absl::Now();
    at::mm_out(c, a, b);
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - begin));
  }
  return 2.0 * kSide * kSide * kSide / best;
}

}  // namespace argosy::train
