// Tasks, calls and constructors that this process runs for others.

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/worker/core.h"
#include "runtime/worker/execution.h"
#include "runtime/worker/value.h"

namespace argosy::worker {

using wire::ErrorInfo;
using wire::Reference;

namespace {

thread_local Execution* current = nullptr;

constexpr size_t kQueuedMax = 20'000;
constexpr size_t kKeptRepliesMax = 2048;
constexpr size_t kKeptReplyBytesMax = 32u << 20;
// How long replies may wait for the ones behind them.
constexpr int64_t kToldTogetherMicros = 100;
// A task that runs longer gives the ones behind it back: they may find an idle worker.
constexpr absl::Duration kLongRunning = absl::Milliseconds(20);

}  // namespace

const Execution* Core::CurrentExecution() { return current; }
TaskId Core::current_task() const { return current == nullptr ? TaskId() : current->spec.task; }
bool Core::current_cancelled() const { return current != nullptr && current->cancelled.load(std::memory_order_relaxed); }
ActorId Core::actor() const {
  std::lock_guard lock(identity_mutex_);
  return actor_;
}
uint64_t Core::incarnation() const {
  std::lock_guard lock(identity_mutex_);
  return incarnation_;
}
std::vector<uint32_t> Core::gpu_ids() const {
  std::lock_guard lock(identity_mutex_);
  return gpu_ids_;
}

// ---- what comes in (loop) ---------------------------------------------------------------------------------------------------

void Core::OnPush(wire::Call call) {
  absl::StatusOr<wire::PushTask> message = call.As<wire::PushTask>();
  if (!message.ok()) return call.Fail(message.status());
  wire::TaskSpec& spec = message->spec;
  nodes_of_workers_[spec.owner.worker] = spec.owner.node;
  AttemptKey key{spec.task, spec.attempt};
  if (auto it = replies_.find(key); it != replies_.end()) return call.AnswerBody(it->second);
  if (auto it = executing_.find(key); it != executing_.end()) {
    it->second->answers.push_back(std::move(call));   // sent again after a broken connection
    return;
  }
  if (!spec.actor.IsNil()) {
    ActorId self = actor();
    if (spec.actor != self) return call.Fail(FailedPrecondition("this worker is not actor {}", spec.actor.Short()));
    if (spec.incarnation != incarnation()) {
      return call.Fail(FailedPrecondition("actor {} is at incarnation {}, not {}", self.Short(), incarnation(), spec.incarnation));
    }
    if (leaving_ != ExecutionOutput::kNo) {
      wire::TaskReply reply;
      reply.error = MakeError(ErrorInfo::kActorDied, "the actor ends: it was asked to, or ended itself");
      return call.Answer(reply);
    }
  } else if (blocked_ > 0 || stopping_ || MainLane().waiting_count >= kQueuedMax) {
    wire::TaskReply reply;
    reply.handed_back = true;
    return call.Answer(reply);
  }
  auto execution = std::make_shared<Execution>();
  execution->lane = LaneOf(spec);
  if (execution->lane == nullptr) {
    std::string names;
    for (const Lane& lane : lanes_) names += lane.name.empty() ? "" : fmt::format(" \"{}\"", lane.name);
    execution->refusal = MakeError(ErrorInfo::kRuntime, fmt::format("the actor has no concurrency group \"{}\"; it has:{}",
                                                                    spec.concurrency_group.str(), names.empty() ? " none" : names));
    execution->lane = &MainLane();
  }
  execution->kind = spec.actor.IsNil() ? Execution::kTask : Execution::kCall;
  execution->spec = std::move(spec);
  execution->answers.push_back(std::move(call));
  executing_.emplace(key, execution);
  if (execution->kind == Execution::kCall) EnterInOrder(std::move(execution));
  else Enqueue(std::move(execution));
}

// Calls of one caller run in its order, whatever order they arrive in.
void Core::EnterInOrder(std::shared_ptr<Execution> execution) {
  CallerState& caller = callers_[execution->spec.owner.worker];
  uint64_t sequence = execution->spec.sequence;
  if (sequence < caller.next) {
    // Executed before, and its reply is not kept any more.
    wire::TaskReply reply;
    reply.error = MakeError(ErrorInfo::kActorUnavailable, "the call ran, but its reply was lost with the connection");
    AnswerExecution(*execution, reply);
    executing_.erase({execution->spec.task, execution->spec.attempt});
    return;
  }
  caller.early.emplace(sequence, std::move(execution));
  for (auto it = caller.early.find(caller.next); it != caller.early.end(); it = caller.early.find(caller.next)) {
    std::shared_ptr<Execution> next = std::move(it->second);
    caller.early.erase(it);
    ++caller.next;
    Enqueue(std::move(next));
  }
}

Lane& Core::MainLane() { return lanes_.front(); }

Lane* Core::LaneOf(const wire::TaskSpec& spec) {
  if (!spec.concurrency_group.empty()) {
    for (Lane& lane : lanes_) {
      if (lane.name == spec.concurrency_group) return &lane;
    }
    return nullptr;
  }
  if (lane_of_method_.empty()) return &MainLane();
  auto it = lane_of_method_.find(spec.function);
  // A method of a base class is called by its name "of" the actor's class.
  if (it == lane_of_method_.end()) it = lane_of_method_.find(spec.function.str().substr(0, spec.function.str().rfind(" of ")));
  return it == lane_of_method_.end() ? &MainLane() : it->second;
}

void Core::Enqueue(std::shared_ptr<Execution> execution) {
  ArmReports();
  Lane& lane = *execution->lane;
  {
    std::lock_guard lock(queue_mutex_);
    lane.waiting.push_back(std::move(execution));
    ++lane.waiting_count;
  }
  ArmLongRunning();
}

void Core::ArmLongRunning() {
  if (long_running_armed_ || running_ == 0 || MainLane().waiting_count == 0 || !actor().IsNil()) return;
  long_running_armed_ = true;
  std::shared_ptr<Execution> oldest;
  for (const auto& [key, execution] : executing_) {
    if (execution->started) oldest = execution;
  }
  After(kLongRunning, [this, oldest] {
    long_running_armed_ = false;
    bool same = oldest && executing_.contains({oldest->spec.task, oldest->spec.attempt});
    if (same) HandBackQueued();
    else ArmLongRunning();
  });
}

void Core::OnBecomeActor(wire::Call call) {
  absl::StatusOr<wire::BecomeActor> message = call.As<wire::BecomeActor>();
  if (!message.ok()) return call.Fail(message.status());
  absl::StatusOr<std::vector<wire::Argument>> arguments = Decode<std::vector<wire::Argument>>(message->spec.arguments);
  if (!arguments.ok()) return call.Fail(arguments.status());
  {
    std::lock_guard lock(identity_mutex_);
    if (!actor_.IsNil()) return call.Fail(FailedPrecondition("this worker is an actor already"));
    actor_ = message->spec.actor;
    incarnation_ = message->incarnation;
    gpu_ids_ = message->gpu_ids;
  }
  MainLane().threads = std::clamp(message->spec.max_concurrency, 1, kActorConcurrencyMax);
  for (const wire::ConcurrencyGroup& group : message->spec.concurrency_groups) {
    Lane& lane = lanes_.emplace_back();
    lane.name = group.name;
    lane.threads = std::clamp(group.max_concurrency, 1, kActorConcurrencyMax);
    for (const std::string& method : group.methods) lane_of_method_[method] = &lane;
  }
  auto execution = std::make_shared<Execution>();
  execution->lane = &MainLane();
  execution->kind = Execution::kConstructor;
  execution->spec.task = TaskId::Random();
  execution->spec.actor = message->spec.actor;
  execution->spec.function = message->spec.creator;
  execution->spec.name = message->spec.class_name;
  execution->spec.arguments = std::move(*arguments);
  constructing_ = execution;
  execution->spec.owner = message->spec.owner;
  execution->answers.push_back(std::move(call));
  Enqueue(std::move(execution));
}

void Core::OnCancel(const wire::CancelTask& cancel) {
  std::vector<std::shared_ptr<Execution>> found;
  for (const auto& [key, execution] : executing_) {
    if (key.first == cancel.task) found.push_back(execution);
  }
  for (const std::shared_ptr<Execution>& execution : found) {
    execution->cancelled = true;
    if (std::function<void()> wake = execution->wake) wake();   // it waits in co_await
    if (TakeFromQueue(*execution)) {
      executing_.erase({execution->spec.task, execution->spec.attempt});
      wire::TaskReply reply;
      reply.error = MakeError(ErrorInfo::kCancelled, fmt::format("task {} was cancelled before it started", execution->spec.name));
      execution->ended_us = absl::ToUnixMicros(absl::Now());
      ReportEnd(*execution, reply.error);
      AnswerExecution(*execution, reply);
      continue;
    }
    if (cancel.children) {
      std::vector<std::shared_ptr<TaskRecord>> children;
      for (const auto& [task, record] : tasks_) {
        if (record->parent == cancel.task) children.push_back(record);
      }
      for (const std::shared_ptr<TaskRecord>& child : children) CancelRecord(child, {.force = cancel.force, .children = true});
    }
    if (execution->started && cancel.force && execution->kind == Execution::kTask) {
      spdlog::info("task {} is cancelled by force: the worker ends", execution->spec.name);
      LeaveProcess("a task was cancelled by force");
    }
  }
}

bool Core::TakeFromQueue(const Execution& execution) {
  if (execution.lane == nullptr) return false;
  Lane& lane = *execution.lane;
  std::lock_guard lock(queue_mutex_);
  size_t taken = std::erase_if(lane.waiting, [&](const std::shared_ptr<Execution>& queued) { return queued.get() == &execution; });
  lane.waiting_count = lane.waiting.size();
  return taken > 0;
}

void Core::HandBackQueued() {
  std::deque<std::shared_ptr<Execution>> back;
  {
    Lane& lane = MainLane();
    std::lock_guard lock(queue_mutex_);
    std::deque<std::shared_ptr<Execution>> stay;
    for (std::shared_ptr<Execution>& execution : lane.waiting) {
      (execution->kind == Execution::kTask ? back : stay).push_back(std::move(execution));
    }
    lane.waiting = std::move(stay);
    lane.waiting_count = lane.waiting.size();
  }
  wire::TaskReply reply;
  reply.handed_back = true;
  for (std::shared_ptr<Execution>& execution : back) {
    executing_.erase({execution->spec.task, execution->spec.attempt});
    AnswerExecution(*execution, reply);
  }
}

void Core::AnswerExecution(Execution& execution, const wire::TaskReply& reply) {
  std::string body = Encode(reply);
  for (wire::Call& call : execution.answers) call.AnswerBody(body);
  execution.answers.clear();
  if (!reply.handed_back) KeepReply({execution.spec.task, execution.spec.attempt}, std::move(body));
}

void Core::KeepReply(const AttemptKey& key, std::string body) {
  reply_bytes_ += body.size();
  if (replies_.emplace(key, std::move(body)).second) reply_order_.push_back(key);
  while (reply_order_.size() > kKeptRepliesMax || (reply_bytes_ > kKeptReplyBytesMax && !reply_order_.empty())) {
    auto it = replies_.find(reply_order_.front());
    reply_bytes_ -= it->second.size();
    replies_.erase(it);
    reply_order_.pop_front();
  }
}

// ---- running (any thread) ---------------------------------------------------------------------------------------------------

void Core::Serve() {
  RunExecutions(MainLane());
  role_.Do([this] { LeaveProcess(stop_reason_); });
  role_.Await([] { return false; }, absl::InfiniteFuture());
  ::_exit(0);
}

bool Core::HasWork(const Lane& lane) const {
  return lane.resumable_count.load() > 0 || (lane.waiting_count.load() > 0 && unfinished_.load() < kUnfinishedMax);
}

std::shared_ptr<Execution> Core::TakeNext(Lane& lane) {
  std::lock_guard lock(queue_mutex_);
  bool may_start = !lane.waiting.empty() && unfinished_ < kUnfinishedMax;
  if (!lane.resumable.empty() && !(may_start && lane.resumed_last)) {
    lane.resumed_last = true;
    std::shared_ptr<Execution> next = std::move(lane.resumable.front());
    lane.resumable.pop_front();
    --lane.resumable_count;
    return next;
  }
  if (!may_start) return nullptr;
  lane.resumed_last = false;
  std::shared_ptr<Execution> next = std::move(lane.waiting.front());
  lane.waiting.pop_front();
  ++running_;   // first: what is taken is never in neither count
  --lane.waiting_count;
  next->started = true;
  return next;
}

void Core::RunExecutions(Lane& lane) {
  while (!stopping_) {
    if (!HasWork(lane)) role_.Await([&] { return HasWork(lane) || stopping_.load(); }, absl::InfiniteFuture());
    std::shared_ptr<Execution> next = TakeNext(lane);
    if (next && next->go_on) GoOn(next);
    else if (next) Execute(next);
  }
}

void Core::Execute(const std::shared_ptr<Execution>& execution) {
  NoteStart(*execution);
  if (execution->kind == Execution::kTask && MainLane().waiting_count > 0) role_.Do([this] { ArmLongRunning(); });
  current = execution.get();
  NotePrinter(*execution);
  ExecutionOutput output = Run(execution);
  current = nullptr;
  if (!output.suspended) Deliver(execution, std::move(output));
}

void Core::Deliver(const std::shared_ptr<Execution>& execution, ExecutionOutput output) {
  wire::TaskReply reply;
  std::vector<CellPtr> refs;
  ExecutionOutput::Exit exit_actor = ExecutionOutput::kNo;
  {
    current = execution.get();
    if (execution->spec.stream_ahead_max > 0) AwaitEmitted(*execution);
    exit_actor = output.exit_actor;
    reply.error = std::move(output.error);
    reply.retry = output.retry && reply.error.has_value();
    if (!reply.error && execution->kind != Execution::kConstructor) {
      for (uint32_t i = 0; i < output.results.size(); ++i) {
        absl::StatusOr<wire::ReturnValue> value = MakeReturn(*execution, i, std::move(output.results[i]), refs);
        if (!value.ok()) {
          bool full = absl::IsResourceExhausted(value.status());
          reply.error = MakeError(full ? ErrorInfo::kOutOfMemory : ErrorInfo::kRuntime, Message(value.status()));
          break;
        }
        reply.returns.push_back(std::move(*value));
      }
    }
    current = nullptr;
    NoteStop(*execution);
  }
  // The argument values and their handles are gone by now: what is still counted was kept.
  auto finish = [this, execution, exit_actor, reply = std::move(reply), refs = std::move(refs)]() mutable {
    Finish(execution, std::move(reply), std::move(refs));
    leaving_ = std::max(leaving_, exit_actor);
    if (leaving_ != ExecutionOutput::kNo) LeaveWhenIdle();
  };
  // Of a burst of short ones several are told together. If the next one takes long, the standby tells.
  thread_local int64_t told_us = 0;
  int64_t started_us = execution->started_us.load(std::memory_order_relaxed);
  if (execution->lane->waiting_count.load(std::memory_order_relaxed) > 0 && exit_actor == ExecutionOutput::kNo &&
      started_us - told_us < kToldTogetherMicros) {
    return role_.DoLater(std::move(finish));
  }
  told_us = started_us;
  role_.Do(std::move(finish));
}

// Calls print under the name of their actor's class, which its constructor noted.
void Core::NotePrinter(const Execution& execution) {
  if (!printed_names_ || execution.kind == Execution::kCall || execution.spec.name == printer_) return;
  printer_ = execution.spec.name;
  // Where a descriptor that was opened for appending stands is where its last write ended.
  off_t out = ::lseek(STDOUT_FILENO, 0, SEEK_CUR);
  off_t error = ::lseek(STDERR_FILENO, 0, SEEK_CUR);
  printed_names_->Add(static_cast<uint64_t>(std::max<off_t>(out, 0)), static_cast<uint64_t>(std::max<off_t>(error, 0)), printer_);
}

// The actor ends itself, when its other calls have ended too.
void Core::LeaveWhenIdle() {
  if (running_ > 0) return;
  if (leaving_ == ExecutionOutput::kAfterQueue) {
    for (const Lane& lane : lanes_) {
      if (lane.waiting_count > 0) return;
    }
  }
  wire::ActorExiting message;
  message.reason = "the actor ended itself";
  NodeNotify(message);
  LeaveProcess(message.reason);
}

// ---- coroutines -------------------------------------------------------------------------------------------------------------

bool Core::can_suspend() const { return current != nullptr && current->kind == Execution::kCall; }

void Core::GoOn(const std::shared_ptr<Execution>& execution) {
  std::function<void()> go_on = std::exchange(execution->go_on, nullptr);
  current = execution.get();
  go_on();   // the coroutine may be gone when this returns, or run on another thread
  current = nullptr;
}

void Core::Suspend(std::function<void()> go_on, std::function<void(std::function<void()> over)> wait) {
  role_.Do([this, execution = current->shared_from_this(), go_on = std::move(go_on), wait = std::move(wait)]() mutable {
    auto over = [this, execution, go_on = std::make_shared<std::function<void()>>(std::move(go_on))] {
      if (!*go_on) return;   // the first that calls it wins
      execution->wake = nullptr;
      std::lock_guard lock(queue_mutex_);
      execution->go_on = std::exchange(*go_on, nullptr);
      execution->lane->resumable.push_back(execution);
      ++execution->lane->resumable_count;
    };
    if (execution->cancelled) return over();
    execution->wake = over;
    wait(over);
  });
}

void Core::ResumeWhenReady(const std::vector<CellPtr>& cells, std::function<void()> go_on) {
  std::vector<std::shared_ptr<ObjectState>> states;
  for (const CellPtr& cell : cells) states.push_back(cell->shared_state());
  Suspend(std::move(go_on), [this, states = std::move(states)](std::function<void()> over) {
    WhenAllReady(states, [over = std::move(over)](const ErrorInfo*) { over(); });
  });
}

void Core::ResumeAfter(absl::Duration delay, std::function<void()> go_on) {
  Suspend(std::move(go_on), [this, delay](std::function<void()> over) { After(delay, std::move(over)); });
}

absl::StatusOr<wire::ReturnValue> Core::MakeReturn(const Execution& execution, uint32_t index, OutgoingValue value,
                                                   std::vector<CellPtr>& refs) {
  std::vector<Reference> references;
  for (CellPtr& ref : value.refs) {
    references.push_back(ref->reference());
    refs.push_back(std::move(ref));
  }
  size_t size = PackedSize(value.body, value.buffers);
  if (size <= kInlineResultMax) return wire::InlineValue{Pack(value.body, value.buffers), std::move(references)};
  absl::StatusOr<wire::ObjectLocation> location = Store(ReturnId(execution.spec.task, index), value, size, execution.spec.owner);
  if (!location.ok()) {
    return MakeStatus(location.status().code(), "the result of {} ({} bytes) cannot be stored: {}", execution.spec.name, size,
                      Message(location.status()));
  }
  return wire::StoredValue{*location, std::move(references)};
}

ExecutionOutput Core::Run(const std::shared_ptr<Execution>& execution) {
  ExecutionOutput output;
  const wire::TaskSpec& spec = execution->spec;
  if (execution->refusal) {
    output.error = execution->refusal;
    return output;
  }
  if (execution->cancelled) {
    output.error = MakeError(ErrorInfo::kCancelled, fmt::format("task {} was cancelled before it started", spec.name));
    return output;
  }
  ExecutionInput input;
  input.is_constructor = execution->kind == Execution::kConstructor;
  input.is_call = execution->kind == Execution::kCall;
  input.function = spec.function;
  input.split = spec.split;
  if (input.is_call) {
    input.make_finish = [this, &execution] {
      return [this, execution](ExecutionOutput output) {
        --unfinished_;
        Deliver(execution, std::move(output));
      };
    };
  }
  input.retry_exceptions = &spec.retry_exceptions;
  if (spec.stream_ahead_max > 0) {
    input.emit = [this, execution](OutgoingValue value) { return Emit(execution, std::move(value)); };
  }
  std::vector<CellPtr> handles;
  for (size_t i = 0; i < spec.arguments.size(); ++i) {
    if (const auto* value = std::get_if<wire::InlineValue>(&spec.arguments[i])) {
      std::shared_ptr<const void> owner(execution, value->bytes.data());
      absl::StatusOr<Unpacked> unpacked = Unpack(value->bytes, owner);
      if (!unpacked.ok()) {
        output.error = MakeError(ErrorInfo::kRuntime, fmt::format("argument {} of {}: {}", i + 1, spec.name, Message(unpacked.status())));
        return output;
      }
      input.arguments.push_back({unpacked->body, std::move(unpacked->buffers), owner});
      continue;
    }
    const Reference& reference = std::get<Reference>(spec.arguments[i]);
    handles.push_back(MakeHandle(reference.object, reference.owner));
    // The submitter waited until it was there, so this waits for a transfer at most and the CPU is not lent; but see FetchState.
    Fetched fetched = FetchState(handles.back(), absl::InfiniteFuture(), false);
    if (fetched.kind == Fetched::kError) {
      output.error = fetched.error;
      return output;
    }
    input.arguments.push_back(std::move(fetched.value));
  }
  ++unfinished_;
  ExecutionOutput result = options_.executor(input);
  if (!result.suspended) --unfinished_;
  return result;
}

void Core::PassRefs(const Execution& execution, const std::vector<wire::ReturnValue>& values, std::vector<CellPtr> refs) {
  ReferenceMachine::Effects effects;
  for (const wire::ReturnValue& value : values) {
    references_.PassTo(execution.spec.owner, std::visit([](const auto& v) { return v.references; }, value), effects);
  }
  Apply(std::move(effects));
  // A ref that goes back to its own owner needs no registration, but this worker's release travels on another connection than the reply
  // and must not come first: the handle is kept for longer than a reply takes.
  std::vector<CellPtr> homeward;
  for (CellPtr& ref : refs) {
    if (ref->state().owner.worker == execution.spec.owner.worker) homeward.push_back(std::move(ref));
  }
  if (!homeward.empty()) After(absl::Seconds(5), [homeward = std::move(homeward)]() mutable { homeward.clear(); });
}

// Loop: answers, after counting what this process keeps and what the caller gets.
void Core::Finish(const std::shared_ptr<Execution>& execution, wire::TaskReply reply, std::vector<CellPtr> refs) {
  --running_;
  ReportEnd(*execution, reply.error);
  if (execution->kind == Execution::kConstructor) {
    wire::BecomeActorReply answer;
    answer.error = std::move(reply.error);
    constructing_.reset();
    for (wire::Call& call : execution->answers) call.Answer(answer);
    execution->answers.clear();
    if (!answer.error) {
      for (Lane& lane : lanes_) {
        for (int i = &lane == &MainLane() ? 1 : 0; i < lane.threads; ++i) extra_threads_.emplace_back([this, &lane] { RunExecutions(lane); });
      }
    }
    return;
  }
  std::vector<ObjectId> seen;
  for (const wire::Argument& argument : execution->spec.arguments) {
    if (const auto* value = std::get_if<wire::InlineValue>(&argument)) {
      for (const Reference& reference : value->references) seen.push_back(reference.object);
    } else {
      seen.push_back(std::get<Reference>(argument).object);
    }
  }
  PassRefs(*execution, reply.returns, std::move(refs));
  reply.kept = references_.TakeKept(seen);
  executing_.erase({execution->spec.task, execution->spec.attempt});
  AnswerExecution(*execution, reply);
}

// ---- waiting inside a task --------------------------------------------------------------------------------------------------

bool Core::AwaitBlocking(const std::function<bool()>& done, absl::Time deadline) {
  if (done()) return true;
  if (current == nullptr) return role_.Await(done, deadline);
  EnterBlocked();
  bool result = role_.Await(done, deadline);
  LeaveBlocked();
  return result;
}

void Core::Sleep(absl::Duration time) {
  AwaitBlocking([this] { return current_cancelled() || closed_.load(); }, absl::Now() + time);
}

void Core::EnterBlocked() {
  role_.Do([this] {
    if (++blocked_ == 1) NodeNotify(wire::WorkerBlocked());
    HandBackQueued();
  });
}

void Core::LeaveBlocked() {
  role_.Do([this] {
    if (--blocked_ == 0) NodeNotify(wire::WorkerUnblocked());
  });
}

}  // namespace argosy::worker
