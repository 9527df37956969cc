#include "runtime/worker/reference_machine.h"

#include <algorithm>
#include <utility>

namespace argosy::worker {

using wire::Reference;
using wire::WorkerAddress;

ReferenceMachine::Entry& ReferenceMachine::Touch(ObjectId object, const WorkerAddress& owner) {
  auto [it, is_new] = entries_.try_emplace(object);
  if (is_new) {
    it->second.owner = owner;
    it->second.owned = owner.worker == self_;
  }
  return it->second;
}

void ReferenceMachine::AddOwned(ObjectId object, const WorkerAddress& self) { Touch(object, self).owned = true; }
void ReferenceMachine::AddLocal(ObjectId object, const WorkerAddress& owner) { ++Touch(object, owner).local; }

void ReferenceMachine::DropLocal(ObjectId object, Effects& effects) {
  auto it = entries_.find(object);
  if (it == entries_.end()) return;
  --it->second.local;
  MaybeGone(object, effects);
}

void ReferenceMachine::Pin(const Reference& reference) { ++Touch(reference.object, reference.owner).pins; }

void ReferenceMachine::Unpin(ObjectId object, Effects& effects) {
  auto it = entries_.find(object);
  if (it == entries_.end()) return;
  --it->second.pins;
  MaybeGone(object, effects);
}

void ReferenceMachine::SetContents(ObjectId outer, const std::vector<Reference>& references, bool registered) {
  if (references.empty() || !entries_.contains(outer)) return;
  for (const Reference& reference : references) {
    Entry& inner = Touch(reference.object, reference.owner);
    ++inner.pins;
    if (registered && !inner.owned) ++inner.registrations;
  }
  std::vector<ObjectId>& contents = entries_.at(outer).contents;
  for (const Reference& reference : references) contents.push_back(reference.object);
}

void ReferenceMachine::PassTo(const WorkerAddress& receiver, const std::vector<Reference>& references, Effects& effects) {
  for (const Reference& reference : references) {
    if (reference.owner.worker == receiver.worker) continue;   // the owner needs no registration with itself
    Entry& entry = Touch(reference.object, reference.owner);
    if (entry.owned) {
      if (++entry.borrowers[receiver.worker] == 0) entry.borrowers.erase(receiver.worker);
    } else {
      ++entry.pins;
      effects.registers.push_back({reference, receiver});
    }
  }
}

void ReferenceMachine::Kept(const WorkerAddress& callee, const std::vector<ObjectId>& kept, Effects& effects) {
  std::vector<Reference> references;
  for (ObjectId object : kept) {
    if (auto it = entries_.find(object); it != entries_.end()) references.push_back({object, it->second.owner});
  }
  PassTo(callee, references, effects);
}

std::vector<ObjectId> ReferenceMachine::TakeKept(const std::vector<ObjectId>& arguments) {
  std::vector<ObjectId> kept;
  for (ObjectId object : arguments) {
    auto it = entries_.find(object);
    if (it == entries_.end()) continue;
    Entry& entry = it->second;
    if (entry.owned || entry.registrations > 0 || entry.local + entry.pins == 0) continue;
    ++entry.registrations;
    kept.push_back(object);
  }
  return kept;
}

void ReferenceMachine::AddBorrower(ObjectId object, WorkerId borrower) {
  auto it = entries_.find(object);
  if (it == entries_.end() || !it->second.owned || borrower == self_) return;
  if (++it->second.borrowers[borrower] == 0) it->second.borrowers.erase(borrower);
}

void ReferenceMachine::ReleaseBorrow(ObjectId object, WorkerId borrower, Effects& effects) {
  auto it = entries_.find(object);
  if (it == entries_.end()) return;
  // May go below zero: the release travels on another connection than the registration that somebody else sends, and may come first.
  if (--it->second.borrowers[borrower] == 0) it->second.borrowers.erase(borrower);
  MaybeGone(object, effects);
}

void ReferenceMachine::BorrowerDied(WorkerId borrower, Effects& effects) {
  std::vector<ObjectId> touched;
  for (auto& [object, entry] : entries_) {
    if (entry.borrowers.erase(borrower) > 0) touched.push_back(object);
  }
  for (ObjectId object : touched) MaybeGone(object, effects);
}

void ReferenceMachine::AddLineage(ObjectId object) {
  auto it = entries_.find(object);
  if (it != entries_.end()) ++it->second.lineage;
}

void ReferenceMachine::DropLineage(ObjectId object, Effects& effects) {
  auto it = entries_.find(object);
  if (it == entries_.end()) return;
  if (--it->second.lineage == 0) MaybeGone(object, effects);
}

bool ReferenceMachine::IsHeld(const Entry& entry) {
  if (entry.local > 0 || entry.pins > 0) return true;
  // Whoever is about to register a borrower whose release came first holds a registration of its own, above zero.
  return std::any_of(entry.borrowers.begin(), entry.borrowers.end(), [](const auto& borrower) { return borrower.second > 0; });
}

bool ReferenceMachine::LineageOnly(ObjectId object) const {
  auto it = entries_.find(object);
  return it != entries_.end() && it->second.lineage > 0 && !IsHeld(it->second);
}

void ReferenceMachine::MaybeGone(ObjectId object, Effects& effects) {
  // Freeing an outer value may free what it holds, and so on; a list instead of recursion, since chains may be long.
  std::vector<ObjectId> suspects{object};
  while (!suspects.empty()) {
    ObjectId id = suspects.back();
    suspects.pop_back();
    auto it = entries_.find(id);
    if (it == entries_.end()) continue;
    Entry& entry = it->second;
    if (IsHeld(entry)) continue;
    bool stays = entry.owned && entry.lineage > 0;
    if (stays) {
      effects.released.push_back(id);
    } else if (entry.owned) {
      effects.freed.push_back(id);
    } else {
      effects.dropped.push_back(id);
      if (entry.registrations > 0) effects.releases.push_back({{id, entry.owner}, static_cast<int>(entry.registrations)});
    }
    std::vector<ObjectId> contents = std::exchange(entry.contents, {});
    if (!stays) entries_.erase(it);
    for (ObjectId inner : contents) {
      if (auto at = entries_.find(inner); at != entries_.end()) {
        --at->second.pins;
        suspects.push_back(inner);
      }
    }
  }
}

bool ReferenceMachine::Owns(ObjectId object) const {
  auto it = entries_.find(object);
  return it != entries_.end() && it->second.owned;
}

std::optional<WorkerAddress> ReferenceMachine::OwnerOf(ObjectId object) const {
  auto it = entries_.find(object);
  if (it == entries_.end()) return std::nullopt;
  return it->second.owner;
}

size_t ReferenceMachine::borrowers(ObjectId object) const {
  auto it = entries_.find(object);
  return it == entries_.end() ? 0 : it->second.borrowers.size();
}

std::vector<WorkerId> ReferenceMachine::Borrowers() const {
  std::map<WorkerId, bool> all;
  for (const auto& [object, entry] : entries_) {
    for (const auto& [worker, count] : entry.borrowers) all[worker] = true;
  }
  std::vector<WorkerId> workers;
  for (const auto& [worker, unused] : all) workers.push_back(worker);
  return workers;
}

}  // namespace argosy::worker
