#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/id.h"
#include "runtime/node/cluster_client.h"
#include "runtime/store/object_store.h"
#include "runtime/transfer/object_mover.h"
#include "runtime/transfer/peers.h"

namespace argosy::node {

// Moves the objects of a node that is drained to other nodes, before it leaves: those whose primary copy is here and whose owner lives
// elsewhere (what a process of this node owns goes with it). Another node pulls the object and keeps it as the primary copy, the owner
// writes down its new place, and it is deleted here.
//
//   here --AdoptObject--> another node --PullObject--> here;  here --ObjectMoved--> owner;  deleted here
//
// Thread:   the loop's.
// Lifetime: the parts outlive it; answers that come after it are dropped.
// Failure:  an object that cannot be moved in a few tries stays, and goes with the node; its owner makes it again or says that it is lost.
class Evacuation {
 public:
  struct Parts {
    async::Loop& loop;
    ClusterClient& cluster;
    store::ObjectStore& store;
    transfer::ObjectMover& mover;
    transfer::Peers& peers;
  };
  struct Options {
    NodeId self;
    std::string wire_address;
    std::function<bool(WorkerId)> lives_here;   // a process of this node
  };

  Evacuation(Parts parts, Options options) : parts_(parts), options_(std::move(options)) {}
  ~Evacuation() { alive_.reset(); }

  // Begins what can be begun; to be called again while it is not done.
  void Step();
  // Nothing is left that could be moved.
  bool done() const { return done_; }
  uint64_t moved() const { return moved_; }
  size_t given_up() const { return given_up_.size(); }

 private:
  void FindHeirs();
  std::vector<store::ObjectTable::Listed> Left() const;
  void Move(const store::ObjectTable::Listed& object);
  void TellOwner(const store::ObjectTable::Listed& object, const wire::ObjectLocation& to);
  void Finish(const store::ObjectTable::Listed& object, const absl::Status& status);
  // It does not answer: others are asked, while there are any.
  void HeirFailed(const store::ObjectTable::Listed& object, NodeId heir, const absl::Status& why);

  Parts parts_;
  Options options_;
  std::vector<wire::NodeInfo> heirs_;            // the one with the most room first
  absl::Time heirs_known_ = absl::InfinitePast();
  std::set<NodeId> unreachable_;                 // that the head still lists
  bool asking_ = false;
  size_t next_heir_ = 0;
  std::unordered_map<ObjectId, uint64_t> moving_;   // bytes
  std::unordered_map<ObjectId, int> failures_;
  std::set<ObjectId> given_up_;
  uint64_t moved_ = 0;
  bool done_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
