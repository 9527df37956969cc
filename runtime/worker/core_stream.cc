// Streams: the values of a generator go to its owner one by one while it runs.
//
//   worker: Emit --StreamItem i--> owner: OnStreamItem ... the reader takes values ... AnswerRoom --> worker: one more may be sent
//
// The task's reply comes after the owner has every value, so that whoever sees the end has seen all.

#include <utility>

#include "runtime/base/status.h"
#include "runtime/worker/core.h"
#include "runtime/worker/execution.h"

namespace argosy::worker {

using wire::ErrorInfo;

// ---- the owner's side -------------------------------------------------------------------------------------------------------

void Core::OnStreamItem(wire::Call call) {
  absl::StatusOr<wire::StreamItem> message = call.As<wire::StreamItem>();
  if (!message.ok()) return call.Fail(message.status());
  auto it = tasks_.find(message->task);
  std::shared_ptr<StreamState> stream = it == tasks_.end() ? nullptr : it->second->stream;
  if (!stream || stream->closed) return call.Answer(wire::StreamItemReply{true});
  const wire::TaskSpec& spec = it->second->spec;
  std::optional<uint32_t> attempt =
      spec.actor.IsNil() ? submit_.AttemptOf(message->task) : ActorOf(spec.actor).machine.AttemptOf(message->task);
  if (attempt != message->attempt) return call.Answer(wire::StreamItemReply{true});
  uint64_t received = stream->received.load(std::memory_order_relaxed);
  if (message->index >= received + stream->ahead_max + 1) {
    return call.Fail(InvalidArgument("value {} of a stream came while {} are there and {} may be unread", message->index, received,
                                     stream->ahead_max));
  }
  // A generator that runs again makes its values again: those that are here stay.
  if (message->index >= received) stream->early.try_emplace(message->index, std::move(message->value));
  for (auto next = stream->early.find(received); next != stream->early.end(); next = stream->early.find(received)) {
    CellPtr cell = NewUncounted(ReturnId(message->task, static_cast<uint32_t>(received + 1)), address_);
    Adopt(cell->shared_state());
    cell->state().stream_item = true;
    if (auto* value = std::get_if<wire::InlineValue>(&next->second)) {
      SetInline(cell->state(), std::make_shared<const std::string>(std::move(value->bytes)), std::move(value->references), true);
    } else {
      auto& stored = std::get<wire::StoredValue>(next->second);
      SetStored(cell->state(), {stored.location}, std::move(stored.references), true);
    }
    stream->early.erase(next);
    {
      std::lock_guard lock(stream->mutex);
      stream->items.push_back(std::move(cell));
    }
    stream->received.store(++received, std::memory_order_release);
  }
  stream->unanswered.emplace_back(message->index, std::move(call));
  AnswerRoom(*stream);
}

void Core::AnswerRoom(StreamState& stream) {
  uint64_t room = stream.consumed.load() + stream.ahead_max - StreamWindow(stream.ahead_max);
  std::erase_if(stream.unanswered, [&](std::pair<uint64_t, wire::Call>& waiting) {
    if (!stream.closed && waiting.first >= room) return false;
    waiting.second.Answer(wire::StreamItemReply{stream.closed});
    return true;
  });
}

StreamNext Core::Next(const std::shared_ptr<StreamState>& stream, const CellPtr& end, absl::Time deadline) {
  const ObjectState& last = end->state();
  AwaitBlocking([&] { return stream->received.load() > stream->consumed.load() || last.is_ready() || current_cancelled() || closed_.load(); },
                deadline);
  StreamNext next;
  bool ended = last.is_ready();   // asked first: nothing comes after it
  {
    std::lock_guard lock(stream->mutex);
    if (!stream->items.empty()) {
      next.kind = StreamNext::kItem;
      next.item = std::move(stream->items.front());
      stream->items.pop_front();
      ++stream->consumed;
    }
  }
  if (next.kind == StreamNext::kItem) {
    role_.Do([this, stream] { AnswerRoom(*stream); });
  } else if (ended && last.status == ObjectState::kError) {
    next.kind = StreamNext::kError;
    next.error = last.error;
  } else if (ended) {
    next.kind = StreamNext::kEnd;
  } else if (current_cancelled()) {
    next.kind = StreamNext::kError;
    next.error = MakeError(ErrorInfo::kCancelled, "the task was cancelled while it waited");
  } else if (closed_) {
    next.kind = StreamNext::kError;
    next.error = MakeError(ErrorInfo::kRuntime, "the runtime has been shut down");
  }
  return next;
}

void Core::CloseStream(const std::shared_ptr<StreamState>& stream, const CellPtr& end) {
  if (closed_) return;
  role_.Do([this, stream, state = end->shared_state()] {
    if (closed_) return;
    stream->closed = true;
    stream->early.clear();
    AnswerRoom(*stream);
    auto it = tasks_.find(state->task);
    if (it != tasks_.end() && !state->is_ready()) CancelRecord(it->second, {});
  });
}

// ---- the worker's side ------------------------------------------------------------------------------------------------------

absl::Status Core::Emit(const std::shared_ptr<Execution>& execution, OutgoingValue value) {
  StreamProgress& progress = execution->stream;
  const uint64_t window = StreamWindow(execution->spec.stream_ahead_max);
  AwaitBlocking([&] { return progress.sent < progress.answered.load() + window || progress.stop.load() || execution->cancelled.load(); },
                absl::InfiniteFuture());
  if (progress.stop || execution->cancelled) return absl::CancelledError("nobody reads the stream any more");
  wire::StreamItem message;
  message.task = execution->spec.task;
  message.attempt = execution->spec.attempt;
  message.index = progress.sent++;
  std::vector<CellPtr> refs;
  ARGOSY_ASSIGN_OR_RETURN(message.value, MakeReturn(*execution, static_cast<uint32_t>(message.index + 1), std::move(value), refs));
  role_.Do([this, execution, message = std::move(message), refs = std::move(refs)]() mutable {
    PassRefs(*execution, {message.value}, std::move(refs));
    SendItem(execution, message);
  });
  return absl::OkStatus();
}

void Core::SendItem(const std::shared_ptr<Execution>& execution, const wire::StreamItem& message) {
  peers_->Request(execution->spec.owner, message, [this, execution, message](absl::StatusOr<wire::StreamItemReply> reply) {
    StreamProgress& progress = execution->stream;
    if (!reply.ok() && absl::IsUnavailable(reply.status())) {
      return AskFate(execution->spec.owner, [this, execution, message](const wire::WorkerFateReply& fate) {
        if (fate.dead) execution->stream.stop = true;
        else SendItem(execution, message);
      });
    }
    if (!reply.ok() || reply->stop) progress.stop = true;
    ++progress.answered;
  });
}

void Core::AwaitEmitted(Execution& execution) {
  StreamProgress& progress = execution.stream;
  AwaitBlocking([&] { return progress.answered.load() >= progress.sent || progress.stop.load() || execution.cancelled.load(); },
                absl::InfiniteFuture());
}

}  // namespace argosy::worker
