#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/wire/connection.h"

namespace argosy::transfer {

// Connections to other node daemons, one an address, made when first asked for and kept.
//
// Thread:   the loop's.
// Lifetime: the loop outlives it. Callbacks that wait when it is destroyed are dropped.
// Failure:  as wire::ConnectTcp; the next Get after a failure tries again.
class Peers {
 public:
  Peers(async::Loop& loop, wire::ConnectOptions options) : loop_(loop), options_(std::move(options)) {}
  ~Peers();

  // `done` may run before this returns.
  void Get(const std::string& address, wire::Connected done);

 private:
  struct Peer {
    std::shared_ptr<wire::Connection> connection;
    std::vector<wire::Connected> waiting;
  };

  async::Loop& loop_;
  wire::ConnectOptions options_;
  std::unordered_map<std::string, Peer> peers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::transfer
