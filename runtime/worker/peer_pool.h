#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/async/loop.h"
#include "runtime/wire/connection.h"

namespace argosy::worker {

// Connections to other workers, made when first needed. A broken one is forgotten: the next request makes a new one.
//
// Thread:   the loop.
// Lifetime: the loop outlives it.
// Failure:  a request whose connection cannot be made or breaks fails with UNAVAILABLE.
class PeerPool {
 public:
  struct Options {
    wire::ConnectOptions connect;
    wire::Outbox* outbox = nullptr;
    NodeId node;                                         // this process's
    std::function<void(WorkerId peer)> on_closed;
  };
  PeerPool(async::Loop& loop, Options options) : loop_(loop), options_(std::move(options)) {}
  ~PeerPool();

  template <class Message, class Done>
  void Request(const wire::WorkerAddress& peer, const Message& message, Done done) {
    if (wire::Connection* open = Find(peer.worker)) return open->Request(message, std::move(done));
    With(peer, [message, done = std::move(done)](absl::StatusOr<wire::Connection*> connection) mutable {
      if (!connection.ok()) return done(connection.status());
      (*connection)->Request(message, std::move(done));
    });
  }
  template <class Message>
  void Notify(const wire::WorkerAddress& peer, const Message& message) {
    if (wire::Connection* open = Find(peer.worker)) return open->Notify(message);
    With(peer, [message](absl::StatusOr<wire::Connection*> connection) {
      if (connection.ok()) (*connection)->Notify(message);
    });
  }
  void CloseAll();
  // To workers of a node that is lost: nobody else may ever break them.
  void CloseNode(NodeId node);
  // A connection of its own, for a channel.
  void ConnectAlone(const wire::WorkerAddress& peer, wire::Connected done);

 private:
  using Use = UniqueFunction<void(absl::StatusOr<wire::Connection*>)>;
  struct Peer {
    NodeId node;
    std::shared_ptr<wire::Connection> connection;        // null while connecting
    std::vector<Use> waiting;
  };
  // The open connection; null when there is none yet.
  wire::Connection* Find(WorkerId peer) const;
  void With(const wire::WorkerAddress& peer, Use use);
  void Connected(WorkerId peer, absl::StatusOr<std::shared_ptr<wire::Connection>> connection);
  bool SameHost(const wire::WorkerAddress& peer) const;

  async::Loop& loop_;
  Options options_;
  std::unordered_map<WorkerId, Peer> peers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::worker
