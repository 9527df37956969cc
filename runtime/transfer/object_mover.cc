#include "runtime/transfer/object_mover.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::transfer {

struct ObjectMover::PullState {
  PullState(async::Loop& loop, ObjectId object) : object(object), stall_timer(loop) {}

  ObjectId object;
  JobId job;
  std::deque<wire::ObjectLocation> locations;
  std::set<std::string> known;               // addresses that are or were in `locations`
  std::vector<Done> waiters;
  uint64_t admitted_bytes = 0;
  bool admitted = false;
  bool finished = false;

  std::shared_ptr<wire::Connection> connection;
  std::string address;
  uint64_t generation = 0;                   // of the location in use; chunks of an older one are ignored
  std::optional<uint64_t> total_size;
  std::optional<store::Place> place;         // once created here
  bool lost_place = false;                   // deleted while it was being pulled
  std::set<uint64_t> missing;                // offsets not asked for
  std::set<uint64_t> in_flight;
  std::string failures;
  bool unreached = false;                    // a location did not say that it has it not
  bool progressed = false;                   // since the stall timer was set
  async::Timer stall_timer;
};

ObjectMover::ObjectMover(async::Loop& loop, store::ObjectStore& store, Peers& peers, ObjectMoverOptions options)
    : loop_(loop), store_(store), peers_(peers), options_(options) {}

ObjectMover::~ObjectMover() {
  alive_.reset();
  auto pulls = std::exchange(pulls_, {});
  for (auto& [object, pull] : pulls) {
    pull->finished = true;
    pull->stall_timer.Cancel();
    pull->waiters.clear();
  }
}

void ObjectMover::Pull(ObjectId object, std::vector<wire::ObjectLocation> locations, JobId job, Done done) {
  if (store_.Contains(object)) return done(absl::OkStatus());
  auto at = pulls_.find(object);
  if (at == pulls_.end() && pulls_.size() >= options_.pulls_waiting_max) {
    return done(MakeStatus(absl::StatusCode::kResourceExhausted, "{} objects are being pulled already", pulls_.size()));
  }
  bool is_new = at == pulls_.end();
  Pulling pull = is_new ? std::make_shared<PullState>(loop_, object) : at->second;
  pull->waiters.push_back(std::move(done));
  for (wire::ObjectLocation& location : locations) {
    if (location.node == options_.self || location.wire_address.empty() || !pull->known.insert(location.wire_address).second) continue;
    if (is_new) pull->admitted_bytes = std::max(pull->admitted_bytes, location.size);
    pull->locations.push_back(std::move(location));
  }
  if (!is_new) return;
  pull->job = job;
  pulls_[object] = pull;
  waiting_.push_back(pull);
  Admit();
}

void ObjectMover::Admit() {
  while (!waiting_.empty()) {
    Pulling pull = waiting_.front();
    if (admitted_ > 0 && bytes_admitted_ + pull->admitted_bytes > options_.bytes_admitted_max) return;
    waiting_.pop_front();
    if (pull->finished) continue;
    pull->admitted = true;
    bytes_admitted_ += pull->admitted_bytes;
    ++admitted_;
    TryNextLocation(pull);
  }
}

void ObjectMover::TryNextLocation(const Pulling& pull) {
  if (pull->finished) return;
  if (pull->locations.empty()) {
    std::string what = fmt::format("no location has object {}{}", pull->object.Hex(), pull->failures.empty() ? ": none was given" : pull->failures);
    return Finish(pull, pull->unreached ? Unavailable("{}", what) : NotFound("{}", what));
  }
  pull->address = pull->locations.front().wire_address;
  pull->locations.pop_front();
  uint64_t generation = ++pull->generation;
  peers_.Get(pull->address, [this, weak = std::weak_ptr<bool>(alive_), pull,
                             generation](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
    if (weak.expired() || pull->finished || generation != pull->generation) return;
    if (!connection.ok()) return LocationFailed(pull, connection.status());
    pull->connection = *connection;
    if (!pull->total_size) return RequestChunk(pull, 0);
    RequestChunks(pull);
  });
}

void ObjectMover::LocationFailed(const Pulling& pull, absl::Status why) {
  pull->failures += fmt::format("; {}: {}", pull->address, Message(why));
  // Also when it has no room to read it back from its disk. What says nonsense does not have it.
  bool has_not = absl::IsNotFound(why) || absl::IsFailedPrecondition(why) || absl::IsInvalidArgument(why);
  pull->unreached = pull->unreached || !has_not;
  ++pull->generation;
  pull->connection = nullptr;
  pull->missing.insert(pull->in_flight.begin(), pull->in_flight.end());
  if (!pull->total_size) pull->missing.clear();
  pull->in_flight.clear();
  pull->stall_timer.Cancel();
  TryNextLocation(pull);
}

void ObjectMover::RequestChunks(const Pulling& pull) {
  while (!pull->finished && pull->connection && !pull->missing.empty() && pull->in_flight.size() < options_.chunks_in_flight_max) {
    uint64_t offset = *pull->missing.begin();
    pull->missing.erase(pull->missing.begin());
    RequestChunk(pull, offset);
  }
}

void ObjectMover::RequestChunk(const Pulling& pull, uint64_t offset) {
  pull->in_flight.insert(offset);
  uint64_t generation = pull->generation;
  std::weak_ptr<bool> weak = alive_;
  WatchProgress(pull);
  if (!pull->total_size) {
    wire::PullObject request{pull->object, offset, options_.chunk_bytes};
    return pull->connection->Request(request, [this, weak, pull, generation](absl::StatusOr<wire::ObjectChunk> chunk) {
      if (!weak.expired()) OnFirstChunk(pull, generation, std::move(chunk));
    });
  }
  wire::PullBytes request{pull->object, offset, std::min(options_.chunk_bytes, *pull->total_size - offset)};
  auto room = [this, weak, pull, generation, offset](uint64_t at) {
    return weak.expired() ? std::span<std::byte>() : Room(pull, generation, offset, at);
  };
  pull->connection->RequestBytes(request, room, [this, weak, pull, generation, offset](absl::StatusOr<uint64_t> size) {
    if (!weak.expired()) OnBytes(pull, generation, offset, std::move(size));
  });
}

void ObjectMover::WatchProgress(const Pulling& pull) {
  uint64_t generation = pull->generation;
  pull->progressed = false;
  std::weak_ptr<bool> weak = alive_;
  pull->stall_timer.After(options_.stall_timeout, [this, weak, pull = std::weak_ptr<PullState>(pull), generation] {
    Pulling strong = pull.lock();
    if (weak.expired() || !strong || strong->finished || strong->generation != generation) return;
    if (strong->progressed) return WatchProgress(strong);
    LocationFailed(strong, absl::DeadlineExceededError("no answer"));
  });
}

void ObjectMover::OnFirstChunk(const Pulling& pull, uint64_t generation, absl::StatusOr<wire::ObjectChunk> chunk) {
  if (pull->finished || generation != pull->generation) return;
  if (!chunk.ok()) return LocationFailed(pull, chunk.status());
  bytes_received_ += chunk->bytes.size();
  OnSize(pull, chunk->total_size, std::move(chunk->bytes));
}

// Nowhere when the place may be another object's by now.
std::span<std::byte> ObjectMover::Room(const Pulling& pull, uint64_t generation, uint64_t offset, uint64_t at) {
  if (pull->finished || generation != pull->generation || pull->lost_place || !pull->place) return {};
  pull->progressed = true;
  uint64_t size = std::min(options_.chunk_bytes, pull->place->size - offset);
  if (at >= size) return {};
  return store_.Bytes(*pull->place).subspan(offset + at, size - at);
}

void ObjectMover::OnBytes(const Pulling& pull, uint64_t generation, uint64_t offset, absl::StatusOr<uint64_t> size) {
  if (pull->finished || generation != pull->generation) return;
  if (!size.ok()) return LocationFailed(pull, size.status());
  bytes_received_ += *size;
  if (!Arrived(pull, offset, *size)) return;
  if (pull->in_flight.empty() && pull->missing.empty()) return Finish(pull, store_.Seal(pull->object, 0));
  RequestChunks(pull);
}

void ObjectMover::OnSize(const Pulling& pull, uint64_t total_size, std::string first_bytes) {
  pull->total_size = total_size;
  pull->stall_timer.Cancel();
  if (uint64_t more = total_size - std::min(total_size, pull->admitted_bytes); more > 0) {
    bytes_admitted_ += more;   // admitted on a location's word
    pull->admitted_bytes += more;
  }
  uint64_t generation = pull->generation;
  store::CreateRequest create{.object = pull->object, .size = total_size, .client = 0, .owner = {}, .job = pull->job, .is_copy = true};
  store_.Create(create, [this, weak = std::weak_ptr<bool>(alive_), pull, generation,
                         first_bytes = std::move(first_bytes)](absl::StatusOr<store::Place> place) {
    if (weak.expired() || pull->finished) return;
    if (place.status().code() == absl::StatusCode::kAlreadyExists) {
      // A worker of this node makes or made it meanwhile.
      return AwaitCreator(pull);
    }
    if (!place.ok()) return Finish(pull, place.status());
    pull->place = *place;
    store_.WhenCreated(pull->object, [this, weak, pull](bool sealed) {
      pull->lost_place = !sealed;
      // Its task runs again, on this node.
      if (!sealed && !weak.expired() && !pull->finished && store_.IsBeingCreated(pull->object)) AwaitCreator(pull);
    });
    for (uint64_t offset = options_.chunk_bytes; offset < pull->place->size; offset += options_.chunk_bytes) pull->missing.insert(offset);
    if (generation != pull->generation) {
      // Cannot happen while no request is under way; the first chunk is asked for again to be safe.
      pull->missing.insert(0);
      pull->in_flight.erase(0);
    } else {
      size_t size = std::min<size_t>(first_bytes.size(), pull->place->size);
      if (size > 0) std::memcpy(store_.Bytes(*pull->place).data(), first_bytes.data(), size);
      if (!Arrived(pull, 0, first_bytes.size())) return;
    }
    if (pull->in_flight.empty() && pull->missing.empty()) return Finish(pull, store_.Seal(pull->object, 0));
    RequestChunks(pull);
  });
}

void ObjectMover::AwaitCreator(const Pulling& pull) {
  ++pull->generation;   // what still comes is for nobody
  pull->connection = nullptr;
  pull->stall_timer.Cancel();
  store_.WhenCreated(pull->object, [this, weak = std::weak_ptr<bool>(alive_), pull](bool sealed) {
    if (weak.expired() || pull->finished) return;
    Finish(pull, sealed ? absl::OkStatus() : Unavailable("object {} was given up by its creator", pull->object.Hex()));
  });
}

bool ObjectMover::Arrived(const Pulling& pull, uint64_t offset, uint64_t size) {
  if (pull->lost_place || !pull->place) {
    Finish(pull, Unavailable("object {} was deleted while it was pulled", pull->object.Hex()));
    return false;
  }
  uint64_t want = std::min(options_.chunk_bytes, pull->place->size - std::min(offset, pull->place->size));
  if (size != want) {
    LocationFailed(pull, InvalidArgument("sent {} bytes at {}, {} were asked for", size, offset, want));
    return false;
  }
  pull->in_flight.erase(offset);
  return true;
}

void ObjectMover::Finish(const Pulling& pull, absl::Status status) {
  if (pull->finished) return;
  pull->finished = true;
  pull->stall_timer.Cancel();
  pull->connection = nullptr;
  pulls_.erase(pull->object);
  if (pull->admitted) {
    bytes_admitted_ -= pull->admitted_bytes;
    --admitted_;
  }
  // A half-written object is nobody's.
  if (!status.ok() && pull->place && !pull->lost_place) {
    if (absl::Status aborted = store_.Abort(pull->object, 0); !aborted.ok()) spdlog::debug("{}", Message(aborted));
  }
  std::weak_ptr<bool> weak = alive_;
  for (Done& done : std::exchange(pull->waiters, {})) done(status);
  if (!weak.expired()) Admit();
}

void ObjectMover::DropElsewhere(const std::vector<ObjectId>& objects, const std::vector<wire::ObjectLocation>& locations) {
  std::set<std::string> told;
  for (const wire::ObjectLocation& location : locations) {
    if (location.node == options_.self || location.wire_address.empty() || !told.insert(location.wire_address).second) continue;
    peers_.Get(location.wire_address, [objects](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
      // A node that cannot be reached is gone with its copies, or drops them when the job ends.
      if (connection.ok()) (*connection)->Notify(wire::DropObject{objects});
    });
  }
}

// True when the object is not to be read yet: it is being made, or lies on disk.
bool ObjectMover::ServesLater(ObjectId object, wire::Call& call, void (ObjectMover::*serve)(wire::Call)) {
  bool is_made = store_.IsBeingCreated(object);
  if (!is_made && !store_.IsSpilled(object)) return false;
  auto go_on = [this, weak = std::weak_ptr<bool>(alive_), serve, shared = std::make_shared<wire::Call>(std::move(call))](const absl::Status& status) {
    if (weak.expired()) return;
    if (status.ok()) (this->*serve)(std::move(*shared));
    else shared->Fail(status);
  };
  if (is_made) store_.WhenCreated(object, [go_on](bool sealed) { go_on(sealed ? absl::OkStatus() : NotFound("the object was given up by its creator")); });
  else store_.WhenHere(object, go_on);
  return true;
}

void ObjectMover::ServePull(wire::Call call) {
  absl::StatusOr<wire::PullObject> request = call.As<wire::PullObject>();
  if (!request.ok()) return call.Fail(request.status());
  if (ServesLater(request->object, call, &ObjectMover::ServePull)) return;
  absl::StatusOr<store::Place> place = store_.Pin(request->object, 0);
  if (!place.ok()) return call.Fail(place.status());
  if (request->offset > place->size) {
    call.Fail(InvalidArgument("offset {} is beyond the object's {} bytes", request->offset, place->size));
  } else {
    uint64_t size = std::min({request->size_max, options_.chunk_bytes_max, place->size - request->offset});
    const std::byte* bytes = store_.Bytes(*place).data() + request->offset;
    wire::ObjectChunk chunk{place->size, std::string(reinterpret_cast<const char*>(bytes), size)};
    call.Answer(chunk);
  }
  store_.Release(request->object, 0);
}

void ObjectMover::ServeBytes(wire::Call call) {
  absl::StatusOr<wire::PullBytes> request = call.As<wire::PullBytes>();
  if (!request.ok()) return call.Fail(request.status());
  ObjectId object = request->object;
  if (ServesLater(object, call, &ObjectMover::ServeBytes)) return;
  absl::StatusOr<store::Place> place = store_.Pin(object, 0);
  if (!place.ok()) return call.Fail(place.status());
  // Held until they are sent: the space must not become another object's.
  std::shared_ptr<void> pin(nullptr, [this, weak = std::weak_ptr<bool>(alive_), object](void*) {
    if (!weak.expired()) store_.Release(object, 0);
  });
  if (request->offset > place->size || request->size > std::min(options_.chunk_bytes_max, place->size - request->offset)) {
    return call.Fail(InvalidArgument("bytes {} to {} of an object of {}, at most {} at once", request->offset, request->offset + request->size,
                                     place->size, options_.chunk_bytes_max));
  }
  call.AnswerBytes(store_.Bytes(*place).subspan(request->offset, request->size), std::move(pin));
}

void ObjectMover::ServeDrop(const wire::DropObject& drop) {
  for (ObjectId object : drop.objects) store_.Delete(object);
}

}  // namespace argosy::transfer
