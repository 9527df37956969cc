#include <grpcpp/grpcpp.h>

#include "argosy/v1/common.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/server.h"
#include "runtime/rpc/status.h"
#include "runtime/rpc/version.h"
#include "tests/support/catch.h"

namespace argosy::rpc {
namespace {

TEST_CASE("Status: every code and message goes to gRPC and back") {
  for (int code = 0; code <= 16; ++code) {
    absl::Status status(static_cast<absl::StatusCode>(code), "because");
    CHECK(FromGrpc(ToGrpc(status)) == status);
  }
}

TEST_CASE("Version: equal majors agree, others get both versions") {
  v1::Version version;
  FillVersion(&version);
  version.set_minor(kProtocolMinor + 5);
  CHECK(CheckVersion(version, "node n").ok());
  version.set_major(kProtocolMajor + 1);
  std::string message = Message(CheckVersion(version, "node n"));
  CHECK(message.find(std::to_string(kProtocolMajor + 1)) != std::string::npos);
  CHECK(message.find(std::to_string(kProtocolMajor) + ".") != std::string::npos);
}

TEST_CASE("Server: binds wider than loopback only with a token, and a taken port is named") {
  CHECK(IsLoopback("127.0.0.1"));
  CHECK(IsLoopback("127.9.9.9"));
  CHECK(!IsLoopback("0.0.0.0"));
  CHECK(Server::Start({.bind_ip = "0.0.0.0"}).status().code() == absl::StatusCode::kInvalidArgument);
  v1::JobService::CallbackService service;
  auto first = Server::Start({.services = {&service}});
  REQUIRE(first.ok());
  CHECK((*first)->port() != 0);
  auto second = Server::Start({.port = (*first)->port(), .services = {&service}});
  REQUIRE(!second.ok());
  CHECK(Message(second.status()).find(std::to_string((*first)->port())) != std::string::npos);
}

TEST_CASE("Channel: where nobody listens the wait ends with the address") {
  auto channel = OpenChannel({.address = "127.0.0.1:1"});
  absl::Status status = WaitConnected(*channel, "127.0.0.1:1", absl::Milliseconds(300));
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Message(status).find("127.0.0.1:1") != std::string::npos);
}

}  // namespace
}  // namespace argosy::rpc
