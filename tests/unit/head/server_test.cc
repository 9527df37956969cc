#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>

#include "tests/unit/head/head_fixture.h"

namespace argosy::head {
namespace {

using Cluster = v1::ClusterService::Stub;
using Jobs = v1::JobService::Stub;
using Kind = v1::HeadMessage;

v1::KvPutRequest Put(const std::string& key, const std::string& value, bool overwrite = true) {
  v1::KvPutRequest request;
  request.set_namespace_("test");
  request.set_key(key);
  request.set_value(value);
  request.set_overwrite(overwrite);
  return request;
}

v1::KvGetRequest Get(const std::string& key) {
  v1::KvGetRequest request;
  request.set_namespace_("test");
  request.set_key(key);
  return request;
}

// Every method of every service, called with an empty message.
std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const char* service : {"argosy.v1.NodeService", "argosy.v1.ClusterService", "argosy.v1.JobService"}) {
    const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
    REQUIRE(descriptor != nullptr);
    for (int i = 0; i < descriptor->method_count(); ++i) methods.push_back(fmt::format("/{}/{}", service, descriptor->method(i)->name()));
  }
  return methods;
}

grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(20));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  void* tag;
  bool ok;
  call->StartCall(reinterpret_cast<void*>(1));
  queue.Next(&tag, &ok);
  grpc::Status status;
  grpc::Slice empty("");
  call->WriteLast(grpc::ByteBuffer(&empty, 1), grpc::WriteOptions(), reinterpret_cast<void*>(2));
  queue.Next(&tag, &ok);
  call->Finish(&status, reinterpret_cast<void*>(3));
  queue.Next(&tag, &ok);
  return status;
}

TEST_CASE("Head: no call of any service is answered without the token") {
  TestHead head;
  auto without = rpc::OpenChannel({.address = head.server().address()});
  auto wrong = rpc::OpenChannel({.address = head.server().address(), .token = Token("guess")});
  std::vector<std::string> methods = AllMethods();
  REQUIRE(methods.size() == 35);
  for (const std::string& method : methods) {
    INFO(method);
    grpc::Status status = CallRaw(without, method);
    CHECK(status.error_code() == grpc::StatusCode::UNAUTHENTICATED);
    CHECK(status.error_message().find("missing cluster token") != std::string::npos);
    CHECK(CallRaw(wrong, method).error_code() == grpc::StatusCode::PERMISSION_DENIED);
  }
}

TEST_CASE("Head: with an empty token calls need none") {
  TestHead head{Token()};
  head.Call(head.cluster, &Cluster::ListNodes, v1::Empty());
}

TEST_CASE("Head: the local channel carries the token") {
  TestHead head;
  auto stub = v1::ClusterService::NewStub(head.server().LocalChannel());
  v1::ClusterStatusReply reply = head.Call(stub, &Cluster::ClusterStatus, v1::Empty());
  CHECK(reply.session_name() == "session_test");
  CHECK(reply.head_address() == head.server().address());
}

TEST_CASE("Head: binding wider than loopback needs a token") {
  auto server = HeadServer::Start({.bind_ip = "0.0.0.0", .port = 0, .session_dir = "/tmp/argosy-head-test-never"});
  CHECK(server.status().code() == absl::StatusCode::kInvalidArgument);
  std::filesystem::remove_all("/tmp/argosy-head-test-never");
}

TEST_CASE("Head: a taken port is an error that names it") {
  TestHead head;
  auto second = HeadServer::Start({.port = head.server().port(), .token = Token("x"), .session_dir = head.folder() + "/other"});
  REQUIRE(!second.ok());
  CHECK(Message(second.status()).find(std::to_string(head.server().port())) != std::string::npos);
}

TEST_CASE("Head: a second head on the same session folder is refused") {
  TestHead head;
  auto second = HeadServer::Start({.port = 0, .token = Token("x"), .session_dir = head.folder()});
  REQUIRE(second.status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Head: keys survive a restart on the same journal") {
  TestHead head;
  CHECK(head.Call(head.cluster, &Cluster::KvPut, Put("a/1", std::string("x\0y", 3))).added());
  CHECK(!head.Call(head.cluster, &Cluster::KvPut, Put("a/1", "other", false)).added());
  CHECK(head.Call(head.cluster, &Cluster::KvPut, Put("a/2", "two")).added());
  CHECK(!head.Call(head.cluster, &Cluster::KvPut, Put("a/2", "deux")).added());
  v1::KvDeleteRequest erase;
  erase.set_namespace_("test");
  erase.set_key("a/1");
  std::string cluster_id = head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty()).cluster_id();
  CHECK(head.Call(head.cluster, &Cluster::KvPut, Put("b", "gone")).added());
  erase.set_key("b");
  CHECK(head.Call(head.cluster, &Cluster::KvDelete, erase).deleted());
  CHECK(!head.Call(head.cluster, &Cluster::KvDelete, erase).deleted());

  head.Stop();
  head.Start();
  CHECK(head.Call(head.cluster, &Cluster::KvGet, Get("a/1")).value() == std::string("x\0y", 3));
  CHECK(head.Call(head.cluster, &Cluster::KvGet, Get("a/2")).value() == "deux");
  CHECK(!head.Call(head.cluster, &Cluster::KvGet, Get("b")).found());
  v1::KvListRequest list;
  list.set_namespace_("test");
  list.set_prefix("a/");
  CHECK(head.Call(head.cluster, &Cluster::KvList, list).keys_size() == 2);
  CHECK(head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty()).cluster_id() == cluster_id);
}

TEST_CASE("Head: packages are stored whole, listed after a restart and read back") {
  TestHead head;
  std::string content(3'000'000, 'p');
  content[1'234'567] = 'q';
  auto put = [&](const std::string& name, size_t bytes, uint64_t announced) {
    grpc::ClientContext context;
    v1::PackageStatus status;
    auto writer = head.cluster->PutPackage(&context, &status);
    for (size_t at = 0; at < bytes; at += 1'000'000) {
      v1::PackageChunk chunk;
      if (at == 0) chunk.set_name(name);
      chunk.set_total_size(announced);
      chunk.set_data(content.substr(at, std::min<size_t>(1'000'000, bytes - at)));
      writer->Write(chunk);
    }
    writer->WritesDone();
    return writer->Finish();
  };
  v1::PackageName name;
  name.set_name("_ray_pkg_0123456789abcdef.zip");
  CHECK(!head.Call(head.cluster, &Cluster::HasPackage, name).exists());
  CHECK(put(name.name(), 2'000'000, content.size()).error_code() == grpc::StatusCode::INVALID_ARGUMENT);   // cut short
  CHECK(!head.Call(head.cluster, &Cluster::HasPackage, name).exists());
  CHECK(put("../evil", 10, 10).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(put("big.zip", 10, 1ull << 40).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  REQUIRE(put(name.name(), content.size(), content.size()).ok());
  head.Stop();
  head.Start();
  CHECK(head.Call(head.cluster, &Cluster::HasPackage, name).size() == content.size());
  grpc::ClientContext context;
  auto reader = head.cluster->GetPackage(&context, name);
  std::string back;
  v1::PackageChunk chunk;
  while (reader->Read(&chunk)) back += chunk.data();
  CHECK(reader->Finish().ok());
  CHECK(back == content);
}

TEST_CASE("Head: a job without any node stays PENDING and says why") {
  TestHead head;
  std::string plain = head.Submit("echo hi");
  CHECK(plain.size() == 26);
  CHECK(plain.starts_with("raysubmit_"));
  v1::JobInfo job = head.Job(plain);
  CHECK(job.state() == v1::JobInfo::PENDING);
  CHECK(job.message().starts_with("Job has not started yet."));
  CHECK(job.message().find("no nodes") != std::string::npos);
  std::string demanding = head.Submit("echo hi", [](auto& r) {
    r.set_has_entrypoint_resources(true);
    r.set_entrypoint_num_gpus(1);
  });
  REQUIRE(WaitFor([&] { return head.Job(demanding).message().find("GPU: 1") != std::string::npos; }));
  v1::ClusterStatusReply status = head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty());
  REQUIRE(status.pending_size() == 2);
  v1::JobName name;
  name.set_submission_id(demanding);
  CHECK(head.Call(head.jobs, &Jobs::StopJob, name).stopped());
  CHECK(head.Job(demanding).state() == v1::JobInfo::STOPPED);
  CHECK(head.Job(demanding).message() == "Job was intentionally stopped.");
  CHECK(!head.Call(head.jobs, &Jobs::StopJob, name).stopped());
  CHECK(head.Call(head.jobs, &Jobs::DeleteJob, name).deleted());
}

TEST_CASE("Head: a submission id that is taken is ALREADY_EXISTS, and bad ones are refused") {
  TestHead head;
  head.Submit("true", [](auto& r) { r.set_submission_id("mine"); });
  auto fail = [&](const std::string& id, const std::string& entrypoint, const std::string& env = "") {
    v1::SubmitJobRequest request;
    request.set_submission_id(id);
    request.set_entrypoint(entrypoint);
    request.set_runtime_env_json(env);
    v1::SubmitJobReply reply;
    grpc::ClientContext context;
    return head.jobs->SubmitJob(&context, request, &reply);
  };
  grpc::Status taken = fail("mine", "true");
  CHECK(taken.error_code() == grpc::StatusCode::ALREADY_EXISTS);
  CHECK(taken.error_message() == "Job with submission_id mine already exists. Please use a different submission_id.");
  CHECK(fail("../x", "true").error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(fail("x", " ").error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(fail("x", "true", "[1]").error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(fail("x", "true", R"({"env_vars":{"A":1}})").error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("Head: a job runs on the head's node, its log is followed to the end, and both survive a restart") {
  TestHead head;
  TestNode other(head, "other", {{"CPU", 4}});
  other.Expect(Kind::kRegistered);
  TestNode node(head, "head-node", {{"CPU", 2}}, true);
  node.Expect(Kind::kRegistered);
  std::string name = head.Submit("echo hi", [](auto& r) { r.set_runtime_env_json(R"({"env_vars":{"A":"b"},"working_dir":"gcs://p.zip"})"); });
  v1::StartJob start = node.Expect(Kind::kStartJob).start_job();
  CHECK(start.entrypoint() == "echo hi");
  CHECK(start.env_vars().at("A") == "b");
  CHECK(start.working_dir_uri() == "gcs://p.zip");
  v1::NodeMessage started;
  started.mutable_job_started()->set_submission_id(name);
  node.Send(started);
  REQUIRE(WaitFor([&] { return head.Job(name).state() == v1::JobInfo::RUNNING; }));
  CHECK(head.Job(name).message() == "Job is currently running.");
  CHECK(head.Job(name).node_name() == "head-node");

  std::string followed;
  grpc::Status follow_status;
  std::thread follower([&] {
    grpc::ClientContext context;
    v1::FollowLogRequest request;
    request.set_submission_id(name);
    request.set_offset(2);
    auto reader = head.jobs->FollowLog(&context, request);
    v1::LogChunk chunk;
    while (reader->Read(&chunk)) {
      CHECK(chunk.offset() == 2 + followed.size());
      followed += chunk.data();
    }
    follow_status = reader->Finish();
  });
  auto log = [&](uint64_t offset, const std::string& data) {
    v1::NodeMessage message;
    message.mutable_job_log()->set_submission_id(name);
    message.mutable_job_log()->set_offset(offset);
    message.mutable_job_log()->set_data(data);
    node.Send(message);
    return node.Expect(Kind::kJobLogAck).job_log_ack().end();
  };
  CHECK(log(0, "hello\n") == 6);
  CHECK(log(3, "lo\nwor") == 9);      // a part comes again
  CHECK(log(20, "gap") == 9);         // a gap is not taken
  CHECK(log(9, "ld\n") == 12);
  v1::NodeMessage exited;
  exited.mutable_job_exited()->set_submission_id(name);
  exited.mutable_job_exited()->set_exit_code(3);
  node.Send(exited);
  node.Expect(Kind::kJobExitAck);
  follower.join();
  CHECK(follow_status.ok());
  CHECK(followed == "llo\nworld\n");

  head.Stop();
  head.Start();
  v1::JobInfo job = head.Job(name);
  CHECK(job.state() == v1::JobInfo::FAILED);
  CHECK(job.error_type() == "JOB_ENTRYPOINT_COMMAND_ERROR");
  CHECK(job.message() == "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\nhello\nworld");
  CHECK(job.driver_exit_code() == 3);
  CHECK(job.end_unix_ms() >= job.start_unix_ms());
  v1::ReadLogRequest read;
  read.set_submission_id(name);
  read.set_from_end(true);
  read.set_size_max(6);
  v1::LogChunk chunk = head.Call(head.jobs, &Jobs::ReadLog, read);
  CHECK(chunk.data() == "world\n");
  CHECK(chunk.complete());
}

TEST_CASE("Head: a running job goes on over a restart of the head when its node rejoins with it") {
  TestHead head;
  NodeId id = NodeId::Random();
  std::string kept, lost;
  {
    TestNode node(head, "n", {{"CPU", 2}}, true, id);
    kept = head.Submit("sleep 1");
    lost = head.Submit("sleep 2");
    for (int i = 0; i < 2; ++i) {
      v1::NodeMessage started;
      started.mutable_job_started()->set_submission_id(node.Expect(Kind::kStartJob).start_job().submission_id());
      node.Send(started);
    }
    REQUIRE(WaitFor([&] { return head.Job(kept).state() == v1::JobInfo::RUNNING && head.Job(lost).state() == v1::JobInfo::RUNNING; }));
    head.Stop();
  }
  head.Start();
  CHECK(head.Job(kept).state() == v1::JobInfo::RUNNING);
  TestNode node(head, "n", {{"CPU", 2}}, true, id, [&](v1::Register& r) { r.add_job_submission_ids(kept); });
  node.Expect(Kind::kRegistered);
  REQUIRE(WaitFor([&] { return head.Job(lost).state() == v1::JobInfo::FAILED; }));
  CHECK(head.Job(kept).state() == v1::JobInfo::RUNNING);
}

TEST_CASE("Head: a node without heartbeats is lost after the time-out, fails its job, and may not come back") {
  TestHead head(Token("secret"), absl::Milliseconds(500));
  NodeId id = NodeId::Random();
  std::string job;
  {
    TestNode node(head, "n", {{"CPU", 2}}, true, id);
    job = head.Submit("sleep 1");
    v1::NodeMessage started;
    started.mutable_job_started()->set_submission_id(node.Expect(Kind::kStartJob).start_job().submission_id());
    node.Send(started);
    REQUIRE(WaitFor([&] { return head.Job(job).state() == v1::JobInfo::FAILED; }));
    CHECK(node.Expect(Kind::kRejected).rejected().declared_dead());
  }
  CHECK(head.Job(job).error_type() == "JOB_SUPERVISOR_ACTOR_DIED");
  v1::ListNodesReply nodes = head.Call(head.cluster, &Cluster::ListNodes, v1::Empty());
  REQUIRE(nodes.nodes_size() == 1);
  CHECK(!nodes.nodes(0).alive());
  TestNode again(head, "n", {{"CPU", 2}}, true, id);
  CHECK(again.Expect(Kind::kRejected).rejected().declared_dead());
  v1::WorkerFateRequest fate;
  fate.set_worker_id(std::string(WorkerId::Random().Bytes()));
  fate.set_node_id(std::string(id.Bytes()));
  CHECK(head.Call(head.cluster, &Cluster::WorkerFate, fate).node_lost());
}

TEST_CASE("Head: when a node is lost all others are told") {
  TestHead head;
  TestNode one(head, "one", {{"CPU", 1}}), other(head, "other", {{"CPU", 1}});
  one.Expect(Kind::kRegistered);
  other.Expect(Kind::kRegistered);
  v1::NodeMessage left;
  left.mutable_left()->set_reason("it ends");
  one.Send(left);
  CHECK(other.Expect(Kind::kOtherNodeLost).other_node_lost().node_id() == std::string(one.id.Bytes()));
}

TEST_CASE("Head: a node of another protocol version is refused with both versions") {
  TestHead head;
  TestNode node(head, "n", {}, false, NodeId::Random(), [](v1::Register& r) { r.mutable_version()->set_major(99); });
  std::string reason = node.Expect(Kind::kRejected).rejected().reason();
  CHECK(reason.find("99.0") != std::string::npos);
}

}  // namespace
}  // namespace argosy::head
