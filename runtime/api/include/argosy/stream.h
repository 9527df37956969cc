#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "argosy/bridge.h"
#include "argosy/object_ref.h"

namespace argosy {

// The values of a Generator that runs elsewhere, in order, while it runs: at most `stream_ahead_max` are unread, then it waits.
//
//   for (argosy::ObjectRef<int> item : argosy::Task<CountTo>().Submit(1'000'000)) use(argosy::Get(item));
//
// A generator whose process dies runs again (max_retries): the values that came are not read twice, so it should make the same ones.
//
// Thread:   one at a time.
// Lifetime: destroying it cancels the task; refs that were read stay good.
// Failure:  Next throws what the generator threw, after the values before it; GetTimeoutError leaves the stream as it was.
template <class T>
class Stream {
 public:
  Stream() = default;
  explicit Stream(internal::StreamHandle handle) : handle_(std::move(handle)) {}
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Stream() { internal::CloseStream(handle_); }

  // None after the last.
  std::optional<ObjectRef<T>> Next(Timeout timeout = {}) {
    internal::CellPtr cell = internal::NextOfStream(handle_, timeout);
    if (!cell) return std::nullopt;
    return ObjectRef<T>(std::move(cell));
  }
  // As Next, with the value.
  std::optional<T> Read(Timeout timeout = {}) {
    std::optional<ObjectRef<T>> ref = Next(timeout);
    if (!ref) return std::nullopt;
    return Get(*ref);
  }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = ObjectRef<T>;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    explicit Iterator(Stream* stream) : stream_(stream), item_(stream->Next()) {}
    const ObjectRef<T>& operator*() const { return *item_; }
    Iterator& operator++() {
      item_ = stream_->Next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& a, std::default_sentinel_t) { return !a.item_; }

   private:
    Stream* stream_ = nullptr;
    std::optional<ObjectRef<T>> item_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() const { return {}; }

  const internal::StreamHandle& handle() const { return handle_; }

 private:
  internal::StreamHandle handle_;
};

// As of a task: Next then throws CancelledError after the values that came.
template <class T>
void Cancel(const Stream<T>& stream, CancelOptions options = {}) {
  internal::CancelCell(stream.handle().end, options.force, options.children);
}

}  // namespace argosy
