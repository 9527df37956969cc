#include "runtime/store/object_table.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::store {

ObjectTable::ObjectTable(Options options) : options_(options), allocator_(options.capacity), disk_(options.spill_max) {
  options_.spill_batch = std::min(options_.spill_batch, options_.capacity / 8);
}

std::string ObjectTable::Full(uint64_t size) const {
  std::string text = fmt::format("an object of {} bytes does not fit: the object store has {} bytes, {} in use ({} of them evictable), "
                                 "largest free part {}, {} creates wait", size, capacity(), used(), evictable_bytes_,
                                 allocator_.largest_free(), waiting_.size());
  if (options_.spill_max > 0) text += fmt::format("; {} of at most {} bytes are spilled to disk", disk_.used(), options_.spill_max);
  if (!spill_error_.empty()) text += "; " + spill_error_;
  return text;
}

ObjectTable::Ticket ObjectTable::Create(const CreateRequest& request, absl::Time now) {
  Ticket ticket = next_ticket_++;
  auto fail = [&](absl::Status status) {
    answers_.push_back({ticket, request.object, std::move(status)});
    return ticket;
  };
  if (!request.is_copy) MakeWay(request);
  if (by_id_.contains(request.object)) {
    return fail(MakeStatus(absl::StatusCode::kAlreadyExists, "object {} is already in this store", request.object.Hex()));
  }
  for (const Waiting& other : waiting_) {
    if (other.request.object == request.object) {
      return fail(MakeStatus(absl::StatusCode::kAlreadyExists, "object {} already waits for space here", request.object.Hex()));
    }
  }
  if (request.size > capacity() || Allocator::RoundUp(request.size) > capacity()) {
    return fail(MakeStatus(absl::StatusCode::kResourceExhausted, "{}", Full(request.size)));
  }
  if (waiting_.empty() && restores_.empty()) {
    if (auto offset = AllocateEvicting(request.size)) {
      Insert(ticket, request, *offset);
      return ticket;
    }
  }
  if (waiting_.size() >= options_.waiting_creates_max) {
    return fail(MakeStatus(absl::StatusCode::kResourceExhausted, "{} (the most that may wait)", Full(request.size)));
  }
  waiting_.push_back({ticket, request, now + options_.create_wait_max});
  return ticket;
}

void ObjectTable::MakeWay(const CreateRequest& request) {
  // A copy that is still on its way too: its pull may be waiting for a node that is gone.
  if (auto at = by_id_.find(request.object); at != by_id_.end()) {
    const Entry& here = entries_.at(at->second);
    if (here.is_copy || (here.sealed && here.owner == request.owner)) DeleteEntry(at->second);
  }
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.request.object != request.object || !waiting.request.is_copy) return false;
    answers_.push_back({waiting.ticket, request.object, MakeStatus(absl::StatusCode::kAlreadyExists, "object {} is made here", request.object.Hex())});
    return true;
  });
}

void ObjectTable::Insert(Ticket ticket, const CreateRequest& request, uint64_t offset) {
  Serial serial = next_serial_++;
  Entry& entry = entries_[serial];
  entry.object = request.object;
  entry.place = {offset, request.size};
  entry.creator = request.client;
  entry.owner = request.owner;
  entry.job = request.job;
  entry.is_copy = request.is_copy;
  entry.owner_tcp = request.owner_tcp;
  entry.lru = held_.insert(held_.end(), serial);
  by_id_[request.object] = serial;
  answers_.push_back({ticket, request.object, entry.place});
}

std::optional<uint64_t> ObjectTable::AllocateEvicting(uint64_t size) {
  for (;;) {
    if (auto offset = allocator_.Allocate(size)) return offset;
    // Evicting everything would not make room: keep the copies.
    if (lru_.empty() || capacity() - used() + evictable_bytes_ < Allocator::RoundUp(size)) return std::nullopt;
    Evict(lru_.front());
  }
}

void ObjectTable::Evict(Serial serial) {
  Entry& entry = entries_.at(serial);
  if (!entry.disk) {
    by_id_.erase(entry.object);
    return Destroy(serial);
  }
  FreeMemory(entry);
  UpdateSpot(entry);
}

absl::Status ObjectTable::Seal(ObjectId object, ClientNumber client) {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return NotFound("object {} is not in this store", object.Hex());
  Entry& entry = entries_.at(at->second);
  if (entry.sealed) return FailedPrecondition("object {} is already sealed", object.Hex());
  if (entry.creator != client) return FailedPrecondition("object {} is being created by another client", object.Hex());
  entry.sealed = true;
  UpdateSpot(entry);
  return absl::OkStatus();
}

absl::Status ObjectTable::Abort(ObjectId object, ClientNumber client) {
  auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.request.object == object && waiting.request.client == client;
  });
  if (waiting != waiting_.end()) {
    answers_.push_back({waiting->ticket, object, absl::CancelledError("aborted")});
    aborted_.push_back(object);
    waiting_.erase(waiting);
    return absl::OkStatus();
  }
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return NotFound("object {} is not in this store", object.Hex());
  const Entry& entry = entries_.at(at->second);
  if (entry.sealed || entry.creator != client) {
    return FailedPrecondition("object {} is not being created by this client", object.Hex());
  }
  DeleteEntry(at->second);
  return absl::OkStatus();
}

absl::StatusOr<Place> ObjectTable::Pin(ObjectId object, ClientNumber client) {
  auto at = by_id_.find(object);
  if (at == by_id_.end() || !entries_.at(at->second).sealed) return NotFound("object {} is not in this store", object.Hex());
  Entry& entry = entries_.at(at->second);
  if (!entry.in_memory || entry.io == Entry::kRestoring) return NotFound("object {} is on disk, not in memory", object.Hex());
  ++entry.pins;
  pins_[client].emplace(object, at->second);
  UpdateSpot(entry);
  return entry.place;
}

bool ObjectTable::Release(ObjectId object, ClientNumber client) {
  auto of_client = pins_.find(client);
  if (of_client == pins_.end()) return false;
  auto pin = of_client->second.find(object);
  if (pin == of_client->second.end()) return false;
  Serial serial = pin->second;
  of_client->second.erase(pin);
  if (of_client->second.empty()) pins_.erase(of_client);
  Unpin(serial);
  return true;
}

void ObjectTable::Unpin(Serial serial) {
  Entry& entry = entries_.at(serial);
  --entry.pins;
  if (entry.deleted && entry.pins == 0 && entry.io == Entry::kNone) return Destroy(serial);
  UpdateSpot(entry);
}

absl::Status ObjectTable::Adopt(ObjectId object, WorkerId owner, const std::string& owner_tcp) {
  auto at = by_id_.find(object);
  if (at == by_id_.end() || !entries_.at(at->second).sealed) return NotFound("object {} is not in this store", object.Hex());
  Entry& entry = entries_.at(at->second);
  entry.is_copy = false;
  entry.owner = owner;
  entry.owner_tcp = owner_tcp;
  UpdateSpot(entry);
  return absl::OkStatus();
}

bool ObjectTable::Delete(ObjectId object) {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return false;
  DeleteEntry(at->second);
  return true;
}

void ObjectTable::DeleteEntry(Serial serial) {
  Entry& entry = entries_.at(serial);
  by_id_.erase(entry.object);
  if (!entry.sealed) aborted_.push_back(entry.object);
  std::erase_if(restores_, [&](const Waiting& waiting) {
    if (waiting.restore != serial) return false;
    answers_.push_back({waiting.ticket, entry.object, NotFound("object {} was deleted", entry.object.Hex()), true});
    return true;
  });
  if (entry.pins > 0 || entry.io != Entry::kNone) {
    entry.deleted = true;
    UpdateSpot(entry);
    return;
  }
  Destroy(serial);
}

void ObjectTable::FreeMemory(Entry& entry) {
  ARGOSY_CHECK(allocator_.Free(entry.place.offset));
  freed_.push_back({entry.place.offset, Allocator::RoundUp(entry.place.size)});
  entry.in_memory = false;
}

void ObjectTable::FreeDisk(Entry& entry) {
  ARGOSY_CHECK(disk_.Free(*entry.disk));
  freed_disk_.push_back({*entry.disk, Allocator::RoundUp(entry.place.size)});
  entry.disk.reset();
}

void ObjectTable::Destroy(Serial serial) {
  Entry& entry = entries_.at(serial);
  entry.deleted = true;
  UpdateSpot(entry);
  if (entry.in_memory) FreeMemory(entry);
  if (entry.disk) FreeDisk(entry);
  held_.erase(entry.lru);
  entries_.erase(serial);
}

void ObjectTable::UpdateSpot(Entry& entry) {
  Entry::Spot spot = Entry::kHeld;
  if (entry.sealed && entry.in_memory && !entry.deleted && entry.pins == 0 && entry.io == Entry::kNone) {
    spot = entry.is_copy || entry.disk ? Entry::kEvictable : Entry::kSpillable;
  }
  if (spot == entry.spot) return;
  if (entry.spot == Entry::kEvictable) evictable_bytes_ -= Allocator::RoundUp(entry.place.size);
  if (spot == Entry::kEvictable) evictable_bytes_ += Allocator::RoundUp(entry.place.size);
  std::list<Serial>& to = ListOf(spot);
  to.splice(to.end(), ListOf(entry.spot), entry.lru);
  entry.spot = spot;
}

std::list<ObjectTable::Serial>& ObjectTable::ListOf(Entry::Spot spot) {
  return spot == Entry::kHeld ? held_ : spot == Entry::kEvictable ? lru_ : spillable_;
}

template <class Matches>
void ObjectTable::DeleteMatching(Matches&& matches) {
  std::vector<Serial> found;
  for (const auto& [serial, entry] : entries_) {
    if (!entry.deleted && matches(entry)) found.push_back(serial);
  }
  for (Serial serial : found) DeleteEntry(serial);
}

void ObjectTable::ClientGone(ClientNumber client) {
  if (auto of_client = pins_.find(client); of_client != pins_.end()) {
    auto pins = std::move(of_client->second);
    pins_.erase(of_client);
    for (const auto& [object, serial] : pins) Unpin(serial);
  }
  DeleteMatching([&](const Entry& entry) { return !entry.sealed && entry.creator == client; });
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.request.client != client) return false;
    answers_.push_back({waiting.ticket, waiting.request.object, absl::CancelledError("the client is gone")});
    aborted_.push_back(waiting.request.object);
    return true;
  });
}

void ObjectTable::OwnerGone(WorkerId owner) {
  if (owner.IsNil()) return;
  DeleteMatching([&](const Entry& entry) { return entry.sealed && !entry.is_copy && entry.owner == owner; });
}

void ObjectTable::JobGone(JobId job) {
  if (job.IsNil()) return;
  DeleteMatching([&](const Entry& entry) { return entry.sealed && entry.job == job; });
}

void ObjectTable::EvictCopies() {
  while (!lru_.empty()) Evict(lru_.front());
}

ObjectTable::Ticket ObjectTable::Restore(ObjectId object, absl::Time now) {
  Ticket ticket = next_ticket_++;
  auto at = by_id_.find(object);
  if (at == by_id_.end() || StateOf(object) != State::kSpilled) {
    answers_.push_back({ticket, object, NotFound("object {} is not on this node's disk", object.Hex()), true});
    return ticket;
  }
  Entry& entry = entries_.at(at->second);
  if (entry.restore_waits || entry.io == Entry::kRestoring) {
    answers_.push_back({ticket, object, MakeStatus(absl::StatusCode::kAlreadyExists, "object {} is being restored", object.Hex()), true});
    return ticket;
  }
  if (restores_.size() >= options_.waiting_creates_max) {
    answers_.push_back({ticket, object, MakeStatus(absl::StatusCode::kResourceExhausted, "{} (the most restores that may wait)",
                                                   Full(entry.place.size)), true});
    return ticket;
  }
  CreateRequest request{.object = object, .size = entry.place.size};
  restores_.push_back({ticket, request, now + options_.create_wait_max, at->second});
  entry.restore_waits = true;
  return ticket;
}

bool ObjectTable::Serve(std::deque<Waiting>& queue) {
  if (queue.empty()) return false;
  const Waiting first = queue.front();
  std::optional<uint64_t> offset = AllocateEvicting(first.request.size);
  if (!offset) return false;
  queue.pop_front();
  if (first.restore == 0) {
    Insert(first.ticket, first.request, *offset);
    return true;
  }
  Entry& entry = entries_.at(first.restore);
  entry.restore_waits = false;
  entry.place.offset = *offset;
  entry.in_memory = true;
  entry.io = Entry::kRestoring;
  answers_.push_back({first.ticket, entry.object, entry.place, true, first.restore, *entry.disk});
  return true;
}

void ObjectTable::FailOverdue(std::deque<Waiting>& queue, absl::Time now) {
  while (!queue.empty() && queue.front().deadline <= now) {
    const Waiting first = queue.front();
    queue.pop_front();
    answers_.push_back({first.ticket, first.request.object,
                        MakeStatus(absl::StatusCode::kResourceExhausted, "{}; it waited {} for space", Full(first.request.size),
                                   absl::FormatDuration(options_.create_wait_max)), first.restore != 0});
    if (first.restore == 0) aborted_.push_back(first.request.object);
    else entries_.at(first.restore).restore_waits = false;
  }
}

std::vector<ObjectTable::Answer> ObjectTable::TakeAnswers(absl::Time now) {
  for (bool served = true; served;) {
    bool restore_first = !served_restore_last_;
    served = Serve(restore_first ? restores_ : waiting_);
    if (served) served_restore_last_ = restore_first;
    else if ((served = Serve(restore_first ? waiting_ : restores_))) served_restore_last_ = !restore_first;
    if (!served) {
      size_t before = waiting_.size() + restores_.size();
      FailOverdue(restores_, now);
      FailOverdue(waiting_, now);
      served = waiting_.size() + restores_.size() < before;   // the next in the queue may fit
    }
  }
  PlanSpills(now);
  return std::exchange(answers_, {});
}

void ObjectTable::PlanSpills(absl::Time now) {
  if (now >= spill_not_before_) spill_not_before_ = absl::InfinitePast();
  if (options_.spill_max == 0 || now < spill_not_before_ || (waiting_.empty() && restores_.empty())) return;
  uint64_t need = 0;
  for (const std::deque<Waiting>* queue : {&waiting_, &restores_}) {
    if (!queue->empty()) need = std::max(need, Allocator::RoundUp(queue->front().request.size));
  }
  // What is free may lie in parts that are too small: then more is written until it fits.
  uint64_t have = capacity() - used() + evictable_bytes_ + spilling_bytes_;
  if (have >= need && spilling_bytes_ > 0) return;
  uint64_t chosen = 0;
  while (!spillable_.empty() && (have < need || chosen < options_.spill_batch)) {
    Serial serial = spillable_.front();
    Entry& entry = entries_.at(serial);
    std::optional<uint64_t> offset = disk_.Allocate(entry.place.size);
    if (!offset) {
      spill_error_ = "no more may be written to disk";
      break;
    }
    uint64_t size = Allocator::RoundUp(entry.place.size);
    entry.disk = offset;
    entry.io = Entry::kSpilling;
    UpdateSpot(entry);
    spilling_bytes_ += size;
    chosen += size;
    have += size;
    spills_.push_back({serial, entry.place, *offset});
  }
}

void ObjectTable::SpillDone(uint64_t serial, const absl::Status& status, absl::Time now) {
  auto at = entries_.find(serial);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  spilling_bytes_ -= Allocator::RoundUp(entry.place.size);
  entry.io = Entry::kNone;
  if (status.ok()) {
    spill_error_.clear();
  } else {
    FreeDisk(entry);
    spill_error_ = Message(status);
    spill_not_before_ = now + options_.spill_pause;
  }
  if (entry.deleted && entry.pins == 0) return Destroy(serial);
  UpdateSpot(entry);
}

void ObjectTable::RestoreDone(uint64_t serial, Restored outcome) {
  auto at = entries_.find(serial);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  entry.io = Entry::kNone;
  if (outcome == Restored::kLost && !entry.deleted) by_id_.erase(entry.object);
  if (outcome == Restored::kLost || entry.deleted) return Destroy(serial);
  if (outcome == Restored::kNoMemory) FreeMemory(entry);
  UpdateSpot(entry);
}

std::optional<absl::Time> ObjectTable::NextDeadline() const {
  if (waiting_.empty() && restores_.empty()) return std::nullopt;
  absl::Time next = absl::InfiniteFuture();
  if (!waiting_.empty()) next = std::min(next, waiting_.front().deadline);
  if (!restores_.empty()) next = std::min(next, restores_.front().deadline);
  if (spill_not_before_ != absl::InfinitePast()) next = std::min(next, spill_not_before_);
  return next;
}

std::vector<ObjectTable::Listed> ObjectTable::List() const {
  std::vector<Listed> list;
  list.reserve(entries_.size());
  for (const auto& [serial, entry] : entries_) {
    list.push_back({entry.object, entry.place.size, entry.owner, entry.job, entry.sealed, entry.is_copy, entry.pins, entry.in_memory,
                    entry.disk.has_value() && entry.io != Entry::kSpilling, entry.deleted, entry.owner_tcp});
  }
  return list;
}

bool ObjectTable::IsMaking(ObjectId object, ClientNumber client, Place place) const {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return false;
  const Entry& entry = entries_.at(at->second);
  return !entry.sealed && entry.creator == client && entry.place.offset == place.offset;
}

ObjectTable::State ObjectTable::StateOf(ObjectId object) const {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return State::kAbsent;
  const Entry& entry = entries_.at(at->second);
  if (!entry.sealed) return State::kCreated;
  return entry.in_memory && entry.io != Entry::kRestoring ? State::kSealed : State::kSpilled;
}

std::optional<uint64_t> ObjectTable::SizeOf(ObjectId object) const {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return std::nullopt;
  return entries_.at(at->second).place.size;
}

}  // namespace argosy::store
