// The daemon with a real head and real processes.

#include "runtime/node/node_server.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/base/file.h"
#include "runtime/store/door.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/sha256.h"
#include "tests/support/catch.h"
#include "tests/unit/head/head_fixture.h"

namespace argosy::node {
namespace {

using head::TestHead;
using head::WaitFor;

// A daemon on a thread of its own.
class TestDaemon {
 public:
  TestDaemon(TestHead& head, const std::string& name, std::map<std::string, double> resources, bool is_head_node = false,
             Token token = Token("secret")) {
    char pattern[] = "/tmp/argosy-node-test-XXXXXX";
    folder = ::mkdtemp(pattern);
    NodeServerOptions options;
    options.name = name;
    options.head_address = head.server().address();
    options.token = token;
    options.resources = resources;
    options.resources.emplace("GPU", 0);
    options.object_store_bytes = 64 << 20;
    options.session_dir = folder;
    options.is_head_node = is_head_node;
    thread_ = std::thread([this, options] {
      auto started = NodeServer::Start(loop_, options,
                                       {.registered = [this] { ++registered; },
                                        .fatal = [this](const absl::Status& why) { fatal_code = static_cast<int>(why.code()); }});
      if (!started.ok()) {
        std::fprintf(stderr, "daemon: %s\n", started.status().ToString().c_str());
        failed = true;
        return;
      }
      server_ = std::move(*started);
      socket = server_->socket_path();
      id = server_->id();
      ready = true;
      loop_.Run();
      server_.reset();
    });
    REQUIRE(WaitFor([&] { return ready || failed; }));
    REQUIRE(ready);
  }
  ~TestDaemon() {
    loop_.Post([this] { server_->Stop(absl::Milliseconds(200), [this] { loop_.Stop(); }); });
    thread_.join();
    std::filesystem::remove_all(folder);
  }
  // How a host's end looks to everyone else: nothing is said.
  std::string folder;
  std::string socket;
  NodeId id;
  std::atomic<bool> ready{false};
  std::atomic<bool> failed{false};
  std::atomic<int> registered{0};
  std::atomic<int> fatal_code{0};

 private:
  async::Loop loop_;
  std::unique_ptr<NodeServer> server_;
  std::thread thread_;
};

// A driver's connection to its daemon; calls block.
class TestDriver {
 public:
  explicit TestDriver(const TestDaemon& daemon, const std::string& ns = "") {
    address.worker = WorkerId::Random();
    wire::ConnectOptions options{.self = {wire::Role::kDriver, std::string(address.worker.Bytes())}};
    std::optional<absl::StatusOr<std::shared_ptr<wire::Connection>>> connected;
    wire::ConnectUnix(loop_, daemon.socket, options, [&](auto connection) { connected = std::move(connection); });
    REQUIRE(RunUntil([&] { return connected.has_value(); }));
    REQUIRE(connected->ok());
    connection_ = **connected;
    connection_->Start({.on_notice = [this](wire::Connection&, wire::Method method, std::string) { notices.push_back(method); }});
    wire::RegisterDriver message{.pid = static_cast<uint32_t>(::getpid()), .address = address, .entrypoint = "test", .ns = ns};
    info = *Call(message);
  }
  ~TestDriver() { connection_->Close(absl::CancelledError("end")); }

  template <class Message>
  absl::StatusOr<typename Message::Reply> Call(const Message& message, absl::Duration limit = absl::Seconds(30)) {
    std::optional<absl::StatusOr<typename Message::Reply>> reply;
    connection_->Request(message, [&](absl::StatusOr<typename Message::Reply> result) { reply = std::move(result); });
    REQUIRE(RunUntil([&] { return reply.has_value(); }, limit));
    return *reply;
  }
  // The reply is put into the returned place when it comes.
  template <class Message>
  std::shared_ptr<std::optional<absl::StatusOr<typename Message::Reply>>> Begin(const Message& message) {
    auto reply = std::make_shared<std::optional<absl::StatusOr<typename Message::Reply>>>();
    connection_->Request(message, [reply](absl::StatusOr<typename Message::Reply> result) { *reply = std::move(result); });
    return reply;
  }
  template <class Message>
  void Notify(const Message& message) {
    connection_->Notify(message);
    loop_.Poll();
  }
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(30)) {
    absl::Time deadline = absl::Now() + limit;
    while (!condition() && absl::Now() < deadline) loop_.RunFor(absl::Milliseconds(10));
    return condition();
  }

  wire::WorkerAddress address;
  wire::WorkerRegistered info;
  std::vector<wire::Method> notices;

 private:
  async::Loop loop_;
  std::shared_ptr<wire::Connection> connection_;
};

wire::CodePackage WorkerCode(const TestDriver& driver, std::vector<std::string> arguments = {}) {
  const std::string path = NODE_TEST_WORKER;
  wire::CodePackage code;
  struct stat info;
  REQUIRE(::stat(path.c_str(), &info) == 0);
  code.files = {{path, *wire::Sha256FileHex(path), static_cast<uint64_t>(info.st_size), 0755}};
  code.argv = {path};
  for (std::string& argument : arguments) code.argv.push_back(argument);
  code.id = "test worker";
  for (const std::string& argument : code.argv) code.id += " " + argument;
  code.source_address = driver.info.code_source_address;
  return code;
}

wire::RequestLease LeaseRequest(const wire::CodePackage& code, std::map<std::string, double> resources = {{"CPU", 1}}) {
  wire::RequestLease request;
  request.request_id = std::string(WorkerId::Random().Bytes());
  request.demand.resources = std::move(resources);
  request.code = code;
  return request;
}

}  // namespace

TEST_CASE("NodeServer: registers at the head and is listed with its resources and labels") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 2}, {"large_cpu_mem", 1}});
  REQUIRE(WaitFor([&] { return daemon.registered > 0; }));
  TestDriver driver(daemon);
  wire::ListNodesReply nodes = *driver.Call(wire::ListNodes{});
  REQUIRE(nodes.nodes.size() == 1);
  REQUIRE(nodes.nodes[0].name == "n1");
  REQUIRE(nodes.nodes[0].node == daemon.id);
  REQUIRE(nodes.nodes[0].resources_total.at("large_cpu_mem") == 1);
  REQUIRE(nodes.nodes[0].labels.at("argosy.io/node-id") == daemon.id.Hex());
  REQUIRE(driver.info.token == "secret");
  REQUIRE_FALSE(driver.info.job.IsNil());
}

TEST_CASE("NodeServer: a wrong token ends it") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}}, false, Token("wrong"));
  REQUIRE(WaitFor([&] { return daemon.fatal_code != 0; }));
  REQUIRE(daemon.fatal_code == static_cast<int>(absl::StatusCode::kPermissionDenied));
}

TEST_CASE("NodeServer: a lease gets a worker process; returned, the same process serves the next lease") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}});
  TestDriver driver(daemon);
  wire::CodePackage code = WorkerCode(driver);
  absl::StatusOr<wire::LeaseGrant> first = driver.Call(LeaseRequest(code));
  INFO(first.status().ToString());
  REQUIRE(first.ok());
  REQUIRE(first->worker.node == daemon.id);
  // The second one waits at the head until the first is returned.
  auto second = driver.Begin(LeaseRequest(code));
  REQUIRE_FALSE(driver.RunUntil([&] { return second->has_value(); }, absl::Milliseconds(300)));
  driver.Notify(wire::ReturnLease{first->lease, daemon.id, false});
  REQUIRE(driver.RunUntil([&] { return second->has_value(); }));
  REQUIRE((*second)->ok());
  REQUIRE((**second)->worker.worker == first->worker.worker);
  // Workers without a GPU lease see no GPU.
  REQUIRE(*ReadFile(daemon.folder + "/logs/worker-" + first->worker.worker.Hex() + ".out") == "devices=\n");
}

TEST_CASE("NodeServer: a worker that cannot start fails the lease with what it said") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}, {"GPU", 2}});
  TestDriver driver(daemon);
  absl::StatusOr<wire::LeaseGrant> grant = driver.Call(LeaseRequest(WorkerCode(driver, {"exit"})));
  REQUIRE_FALSE(grant.ok());
  REQUIRE(std::string(grant.status().message()).find("the worker says why") != std::string::npos);
  REQUIRE(std::string(grant.status().message()).find("code 42") != std::string::npos);
  // And a GPU lease sees its GPU.
  grant = driver.Call(LeaseRequest(WorkerCode(driver), {{"GPU", 1}}));
  REQUIRE(grant.ok());
  REQUIRE(grant->gpu_ids == std::vector<uint32_t>{0});
  REQUIRE(WaitFor([&] { return ReadFile(daemon.folder + "/logs/worker-" + grant->worker.worker.Hex() + ".out").value_or("") == "devices=0\n"; }));
}

TEST_CASE("NodeServer: a killed worker's fate is known, with the signal, and its lease is free again") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}});
  TestDriver driver(daemon);
  wire::CodePackage code = WorkerCode(driver);
  wire::LeaseGrant grant = *driver.Call(LeaseRequest(code));
  REQUIRE_FALSE(driver.Call(wire::WorkerFate{grant.worker.worker, daemon.id, 0})->dead);
  auto fate = driver.Begin(wire::WorkerFate{grant.worker.worker, daemon.id, 20});
  // The process whose command line is the worker's, of this daemon: found by its parent.
  pid_t worker = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string stat = ReadFile(entry.path() / "stat").value_or("");
    size_t close = stat.rfind(')');
    if (close == std::string::npos) continue;
    int parent = std::atoi(stat.c_str() + close + 4);
    if (parent == ::getpid() && ReadFile(entry.path() / "cmdline").value_or("").find("node_test_worker") != std::string::npos) worker = std::stoi(name);
  }
  REQUIRE(worker > 0);
  ::kill(worker, SIGKILL);
  REQUIRE(driver.RunUntil([&] { return fate->has_value(); }));
  REQUIRE((**fate)->dead);
  REQUIRE((**fate)->reason == "was killed by signal 9 (SIGKILL)");
  REQUIRE(driver.Call(LeaseRequest(code)).ok());
}

TEST_CASE("NodeServer: objects are created, sealed, read in place, and moved to another node's store") {
  TestHead head;
  TestDaemon a(head, "n1", {{"CPU", 1}});
  TestDaemon b(head, "n2", {{"CPU", 1}});
  TestDriver at_a(a);
  TestDriver at_b(b);
  ObjectId object = ObjectId::Random();
  wire::ObjectPlace place = *at_a.Call(wire::CreateObject{object, 3'000'000, at_a.address});
  auto mapping_a = *store::ArenaMapping::Connect(at_a.info.store_door);
  std::memset(mapping_a->WritableSpan(place.offset, place.size)->data(), 0x33, place.size);
  // A get that comes first waits for the seal.
  auto early = at_a.Begin(wire::GetObject{object, {}, 0});
  REQUIRE_FALSE(at_a.RunUntil([&] { return early->has_value(); }, absl::Milliseconds(100)));
  REQUIRE(at_a.Call(wire::SealObject{object}).ok());
  REQUIRE(at_a.RunUntil([&] { return early->has_value(); }));
  REQUIRE((**early)->offset == place.offset);

  REQUIRE_FALSE(at_b.Call(wire::ContainsObject{object})->local);
  REQUIRE(at_b.Call(wire::GetObject{object, {}, 0}).status().code() == absl::StatusCode::kNotFound);
  std::vector<wire::ObjectLocation> locations = {{a.id, at_a.info.wire_address, place.size}};
  absl::StatusOr<wire::ObjectPlace> copy = at_b.Call(wire::GetObject{object, locations, 20});
  INFO(copy.status().ToString());
  REQUIRE(copy.ok());
  auto mapping_b = *store::ArenaMapping::Connect(at_b.info.store_door);
  std::span<const std::byte> bytes = *mapping_b->ReadableSpan(copy->offset, copy->size);
  REQUIRE(bytes.size() == 3'000'000);
  REQUIRE(bytes[0] == std::byte{0x33});
  REQUIRE(bytes[2'999'999] == std::byte{0x33});
  at_b.Notify(wire::ReleaseObject{object});
  locations.push_back({b.id, at_b.info.wire_address, place.size});
  at_a.Notify(wire::DeleteObjects{{object}, locations});
  REQUIRE(WaitFor([&] { return !at_b.Call(wire::ContainsObject{object})->local; }));
}

TEST_CASE("NodeServer: what is forwarded to the head comes back: keys, explanations, actors") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}});
  REQUIRE(WaitFor([&] { return daemon.registered > 0; }));
  TestDriver driver(daemon);
  REQUIRE(driver.Call(wire::KvPut{"ns", "key", "value", true})->added);
  REQUIRE(driver.Call(wire::KvGet{"ns", "key"})->value == "value");
  REQUIRE(driver.Call(wire::KvList{"ns", "k"})->keys == std::vector<std::string>{"key"});
  REQUIRE(driver.Call(wire::KvDelete{"ns", "key"})->deleted);
  REQUIRE_FALSE(driver.Call(wire::KvGet{"ns", "key"})->value.has_value());
  wire::Demand demand;
  demand.resources = {{"GPU", 4}};
  wire::ExplainReply explained = *driver.Call(wire::Explain{demand});
  REQUIRE_FALSE(explained.placeable);
  REQUIRE(explained.text.find("GPU") != std::string::npos);

  wire::CreateActor create;
  create.spec.actor = ActorId::Random();
  create.spec.class_name = "Counter";
  create.spec.placement.resources = {{"CPU", 1}};
  create.spec.code = WorkerCode(driver);
  create.spec.owner = driver.address;
  REQUIRE(driver.Call(create).ok());
  wire::ActorInfo actor = *driver.Call(wire::ResolveActor{.actor = create.spec.actor, .incarnation_min = 1, .wait_seconds = 20});
  REQUIRE(actor.state == wire::ActorInfo::kAlive);
  REQUIRE(actor.worker.node == daemon.id);
  REQUIRE(driver.Call(wire::KillActor{create.spec.actor, true, "no longer needed"}).ok());
  REQUIRE(driver.RunUntil([&] {
    return driver.Call(wire::ResolveActor{.actor = create.spec.actor})->state == wire::ActorInfo::kDead;
  }));

  create.spec.actor = ActorId::Random();
  create.spec.code = WorkerCode(driver, {"refuse"});
  REQUIRE(driver.Call(create).ok());
  actor = *driver.Call(wire::ResolveActor{.actor = create.spec.actor, .incarnation_min = 1, .wait_seconds = 20});
  REQUIRE(actor.state == wire::ActorInfo::kDead);
  REQUIRE(actor.constructor_failed);
  REQUIRE(actor.death_reason.find("no such luck") != std::string::npos);
}

TEST_CASE("NodeServer: a lease of a demand that only another node fits is granted there") {
  TestHead head;
  TestDaemon a(head, "n1", {{"CPU", 1}});
  TestDaemon b(head, "n2", {{"CPU", 1}, {"large_cpu_mem", 1}});
  REQUIRE(WaitFor([&] { return a.registered > 0 && b.registered > 0; }));
  TestDriver driver(a, "my-namespace");
  absl::StatusOr<wire::LeaseGrant> grant = driver.Call(LeaseRequest(WorkerCode(driver), {{"large_cpu_mem", 1}}));
  INFO(grant.status().ToString());
  REQUIRE(grant.ok());
  REQUIRE(grant->worker.node == b.id);
  auto second = driver.Begin(LeaseRequest(WorkerCode(driver), {{"large_cpu_mem", 1}}));
  driver.Notify(wire::ReturnLease{grant->lease, b.id, false});
  REQUIRE(driver.RunUntil([&] { return second->has_value(); }));
  REQUIRE((*second)->ok());
}

TEST_CASE("NodeServer: a job's entrypoint runs, its log arrives at the head to the last byte, and its end is told") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}}, true);
  std::string id = head.Submit("echo to stdout; echo to stderr >&2; echo $GREETING; echo $ARGOSY_JOB_SUBMISSION_ID; "
                               "i=0; while [ $i -lt 20000 ]; do echo \"line $i of a long log\"; i=$((i+1)); done; exit 3",
                               [](v1::SubmitJobRequest& request) { request.set_runtime_env_json(R"({"env_vars":{"GREETING":"hello"}})"); });
  REQUIRE(WaitFor([&] { return head.Job(id).state() == v1::JobInfo::FAILED; }, std::chrono::seconds(60)));
  v1::JobInfo job = head.Job(id);
  REQUIRE(job.driver_exit_code() == 3);
  std::string log;
  while (log.size() < job.log_end()) {
    v1::ReadLogRequest request;
    request.set_submission_id(id);
    request.set_offset(log.size());
    request.set_size_max(1 << 20);
    v1::LogChunk chunk = head.Call(head.jobs, &v1::JobService::Stub::ReadLog, request);
    REQUIRE_FALSE(chunk.data().empty());
    log += chunk.data();
  }
  REQUIRE(log.rfind("Running entrypoint for job " + id + ": echo to stdout", 0) == 0);
  REQUIRE(log.find("to stdout\nto stderr\nhello\n" + id + "\nline 0 of a long log\n") != std::string::npos);
  REQUIRE(log.size() > 400'000);
  REQUIRE(log.ends_with("\nline 19999 of a long log\n"));
  // The file is gone once the head has everything.
  REQUIRE(WaitFor([&] { return !std::filesystem::exists(daemon.folder + "/logs/job-" + id + ".log"); }));
}

TEST_CASE("NodeServer: stopping a job ends the whole session, also what ignores SIGTERM") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}}, true);
  std::string marker = daemon.folder + "/child.pid";
  std::string id = head.Submit("trap '' TERM; (trap '' TERM; echo $$ > " + marker + "; while true; do sleep 0.1; done) & wait; while true; do sleep 0.1; done");
  REQUIRE(WaitFor([&] { return std::filesystem::exists(marker); }));
  v1::JobName name;
  name.set_submission_id(id);
  head.Call(head.jobs, &v1::JobService::Stub::StopJob, name);
  REQUIRE(WaitFor([&] { return head.Job(id).state() == v1::JobInfo::STOPPED; }));
  pid_t child = std::stoi(*ReadFile(marker));
  REQUIRE(WaitFor([&] { return ::kill(child, 0) != 0; }));
}

TEST_CASE("NodeServer: a runtime environment that cannot be set up fails the job and says so") {
  TestHead head;
  TestDaemon daemon(head, "n1", {{"CPU", 1}}, true);
  std::string id = head.Submit("true", [](v1::SubmitJobRequest& request) { request.set_runtime_env_json(R"({"pip":["x"]})"); });
  REQUIRE(WaitFor([&] { return head.Job(id).state() == v1::JobInfo::FAILED; }));
  REQUIRE(head.Job(id).error_type() == "RUNTIME_ENV_SETUP_FAILURE");
  REQUIRE(head.Job(id).message().find("runtime_env setup failed") != std::string::npos);
}

TEST_CASE("NodeServer: while the head is away work goes on, and the node is back when the head is") {
  TestHead head;
  uint16_t port = head.server().port();
  TestDaemon daemon(head, "n1", {{"CPU", 2}}, true);
  REQUIRE(WaitFor([&] { return daemon.registered > 0; }));
  TestDriver driver(daemon);
  wire::CodePackage code = WorkerCode(driver);
  wire::LeaseGrant first = *driver.Call(LeaseRequest(code));
  std::string id = head.Submit("echo before; while [ ! -e " + daemon.folder + "/go ]; do sleep 0.1; done; echo after");
  REQUIRE(WaitFor([&] { return head.Job(id).state() == v1::JobInfo::RUNNING; }));
  head.Stop();
  absl::StatusOr<wire::LeaseGrant> second = driver.Call(LeaseRequest(code));
  INFO(second.status().ToString());
  REQUIRE(second.ok());
  REQUIRE(WriteFileAtomic(daemon.folder + "/go", "").ok());
  head.Start(port);
  REQUIRE(WaitFor([&] { return daemon.registered > 1; }));
  REQUIRE(WaitFor([&] { return head.Job(id).state() == v1::JobInfo::SUCCEEDED; }));
  wire::ListNodesReply nodes = *driver.Call(wire::ListNodes{});
  REQUIRE(nodes.nodes.size() == 1);
  REQUIRE(nodes.nodes[0].node == daemon.id);
}

}  // namespace argosy::node
