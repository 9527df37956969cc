#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/id.h"
#include "runtime/base/token.h"
#include "runtime/node/types.h"
#include "runtime/wire/messages.h"

namespace argosy::node {

struct ClusterClientOptions {
  std::string address;                             // of the head, host:port
  Token token;
  absl::Duration retry_for = absl::Seconds(30);    // calls that may be repeated, while the head cannot be reached
  absl::Duration retry_every = absl::Milliseconds(250);
  size_t calls_max = 100'000;                      // under way
};

// Calls of this node's workers and drivers that the head answers.
//
// Thread:   the loop's; gRPC's threads only post to it.
// Lifetime: the loop outlives it; callbacks that wait when it is destroyed are dropped, and their calls cancelled.
// Failure:  UNAVAILABLE when the head stays away; else the head's own.
class ClusterClient {
 public:
  template <class T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  ClusterClient(async::Loop& loop, ClusterClientOptions options);
  ~ClusterClient();

  // Tried once: the caller knows what to do without a head. A grant whose answer was lost stands until `request_id` is asked again or withdrawn.
  struct LeaseCall {
    std::string request_id;
    JobId job;
    WorkerId holder;
    NodeId holder_node;
    wire::Demand demand;
    wire::CodePackage code;
    double deadline_seconds = 0;
  };
  void RequestLease(const LeaseCall& call, Done<wire::LeaseGrant> done);
  void WithdrawLease(const std::string& request_id);
  void ReturnLease(LeaseId lease, NodeId node, bool worker_failed);

  void CreateActor(const wire::ActorSpec& spec, Done<wire::ActorInfo> done);
  void ResolveActor(const wire::ResolveActor& request, Done<wire::ActorInfo> done);
  void KillActor(const wire::KillActor& request, Done<wire::Empty> done);
  void ListActors(const wire::ListActors& request, Done<wire::ListActorsReply> done);
  // The head makes them in this order. One result for each.
  struct GroupCall { wire::CreateGroup group; JobId job; };
  void CreateGroups(const std::vector<GroupCall>& groups, Done<std::vector<absl::StatusOr<wire::GroupInfo>>> done);
  void WaitGroup(const wire::WaitGroup& request, Done<wire::GroupInfo> done);
  void RemoveGroup(const wire::RemoveGroup& request, Done<wire::Empty> done);
  void KvPut(const wire::KvPut& request, Done<wire::KvPutReply> done);
  void KvGet(const wire::KvGet& request, Done<wire::KvGetReply> done);
  void KvDelete(const wire::KvDelete& request, Done<wire::KvDeleteReply> done);
  void KvList(const wire::KvList& request, Done<wire::KvListReply> done);
  void ListNodes(Done<wire::ListNodesReply> done);
  void Explain(const wire::Demand& demand, Done<wire::ExplainReply> done);
  void WorkerFate(WorkerId worker, NodeId node, Done<wire::WorkerFateReply> done);

  // The package's bytes go to `chunk` in order, on the loop; then `done`.
  void GetPackage(const std::string& name, std::function<void(std::string bytes)> chunk, std::function<void(absl::Status)> done);
  void HasPackage(const std::string& name, Done<bool> done);
  // Sends the file at `path`. UNAVAILABLE when the head went away: the same may be sent again.
  void PutPackage(const std::string& name, const std::string& path, std::function<void(absl::Status)> done);

  const std::string& address() const { return options_.address; }   // of the head

 private:
  struct Calls;
  struct Retry { bool allowed = true; absl::Duration wait = absl::ZeroDuration(); };   // wait: of the call itself, on top

  template <class Request, class Reply, class Result, class Method>
  void Call(Method method, Request request, Retry retry, std::function<Result(const Reply&)> convert, Done<Result> done);

  async::Loop& loop_;
  ClusterClientOptions options_;
  std::shared_ptr<Calls> calls_;
};

}  // namespace argosy::node
