// Tasks and actor calls that this process asked for.

#include <algorithm>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/wire/sha256.h"
#include "runtime/worker/core.h"
#include "runtime/worker/execution.h"
#include "runtime/worker/value.h"

namespace argosy::worker {

using wire::ErrorInfo;
using wire::Reference;

namespace {

// Arguments up to this size travel with the task even when they are refs whose value is here.
constexpr size_t kInlineArgumentMax = kInlineResultMax;
// A handle may arrive before whoever spawned its actor has told the head.
constexpr absl::Duration kCreationGrace = absl::Seconds(10);
// Tasks whose arguments on some node are larger want a lease of their own there.
constexpr uint64_t kLocalityBytesMin = 1 << 20;
// Packages that are kept for their environment variables.
constexpr size_t kCodePackagesMax = 1000;

ErrorInfo FromStatus(const absl::Status& status) {
  ErrorInfo::Kind kind = ErrorInfo::kRuntime;
  if (absl::IsDeadlineExceeded(status)) kind = ErrorInfo::kUnschedulable;
  if (absl::IsCancelled(status)) kind = ErrorInfo::kCancelled;
  if (absl::IsAborted(status)) kind = ErrorInfo::kNodeDied;
  return MakeError(kind, Message(status));
}

}  // namespace

void Core::WhenAllReady(const std::vector<std::shared_ptr<ObjectState>>& dependencies,
                        UniqueFunction<void(const ErrorInfo* error)> ready) {
  if (dependencies.empty()) return ready(nullptr);
  auto missing = std::make_shared<size_t>(dependencies.size() + 1);
  auto one_is_there = [missing, dependencies, ready = std::make_shared<UniqueFunction<void(const ErrorInfo*)>>(std::move(ready))] {
    if (--*missing > 0) return;
    for (const std::shared_ptr<ObjectState>& state : dependencies) {
      if (state->status == ObjectState::kError) return (*ready)(&state->error);
    }
    (*ready)(nullptr);
  };
  for (const std::shared_ptr<ObjectState>& state : dependencies) WhenReady(state, one_is_there);
  one_is_there();
}

std::vector<wire::Argument> Core::FinalArguments(const std::vector<wire::Argument>& arguments) {
  std::vector<wire::Argument> final_arguments;
  final_arguments.reserve(arguments.size());
  for (const wire::Argument& argument : arguments) {
    if (const Reference* reference = std::get_if<Reference>(&argument)) {
      std::shared_ptr<ObjectState> state = FindState(reference->object);
      if (state && state->status == ObjectState::kInline && state->bytes->size() <= kInlineArgumentMax) {
        final_arguments.emplace_back(wire::InlineValue{*state->bytes, state->references});
        continue;
      }
    }
    final_arguments.push_back(argument);
  }
  return final_arguments;
}

// ---- tasks ------------------------------------------------------------------------------------------------------------------

absl::Status Core::AwaitRoom(const std::atomic<int64_t>& pending, int64_t pending_max) {
  auto has_room = [&] { return pending.load() < pending_max; };
  if (has_room()) return absl::OkStatus();
  AwaitBlocking([&] { return has_room() || current_cancelled() || closed_.load(); }, absl::InfiniteFuture());
  if (current_cancelled()) return absl::CancelledError("the task was cancelled while it submitted");
  return absl::OkStatus();
}

template <class Request>
std::shared_ptr<Core::TaskRecord> Core::NewRecord(const Request& request, PreparedArguments prepared, Returns& handles) {
  auto record = std::make_shared<TaskRecord>();
  wire::TaskSpec& spec = record->spec;
  spec.task = TaskId::Random();
  spec.job = node_.job;
  spec.arguments = std::move(prepared.arguments);
  spec.owner = address_;
  spec.function = request.function;
  spec.name = request.readable;
  spec.code_id = options_.code.id;
  spec.trace = current_trace();
  spec.return_count = request.returns;
  spec.split = request.split;
  if (request.stream) spec.stream_ahead_max = request.stream->ahead_max;
  record->stream = request.stream;
  record->held = std::move(prepared.held);
  record->dependencies = std::move(prepared.dependencies);
  record->parent = current_task();
  for (uint32_t i = 0; i < request.returns; ++i) {
    handles.push_back(NewUncounted(ReturnId(spec.task, i), address_));
    record->results.push_back(handles.back()->shared_state());
  }
  return record;
}

absl::StatusOr<Returns> Core::SubmitTask(const TaskRequest& request, std::vector<OutgoingArgument> arguments) {
  if (closed_) return FailedPrecondition("the runtime has been shut down");
  ARGOSY_RETURN_IF_ERROR(AwaitRoom(pending_tasks_, static_cast<int64_t>(kPendingCallsMax)));
  ARGOSY_ASSIGN_OR_RETURN(PreparedArguments prepared, Prepare(std::move(arguments)));
  Returns handles;
  std::shared_ptr<TaskRecord> record = NewRecord(request, std::move(prepared), handles);
  record->spec.retry_exceptions = request.retry_exceptions;
  record->demand = request.demand;
  record->demand.priority = 0;
  record->demand.job_priority = options_.code.job_priority;
  record->demand.retriable = request.max_retries != 0;
  if ((record->code = CodeWith(request.env))) record->spec.code_id = record->code->id;
  record->deadline = request.deadline;
  record->asked.retries_max = request.max_retries;
  record->asked.priority = request.demand.priority;
  record->asked.deadline = absl::Now() + request.deadline;
  ++pending_tasks_;
  role_.Do([this, record] {
    for (const std::shared_ptr<ObjectState>& result : record->results) {
      Adopt(result);
      result->task = record->spec.task;
    }
    Begin(record);
  });
  return handles;
}

// Tasks of one shape share leases: those that ask for the same, and whose big arguments lie on the same node.
Core::CodePointer Core::CodeWith(const RuntimeEnv& env) {
  if (env.IsEmpty()) return nullptr;
  std::lock_guard lock(code_mutex_);
  if (code_with_.size() >= kCodePackagesMax) code_with_.clear();   // one that is asked for again is made again
  CodePointer& known = code_with_[Encode(env)];
  if (!known) {
    auto code = std::make_shared<wire::CodePackage>(options_.code);
    for (const auto& [name, value] : env.env_vars) code->env_vars[name] = value;
    // Relative folders of the library path are those of the package: another package has its own.
    if (!env.working_dir_uri.empty()) {
      code->working_dir_uri = env.working_dir_uri;
      std::erase_if(code->loader_path, [](const std::string& folder) { return folder.empty() || folder[0] != '/'; });
    }
    code->loader_path.insert(code->loader_path.begin(), env.loader_path.begin(), env.loader_path.end());
    code->id = wire::Sha256Hex(options_.code.id + Encode(code->env_vars) + Encode(code->working_dir_uri) + Encode(code->loader_path));
    known = std::move(code);
  }
  return known;
}

absl::StatusOr<std::string> Core::PackageOf(const std::string& folder) {
  {
    std::lock_guard lock(code_mutex_);
    if (auto at = uploaded_.find(folder); at != uploaded_.end()) return at->second;
  }
  wire::UploadFolder message;
  message.path = folder;
  ARGOSY_ASSIGN_OR_RETURN(wire::UploadFolderReply reply, CallNode(message));
  std::lock_guard lock(code_mutex_);
  if (uploaded_.size() >= kCodePackagesMax) uploaded_.clear();
  return uploaded_[folder] = reply.uri;
}

void Core::UseEnvironment(const RuntimeEnv& env) {
  if (CodePointer code = CodeWith(env)) options_.code = *code;
}

SubmitMachine::ShapeId Core::ShapeOf(const TaskRecord& record) {
  NodeId near;
  if (!record.dependencies.empty() && std::holds_alternative<wire::DefaultStrategy>(record.demand.strategy)) {
    std::map<NodeId, uint64_t> bytes;
    for (const std::shared_ptr<ObjectState>& state : record.dependencies) {
      if (state->status != ObjectState::kStored) continue;
      for (const wire::ObjectLocation& location : state->locations) bytes[location.node] += location.size;
    }
    auto most = std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != bytes.end() && most->second >= kLocalityBytesMin) near = most->first;
  }
  // Most tasks are of the shape of the one before.
  if (last_shape_ < shape_demands_.size()) {
    const ShapeDemand& last = shape_demands_[last_shape_];
    if (last.near == near && last.code == record.code && last.deadline == record.deadline && last.demand == record.demand) return last_shape_;
  }
  std::string key = Encode(record.demand) + Encode(absl::ToInt64Microseconds(record.deadline)) + std::string(near.Bytes());
  if (record.code) key += record.code->id;
  last_shape_ = submit_.Shape(key);
  if (last_shape_ == shape_demands_.size()) shape_demands_.push_back({record.demand, record.deadline, near, record.code});
  return last_shape_;
}

void Core::Begin(std::shared_ptr<TaskRecord> record) {
  tasks_.emplace(record->spec.task, record);
  ReportSubmitted(*record);
  WhenAllReady(record->dependencies, [this, task = record->spec.task](const ErrorInfo* error) {
    auto it = tasks_.find(task);
    if (it == tasks_.end()) return;
    if (error != nullptr) return FailTask(task, *error);
    std::shared_ptr<TaskRecord> ready = it->second;
    ready->spec.arguments = FinalArguments(ready->spec.arguments);
    ready->asked.shape = ShapeOf(*ready);
    SubmitMachine::Effects effects;
    submit_.Submit(task, ready->asked, absl::Now(), effects);
    Apply(std::move(effects));
  });
}

void Core::Apply(SubmitMachine::Effects effects) {
  for (const SubmitMachine::Fail& failure : effects.failures) FailTask(failure.task, failure.error);
  for (const SubmitMachine::Return& lease : effects.returns) {
    auto it = leases_.find(lease.lease);
    if (it == leases_.end()) continue;
    wire::ReturnLease message;
    message.lease = lease.lease;
    message.node = it->second.grant.worker.node;
    message.worker_failed = lease.worker_failed;
    NodeNotify(message);
    leases_.erase(it);
  }
  for (uint64_t request : effects.cancelled_requests) {
    // Its answer, if it comes first, is a grant that the machine returns.
    if (auto it = lease_requests_.find(request); it != lease_requests_.end()) {
      wire::CancelLeaseRequest message;
      message.request_id = it->second;
      NodeNotify(message);
    }
  }
  for (const SubmitMachine::Push& push : effects.pushes) SendPush(push.lease, push.task, push.attempt);
  for (const SubmitMachine::Request& request : effects.requests) RequestLease(request);
  ArmTick();
}

void Core::RequestLease(const SubmitMachine::Request& request) {
  wire::RequestLease message;
  message.request_id = std::string(TaskId::Random().Bytes());
  message.demand = shape_demands_[request.shape].demand;
  const CodePointer& code = shape_demands_[request.shape].code;
  message.code = code ? *code : options_.code;
  if (std::optional<TaskId> task = submit_.WaitingTask(request.shape)) {
    SubmitMachine::Asked asked = *submit_.AskedOf(*task);
    message.demand.priority = asked.priority;
    if (asked.deadline != absl::InfiniteFuture()) {
      message.deadline_seconds = std::max(0.001, absl::ToDoubleSeconds(asked.deadline - absl::Now()));
    }
    // Where the big arguments of the next task are.
    if (auto it = tasks_.find(*task); it != tasks_.end()) {
      for (const std::shared_ptr<ObjectState>& state : it->second->dependencies) {
        if (state->status != ObjectState::kStored) continue;
        for (const wire::ObjectLocation& location : state->locations) message.demand.locality.push_back(location);
      }
    }
  }
  lease_requests_[request.request] = message.request_id;
  NodeRequest(message, [this, number = request.request](absl::StatusOr<wire::LeaseGrant> grant) {
    lease_requests_.erase(number);
    if (closed_) return;
    SubmitMachine::Effects effects;
    if (grant.ok()) {
      nodes_of_workers_[grant->worker.worker] = grant->worker.node;
      LeaseRecord lease;
      lease.grant = *grant;
      leases_[grant->lease] = std::move(lease);
      submit_.Granted(number, grant->lease, absl::Now(), effects);
    } else if (absl::IsUnavailable(grant.status()) && node_connection_ != nullptr) {
      submit_.Denied(number, std::nullopt, absl::Now(), effects);   // the head is away: again, a little later
    } else if (absl::IsCancelled(grant.status())) {
      submit_.Denied(number, std::nullopt, absl::Now(), effects);
    } else {
      ErrorInfo error = FromStatus(grant.status());
      if (absl::IsNotFound(grant.status())) error.kind = ErrorInfo::kRuntimeEnv;
      submit_.Denied(number, std::move(error), absl::Now(), effects);
    }
    Apply(std::move(effects));
  });
}

void Core::SendPush(LeaseId lease, TaskId task, uint32_t attempt) {
  auto at = tasks_.find(task);
  auto it = leases_.find(lease);
  if (at == tasks_.end() || it == leases_.end()) return;
  wire::PushTask& message = at->second->message;
  message.spec.attempt = attempt;
  message.spec.lease = lease;
  if (it->second.asking_fate) {
    it->second.unanswered.emplace_back(task, attempt);
    return;
  }
  peers_->Request(it->second.grant.worker, message, [this, lease, task, attempt](absl::StatusOr<wire::TaskReply> reply) {
    if (!closed_) OnPushReply(lease, task, attempt, std::move(reply));
  });
}

void Core::OnPushReply(LeaseId lease, TaskId task, uint32_t attempt, absl::StatusOr<wire::TaskReply> reply) {
  auto it = leases_.find(lease);
  if (it == leases_.end()) return;
  if (!reply.ok() && absl::IsUnavailable(reply.status())) {
    it->second.unanswered.emplace_back(task, attempt);
    return OnLeaseBroken(lease);
  }
  if (std::optional<LeaseId> current = submit_.LeaseOf(task); current != lease || submit_.AttemptOf(task) != attempt) return;
  SubmitMachine::Effects effects;
  if (reply.ok() && reply->handed_back) {
    auto at = tasks_.find(task);
    if (at != tasks_.end() && at->second->cancelled) {
      submit_.Finished(lease, task, absl::Now(), effects);
      FailTask(task, MakeError(ErrorInfo::kCancelled, fmt::format("task {} was cancelled", at->second->spec.name)));
    } else {
      submit_.HandedBack(lease, task, absl::Now(), effects);
    }
    return Apply(std::move(effects));
  }
  if (reply.ok() && reply->retry && submit_.FailedOnce(lease, task, absl::Now(), effects)) {
    // What that try kept of the arguments is counted, as of any other.
    ReferenceMachine::Effects kept;
    references_.Kept(it->second.grant.worker, reply->kept, kept);
    Apply(std::move(kept));
    return Apply(std::move(effects));
  }
  wire::WorkerAddress callee = it->second.grant.worker;
  int retries_left = submit_.RetriesLeft(task);
  submit_.Finished(lease, task, absl::Now(), effects);
  if (auto at = tasks_.find(task); at != tasks_.end()) {
    std::shared_ptr<TaskRecord> record = at->second;
    if (!reply.ok()) {
      FailTask(task, FromStatus(reply.status()));
    } else {
      Complete(*record, callee, std::move(*reply));
      EndTask(task);
      KeepLineage(record, retries_left, attempt);
    }
  }
  Apply(std::move(effects));
}

// The connection to a leased worker broke. Only the daemon says whether the worker is dead.
void Core::OnLeaseBroken(LeaseId lease) {
  LeaseRecord& record = leases_.at(lease);
  if (record.asking_fate) return;
  record.asking_fate = true;
  AskFate(record.grant.worker, [this, lease](const wire::WorkerFateReply& fate) {
    auto it = leases_.find(lease);
    if (it == leases_.end()) return;
    it->second.asking_fate = false;
    std::vector<std::pair<TaskId, uint32_t>> unanswered = std::move(it->second.unanswered);
    it->second.unanswered.clear();
    if (!fate.dead) {
      for (const auto& [task, attempt] : unanswered) {
        if (submit_.LeaseOf(task) == lease && submit_.AttemptOf(task) == attempt) SendPush(lease, task, attempt);
      }
      return;
    }
    const wire::WorkerAddress& worker = it->second.grant.worker;
    std::string ran;
    if (!unanswered.empty()) {
      if (auto at = tasks_.find(unanswered.front().first); at != tasks_.end()) ran = fmt::format(" while it ran {}", at->second->spec.name);
    }
    ErrorInfo error = MakeError(fate.out_of_memory ? ErrorInfo::kOutOfMemory : ErrorInfo::kWorkerDied,
                                fmt::format("worker {} on node {} died{}: {}", worker.worker.Short(), worker.node.Short(), ran, fate.reason));
    SubmitMachine::Effects effects;
    submit_.WorkerLost(lease, error, absl::Now(), effects);
    Apply(std::move(effects));
  });
}

// Takes the results of a task or call. `record.held` still protects the arguments' refs.
void Core::Complete(TaskRecord& record, const wire::WorkerAddress& callee, wire::TaskReply reply) {
  ReferenceMachine::Effects effects;
  references_.Kept(callee, reply.kept, effects);
  Apply(std::move(effects));
  if (!reply.error && reply.returns.size() != record.results.size()) {
    reply.error = MakeError(ErrorInfo::kRuntime, fmt::format("the worker sent {} results of {} instead of {}", reply.returns.size(),
                                                             record.spec.name, record.results.size()));
  }
  for (size_t i = 0; i < record.results.size(); ++i) {
    ObjectState& result = *record.results[i];
    if (reply.error) {
      SetError(result, *reply.error);
    } else if (auto* value = std::get_if<wire::InlineValue>(&reply.returns[i])) {
      SetInline(result, std::make_shared<const std::string>(std::move(value->bytes)), std::move(value->references), true);
    } else {
      auto& stored = std::get<wire::StoredValue>(reply.returns[i]);
      SetStored(result, {stored.location}, std::move(stored.references), true);
    }
  }
}

void Core::FailTask(TaskId task, const ErrorInfo& error) {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return;
  std::shared_ptr<TaskRecord> record = it->second;
  ReportFailed(*record, error);
  for (const std::shared_ptr<ObjectState>& result : record->results) SetError(*result, error);
  EndTask(task);
}

void Core::EndTask(TaskId task) {
  auto it = tasks_.find(task);
  if (it == tasks_.end()) return;
  std::shared_ptr<TaskRecord> record = std::move(it->second);
  if (record->reported) ReportEnded(*record);
  tasks_.erase(it);
  if (record->spec.actor.IsNil()) {
    --pending_tasks_;
  } else if (auto at = actors_.find(record->spec.actor); at != actors_.end()) {
    --at->second->pending->count;
  }
}

void Core::ArmTick() {
  absl::Time next = submit_.NextTick();
  if (!tick_ || next == absl::InfiniteFuture() || (tick_at_ <= next && tick_at_ != absl::InfiniteFuture())) return;
  tick_at_ = next;
  tick_->After(std::max(next - absl::Now(), absl::Milliseconds(1)), [this] {
    tick_at_ = absl::InfiniteFuture();
    SubmitMachine::Effects effects;
    submit_.Tick(absl::Now(), effects);
    Apply(std::move(effects));
  });
}

// ---- actors -----------------------------------------------------------------------------------------------------------------

Core::PendingCalls& Core::PendingOf(ActorId actor) {
  std::lock_guard lock(actors_mutex_);
  std::unique_ptr<PendingCalls>& pending = pending_calls_[actor];
  if (!pending) pending = std::make_unique<PendingCalls>();
  return *pending;   // stays for the life of this process, as the actor's record does
}

Core::ActorRecord& Core::ActorOf(ActorId actor, const std::string& readable) {
  std::unique_ptr<ActorRecord>& record = actors_[actor];
  if (!record) {
    record = std::make_unique<ActorRecord>(readable.empty() ? actor.Short() : readable);
    record->pending = &PendingOf(actor);
  }
  return *record;
}

absl::StatusOr<ActorId> Core::CreateActor(ActorRequest request, std::vector<OutgoingArgument> arguments) {
  if (closed_) return FailedPrecondition("the runtime has been shut down");
  ARGOSY_ASSIGN_OR_RETURN(PreparedArguments prepared, Prepare(std::move(arguments)));
  wire::ActorSpec& spec = request.spec;
  spec.actor = ActorId::Random();
  spec.owner = address_;
  spec.job = node_.job;
  CodePointer code = CodeWith(request.env);
  spec.code = code ? *code : options_.code;
  spec.placement.job_priority = options_.code.job_priority;
  if (spec.ns.empty()) spec.ns = node_.ns;
  PendingCalls& pending = PendingOf(spec.actor);
  pending.max = spec.max_pending_calls;
  pending.fail_when_full = spec.fail_when_full;
  struct Slot { std::atomic<bool> done = false; absl::StatusOr<ActorId> actor = absl::UnknownError(""); };
  auto slot = std::make_shared<Slot>();
  ActorId id = spec.actor;
  auto finish = [slot](absl::StatusOr<ActorId> actor) {
    slot->actor = std::move(actor);
    slot->done.store(true, std::memory_order_release);
  };
  role_.Do([this, spec = std::move(spec), prepared = std::move(prepared), finish]() mutable {
    ActorRecord& record = ActorOf(spec.actor, spec.name.empty() ? spec.class_name : spec.name);
    record.creating = true;
    record.held = std::move(prepared.held);
    WhenAllReady(prepared.dependencies, [this, spec, arguments = prepared.arguments, finish](const ErrorInfo* error) mutable {
      ActorRecord& actor = ActorOf(spec.actor);
      ActorCallMachine::Effects effects;
      if (error != nullptr) {
        actor.creating = false;
        ErrorInfo refused = *error;
        refused.message = fmt::format("an argument of the constructor failed: {}", error->message);
        actor.machine.Refused(refused, effects);
        Apply(spec.actor, std::move(effects));
        return finish(spec.actor);
      }
      spec.arguments = Encode(FinalArguments(arguments));
      wire::CreateActor message;
      message.spec = spec;
      NodeRequest(message, [this, id = spec.actor, finish](absl::StatusOr<wire::ActorInfo> info) {
        if (closed_) return finish(absl::CancelledError("the runtime has been shut down"));
        ActorRecord& created = ActorOf(id);
        created.creating = false;
        ActorCallMachine::Effects more;
        if (!info.ok()) {
          ErrorInfo refused = FromStatus(info.status());
          if (refused.kind == ErrorInfo::kRuntime) refused.kind = ErrorInfo::kActorDied;
          created.machine.Refused(refused, more);
          Apply(id, std::move(more));
          return finish(info.status());
        }
        if (std::optional<uint64_t> wanted = std::exchange(created.wanted, std::nullopt)) Resolve(id, *wanted);
        finish(info->actor);
      });
    });
  });
  if (!request.acknowledged) return id;
  if (!AwaitBlocking([&] { return slot->done.load(std::memory_order_acquire) || closed_.load(); }, absl::InfiniteFuture()) || !slot->done) {
    return FailedPrecondition("the runtime has been shut down");
  }
  return slot->actor;
}

absl::StatusOr<Returns> Core::SubmitCall(ActorId actor, const CallRequest& request, std::vector<OutgoingArgument> arguments) {
  if (closed_) return FailedPrecondition("the runtime has been shut down");
  if (actor.IsNil()) return InvalidArgument("the actor handle refers to nothing");
  PendingCalls& pending = PendingOf(actor);
  int64_t pending_max = pending.max > 0 ? pending.max.load() : static_cast<int64_t>(kPendingCallsMax);
  if (pending.fail_when_full && pending.count >= pending_max) {
    return MakeStatus(absl::StatusCode::kOutOfRange, "{}: {} calls to the actor are unanswered, and max_pending_calls is {}", request.readable,
                      pending.count.load(), pending_max);
  }
  ARGOSY_RETURN_IF_ERROR(AwaitRoom(pending.count, pending_max));
  ARGOSY_ASSIGN_OR_RETURN(PreparedArguments prepared, Prepare(std::move(arguments)));
  Returns handles;
  std::shared_ptr<TaskRecord> record = NewRecord(request, std::move(prepared), handles);
  record->spec.actor = actor;
  record->spec.concurrency_group = request.concurrency_group;
  ++pending.count;
  role_.Do([this, record, actor] {
    TaskId task = record->spec.task;
    for (const std::shared_ptr<ObjectState>& result : record->results) {
      Adopt(result);
      result->task = task;
      result->actor = actor;
    }
    tasks_.emplace(task, record);
    ReportSubmitted(*record);
    ActorCallMachine::Effects effects;
    ActorOf(actor).machine.Submit(task, effects);
    Apply(actor, std::move(effects));
    WhenAllReady(record->dependencies, [this, actor, task](const ErrorInfo* error) {
      auto it = tasks_.find(task);
      if (it == tasks_.end()) return;
      ActorCallMachine::Effects more;
      ActorCallMachine& machine = ActorOf(actor).machine;
      if (error != nullptr) {
        FailTask(task, *error);
        machine.Cancel(task, more);
      } else {
        it->second->spec.arguments = FinalArguments(it->second->spec.arguments);
        machine.ArgumentsReady(task, more);
      }
      Apply(actor, std::move(more));
    });
  });
  return handles;
}

void Core::Apply(ActorId actor, ActorCallMachine::Effects effects) {
  for (const ActorCallMachine::Fail& failure : effects.failures) FailTask(failure.task, failure.error);
  for (const ActorCallMachine::Send& send : effects.sends) SendCall(actor, send);
  if (effects.ask_fate) {
    ActorCallMachine& machine = ActorOf(actor).machine;
    AskFate(machine.worker(), [this, actor, incarnation = machine.incarnation()](const wire::WorkerFateReply& fate) {
      ActorCallMachine::Effects more;
      ActorOf(actor).machine.Fate(incarnation, fate.dead, fate.reason, more);
      Apply(actor, std::move(more));
    });
  }
  if (effects.resolve) {
    ActorRecord& record = ActorOf(actor);
    if (record.creating) record.wanted = effects.resolve;
    else Resolve(actor, *effects.resolve);
  }
}

void Core::Resolve(ActorId actor, uint64_t incarnation_min) {
  wire::ResolveActor message;
  message.actor = actor;
  message.incarnation_min = incarnation_min;
  message.wait_seconds = 30;
  NodeRequest(message, [this, actor, incarnation_min](absl::StatusOr<wire::ActorInfo> info) {
    if (closed_) return;
    ActorCallMachine::Effects effects;
    ActorRecord& record = ActorOf(actor);
    if (info.ok()) {
      if (info->state == wire::ActorInfo::kAlive) nodes_of_workers_[info->worker.worker] = info->worker.node;
      if (info->state == wire::ActorInfo::kDead) record.held.clear();
      record.pending->max = info->max_pending_calls;
      record.pending->fail_when_full = info->fail_when_full;
      record.machine.Resolved(*info, effects);
    } else if (node_connection_ != nullptr && (absl::IsUnavailable(info.status()) || absl::IsDeadlineExceeded(info.status()))) {
      return After(absl::Milliseconds(300), [this, actor, incarnation_min] { Resolve(actor, incarnation_min); });
    } else if (absl::IsNotFound(info.status()) && absl::Now() - record.unknown_since.value_or(absl::Now()) < kCreationGrace) {
      if (!record.unknown_since) record.unknown_since = absl::Now();
      return After(absl::Milliseconds(20), [this, actor, incarnation_min] { Resolve(actor, incarnation_min); });
    } else {
      ErrorInfo error = FromStatus(info.status());
      if (absl::IsNotFound(info.status())) error.kind = ErrorInfo::kActorDied;
      record.machine.ResolveFailed(error, effects);
    }
    Apply(actor, std::move(effects));
  });
}

void Core::SendCall(ActorId actor, const ActorCallMachine::Send& send) {
  auto it = tasks_.find(send.task);
  if (it == tasks_.end()) return;
  wire::PushTask& message = it->second->message;
  message.spec.attempt = send.attempt;
  message.spec.incarnation = send.incarnation;
  message.spec.sequence = send.sequence;
  peers_->Request(ActorOf(actor).machine.worker(), message,
                  [this, actor, task = send.task, incarnation = send.incarnation](absl::StatusOr<wire::TaskReply> reply) {
                    if (!closed_) OnCallReply(actor, task, incarnation, std::move(reply));
                  });
}

void Core::OnCallReply(ActorId actor, TaskId task, uint64_t incarnation, absl::StatusOr<wire::TaskReply> reply) {
  ActorCallMachine& machine = ActorOf(actor).machine;
  ActorCallMachine::Effects effects;
  if (!reply.ok() && absl::IsUnavailable(reply.status())) {
    machine.Broken(incarnation, effects);
  } else if (!reply.ok() && absl::IsFailedPrecondition(reply.status())) {
    machine.Stale(incarnation, effects);
  } else if (machine.HasCall(task) && machine.incarnation() == incarnation) {
    wire::WorkerAddress callee = machine.worker();
    machine.Answered(task);
    if (auto it = tasks_.find(task); it != tasks_.end()) {
      std::shared_ptr<TaskRecord> record = it->second;
      if (!reply.ok()) {
        FailTask(task, FromStatus(reply.status()));
      } else {
        Complete(*record, callee, std::move(*reply));
        EndTask(task);
      }
    }
  }
  Apply(actor, std::move(effects));
}

absl::Status Core::KillActor(ActorId actor, bool no_restart, const std::string& reason) {
  wire::KillActor message;
  message.actor = actor;
  message.no_restart = no_restart;
  message.reason = reason;
  ARGOSY_RETURN_IF_ERROR(CallNode(message).status());
  if (!no_restart) return absl::OkStatus();
  // From here on this caller's calls fail, also those that the dying process might still answer.
  role_.Do([this, actor, reason] {
    ActorRecord& record = ActorOf(actor);
    record.held.clear();
    ActorCallMachine::Effects effects;
    record.machine.Refused(MakeError(ErrorInfo::kActorDied, fmt::format("actor {} is dead: {}", actor.Short(), reason)), effects);
    Apply(actor, std::move(effects));
  });
  return absl::OkStatus();
}

// ---- cancellation -----------------------------------------------------------------------------------------------------------

void Core::Cancel(const CellPtr& cell, CancelRequest request) {
  role_.Do([this, state = cell->shared_state(), request] {
    auto it = tasks_.find(state->task);
    if (it != tasks_.end() && !state->is_ready()) CancelRecord(it->second, request);
  });
}

void Core::CancelRecord(const std::shared_ptr<TaskRecord>& record, CancelRequest request) {
  record->cancelled = true;
  TaskId task = record->spec.task;
  ErrorInfo error = MakeError(ErrorInfo::kCancelled, fmt::format("task {} was cancelled", record->spec.name));
  wire::CancelTask message;
  message.task = task;
  message.children = request.children;
  if (!record->spec.actor.IsNil()) {
    ActorCallMachine& machine = ActorOf(record->spec.actor).machine;
    ActorCallMachine::Effects effects;
    if (machine.Cancel(task, effects)) FailTask(task, error);
    else if (machine.IsSent(task)) peers_->Notify(machine.worker(), message);
    return Apply(record->spec.actor, std::move(effects));
  }
  SubmitMachine::Effects effects;
  std::optional<LeaseId> lease = submit_.LeaseOf(task);
  submit_.Cancel(task, absl::Now(), effects);
  if (!lease) {
    FailTask(task, error);
  } else if (auto at = leases_.find(*lease); at != leases_.end()) {
    message.force = request.force;
    peers_->Notify(at->second.grant.worker, message);
  }
  Apply(std::move(effects));
}

}  // namespace argosy::worker
