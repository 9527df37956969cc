#include "train/parallel/schedule.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace argosy::train {

std::string_view Name(Action action) {
  switch (action) {
    case Action::kStep:
      return "step";
    case Action::kGather:
      return "gather";
    case Action::kForward:
      return "forward";
    case Action::kLoss:
      return "loss";
    case Action::kBackward:
      return "backward";
    case Action::kRelease:
      return "release";
    case Action::kReduce:
      return "reduce";
    case Action::kCommit:
      return "commit";
  }
  return "unknown";
}

namespace {

class Writer {
 public:
  explicit Writer(const ScheduleOptions& options) : options_(options), head_(options.units - 1) {
    while (first_trained_ < head_ && !IsTrained(first_trained_)) ++first_trained_;
  }

  void Forward(int32_t micro) {
    micro_ = micro;
    Prepare(0);
    for (int32_t unit = 0; unit <= head_; ++unit) {
      if (unit < head_) Prepare(unit + 1);
      // The tied matrix comes back for the head, one unit ahead of it like the rest.
      if (unit + 1 == head_ && options_.tied && sharded()) Add(Action::kGather, 0);
      Add(unit == head_ ? Action::kLoss : Action::kForward, unit);
      if (sharded() && unit < head_) Release(unit);
    }
    if (sharded()) Release(head_);
    if (sharded() && options_.tied) Add(Action::kRelease, 0);
  }

  void TrainMicroBatch(int32_t micro) {
    micro_ = micro;
    const bool reduce = (options_.stage >= 2 && !adapters()) || micro + 1 == options_.micro_batches;
    Prepare(0);
    for (int32_t unit = 0; unit < head_; ++unit) {
      Prepare(unit + 1);
      if (unit + 1 == head_ && options_.tied && sharded()) Add(Action::kGather, 0);
      Add(Action::kForward, unit);
      // The last layer is the first to go backward: it stays.
      if (sharded() && (unit + 1 < head_ || unit < first_trained_)) Release(unit);
    }
    Add(Action::kLoss, head_);
    if (sharded()) Release(head_);
    if (sharded() && options_.tied) Add(Action::kRelease, 0);
    if (reduce && IsTrained(head_)) Add(Action::kReduce, head_);
    for (int32_t unit = head_ - 1; unit >= first_trained_; --unit) {
      // The embedding's backward needs no weights.
      if (sharded() && unit > std::max(1, first_trained_)) Add(Action::kGather, unit - 1);
      Add(Action::kBackward, unit);
      if (sharded() && unit > 0) Release(unit);
      if (reduce && IsTrained(unit)) Add(Action::kReduce, unit);
    }
  }

  void Commit() { Add(Action::kCommit, -1); }
  std::vector<Line> Take() { return std::move(lines_); }

 private:
  bool sharded() const { return options_.stage == 3; }
  bool adapters() const { return !options_.trained.empty(); }
  bool IsTrained(int32_t unit) const { return !adapters() || options_.trained[static_cast<size_t>(unit)]; }
  void Add(Action action, int32_t unit) { lines_.push_back({action, unit, micro_}); }
  void Release(int32_t unit) { Add(Action::kRelease, unit); }
  void Prepare(int32_t unit) {
    if (micro_ == 0 && IsTrained(unit)) Add(Action::kStep, unit);
    if (sharded() || (micro_ == 0 && options_.stage > 0 && !adapters())) Add(Action::kGather, unit);
  }

  const ScheduleOptions& options_;
  int32_t head_;
  int32_t first_trained_ = 0;
  int32_t micro_ = 0;
  std::vector<Line> lines_;
};

}  // namespace

std::vector<Line> TrainSchedule(const ScheduleOptions& options) {
  Writer writer(options);
  for (int32_t micro = 0; micro < options.micro_batches; ++micro) writer.TrainMicroBatch(micro);
  writer.Commit();
  return writer.Take();
}

std::vector<Line> EvaluateSchedule(const ScheduleOptions& options) {
  Writer writer(options);
  writer.Forward(0);
  return writer.Take();
}

std::string Print(const std::vector<Line>& schedule, const std::vector<std::string>& names) {
  std::string out;
  for (const Line& line : schedule) {
    if (line.unit < 0) {
      out += fmt::format("{}\n", Name(line.action));
    } else {
      out += fmt::format("{:9} micro {}  {}\n", Name(line.action), line.micro_batch, names.at(line.unit));
    }
  }
  return out;
}

}  // namespace argosy::train
