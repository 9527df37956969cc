#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "argosy/v1/head.grpc.pb.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/node/head_link.h"
#include "runtime/node/node_codec.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/status.h"
#include "runtime/rpc/utf8.h"

namespace argosy::node {

struct HeadLink::Stub {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::NodeService::Stub> stub;
};

// Counts the streams that gRPC still holds, so that the link's end can wait for them.
struct HeadLink::Live {
  std::mutex mutex;
  std::condition_variable changed;
  int streams = 0;
};

// One call. gRPC's threads read and write; everything is handed to the loop. Deletes itself when gRPC is done.
class HeadLink::Stream final : public grpc::ClientBidiReactor<v1::NodeMessage, v1::HeadMessage> {
 public:
  Stream(HeadLink& link, uint64_t number)
      : loop_(link.loop_), link_(&link), number_(number), alive_(link.alive_), live_(link.live_) {
    std::lock_guard lock(live_->mutex);
    ++live_->streams;
  }

  void Begin(v1::NodeService::Stub& stub) {
    stub.async()->Connect(&context_, this);
    // Until End, writes may start from outside a reaction.
    AddHold();
    StartRead(&in_);
    StartCall();
  }
  // The loop's.
  void Send(v1::NodeMessage message) {
    rpc::MakeUtf8(message);   // an exception's text or a program's arguments must not cost the stream
    std::lock_guard lock(mutex_);
    if (write_failed_) return;
    out_.push_back(std::move(message));
    if (out_.size() == 1) StartWrite(&out_.front());
  }
  size_t waiting() {
    std::lock_guard lock(mutex_);
    return out_.size();
  }
  // The loop's; once, and the last that is done with it: gRPC may then delete it at any time.
  void End(bool cancel) {
    if (cancel) context_.TryCancel();
    RemoveHold();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      ToLoop([](HeadLink& link, uint64_t number) {
        if (number == link.stream_number_ && link.stream_ != nullptr) std::exchange(link.stream_, nullptr)->End(false);
      });
      return;
    }
    absl::StatusOr<FromHead> message = FromProto(in_);
    if (message.ok()) {
      ToLoop([message = std::move(*message)](HeadLink& link, uint64_t number) { link.OnMessage(number, message); });
    } else {
      spdlog::warn("a message of the head was ignored: {}", Message(message.status()));
    }
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    out_.pop_front();
    if (!ok) {
      write_failed_ = true;
      return;
    }
    if (!out_.empty()) StartWrite(&out_.front());
  }
  void OnDone(const grpc::Status& status) override {
    ToLoop([status = rpc::FromGrpc(status)](HeadLink& link, uint64_t number) { link.OnDone(number, status); });
    std::shared_ptr<Live> live = live_;
    delete this;
    std::lock_guard lock(live->mutex);
    --live->streams;
    live->changed.notify_all();
  }
  void ToLoop(std::function<void(HeadLink&, uint64_t)> function) {
    loop_.Post([link = link_, number = number_, weak = alive_, function = std::move(function)] {
      if (!weak.expired()) function(*link, number);
    });
  }

  async::Loop& loop_;
  HeadLink* link_;
  uint64_t number_;
  std::weak_ptr<bool> alive_;
  std::shared_ptr<Live> live_;
  grpc::ClientContext context_;
  v1::HeadMessage in_;
  std::mutex mutex_;
  std::deque<v1::NodeMessage> out_;   // guarded by mutex_; the first is being written
  bool write_failed_ = false;         // guarded by mutex_
};

HeadLink::HeadLink(async::Loop& loop, HeadLinkOptions options, Callbacks callbacks)
    : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)), stub_(std::make_unique<Stub>()),
      backoff_(options_.backoff_min), timer_(loop), live_(std::make_shared<Live>()) {
  stub_->channel = rpc::OpenChannel({.address = options_.address, .token = options_.token, .reconnect_max = options_.backoff_max});
  stub_->stub = v1::NodeService::NewStub(stub_->channel);
}

HeadLink::~HeadLink() {
  stopped_ = true;
  alive_.reset();
  Close();
  // gRPC's threads finish with the streams they hold; they need nothing of the loop for it.
  std::unique_lock lock(live_->mutex);
  live_->changed.wait(lock, [this] { return live_->streams == 0; });
}

void HeadLink::Start() { Connect(); }

void HeadLink::Restart() {
  waiting_.clear();
  Close();
  ++stream_number_;   // what the old stream still posts is old
  Connect();
}

void HeadLink::Close() {
  timer_.Cancel();
  registered_ = false;
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->End(true);
}

void HeadLink::Connect() {
  if (stopped_) return;
  uint64_t number = ++stream_number_;
  auto* stream = new Stream(*this, number);
  stream_ = stream;
  stream->Begin(*stub_->stub);
  stream->Send(ToProto(ToHead(callbacks_.registration())));
  timer_.After(options_.answer_timeout, [this, number] {
    if (stream_ != nullptr && number == stream_number_ && !registered_) std::exchange(stream_, nullptr)->End(true);
  });
}

void HeadLink::OnMessage(uint64_t stream, FromHead message) {
  if (stopped_ || stream != stream_number_ || stream_ == nullptr) return;
  if (auto* registered = std::get_if<Registered>(&message)) {
    registered_ = true;
    backoff_ = options_.backoff_min;
    timer_.Cancel();
    callbacks_.registered(*registered);
    for (ToHead& waiting : std::exchange(waiting_, {})) Send(std::move(waiting));
    return;
  }
  if (auto* rejected = std::get_if<Rejected>(&message)) return callbacks_.rejected(*rejected);
  callbacks_.message(std::move(message));
}

void HeadLink::OnDone(uint64_t stream, absl::Status status) {
  if (stopped_ || stream != stream_number_) return;
  stream_ = nullptr;
  bool was_registered = std::exchange(registered_, false);
  callbacks_.lost();
  switch (status.code()) {
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      stopped_ = true;
      return callbacks_.refused(status);
    default: break;
  }
  if (was_registered) spdlog::warn("the stream to the head at {} broke: {}; connecting again", options_.address, Message(status));
  timer_.After(backoff_, [this] { Connect(); });
  backoff_ = std::min(backoff_ * 2, options_.backoff_max);
}

void HeadLink::Send(ToHead message) {
  if (registered_ && stream_ != nullptr) return stream_->Send(ToProto(message));
  if (waiting_.size() >= options_.waiting_max) {
    spdlog::error("{} messages wait for the head; the oldest is dropped", waiting_.size());
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(message));
}

bool HeadLink::SendIfRoom(ToHead message) {
  if (!registered_ || stream_ == nullptr || stream_->waiting() >= options_.room_max) return false;
  stream_->Send(ToProto(message));
  return true;
}

bool HeadLink::SendNow(ToHead message) {
  if (!registered_ || stream_ == nullptr) return false;
  stream_->Send(ToProto(message));
  return true;
}

}  // namespace argosy::node
