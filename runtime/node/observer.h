#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/base/observation.h"
#include "runtime/node/client_table.h"
#include "runtime/node/lease_service.h"
#include "runtime/node/worker_prints.h"
#include "runtime/store/object_store.h"

namespace argosy::node {

// Answers what the head asks about this node: its workers, objects, logs, and where a worker's threads are. What only a process knows is
// asked of it, for a bounded time.
//
// Thread:   the loop's.
// Lifetime: the parts outlive it; answers that wait when it is destroyed are dropped.
// Failure:  a process that does not answer is named in the answer.
class Observer {
 public:
  struct Parts {
    async::Loop& loop;
    LeaseService& leases;
    store::ObjectStore& store;
    ClientTable& clients;
    WorkerPrints& prints;
  };
  using Done = std::function<void(absl::StatusOr<std::string> body)>;

  Observer(Parts parts, std::string session_dir) : parts_(parts), session_dir_(std::move(session_dir)) {}

  // `done` runs once, now or later, with the encoded answer.
  void Answer(const NodeQuestion& question, Done done);
  // The job's workers here have said what they have to say, and the daemon has passed it on.
  void FlushJob(JobId job, std::function<void()> done);

 private:
  using ClientPointer = std::shared_ptr<Client>;
  template <class Message>
  using Replies = std::vector<std::pair<ClientPointer, absl::StatusOr<typename Message::Reply>>>;
  // Asks each of the clients; whoever has not answered within `wait` has DEADLINE_EXCEEDED for an answer.
  template <class Message>
  void AskClients(const std::vector<ClientPointer>& clients, const Message& message, absl::Duration wait,
                  std::function<void(Replies<Message>)> done);

  void On(const FlushPrintsQuestion& question, const Done& done);
  void On(const WorkersQuestion& question, const Done& done);
  void On(const ObjectsQuestion& question, const Done& done);
  void On(const LogQuestion& question, const Done& done);
  void On(const StackQuestion& question, const Done& done);
  absl::StatusOr<LogAnswer> ReadLog(const LogQuestion& question) const;
  uint32_t PidOf(const Client& client) const;

  Parts parts_;
  std::string session_dir_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
