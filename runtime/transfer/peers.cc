#include "runtime/transfer/peers.h"

#include <utility>

namespace argosy::transfer {

Peers::~Peers() {
  alive_.reset();
  for (auto& [address, peer] : peers_) {
    if (peer.connection) peer.connection->Close(absl::CancelledError("the node daemon stops"));
  }
}

void Peers::Get(const std::string& address, wire::Connected done) {
  Peer& peer = peers_[address];
  if (peer.connection && peer.connection->is_open()) return done(peer.connection);
  peer.connection = nullptr;
  peer.waiting.push_back(std::move(done));
  if (peer.waiting.size() > 1) return;
  wire::ConnectTcp(loop_, address, options_,
                   [this, weak = std::weak_ptr<bool>(alive_), address](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
                     if (weak.expired()) return;
                     if (connection.ok()) (*connection)->Start({});
                     Peer& peer = peers_[address];
                     if (connection.ok()) peer.connection = *connection;
                     std::vector<wire::Connected> waiting = std::exchange(peer.waiting, {});
                     if (!connection.ok()) peers_.erase(address);
                     for (auto& done : waiting) done(connection);
                   });
}

}  // namespace argosy::transfer
