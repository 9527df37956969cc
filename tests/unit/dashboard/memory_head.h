#pragma once

// A head that runs nothing: jobs are what the test says they are. It speaks the real gRPC services over a local socket.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "argosy/v1/head.grpc.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "runtime/rpc/channel.h"

namespace argosy::dashboard {

class MemoryHead : public v1::JobService::Service, public v1::ClusterService::Service {
 public:
  MemoryHead() {
    grpc::ServerBuilder builder;
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(this));
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    server_ = builder.BuildAndStart();
  }
  ~MemoryHead() override { Stop(); }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_->Wait();
  }

  std::shared_ptr<grpc::Channel> Channel() { return rpc::OpenChannel({.address = fmt::format("127.0.0.1:{}", port_)}); }

  void AddJob(const std::string& id, v1::JobInfo::State state = v1::JobInfo::RUNNING) {
    std::lock_guard lock(mutex_);
    v1::JobInfo& info = jobs_[id].info;
    info.set_submission_id(id);
    info.set_is_submission(true);
    info.set_entrypoint("true");
    info.set_state(state);
  }
  void Append(const std::string& id, const std::string& text) {
    std::lock_guard lock(mutex_);
    jobs_[id].log += text;
    changed_.notify_all();
  }
  void Finish(const std::string& id, v1::JobInfo::State state = v1::JobInfo::SUCCEEDED) {
    std::lock_guard lock(mutex_);
    jobs_[id].info.set_state(state);
    changed_.notify_all();
  }
  // From now on followers of `id` are told that the head cannot go on.
  void Break(const std::string& id) {
    std::lock_guard lock(mutex_);
    jobs_[id].broken = true;
    changed_.notify_all();
  }
  // The log's bytes before `first` are gone.
  void Forget(const std::string& id, uint64_t first) {
    std::lock_guard lock(mutex_);
    jobs_[id].first = first;
  }
  uint64_t Sent(const std::string& id) {
    std::lock_guard lock(mutex_);
    return jobs_[id].sent;
  }
  std::string Package(const std::string& name) {
    std::lock_guard lock(mutex_);
    return packages_[name];
  }
  void RefusePackages(const std::string& reason) {
    std::lock_guard lock(mutex_);
    refusal_ = reason;
  }

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request, v1::SubmitJobReply* reply) override {
    std::string id = request->submission_id().empty() ? "raysubmit_made" : request->submission_id();
    {
      std::lock_guard lock(mutex_);
      if (jobs_.count(id) > 0) return {grpc::StatusCode::ALREADY_EXISTS, "taken"};
    }
    AddJob(id, v1::JobInfo::PENDING);
    std::lock_guard lock(mutex_);
    jobs_[id].info.set_entrypoint(request->entrypoint());
    reply->set_submission_id(id);
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::JobName* request, v1::JobInfo* reply) override {
    std::lock_guard lock(mutex_);
    auto it = jobs_.find(request->submission_id());
    if (it == jobs_.end()) return Missing();
    *reply = it->second.info;
    reply->set_log_end(it->second.log.size());
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*, v1::ListJobsReply* reply) override {
    std::lock_guard lock(mutex_);
    for (const auto& [id, job] : jobs_) *reply->add_jobs() = job.info;
    return grpc::Status::OK;
  }
  grpc::Status StopJob(grpc::ServerContext*, const v1::JobName* request, v1::StopJobReply* reply) override {
    std::lock_guard lock(mutex_);
    v1::JobInfo& info = jobs_[request->submission_id()].info;
    reply->set_stopped(info.state() == v1::JobInfo::RUNNING || info.state() == v1::JobInfo::PENDING);
    if (reply->stopped()) info.set_state(v1::JobInfo::STOPPED);
    changed_.notify_all();
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::JobName* request, v1::DeleteJobReply* reply) override {
    std::lock_guard lock(mutex_);
    auto it = jobs_.find(request->submission_id());
    if (it == jobs_.end()) return Missing();
    if (it->second.info.state() == v1::JobInfo::RUNNING) return {grpc::StatusCode::FAILED_PRECONDITION, "runs"};
    jobs_.erase(it);
    reply->set_deleted(true);
    return grpc::Status::OK;
  }
  grpc::Status ReadLog(grpc::ServerContext*, const v1::ReadLogRequest* request, v1::LogChunk* reply) override {
    std::lock_guard lock(mutex_);
    auto it = jobs_.find(request->submission_id());
    if (it == jobs_.end()) return Missing();
    FillChunk(it->second, request->offset(), request->size_max(), reply);
    return grpc::Status::OK;
  }
  grpc::Status FollowLog(grpc::ServerContext* context, const v1::FollowLogRequest* request, grpc::ServerWriter<v1::LogChunk>* writer) override {
    uint64_t offset = request->offset();
    std::unique_lock lock(mutex_);
    for (;;) {
      auto it = jobs_.find(request->submission_id());
      if (it == jobs_.end()) return Missing();
      Job& job = it->second;
      if (stopping_ || job.broken) return {grpc::StatusCode::UNAVAILABLE, "the head is gone"};
      if (offset < job.log.size()) {
        v1::LogChunk chunk;
        FillChunk(job, offset, 256 << 10, &chunk);
        offset = chunk.offset() + chunk.data().size();
        job.sent = std::max<uint64_t>(job.sent, offset);
        lock.unlock();
        if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
        lock.lock();
        continue;
      }
      if (job.info.state() != v1::JobInfo::RUNNING && job.info.state() != v1::JobInfo::PENDING) return grpc::Status::OK;
      changed_.wait_for(lock, std::chrono::milliseconds(50));
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
    }
  }

  grpc::Status HasPackage(grpc::ServerContext*, const v1::PackageName* request, v1::PackageStatus* reply) override {
    std::lock_guard lock(mutex_);
    auto it = packages_.find(request->name());
    reply->set_exists(it != packages_.end());
    if (it != packages_.end()) reply->set_size(it->second.size());
    return grpc::Status::OK;
  }
  grpc::Status PutPackage(grpc::ServerContext*, grpc::ServerReader<v1::PackageChunk>* reader, v1::PackageStatus* reply) override {
    std::string name, bytes;
    v1::PackageChunk chunk;
    while (reader->Read(&chunk)) {
      if (name.empty()) name = chunk.name();
      bytes += chunk.data();
      std::lock_guard lock(mutex_);
      if (!refusal_.empty()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, refusal_};
    }
    if (name.empty()) return {grpc::StatusCode::INVALID_ARGUMENT, "the first chunk has no name"};
    std::lock_guard lock(mutex_);
    reply->set_exists(true);
    reply->set_size(bytes.size());
    packages_[name] = std::move(bytes);
    return grpc::Status::OK;
  }
  grpc::Status ClusterStatus(grpc::ServerContext*, const v1::Empty*, v1::ClusterStatusReply* reply) override {
    reply->set_session_name("session_test");
    v1::NodeInfo& node = *reply->add_nodes();
    node.set_name("n1");
    node.set_alive(true);
    node.set_node_id(std::string(16, '\1'));
    (*node.mutable_resources_total())["CPU"] = 2;
    v1::PendingDemand& demand = *reply->add_pending();
    demand.set_what("job x");
    demand.set_explanation("no node has GPU: 8");
    return grpc::Status::OK;
  }
  grpc::Status ListActors(grpc::ServerContext*, const v1::ListActorsRequest*, v1::ListActorsReply*) override { return grpc::Status::OK; }
  grpc::Status ListGroups(grpc::ServerContext*, const v1::Empty*, v1::ListGroupsReply*) override { return grpc::Status::OK; }

 private:
  struct Job {
    v1::JobInfo info;
    std::string log;
    uint64_t first = 0;
    uint64_t sent = 0;
    bool broken = false;
  };

  static grpc::Status Missing() { return {grpc::StatusCode::NOT_FOUND, "no such job"}; }

  static void FillChunk(const Job& job, uint64_t offset, uint64_t size_max, v1::LogChunk* chunk) {
    offset = std::min<uint64_t>(std::max(offset, job.first), job.log.size());
    chunk->set_offset(offset);
    chunk->set_data(job.log.substr(offset, size_max));
    chunk->set_first(job.first);
    chunk->set_end(job.log.size());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, std::string> packages_;
  std::string refusal_;
  bool stopping_ = false;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace argosy::dashboard
