#pragma once

// The head as coroutines see it: calls over the channel that the server was given, answered on the server's loop. Included only by
// the dashboard server's own sources (it brings gRPC and Asio).

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "argosy/v1/head.grpc.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "dashboard/server/event.h"
#include "runtime/base/status.h"

namespace argosy::dashboard {

class LogFollow;
class PackageUpload;

// Thread:   the loop; gRPC's threads only post to it.
// Lifetime: the loop runs until every call has come back (each holds a work guard); Cancel makes them come back soon.
// Failure:  a status; a call that takes longer than its deadline is given up with kDeadlineExceeded.
class HeadClient {
 public:
  HeadClient(boost::asio::io_context& loop, std::shared_ptr<grpc::Channel> channel);

  template <class T>
  using Reply = boost::asio::awaitable<absl::StatusOr<T>>;

  Reply<v1::SubmitJobReply> SubmitJob(v1::SubmitJobRequest request);
  Reply<v1::JobInfo> GetJob(std::string id);
  Reply<v1::ListJobsReply> ListJobs();
  Reply<v1::StopJobReply> StopJob(std::string id);
  Reply<v1::DeleteJobReply> DeleteJob(std::string id);
  // The bytes [begin, end) as far as they are kept, in calls of at most 1 MiB each.
  Reply<std::string> ReadLog(std::string id, uint64_t begin, uint64_t end);

  Reply<v1::PackageStatus> HasPackage(std::string name);
  Reply<v1::ClusterStatusReply> ClusterStatus();
  Reply<v1::ListActorsReply> ListActors();
  Reply<v1::MetricsText> ReadMetrics();
  Reply<v1::ListGroupsReply> ListGroups();

  // Reads one chunk ahead at most: a slow reader slows the head's stream down, and no memory grows.
  std::shared_ptr<LogFollow> FollowLog(const std::string& id, uint64_t offset);
  std::shared_ptr<PackageUpload> PutPackage(const std::string& name, uint64_t size);

  // Every call that runs, and every later one, ends with kCancelled.
  void Cancel();

 private:
  friend class LogFollow;
  friend class PackageUpload;
  template <class T, class Request, class Start>
  Reply<T> Call(Request request, Start start);

  boost::asio::io_context& loop_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::set<grpc::ClientContext*> running_;
  bool cancelled_ = false;
};

// A followed log. Lives until gRPC is done with it, whoever else lets go.
class LogFollow : public grpc::ClientReadReactor<v1::LogChunk>, public std::enable_shared_from_this<LogFollow> {
 public:
  // The next chunk, or none at the end; then `status` tells how it ended.
  boost::asio::awaitable<std::optional<v1::LogChunk>> Next();
  const absl::Status& status() const { return status_; }
  // Idempotent; must be called before the last user lets go.
  void Cancel();

 private:
  friend class HeadClient;
  LogFollow(HeadClient& head, const std::string& id, uint64_t offset);
  void Start();
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  HeadClient& head_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  grpc::ClientContext context_;
  v1::FollowLogRequest request_;
  v1::LogChunk chunk_;
  Event event_;
  absl::Status status_;
  bool read_ok_ = false;
  bool done_ = false;
  bool held_ = true;
  std::shared_ptr<LogFollow> self_;
};

// A package on its way to the head.
class PackageUpload : public grpc::ClientWriteReactor<v1::PackageChunk>, public std::enable_shared_from_this<PackageUpload> {
 public:
  // False: the head ended the call; Finish says why.
  boost::asio::awaitable<bool> Write(std::string_view bytes);
  boost::asio::awaitable<absl::StatusOr<v1::PackageStatus>> Finish();
  // Without it and without Finish the call would never end. Idempotent, harmless after Finish.
  void Cancel();

 private:
  friend class HeadClient;
  PackageUpload(HeadClient& head, const std::string& name, uint64_t size);
  void Start();
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  HeadClient& head_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  grpc::ClientContext context_;
  v1::PackageStatus reply_;
  v1::PackageChunk chunk_;
  Event event_;
  absl::Status status_;
  bool write_ok_ = false;
  bool done_ = false;
  bool held_ = true;
  std::shared_ptr<PackageUpload> self_;
};

}  // namespace argosy::dashboard
