#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/store/allocator.h"
#include "runtime/store/extent_map.h"

namespace argosy::store {

// One connection to the store; 0 is the daemon itself.
using ClientNumber = uint64_t;

struct CreateRequest {
  ObjectId object;
  uint64_t size = 0;        // bytes
  ClientNumber client = 0;
  WorkerId owner;
  JobId job;
  bool is_copy = false;     // of an object whose primary copy is on another node: may be evicted
  std::string owner_tcp;    // how other hosts reach the owner; empty: not known
};

struct Place {
  uint64_t offset = 0;
  uint64_t size = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

// The objects of one node: created -> sealed -> (deleted). Who creates an object may write it until it is sealed; who pins a sealed one
// may read it until it is released. A deleted object that is pinned keeps its space until the last release. The primary copy lives
// until it is deleted. When a create needs space, what nobody reads makes room, least recently used first: copies are evicted; primary
// copies are written to disk (spilled), and restored when somebody wants to read them. Creates and restores that do not fit wait in order,
// in bounded queues, and take turns.
//
//   sealed --no room--> spilling --written--> sealed, also on disk --no room--> spilled --Restore--> restoring --read--> sealed, also on disk
//
// A primary copy that its owner makes again takes the place of the one that is here, and of a copy.
//
// Thread:   its owner's.
// Failure:  Create: RESOURCE_EXHAUSTED (never fits, or too many wait), ALREADY_EXISTS. Others: NOT_FOUND, FAILED_PRECONDITION. What could
//           not be written stays in memory, and nothing is written for a while; what could not be read is lost.
class ObjectTable {
 public:
  struct Options {
    uint64_t capacity = 0;             // bytes
    size_t waiting_creates_max = 4096; // restores as well
    absl::Duration create_wait_max = absl::Seconds(60);
    uint64_t spill_max = 0;            // bytes on disk; 0: nothing is written there
    uint64_t spill_batch = 64ull << 20;   // written together at least, while there is so much
    absl::Duration spill_pause = absl::Seconds(5);   // after a write that failed
  };
  // Names a create; its answer, now or later, carries it.
  using Ticket = uint64_t;
  struct Answer {
    Ticket ticket = 0;
    ObjectId object;
    absl::StatusOr<Place> place;
    bool is_restore = false;           // of Restore; with a place, it is to be read into it, and RestoreDone called
    uint64_t serial = 0;
    uint64_t disk_offset = 0;
  };
  // To be written to disk; then SpillDone.
  struct Spill { uint64_t serial = 0; Place place; uint64_t disk_offset = 0; };
  enum class State { kAbsent, kCreated, kSealed, kSpilled };

  explicit ObjectTable(Options options);

  // Every create is answered once by TakeAnswers, perhaps right after this call.
  Ticket Create(const CreateRequest& request, absl::Time now);
  absl::Status Seal(ObjectId object, ClientNumber client);
  // Gives up what `client` created and did not seal, or waits to create.
  absl::Status Abort(ObjectId object, ClientNumber client);
  // A spilled object comes back to memory. Answered as a create; ALREADY_EXISTS when it is on its way.
  Ticket Restore(ObjectId object, absl::Time now);
  void SpillDone(uint64_t serial, const absl::Status& status, absl::Time now);
  // It was read; or there was no memory for it, and it stays on disk; or it cannot be read, and is gone.
  enum class Restored { kHere, kNoMemory, kLost };
  void RestoreDone(uint64_t serial, Restored outcome);
  // NOT_FOUND unless sealed and in memory.
  absl::StatusOr<Place> Pin(ObjectId object, ClientNumber client);
  // One pin of `client`. False when it has none.
  bool Release(ObjectId object, ClientNumber client);
  // A sealed copy is the primary one from now on.
  absl::Status Adopt(ObjectId object, WorkerId owner, const std::string& owner_tcp);
  // False when it was not here. An unsealed one is aborted.
  bool Delete(ObjectId object);
  // Releases its pins, aborts its creations.
  void ClientGone(ClientNumber client);
  void OwnerGone(WorkerId owner);
  void JobGone(JobId job);
  // Evicts all that can be; for tests and for giving memory back.
  void EvictCopies();

  // The creates that were answered since, because there was room, or there never will be, or they waited too long.
  std::vector<Answer> TakeAnswers(absl::Time now);
  std::vector<Spill> TakeSpills() { return std::exchange(spills_, {}); }
  // Space on disk that was given back since.
  std::vector<Range> TakeFreedDisk() { return std::exchange(freed_disk_, {}); }
  // Space that was given back since.
  std::vector<Range> TakeFreed() { return std::exchange(freed_, {}); }
  // Objects whose creation ended unsealed since.
  std::vector<ObjectId> TakeAborted() { return std::exchange(aborted_, {}); }
  // When TakeAnswers must be called again at the latest.
  std::optional<absl::Time> NextDeadline() const;

  // Everything that takes space, in no order.
  struct Listed {
    ObjectId object;
    uint64_t size = 0;
    WorkerId owner;
    JobId job;
    bool sealed = false;
    bool is_copy = false;
    uint32_t pins = 0;
    bool in_memory = true;
    bool on_disk = false;
    bool deleted = false;          // gone with its last reader
    std::string owner_tcp;
  };
  std::vector<Listed> List() const;
  State StateOf(ObjectId object) const;
  // Is `client` still making it there?
  bool IsMaking(ObjectId object, ClientNumber client, Place place) const;
  std::optional<uint64_t> SizeOf(ObjectId object) const;
  uint64_t used() const { return allocator_.used(); }
  uint64_t capacity() const { return allocator_.size(); }
  uint64_t evictable() const { return evictable_bytes_; }
  size_t objects() const { return by_id_.size(); }
  size_t waiting_creates() const { return waiting_.size(); }
  uint64_t spilled_bytes() const { return disk_.used(); }   // on disk, of them some also in memory
  uint64_t spill_max() const { return options_.spill_max; }

 private:
  using Serial = uint64_t;
  struct Entry {
    ObjectId object;
    Place place;
    ClientNumber creator = 0;
    WorkerId owner;
    JobId job;
    std::string owner_tcp;
    bool is_copy = false;
    bool sealed = false;
    bool deleted = false;
    uint32_t pins = 0;
    bool in_memory = true;
    bool restore_waits = false;
    std::optional<uint64_t> disk;      // where it is, or is being written
    enum Io { kNone, kSpilling, kRestoring } io = kNone;
    enum Spot { kHeld, kEvictable, kSpillable } spot = kHeld;
    std::list<Serial>::iterator lru;   // in the list of its spot
  };
  struct Waiting {
    Ticket ticket = 0;
    CreateRequest request;
    absl::Time deadline;
    Serial restore = 0;                // 0: a create
  };

  // What a task makes (again) takes the place of what its owner made before, and of copies.
  void MakeWay(const CreateRequest& request);
  void Insert(Ticket ticket, const CreateRequest& request, uint64_t offset);
  std::optional<uint64_t> AllocateEvicting(uint64_t size);
  std::list<Serial>& ListOf(Entry::Spot spot);
  void UpdateSpot(Entry& entry);
  // Takes it out of memory: a copy is gone, what is on disk stays there.
  void Evict(Serial serial);
  void FreeMemory(Entry& entry);
  void FreeDisk(Entry& entry);
  // Frees the space and forgets the entry.
  void Destroy(Serial serial);
  bool Serve(std::deque<Waiting>& queue);
  void FailOverdue(std::deque<Waiting>& queue, absl::Time now);
  // Chooses what is written to disk for those that wait.
  void PlanSpills(absl::Time now);
  void DeleteEntry(Serial serial);
  template <class Matches>
  void DeleteMatching(Matches&& matches);
  void Unpin(Serial serial);
  std::string Full(uint64_t size) const;

  Options options_;
  Allocator allocator_;
  std::unordered_map<Serial, Entry> entries_;
  std::unordered_map<ObjectId, Serial> by_id_;   // not deleted
  std::unordered_map<ClientNumber, std::unordered_multimap<ObjectId, Serial>> pins_;
  // Each object is in one of these; it moves from one to another without an allocation.
  std::list<Serial> held_;                       // in use
  std::list<Serial> lru_;                        // evictable, least recently used first
  std::list<Serial> spillable_;                  // the same of what must be written first
  std::deque<Waiting> waiting_;                  // creates
  std::deque<Waiting> restores_;
  bool served_restore_last_ = false;
  Allocator disk_;
  uint64_t spilling_bytes_ = 0;
  absl::Time spill_not_before_ = absl::InfinitePast();
  std::string spill_error_;                      // of the last write, if it failed
  std::vector<Spill> spills_;
  std::vector<Range> freed_disk_;
  std::vector<Answer> answers_;
  std::vector<Range> freed_;
  std::vector<ObjectId> aborted_;
  uint64_t evictable_bytes_ = 0;
  Serial next_serial_ = 1;
  Ticket next_ticket_ = 1;
};

}  // namespace argosy::store
