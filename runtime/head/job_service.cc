#include "runtime/head/job_service.h"

#include <algorithm>
#include <utility>

#include "runtime/head/head_codec.h"

namespace argosy::head {
namespace {

constexpr uint64_t kChunkBytes = 256 << 10;
constexpr uint64_t kReadBytesMax = 16 << 20;

void FillChunk(JobLogs::Chunk&& chunk, bool ended, v1::LogChunk* wire) {
  wire->set_offset(chunk.offset);
  wire->set_first(chunk.first);
  wire->set_end(chunk.end);
  wire->set_complete(ended && chunk.offset + chunk.data.size() == chunk.end);
  wire->set_data(std::move(chunk.data));
}

// Sends a log from an offset on until the job has ended and every byte is sent. One chunk is on the way at a time.
//
// Thread:   the loop; gRPC's threads only post.
// Lifetime: gRPC's, until OnDone, which follows End; the watch at the core is taken back there.
class LogFollower final : public grpc::ServerWriteReactor<v1::LogChunk> {
 public:
  LogFollower(async::Loop& loop, HeadCore& core, std::string name, uint64_t offset)
      : loop_(loop), core_(core), name_(std::move(name)), offset_(offset) {
    loop_.Post([this] {
      const JobRecord* job = core_.jobs().Find(name_);
      if (job != nullptr) name_ = job->name;
      Next();
    });
  }

 private:
  void OnWriteDone(bool ok) override {
    loop_.Post([this, ok] {
      busy_ = false;
      ok ? Next() : End(absl::CancelledError("the client is gone"));
    });
  }
  void OnCancel() override {
    loop_.Post([this] {
      cancelled_ = true;
      if (!busy_) End(absl::CancelledError("the client is gone"));
    });
  }
  void OnDone() override {
    loop_.Post([this] { delete this; });
  }

  void Next() {
    if (busy_ || ended_) return;
    if (cancelled_) return End(absl::CancelledError("the client is gone"));
    const JobRecord* job = core_.jobs().Find(name_);
    if (job == nullptr) return End(NotFound("Job {} does not exist", name_));
    if (!job->is_submission) return End(InvalidArgument("Can only get logs of submission type jobs"));
    // Asked before the log's end: a job that has ended writes no more.
    bool terminal = IsTerminal(job->state);
    uint64_t end = core_.logs().End(name_);
    if (offset_ >= end) {
      if (terminal) return End(absl::OkStatus());
      watch_ = core_.WatchJob(name_, [this] {
        watch_ = 0;
        Next();
      });
      return;
    }
    busy_ = true;
    core_.logs().Read(name_, offset_, kChunkBytes, [this, terminal](absl::StatusOr<JobLogs::Chunk> chunk) {
      // The reactor is still here: it finishes only when it is not busy.
      if (chunk.ok() && chunk->data.empty() && chunk->end <= offset_) chunk = NotFound("the log of job {} is gone", name_);
      if (!chunk.ok() || cancelled_) {
        busy_ = false;
        return End(chunk.ok() ? absl::CancelledError("the client is gone") : chunk.status());
      }
      offset_ = chunk->offset + chunk->data.size();
      chunk_.Clear();
      FillChunk(std::move(*chunk), terminal, &chunk_);
      StartWrite(&chunk_);
    });
  }

  void End(const absl::Status& status) {
    if (std::exchange(ended_, true)) return;
    if (watch_ != 0) core_.UnwatchJob(name_, watch_);
    Finish(rpc::ToGrpc(status));
  }

  async::Loop& loop_;
  HeadCore& core_;
  std::string name_;
  uint64_t offset_;
  v1::LogChunk chunk_;
  uint64_t watch_ = 0;      // at the core; 0: none
  bool busy_ = false;       // reading or writing
  bool cancelled_ = false;
  bool ended_ = false;
};

}  // namespace

JobService::Unary* JobService::SubmitJob(Context* context, const v1::SubmitJobRequest* request, v1::SubmitJobReply* reply) {
  return gate_.Unary<v1::SubmitJobReply>(context, reply, [this, request](rpc::Answer<v1::SubmitJobReply> answer) {
    absl::StatusOr<JobRecord> job = FromWire(*request);
    if (!job.ok()) return answer.Error(job.status());
    core_.SubmitJob(std::move(*job), [answer](absl::StatusOr<std::string> name) {
      if (!name.ok()) return answer.Error(name.status());
      answer.Ok([&](v1::SubmitJobReply& reply) { reply.set_submission_id(*name); });
    });
  });
}

JobService::Unary* JobService::GetJob(Context* context, const v1::JobName* request, v1::JobInfo* reply) {
  return gate_.Unary<v1::JobInfo>(context, reply, [this, request](rpc::Answer<v1::JobInfo> answer) {
    const JobRecord* job = core_.jobs().Find(request->submission_id());
    if (job == nullptr) return answer.Error(NotFound("Job {} does not exist", request->submission_id()));
    answer.Ok([&](v1::JobInfo& reply) { ToWire(*job, core_.JobMessage(*job), core_.logs().End(job->name), &reply); });
  });
}

JobService::Unary* JobService::ListJobs(Context* context, const v1::ListJobsRequest* request, v1::ListJobsReply* reply) {
  return gate_.Unary<v1::ListJobsReply>(context, reply, [this](rpc::Answer<v1::ListJobsReply> answer) {
    answer.Ok([&](v1::ListJobsReply& reply) {
      for (const JobRecord* job : core_.jobs().All()) ToWire(*job, core_.JobMessage(*job), core_.logs().End(job->name), reply.add_jobs());
    });
  });
}

JobService::Unary* JobService::StopJob(Context* context, const v1::JobName* request, v1::StopJobReply* reply) {
  return gate_.Unary<v1::StopJobReply>(context, reply, [this, request](rpc::Answer<v1::StopJobReply> answer) {
    absl::StatusOr<bool> stopped = core_.StopJob(request->submission_id());
    if (!stopped.ok()) return answer.Error(stopped.status());
    answer.Ok([&](v1::StopJobReply& reply) { reply.set_stopped(*stopped); });
  });
}

JobService::Unary* JobService::DeleteJob(Context* context, const v1::JobName* request, v1::DeleteJobReply* reply) {
  return gate_.Unary<v1::DeleteJobReply>(context, reply, [this, request](rpc::Answer<v1::DeleteJobReply> answer) {
    core_.DeleteJob(request->submission_id(), [answer](absl::Status status) {
      if (!status.ok()) return answer.Error(status);
      answer.Ok([&](v1::DeleteJobReply& reply) { reply.set_deleted(true); });
    });
  });
}

JobService::Unary* JobService::ReadLog(Context* context, const v1::ReadLogRequest* request, v1::LogChunk* reply) {
  return gate_.Unary<v1::LogChunk>(context, reply, [this, request](rpc::Answer<v1::LogChunk> answer) {
    const JobRecord* job = core_.jobs().Find(request->submission_id());
    if (job == nullptr) return answer.Error(NotFound("Job {} does not exist", request->submission_id()));
    if (!job->is_submission) return answer.Error(InvalidArgument("Can only get logs of submission type jobs"));
    uint64_t size = std::clamp<uint64_t>(request->size_max() == 0 ? kReadBytesMax : request->size_max(), 1, kReadBytesMax);
    uint64_t end = core_.logs().End(job->name);
    // From the end: the newest `size_max` bytes.
    uint64_t offset = request->from_end() ? end - std::min(end, size) : request->offset();
    core_.logs().Read(job->name, offset, size, [answer, ended = IsTerminal(job->state)](absl::StatusOr<JobLogs::Chunk> chunk) {
      if (!chunk.ok()) return answer.Error(chunk.status());
      answer.Ok([&](v1::LogChunk& reply) { FillChunk(std::move(*chunk), ended, &reply); });
    });
  });
}

grpc::ServerWriteReactor<v1::LogChunk>* JobService::FollowLog(Context* context, const v1::FollowLogRequest* request) {
  if (absl::Status allowed = gate_.Check(*context); !allowed.ok()) {
    return new rpc::RefusedStream<grpc::ServerWriteReactor<v1::LogChunk>>(allowed);
  }
  return new LogFollower(gate_.loop(), core_, request->submission_id(), request->offset());
}

}  // namespace argosy::head
