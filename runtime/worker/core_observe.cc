// What this process tells about itself: what became of its tasks, which objects it holds, where its threads are.

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/worker/core.h"
#include "runtime/worker/execution.h"
#include "runtime/worker/stacks.h"

namespace argosy::worker {
namespace {

// Events are sent together. What is more than a process may send in one period is counted only: telling must not slow what is told about.
constexpr absl::Duration kReportPeriod = absl::Milliseconds(400);
constexpr size_t kEventsMax = 2000;
constexpr absl::Duration kMetricsPeriod = absl::Seconds(2);
constexpr size_t kErrorTextMax = 400;

uint64_t Position(int fd) { return static_cast<uint64_t>(std::max<off_t>(::lseek(fd, 0, SEEK_CUR), 0)); }

std::string Shortened(const std::string& text) { return text.size() <= kErrorTextMax ? text : text.substr(0, kErrorTextMax) + "..."; }

}  // namespace

int64_t NowUnixMicros() { return absl::ToUnixMicros(absl::Now()); }

// Before it runs, on its thread.
void Core::NoteStart(Execution& execution) {
  if (printed_stale_.load(std::memory_order_relaxed) && !events_full_.load(std::memory_order_relaxed)) {
    printed_stale_.store(false, std::memory_order_relaxed);
    NotePrinted();
  }
  execution.out_begin = printed_out_.load(std::memory_order_relaxed);
  execution.error_begin = printed_error_.load(std::memory_order_relaxed);
  execution.started_us.store(NowUnixMicros(), std::memory_order_release);
}

// After it ran, on its thread.
void Core::NoteStop(Execution& execution) {
  // A flood of short calls must not pay for what will not be told.
  if (events_full_.load(std::memory_order_relaxed)) return printed_stale_.store(true, std::memory_order_relaxed);
  execution.ended_us = NowUnixMicros();
  if (options_.is_driver) return;
  NotePrinted();
  execution.out_end = printed_out_.load(std::memory_order_relaxed);
  execution.error_end = printed_error_.load(std::memory_order_relaxed);
}

void Core::NotePrinted() {
  printed_out_.store(Position(STDOUT_FILENO), std::memory_order_relaxed);
  printed_error_.store(Position(STDERR_FILENO), std::memory_order_relaxed);
}

TaskEvent Core::EventOf(const Execution& execution) const {
  TaskEvent event;
  event.task = execution.spec.task;
  event.attempt = execution.spec.attempt;
  event.kind = execution.kind == Execution::kTask   ? TaskEvent::kTask
               : execution.kind == Execution::kCall ? TaskEvent::kCall
                                                    : TaskEvent::kConstructor;
  event.name = execution.spec.name;
  event.actor = execution.spec.actor;
  event.owner = execution.spec.owner.worker;
  event.executed = true;
  event.started_us = execution.started_us.load(std::memory_order_acquire);
  event.out_begin = execution.out_begin;
  event.error_begin = execution.error_begin;
  FillTrace(event, execution.spec.trace);
  return event;
}

void Core::ReportEnd(const Execution& execution, const std::optional<wire::ErrorInfo>& error) {
  ArmReports();
  bool full = events_.size() >= kEventsMax;
  if (full) events_full_.store(true, std::memory_order_relaxed);
  // Of what is known to run the end is told whatever else is: there are not many of those.
  if (!execution.reported && (full || execution.ended_us == 0)) return void(++events_dropped_);
  TaskEvent event = EventOf(execution);
  event.state = error ? TaskEvent::kFailed : TaskEvent::kFinished;
  if (error) event.error = Shortened(error->type.empty() ? error->message : error->type + ": " + error->message);
  event.ended_us = execution.ended_us != 0 ? execution.ended_us : NowUnixMicros();
  event.out_end = execution.out_end;
  event.error_end = execution.error_end;
  events_.push_back(std::move(event));
}

void Core::ReportSubmitted(TaskRecord& record) {
  record.submitted_us = NowUnixMicros();
  ArmReports();
  if (submitted_.size() >= kEventsMax) return void(++events_dropped_);
  submitted_.push_back(record.spec.task);
}

// That it waits was told, so its end is too, also when whoever ran it had too much to tell.
void Core::ReportEnded(const TaskRecord& record) {
  ArmReports();
  TaskEvent event = EventOf(record);
  event.state = record.results.front()->status == ObjectState::kError ? TaskEvent::kFailed : TaskEvent::kFinished;
  if (event.state == TaskEvent::kFailed) event.error = Shortened(record.results.front()->error.message);
  event.ended_us = NowUnixMicros();
  events_.push_back(std::move(event));
}

// Nobody who runs it will say so.
void Core::ReportFailed(const TaskRecord& record, const wire::ErrorInfo& error) {
  ArmReports();
  if (events_.size() >= kEventsMax) return void(++events_dropped_);
  TaskEvent event = EventOf(record);
  event.state = TaskEvent::kFailed;
  event.ended_us = NowUnixMicros();
  event.error = Shortened(error.message);
  events_.push_back(std::move(event));
}

TaskEvent Core::EventOf(const TaskRecord& record) const {
  TaskEvent event;
  event.task = record.spec.task;
  event.attempt = submit_.AttemptOf(record.spec.task).value_or(record.spec.attempt);
  event.kind = record.spec.actor.IsNil() ? TaskEvent::kTask : TaskEvent::kCall;
  event.name = record.spec.name;
  event.actor = record.spec.actor;
  event.owner = options_.worker;
  event.submitted_us = record.submitted_us;
  FillTrace(event, record.spec.trace);
  return event;
}

void Core::ArmReports() {
  if (reports_armed_ || closed_) return;
  reports_armed_ = true;
  After(kReportPeriod, [this] {
    reports_armed_ = false;
    SendReports();
  });
}

void Core::SendReports() {
  SendMetrics();
  // Tasks that ended meanwhile were reported by who ran them.
  for (TaskId task : std::exchange(submitted_, {})) {
    auto at = tasks_.find(task);
    if (at == tasks_.end()) continue;
    TaskRecord& record = *at->second;
    record.reported = true;
    TaskEvent event = EventOf(record);
    if (record.spec.actor.IsNil()) event.resources = record.demand.resources;
    event.waits_for_arguments = std::any_of(record.dependencies.begin(), record.dependencies.end(), [](const auto& state) { return !state->is_ready(); });
    events_.push_back(std::move(event));
  }
  for (const auto& [key, execution] : executing_) {
    if (execution->reported || execution->started_us.load(std::memory_order_acquire) == 0) continue;
    if (events_.size() >= 2 * kEventsMax) break;
    execution->reported = true;
    TaskEvent event = EventOf(*execution);
    event.state = TaskEvent::kRunning;
    events_.push_back(std::move(event));
  }
  if (constructing_ && !constructing_->reported && constructing_->started_us.load(std::memory_order_acquire) != 0) {
    constructing_->reported = true;
    TaskEvent event = EventOf(*constructing_);
    event.state = TaskEvent::kRunning;
    events_.push_back(std::move(event));
  }
  // Those that wait behind others are looked at again.
  if (std::any_of(executing_.begin(), executing_.end(), [](const auto& entry) { return !entry.second->reported; })) ArmReports();
  events_full_.store(false, std::memory_order_relaxed);
  if (events_.empty() && events_dropped_ == 0) return;
  wire::ReportTasks message;
  message.events.job = node_.job;
  message.events.node_name = node_.node_name;
  message.events.worker = options_.worker;
  message.events.pid = static_cast<uint32_t>(::getpid());
  message.events.events = std::exchange(events_, {});
  message.events.dropped = std::exchange(events_dropped_, 0);
  NodeNotify(message);
}

void Core::MetricsChanged() {
  role_.Do([this] {
    if (closed_ || std::exchange(metrics_armed_, true)) return;
    After(kMetricsPeriod, [this] {
      metrics_armed_ = false;
      SendMetrics();
    });
  });
}

void Core::SendMetrics() {
  wire::ReportMetrics message;
  if (!options_.metrics || !options_.metrics(&message.metrics)) return;
  message.metrics.job = node_.job;
  message.metrics.node_name = node_.node_name;
  message.metrics.worker = options_.worker;
  NodeNotify(message);
}

// ---- traces -----------------------------------------------------------------------------------------------------------------

namespace {

// https://www.w3.org/TR/trace-context: version 00, 32 digits of the trace, 16 of the span, 2 of flags.
constexpr size_t kTraceParentSize = 55;
constexpr size_t kTraceAt = 3;
constexpr size_t kSpanAt = 36;
constexpr size_t kSpanSize = 16;

thread_local std::string thread_trace;

// Each task is a span of its own, named by its id.
std::string SpanOf(TaskId task) { return task.Hex().substr(0, kSpanSize); }

}  // namespace

void Core::SetTrace(std::string traceparent) { thread_trace = std::move(traceparent); }

std::string Core::current_trace() const {
  const Execution* execution = CurrentExecution();
  if (execution == nullptr || execution->spec.trace.size() != kTraceParentSize) return execution == nullptr ? thread_trace : std::string();
  std::string trace = execution->spec.trace;
  trace.replace(kSpanAt, kSpanSize, SpanOf(execution->spec.task));
  return trace;
}

void Core::FillTrace(TaskEvent& event, const std::string& traceparent) {
  if (traceparent.size() != kTraceParentSize) return;
  event.trace = traceparent.substr(kTraceAt, 32);
  event.span = SpanOf(event.task);
  event.parent_span = traceparent.substr(kSpanAt, kSpanSize);
}

void Core::OnListReferences(wire::Call call) {
  absl::StatusOr<wire::ListReferences> message = call.As<wire::ListReferences>();
  if (!message.ok()) return call.Fail(message.status());
  References answer;
  references_.ForEach([&](const ReferenceMachine::Facts& facts) {
    if (answer.references.size() >= message->references_max) return void(++answer.missing);
    ReferenceFacts out;
    out.object = facts.object;
    out.owner = facts.owner;
    out.handles = facts.local;
    out.pins = facts.pins;
    out.borrowers = facts.borrowers;
    out.value = "PENDING";
    if (std::shared_ptr<ObjectState> state = FindState(facts.object); state && state->is_ready()) {
      switch (state->status.load()) {
        case ObjectState::kInline:
          out.value = "INLINE";
          out.size = state->bytes->size();
          break;
        case ObjectState::kStored:
          out.value = "STORED";
          if (!state->locations.empty()) out.size = state->locations.front().size;
          break;
        default: out.value = "ERROR";
      }
    } else if (state) {
      if (auto maker = tasks_.find(state->task); maker != tasks_.end()) out.made_by = maker->second->spec.name;
    }
    answer.references.push_back(std::move(out));
  });
  call.Answer(answer);
}

void Core::OnDumpStacks(wire::Call call) {
  // Threads are waited for, and one of them may be this loop's: on a thread of its own, one at a time.
  auto shared = std::make_shared<wire::Call>(std::move(call));
  if (stack_thread_.joinable()) {
    if (!stacks_done_) return shared->Fail(absl::UnavailableError("somebody else is asking for this process's stacks"));
    stack_thread_.join();
  }
  stacks_done_ = false;
  stack_thread_ = std::thread([this, shared]() mutable {
    absl::StatusOr<std::string> text = AllStacks(absl::Seconds(2));
    role_.Do([this, shared = std::move(shared), text = std::move(text)] {
      stacks_done_ = true;
      if (text.ok()) shared->Answer(wire::StacksReply{*text});
      else shared->Fail(text.status());
    });
  });
}

}  // namespace argosy::worker
