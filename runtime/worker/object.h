#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/codec.h"
#include "runtime/base/id.h"
#include "runtime/wire/messages.h"

namespace argosy::worker {

class Core;

// Where a value lies, or why there is none. Filled on the loop, then `status` is set: whoever sees it set may read the rest. Only a stored
// value that is lost becomes pending again; the others stay.
struct ObjectState {
  enum Status : int { kPending = 0, kInline = 1, kStored = 2, kError = 3 };

  ObjectState(ObjectId id, wire::WorkerAddress owner) : id(id), owner(std::move(owner)) {}

  const ObjectId id;
  const wire::WorkerAddress owner;
  std::atomic<int> status = kPending;

  std::shared_ptr<const std::string> bytes;         // kInline: a packed value
  std::vector<wire::ObjectLocation> locations;      // kStored; written on the loop under `pin_mutex`, since a lost value gets new ones
  std::vector<wire::Reference> references;          // refs inside the value
  wire::ErrorInfo error;                            // kError

  bool is_ready() const { return status.load(std::memory_order_acquire) != kPending; }

  // Loop only.
  bool fetching = false;
  std::vector<std::function<void()>> waiters;       // run once, when it is ready
  TaskId task;                                      // that makes it; nil for Put and borrowed ones
  ActorId actor;                                    // whose call makes it
  bool stream_item = false;
  bool lineage_dropped = false;                     // its task cannot be run again, because what is kept of tasks is bounded
  std::vector<wire::ObjectLocation> unreadable;     // borrowed: where it was not to be had, for its owner
  bool missing = false;

  // The mapped bytes of a stored value while somebody reads them.
  mutable std::mutex pin_mutex;
  std::weak_ptr<const void> pin;
};

// What an ObjectRef points at: one counted handle. The count is the core's; the handle tells it when it goes. One that was decoded from
// the value of an object leans on that object's handle, and is counted when it is first used: of the thousands of refs that a value may
// hold most are not.
class Cell {
 public:
  Cell(std::weak_ptr<Core> core, std::shared_ptr<ObjectState> state)
      : id_(state->id), core_(std::move(core)), state_(std::move(state)), counted_(true) {}
  Cell(std::weak_ptr<Core> core, ObjectId id, std::shared_ptr<const wire::WorkerAddress> owner, std::shared_ptr<const void> leans_on)
      : id_(id), core_(std::move(core)), owner_(std::move(owner)), leans_on_(std::move(leans_on)), counted_(false) {}
  ~Cell();
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  ObjectId id() const { return id_; }
  ObjectState& state() const { return *shared_state(); }
  const std::shared_ptr<ObjectState>& shared_state() const {
    if (!counted_.load(std::memory_order_acquire)) BeCounted();
    return state_;
  }
  wire::Reference reference() const {
    if (!counted_.load(std::memory_order_acquire)) BeCounted();
    return {id_, state_->owner};
  }

 private:
  void BeCounted() const;

  const ObjectId id_;
  std::weak_ptr<Core> core_;
  // Set once, before counted_.
  mutable std::shared_ptr<ObjectState> state_;
  mutable std::shared_ptr<const wire::WorkerAddress> owner_;
  mutable std::shared_ptr<const void> leans_on_;
  mutable std::atomic<bool> counted_;
};
using CellPtr = std::shared_ptr<Cell>;

// A value to decode in place.
struct ValueBytes {
  std::string_view body;
  std::vector<Buffer> buffers;
  std::shared_ptr<const void> owner;
};

// A value to send or store; the refs inside it are held until it is registered.
struct OutgoingValue {
  std::string body;
  std::vector<Buffer> buffers;
  std::vector<CellPtr> refs;
};

}  // namespace argosy::worker
