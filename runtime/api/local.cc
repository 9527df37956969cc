#include "runtime/api/local.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/worker/stream.h"
#include "runtime/worker/value.h"

namespace argosy::internal {

namespace {

std::mutex local_mutex;
std::shared_ptr<LocalRuntime>& LocalSlot() {
  static auto* slot = new std::shared_ptr<LocalRuntime>();
  return *slot;
}

// What the calling thread runs.
thread_local TaskId current_task;
thread_local ActorId current_actor;

struct Entered {
  Entered(TaskId task, ActorId actor) : task(std::exchange(current_task, task)), actor(std::exchange(current_actor, actor)) {}
  ~Entered() {
    current_task = task;
    current_actor = actor;
  }
  TaskId task;
  ActorId actor;
};

}  // namespace

std::shared_ptr<LocalRuntime> Local() {
  std::lock_guard lock(local_mutex);
  return LocalSlot();
}
void SetLocal(std::shared_ptr<LocalRuntime> local) {
  std::lock_guard lock(local_mutex);
  LocalSlot() = std::move(local);
}

// A value, and the objects whose refs it holds.
struct LocalRuntime::Object {
  explicit Object(ObjectId id) : state(id, wire::WorkerAddress()) {}
  worker::ObjectState state;
  std::vector<CellPtr> contents;
};

struct LocalRuntime::Actor {
  std::string name, ns, class_name;
  std::recursive_mutex mutex;          // one call at a time; one may call another of its own actor
  worker::Executor executor = MakeExecutor();
  std::string dead;                    // why; empty: it lives
};

struct LocalRuntime::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  std::thread thread;
};

LocalRuntime::LocalRuntime(std::string ns) : ns_(ns.empty() ? "local" : std::move(ns)), tasks_(MakeExecutor()) {}

LocalRuntime::~LocalRuntime() {
  std::map<const worker::StreamState*, std::shared_ptr<Stream>> streams;
  {
    std::lock_guard lock(mutex_);
    streams = std::exchange(streams_, {});
  }
  for (auto& [state, stream] : streams) {
    {
      std::lock_guard lock(stream->mutex);
      stream->closed = true;
    }
    stream->changed.notify_all();
    if (stream->thread.joinable()) stream->thread.join();
  }
}

// ---- objects ----------------------------------------------------------------------------------------------------------------

std::shared_ptr<LocalRuntime::Object> LocalRuntime::NewObject(ObjectId id) {
  auto object = std::make_shared<Object>(id);
  std::lock_guard lock(mutex_);
  if (objects_.size() >= sweep_at_) {
    std::erase_if(objects_, [](const auto& item) { return item.second.expired(); });
    sweep_at_ = std::max<size_t>(1024, 2 * objects_.size());
  }
  objects_[id] = object;
  return object;
}

CellPtr LocalRuntime::HandleOf(const std::shared_ptr<Object>& object) {
  return std::make_shared<worker::Cell>(std::weak_ptr<worker::Core>(), std::shared_ptr<worker::ObjectState>(object, &object->state));
}

CellPtr LocalRuntime::MakeHandle(ObjectId id) {
  std::shared_ptr<Object> object;
  {
    std::lock_guard lock(mutex_);
    if (auto it = objects_.find(id); it != objects_.end()) object = it->second.lock();
  }
  if (!object) throw ObjectLostError(fmt::format("object {} is not in this process", id.Short()));
  return HandleOf(object);
}

void LocalRuntime::Fill(Object& object, worker::OutgoingValue value) {
  object.state.bytes = std::make_shared<const std::string>(worker::Pack(value.body, value.buffers));
  object.contents = std::move(value.refs);
  object.state.status.store(worker::ObjectState::kInline, std::memory_order_release);
}

worker::ValueBytes LocalRuntime::BytesOf(const worker::ObjectState& state) const {
  absl::StatusOr<worker::Unpacked> unpacked = worker::Unpack(*state.bytes, state.bytes);
  if (!unpacked.ok()) Throw(unpacked.status());
  return {unpacked->body, std::move(unpacked->buffers), state.bytes};
}

CellPtr LocalRuntime::Put(EncodedValue value) {
  std::shared_ptr<Object> object = NewObject(ObjectId::Random());
  Fill(*object, {std::move(value.body), std::move(value.buffers), std::move(value.refs)});
  return HandleOf(object);
}

ValueView LocalRuntime::Fetch(const CellPtr& cell) {
  const worker::ObjectState& state = cell->state();
  if (state.status == worker::ObjectState::kError) Throw(state.error);
  if (!state.is_ready()) throw GetTimeoutError("the end of a stream is not there before its last value was read");
  worker::ValueBytes bytes = BytesOf(state);
  return {bytes.body, std::move(bytes.buffers), std::move(bytes.owner)};
}

// ---- running ----------------------------------------------------------------------------------------------------------------

void LocalRuntime::Run(const worker::Executor& executor, worker::ExecutionInput input, int retries, const std::string& readable,
                       std::vector<OutgoingArgument> arguments, const std::vector<std::shared_ptr<Object>>& returns,
                       worker::ExecutionOutput* ended) {
  auto fail = [&](const wire::ErrorInfo& error) {
    for (const std::shared_ptr<Object>& object : returns) {
      object->state.error = error;
      object->state.status.store(worker::ObjectState::kError, std::memory_order_release);
    }
  };
  std::vector<CellPtr> held;   // the refs inside the arguments
  for (OutgoingArgument& argument : arguments) {
    if (argument.ref) {
      if (argument.ref->state().status == worker::ObjectState::kError) return fail(argument.ref->state().error);
      input.arguments.push_back(BytesOf(argument.ref->state()));
      continue;
    }
    auto packed = std::make_shared<const std::string>(worker::Pack(argument.value.body, argument.value.buffers));
    absl::StatusOr<worker::Unpacked> unpacked = worker::Unpack(*packed, packed);
    if (!unpacked.ok()) Throw(unpacked.status());
    input.arguments.push_back({unpacked->body, std::move(unpacked->buffers), packed});
    for (CellPtr& inside : argument.value.refs) held.push_back(std::move(inside));
  }
  worker::ExecutionOutput output;
  for (int tries = 0;; ++tries) {
    worker::ExecutionInput once = input;
    output = executor(once);
    if (!output.retry || (retries >= 0 && tries >= retries)) break;
  }
  if (output.error) {
    fail(*output.error);
  } else if (output.results.size() != returns.size() && !input.is_constructor) {
    fail(worker::MakeError(wire::ErrorInfo::kRuntime, fmt::format("{} made {} results instead of {}", readable, output.results.size(), returns.size())));
  } else if (!input.is_constructor) {
    for (size_t i = 0; i < returns.size(); ++i) Fill(*returns[i], std::move(output.results[i]));
  }
  if (ended != nullptr) *ended = std::move(output);
}

std::vector<CellPtr> LocalRuntime::Start(const worker::Executor& executor, const Submission& submission, worker::ExecutionInput input,
                                         int retries, std::vector<OutgoingArgument> arguments, worker::ExecutionOutput* ended) {
  TaskId task = TaskId::Random();
  std::vector<std::shared_ptr<Object>> returns;
  std::vector<CellPtr> handles;
  for (uint32_t i = 0; i < std::max<size_t>(submission.returns, 1); ++i) {
    returns.push_back(NewObject(ReturnId(task, i)));
    handles.push_back(HandleOf(returns.back()));
  }
  input.function = submission.function.name;
  input.split = submission.returns > 0;
  ActorId actor = input.is_call ? current_actor : ActorId();
  if (!submission.stream) {
    Entered entered(task, actor);
    Run(executor, std::move(input), retries, submission.function.readable, std::move(arguments), returns, ended);
    return handles;
  }
  auto stream = std::make_shared<Stream>();
  {
    std::lock_guard lock(mutex_);
    streams_[submission.stream.get()] = stream;
  }
  input.emit = [this, stream = stream.get(), state = submission.stream.get(), task](worker::OutgoingValue value) {
    std::shared_ptr<Object> item = NewObject(ReturnId(task, static_cast<uint32_t>(state->received.load() + 1)));
    Fill(*item, std::move(value));
    std::unique_lock lock(stream->mutex);   // guards the state's items too
    stream->changed.wait(lock, [&] { return stream->closed || state->received - state->consumed < state->ahead_max; });
    if (stream->closed) return absl::CancelledError("nobody reads the stream any more");
    state->items.push_back(HandleOf(item));
    ++state->received;
    stream->changed.notify_all();
    return absl::OkStatus();
  };
  stream->thread = std::thread([this, stream = stream.get(), executor, input = std::move(input), retries, task, actor,
                                readable = submission.function.readable, arguments = std::move(arguments), returns]() mutable {
    Entered entered(task, actor);
    Run(executor, std::move(input), retries, readable, std::move(arguments), returns, nullptr);
    std::lock_guard lock(stream->mutex);
    stream->changed.notify_all();
  });
  return handles;
}

std::vector<CellPtr> LocalRuntime::SubmitTask(const Submission& submission, const TaskOptions& options,
                                              std::vector<OutgoingArgument> arguments) {
  worker::ExecutionInput input;
  input.retry_exceptions = &options.retry_exceptions.names;
  // A generator outlives this call, and is not tried again: its values are with the reader.
  if (submission.stream) input.retry_exceptions = nullptr;
  return Start(tasks_, submission, std::move(input), options.max_retries, std::move(arguments), nullptr);
}

CellPtr LocalRuntime::NextOfStream(const StreamHandle& handle, Timeout timeout) {
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard lock(mutex_);
    if (auto it = streams_.find(handle.stream.get()); it != streams_.end()) stream = it->second;
  }
  if (!stream) throw RuntimeError("this Stream is of no task");
  worker::StreamState& state = *handle.stream;
  std::unique_lock lock(stream->mutex);
  auto there = [&] { return !state.items.empty() || handle.end->state().is_ready(); };
  if (timeout.IsInfinite()) stream->changed.wait(lock, there);
  else if (!stream->changed.wait_for(lock, absl::ToChronoMicroseconds(timeout.duration()), there)) {
    throw GetTimeoutError("the next value of the stream is not there in time");
  }
  if (state.items.empty()) {
    if (handle.end->state().status == worker::ObjectState::kError) Throw(handle.end->state().error);
    return nullptr;
  }
  CellPtr item = std::move(state.items.front());
  state.items.pop_front();
  ++state.consumed;
  stream->changed.notify_all();
  return item;
}

void LocalRuntime::CloseStream(const StreamHandle& handle) {
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard lock(mutex_);
    auto it = streams_.find(handle.stream.get());
    if (it == streams_.end()) return;
    stream = std::move(it->second);
    streams_.erase(it);
  }
  {
    std::lock_guard lock(stream->mutex);
    stream->closed = true;
  }
  stream->changed.notify_all();
  if (stream->thread.joinable()) stream->thread.join();
}

// ---- actors -----------------------------------------------------------------------------------------------------------------

ActorId LocalRuntime::CreateActor(const FunctionEntry& constructor, const std::string& class_name, const ActorOptions& options,
                                  std::vector<OutgoingArgument> arguments) {
  auto actor = std::make_shared<Actor>();
  actor->name = options.name;
  actor->ns = options.ns.empty() ? ns_ : options.ns;
  actor->class_name = class_name;
  ActorId id = ActorId::Random();
  {
    std::lock_guard lock(mutex_);
    for (const auto& [other_id, other] : actors_) {
      if (actor->name.empty() || other->name != actor->name || other->ns != actor->ns || !other->dead.empty()) continue;
      if (options.get_if_exists) return other_id;
      throw RuntimeError(fmt::format("an actor named \"{}\" is in namespace \"{}\" already", actor->name, actor->ns));
    }
    actors_[id] = actor;
  }
  worker::ExecutionInput input;
  input.is_constructor = true;
  input.function = constructor.name;
  worker::ExecutionOutput ended;
  Entered entered(TaskId::Random(), id);
  // An argument that failed is seen by this.
  std::vector<std::shared_ptr<Object>> result{NewObject(ObjectId::Random())};
  std::lock_guard lock(actor->mutex);
  Run(actor->executor, std::move(input), 0, constructor.readable, std::move(arguments), result, &ended);
  if (result.front()->state.status == worker::ObjectState::kError) {
    actor->dead = fmt::format("its constructor failed: {}", result.front()->state.error.message);
  }
  return id;
}

std::vector<CellPtr> LocalRuntime::SubmitCall(ActorId id, const Submission& submission, std::vector<OutgoingArgument> arguments) {
  std::shared_ptr<Actor> actor;
  {
    std::lock_guard lock(mutex_);
    auto it = actors_.find(id);
    if (it == actors_.end()) throw RuntimeError("the actor handle refers to nothing");
    actor = it->second;
  }
  std::lock_guard lock(actor->mutex);
  worker::ExecutionInput input;
  input.is_call = true;
  Entered entered(TaskId::Random(), id);
  if (!actor->dead.empty()) {
    std::vector<CellPtr> handles;
    for (size_t i = 0; i < std::max<size_t>(submission.returns, 1); ++i) {
      std::shared_ptr<Object> object = NewObject(ObjectId::Random());
      object->state.error = worker::MakeError(wire::ErrorInfo::kActorDied, fmt::format("actor {} is dead: {}", actor->class_name, actor->dead));
      object->state.status.store(worker::ObjectState::kError, std::memory_order_release);
      handles.push_back(HandleOf(object));
    }
    return handles;
  }
  worker::ExecutionOutput ended;
  std::vector<CellPtr> handles = Start(actor->executor, submission, std::move(input), 0, std::move(arguments), &ended);
  if (ended.exit_actor != worker::ExecutionOutput::kNo) actor->dead = "it ended itself";
  return handles;
}

ActorId LocalRuntime::FindActor(const std::string& name, const std::string& ns) {
  const std::string& wanted = ns.empty() ? ns_ : ns;
  std::lock_guard lock(mutex_);
  for (const auto& [id, actor] : actors_) {
    if (actor->name == name && actor->ns == wanted && actor->dead.empty()) return id;
  }
  throw NotFoundError(fmt::format("no actor is named \"{}\" in namespace \"{}\"", name, wanted));
}

void LocalRuntime::KillActor(ActorId id, const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (auto it = actors_.find(id); it != actors_.end() && it->second->dead.empty()) it->second->dead = reason;
}

// ---- what it says of itself -------------------------------------------------------------------------------------------------

RuntimeContext LocalRuntime::Context() const {
  RuntimeContext context;
  context.node_id = node_;
  context.node_name = "local";
  context.node_ip = "127.0.0.1";
  context.job_id = job_;
  context.worker_id = worker_;
  context.task_id = current_task;
  context.actor_id = current_actor;
  context.ns = ns_;
  context.head_address = "local";
  context.incarnation = current_actor.IsNil() ? 0 : 1;
  return context;
}

std::vector<Node> LocalRuntime::Nodes() const {
  Node node;
  node.id = node_;
  node.name = "local";
  node.ip = "127.0.0.1";
  node.resources = {{"CPU", std::max(1u, std::thread::hardware_concurrency())}};
  node.available = node.resources;
  node.is_head_node = true;
  return {node};
}

}  // namespace argosy::internal
