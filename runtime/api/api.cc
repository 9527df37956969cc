// The bridge under the templates, and what needs no templates.

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "argosy/argosy.h"
#include "runtime/api/local.h"
#include "runtime/api/process.h"
#include "runtime/base/status.h"
#include "runtime/worker/execution.h"

namespace argosy {
namespace internal {
namespace {

std::mutex core_mutex;
std::shared_ptr<worker::Core>& CoreSlot() {
  static auto* slot = new std::shared_ptr<worker::Core>();
  return *slot;
}

thread_local std::vector<CellPtr>* collecting = nullptr;

// Refs that lean on a value keep it, also when only one of many is kept: no more than this is kept for that.
constexpr size_t kLeantOnBytesMax = 4 << 20;

template <class T>
T OrThrow(absl::StatusOr<T> result) {
  if (!result.ok()) Throw(result.status());
  return std::move(*result);
}

std::vector<worker::OutgoingArgument> Outgoing(std::vector<OutgoingArgument> arguments) {
  std::vector<worker::OutgoingArgument> out;
  out.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    OutgoingArgument& argument = arguments[i];
    out.push_back({std::move(argument.ref), Outgoing(std::move(argument.value))});
  }
  return out;
}

std::map<std::string, std::string> CheckedEnvVars(const std::map<std::string, std::string>& env_vars) {
  for (const auto& [name, value] : env_vars) {
    if (name.empty() || name.find('=') != std::string::npos || name.find('\0') != std::string::npos) {
      throw RuntimeError(fmt::format("env_vars: \"{}\" cannot be a variable's name; it must have characters, and no '=' among them", name));
    }
    if (value.find('\0') != std::string::npos) throw RuntimeError(fmt::format("env_vars: the value of {} has a zero byte, which ends it", name));
    if (name.starts_with("ARGOSY_")) throw RuntimeError(fmt::format("env_vars: {} is Argosy's own; choose a name that does not begin with ARGOSY_", name));
  }
  return env_vars;
}

}  // namespace

worker::RuntimeEnv EnvironmentOf(worker::Core* core, const std::map<std::string, std::string>& env_vars, const std::string& working_dir,
                                 const std::vector<std::string>& library_path) {
  worker::RuntimeEnv env;
  env.env_vars = CheckedEnvVars(env_vars);
  for (const std::string& folder : library_path) {
    if (folder.empty() || folder.find(':') != std::string::npos || folder.find('\0') != std::string::npos) {
      throw RuntimeError(fmt::format("library_path: \"{}\" cannot be a folder of it; it must have characters, and no ':' among them", folder));
    }
    env.loader_path.push_back(folder);
  }
  if (working_dir.empty()) return env;
  if (working_dir.starts_with("gcs://")) {
    env.working_dir_uri = working_dir;
    return env;
  }
  if (working_dir.find("://") != std::string::npos) {
    throw RuntimeError(fmt::format("working_dir is \"{}\"; it must be a folder, or the gcs://NAME of an uploaded package", working_dir));
  }
  std::error_code error;
  std::string folder = std::filesystem::absolute(working_dir, error).string();
  absl::StatusOr<std::string> uri = (core == nullptr ? CurrentCore().get() : core)->PackageOf(folder);
  if (absl::IsAborted(uri.status())) Throw(uri.status());
  if (!uri.ok()) throw RuntimeEnvError(fmt::format("working_dir {}: {}", working_dir, Message(uri.status())));
  env.working_dir_uri = std::move(*uri);
  return env;
}

namespace {

wire::Demand DemandOf(const Resources& resources, const LabelSelector& labels, const Placement& strategy, const std::optional<GroupId>& group,
                      int bundle_index) {
  wire::Demand demand;
  for (const auto& [name, amount] : resources) {
    if (!(amount >= 0)) throw RuntimeError(fmt::format("resource {}: {} is not an amount; it must be 0 or more", name, amount));
    if (amount > 0) demand.resources[name] = amount;
  }
  demand.label_selector = labels;
  if (group) {
    demand.strategy = wire::BundleAffinity{*group, bundle_index};
  } else if (std::holds_alternative<Spread>(strategy)) {
    demand.strategy = wire::SpreadStrategy{};
  } else if (const OnNode* on = std::get_if<OnNode>(&strategy)) {
    demand.strategy = wire::NodeAffinity{on->node, on->soft};
  }
  return demand;
}

std::vector<CellPtr> Handles(worker::Returns returns) {
  return {std::make_move_iterator(returns.begin()), std::make_move_iterator(returns.end())};
}

// What a task and a call have in common.
template <class Request>
void Describe(const Submission& submission, const std::string& name, Request& request) {
  request.function = submission.function.name;
  request.readable = name.empty() ? submission.function.readable : SharedText::Interned(name);
  request.returns = static_cast<uint32_t>(std::max<size_t>(submission.returns, 1));
  request.split = submission.returns > 0;
  request.stream = submission.stream;
}

double Seconds(Timeout timeout) { return timeout.IsInfinite() ? 0 : std::max(0.001, absl::ToDoubleSeconds(timeout.duration())); }

}  // namespace

std::shared_ptr<worker::Core> CurrentCore() {
  std::lock_guard lock(core_mutex);
  if (!CoreSlot() && Local()) throw RuntimeError("local mode has no cluster: placement groups, channels and explanations need one");
  if (!CoreSlot()) throw RuntimeError("no cluster: call argosy::Connect first");
  return CoreSlot();
}
std::shared_ptr<worker::Core> CurrentCoreOrNull() {
  std::lock_guard lock(core_mutex);
  return CoreSlot();
}
void SetCurrentCore(std::shared_ptr<worker::Core> core) {
  std::lock_guard lock(core_mutex);
  CoreSlot() = std::move(core);
}

void Throw(const wire::ErrorInfo& error) {
  std::string text = error.where.empty() ? error.message : fmt::format("{}: {}", error.where, error.message);
  switch (error.kind) {
    case wire::ErrorInfo::kTask: throw TaskError(error.type, error.message, error.where);
    case wire::ErrorInfo::kActorDied: throw ActorDiedError(text);
    case wire::ErrorInfo::kObjectLost: throw ObjectLostError(text);
    case wire::ErrorInfo::kOwnerDied: throw OwnerDiedError(text);
    case wire::ErrorInfo::kOutOfMemory: throw OutOfMemoryError(text);
    case wire::ErrorInfo::kCancelled: throw CancelledError(text);
    case wire::ErrorInfo::kUnschedulable: throw UnschedulableError(text);
    case wire::ErrorInfo::kWorkerDied: throw WorkerDiedError(text);
    case wire::ErrorInfo::kRuntime: throw RuntimeError(text);
    case wire::ErrorInfo::kActorUnavailable: throw ActorUnavailableError(text);
    case wire::ErrorInfo::kPendingCallsLimit: throw PendingCallsLimitError(text);
    case wire::ErrorInfo::kRuntimeEnv: throw RuntimeEnvError(text);
    case wire::ErrorInfo::kNodeDied: throw NodeDiedError(text);
  }
  throw RuntimeError(text);
}

void Throw(const absl::Status& status) {
  std::string text = Message(status);
  switch (status.code()) {
    case absl::StatusCode::kNotFound: throw NotFoundError(text);
    case absl::StatusCode::kDeadlineExceeded: throw GetTimeoutError(text);
    case absl::StatusCode::kCancelled: throw CancelledError(text);
    case absl::StatusCode::kResourceExhausted: throw OutOfMemoryError(text);
    case absl::StatusCode::kOutOfRange: throw PendingCallsLimitError(text);
    case absl::StatusCode::kAborted: throw NodeDiedError(text);
    default: throw RuntimeError(text);
  }
}

absl::Time DeadlineOf(Timeout timeout) { return timeout.IsInfinite() ? absl::InfiniteFuture() : absl::Now() + timeout.duration(); }

// ---- refs -------------------------------------------------------------------------------------------------------------------

std::vector<CellPtr>* CollectRefs(std::vector<CellPtr>* into) { return std::exchange(collecting, into); }

void EncodeRef(Encoder& encoder, const CellPtr& cell) {
  if (!encoder.refs_allowed || collecting == nullptr) {
    encoder.error = "an ObjectRef can travel only inside an argument, a result or a Put value";
    return encoder.writer.Nil();
  }
  if (!cell) return encoder.writer.Nil();
  encoder.refs.push_back(cell->id());
  collecting->push_back(cell);
  encoder.Write(cell->reference());
}

CellPtr DecodeRef(Decoder& decoder) {
  if (decoder.reader.TryNil()) return nullptr;
  wire::Reference reference;
  decoder.Read(reference);
  if (!decoder.reader.ok()) return nullptr;
  if (decoder.ref_context == nullptr) {
    decoder.reader.Fail("an ObjectRef where none can be counted");
    return nullptr;
  }
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->MakeHandle(reference.object);
  auto* core = static_cast<worker::Core*>(decoder.ref_context);
  if (!decoder.keeps_refs) return core->MakeHandle(reference.object, reference.owner);
  // The refs of one value have few owners.
  thread_local std::shared_ptr<const wire::WorkerAddress> owner;
  if (!owner || *owner != reference.owner) owner = std::make_shared<const wire::WorkerAddress>(reference.owner);
  return core->MakeLeaningHandle(reference.object, owner, decoder.keeps_refs);
}

void* RefContext() {
  if (std::shared_ptr<LocalRuntime> local = Local()) return local.get();
  return CurrentCore().get();
}

ObjectId IdOf(const CellPtr& cell) { return cell ? cell->id() : ObjectId(); }

bool IsReady(const CellPtr& cell) { return cell && cell->state().is_ready(); }

CellPtr PutValue(EncodedValue value) {
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->Put(std::move(value));
  return OrThrow(CurrentCore()->Put(Outgoing(std::move(value))));
}

ValueView FetchValue(const CellPtr& cell, Timeout timeout) {
  if (!cell) throw RuntimeError("this ObjectRef refers to nothing");
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->Fetch(cell);
  worker::Fetched fetched = CurrentCore()->Fetch(cell, DeadlineOf(timeout));
  if (fetched.kind == worker::Fetched::kTimeout) {
    throw GetTimeoutError(fmt::format("object {} is not there after {}", cell->state().id.Short(),
                                      ToStd(absl::FormatDuration(timeout.duration()))));
  }
  if (fetched.kind == worker::Fetched::kError) Throw(fetched.error);
  std::shared_ptr<const void> keeps_refs = fetched.value.body.size() <= kLeantOnBytesMax ? cell : nullptr;
  return {fetched.value.body, std::move(fetched.value.buffers), std::move(fetched.value.owner), std::move(keeps_refs)};
}

std::vector<bool> WaitForCells(const std::vector<const CellPtr*>& cells, size_t count, Timeout timeout) {
  for (const CellPtr* cell : cells) {
    if (!*cell) throw RuntimeError("an ObjectRef given to Wait refers to nothing");
  }
  if (count > cells.size()) throw RuntimeError(fmt::format("Wait for {} of {} refs", count, cells.size()));
  if (Local()) {
    std::vector<bool> there(cells.size(), false);
    std::fill_n(there.begin(), count, true);
    return there;
  }
  return OrThrow(CurrentCore()->Wait(cells, count, DeadlineOf(timeout)));
}

void CancelCell(const CellPtr& cell, bool force, bool children) {
  if (cell && !Local()) CurrentCore()->Cancel(cell, {.force = force, .children = children});
}

// ---- coroutines -------------------------------------------------------------------------------------------------------------

bool CanSuspend() { return !Local() && CurrentCore()->can_suspend(); }
void ResumeWhenReady(const std::vector<CellPtr>& cells, std::function<void()> go_on) {
  CurrentCore()->ResumeWhenReady(cells, std::move(go_on));
}
void ResumeAfter(Timeout time, std::function<void()> go_on) { CurrentCore()->ResumeAfter(time.duration(), std::move(go_on)); }
bool IsCancelledHere() { return !Local() && CurrentCore()->current_cancelled(); }
void SleepHere(Timeout time) {
  if (Local()) absl::SleepFor(time.duration());
  else CurrentCore()->Sleep(time.duration());
}
void ThrowCancelled() { throw CancelledError("the call was cancelled while it waited"); }
const CellPtr& Checked(const CellPtr& cell) {
  if (!cell) throw RuntimeError("this ObjectRef refers to nothing");
  return cell;
}

// ---- tasks and actors -------------------------------------------------------------------------------------------------------

std::vector<CellPtr> SubmitTask(const Submission& submission, const TaskOptions& options, std::vector<OutgoingArgument> arguments) {
  if (options.max_retries < -1) throw RuntimeError(fmt::format("max_retries is {}; it must be 0 or more, or -1: without bound", options.max_retries));
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->SubmitTask(submission, options, std::move(arguments));
  worker::TaskRequest request;
  Describe(submission, options.name, request);
  request.demand = DemandOf(options.resources, options.label_selector, options.strategy, options.placement_group, options.bundle_index);
  request.demand.priority = options.priority;
  request.max_retries = options.max_retries;
  request.deadline = options.deadline.duration();
  request.retry_exceptions = options.retry_exceptions.names;
  request.env = EnvironmentOf(nullptr, options.env_vars, options.working_dir, options.library_path);
  return Handles(OrThrow(CurrentCore()->SubmitTask(request, Outgoing(std::move(arguments)))));
}

std::vector<CellPtr> SubmitCall(ActorId actor, const Submission& submission, const CallOptions& options,
                                std::vector<OutgoingArgument> arguments) {
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->SubmitCall(actor, submission, std::move(arguments));
  worker::CallRequest request;
  Describe(submission, options.name, request);
  request.concurrency_group = options.concurrency_group;
  return Handles(OrThrow(CurrentCore()->SubmitCall(actor, request, Outgoing(std::move(arguments)))));
}

std::shared_ptr<worker::StreamState> NewStream(int ahead_max) {
  if (ahead_max < 1 || ahead_max > static_cast<int>(worker::kStreamAheadMax)) {
    throw RuntimeError(fmt::format("stream_ahead_max is {}; it must be from 1 to {}", ahead_max, worker::kStreamAheadMax));
  }
  return std::make_shared<worker::StreamState>(static_cast<uint32_t>(ahead_max));
}

CellPtr NextOfStream(const StreamHandle& handle, Timeout timeout) {
  if (!handle.end) throw RuntimeError("this Stream is of no task");
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->NextOfStream(handle, timeout);
  worker::StreamNext next = CurrentCore()->Next(handle.stream, handle.end, DeadlineOf(timeout));
  if (next.kind == worker::StreamNext::kError) Throw(next.error);
  if (next.kind == worker::StreamNext::kTimeout) {
    throw GetTimeoutError(fmt::format("the next value of the stream is not there after {}", ToStd(absl::FormatDuration(timeout.duration()))));
  }
  return std::move(next.item);
}

void CloseStream(const StreamHandle& handle) {
  if (!handle.end) return;
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->CloseStream(handle);
  if (std::shared_ptr<worker::Core> core = CurrentCoreOrNull()) core->CloseStream(handle.stream, handle.end);
}

ActorId CreateActor(const FunctionEntry& constructor, const std::string& class_name, const ActorOptions& options,
                    std::vector<OutgoingArgument> arguments) {
  if (options.detached && options.name.empty()) throw RuntimeError("a detached actor needs a name: nobody could find it");
  if (options.max_concurrency < 1 || options.max_concurrency > worker::kActorConcurrencyMax) {
    throw RuntimeError(fmt::format("max_concurrency is {}; it must be from 1 to {}", options.max_concurrency, worker::kActorConcurrencyMax));
  }
  if (options.max_restarts < -1) throw RuntimeError(fmt::format("max_restarts is {}; it must be 0 or more, or -1: without bound", options.max_restarts));
  if (options.max_task_retries < -1) {
    throw RuntimeError(fmt::format("max_task_retries is {}; it must be 0 or more, or -1: without bound", options.max_task_retries));
  }
  worker::ActorRequest request;
  wire::ActorSpec& spec = request.spec;
  spec.class_name = class_name;
  spec.creator = constructor.name;
  spec.name = options.name;
  spec.ns = options.ns;
  spec.get_if_exists = options.get_if_exists;
  spec.detached = options.detached;
  // Without given resources an actor is placed as if it took a CPU, so that actors spread, but holds none while it runs.
  Resources placing = options.resources.empty() ? Resources{{"CPU", 1}} : options.resources;
  spec.placement = DemandOf(placing, options.label_selector, options.strategy, options.placement_group, options.bundle_index);
  spec.placement.priority = options.priority;
  request.env = EnvironmentOf(nullptr, options.env_vars, Local() ? "" : options.working_dir, options.library_path);   // local mode has none
  if (!options.resources.empty()) spec.running_resources = spec.placement.resources;
  spec.max_restarts = options.max_restarts;
  spec.max_task_retries = options.max_task_retries;
  spec.max_concurrency = options.max_concurrency;
  spec.start_timeout_seconds = Seconds(options.deadline);
  if (options.max_pending_calls < 1) throw RuntimeError(fmt::format("max_pending_calls is {}; it must be 1 or more", options.max_pending_calls));
  spec.max_pending_calls = options.max_pending_calls;
  spec.fail_when_full = options.fail_when_full;
  int threads = options.max_concurrency;
  for (const ConcurrencyGroup& group : options.concurrency_groups) {
    if (group.name.empty()) throw RuntimeError("a concurrency group needs a name");
    for (const wire::ConcurrencyGroup& other : spec.concurrency_groups) {
      if (other.name == group.name) throw RuntimeError(fmt::format("two concurrency groups are named \"{}\"", group.name));
    }
    if (group.max_concurrency < 1 || group.max_concurrency > worker::kActorConcurrencyMax) {
      throw RuntimeError(fmt::format("max_concurrency of concurrency group \"{}\" is {}; it must be from 1 to {}", group.name,
                                     group.max_concurrency, worker::kActorConcurrencyMax));
    }
    threads += group.max_concurrency;
    spec.concurrency_groups.push_back({group.name, group.max_concurrency, group.methods});
  }
  if (threads > worker::kActorConcurrencyMax) {
    throw RuntimeError(fmt::format("max_concurrency of the actor and its concurrency groups add up to {} threads; {} are possible", threads,
                                   worker::kActorConcurrencyMax));
  }
  request.acknowledged = !options.name.empty() || options.detached;
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->CreateActor(constructor, class_name, options, std::move(arguments));
  return OrThrow(CurrentCore()->CreateActor(std::move(request), Outgoing(std::move(arguments))));
}

namespace {
void EndAfterQueue() { throw ExitActor{.after_queue = true}; }
}  // namespace

void TerminateActor(ActorId actor) {
  static_cast<void>(Registered<EndAfterQueue>::registered);
  SubmitCall(actor, {Registered<EndAfterQueue>::Entry()}, {.name = "Terminate"}, {});
}

ActorId FindActor(const std::string& name, const std::string& ns) {
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->FindActor(name, ns);
  std::shared_ptr<worker::Core> core = CurrentCore();
  wire::ResolveActor message;
  message.name = name;
  message.ns = ns.empty() ? core->ns() : ns;
  absl::StatusOr<wire::ActorInfo> info = core->CallNode(message);
  if (!info.ok()) {
    if (absl::IsNotFound(info.status())) throw NotFoundError(fmt::format("no actor is named \"{}\" in namespace \"{}\"", name, message.ns));
    Throw(info.status());
  }
  if (info->state == wire::ActorInfo::kDead) throw NotFoundError(fmt::format("the actor named \"{}\" is dead: {}", name, info->death_reason));
  return info->actor;
}

void KillActor(ActorId actor, bool no_restart) {
  if (std::shared_ptr<LocalRuntime> local = Local()) return local->KillActor(actor, "killed by argosy::Kill");
  absl::Status status = CurrentCore()->KillActor(actor, no_restart, "killed by argosy::Kill");
  if (!status.ok()) Throw(status);
}

}  // namespace internal

using internal::CurrentCore;

void Exit() {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) {
    if (local->Context().actor_id.IsNil()) throw RuntimeError("argosy::Exit is for actors: this process is none");
    throw internal::ExitActor();
  }
  if (CurrentCore()->actor().IsNil()) throw RuntimeError("argosy::Exit is for actors: this process is none");
  throw internal::ExitActor();
}

// ---- groups -----------------------------------------------------------------------------------------------------------------

namespace internal {

struct GroupRequest : worker::Core::NodeCall<wire::GroupInfo> {
  void ThrowIfRefused() const {
    if (done.load(std::memory_order_acquire) && !reply.ok()) Throw(reply.status());
  }
};

}  // namespace internal

PlacementGroup CreatePlacementGroup(const PlacementGroupOptions& options) {
  if (options.bundles.empty()) throw RuntimeError("a placement group needs at least one bundle");
  wire::CreateGroup message;
  message.group = GroupId::Random();
  message.name = options.name;
  message.strategy = static_cast<wire::GroupStrategy>(options.strategy);
  for (const Bundle& bundle : options.bundles) message.bundles.push_back({bundle.resources, bundle.label_selector});
  message.detached = options.detached;
  PlacementGroup group(message.group);
  auto request = std::make_shared<internal::GroupRequest>();
  CurrentCore()->StartNodeCall(std::move(message), request);
  group.request_ = std::move(request);
  // Others find these without their creator.
  if (options.detached || !options.name.empty()) group.id();
  return group;
}

GroupId PlacementGroup::id() const {
  if (request_) {
    CurrentCore()->AwaitNodeCall(*request_);
    request_->ThrowIfRefused();
  }
  return id_;
}

void Remove(const PlacementGroup& group) {
  wire::RemoveGroup message;
  message.group = group.id_;
  internal::OrThrow(CurrentCore()->CallNode(message));
}

namespace {

// Asks in turns that the head can hold, until the group is created or the time is over.
wire::GroupInfo WaitGroup(GroupId group, const internal::GroupRequest* request, absl::Time deadline) {
  for (;;) {
    wire::WaitGroup message;
    message.group = group;
    message.wait_seconds = std::clamp(absl::ToDoubleSeconds(deadline - absl::Now()), 0.0, 10.0);
    absl::StatusOr<wire::GroupInfo> answer = CurrentCore()->CallNode(message);
    if (!answer.ok() && request != nullptr) request->ThrowIfRefused();   // the daemon has forgotten it, and why
    wire::GroupInfo info = internal::OrThrow(std::move(answer));
    if (info.state == wire::GroupInfo::kRemoved) throw RuntimeError("the placement group was removed");
    if (info.state == wire::GroupInfo::kCreated || absl::Now() >= deadline) return info;
  }
}

}  // namespace

bool PlacementGroup::Wait(Timeout timeout) const {
  return WaitGroup(id_, request_.get(), internal::DeadlineOf(timeout)).state == wire::GroupInfo::kCreated;
}

void PlacementGroup::Ready(Timeout timeout) const {
  wire::GroupInfo info = WaitGroup(id_, request_.get(), internal::DeadlineOf(timeout));
  if (info.state != wire::GroupInfo::kCreated) throw UnschedulableError(fmt::format("the placement group is pending: {}", info.pending_reason));
}

std::vector<NodeId> PlacementGroup::BundleNodes() const { return WaitGroup(id_, request_.get(), absl::InfinitePast()).bundle_nodes; }
std::string PlacementGroup::PendingReason() const { return WaitGroup(id_, request_.get(), absl::InfinitePast()).pending_reason; }

// ---- context and cluster ----------------------------------------------------------------------------------------------------

bool RuntimeContext::IsCancelled() const { return internal::IsCancelledHere(); }

RuntimeContext GetRuntimeContext() {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) return local->Context();
  std::shared_ptr<worker::Core> core = CurrentCore();
  const wire::WorkerRegistered& node = core->node();
  RuntimeContext context;
  context.node_id = node.node;
  context.node_name = node.node_name;
  context.node_ip = node.node_ip;
  context.job_id = node.job;
  context.worker_id = core->address().worker;
  context.task_id = core->current_task();
  context.actor_id = core->actor();
  context.ns = node.ns;
  context.session_dir = node.session_dir;
  context.head_address = node.head_address;
  context.gpu_ids = core->gpu_ids();
  context.incarnation = core->incarnation();
  context.trace_parent = core->current_trace();
  return context;
}

void SetTraceParent(const std::string& traceparent) {
  auto digits = [&](size_t begin, size_t size) {
    return std::all_of(traceparent.begin() + static_cast<std::ptrdiff_t>(begin), traceparent.begin() + static_cast<std::ptrdiff_t>(begin + size),
                       [](unsigned char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  };
  bool valid = traceparent.size() == 55 && traceparent.starts_with("00-") && traceparent[35] == '-' && traceparent[52] == '-' && digits(3, 32) &&
               digits(36, 16) && digits(53, 2);
  if (!traceparent.empty() && !valid) {
    throw std::invalid_argument(fmt::format("traceparent \"{}\": want 00-<32 digits>-<16 digits>-<2 digits>, lower-case hexadecimal", traceparent));
  }
  worker::Core::SetTrace(traceparent);
}

std::vector<Node> Nodes() {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) return local->Nodes();
  std::vector<Node> nodes;
  for (wire::NodeInfo& info : internal::OrThrow(CurrentCore()->CallNode(wire::ListNodes())).nodes) {
    Node node;
    node.id = info.node;
    node.name = std::move(info.name);
    node.ip = std::move(info.ip);
    node.resources = std::move(info.resources_total);
    node.available = std::move(info.resources_available);
    node.labels = std::move(info.labels);
    node.alive = info.alive;
    node.is_head_node = info.is_head_node;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

PlacementExplanation Explain(const Resources& resources, const LabelSelector& label_selector) {
  wire::Explain message;
  message.demand = internal::DemandOf(resources, label_selector, {}, std::nullopt, -1);
  wire::ExplainReply reply = internal::OrThrow(CurrentCore()->CallNode(message));
  return {reply.placeable, std::move(reply.text)};
}

namespace kv {

bool Put(const std::string& key, const std::string& value, PutOptions options) {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) {
    std::lock_guard lock(local->keys_mutex());
    auto [it, is_new] = local->keys().try_emplace(key, value);
    if (!is_new && options.overwrite) it->second = value;
    return is_new;
  }
  std::shared_ptr<worker::Core> core = CurrentCore();
  wire::KvPut message;
  message.ns = core->ns();
  message.key = key;
  message.value = value;
  message.overwrite = options.overwrite;
  return internal::OrThrow(core->CallNode(message)).added;
}

std::optional<std::string> Get(const std::string& key) {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) {
    std::lock_guard lock(local->keys_mutex());
    auto it = local->keys().find(key);
    return it == local->keys().end() ? std::nullopt : std::optional(it->second);
  }
  std::shared_ptr<worker::Core> core = CurrentCore();
  wire::KvGet message;
  message.ns = core->ns();
  message.key = key;
  return internal::OrThrow(core->CallNode(message)).value;
}

bool Delete(const std::string& key) {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) {
    std::lock_guard lock(local->keys_mutex());
    return local->keys().erase(key) > 0;
  }
  std::shared_ptr<worker::Core> core = CurrentCore();
  wire::KvDelete message;
  message.ns = core->ns();
  message.key = key;
  return internal::OrThrow(core->CallNode(message)).deleted;
}

std::vector<std::string> List(const std::string& prefix) {
  if (std::shared_ptr<internal::LocalRuntime> local = internal::Local()) {
    std::lock_guard lock(local->keys_mutex());
    std::vector<std::string> keys;
    for (const auto& [key, value] : local->keys()) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    return keys;
  }
  std::shared_ptr<worker::Core> core = CurrentCore();
  wire::KvList message;
  message.ns = core->ns();
  message.prefix = prefix;
  return internal::OrThrow(core->CallNode(message)).keys;
}

}  // namespace kv
}  // namespace argosy
