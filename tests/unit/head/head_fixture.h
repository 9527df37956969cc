#pragma once

// A real head on a free port, a channel to it, and a node that does what a test tells it.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "argosy/v1/head.grpc.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/head/head_server.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/version.h"
#include "tests/support/catch.h"

namespace argosy::head {

inline bool WaitFor(const std::function<bool()>& condition, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto end = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class TestHead {
 public:
  explicit TestHead(Token token = Token("secret"), absl::Duration node_timeout = absl::Seconds(10)) : token_(std::move(token)), node_timeout_(node_timeout) {
    folder_ = (std::filesystem::temp_directory_path() / ("argosy-head-test-" + NodeId::Random().Hex())).string();
    Start();
  }
  ~TestHead() {
    Stop();
    std::filesystem::remove_all(folder_);
  }

  // Port 0: any free one.
  void Start(uint16_t port = 0) {
    auto server = HeadServer::Start({.port = port, .token = token_, .session_dir = folder_, .session_name = "session_test", .node_timeout = node_timeout_,
                                     .job_start_timeout = job_start_timeout});
    INFO(server.status().ToString());
    REQUIRE(server.ok());
    server_ = std::move(*server);
    channel_ = rpc::OpenChannel({.address = server_->address(), .token = token_});
    cluster = v1::ClusterService::NewStub(channel_);
    jobs = v1::JobService::NewStub(channel_);
    nodes = v1::NodeService::NewStub(channel_);
  }
  void Stop() {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
    server_ = nullptr;
  }
  HeadServer& server() { return *server_; }
  const std::string& folder() const { return folder_; }

  // Calls `method` of a stub, checks that it is OK, returns the reply.
  template <class Reply, class Stub, class Request>
  Reply Call(const std::unique_ptr<Stub>& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*), const Request& request) {
    Reply reply;
    grpc::ClientContext context;
    rpc::SetDeadline(context, absl::Seconds(20));
    grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return reply;
  }

  v1::JobInfo Job(const std::string& name) {
    v1::JobName request;
    request.set_submission_id(name);
    return Call(jobs, &v1::JobService::Stub::GetJob, request);
  }
  // A job may be said on a node's stream, which the call that asks for it does not follow.
  void WaitForJob(const std::string& name, v1::JobInfo::State state) {
    REQUIRE(WaitFor([&] {
      v1::JobName request;
      request.set_submission_id(name);
      v1::JobInfo reply;
      grpc::ClientContext context;
      rpc::SetDeadline(context, absl::Seconds(20));
      grpc::Status status = jobs->GetJob(&context, request, &reply);
      INFO(status.error_message());
      REQUIRE((status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND));
      return status.ok() && reply.state() == state;
    }));
  }
  std::string Submit(const std::string& entrypoint, const std::function<void(v1::SubmitJobRequest&)>& change = nullptr) {
    v1::SubmitJobRequest request;
    request.set_entrypoint(entrypoint);
    if (change) change(request);
    return Call(jobs, &v1::JobService::Stub::SubmitJob, request).submission_id();
  }

  std::unique_ptr<v1::ClusterService::Stub> cluster;
  std::unique_ptr<v1::JobService::Stub> jobs;
  std::unique_ptr<v1::NodeService::Stub> nodes;
  absl::Duration job_start_timeout = absl::Seconds(900);

 private:
  Token token_;
  absl::Duration node_timeout_;
  std::string folder_;
  std::unique_ptr<HeadServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// One node's stream, driven by the test: what the head sends is queued until asked for.
class TestNode {
 public:
  TestNode(TestHead& head, const std::string& name, const std::map<std::string, double>& total, bool is_head_node = false,
           NodeId id = NodeId::Random(), const std::function<void(v1::Register&)>& change = nullptr)
      : id(id) {
    stream_ = head.nodes->Connect(&context_);
    v1::NodeMessage hello;
    v1::Register* message = hello.mutable_register_();
    rpc::FillVersion(message->mutable_version());
    v1::NodeInfo* node = message->mutable_node();
    node->set_node_id(std::string(id.Bytes()));
    node->set_name(name);
    node->set_ip("127.0.0.1");
    node->set_is_head_node(is_head_node);
    for (const auto& [resource, amount] : total) (*node->mutable_resources_total())[resource] = amount;
    if (change) change(*message);
    stream_->Write(hello);
    reader_ = std::thread([this] {
      v1::HeadMessage incoming;
      while (stream_->Read(&incoming)) {
        std::lock_guard lock(mutex_);
        queue_.push_back(incoming);
        arrived_.notify_all();
      }
      std::lock_guard lock(mutex_);
      ended_ = true;
      arrived_.notify_all();
    });
  }
  ~TestNode() { Leave(); }

  void Leave() {
    if (!reader_.joinable()) return;
    context_.TryCancel();
    reader_.join();
    (void)stream_->Finish();
  }

  void Send(const v1::NodeMessage& message) { stream_->Write(message); }

  // The next message of that kind; others before it stay queued.
  v1::HeadMessage Expect(v1::HeadMessage::MessageCase kind) {
    std::unique_lock lock(mutex_);
    std::optional<v1::HeadMessage> found;
    bool in_time = arrived_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (auto at = queue_.begin(); at != queue_.end(); ++at) {
        if (at->message_case() != kind) continue;
        found = std::move(*at);
        queue_.erase(at);
        return true;
      }
      return ended_;
    });
    INFO("waiting for message " << static_cast<int>(kind));
    REQUIRE(in_time);
    REQUIRE(found.has_value());
    return *found;
  }
  bool Has(v1::HeadMessage::MessageCase kind) {
    std::lock_guard lock(mutex_);
    for (const auto& message : queue_) {
      if (message.message_case() == kind) return true;
    }
    return false;
  }

  const NodeId id;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::HeadMessage>> stream_;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<v1::HeadMessage> queue_;
  bool ended_ = false;
};

}  // namespace argosy::head
