#include "runtime/head/node_service.h"

#include <deque>
#include <memory>
#include <utility>

#include "runtime/head/head_codec.h"
#include "runtime/rpc/utf8.h"
#include "runtime/rpc/version.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

constexpr size_t kQueuedMax = 100'000;

// One node's stream. Reads one message at a time and takes the next when the loop has handled it, so a node cannot flood the head.
//
// Thread:   reactions come on gRPC's threads and only post; everything else is the loop's.
// Lifetime: gRPC's, until OnDone; `self_` keeps the link for those who still hold it.
class NodeStream final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::HeadMessage> {
 public:
  // What the core holds: goes on living when the stream is gone, and is then deaf.
  class Link final : public NodeLink {
   public:
    explicit Link(NodeStream* stream) : stream_(stream) {}
    void Send(const ToNode& message) override {
      if (stream_ != nullptr) stream_->Enqueue(ToWire(message));
    }
    void Close() override {
      if (stream_ != nullptr) stream_->CloseWhenSent(absl::OkStatus());
    }
    void Detach() { stream_ = nullptr; }

   private:
    NodeStream* stream_;
  };

  NodeStream(async::Loop& loop, HeadCore& core) : loop_(loop), core_(core), link_(std::make_shared<Link>(this)) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    loop_.Post([this, ok] { Read(ok); });
  }
  void OnWriteDone(bool ok) override {
    loop_.Post([this, ok] { Wrote(ok); });
  }
  void OnCancel() override {
    loop_.Post([this] { CloseWhenSent(absl::CancelledError("the stream broke")); });
  }
  // Posted after everything above, so nothing touches the stream later.
  void OnDone() override {
    loop_.Post([this] {
      Disconnect();
      delete this;
    });
  }

  void Read(bool ok) {
    if (!ok || closing_) {
      Disconnect();
      return CloseWhenSent(absl::OkStatus());
    }
    if (epoch_ == 0) {
      if (absl::Status status = Register(); !status.ok()) return CloseWhenSent(status);
    } else {
      absl::StatusOr<FromNode> message = FromWire(incoming_);
      if (!message.ok()) {
        spdlog::error("node {} sent a bad message: {}", node_.Short(), Message(message.status()));
        return CloseWhenSent(message.status());
      }
      core_.OnNodeMessage(node_, epoch_, std::move(*message));
    }
    if (!closing_) StartRead(&incoming_);
  }

  absl::Status Register() {
    if (!incoming_.has_register_()) return InvalidArgument("the first message of a node's stream must be Register");
    const std::string& name = incoming_.register_().node().name();
    if (absl::Status status = rpc::CheckVersion(incoming_.register_().version(), ("node " + name).c_str()); !status.ok()) {
      link_->Send(Rejected{Message(status), false});
      return status;
    }
    ARGOSY_ASSIGN_OR_RETURN(Registration registration, FromWire(incoming_.register_()));
    node_ = registration.node.id;
    ARGOSY_ASSIGN_OR_RETURN(epoch_, core_.Register(registration, link_));
    return absl::OkStatus();
  }

  void Enqueue(v1::HeadMessage message) {
    if (closing_ && finished_) return;
    if (outgoing_.size() >= kQueuedMax) {
      spdlog::error("node {} reads too slowly: {} messages wait; its stream is closed", node_.Short(), outgoing_.size());
      outgoing_.clear();
      return CloseWhenSent(absl::ResourceExhaustedError("too many messages wait for this node"));
    }
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  void WriteNext() {
    if (writing_ || finished_) return;
    if (outgoing_.empty()) {
      if (closing_) Finish();
      return;
    }
    writing_ = true;
    current_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    rpc::MakeUtf8(current_);
    StartWrite(&current_);
  }

  void Wrote(bool ok) {
    writing_ = false;
    if (!ok) {
      outgoing_.clear();
      closing_ = true;
    }
    WriteNext();
  }

  void CloseWhenSent(const absl::Status& status) {
    if (!closing_) {
      closing_ = true;
      status_ = status;
    }
    WriteNext();
  }

  void Finish() {
    if (finished_) return;
    finished_ = true;
    ServerBidiReactor::Finish(rpc::ToGrpc(status_));
  }

  void Disconnect() {
    if (std::exchange(disconnected_, true)) return;
    link_->Detach();
    if (epoch_ != 0) core_.OnNodeDisconnected(node_, epoch_);
  }

  async::Loop& loop_;
  HeadCore& core_;
  std::shared_ptr<Link> link_;
  v1::NodeMessage incoming_;
  v1::HeadMessage current_;
  std::deque<v1::HeadMessage> outgoing_;
  NodeId node_;
  uint64_t epoch_ = 0;
  absl::Status status_;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
  bool disconnected_ = false;
};

}  // namespace

grpc::ServerBidiReactor<v1::NodeMessage, v1::HeadMessage>* NodeService::Connect(grpc::CallbackServerContext* context) {
  if (absl::Status allowed = gate_.Check(*context); !allowed.ok()) {
    return new rpc::RefusedStream<grpc::ServerBidiReactor<v1::NodeMessage, v1::HeadMessage>>(allowed);
  }
  return new NodeStream(gate_.loop(), core_);
}

}  // namespace argosy::head
