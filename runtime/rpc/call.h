#pragma once

// How a service's handlers meet the loop: gRPC's threads check the token, post, and the loop answers.
//
//   grpc::ServerUnaryReactor* KvGet(grpc::CallbackServerContext* context, const KvGetRequest* request, KvGetReply* reply) override {
//     return gate_.Unary<KvGetReply>(context, reply, [this, request](rpc::Answer<KvGetReply> answer) {   // on the loop
//       answer.Ok([&](KvGetReply& reply) { ... });
//     });
//   }

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/base/token.h"
#include "runtime/rpc/status.h"
#include "runtime/rpc/utf8.h"

namespace argosy::rpc {

namespace internal {

// One unary call. The reactor lives until gRPC is done with it, which is after Finish; whoever holds the shared state answers once.
struct UnaryState {
  std::atomic<bool> answered{false};
  grpc::ServerUnaryReactor* reactor = nullptr;
  std::function<void()> cancelled;   // the loop's

  void Finish(const absl::Status& status) {
    if (!answered.exchange(true)) reactor->Finish(ToGrpc(status));
  }
  ~UnaryState() { Finish(absl::UnavailableError("the head is stopping; the call was not answered")); }
};

class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  UnaryReactor(async::Loop& loop, const std::shared_ptr<UnaryState>& state) : loop_(loop), state_(state) { state->reactor = this; }
  void OnDone() override { delete this; }
  void OnCancel() override {
    loop_.Post([weak = state_] {
      std::shared_ptr<UnaryState> state = weak.lock();
      if (state == nullptr) return;
      if (state->cancelled) std::exchange(state->cancelled, nullptr)();
      state->Finish(absl::CancelledError("the caller gave up"));
    });
  }

 private:
  async::Loop& loop_;
  std::weak_ptr<UnaryState> state_;
};

}  // namespace internal

// The right to answer one unary call, once; copies share it. Dropping the last copy unanswered answers UNAVAILABLE.
template <class Reply>
class Answer {
 public:
  Answer(std::shared_ptr<internal::UnaryState> state, Reply* reply) : state_(std::move(state)), reply_(reply) {}

  // `fill` writes the reply.
  template <class Fill>
  void Ok(Fill&& fill) const {
    if (state_->answered) return;
    fill(*reply_);
    MakeUtf8(*reply_);
    state_->Finish(absl::OkStatus());
  }
  void Ok() const { state_->Finish(absl::OkStatus()); }
  void Error(const absl::Status& status) const { state_->Finish(status); }
  bool IsAnswered() const { return state_->answered; }

  // Runs on the loop when the caller gave up (its deadline passed, or it is gone); the call then ends as cancelled. The function
  // must not hold a copy of this.
  void OnCancelled(std::function<void()> cancelled) const { state_->cancelled = std::move(cancelled); }

 private:
  std::shared_ptr<internal::UnaryState> state_;
  Reply* reply_;
};

// Checks the token of every call and posts it to the loop.
//
// Thread:   any.
// Lifetime: outlives the server.
class CallGate {
 public:
  CallGate(async::Loop& loop, Token token) : loop_(loop), token_(std::move(token)) {}

  // UNAUTHENTICATED without a token, PERMISSION_DENIED with a wrong one.
  absl::Status Check(const grpc::ServerContextBase& context) const;
  async::Loop& loop() const { return loop_; }

  // `handle` runs on the loop. The request lives until the call is answered.
  template <class Reply>
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, Reply* reply, std::function<void(Answer<Reply>)> handle) const {
    auto state = std::make_shared<internal::UnaryState>();
    auto* reactor = new internal::UnaryReactor(loop_, state);
    if (absl::Status allowed = Check(*context); !allowed.ok()) {
      state->Finish(allowed);
    } else {
      loop_.Post([handle = std::move(handle), answer = Answer<Reply>(std::move(state), reply)] { handle(answer); });
    }
    return reactor;
  }

 private:
  async::Loop& loop_;
  Token token_;
};

// A stream reactor that only says no.
template <class Base>
class RefusedStream final : public Base {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace argosy::rpc
