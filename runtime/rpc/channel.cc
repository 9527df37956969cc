#include "runtime/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::rpc {
namespace {

// An insecure channel cannot carry call credentials, so an interceptor adds the header.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& header) : header_(header) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", header_});
    }
    methods->Proceed();
  }

 private:
  const std::string& header_;   // the factory outlives its channel's calls
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const Token& token) : header_("Bearer " + token.text()) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(header_);
  }

 private:
  const std::string header_;
};

std::chrono::system_clock::time_point FromNow(absl::Duration duration) {
  duration = std::clamp(duration, absl::ZeroDuration(), absl::Hours(24 * 365));
  return std::chrono::system_clock::now() + std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// All callback calls of a process share one hidden queue with polling threads, made with the first channel that makes such a call and
// ended with the last. When a call's own end drops the last channel, that end comes on a polling thread, which cannot join itself: it
// goes on with a queue that is gone, and gRPC (1.51) aborts. So one channel, which leads nowhere, holds the queue for as long as the
// process lives.
void KeepCallbackQueue() {
  static const bool kept = [] {
    auto* channel = new std::shared_ptr<grpc::Channel>(grpc::CreateChannel("nowhere", nullptr));   // never freed
    grpc::GenericStub stub(*channel);
    grpc::ClientContext context;
    grpc::Slice empty;
    grpc::ByteBuffer request(&empty, 1), reply;
    std::promise<void> ended;
    stub.UnaryCall(&context, "/nothing", {}, &request, &reply, [&](grpc::Status) { ended.set_value(); });
    ended.get_future().wait();
    return true;
  }();
  static_cast<void>(kept);
}

// What puts the token into each call; an empty token: nothing.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> TokenInterceptors(const Token& token) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!token.IsEmpty()) interceptors.push_back(std::make_unique<TokenInterceptorFactory>(token));
  return interceptors;
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const ChannelOptions& options) {
  KeepCallbackQueue();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);   // a cluster's own traffic never goes through a proxy of the environment
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(absl::ToInt64Milliseconds(options.reconnect_max)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::experimental::CreateCustomChannelWithInterceptors(options.address, grpc::InsecureChannelCredentials(), arguments,
                                                                 TokenInterceptors(options.token));
}

absl::Status WaitConnected(grpc::Channel& channel, const std::string& address, absl::Duration timeout) {
  if (channel.WaitForConnected(FromNow(timeout))) return absl::OkStatus();
  return Unavailable("no head answers at {} ({} waited); is it running there? `argosy start --head` starts one", address,
                     absl::FormatDuration(timeout));
}

void SetDeadline(grpc::ClientContext& context, absl::Duration from_now) { context.set_deadline(FromNow(from_now)); }

}  // namespace argosy::rpc
