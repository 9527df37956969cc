#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "argosy/array.h"
#include "argosy/bridge.h"

namespace argosy {

// A value that is, or will be, somewhere in the cluster. Copies refer to the same value; it is freed when nobody refers to it.
template <class T>
class ObjectRef {
 public:
  using value_type = T;

  ObjectRef() = default;   // refers to nothing
  explicit ObjectRef(internal::CellPtr cell) : cell_(std::move(cell)) {}

  ObjectId id() const { return internal::IdOf(cell_); }
  bool IsNull() const { return cell_ == nullptr; }
  // The value or its error is here: Get does not wait for the task (though maybe for a transfer).
  bool IsReady() const { return internal::IsReady(cell_); }
  const internal::CellPtr& cell() const { return cell_; }

  friend bool operator==(const ObjectRef& a, const ObjectRef& b) { return a.cell_ == b.cell_; }

 private:
  internal::CellPtr cell_;
};

namespace internal {
template <class T>
struct RefTarget { static constexpr bool kIsRef = false; using Type = T; };
template <class T>
struct RefTarget<ObjectRef<T>> { static constexpr bool kIsRef = true; using Type = T; };

// What several returns are the elements of.
template <class T>
struct Elements { static constexpr size_t kCount = 0; };
template <class... T>
struct Elements<std::tuple<T...>> {
  static constexpr size_t kCount = sizeof...(T);
  using Refs = std::tuple<ObjectRef<T>...>;
};
template <class A, class B>
struct Elements<std::pair<A, B>> {
  static constexpr size_t kCount = 2;
  using Refs = std::pair<ObjectRef<A>, ObjectRef<B>>;
};
template <class T, size_t N>
struct Elements<std::array<T, N>> {
  static constexpr size_t kCount = N;
  using Refs = std::array<ObjectRef<T>, N>;
};

template <class T>
typename Elements<T>::Refs SplitRefs(std::vector<CellPtr> cells) {
  typename Elements<T>::Refs refs;
  size_t at = 0;
  std::apply([&](auto&... ref) { ((ref = std::remove_reference_t<decltype(ref)>(std::move(cells[at++]))), ...); }, refs);
  return refs;
}

template <class T>
inline constexpr bool kIsSpan = false;
template <class T, size_t N>
inline constexpr bool kIsSpan<std::span<T, N>> = true;
}  // namespace internal

// Allowed inside arguments, results and Put values only: anywhere else nobody would count it.
template <class T>
struct Codec<ObjectRef<T>> {
  static void Encode(Encoder& e, const ObjectRef<T>& v) { internal::EncodeRef(e, v.cell()); }
  static void Decode(Decoder& d, ObjectRef<T>& v) { v = ObjectRef<T>(internal::DecodeRef(d)); }
};

// The value, once it is there. Throws what made it fail (see error.h), and GetTimeoutError when `timeout` passes first. Works inside
// tasks too: the CPU of a task that waits is lent to others.
template <class T>
T Get(const ObjectRef<T>& ref, Timeout timeout = {}) {
  static_assert(!internal::kIsSpan<T>, "Get of a span would not own the bytes: let the function return argosy::Array<T>");
  internal::ValueView view = internal::FetchValue(ref.cell(), timeout);
  if constexpr (!std::is_void_v<T>) return internal::DecodeValue<T>(view, "result");
}

// All values, in the order of the refs; `timeout` is for all together.
template <class T>
auto Get(const std::vector<ObjectRef<T>>& refs, Timeout timeout = {}) {
  absl::Time deadline = timeout.IsInfinite() ? absl::InfiniteFuture() : absl::Now() + timeout.duration();
  auto left = [&] { return timeout.IsInfinite() ? Timeout() : Timeout(std::max(absl::ZeroDuration(), deadline - absl::Now())); };
  if constexpr (std::is_void_v<T>) {
    for (const ObjectRef<T>& ref : refs) Get(ref, left());
  } else {
    std::vector<T> values;
    values.reserve(refs.size());
    for (const ObjectRef<T>& ref : refs) values.push_back(Get(ref, left()));
    return values;
  }
}

template <class T>
struct WaitResult {
  std::vector<ObjectRef<T>> ready;     // values or errors that are there, in the given order
  std::vector<ObjectRef<T>> pending;
};

// Until `count` of them are there (an error counts), or `timeout` has passed. At most `count` are returned as ready. A loop that waits for
// one after another gives its refs away: pending = Wait(std::move(pending)).pending.
template <class T>
WaitResult<T> Wait(std::vector<ObjectRef<T>>&& refs, size_t count = 1, Timeout timeout = {}) {
  std::vector<const internal::CellPtr*> cells;
  cells.reserve(refs.size());
  for (const ObjectRef<T>& ref : refs) cells.push_back(&ref.cell());
  std::vector<bool> there = internal::WaitForCells(cells, count, timeout);
  WaitResult<T> result;
  size_t kept = 0;
  for (size_t i = 0; i < refs.size(); ++i) {
    if (there[i]) result.ready.push_back(std::move(refs[i]));
    else if (kept++ != i) refs[kept - 1] = std::move(refs[i]);
  }
  refs.resize(kept);
  result.pending = std::move(refs);
  return result;
}
template <class T>
WaitResult<T> Wait(const std::vector<ObjectRef<T>>& refs, size_t count = 1, Timeout timeout = {}) {
  return Wait(std::vector<ObjectRef<T>>(refs), count, timeout);
}

// Makes a value everyone can refer to. Small ones stay in this process, larger ones go to this node's object store.
template <class T>
ObjectRef<std::decay_t<T>> Put(const T& value) {
  static_assert(internal::kIsEncodable<std::decay_t<T>>, "Put: specialise argosy::Codec for this type");
  return ObjectRef<std::decay_t<T>>(internal::PutValue(internal::EncodeValue<std::decay_t<T>>(value)));
}

struct CancelOptions {
  bool force = false;     // kills the worker process of a running task; never an actor's
  bool children = true;   // also the tasks and calls that it submitted, and theirs
};

// Asks that the task be not run. One that waits is dropped; a running one sees RuntimeContext::IsCancelled and its blocked Get or Wait
// throws. Its ref then throws CancelledError.
template <class T>
void Cancel(const ObjectRef<T>& ref, CancelOptions options = {}) {
  internal::CancelCell(ref.cell(), options.force, options.children);
}

}  // namespace argosy
