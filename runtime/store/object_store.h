#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/store/arena.h"
#include "runtime/store/door.h"
#include "runtime/store/extent_map.h"
#include "runtime/store/object_table.h"
#include "runtime/store/spill_file.h"
#include "runtime/store/work_thread.h"

namespace argosy::store {

struct ObjectStoreOptions {
  uint64_t size = 0;                                  // bytes
  std::string door_path;                              // Unix socket
  size_t waiting_creates_max = 4096;
  absl::Duration create_wait_max = absl::Seconds(60);
  absl::Duration punch_idle = absl::Minutes(1);       // memory that nobody used for so long goes back to the system
  std::shared_ptr<Disk> spill_disk;                   // where objects go when memory is full; none: creates wait for room
  uint64_t spill_max = 0;                             // bytes on it
  uint64_t spill_batch = 64ull << 20;
  absl::Duration spill_pause = absl::Seconds(5);
};

// One node's objects (see ObjectTable) in its arena: reserves memory before a create is answered, gives idle memory back, writes objects to
// disk and reads them back.
//
// Thread:   the loop's; memory is reserved on one thread beside it, the disk is used on another.
// Lifetime: the loop outlives it; callbacks that wait when it is destroyed are dropped.
// Failure:  as ObjectTable; Create also RESOURCE_EXHAUSTED when the system has no memory for it.
class ObjectStore {
 public:
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Open(async::Loop& loop, const ObjectStoreOptions& options);
  ~ObjectStore();

  // A client for Create, Pin and so on. 0 is the daemon itself and always there.
  ClientNumber AddClient() { return next_client_++; }
  void RemoveClient(ClientNumber client);

  using Created = std::function<void(absl::StatusOr<Place>)>;
  void Create(const CreateRequest& request, Created created);
  absl::Status Seal(ObjectId object, ClientNumber client);
  absl::Status Abort(ObjectId object, ClientNumber client);
  // NOT_FOUND also when it is spilled: WhenHere first.
  absl::StatusOr<Place> Pin(ObjectId object, ClientNumber client);
  bool Release(ObjectId object, ClientNumber client);
  absl::Status Adopt(ObjectId object, WorkerId owner, const std::string& owner_tcp) { return table_.Adopt(object, owner, owner_tcp); }
  bool Delete(ObjectId object);
  void OwnerGone(WorkerId owner);
  void JobGone(JobId job);

  // `done` runs when an object that is being created here is sealed (true) or given up (false); at once when it is not being created.
  void WhenCreated(ObjectId object, std::function<void(bool sealed)> done);
  // `done` runs, perhaps before this returns, when a sealed object is in memory, and may pin it; with an error when it cannot be.
  void WhenHere(ObjectId object, std::function<void(absl::Status status)> done);
  // In memory or on disk.
  bool Contains(ObjectId object) const { return table_.StateOf(object) == ObjectTable::State::kSealed || IsSpilled(object); }
  bool IsSpilled(ObjectId object) const { return table_.StateOf(object) == ObjectTable::State::kSpilled; }
  bool IsBeingCreated(ObjectId object) const { return table_.StateOf(object) == ObjectTable::State::kCreated; }

  // The bytes of an object that the daemon has pinned or creates.
  std::span<std::byte> Bytes(Place place) const { return arena_->Bytes(place.offset, place.size); }

  const std::string& door_path() const { return door_->path(); }
  uint64_t arena_size() const { return arena_->size(); }
  uint64_t used() const { return table_.used(); }
  uint64_t backed() const { return extents_.backed_bytes(); }
  const ObjectTable& table() const { return table_; }
  // Gives back now what nobody uses.
  void PunchIdle(absl::Duration idle);

 private:
  ObjectStore(async::Loop& loop, const ObjectStoreOptions& options, std::unique_ptr<Arena> arena);
  // After each change of the table: answers creates, reserves, frees, wakes.
  void Settle();
  void Finish(ObjectTable::Ticket ticket, absl::StatusOr<Place> place);
  void Reserve(ObjectTable::Answer answer, std::vector<Range> missing);
  void WriteToDisk(const ObjectTable::Spill& spill);
  void ReadFromDisk(const ObjectTable::Answer& answer);
  void Restored(ObjectId object, const absl::Status& status);

  async::Loop& loop_;
  ObjectStoreOptions options_;
  std::unique_ptr<Arena> arena_;
  ObjectTable table_;
  ExtentMap extents_;
  struct Pending {
    Created created;
    ClientNumber client = 0;
  };
  std::unordered_map<ObjectTable::Ticket, Pending> creating_;
  std::unordered_map<ObjectId, std::vector<std::function<void(bool)>>> waiting_;
  std::unordered_map<ObjectId, std::vector<std::function<void(absl::Status)>>> restoring_;
  ClientNumber next_client_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  async::Timer deadline_timer_;
  async::Timer punch_timer_;
  std::unique_ptr<Door> door_;
  WorkThread work_;
  WorkThread disk_work_;
};

}  // namespace argosy::store
