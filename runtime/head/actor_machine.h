#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/head/demand_record.h"
#include "runtime/head/types.h"

namespace argosy::head {

enum class ActorState : uint8_t { kPending, kAlive, kRestarting, kDead };
const char* ToString(ActorState state);

// What the journal keeps of an actor. Fields may only be added at the end.
struct ActorRecord {
  ActorId id;
  JobId job;
  std::string class_name;
  std::string name;                // empty: unnamed
  std::string name_space;
  bool detached = false;
  int32_t max_restarts = 0;        // -1: no bound
  int32_t max_task_retries = 0;
  WorkerId owner;                  // whose end is the actor's, unless it is detached
  ResourceMap running_resources;   // held while it runs; less than what placing it needed
  double start_timeout_seconds = 0;
  std::string spec;                // the encoded ActorSpec, for the node
  ActorState state = ActorState::kPending;
  uint64_t incarnation = 0;        // 1 for the first start
  uint32_t restarts = 0;
  NodeId node;                     // where it is, or is being started
  WorkerAddress worker;
  std::string death_reason;
  bool constructor_failed = false;
  LeaseId lease;                   // of this incarnation
  NodeId owner_node;
  DemandRecord placement;          // what a node must have to start it
  int32_t max_pending_calls = 0;   // for callers
  bool fail_when_full = false;
};

struct ActorCreated { ActorRecord actor; };
struct ActorPlaced { ActorId actor; NodeId node; std::optional<scheduler::BundleKey> bundle; ResourceSet placed; LeaseId lease; };
struct ActorKilled { ActorId actor; bool no_restart = false; std::string reason; };
// It cannot be placed any more: its deadline passed, or its group is gone.
struct ActorUnplaceable { ActorId actor; std::string reason; };
struct ActorNodeLost { NodeId node; std::string node_name; std::string reason; };
struct ActorNodeRejoined { NodeId node; std::vector<HeldActor> held; };
struct ActorJobEnded { JobId job; std::string reason; };
struct ActorOwnerDied { WorkerId worker; std::string reason; };
using ActorEvent = std::variant<ActorCreated, ActorPlaced, ActorStarted, ActorEnded, ActorKilled, ActorUnplaceable, ActorNodeLost,
                                ActorNodeRejoined, ActorJobEnded, ActorOwnerDied>;

struct WantActorNode { ActorId actor; uint32_t refusals = 0; };   // refusals: how many nodes in a row had no room
struct DropActorNode { ActorId actor; };
struct SendStartActor { NodeId node; ActorId actor; uint64_t incarnation = 0; };
struct SendStopActor { NodeId node; ActorId actor; uint64_t incarnation = 0; bool no_restart = false; std::string reason; };
// Wake who waits for it and save it (erase it when dead).
struct ActorChanged { ActorId actor; };
struct FreeActorResources { NodeId node; ResourceSet resources; std::optional<scheduler::BundleKey> bundle; };
using ActorEffect = std::variant<WantActorNode, DropActorNode, SendStartActor, SendStopActor, ActorChanged, FreeActorResources>;

// The life of actors:
//
//   PENDING --placed, started--> ALIVE --ended--> RESTARTING --placed, started--> ALIVE ...
//                                      `--ended for good--> DEAD
//
// Each start is an incarnation; what is said of an older one is ignored. A name is free again when its actor is dead.
//
// Thread:   the head's loop.
// Failure:  events for unknown or dead actors change nothing, except that a node is told to stop what should not run.
class ActorMachine {
 public:
  struct Options {
    size_t actors_max = 100'000;
    size_t dead_max = 10'000;      // the newest dead actors stay known
  };
  ActorMachine() : ActorMachine(Options{}) {}
  explicit ActorMachine(Options options) : options_(options) {}

  // ALREADY_EXISTS for a taken name, naming both sides.
  absl::Status CheckCreate(const ActorRecord& actor) const;
  std::vector<ActorEffect> Step(const ActorEvent& event);
  void Restore(ActorRecord actor);

  const ActorRecord* Find(ActorId id) const;
  // The living one of that name, or null.
  const ActorRecord* FindName(const std::string& name_space, const std::string& name) const;
  std::vector<const ActorRecord*> All(bool include_dead) const;
  size_t alive_count() const;

 private:
  struct Actor {
    ActorRecord record;
    std::optional<scheduler::BundleKey> bundle;
    ResourceSet taken;             // from the view, for this incarnation
    uint32_t refusals = 0;         // by nodes in a row, since it last ran
  };
  struct Context { std::vector<ActorEffect> effects; };

  void On(const ActorCreated& event, Context& context);
  void On(const ActorPlaced& event, Context& context);
  void On(const ActorStarted& event, Context& context);
  void On(const ActorEnded& event, Context& context);
  void On(const ActorKilled& event, Context& context);
  void On(const ActorUnplaceable& event, Context& context);
  void On(const ActorNodeLost& event, Context& context);
  void On(const ActorNodeRejoined& event, Context& context);
  void On(const ActorJobEnded& event, Context& context);
  void On(const ActorOwnerDied& event, Context& context);

  Actor* FindLive(ActorId id);
  // Off its node; `free`: what it took is given back.
  void Leave(Actor& actor, bool free, Context& context);
  void Die(Actor& actor, std::string reason, Context& context);
  // Stops it where it is (or takes it out of the queue) and buries it.
  void Kill(Actor& actor, const std::string& reason, Context& context);
  void RestartOrDie(Actor& actor, const std::string& reason, Context& context);
  std::vector<ActorId> Select(const std::function<bool(const ActorRecord&)>& predicate) const;

  Options options_;
  std::unordered_map<ActorId, Actor> actors_;
  std::map<std::pair<std::string, std::string>, ActorId> names_;   // of actors that are not dead
  std::deque<ActorId> dead_;
};

}  // namespace argosy::head
