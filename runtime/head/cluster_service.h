#pragma once

#include "argosy/v1/head.grpc.pb.h"
#include "runtime/head/head_core.h"
#include "runtime/head/package_store.h"
#include "runtime/rpc/call.h"

namespace argosy::head {

// The cluster as nodes, the CLI and outside clients see it: wire in, core, wire out.
//
// Thread:   gRPC's; handlers post to the loop.
// Lifetime: outlives the server.
class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  ClusterService(rpc::CallGate& gate, HeadCore& core, PackageStore& packages, async::Loop& disk)
      : gate_(gate), core_(core), packages_(packages), disk_(disk) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* KvPut(Context* context, const v1::KvPutRequest* request, v1::KvPutReply* reply) override;
  Unary* KvGet(Context* context, const v1::KvGetRequest* request, v1::KvGetReply* reply) override;
  Unary* KvDelete(Context* context, const v1::KvDeleteRequest* request, v1::KvDeleteReply* reply) override;
  Unary* KvList(Context* context, const v1::KvListRequest* request, v1::KvListReply* reply) override;
  Unary* HasPackage(Context* context, const v1::PackageName* request, v1::PackageStatus* reply) override;
  grpc::ServerReadReactor<v1::PackageChunk>* PutPackage(Context* context, v1::PackageStatus* reply) override;
  grpc::ServerWriteReactor<v1::PackageChunk>* GetPackage(Context* context, const v1::PackageName* request) override;
  Unary* RequestLease(Context* context, const v1::LeaseRequest* request, v1::LeaseReply* reply) override;
  Unary* WithdrawLease(Context* context, const v1::WithdrawLeaseRequest* request, v1::Empty* reply) override;
  Unary* ReturnLease(Context* context, const v1::ReturnLeaseRequest* request, v1::Empty* reply) override;
  Unary* CreateActor(Context* context, const v1::CreateActorRequest* request, v1::ActorInfo* reply) override;
  Unary* ResolveActor(Context* context, const v1::ResolveActorRequest* request, v1::ActorInfo* reply) override;
  Unary* KillActor(Context* context, const v1::KillActorRequest* request, v1::Empty* reply) override;
  Unary* ListActors(Context* context, const v1::ListActorsRequest* request, v1::ListActorsReply* reply) override;
  Unary* CreateGroups(Context* context, const v1::CreateGroupsRequest* request, v1::CreateGroupsReply* reply) override;
  Unary* WaitGroup(Context* context, const v1::WaitGroupRequest* request, v1::GroupInfo* reply) override;
  Unary* RemoveGroup(Context* context, const v1::RemoveGroupRequest* request, v1::Empty* reply) override;
  Unary* ListGroups(Context* context, const v1::Empty* request, v1::ListGroupsReply* reply) override;
  Unary* ListNodes(Context* context, const v1::Empty* request, v1::ListNodesReply* reply) override;
  Unary* ClusterStatus(Context* context, const v1::Empty* request, v1::ClusterStatusReply* reply) override;
  Unary* WorkerFate(Context* context, const v1::WorkerFateRequest* request, v1::WorkerFateReply* reply) override;
  Unary* ExplainDemand(Context* context, const v1::Demand* request, v1::ExplainReply* reply) override;
  // observe_service.cc
  Unary* ListState(Context* context, const v1::ListStateRequest* request, v1::ListStateReply* reply) override;
  Unary* ReadWorkerLog(Context* context, const v1::ReadWorkerLogRequest* request, v1::WorkerLogChunk* reply) override;
  Unary* DrainNode(Context* context, const v1::DrainNodeRequest* request, v1::DrainNodeReply* reply) override;
  Unary* ReadMetrics(Context* context, const v1::Empty* request, v1::MetricsText* reply) override;
  Unary* DumpStacks(Context* context, const v1::DumpStacksRequest* request, v1::DumpStacksReply* reply) override;

 private:
  void FillActor(ActorId actor, v1::ActorInfo* wire) const;

  rpc::CallGate& gate_;
  HeadCore& core_;
  PackageStore& packages_;
  async::Loop& disk_;
};

}  // namespace argosy::head
