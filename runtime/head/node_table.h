#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/head/types.h"

namespace argosy::head {

// Which nodes there are, and who is alive.
//
// Thread:   the head's loop.
// Lifetime: the head's.
// Failure:  a broken stream is not a death; only `timeout` without a word is. Words of an older registration are refused by epoch.
class NodeTable {
 public:
  struct Options {
    absl::Duration timeout = kNodeTimeout;
    size_t lost_max = 1000;            // lost nodes that stay listed
    uint64_t first_epoch = 1;
  };
  struct Node {
    NodeDescription description;
    bool alive = true;
    bool connected = false;
    uint64_t epoch = 0;
    absl::Time heard;
    uint64_t order = 0;                // of joining
    int64_t lost_unix_ms = 0;
    std::string lost_reason;
    uint64_t object_store_used = 0;
    uint64_t object_store_spilled = 0;
    uint32_t workers = 0;
    uint64_t resources_version = 0;
  };
  enum class Admission { kJoined, kRejoined, kDeclaredDead };
  struct Admitted { Admission admission; uint64_t epoch = 0; };

  explicit NodeTable(Options options) : options_(options), next_epoch_(options.first_epoch) {}

  Admitted Register(const NodeDescription& description, absl::Time now);
  // After a restart: a node that was alive and has until the time-out to rejoin, or one that was declared dead.
  void Restore(const NodeDescription& description, bool alive, int64_t lost_unix_ms, std::string reason, absl::Time now);
  // The node spoke. False: the word is of an older registration, or of a dead node, and must be dropped.
  bool Heard(NodeId id, uint64_t epoch, absl::Time now);
  void SetLoad(NodeId id, const Heartbeat& heartbeat);
  // False: an older report that was overtaken.
  bool AcceptVersion(NodeId id, uint64_t version);
  void Disconnected(NodeId id, uint64_t epoch);
  // It said that it ends. False: it was not alive.
  bool Leave(NodeId id, const std::string& reason, int64_t now_unix_ms);
  // Nodes that were not heard for the time-out, now lost.
  std::vector<NodeId> Expire(absl::Time now, int64_t now_unix_ms);

  const Node* Find(NodeId id) const;
  // In the order of joining.
  std::vector<const Node*> All() const;
  // The alive node that was started together with the head, or null.
  const Node* HeadNode() const;
  size_t alive_count() const;
  // Ids of lost nodes that no longer fit; the caller forgets them too.
  std::vector<NodeId> TrimLost();

 private:
  Options options_;
  std::map<NodeId, Node> nodes_;
  uint64_t next_epoch_;
  uint64_t next_order_ = 0;
};

}  // namespace argosy::head
