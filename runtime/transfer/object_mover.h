#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/store/object_store.h"
#include "runtime/transfer/peers.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"

namespace argosy::transfer {

struct ObjectMoverOptions {
  NodeId self;
  uint64_t chunk_bytes = 1ull << 20;                 // of one request; small enough to copy on the loop
  uint64_t chunk_bytes_max = 8ull << 20;             // what a peer may ask for at once
  size_t chunks_in_flight_max = 8;                   // of one object
  uint64_t bytes_admitted_max = 512ull << 20;        // of all objects being pulled; one larger object is pulled alone
  size_t pulls_waiting_max = 10'000;
  absl::Duration stall_timeout = absl::Seconds(30);  // without a chunk: the next location is tried
};

// Brings objects from other nodes into this node's store, and serves them to others. The first chunk also tells the size; the others are
// sent from the object where it lies, and received straight into the space of the one that is made here. Many who want one object share one pull; its locations are tried in turn, and what came from one is kept when
// the next goes on.
//
// Thread:   the loop's.
// Lifetime: the store and the peers outlive it; callbacks that wait when it is destroyed are dropped.
// Failure:  Pull: NOT_FOUND when no location has the object (the message says what each answered), UNAVAILABLE when one of them may
//           have it and did not give it; RESOURCE_EXHAUSTED when there is no room for it here.
class ObjectMover {
 public:
  ObjectMover(async::Loop& loop, store::ObjectStore& store, Peers& peers, ObjectMoverOptions options);
  ~ObjectMover();

  using Done = std::function<void(absl::Status)>;
  // `done` after the object is sealed here. `job`: for whom; the copy goes when the job ends.
  void Pull(ObjectId object, std::vector<wire::ObjectLocation> locations, JobId job, Done done);
  // Tells each location's node to drop its copy.
  void DropElsewhere(const std::vector<ObjectId>& objects, const std::vector<wire::ObjectLocation>& locations);

  // For the node's service: kPullObject and kPullBytes requests, a kDropObject notice.
  void ServePull(wire::Call call);
  void ServeBytes(wire::Call call);
  void ServeDrop(const wire::DropObject& drop);

  size_t pulls() const { return pulls_.size(); }
  uint64_t bytes_received() const { return bytes_received_; }

 private:
  struct PullState;
  using Pulling = std::shared_ptr<PullState>;

  void Admit();
  bool ServesLater(ObjectId object, wire::Call& call, void (ObjectMover::*serve)(wire::Call));
  void TryNextLocation(const Pulling& pull);
  void RequestChunks(const Pulling& pull);
  void RequestChunk(const Pulling& pull, uint64_t offset);
  void OnFirstChunk(const Pulling& pull, uint64_t generation, absl::StatusOr<wire::ObjectChunk> chunk);
  std::span<std::byte> Room(const Pulling& pull, uint64_t generation, uint64_t offset, uint64_t at);
  void OnBytes(const Pulling& pull, uint64_t generation, uint64_t offset, absl::StatusOr<uint64_t> size);
  void WatchProgress(const Pulling& pull);
  void OnSize(const Pulling& pull, uint64_t total_size, std::string first_bytes);
  // Somebody makes it on this node: that is waited for.
  void AwaitCreator(const Pulling& pull);
  // A chunk lies in its place. False when that was the pull's end.
  bool Arrived(const Pulling& pull, uint64_t offset, uint64_t size);
  void LocationFailed(const Pulling& pull, absl::Status why);
  void Finish(const Pulling& pull, absl::Status status);

  async::Loop& loop_;
  store::ObjectStore& store_;
  Peers& peers_;
  ObjectMoverOptions options_;
  std::unordered_map<ObjectId, Pulling> pulls_;
  std::deque<Pulling> waiting_;        // for admission
  uint64_t bytes_admitted_ = 0;
  size_t admitted_ = 0;
  uint64_t bytes_received_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::transfer
