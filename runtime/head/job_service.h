#pragma once

#include "argosy/v1/job.grpc.pb.h"
#include "runtime/head/head_core.h"
#include "runtime/rpc/call.h"

namespace argosy::head {

// Jobs and their logs: wire in, core, wire out.
//
// Thread:   gRPC's; handlers post to the loop.
// Lifetime: outlives the server.
class JobService final : public v1::JobService::CallbackService {
 public:
  JobService(rpc::CallGate& gate, HeadCore& core) : gate_(gate), core_(core) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* SubmitJob(Context* context, const v1::SubmitJobRequest* request, v1::SubmitJobReply* reply) override;
  Unary* GetJob(Context* context, const v1::JobName* request, v1::JobInfo* reply) override;
  Unary* ListJobs(Context* context, const v1::ListJobsRequest* request, v1::ListJobsReply* reply) override;
  Unary* StopJob(Context* context, const v1::JobName* request, v1::StopJobReply* reply) override;
  Unary* DeleteJob(Context* context, const v1::JobName* request, v1::DeleteJobReply* reply) override;
  Unary* ReadLog(Context* context, const v1::ReadLogRequest* request, v1::LogChunk* reply) override;
  grpc::ServerWriteReactor<v1::LogChunk>* FollowLog(Context* context, const v1::FollowLogRequest* request) override;

 private:
  rpc::CallGate& gate_;
  HeadCore& core_;
};

}  // namespace argosy::head
