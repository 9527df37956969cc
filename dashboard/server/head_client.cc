#include "dashboard/server/head_client.h"

#include <algorithm>

#include "runtime/rpc/utf8.h"

namespace argosy::dashboard {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kCallTimeout{30};
constexpr uint64_t kReadSize = 1 << 20;

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), ToAbsl(status.error_message()));
}

template <class Request, class Reply>
struct CallState {
  explicit CallState(asio::io_context& loop) : event(loop) {}
  grpc::ClientContext context;
  Request request;
  Reply reply;
  grpc::Status status;
  Event event;
};

}  // namespace

HeadClient::HeadClient(asio::io_context& loop, std::shared_ptr<grpc::Channel> channel)
    : loop_(loop), jobs_(v1::JobService::NewStub(channel)), cluster_(v1::ClusterService::NewStub(channel)) {}

template <class T, class Request, class Start>
HeadClient::Reply<T> HeadClient::Call(Request request, Start start) {
  if (cancelled_) co_return absl::CancelledError("the dashboard server is stopping");
  if (absl::Status good = rpc::CheckUtf8(request); !good.ok()) co_return good;
  auto state = std::make_shared<CallState<Request, T>>(loop_);
  state->request = std::move(request);
  state->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  running_.insert(&state->context);
  start(&state->context, &state->request, &state->reply,
        [state, work = asio::make_work_guard(loop_)](grpc::Status status) {
          asio::post(work.get_executor(), [state, status = std::move(status)] {
            state->status = status;
            state->event.Set();
          });
        });
  co_await state->event.Wait();
  running_.erase(&state->context);
  if (!state->status.ok()) co_return FromGrpc(state->status);
  co_return std::move(state->reply);
}

HeadClient::Reply<v1::SubmitJobReply> HeadClient::SubmitJob(v1::SubmitJobRequest request) {
  return Call<v1::SubmitJobReply>(std::move(request), [this](auto* context, auto* request, auto* reply, auto done) {
    jobs_->async()->SubmitJob(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::JobInfo> HeadClient::GetJob(std::string id) {
  v1::JobName name;
  name.set_submission_id(std::move(id));
  return Call<v1::JobInfo>(std::move(name), [this](auto* context, auto* request, auto* reply, auto done) {
    jobs_->async()->GetJob(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::ListJobsReply> HeadClient::ListJobs() {
  return Call<v1::ListJobsReply>(v1::ListJobsRequest(), [this](auto* context, auto* request, auto* reply, auto done) {
    jobs_->async()->ListJobs(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::StopJobReply> HeadClient::StopJob(std::string id) {
  v1::JobName name;
  name.set_submission_id(std::move(id));
  return Call<v1::StopJobReply>(std::move(name), [this](auto* context, auto* request, auto* reply, auto done) {
    jobs_->async()->StopJob(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::DeleteJobReply> HeadClient::DeleteJob(std::string id) {
  v1::JobName name;
  name.set_submission_id(std::move(id));
  return Call<v1::DeleteJobReply>(std::move(name), [this](auto* context, auto* request, auto* reply, auto done) {
    jobs_->async()->DeleteJob(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<std::string> HeadClient::ReadLog(std::string id, uint64_t begin, uint64_t end) {
  std::string log;
  while (begin < end) {
    v1::ReadLogRequest request;
    request.set_submission_id(id);
    request.set_offset(begin);
    request.set_size_max(std::min(kReadSize, end - begin));
    absl::StatusOr<v1::LogChunk> chunk =
        co_await Call<v1::LogChunk>(std::move(request), [this](auto* context, auto* request, auto* reply, auto done) {
          jobs_->async()->ReadLog(context, request, reply, std::move(done));
        });
    if (!chunk.ok()) co_return chunk.status();
    if (chunk->data().empty()) break;
    log += chunk->data();
    begin = chunk->offset() + chunk->data().size();
  }
  co_return log;
}

HeadClient::Reply<v1::PackageStatus> HeadClient::HasPackage(std::string name) {
  v1::PackageName request;
  request.set_name(std::move(name));
  return Call<v1::PackageStatus>(std::move(request), [this](auto* context, auto* request, auto* reply, auto done) {
    cluster_->async()->HasPackage(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::ClusterStatusReply> HeadClient::ClusterStatus() {
  return Call<v1::ClusterStatusReply>(v1::Empty(), [this](auto* context, auto* request, auto* reply, auto done) {
    cluster_->async()->ClusterStatus(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::ListActorsReply> HeadClient::ListActors() {
  return Call<v1::ListActorsReply>(v1::ListActorsRequest(), [this](auto* context, auto* request, auto* reply, auto done) {
    cluster_->async()->ListActors(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::MetricsText> HeadClient::ReadMetrics() {
  return Call<v1::MetricsText>(v1::Empty(), [this](auto* context, auto* request, auto* reply, auto done) {
    cluster_->async()->ReadMetrics(context, request, reply, std::move(done));
  });
}

HeadClient::Reply<v1::ListGroupsReply> HeadClient::ListGroups() {
  return Call<v1::ListGroupsReply>(v1::Empty(), [this](auto* context, auto* request, auto* reply, auto done) {
    cluster_->async()->ListGroups(context, request, reply, std::move(done));
  });
}

std::shared_ptr<LogFollow> HeadClient::FollowLog(const std::string& id, uint64_t offset) {
  std::shared_ptr<LogFollow> follow(new LogFollow(*this, id, offset));
  follow->Start();
  return follow;
}

std::shared_ptr<PackageUpload> HeadClient::PutPackage(const std::string& name, uint64_t size) {
  std::shared_ptr<PackageUpload> upload(new PackageUpload(*this, name, size));
  upload->Start();
  return upload;
}

void HeadClient::Cancel() {
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

// ---- LogFollow: a hold keeps OnDone from coming before the last read that the loop asks for ---------------------------------

LogFollow::LogFollow(HeadClient& head, const std::string& id, uint64_t offset)
    : head_(head), work_(asio::make_work_guard(head.loop_)), event_(head.loop_) {
  request_.set_submission_id(id);
  request_.set_offset(offset);
}

void LogFollow::Start() {
  self_ = shared_from_this();
  head_.running_.insert(&context_);
  head_.jobs_->async()->FollowLog(&context_, &request_, this);
  AddHold();
  StartCall();
  if (head_.cancelled_) context_.TryCancel();
}

asio::awaitable<std::optional<v1::LogChunk>> LogFollow::Next() {
  if (!held_) co_return std::nullopt;
  StartRead(&chunk_);
  co_await event_.Wait();
  if (read_ok_) co_return std::move(chunk_);
  if (std::exchange(held_, false)) RemoveHold();
  while (!done_) co_await event_.Wait();
  co_return std::nullopt;
}

void LogFollow::Cancel() {
  if (done_) return;
  context_.TryCancel();
  if (std::exchange(held_, false)) RemoveHold();
}

void LogFollow::OnReadDone(bool ok) {
  asio::post(head_.loop_, [self = shared_from_this(), ok] {
    self->read_ok_ = ok;
    self->event_.Set();
  });
}

void LogFollow::OnDone(const grpc::Status& status) {
  // The last thing gRPC does with this object; the loop lets go of it.
  asio::post(head_.loop_, [self = std::move(self_), status = FromGrpc(status)] {
    self->status_ = status;
    self->done_ = true;
    self->head_.running_.erase(&self->context_);
    self->event_.Set();
  });
}

// ---- PackageUpload -----------------------------------------------------------------------------------------------------------

PackageUpload::PackageUpload(HeadClient& head, const std::string& name, uint64_t size)
    : head_(head), work_(asio::make_work_guard(head.loop_)), event_(head.loop_) {
  chunk_.set_name(name);
  chunk_.set_total_size(size);
}

void PackageUpload::Start() {
  self_ = shared_from_this();
  head_.running_.insert(&context_);
  head_.cluster_->async()->PutPackage(&context_, &reply_, this);
  AddHold();
  StartCall();
  if (head_.cancelled_) context_.TryCancel();
}

asio::awaitable<bool> PackageUpload::Write(std::string_view bytes) {
  chunk_.set_data(bytes.data(), bytes.size());
  StartWrite(&chunk_);
  co_await event_.Wait();
  chunk_.clear_name();   // only the first chunk names the package
  chunk_.clear_total_size();
  co_return write_ok_;
}

asio::awaitable<absl::StatusOr<v1::PackageStatus>> PackageUpload::Finish() {
  if (std::exchange(held_, false)) {
    StartWritesDone();
    RemoveHold();
  }
  while (!done_) co_await event_.Wait();
  if (!status_.ok()) co_return status_;
  co_return reply_;
}

void PackageUpload::Cancel() {
  if (done_) return;
  context_.TryCancel();
  if (std::exchange(held_, false)) RemoveHold();
}

void PackageUpload::OnWriteDone(bool ok) {
  asio::post(head_.loop_, [self = shared_from_this(), ok] {
    self->write_ok_ = ok;
    self->event_.Set();
  });
}

void PackageUpload::OnDone(const grpc::Status& status) {
  asio::post(head_.loop_, [self = std::move(self_), status = FromGrpc(status)] {
    self->status_ = status;
    self->done_ = true;
    self->head_.running_.erase(&self->context_);
    self->event_.Set();
  });
}

}  // namespace argosy::dashboard
