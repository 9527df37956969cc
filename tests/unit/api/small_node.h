#pragma once

// A node daemon as small as the worker's tests need it, without head and gRPC, so that they also run under the sanitizers: real worker
// processes (this executable again), a real object store, leases from a count of CPUs, actors with restarts, and a KV map.

#include <spawn.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runtime/async/loop.h"
#include "runtime/store/object_store.h"
#include "runtime/wire/connection.h"

namespace argosy::testing {

class SmallNode {
 public:
  explicit SmallNode(double cpus);
  ~SmallNode();

  const std::string& socket() const { return socket_; }
  int workers_started() const { return workers_started_; }
  int workers_most() const { return workers_most_; }

 private:
  struct Worker {
    WorkerId id;
    pid_t pid = 0;
    uint64_t number = 0;
    std::string code_id;                 // of the package whose variables it has
    wire::WorkerAddress address;
    std::shared_ptr<wire::Connection> connection;
    bool registered = false;
    bool dead = false;
    std::string reason;
    LeaseId lease;
    WorkerId holder;                     // of the lease
    ActorId actor;
    bool blocked = false;
    double cpu = 0;                      // of its lease
  };
  struct Waiting {
    std::string request;
    double cpu = 0;
    std::shared_ptr<wire::Call> call;
    std::shared_ptr<wire::Connection> from;
    wire::CodePackage code;
  };
  struct Actor {
    wire::ActorSpec spec;
    wire::ActorInfo info;
    int restarts = 0;
    bool killed = false;
    std::vector<std::pair<uint64_t, std::shared_ptr<wire::Call>>> waiting;   // incarnation_min, who asks
  };

  void Accept(std::shared_ptr<wire::Connection> connection);
  void OnRequest(wire::Call call, store::ClientNumber client);
  void OnNotice(wire::Connection& connection, wire::Method method, const std::string& body, store::ClientNumber client);
  Worker& Spawn(const wire::CodePackage& code);
  void Grant();
  void GiveTo(Worker& worker, Waiting waiting);
  void Reap();
  void FreeLease(Worker& worker);
  void Died(Worker& worker);
  void StartActor(Actor& actor);
  void Changed(Actor& actor);
  Worker* Find(WorkerId id);
  wire::WorkerRegistered About() const;

  std::string folder_;
  std::string socket_;
  NodeId node_ = NodeId::Random();
  double free_;
  async::Loop loop_;
  std::unique_ptr<store::ObjectStore> store_;
  std::unique_ptr<wire::Listener> listener_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::deque<Waiting> waiting_;
  std::map<uint64_t, Waiting> starting_;          // startup number -> whom it is for
  std::map<uint64_t, ActorId> starting_actors_;
  std::map<ActorId, std::unique_ptr<Actor>> actors_;
  std::map<std::string, std::string> kv_;
  std::vector<std::unique_ptr<async::Timer>> timers_;
  std::unique_ptr<async::Timer> reaper_;
  uint64_t next_number_ = 1;
  std::atomic<int> workers_started_ = 0;
  std::atomic<int> workers_most_ = 0;
  std::thread thread_;
};

}  // namespace argosy::testing
