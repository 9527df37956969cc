// Lost objects: a stored value whose places are gone is made again by the task that made it.
//
//   reader: PinStored fails --> Unreadable --> its owner: are those nodes gone? --> Lost --> Rebuild: the task runs again, and first those
//   that make its lost arguments
//
// Whoever reads it waits meanwhile, as before the first result.

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/worker/core.h"
#include "runtime/worker/execution.h"

namespace argosy::worker {

using wire::ErrorInfo;
using wire::Reference;

namespace {

// Between looks at a node that does not answer and is not (yet) said to be gone.
constexpr absl::Duration kUnreachablePoll = absl::Milliseconds(500);
// What a kept task takes beside its arguments, about.
constexpr uint64_t kRecordBytes = 1024;

template <class Visit>
void ForEachReference(const std::vector<wire::Argument>& arguments, Visit&& visit) {
  for (const wire::Argument& argument : arguments) {
    if (const Reference* reference = std::get_if<Reference>(&argument)) {
      visit(*reference, true);
    } else {
      for (const Reference& inside : std::get<wire::InlineValue>(argument).references) visit(inside, false);
    }
  }
}

}  // namespace

// ---- what is kept -----------------------------------------------------------------------------------------------------------

void Core::KeepLineage(const std::shared_ptr<TaskRecord>& record, int retries_left, uint32_t attempt) {
  if (retries_left == 0 || record->stream) return;
  uint32_t wanted = 0;
  bool is_stored = false;
  for (const std::shared_ptr<ObjectState>& result : record->results) {
    if (result->status == ObjectState::kError) return;
    if (!references_.Knows(result->id)) continue;
    ++wanted;
    is_stored = is_stored || result->status == ObjectState::kStored;
  }
  if (!is_stored) return;   // values in this process's heap are not lost
  uint64_t bytes = kRecordBytes;
  for (const wire::Argument& argument : record->spec.arguments) {
    if (const auto* value = std::get_if<wire::InlineValue>(&argument)) bytes += value->bytes.size();
  }
  // Small values stay, so that they need not be made again. Stored ones may go, and are made again when they can be; values of Put and of
  // other owners may go for good.
  std::vector<ObjectId> arguments;
  std::vector<CellPtr> small;
  ForEachReference(record->spec.arguments, [&](const Reference& reference, bool) {
    bytes += sizeof(Reference);
    if (!references_.Owns(reference.object)) return;
    std::shared_ptr<ObjectState> state = FindState(reference.object);
    if (!state) return;
    if (state->status == ObjectState::kInline) {
      bytes += state->bytes->size();
      small.push_back(NewUncounted(state->id, state->owner));
      Adopt(state);
    } else if (lineage_.Knows(state->task) || tasks_.contains(state->task)) {
      arguments.push_back(reference.object);
      references_.AddLineage(reference.object);
    }
  });
  record->held = std::move(small);
  record->dependencies.clear();
  record->results.clear();
  record->asked.retries_max = retries_left;
  record->asked.attempt = attempt + 1;
  TaskId task = record->spec.task;
  kept_[task] = record;
  LineageTable::Effects effects;
  lineage_.Keep(task, bytes, wanted, std::move(arguments), effects);
  ReferenceMachine::Effects references;
  Apply(effects, references);
  Apply(std::move(references));
}

void Core::Apply(const LineageTable::Effects& effects, ReferenceMachine::Effects& references) {
  for (TaskId task : effects.forgotten) kept_.erase(task);
  for (TaskId task : effects.dropped) {
    auto record = kept_.extract(task);
    if (record.empty()) continue;
    for (uint32_t i = 0; i < record.mapped()->spec.return_count; ++i) {
      if (std::shared_ptr<ObjectState> result = FindState(ReturnId(task, i))) result->lineage_dropped = true;
    }
  }
  for (ObjectId argument : effects.arguments) references_.DropLineage(argument, references);
}

std::string Core::WhyNotRebuildable(const ObjectState& state) const {
  if (state.stream_item) return "it is a value of a stream";
  if (state.task.IsNil()) return "it was stored by Put (as large arguments are), not made by a task";
  if (!state.actor.IsNil()) return "it is the result of an actor's call";
  if (state.lineage_dropped) {
    return fmt::format("what is kept of tasks to run them again was limited to {} MiB, and its task was dropped",
                       lineage_.bytes_max() >> 20);
  }
  return "its task has no tries left (max_retries)";
}

// ---- what is lost -----------------------------------------------------------------------------------------------------------

void Core::Unready(ObjectState& state) {
  std::lock_guard lock(state.pin_mutex);
  state.locations.clear();
  state.status.store(ObjectState::kPending, std::memory_order_release);
}

// A stored value could not be had from `tried`. `done` when that is sorted out: the value has other places, is being made again, is lost, or
// nothing is known yet and another try may do.
void Core::Unreadable(const std::shared_ptr<ObjectState>& state, const std::vector<wire::ObjectLocation>& tried, bool missing,
                      std::function<void()> done) {
  if (state->status != ObjectState::kStored) return done();
  if (node_connection_ == nullptr) {
    Unready(*state);
    SetError(*state, MakeError(ErrorInfo::kNodeDied, kNodeGone));
    return done();
  }
  if (state->owner.worker != options_.worker) {
    Unready(*state);
    state->unreadable = tried;
    state->missing = missing;
    StartFetch(state);
    return done();
  }
  if (missing) {
    DropLocations(state, tried, "which has it no more");
    return done();
  }
  NodeRequest(wire::ListNodes(), [this, state, tried, done = std::move(done)](absl::StatusOr<wire::ListNodesReply> reply) {
    if (closed_) return;
    std::vector<wire::ObjectLocation> gone;
    if (reply.ok()) {
      for (const wire::ObjectLocation& location : tried) {
        bool alive = std::any_of(reply->nodes.begin(), reply->nodes.end(), [&](const wire::NodeInfo& node) {
          return node.node == location.node && node.alive;
        });
        if (!alive) gone.push_back(location);
      }
    }
    if (gone.empty()) return After(kUnreachablePoll, done);
    DropLocations(state, gone, "which is lost");
    done();
  });
}

void Core::DropLocations(const std::shared_ptr<ObjectState>& state, const std::vector<wire::ObjectLocation>& gone, const char* how) {
  if (state->status != ObjectState::kStored) return;
  std::vector<wire::ObjectLocation> left = state->locations;
  std::string nodes;
  std::erase_if(left, [&](const wire::ObjectLocation& location) {
    bool drop = std::any_of(gone.begin(), gone.end(), [&](const wire::ObjectLocation& other) { return other.node == location.node; });
    if (drop) nodes += fmt::format("{}{}", nodes.empty() ? "" : ", ", location.node.Short());
    return drop;
  });
  if (left.size() == state->locations.size()) return;
  if (!left.empty()) {
    std::lock_guard lock(state->pin_mutex);
    state->locations = std::move(left);
    return;
  }
  uint64_t size = state->locations.front().size;
  Unready(*state);
  std::string what = fmt::format("object {} of {} bytes was on node {}, {}", state->id.Short(), size, nodes, how);
  spdlog::info("{}", what);
  Rebuild(state, what);
}

// A node that leaves gave it to another.
void Core::OnObjectMoved(wire::Call call) {
  absl::StatusOr<wire::ObjectMoved> message = call.As<wire::ObjectMoved>();
  if (!message.ok()) return call.Fail(message.status());
  wire::ObjectMovedReply reply;
  std::shared_ptr<ObjectState> state = FindState(message->object);
  if (state && references_.Owns(message->object) && state->status == ObjectState::kStored) {
    std::lock_guard lock(state->pin_mutex);
    std::erase_if(state->locations, [&](const wire::ObjectLocation& location) {
      return location.node == message->from || location.node == message->to.node;
    });
    state->locations.push_back(std::move(message->to));
    reply.known = true;
  }
  call.Answer(reply);
}

// Makes a value again whose places are gone. A list instead of recursion, since chains may be long.
void Core::Rebuild(const std::shared_ptr<ObjectState>& lost, const std::string& what) {
  std::vector<std::shared_ptr<ObjectState>> wanted{lost};
  while (!wanted.empty()) {
    std::shared_ptr<ObjectState> state = std::move(wanted.back());
    wanted.pop_back();
    if (state->status != ObjectState::kPending || tasks_.contains(state->task)) continue;
    auto record = kept_.find(state->task);
    if (record == kept_.end()) {
      std::string subject = state == lost ? what : fmt::format("object {}, an argument that nobody held any more, is needed to make object {} again",
                                                               state->id.Short(), lost->id.Short());
      std::string why = state != lost && state->task.IsNil() ? "it was stored by Put (as large arguments are), or its task cannot be run again"
                                                             : WhyNotRebuildable(*state);
      SetError(*state, MakeError(ErrorInfo::kObjectLost, fmt::format("{}; it is not rebuildable: {}", subject, why)));
      continue;
    }
    RunAgain(record->second, wanted);
  }
}

// `wanted`: appends those of its arguments that must be made first.
void Core::RunAgain(std::shared_ptr<TaskRecord> record, std::vector<std::shared_ptr<ObjectState>>& wanted) {
  TaskId task = record->spec.task;
  spdlog::info("task {} runs again, because a result of it was lost", record->spec.name);
  ForEachReference(record->spec.arguments, [&](const Reference& reference, bool is_argument) {
    CellPtr cell = NewUncounted(reference.object, reference.owner);
    Adopt(cell->shared_state());
    if (is_argument) record->dependencies.push_back(cell->shared_state());
    if (reference.owner.worker == options_.worker && !cell->state().is_ready()) wanted.push_back(cell->shared_state());
    record->held.push_back(std::move(cell));
  });
  for (uint32_t i = 0; i < record->spec.return_count; ++i) {
    ObjectId id = ReturnId(task, i);
    std::shared_ptr<ObjectState> result = FindState(id);
    // Nobody wants that one: what comes is deleted.
    if (!result) result = std::make_shared<ObjectState>(id, address_);
    record->results.push_back(std::move(result));
  }
  kept_.erase(task);
  ReferenceMachine::Effects effects;
  for (ObjectId argument : lineage_.Take(task)) references_.DropLineage(argument, effects);
  Apply(std::move(effects));
  if (record->asked.retries_max > 0) --record->asked.retries_max;
  record->asked.deadline = absl::Now() + record->deadline;
  record->cancelled = false;
  record->reported = false;
  ++pending_tasks_;
  Begin(std::move(record));
}

}  // namespace argosy::worker
