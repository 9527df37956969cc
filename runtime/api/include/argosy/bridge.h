#pragma once

// What the templates of this API need of the runtime behind it. Not for users.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "argosy/error.h"
#include "argosy/options.h"
#include "runtime/base/codec.h"
#include "runtime/base/shared_text.h"

namespace argosy::worker {
class Cell;
struct StreamState;
}

namespace argosy::internal {

// The result cell that a ref points at. The last copy tells the runtime.
using CellPtr = std::shared_ptr<worker::Cell>;

// A value on its way into the runtime. `buffers` may point at the caller's memory until the call that takes this returns; `refs` keeps
// the objects whose refs the value holds until they are counted.
struct EncodedValue {
  std::string body;
  std::vector<Buffer> buffers;
  std::vector<CellPtr> refs;
};

// A value to decode, in place; `owner` keeps its bytes.
struct ValueView {
  std::string_view body;
  std::vector<Buffer> buffers;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const void> keeps_refs;    // see Decoder
};

// One argument: a ref to be resolved before the call, or a value.
struct OutgoingArgument {
  CellPtr ref;
  EncodedValue value;
};

// One call as the registered function sees it.
struct Invocation {
  void* instance = nullptr;                  // actor calls
  std::vector<ValueView> arguments;
  bool split = false;                        // a result for each element of the returned tuple
  std::function<void(EncodedValue)> emit;    // generators: hands one value on; throws CancelledError when nobody wants more
  std::vector<EncodedValue> results;
  std::shared_ptr<void> created;             // constructors
  // Coroutines: makes what takes the result when it is there, which `encode` makes or throws. Empty where one has to wait on its thread.
  using Finish = std::function<void(std::function<EncodedValue()> encode)>;
  std::function<Finish()> make_finish;
  bool suspended = false;                    // the result comes, or came, by what make_finish made
};

// In a coroutine of an actor, which may wait without its thread.
bool CanSuspend();
void ResumeWhenReady(const std::vector<CellPtr>& cells, std::function<void()> go_on);
void ResumeAfter(Timeout time, std::function<void()> go_on);
void SleepHere(Timeout time);
bool IsCancelledHere();
[[noreturn]] void ThrowCancelled();
// Throws when it refers to nothing.
const CellPtr& Checked(const CellPtr& cell);

using Invoke = void (*)(Invocation&);

// A function that workers can run, in one list of the process, made before main.
struct FunctionEntry {
  SharedText name;                           // on the wire
  SharedText readable;                       // for people
  Invoke invoke = nullptr;
  std::source_location place;
  bool named = false;                        // by Name<F>
  FunctionEntry* next = nullptr;
};
void RegisterFunction(FunctionEntry& entry);
// The whole list, newest first.
FunctionEntry* RegisteredFunctions();

// A type of exceptions that a task may be tried again for, in a list like the functions'.
struct ExceptionEntry {
  std::string name;
  bool (*matches)(const std::exception_ptr& thrown) = nullptr;
  ExceptionEntry* next = nullptr;
};
void RegisterException(ExceptionEntry& entry);

// `returns` of 0: one return, the whole result. Else the elements of a tuple, each a return of its own.
struct Submission {
  const FunctionEntry& function;
  size_t returns = 0;
  std::shared_ptr<worker::StreamState> stream;   // generators
};
// The actor ends after the calls that were made before.
void TerminateActor(ActorId actor);
std::vector<CellPtr> SubmitTask(const Submission& submission, const TaskOptions& options, std::vector<OutgoingArgument> arguments);
std::vector<CellPtr> SubmitCall(ActorId actor, const Submission& submission, const CallOptions& options,
                                std::vector<OutgoingArgument> arguments);
// A generator's values, and the return of its task, which comes after the last.
struct StreamHandle {
  std::shared_ptr<worker::StreamState> stream;
  CellPtr end;
};
std::shared_ptr<worker::StreamState> NewStream(int ahead_max);
// Null at the end.
CellPtr NextOfStream(const StreamHandle& handle, Timeout timeout);
void CloseStream(const StreamHandle& handle);
ActorId CreateActor(const FunctionEntry& constructor, const std::string& class_name, const ActorOptions& options,
                    std::vector<OutgoingArgument> arguments);
ActorId FindActor(const std::string& name, const std::string& ns);
CellPtr PutValue(EncodedValue value);
// Waits for the value; throws what the task threw, or GetTimeoutError.
ValueView FetchValue(const CellPtr& cell, Timeout timeout);
// Which of them are there, after waiting until `count` are or the time is over.
// Marks the first `count` cells that are there.
std::vector<bool> WaitForCells(const std::vector<const CellPtr*>& cells, size_t count, Timeout timeout);
bool IsReady(const CellPtr& cell);
void CancelCell(const CellPtr& cell, bool force, bool children);
ObjectId IdOf(const CellPtr& cell);

// Where EncodeRef of this thread puts the refs that it meets; returns what was set before.
std::vector<CellPtr>* CollectRefs(std::vector<CellPtr>* into);
void EncodeRef(Encoder& encoder, const CellPtr& cell);
CellPtr DecodeRef(Decoder& decoder);
// Non-null where decoding may make refs.
void* RefContext();

template <class T>
EncodedValue EncodeValue(const T& value) {
  EncodedValue encoded;
  Encoder encoder(encoded.body);
  encoder.refs_allowed = true;
  struct Collecting {
    explicit Collecting(std::vector<CellPtr>* into) : before(CollectRefs(into)) {}
    ~Collecting() { CollectRefs(before); }
    std::vector<CellPtr>* before;
  } collecting(&encoded.refs);
  encoder.Write(value);
  if (!encoder.error.empty()) throw RuntimeError(encoder.error);
  encoded.buffers = std::move(encoder.buffers);
  return encoded;
}

// `what` names the value in the error. `keep` receives buffers that the value may point into.
template <class T>
T DecodeValue(const ValueView& view, std::string_view what, std::vector<Buffer>* keep = nullptr) {
  static_assert(std::is_default_constructible_v<T>, "a value that travels needs a default constructor");
  Decoder decoder(view.body);
  decoder.buffers = view.buffers;
  decoder.ref_context = RefContext();
  decoder.keeps_refs = view.keeps_refs;
  T value{};
  decoder.Read(value);
  if (!decoder.reader.ok()) throw RuntimeError(fmt::format("{}: {}", what, Message(decoder.reader.status())));
  if (!decoder.reader.AtEnd()) throw RuntimeError(fmt::format("{}: bytes after the value", what));
  if (keep != nullptr) keep->insert(keep->end(), decoder.buffers.begin(), decoder.buffers.end());
  return value;
}

}  // namespace argosy::internal
