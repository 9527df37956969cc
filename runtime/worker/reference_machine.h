#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/id_map.h"
#include "runtime/wire/messages.h"

namespace argosy::worker {

// Knows who may still read each object that this worker owns, and which objects of others this worker still holds. Four messages:
//
//   PushTask reply .kept   the callee kept a ref of the arguments: whoever sent it registers the callee with the owner
//   AddBorrower            whoever passes a ref to another worker registers it with the owner, and pins the object until that is answered
//   GetOwnedObject         a borrower asks for the value; the refs inside it are registered for it
//   ReleaseBorrow          a borrower gave up one registration
//
// A registration is counted: each is matched by one ReleaseBorrow, so that a late one cannot cancel a newer one. Until the receiver is
// registered the sender holds a pin, so that the object cannot go while its ref is on the way.
//
// Thread:   the worker loop; pure state.
// Lifetime: the worker's.
// Failure:  an unknown id is ignored: its object is gone.
class ReferenceMachine {
 public:
  struct Release { wire::Reference reference; int count = 0; };              // send ReleaseBorrow `count` times
  struct Register { wire::Reference reference; wire::WorkerAddress borrower; };   // send AddBorrower; then Unpin(object)
  struct Effects {
    std::vector<ObjectId> freed;            // owned: forget the value, delete its copies
    std::vector<ObjectId> released;         // owned: as freed, but it may have to be made again (see AddLineage)
    std::vector<ObjectId> dropped;          // borrowed: forget the value
    std::vector<Release> releases;
    std::vector<Register> registers;
  };

  explicit ReferenceMachine(WorkerId self) : self_(self) {}

  // A new object of this worker. It is freed when nothing refers to it after the first count has come and gone.
  void AddOwned(ObjectId object, const wire::WorkerAddress& self);
  // A handle in this process came or went. `owner` matters for the first handle of a borrowed object.
  void AddLocal(ObjectId object, const wire::WorkerAddress& owner);
  void DropLocal(ObjectId object, Effects& effects);
  // A task in flight, a stored value, or a message on its way refers to it.
  void Pin(const wire::Reference& reference);
  void Unpin(ObjectId object, Effects& effects);

  // A task that may be run again would need it: when nothing else refers to it, its value goes and its entry stays.
  void AddLineage(ObjectId object);
  void DropLineage(ObjectId object, Effects& effects);
  // Only lineage refers to it.
  bool LineageOnly(ObjectId object) const;

  // The value of `outer` holds these refs. `registered`: whoever sent it registered this worker for each of them.
  void SetContents(ObjectId outer, const std::vector<wire::Reference>& references, bool registered);
  // This worker passes the refs to `receiver` (in a result or an answered GetOwnedObject): registers it for each.
  void PassTo(const wire::WorkerAddress& receiver, const std::vector<wire::Reference>& references, Effects& effects);
  // A callee kept refs of the arguments. Call before unpinning the arguments.
  void Kept(const wire::WorkerAddress& callee, const std::vector<ObjectId>& kept, Effects& effects);
  // Which of an executed task's argument refs this worker still holds and was not registered for; now it is.
  std::vector<ObjectId> TakeKept(const std::vector<ObjectId>& arguments);

  void AddBorrower(ObjectId object, WorkerId borrower);
  void ReleaseBorrow(ObjectId object, WorkerId borrower, Effects& effects);
  // That worker is dead: its registrations are void.
  void BorrowerDied(WorkerId borrower, Effects& effects);

  bool Knows(ObjectId object) const { return entries_.contains(object); }
  bool Owns(ObjectId object) const;
  std::optional<wire::WorkerAddress> OwnerOf(ObjectId object) const;
  size_t size() const { return entries_.size(); }
  size_t borrowers(ObjectId object) const;
  // What is known of every object, for people.
  struct Facts { ObjectId object; WorkerId owner; int64_t local = 0; int64_t pins = 0; int64_t borrowers = 0; };
  template <class Visit>
  void ForEach(Visit&& visit) const {
    for (const auto& [object, entry] : entries_) {
      visit(Facts{object, entry.owned ? self_ : entry.owner.worker, entry.local, entry.pins, static_cast<int64_t>(entry.borrowers.size())});
    }
  }
  std::vector<WorkerId> Borrowers() const;

 private:
  struct Entry {
    wire::WorkerAddress owner;
    bool owned = false;
    int64_t local = 0;
    int64_t pins = 0;
    int64_t lineage = 0;                          // owned: kept tasks that have it for an argument
    int64_t registrations = 0;                    // of this worker with the owner
    std::map<WorkerId, int64_t> borrowers;        // owned
    std::vector<ObjectId> contents;
  };

  Entry& Touch(ObjectId object, const wire::WorkerAddress& owner);
  void MaybeGone(ObjectId object, Effects& effects);
  static bool IsHeld(const Entry& entry);

  WorkerId self_;
  IdMap<ObjectId, Entry> entries_;
};

}  // namespace argosy::worker
