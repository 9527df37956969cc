#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/base/unique_fd.h"
#include "runtime/node/cluster_client.h"
#include "runtime/node/host_memory.h"
#include "runtime/node/lease_service.h"
#include "runtime/transfer/peers.h"
#include "runtime/wire/connection.h"

namespace argosy::node {

struct MemoryWatchOptions {
  double threshold = 0.95;                          // share of the host's memory (or of its control group's) from which work is ended
  absl::Duration period = absl::Milliseconds(250);  // between looks when little is free; zero: nothing is watched
  uint64_t workers_max = 0;                         // bytes that this node's workers may take together; 0: no bound
  std::string hostname;
  NodeId self;
  std::string node_name;
  std::string lock_folder = "/tmp";
  MemoryReader reader = MemoryReader();
};

// Ends work before the kernel does, when memory runs short: one worker at a time (see ChooseVictim), and the next when the first is gone and
// it is short still. Of the daemons of one cluster on one host one watches the host, whichever has the lock, and asks the others what their
// workers take. Each watches the bound of its own workers.
//
// Thread:   the loop's.
// Lifetime: the parts outlive it; answers that come after it are dropped.
// Failure:  off, with a line in the log, where the kernel does not say how much memory there is.
class MemoryWatch {
 public:
  struct Parts {
    async::Loop& loop;
    ClusterClient& cluster;
    LeaseService& leases;
    transfer::Peers& peers;
  };
  MemoryWatch(Parts parts, MemoryWatchOptions options);
  ~MemoryWatch();

  // From then on the host is watched too, if no other daemon of the cluster does.
  void SetCluster(const std::string& cluster_id);
  // From the daemon that watches the host.
  void OnMemoryUse(wire::Call call);
  void OnEndForMemory(const wire::EndForMemory& message);

  bool watches_host() const { return lock_.ok(); }

 private:
  struct Peer { NodeId node; std::string wire_address; };
  struct Candidate { wire::MemoryWorker worker; std::string peer; };   // `peer` empty: of this node
  struct Round;

  void Look();
  void LookLater();
  void TakeLock();
  void FindPeers();
  std::vector<wire::MemoryWorker> OwnWorkers() const;
  void AskPeers(const HostMemory& memory);
  void EndOne(const std::vector<Candidate>& candidates, const std::string& why);

  Parts parts_;
  MemoryWatchOptions options_;
  std::string boot_id_;
  std::string lock_path_;
  UniqueFd lock_;
  std::vector<Peer> peers_;
  absl::Time peers_found_ = absl::InfinitePast();
  absl::Time next_lock_ = absl::InfinitePast();
  absl::Time quiet_until_ = absl::InfinitePast();   // somebody was ended just now
  uint32_t victim_pid_ = 0;                         // who that was; 0: gone
  bool asking_ = false;
  double free_ = 0;                                 // bytes below the threshold, at the last look
  async::Timer timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
