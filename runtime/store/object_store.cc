#include "runtime/store/object_store.h"

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::store {

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Open(async::Loop& loop, const ObjectStoreOptions& options) {
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::Make(options.size));
  std::unique_ptr<ObjectStore> store(new ObjectStore(loop, options, std::move(arena)));
  ARGOSY_ASSIGN_OR_RETURN(store->door_, Door::Open(loop, *store->arena_, options.door_path));
  return store;
}

ObjectStore::ObjectStore(async::Loop& loop, const ObjectStoreOptions& options, std::unique_ptr<Arena> arena)
    : loop_(loop), options_(options), arena_(std::move(arena)),
      table_({.capacity = arena_->size(),
              .waiting_creates_max = options.waiting_creates_max,
              .create_wait_max = options.create_wait_max,
              .spill_max = options.spill_disk ? options.spill_max : 0,
              .spill_batch = options.spill_batch,
              .spill_pause = options.spill_pause}),
      extents_(arena_->size()), deadline_timer_(loop), punch_timer_(loop), work_(loop), disk_work_(loop) {
  punch_timer_.Every(std::max(options_.punch_idle / 4, absl::Milliseconds(10)), [this] { PunchIdle(options_.punch_idle); });
}

ObjectStore::~ObjectStore() = default;

void ObjectStore::RemoveClient(ClientNumber client) {
  for (auto& [ticket, pending] : creating_) {
    if (pending.client == client) pending.created = nullptr;
  }
  table_.ClientGone(client);
  Settle();
}

void ObjectStore::Create(const CreateRequest& request, Created created) {
  ObjectTable::Ticket ticket = table_.Create(request, Clock::Real().Now());
  creating_[ticket] = {std::move(created), request.client};
  Settle();
}

absl::Status ObjectStore::Seal(ObjectId object, ClientNumber client) {
  absl::Status status = table_.Seal(object, client);
  if (status.ok()) {
    if (auto waiting = waiting_.extract(object); !waiting.empty()) {
      for (auto& done : waiting.mapped()) done(true);
    }
    Settle();
  }
  return status;
}

absl::Status ObjectStore::Abort(ObjectId object, ClientNumber client) {
  absl::Status status = table_.Abort(object, client);
  Settle();
  return status;
}

absl::StatusOr<Place> ObjectStore::Pin(ObjectId object, ClientNumber client) { return table_.Pin(object, client); }

bool ObjectStore::Release(ObjectId object, ClientNumber client) {
  bool released = table_.Release(object, client);
  Settle();
  return released;
}

bool ObjectStore::Delete(ObjectId object) {
  bool deleted = table_.Delete(object);
  Settle();
  return deleted;
}

void ObjectStore::OwnerGone(WorkerId owner) {
  table_.OwnerGone(owner);
  Settle();
}

void ObjectStore::JobGone(JobId job) {
  table_.JobGone(job);
  Settle();
}

void ObjectStore::WhenCreated(ObjectId object, std::function<void(bool)> done) {
  switch (table_.StateOf(object)) {
    case ObjectTable::State::kSealed:
    case ObjectTable::State::kSpilled: return done(true);
    case ObjectTable::State::kAbsent: return done(false);
    case ObjectTable::State::kCreated: waiting_[object].push_back(std::move(done));
  }
}

void ObjectStore::WhenHere(ObjectId object, std::function<void(absl::Status)> done) {
  if (table_.StateOf(object) == ObjectTable::State::kSealed) return done(absl::OkStatus());
  auto [waiting, is_first] = restoring_.try_emplace(object);
  waiting->second.push_back(std::move(done));
  if (!is_first) return;
  table_.Restore(object, Clock::Real().Now());
  Settle();
}

void ObjectStore::Restored(ObjectId object, const absl::Status& status) {
  auto waiting = restoring_.extract(object);
  if (waiting.empty()) return;
  // Held until all of them had their turn to pin it.
  bool held = status.ok() && table_.Pin(object, 0).ok();
  std::weak_ptr<bool> weak = alive_;
  for (auto& done : waiting.mapped()) {
    if (!weak.expired()) done(status);
  }
  if (held && !weak.expired()) Release(object, 0);
}

void ObjectStore::WriteToDisk(const ObjectTable::Spill& spill) {
  auto result = std::make_shared<absl::Status>();
  disk_work_.Run([disk = options_.spill_disk, bytes = Bytes(spill.place), offset = spill.disk_offset, result] { *result = disk->Write(offset, bytes); },
                 [this, weak = std::weak_ptr<bool>(alive_), serial = spill.serial, result] {
                   if (weak.expired()) return;
                   if (!result->ok()) spdlog::warn("object store: {}", Message(*result));
                   table_.SpillDone(serial, *result, Clock::Real().Now());
                   Settle();
                 });
}

void ObjectStore::ReadFromDisk(const ObjectTable::Answer& answer) {
  auto result = std::make_shared<absl::Status>();
  disk_work_.Run([disk = options_.spill_disk, bytes = Bytes(*answer.place), offset = answer.disk_offset, result] { *result = disk->Read(offset, bytes); },
                 [this, weak = std::weak_ptr<bool>(alive_), serial = answer.serial, object = answer.object, result] {
                   if (weak.expired()) return;
                   if (!result->ok()) {
                     spdlog::error("object store: object {} is lost: {}", object.Short(), Message(*result));
                     *result = NotFound("object {} was spilled to disk and is lost: {}", object.Short(), Message(*result));
                   }
                   table_.RestoreDone(serial, result->ok() ? ObjectTable::Restored::kHere : ObjectTable::Restored::kLost);
                   // One that was deleted meanwhile is not there.
                   if (result->ok() && table_.StateOf(object) != ObjectTable::State::kSealed) {
                     *result = NotFound("object {} was deleted", object.Hex());
                   }
                   Restored(object, *result);
                   if (!weak.expired()) Settle();
                 });
}

void ObjectStore::Settle() {
  const absl::Time now = Clock::Real().Now();
  std::vector<ObjectTable::Answer> answers = table_.TakeAnswers(now);
  // Nothing that is freed is read or written any more, and the disk's work is done in order: ranges can be used again at once.
  std::vector<Range> freed_disk = table_.TakeFreedDisk();
  if (!freed_disk.empty()) {
    disk_work_.Run([disk = options_.spill_disk, freed_disk, all = table_.spilled_bytes() == 0] {
      if (all) return disk->FreeAll();
      for (Range range : freed_disk) disk->Free(range);
    }, nullptr);
  }
  for (const ObjectTable::Spill& spill : table_.TakeSpills()) WriteToDisk(spill);
  // Freed first: what was freed may be part of what was placed after it.
  for (Range range : table_.TakeFreed()) extents_.Unuse(range, now);
  std::vector<std::vector<Range>> missing(answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].place.ok()) missing[i] = extents_.Use({answers[i].place->offset, Allocator::RoundUp(answers[i].place->size)});
  }
  // From here on callbacks run, which may come back into this store.
  std::vector<ObjectId> aborted = table_.TakeAborted();
  for (size_t i = 0; i < answers.size(); ++i) {
    ObjectTable::Answer& answer = answers[i];
    if (!missing[i].empty()) Reserve(std::move(answer), std::move(missing[i]));
    else if (!answer.is_restore) Finish(answer.ticket, std::move(answer.place));
    else if (answer.place.ok()) ReadFromDisk(answer);
    else Restored(answer.object, answer.place.status());
  }
  for (ObjectId object : aborted) {
    if (auto waiting = waiting_.extract(object); !waiting.empty()) {
      for (auto& done : waiting.mapped()) done(false);
    }
  }
  if (auto deadline = table_.NextDeadline()) deadline_timer_.After(*deadline - now, [this] { Settle(); });
  else deadline_timer_.Cancel();
}

void ObjectStore::Finish(ObjectTable::Ticket ticket, absl::StatusOr<Place> place) {
  auto pending = creating_.extract(ticket);
  if (!pending.empty() && pending.mapped().created) pending.mapped().created(std::move(place));
}

void ObjectStore::Reserve(ObjectTable::Answer answer, std::vector<Range> missing) {
  auto result = std::make_shared<absl::Status>();
  // A second create that needs the same extent reserves it too: that costs nothing, and neither waits for the other.
  // The arena outlives the work thread, which is declared after it.
  work_.Run(
      [arena = arena_.get(), missing, result] {
        for (Range range : missing) {
          *result = arena->Reserve(range);
          if (!result->ok()) return;
        }
      },
      [this, weak = std::weak_ptr<bool>(alive_), answer, missing, result] {
        if (weak.expired()) return;
        auto pending = creating_.find(answer.ticket);
        if (result->ok()) {
          for (Range range : missing) extents_.SetBacked(range);
          if (answer.is_restore) return ReadFromDisk(answer);
          // Deleted, or made anew by another, while it waited for its space: the place is no longer its own.
          if (pending != creating_.end() && !table_.IsMaking(answer.object, pending->second.client, *answer.place)) {
            return Finish(answer.ticket, table_.StateOf(answer.object) == ObjectTable::State::kAbsent
                                             ? Unavailable("object {} was deleted while it was made", answer.object.Hex())
                                             : MakeStatus(absl::StatusCode::kAlreadyExists, "object {} is made anew", answer.object.Hex()));
          }
          return Finish(answer.ticket, *answer.place);
        }
        spdlog::warn("object store: {}", Message(*result));
        if (answer.is_restore) {
          table_.RestoreDone(answer.serial, ObjectTable::Restored::kNoMemory);
          Restored(answer.object, *result);
          if (!weak.expired()) Settle();
          return;
        }
        ClientNumber client = pending == creating_.end() ? 0 : pending->second.client;
        if (absl::Status aborted = table_.Abort(answer.object, client); !aborted.ok()) {
          spdlog::info("object {} was given up before its space was reserved", answer.object.Hex());
        }
        Finish(answer.ticket, *result);
        Settle();
      });
}

void ObjectStore::PunchIdle(absl::Duration idle) {
  std::vector<Range> ranges = extents_.TakeIdle(Clock::Real().Now(), idle);
  if (ranges.empty()) return;
  // In order with reservations: a create that needs a range again reserves it after this.
  work_.Run(
      [arena = arena_.get(), ranges] {
        for (Range range : ranges) {
          if (absl::Status status = arena->Punch(range); !status.ok()) spdlog::warn("object store: {}", Message(status));
        }
      },
      nullptr);
}

}  // namespace argosy::store
