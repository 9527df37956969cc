#include "runtime/worker/peer_pool.h"

#include <unistd.h>

#include <utility>

namespace argosy::worker {

PeerPool::~PeerPool() {
  *alive_ = false;
  CloseAll();
}

void PeerPool::CloseAll() {
  auto peers = std::move(peers_);
  peers_.clear();
  for (auto& [id, peer] : peers) {
    if (peer.connection) peer.connection->Close(absl::CancelledError("the worker ends"));
  }
}

void PeerPool::CloseNode(NodeId node) {
  std::vector<std::shared_ptr<wire::Connection>> open;
  for (const auto& [id, peer] : peers_) {
    if (peer.node == node && peer.connection) open.push_back(peer.connection);
  }
  for (const std::shared_ptr<wire::Connection>& connection : open) connection->Close(absl::UnavailableError("its node is lost"));
}

bool PeerPool::SameHost(const wire::WorkerAddress& peer) const {
  // Socket names hold random ids: a file of that name is the peer's.
  return peer.node == options_.node || (!peer.unix_path.empty() && ::access(peer.unix_path.str().c_str(), F_OK) == 0);
}

void PeerPool::ConnectAlone(const wire::WorkerAddress& peer, wire::Connected done) {
  wire::ConnectWorker(loop_, peer, SameHost(peer), options_.connect, std::move(done));
}

wire::Connection* PeerPool::Find(WorkerId peer) const {
  auto at = peers_.find(peer);
  // Those that wait for it come first.
  if (at == peers_.end() || !at->second.connection || !at->second.connection->is_open() || !at->second.waiting.empty()) return nullptr;
  return at->second.connection.get();
}

void PeerPool::With(const wire::WorkerAddress& address, Use use) {
  auto [it, is_new] = peers_.try_emplace(address.worker);
  Peer& peer = it->second;
  peer.node = address.node;
  if (peer.connection && peer.connection->is_open()) return use(peer.connection.get());
  peer.waiting.push_back(std::move(use));
  if (!is_new && !peer.connection) return;   // being connected
  peer.connection.reset();
  wire::ConnectWorker(loop_, address, SameHost(address), options_.connect,
                      [this, alive = alive_, id = address.worker](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
                        if (*alive) Connected(id, std::move(connection));
                      });
}

void PeerPool::Connected(WorkerId id, absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
  auto it = peers_.find(id);
  if (it == peers_.end()) return;
  std::vector<Use> waiting = std::move(it->second.waiting);
  it->second.waiting.clear();
  if (!connection.ok()) {
    peers_.erase(it);
    absl::Status why = absl::UnavailableError(connection.status().message());
    for (Use& use : waiting) use(why);
    return;
  }
  std::shared_ptr<wire::Connection> open = *connection;
  it->second.connection = open;
  wire::Connection::Handlers handlers;
  handlers.on_closed = [this, alive = alive_, id, raw = open.get()](absl::Status) {
    if (!*alive) return;
    auto at = peers_.find(id);
    if (at != peers_.end() && at->second.connection.get() == raw && at->second.waiting.empty()) peers_.erase(at);
    if (options_.on_closed) options_.on_closed(id);
  };
  open->UseOutbox(options_.outbox);
  open->Start(std::move(handlers));
  open->Cork();
  for (Use& use : waiting) use(open.get());
  open->Uncork();
}

}  // namespace argosy::worker
