#include <grpcpp/grpcpp.h>

#include "argosy/v1/common.pb.h"
#include "argosy/v1/job.grpc.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"
#include "runtime/rpc/server.h"
#include "runtime/rpc/status.h"
#include "runtime/rpc/utf8.h"
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

TEST_CASE("Utf8: what is text and what is not") {
  for (const char* good : {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    INFO(good);
    CHECK(IsUtf8(good));
  }
  // A lone continuation, cut characters, overlong forms, a surrogate, a number above the last character.
  for (const char* bad : {"\x80", "\xff", "a\xc3", "\xe2\x82", "\xc0\xaf", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    CHECK_FALSE(IsUtf8(bad));
  }
}

TEST_CASE("Utf8: messages that people read are repaired at any depth, bytes fields are left alone, and the receiver can read them") {
  v1::ListJobsReply reply;
  v1::JobInfo* job = reply.add_jobs();
  job->set_submission_id("job");
  job->set_message("bad \xff\xfe end, cut \xe2\x82");
  (*job->mutable_metadata())["k\xff"] = "v\xff";
  job->set_driver_job_id("\xff\xff");
  CHECK(Message(CheckUtf8(reply)).find("is not UTF-8") != std::string::npos);
  MakeUtf8(reply);
  CHECK(CheckUtf8(reply).ok());
  v1::ListJobsReply received;
  REQUIRE(received.ParseFromString(reply.SerializeAsString()));
  CHECK(received.jobs(0).submission_id() == "job");
  CHECK(received.jobs(0).message() == "bad \xef\xbf\xbd\xef\xbf\xbd end, cut \xef\xbf\xbd\xef\xbf\xbd");
  CHECK(received.jobs(0).metadata().at("k\xef\xbf\xbd") == "v\xef\xbf\xbd");
  CHECK(received.jobs(0).driver_job_id() == "\xff\xff");
}

TEST_CASE("Utf8: a wrong name is an error that says which field, and what came") {
  v1::SubmitJobRequest request;
  request.set_entrypoint("echo");
  CHECK(CheckUtf8(request).ok());
  request.set_submission_id(std::string("a\0\xff", 3));
  CHECK(Message(CheckUtf8(request)) == "submission_id \"a?\xef\xbf\xbd\" is not UTF-8 text; only values may hold other bytes");
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
