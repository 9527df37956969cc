#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"
#include "runtime/worker/object.h"

namespace argosy::worker {

// How far a stream's generator may run ahead of its reader, in values.
inline constexpr uint32_t kStreamAheadMax = 10'000;

// Of `ahead_max` unread values, so many are on their way (sent, and not answered), and the others lie at the owner. Values below
// `consumed + ahead_max - window` are answered at once, so never more than `ahead_max` are unread.
inline uint32_t StreamWindow(uint32_t ahead_max) { return std::max<uint32_t>(1, ahead_max / 2); }

// What the owner of a stream has of it.
struct StreamState {
  explicit StreamState(uint32_t ahead_max) : ahead_max(std::clamp<uint32_t>(ahead_max, 1, kStreamAheadMax)) {}

  const uint32_t ahead_max;

  // Any thread.
  std::atomic<uint64_t> received = 0;                // values that came, in order
  std::atomic<uint64_t> consumed = 0;                // and that the reader took
  std::mutex mutex;
  std::deque<CellPtr> items;                         // those between; under the mutex

  // Loop only.
  bool closed = false;                               // nobody reads it any more
  std::map<uint64_t, wire::ReturnValue> early;       // came before one with a smaller index; at most `ahead_max`
  std::deque<std::pair<uint64_t, wire::Call>> unanswered;
};

// What a reader gets.
struct StreamNext {
  enum Kind { kItem, kEnd, kError, kTimeout } kind = kTimeout;
  CellPtr item;
  wire::ErrorInfo error;
};

// What the worker that runs the generator knows of it.
struct StreamProgress {
  uint64_t sent = 0;                                 // the generator's thread
  std::atomic<uint64_t> answered = 0;
  std::atomic<bool> stop = false;
};

}  // namespace argosy::worker
