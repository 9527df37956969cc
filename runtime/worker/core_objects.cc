// Objects: handles, owners and borrowers, values in the heap and in the store.

#include <algorithm>
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

constexpr absl::Duration kOwnerAnswersWithin = absl::Milliseconds(100);

}  // namespace

std::shared_ptr<ObjectState> Core::StateOf(ObjectId object, const wire::WorkerAddress& owner) {
  std::lock_guard lock(states_mutex_);
  std::shared_ptr<ObjectState>& state = states_[object];
  if (!state) state = std::make_shared<ObjectState>(object, owner);
  return state;
}

std::shared_ptr<ObjectState> Core::FindState(ObjectId object) {
  std::lock_guard lock(states_mutex_);
  auto it = states_.find(object);
  return it == states_.end() ? nullptr : it->second;
}

CellPtr Core::NewUncounted(ObjectId object, const wire::WorkerAddress& owner) {
  return std::make_shared<Cell>(weak_from_this(), StateOf(object, owner));
}

void Core::Adopt(const std::shared_ptr<ObjectState>& state) {
  references_.AddLocal(state->id, state->owner);
  // The last handle may have gone between the look-up and now.
  std::lock_guard lock(states_mutex_);
  states_[state->id] = state;
}

CellPtr Core::MakeHandle(ObjectId object, const wire::WorkerAddress& owner) {
  CellPtr cell = NewUncounted(object, owner);
  AdoptLater(cell->shared_state());
  return cell;
}

CellPtr Core::MakeLeaningHandle(ObjectId object, std::shared_ptr<const wire::WorkerAddress> owner, std::shared_ptr<const void> leans_on) {
  return std::make_shared<Cell>(weak_from_this(), object, std::move(owner), std::move(leans_on));
}

void Core::AdoptLater(std::shared_ptr<ObjectState> state, std::shared_ptr<const void> keep_until_then) {
  // Whoever passes the handle on queues what needs the count after this.
  role_.DoLater([this, state = std::move(state), keep_until_then = std::move(keep_until_then)] { Adopt(state); });
}

CellPtr Core::NewOwned(ObjectId object) { return MakeHandle(object, address_); }

void Core::DropHandle(ObjectId object) {
  if (closed_) return;
  // Handles go in crowds.
  role_.DoLater([this, object] {
    if (closed_) return;
    ReferenceMachine::Effects effects;
    references_.DropLocal(object, effects);
    Apply(std::move(effects));
  });
}

void Core::Apply(ReferenceMachine::Effects effects) {
  if (!peers_) return;
  // Grows: with an object goes its task's lineage, and with that the tasks' of its arguments.
  for (size_t i = 0; i < effects.freed.size(); ++i) {
    ObjectId object = effects.freed[i];
    std::shared_ptr<ObjectState> state = FindState(object);
    if (!state) continue;
    if (state->status == ObjectState::kStored) DeleteStored(object, state->locations);
    LineageTable::Effects gone;
    lineage_.ResultGone(state->task, gone);
    Apply(gone, effects);
    std::lock_guard lock(states_mutex_);
    states_.erase(object);
  }
  for (ObjectId object : effects.released) {
    std::shared_ptr<ObjectState> state = FindState(object);
    if (!state || state->status != ObjectState::kStored || !references_.LineageOnly(object)) continue;
    DeleteStored(object, state->locations);
    Unready(*state);
  }
  for (ObjectId object : effects.dropped) {
    std::lock_guard lock(states_mutex_);
    states_.erase(object);
  }
  for (const ReferenceMachine::Release& release : effects.releases) {
    wire::ReleaseBorrow message;
    message.object = release.reference.object;
    message.borrower = options_.worker;
    for (int i = 0; i < release.count; ++i) peers_->Notify(release.reference.owner, message);
  }
  for (const ReferenceMachine::Register& registration : effects.registers) {
    wire::AddBorrower message;
    message.object = registration.reference.object;
    message.borrower = registration.borrower;
    peers_->Request(registration.reference.owner, message, [this, object = message.object](absl::StatusOr<wire::Empty>) {
      // Also when the owner is gone: nothing is left to protect then.
      ReferenceMachine::Effects more;
      references_.Unpin(object, more);
      Apply(std::move(more));
    });
  }
}

void Core::DeleteStored(ObjectId object, std::vector<wire::ObjectLocation> locations) {
  wire::DeleteObjects message;
  message.objects = {object};
  message.locations = std::move(locations);
  NodeNotify(message);
}

void Core::WhenReady(const std::shared_ptr<ObjectState>& state, std::function<void()> function) {
  if (state->is_ready()) return function();
  state->waiters.push_back(std::move(function));
  StartFetch(state);
}

// Asks the owner for a borrowed object until it is there.
void Core::StartFetch(const std::shared_ptr<ObjectState>& state) {
  if (state->is_ready() || state->fetching || state->owner.worker == options_.worker || closed_) return;
  state->fetching = true;
  wire::GetOwnedObject message;
  message.object = state->id;
  message.wait_seconds = 30;
  message.unreadable = state->unreadable;
  message.missing = state->missing;
  peers_->Request(state->owner, message, [this, state](absl::StatusOr<wire::OwnedObject> reply) {
    state->fetching = false;
    if (state->is_ready() || closed_) return;
    if (!reply.ok()) {
      state->fetching = true;
      return AskFate(state->owner, [this, state](const wire::WorkerFateReply& fate) {
        state->fetching = false;
        if (node_connection_ == nullptr) return SetError(*state, MakeError(ErrorInfo::kNodeDied, kNodeGone));
        if (fate.dead) {
          return SetError(*state, MakeError(ErrorInfo::kOwnerDied, fmt::format("the owner of object {}, worker {}, died: {}",
                                                                               state->id.Short(), state->owner.worker.Short(), fate.reason)));
        }
        StartFetch(state);
      });
    }
    state->unreadable.clear();
    switch (reply->state) {
      case wire::OwnedObject::kPending: return StartFetch(state);
      case wire::OwnedObject::kReady:
        if (reply->value) {
          return SetInline(*state, std::make_shared<const std::string>(std::move(reply->value->bytes)),
                           std::move(reply->value->references), true);
        }
        return SetStored(*state, std::move(reply->locations), std::move(reply->references), true);
      case wire::OwnedObject::kError:
        return SetError(*state, reply->error ? *reply->error : MakeError(ErrorInfo::kRuntime, "the owner sent no error"));
      case wire::OwnedObject::kFreed:
        return SetError(*state, MakeError(ErrorInfo::kObjectLost,
                                          fmt::format("object {} was freed by its owner", state->id.Short())));
    }
  });
}

void Core::SetInline(ObjectState& state, std::shared_ptr<const std::string> bytes, std::vector<Reference> references, bool registered) {
  if (state.is_ready()) return;
  references_.SetContents(state.id, references, registered);
  state.bytes = std::move(bytes);
  state.references = std::move(references);
  BecomeReady(state, ObjectState::kInline);
}

void Core::SetStored(ObjectState& state, std::vector<wire::ObjectLocation> locations, std::vector<Reference> references, bool registered) {
  const bool is_owner = state.owner.worker == options_.worker;
  if (state.is_ready()) {
    // Its task ran again for the sake of another result.
    if (state.status != ObjectState::kStored || !is_owner) return;
    references_.SetContents(state.id, references, registered);
    std::lock_guard lock(state.pin_mutex);
    for (wire::ObjectLocation& location : locations) {
      bool known = std::any_of(state.locations.begin(), state.locations.end(),
                               [&](const wire::ObjectLocation& other) { return other.node == location.node; });
      if (!known) state.locations.push_back(std::move(location));
    }
    return;
  }
  references_.SetContents(state.id, references, registered);
  {
    std::lock_guard lock(state.pin_mutex);
    state.locations = std::move(locations);
  }
  state.references = std::move(references);
  BecomeReady(state, ObjectState::kStored);
  if (!is_owner) return;
  // Whoever asked for it may have gone while the task still ran.
  if (!references_.Knows(state.id)) {
    DeleteStored(state.id, state.locations);
  } else if (references_.LineageOnly(state.id)) {
    ReferenceMachine::Effects effects;
    effects.released.push_back(state.id);
    Apply(std::move(effects));
  }
}

void Core::SetError(ObjectState& state, ErrorInfo error) {
  if (state.is_ready()) return;
  state.error = std::move(error);
  BecomeReady(state, ObjectState::kError);
}

void Core::BecomeReady(ObjectState& state, int status) {
  state.status.store(status, std::memory_order_release);
  std::vector<std::function<void()>> waiters = std::move(state.waiters);
  state.waiters.clear();
  for (std::function<void()>& waiter : waiters) waiter();
}

// ---- the owner's side -------------------------------------------------------------------------------------------------------

void Core::OnGetOwned(wire::Call call) {
  absl::StatusOr<wire::GetOwnedObject> message = call.As<wire::GetOwnedObject>();
  if (!message.ok()) return call.Fail(message.status());
  std::shared_ptr<ObjectState> state = FindState(message->object);
  if (!state || !references_.Owns(message->object) || references_.LineageOnly(message->object)) {
    wire::OwnedObject reply;
    reply.state = wire::OwnedObject::kFreed;
    return call.Answer(reply);
  }
  if (!message->unreadable.empty() && state->status == ObjectState::kStored) {
    auto shared = std::make_shared<wire::Call>(std::move(call));
    double wait_seconds = message->wait_seconds;
    return Unreadable(state, message->unreadable, message->missing, [this, state, shared, wait_seconds] {
      AnswerWhenReady(std::move(*shared), state, wait_seconds);
    });
  }
  AnswerWhenReady(std::move(call), state, message->wait_seconds);
}

void Core::AnswerWhenReady(wire::Call call, const std::shared_ptr<ObjectState>& state, double wait_seconds) {
  if (state->is_ready()) return AnswerOwned(call, *state);
  // Answered by whatever comes first: the value, or the time the asker wants to wait.
  auto waiting = std::make_shared<std::optional<wire::Call>>(std::move(call));
  state->waiters.push_back([this, waiting, state] {
    if (waiting->has_value()) AnswerOwned(**waiting, *state);
    waiting->reset();
  });
  After(absl::Seconds(std::clamp(wait_seconds, 0.0, 60.0)), [waiting] {
    if (waiting->has_value()) (*waiting)->Answer(wire::OwnedObject());
    waiting->reset();
  });
}

void Core::AnswerOwned(wire::Call& call, const ObjectState& state) {
  wire::OwnedObject reply;
  if (state.status == ObjectState::kError) {
    reply.state = wire::OwnedObject::kError;
    reply.error = state.error;
    return call.Answer(reply);
  }
  reply.state = wire::OwnedObject::kReady;
  if (state.status == ObjectState::kInline) {
    reply.value = wire::InlineValue{*state.bytes, state.references};
  } else {
    reply.locations = state.locations;
    reply.references = state.references;
  }
  std::shared_ptr<wire::Connection> connection = call.connection();
  if (!connection) return;
  if (!state.references.empty()) {
    wire::WorkerAddress asker;
    if (std::optional<WorkerId> id = WorkerId::FromBytes(connection->peer().id)) asker.worker = *id;
    if (auto it = nodes_of_workers_.find(asker.worker); it != nodes_of_workers_.end()) asker.node = it->second;
    ReferenceMachine::Effects effects;
    references_.PassTo(asker, state.references, effects);
    Apply(std::move(effects));
  }
  call.Answer(reply);
}

// ---- values -----------------------------------------------------------------------------------------------------------------

absl::StatusOr<wire::ObjectLocation> Core::Store(ObjectId object, const OutgoingValue& value, size_t size,
                                                 const wire::WorkerAddress& owner) {
  {
    std::lock_guard lock(arena_mutex_);
    if (!arena_) {
      absl::StatusOr<std::unique_ptr<store::ArenaMapping>> mapping = store::ArenaMapping::Connect(node_.store_door);
      if (!mapping.ok()) return node_gone_.load() ? absl::AbortedError(kNodeGone) : mapping.status();
      arena_ = std::move(*mapping);
    }
  }
  wire::CreateObject create;
  create.object = object;
  create.size = size;
  create.owner = owner;
  ARGOSY_ASSIGN_OR_RETURN(wire::ObjectPlace place, CallNode(create));
  absl::StatusOr<std::span<std::byte>> space = arena_->WritableSpan(place.offset, place.size);
  if (!space.ok() || space->size() != size) {
    wire::AbortObject abort;
    abort.object = object;
    role_.Do([this, abort] { NodeNotify(abort); });
    return space.ok() ? Internal("the store made {} bytes instead of {}", space->size(), size) : space.status();
  }
  PackInto(*space, value.body, value.buffers, [this](std::byte* to, const std::byte* from, size_t n) { arena_->Write(to, from, n); });
  wire::SealObject seal;
  seal.object = object;
  ARGOSY_RETURN_IF_ERROR(CallNode(seal).status());
  wire::ObjectLocation location;
  location.node = node_.node;
  location.wire_address = node_.wire_address;
  location.size = size;
  return location;
}

absl::StatusOr<CellPtr> Core::Put(OutgoingValue value) {
  ObjectId object = ObjectId::Random();
  CellPtr cell = NewOwned(object);
  std::vector<Reference> references;
  for (const CellPtr& ref : value.refs) references.push_back(ref->reference());
  size_t size = PackedSize(value.body, value.buffers);
  // The refs inside are held by `value.refs` until the loop has counted them as contents.
  if (size <= kInlineResultMax) {
    auto bytes = std::make_shared<const std::string>(Pack(value.body, value.buffers));
    role_.Do([this, state = cell->shared_state(), bytes, references, refs = std::move(value.refs)] {
      SetInline(*state, bytes, references, false);
    });
    // The status must be seen by the caller's next Get even when another thread leads: it waits for it there.
    return cell;
  }
  ARGOSY_ASSIGN_OR_RETURN(wire::ObjectLocation location, Store(object, value, size, address_));
  role_.Do([this, state = cell->shared_state(), location, references, refs = std::move(value.refs)] {
    SetStored(*state, {location}, references, false);
  });
  return cell;
}

absl::StatusOr<std::shared_ptr<const void>> Core::PinStored(ObjectState& state, absl::Time deadline, std::string_view* bytes,
                                                            std::vector<wire::ObjectLocation>* tried) {
  struct Pin { std::string_view bytes; std::shared_ptr<const void> release; };
  {
    std::lock_guard lock(state.pin_mutex);
    if (std::shared_ptr<const void> pin = state.pin.lock()) {
      *bytes = static_cast<const Pin*>(pin.get())->bytes;
      return pin;
    }
    *tried = state.locations;
  }
  {
    std::lock_guard lock(arena_mutex_);
    if (!arena_) {
      ARGOSY_ASSIGN_OR_RETURN(arena_, store::ArenaMapping::Connect(node_.store_door));
    }
  }
  wire::GetObject get;
  get.object = state.id;
  get.locations = *tried;
  if (deadline != absl::InfiniteFuture()) get.deadline_seconds = std::max(0.001, absl::ToDoubleSeconds(deadline - absl::Now()));
  absl::StatusOr<wire::ObjectPlace> place = CallNode(get);
  if (!place.ok()) return place.status();
  auto release = [weak = weak_from_this(), object = state.id](const void*) {
    std::shared_ptr<Core> core = weak.lock();
    if (!core || core->closed_) return;
    core->role_.Do([raw = core.get(), object] {
      wire::ReleaseObject message;
      message.object = object;
      raw->NodeNotify(message);
    });
  };
  ARGOSY_ASSIGN_OR_RETURN(std::span<const std::byte> span, arena_->ReadableSpan(place->offset, place->size));
  auto pin = std::make_shared<Pin>();
  pin->bytes = std::string_view(reinterpret_cast<const char*>(span.data()), span.size());
  pin->release = std::shared_ptr<const void>(pin->bytes.data(), release);
  *bytes = pin->bytes;
  std::lock_guard lock(state.pin_mutex);
  state.pin = pin;
  return std::shared_ptr<const void>(std::move(pin));
}

Fetched Core::FetchState(const CellPtr& cell, absl::Time deadline, bool blocks) {
  ObjectState& state = cell->state();
  Fetched fetched;
  absl::StatusOr<Unpacked> unpacked = absl::UnknownError("");
  auto interrupted = [&] {
    if (!current_cancelled() && !closed_) return false;
    fetched.kind = Fetched::kError;
    fetched.error = current_cancelled() ? MakeError(ErrorInfo::kCancelled, "the task was cancelled while it waited")
                                        : MakeError(ErrorInfo::kRuntime, "the runtime has been shut down");
    return true;
  };
  // More than once only when a stored value cannot be read where it should be.
  for (bool read = false; !read;) {
    if (!state.is_ready()) {
      if (state.owner.worker != options_.worker) role_.Do([this, shared = cell->shared_state()] { StartFetch(shared); });
      auto done = [&] { return state.is_ready() || current_cancelled() || closed_.load(); };
      // The owner of an argument has its value and answers at once, unless that was lost meanwhile: making it again may take this CPU.
      if (blocks || !role_.Await(done, std::min(deadline, absl::Now() + kOwnerAnswersWithin))) AwaitBlocking(done, deadline);
      if (!state.is_ready()) {
        if (interrupted() || absl::Now() >= deadline) return fetched;
        continue;   // it was there, and is lost again
      }
    }
    switch (state.status.load(std::memory_order_acquire)) {
      case ObjectState::kError:
        fetched.kind = Fetched::kError;
        fetched.error = state.error;
        return fetched;
      case ObjectState::kInline:
        fetched.value.owner = state.bytes;
        unpacked = Unpack(*state.bytes, state.bytes);
        read = true;
        break;
      case ObjectState::kPending: break;
      default: {
        std::string_view bytes;
        std::vector<wire::ObjectLocation> tried;
        absl::StatusOr<std::shared_ptr<const void>> pin = PinStored(state, deadline, &bytes, &tried);
        if (pin.ok()) {
          fetched.value.owner = *pin;
          unpacked = Unpack(bytes, *pin);
          read = true;
          break;
        }
        if (absl::IsDeadlineExceeded(pin.status())) return fetched;
        if (!absl::IsNotFound(pin.status()) && !absl::IsUnavailable(pin.status())) {
          fetched.kind = Fetched::kError;
          bool full = absl::IsResourceExhausted(pin.status());
          fetched.error = MakeError(full ? ErrorInfo::kOutOfMemory : ErrorInfo::kRuntime,
                                    fmt::format("object {} of {} bytes cannot be read: {}", state.id.Short(),
                                                tried.empty() ? 0 : tried.front().size, Message(pin.status())));
          return fetched;
        }
        // The owner finds out whether it is lost, and has it made again: that may take a CPU, so this one is lent.
        auto sorted = std::make_shared<std::atomic<bool>>(false);
        role_.Do([this, shared = cell->shared_state(), tried, missing = absl::IsNotFound(pin.status()), sorted] {
          Unreadable(shared, tried, missing, [sorted] { sorted->store(true, std::memory_order_release); });
        });
        blocks = true;
        AwaitBlocking([&] { return sorted->load(std::memory_order_acquire) || interrupted(); }, deadline);
        if (interrupted()) return fetched;
        if (absl::Now() >= deadline) return fetched;
      }
    }
  }
  if (!unpacked.ok()) {
    fetched.kind = Fetched::kError;
    fetched.error = MakeError(ErrorInfo::kRuntime, Message(unpacked.status()));
    return fetched;
  }
  fetched.kind = Fetched::kValue;
  fetched.value.body = unpacked->body;
  fetched.value.buffers = std::move(unpacked->buffers);
  return fetched;
}

absl::StatusOr<std::vector<bool>> Core::Wait(const std::vector<const CellPtr*>& cells, size_t count, absl::Time deadline) {
  count = std::min(count, cells.size());
  // Where the next look begins: what was ready stays so.
  size_t found = 0;
  size_t looked_at = 0;
  std::vector<const CellPtr*> open;
  auto enough = [&] {
    for (; looked_at < cells.size() && found < count; ++looked_at) {
      if ((*cells[looked_at])->state().is_ready()) ++found;
      else open.push_back(cells[looked_at]);
    }
    if (found < count) found += std::erase_if(open, [](const CellPtr* cell) { return (*cell)->state().is_ready(); });
    return found >= count;
  };
  if (!enough()) {
    std::vector<std::shared_ptr<ObjectState>> borrowed;
    for (const CellPtr* cell : open) {
      if ((*cell)->state().owner.worker != options_.worker) borrowed.push_back((*cell)->shared_state());
    }
    if (!borrowed.empty()) {
      role_.Do([this, borrowed = std::move(borrowed)] {
        for (const std::shared_ptr<ObjectState>& state : borrowed) StartFetch(state);
      });
    }
    AwaitBlocking([&] { return enough() || current_cancelled() || closed_.load(); }, deadline);
    if (current_cancelled()) return absl::CancelledError("the task was cancelled while it waited");
  }
  std::vector<bool> there(cells.size(), false);
  for (size_t i = 0, marked = 0; i < cells.size() && marked < count; ++i) {
    if (!(*cells[i])->state().is_ready()) continue;
    there[i] = true;
    ++marked;
  }
  return there;
}

absl::StatusOr<Core::PreparedArguments> Core::Prepare(std::vector<OutgoingArgument> arguments) {
  PreparedArguments prepared;
  for (OutgoingArgument& argument : arguments) {
    CellPtr ref = argument.ref;
    if (!ref && PackedSize(argument.value.body, argument.value.buffers) > kInlineResultMax) {
      ARGOSY_ASSIGN_OR_RETURN(ref, Put(std::move(argument.value)));
    }
    if (ref) {
      prepared.arguments.emplace_back(ref->reference());
      prepared.dependencies.push_back(ref->shared_state());
      prepared.held.push_back(std::move(ref));
      continue;
    }
    wire::InlineValue value;
    value.bytes = Pack(argument.value.body, argument.value.buffers);
    for (CellPtr& inside : argument.value.refs) {
      value.references.push_back(inside->reference());
      prepared.held.push_back(std::move(inside));
    }
    prepared.arguments.emplace_back(std::move(value));
  }
  return prepared;
}

}  // namespace argosy::worker
