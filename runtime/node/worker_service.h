#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "runtime/async/loop.h"
#include "runtime/node/client_table.h"
#include "runtime/node/cluster_client.h"
#include "runtime/node/group_calls.h"
#include "runtime/node/head_link.h"
#include "runtime/node/lease_service.h"
#include "runtime/node/memory_watch.h"
#include "runtime/node/process.h"
#include "runtime/node/worker_prints.h"
#include "runtime/store/object_store.h"
#include "runtime/transfer/code_files.h"
#include "runtime/transfer/object_mover.h"
#include "runtime/wire/connection.h"

namespace argosy::node {

// Answers the framed connections of workers, drivers and other nodes.
//
// Thread:   the loop's.
// Lifetime: the parts outlive it.
// Failure:  a bad request gets an error reply; a bad notice is logged and ignored.
class WorkerService {
 public:
  struct Parts {
    async::Loop& loop;
    HeadLink& head;
    ClusterClient& cluster;
    LeaseService& leases;
    MemoryWatch& memory;
    store::ObjectStore& store;
    transfer::ObjectMover& mover;
    transfer::CodeFiles& code_files;
    PackageCache& packages;
    ClientTable& clients;
    WorkerPrints& prints;
  };
  // `self`: what every registered process is told; job and namespace are added. `socket_dir`: of drivers' own sockets.
  WorkerService(Parts parts, wire::WorkerRegistered self, std::string socket_dir);
  ~WorkerService();

  void Accept(std::shared_ptr<wire::Connection> connection);
  // Jobs of drivers on this node, for the head after it has restarted.
  void ReportDrivers();
  // Tells every worker and driver of this node.
  void TellNodeLost(NodeId node);
  // To the job's driver. False when that is not here.
  bool ShowPrints(JobPrints prints);
  void OnPrintsFlushed(JobId job);
  size_t drivers() const { return drivers_.size(); }
  void JobGone(JobId job) { groups_.JobGone(job); }
  // Closes the connections of workers and drivers.
  void CloseAll(const std::string& reason);

 private:
  using ClientPointer = std::shared_ptr<Client>;
  struct Driver {
    JobId job;
    WorkerId worker;
    wire::WorkerAddress address;
    std::string submission_id;
    std::string entrypoint;
    std::string ns;
    uint32_t pid = 0;
    bool connected = false;
    bool quiet = false;
    size_t prints_under_way = 0;      // bytes that the driver has not taken yet
    uint64_t prints_dropped = 0;      // bytes, since the last message
    std::vector<std::shared_ptr<wire::Call>> flushes;
    std::unique_ptr<async::Timer> flush_timer;
    std::unique_ptr<ProcessWatch> watch;
    std::unique_ptr<async::Timer> grace;
  };

  void OnRequest(const ClientPointer& client, wire::Call call);
  void OnNotice(const ClientPointer& client, wire::Method method, const std::string& body);
  void OnClosed(const ClientPointer& client);

  void RegisterWorker(const ClientPointer& client, wire::Call call);
  void RegisterDriver(const ClientPointer& client, wire::Call call);
  void DriverEnded(JobId job, const std::string& reason);
  DriverJoined Joined(const Driver& driver) const;
  void FlushPrints(const ClientPointer& client, wire::Call call);

  void CreateObject(const ClientPointer& client, wire::Call call);
  void AdoptObject(wire::Call call);
  void SealObject(const ClientPointer& client, wire::Call call);
  void GetObject(const ClientPointer& client, wire::Call call);
  struct Getting;
  void TryGet(const std::shared_ptr<Getting>& getting);
  void DeleteObjects(const wire::DeleteObjects& message);
  void CreateActor(const ClientPointer& client, wire::Call call);

  // Decodes, calls `forward(message, done)`, answers with what `done` is given.
  template <class Message, class Forward>
  void Forwarded(wire::Call call, Forward&& forward);

  Parts parts_;
  wire::WorkerRegistered self_;
  std::string socket_dir_;
  GroupCalls groups_;
  uint64_t task_events_dropped_ = 0;   // reports, while the head was slow
  std::map<JobId, Driver> drivers_;
  std::unordered_map<JobId, std::string> namespaces_;   // of jobs whose driver is elsewhere
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
