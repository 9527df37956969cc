#include "runtime/store/object_table.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::store {

ObjectTable::ObjectTable(Options options) : options_(options), allocator_(options.capacity) {}

std::string ObjectTable::Full(uint64_t size) const {
  return fmt::format("an object of {} bytes does not fit: the object store has {} bytes, {} in use ({} of them evictable), "
                     "largest free part {}, {} creates wait", size, capacity(), used(), evictable_bytes_, allocator_.largest_free(),
                     waiting_.size());
}

ObjectTable::Ticket ObjectTable::Create(const CreateRequest& request, absl::Time now) {
  Ticket ticket = next_ticket_++;
  auto fail = [&](absl::Status status) {
    answers_.push_back({ticket, request.object, std::move(status)});
    return ticket;
  };
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
  if (waiting_.empty()) {
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

void ObjectTable::Insert(Ticket ticket, const CreateRequest& request, uint64_t offset) {
  Serial serial = next_serial_++;
  Entry& entry = entries_[serial];
  entry.object = request.object;
  entry.place = {offset, request.size};
  entry.creator = request.client;
  entry.owner = request.owner;
  entry.job = request.job;
  entry.is_copy = request.is_copy;
  by_id_[request.object] = serial;
  answers_.push_back({ticket, request.object, entry.place});
}

std::optional<uint64_t> ObjectTable::AllocateEvicting(uint64_t size) {
  for (;;) {
    if (auto offset = allocator_.Allocate(size)) return offset;
    // Evicting everything would not make room: keep the copies.
    if (lru_.empty() || capacity() - used() + evictable_bytes_ < Allocator::RoundUp(size)) return std::nullopt;
    Serial oldest = lru_.front();
    by_id_.erase(entries_.at(oldest).object);
    Destroy(oldest);
  }
}

absl::Status ObjectTable::Seal(ObjectId object, ClientNumber client) {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return NotFound("object {} is not in this store", object.Hex());
  Entry& entry = entries_.at(at->second);
  if (entry.sealed) return FailedPrecondition("object {} is already sealed", object.Hex());
  if (entry.creator != client) return FailedPrecondition("object {} is being created by another client", object.Hex());
  entry.sealed = true;
  UpdateEvictable(at->second, entry);
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
  ++entry.pins;
  pins_[client].emplace(object, at->second);
  UpdateEvictable(at->second, entry);
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
  if (entry.deleted && entry.pins == 0) return Destroy(serial);
  UpdateEvictable(serial, entry);
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
  if (entry.pins > 0) {
    entry.deleted = true;
    UpdateEvictable(serial, entry);
    return;
  }
  Destroy(serial);
}

void ObjectTable::Destroy(Serial serial) {
  Entry& entry = entries_.at(serial);
  if (entry.evictable) {
    lru_.erase(entry.lru);
    evictable_bytes_ -= Allocator::RoundUp(entry.place.size);
  }
  ARGOSY_CHECK(allocator_.Free(entry.place.offset));
  freed_.push_back({entry.place.offset, Allocator::RoundUp(entry.place.size)});
  entries_.erase(serial);
}

void ObjectTable::UpdateEvictable(Serial serial, Entry& entry) {
  bool evictable = entry.is_copy && entry.sealed && !entry.deleted && entry.pins == 0;
  if (evictable == entry.evictable) return;
  entry.evictable = evictable;
  if (evictable) {
    entry.lru = lru_.insert(lru_.end(), serial);
    evictable_bytes_ += Allocator::RoundUp(entry.place.size);
  } else {
    lru_.erase(entry.lru);
    evictable_bytes_ -= Allocator::RoundUp(entry.place.size);
  }
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
  while (!lru_.empty()) {
    Serial oldest = lru_.front();
    by_id_.erase(entries_.at(oldest).object);
    Destroy(oldest);
  }
}

std::vector<ObjectTable::Answer> ObjectTable::TakeAnswers(absl::Time now) {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    if (auto offset = AllocateEvicting(first.request.size)) {
      Insert(first.ticket, first.request, *offset);
    } else if (first.deadline <= now) {
      answers_.push_back({first.ticket, first.request.object,
                          MakeStatus(absl::StatusCode::kResourceExhausted, "{}; it waited {} for space", Full(first.request.size),
                                     absl::FormatDuration(options_.create_wait_max))});
      aborted_.push_back(first.request.object);
    } else {
      break;
    }
    waiting_.pop_front();
  }
  return std::exchange(answers_, {});
}

std::optional<absl::Time> ObjectTable::NextDeadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().deadline;
}

std::vector<ObjectTable::Listed> ObjectTable::List() const {
  std::vector<Listed> list;
  list.reserve(entries_.size());
  for (const auto& [serial, entry] : entries_) {
    list.push_back({entry.object, entry.place.size, entry.owner, entry.job, entry.sealed, entry.is_copy, entry.pins});
  }
  return list;
}

ObjectTable::State ObjectTable::StateOf(ObjectId object) const {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return State::kAbsent;
  return entries_.at(at->second).sealed ? State::kSealed : State::kCreated;
}

std::optional<uint64_t> ObjectTable::SizeOf(ObjectId object) const {
  auto at = by_id_.find(object);
  if (at == by_id_.end()) return std::nullopt;
  return entries_.at(at->second).place.size;
}

}  // namespace argosy::store
