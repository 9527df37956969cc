#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
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
};

struct Place {
  uint64_t offset = 0;
  uint64_t size = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

// The objects of one node: created -> sealed -> (deleted). Who creates an object may write it until it is sealed; who pins a sealed one
// may read it until it is released. A deleted object that is pinned keeps its space until the last release. The primary copy lives
// until it is deleted; copies without pins are evicted, least recently used first, when a create needs their space. Creates that do
// not fit wait in order, in a bounded queue.
//
// Thread:   its owner's.
// Failure:  Create: RESOURCE_EXHAUSTED (never fits, or too many wait), ALREADY_EXISTS. Others: NOT_FOUND, FAILED_PRECONDITION.
class ObjectTable {
 public:
  struct Options {
    uint64_t capacity = 0;             // bytes
    size_t waiting_creates_max = 4096;
    absl::Duration create_wait_max = absl::Seconds(60);
  };
  // Names a create; its answer, now or later, carries it.
  using Ticket = uint64_t;
  struct Answer {
    Ticket ticket = 0;
    ObjectId object;
    absl::StatusOr<Place> place;
  };
  enum class State { kAbsent, kCreated, kSealed };

  explicit ObjectTable(Options options);

  // Every create is answered once by TakeAnswers, perhaps right after this call.
  Ticket Create(const CreateRequest& request, absl::Time now);
  absl::Status Seal(ObjectId object, ClientNumber client);
  // Gives up what `client` created and did not seal, or waits to create.
  absl::Status Abort(ObjectId object, ClientNumber client);
  // NOT_FOUND unless sealed.
  absl::StatusOr<Place> Pin(ObjectId object, ClientNumber client);
  // One pin of `client`. False when it has none.
  bool Release(ObjectId object, ClientNumber client);
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
  };
  std::vector<Listed> List() const;
  State StateOf(ObjectId object) const;
  std::optional<uint64_t> SizeOf(ObjectId object) const;
  uint64_t used() const { return allocator_.used(); }
  uint64_t capacity() const { return allocator_.size(); }
  uint64_t evictable() const { return evictable_bytes_; }
  size_t objects() const { return by_id_.size(); }
  size_t waiting_creates() const { return waiting_.size(); }

 private:
  using Serial = uint64_t;
  struct Entry {
    ObjectId object;
    Place place;
    ClientNumber creator = 0;
    WorkerId owner;
    JobId job;
    bool is_copy = false;
    bool sealed = false;
    bool deleted = false;
    uint32_t pins = 0;
    std::list<Serial>::iterator lru;   // valid when evictable
    bool evictable = false;
  };
  struct Waiting {
    Ticket ticket = 0;
    CreateRequest request;
    absl::Time deadline;
  };

  void Insert(Ticket ticket, const CreateRequest& request, uint64_t offset);
  std::optional<uint64_t> AllocateEvicting(uint64_t size);
  void UpdateEvictable(Serial serial, Entry& entry);
  // Frees the space and forgets the entry.
  void Destroy(Serial serial);
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
  std::list<Serial> lru_;                        // evictable, least recently used first
  std::deque<Waiting> waiting_;
  std::vector<Answer> answers_;
  std::vector<Range> freed_;
  std::vector<ObjectId> aborted_;
  uint64_t evictable_bytes_ = 0;
  Serial next_serial_ = 1;
  Ticket next_ticket_ = 1;
};

}  // namespace argosy::store
