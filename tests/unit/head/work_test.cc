// Leases, actors and placement groups through the real server, with nodes that do what the test tells them.

#include <future>
#include <set>

#include "tests/unit/head/head_fixture.h"

namespace argosy::head {
namespace {

using Cluster = v1::ClusterService::Stub;
using Kind = v1::HeadMessage;

std::string Bytes(auto id) { return std::string(id.Bytes()); }

v1::LeaseRequest Lease(std::map<std::string, double> resources, double deadline_seconds = 0) {
  v1::LeaseRequest request;
  request.set_request_id(Bytes(LeaseId::Random()));
  request.set_job_id(Bytes(JobId::FromNumber(1)));
  request.set_holder_worker_id(Bytes(WorkerId::FromNumber(2)));
  for (const auto& [name, amount] : resources) (*request.mutable_demand()->mutable_resources())[name] = amount;
  request.set_deadline_seconds(deadline_seconds);
  return request;
}

struct LeaseOutcome { grpc::Status status; v1::LeaseReply reply; };
std::future<LeaseOutcome> AskLease(TestHead& head, const v1::LeaseRequest& request, absl::Duration timeout = absl::Seconds(20)) {
  return std::async(std::launch::async, [&head, request, timeout] {
    LeaseOutcome outcome;
    grpc::ClientContext context;
    rpc::SetDeadline(context, timeout);
    outcome.status = head.cluster->RequestLease(&context, request, &outcome.reply);
    return outcome;
  });
}

v1::GrantLease Answer(TestNode& node, bool grant, const std::string& refusal = "") {
  v1::GrantLease asked = node.Expect(Kind::kGrantLease).grant_lease();
  v1::NodeMessage message;
  v1::LeaseResult* result = message.mutable_lease_result();
  result->set_request_id(asked.request_id());
  result->set_lease_id(asked.lease_id());
  result->set_granted(grant);
  result->set_refusal(refusal);
  if (grant) {
    result->mutable_worker()->set_worker_id(Bytes(WorkerId::Random()));
    result->mutable_worker()->set_node_id(Bytes(node.id));
    result->add_gpu_ids(3);
  }
  node.Send(message);
  return asked;
}

TEST_CASE("Head: a lease is placed where it fits, granted by the node, and returned through the head") {
  TestHead head;
  TestNode small(head, "small", {{"CPU", 1}}), big(head, "big", {{"CPU", 4}, {"GPU", 1}});
  small.Expect(Kind::kRegistered);
  big.Expect(Kind::kRegistered);
  auto asked = AskLease(head, Lease({{"CPU", 1}, {"GPU", 1}}));
  v1::GrantLease grant = Answer(big, true);
  CHECK(grant.demand().resources().at("GPU") == 1);
  LeaseOutcome outcome = asked.get();
  INFO(outcome.status.error_message());
  REQUIRE(outcome.status.ok());
  CHECK(outcome.reply.lease_id() == grant.lease_id());
  CHECK(outcome.reply.worker().node_id() == Bytes(big.id));
  CHECK(outcome.reply.gpu_ids(0) == 3);
  auto second = AskLease(head, Lease({{"GPU", 1}}));
  REQUIRE(WaitFor([&] { return head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty()).pending_size() == 1; }));
  CHECK(!big.Has(Kind::kGrantLease));
  v1::ReturnLeaseRequest back;
  back.set_lease_id(grant.lease_id());
  back.set_node_id(Bytes(big.id));
  head.Call(head.cluster, &Cluster::ReturnLease, back);
  CHECK(big.Expect(Kind::kReleaseLease).release_lease().lease_id() == grant.lease_id());
  Answer(big, true);
  CHECK(second.get().status.ok());
}

TEST_CASE("Head: a refusal for want of room is placed again, until the deadline says why it never fitted") {
  TestHead head;
  TestNode node(head, "n", {{"CPU", 1}});
  node.Expect(Kind::kRegistered);
  auto asked = AskLease(head, Lease({{"CPU", 1}}));
  v1::GrantLease first = Answer(node, false, "no room");
  v1::GrantLease second = Answer(node, true);
  CHECK(first.lease_id() != second.lease_id());
  CHECK(asked.get().status.ok());
  LeaseOutcome never = AskLease(head, Lease({{"CPU", 64}}, 0.3)).get();
  CHECK(never.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  INFO(never.status.error_message());
  CHECK(never.status.error_message().find("CPU: 64") != std::string::npos);
}

TEST_CASE("Head: withdrawing a request frees its lease, whether it waits, was granted, or had no answer yet") {
  TestHead head;
  TestNode node(head, "n", {{"CPU", 1}});
  node.Expect(Kind::kRegistered);
  v1::LeaseRequest first = Lease({{"CPU", 1}});
  auto asked = AskLease(head, first);
  v1::GrantLease grant = Answer(node, true);
  REQUIRE(asked.get().status.ok());
  v1::LeaseRequest second = Lease({{"CPU", 1}});
  auto waiting = AskLease(head, second);
  REQUIRE(WaitFor([&] { return head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty()).pending_size() == 1; }));

  // As a node does whose call broke while the answer was on its way: it knows its own number of the request, and no lease.
  v1::WithdrawLeaseRequest withdraw;
  withdraw.set_request_id(second.request_id());
  head.Call(head.cluster, &Cluster::WithdrawLease, withdraw);
  CHECK(waiting.get().status.error_code() == grpc::StatusCode::CANCELLED);
  withdraw.set_request_id(first.request_id());
  head.Call(head.cluster, &Cluster::WithdrawLease, withdraw);
  CHECK(node.Expect(Kind::kReleaseLease).release_lease().lease_id() == grant.lease_id());
  auto third = AskLease(head, Lease({{"CPU", 1}}));
  Answer(node, true);
  CHECK(third.get().status.ok());
}

TEST_CASE("Head: a caller that is gone leaves nothing behind") {
  TestHead head;
  LeaseOutcome gone = AskLease(head, Lease({{"CPU", 1}}), absl::Milliseconds(200)).get();
  CHECK(gone.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  REQUIRE(WaitFor([&] { return head.Call(head.cluster, &Cluster::ClusterStatus, v1::Empty()).pending_size() == 0; }));
}

TEST_CASE("Head: a waiting demand of another job has the holders' leases recalled and their node marked contended") {
  TestHead head;
  TestNode node(head, "n", {{"CPU", 1}});
  node.Expect(Kind::kRegistered);
  auto asked = AskLease(head, Lease({{"CPU", 1}}));
  v1::GrantLease grant = Answer(node, true);
  REQUIRE(asked.get().status.ok());
  v1::LeaseRequest other = Lease({{"CPU", 1}});
  other.set_job_id(Bytes(JobId::FromNumber(99)));
  auto waits = AskLease(head, other);
  CHECK(node.Expect(Kind::kRecallLease).recall_lease().lease_id() == grant.lease_id());
  CHECK(node.Expect(Kind::kContended).contended().contended());
  v1::ReturnLeaseRequest back;
  back.set_lease_id(grant.lease_id());
  head.Call(head.cluster, &Cluster::ReturnLease, back);
  Answer(node, true);
  CHECK(waits.get().status.ok());
  CHECK(!node.Expect(Kind::kContended).contended().contended());
}

v1::ActorSpec Spec(ActorId id, const std::string& name) {
  v1::ActorSpec spec;
  spec.set_actor_id(Bytes(id));
  spec.set_job_id(Bytes(JobId::FromNumber(1)));
  spec.set_class_name("Counter");
  spec.set_name(name);
  spec.set_namespace_("ns");
  (*spec.mutable_placement()->mutable_resources())["CPU"] = 1;
  spec.set_arguments("opaque");
  return spec;
}

v1::ActorInfo Resolve(TestHead& head, ActorId id, uint64_t incarnation, double wait) {
  v1::ResolveActorRequest request;
  request.set_actor_id(Bytes(id));
  request.set_incarnation_min(incarnation);
  request.set_wait_seconds(wait);
  return head.Call(head.cluster, &Cluster::ResolveActor, request);
}

v1::StartActor StartOn(TestNode& node, const std::string& worker) {
  v1::StartActor start = node.Expect(Kind::kStartActor).start_actor();
  v1::NodeMessage message;
  message.mutable_actor_started()->set_actor_id(start.spec().actor_id());
  message.mutable_actor_started()->set_incarnation(start.incarnation());
  message.mutable_actor_started()->mutable_worker()->set_worker_id(worker);
  message.mutable_actor_started()->mutable_worker()->set_node_id(Bytes(node.id));
  node.Send(message);
  return start;
}

TEST_CASE("Head: a named actor is created once, resolved when alive, restarted and killed") {
  TestHead head;
  TestNode node(head, "n", {{"CPU", 1}});
  node.Expect(Kind::kRegistered);
  ActorId id = ActorId::Random();
  v1::CreateActorRequest create;
  *create.mutable_spec() = Spec(id, "counter");
  create.mutable_spec()->set_max_restarts(1);
  CHECK(head.Call(head.cluster, &Cluster::CreateActor, create).state() == v1::ActorInfo::PENDING);
  auto resolved = std::async(std::launch::async, [&] { return Resolve(head, id, 1, 15); });
  v1::StartActor start = StartOn(node, Bytes(WorkerId::FromNumber(11)));
  CHECK(start.spec().arguments() == "opaque");
  v1::ActorInfo info = resolved.get();
  CHECK(info.state() == v1::ActorInfo::ALIVE);
  CHECK(info.worker().worker_id() == Bytes(WorkerId::FromNumber(11)));

  v1::CreateActorRequest second;
  *second.mutable_spec() = Spec(ActorId::Random(), "counter");
  grpc::ClientContext context;
  v1::ActorInfo reply;
  grpc::Status taken = head.cluster->CreateActor(&context, second, &reply);
  CHECK(taken.error_code() == grpc::StatusCode::ALREADY_EXISTS);
  second.mutable_spec()->set_get_if_exists(true);
  CHECK(head.Call(head.cluster, &Cluster::CreateActor, second).actor_id() == Bytes(id));

  v1::NodeMessage ended;
  ended.mutable_actor_ended()->set_actor_id(Bytes(id));
  ended.mutable_actor_ended()->set_incarnation(1);
  ended.mutable_actor_ended()->set_reason("signal 9");
  node.Send(ended);
  auto again = std::async(std::launch::async, [&] { return Resolve(head, id, 2, 15); });
  CHECK(StartOn(node, Bytes(WorkerId::FromNumber(12))).incarnation() == 2);
  CHECK(again.get().worker().worker_id() == Bytes(WorkerId::FromNumber(12)));
  v1::KillActorRequest kill;
  kill.set_actor_id(Bytes(id));
  kill.set_no_restart(true);
  kill.set_reason("test");
  head.Call(head.cluster, &Cluster::KillActor, kill);
  CHECK(node.Expect(Kind::kStopActor).stop_actor().incarnation() == 2);
  CHECK(Resolve(head, id, 3, 15).state() == v1::ActorInfo::DEAD);
}

TEST_CASE("Head: an actor that fits no node waits with the reason, is sent nowhere, and starts on a node that joins later") {
  TestHead head;
  TestNode small(head, "small", {{"CPU", 1}});
  small.Expect(Kind::kRegistered);
  ActorId id = ActorId::Random();
  v1::CreateActorRequest create;
  *create.mutable_spec() = Spec(id, "");
  (*create.mutable_spec()->mutable_placement()->mutable_resources())["CPU"] = 64;
  head.Call(head.cluster, &Cluster::CreateActor, create);
  v1::ActorInfo info = Resolve(head, id, 1, 0.3);
  CHECK(info.state() == v1::ActorInfo::PENDING);
  INFO(info.pending_reason());
  CHECK(info.pending_reason().find("CPU: 64") != std::string::npos);
  CHECK_FALSE(small.Has(Kind::kStartActor));
  TestNode large(head, "large", {{"CPU", 64}});
  StartOn(large, Bytes(WorkerId::FromNumber(5)));
  CHECK(Resolve(head, id, 1, 15).state() == v1::ActorInfo::ALIVE);
  CHECK_FALSE(small.Has(Kind::kStartActor));
}

TEST_CASE("Head: a detached actor is known after a restart and its node's word keeps it alive") {
  TestHead head;
  NodeId node_id = NodeId::Random();
  ActorId id = ActorId::Random();
  {
    TestNode node(head, "n", {{"CPU", 1}}, false, node_id);
    node.Expect(Kind::kRegistered);
    v1::CreateActorRequest create;
    *create.mutable_spec() = Spec(id, "keeper");
    create.mutable_spec()->set_detached(true);
    head.Call(head.cluster, &Cluster::CreateActor, create);
    StartOn(node, Bytes(WorkerId::FromNumber(11)));
    REQUIRE(Resolve(head, id, 1, 15).state() == v1::ActorInfo::ALIVE);
    head.Stop();
  }
  head.Start();
  CHECK(Resolve(head, id, 1, 0).state() == v1::ActorInfo::ALIVE);
  TestNode node(head, "n", {{"CPU", 1}}, false, node_id, [&](v1::Register& r) {
    v1::HeldActor* held = r.add_actors();
    held->set_actor_id(Bytes(id));
    held->set_incarnation(1);
    held->mutable_worker()->set_worker_id(Bytes(WorkerId::FromNumber(11)));
  });
  node.Expect(Kind::kRegistered);
  v1::NodeMessage left;
  left.mutable_driver_left()->set_job_id(Bytes(JobId::FromNumber(1)));
  node.Send(left);
  node.Expect(Kind::kJobEnded);
  CHECK(Resolve(head, id, 1, 0).state() == v1::ActorInfo::ALIVE);
}

void JoinDriver(TestHead& head, TestNode& node, JobId job) {
  v1::NodeMessage joined;
  joined.mutable_driver_joined()->set_job_id(Bytes(job));
  joined.mutable_driver_joined()->set_entrypoint("./a.out");
  node.Send(joined);
  head.WaitForJob(job.Hex(), v1::JobInfo::RUNNING);
}

TEST_CASE("Head: a driver's end is told to every node and ends its actors") {
  TestHead head;
  TestNode driver(head, "d", {{"CPU", 1}}), other(head, "o", {{"CPU", 1}});
  driver.Expect(Kind::kRegistered);
  other.Expect(Kind::kRegistered);
  JoinDriver(head, driver, JobId::FromNumber(1));
  ActorId id = ActorId::Random();
  v1::CreateActorRequest create;
  *create.mutable_spec() = Spec(id, "");
  (*create.mutable_spec()->mutable_placement()->mutable_resources())["nowhere"] = 1;
  head.Call(head.cluster, &Cluster::CreateActor, create);
  REQUIRE(WaitFor([&] { return Resolve(head, id, 0, 0).pending_reason().find("nowhere") != std::string::npos; }));
  v1::NodeMessage left;
  left.mutable_driver_left()->set_job_id(Bytes(JobId::FromNumber(1)));
  driver.Send(left);
  CHECK(other.Expect(Kind::kJobEnded).job_ended().job_id() == Bytes(JobId::FromNumber(1)));
  CHECK(Resolve(head, id, 9, 15).state() == v1::ActorInfo::DEAD);
  CHECK(head.Job(JobId::FromNumber(1).Hex()).state() == v1::JobInfo::SUCCEEDED);
}

// Says whether the node has taken the bundles that it is asked for, and returns the question.
v1::PrepareBundles AnswerPrepare(TestNode& node, bool ok) {
  v1::PrepareBundles asked = node.Expect(Kind::kPrepareBundles).prepare_bundles();
  v1::NodeMessage message;
  message.mutable_bundles_prepared()->set_group_id(asked.group_id());
  message.mutable_bundles_prepared()->set_attempt(asked.attempt());
  message.mutable_bundles_prepared()->set_ok(ok);
  if (!ok) message.mutable_bundles_prepared()->set_reason("no room");
  node.Send(message);
  return asked;
}

void AnswerBundles(TestNode& node, bool commit) {
  if (!commit) {
    CHECK_FALSE(AnswerPrepare(node, true).commit());
    return;
  }
  v1::NodeMessage message;
  v1::CommitBundles asked = node.Expect(Kind::kCommitBundles).commit_bundles();
  CHECK(asked.indices_size() == 1);
  message.mutable_bundles_committed()->set_group_id(asked.group_id());
  message.mutable_bundles_committed()->set_attempt(asked.attempt());
  message.mutable_bundles_committed()->set_ok(true);
  node.Send(message);
}

static v1::GroupInfo Create(TestHead& head, const v1::GroupSpec& spec) {
  v1::CreateGroupsRequest request;
  *request.add_groups() = spec;
  v1::CreateGroupsReply reply = head.Call(head.cluster, &Cluster::CreateGroups, request);
  REQUIRE(reply.results_size() == 1);
  CHECK(reply.results(0).error() == "");
  return reply.results(0).group();
}

TEST_CASE("Head: a group is reserved in two phases, serves leases inside it, and is returned") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 2}}), b(head, "b", {{"CPU", 2}});
  a.Expect(Kind::kRegistered);
  b.Expect(Kind::kRegistered);
  GroupId id = GroupId::Random();
  v1::GroupSpec spec;
  spec.set_group_id(Bytes(id));
  spec.set_strategy(v1::GroupSpec::STRICT_SPREAD);
  for (int i = 0; i < 2; ++i) (*spec.add_bundles()->mutable_resources())["CPU"] = 2;
  CHECK(Create(head, spec).state() == v1::GroupInfo::PENDING);
  for (bool commit : {false, true}) {
    AnswerBundles(a, commit);
    AnswerBundles(b, commit);
  }
  v1::WaitGroupRequest wait;
  wait.set_group_id(Bytes(id));
  wait.set_wait_seconds(15);
  v1::GroupInfo group = head.Call(head.cluster, &Cluster::WaitGroup, wait);
  REQUIRE(group.state() == v1::GroupInfo::CREATED);
  CHECK(group.bundle_nodes_size() == 2);
  CHECK(group.bundle_nodes(0) != group.bundle_nodes(1));

  v1::LeaseRequest inside = Lease({{"CPU", 1}});
  inside.mutable_demand()->mutable_strategy()->mutable_bundle_affinity()->set_group_id(Bytes(id));
  inside.mutable_demand()->mutable_strategy()->mutable_bundle_affinity()->set_bundle_index(1);
  TestNode& holder = group.bundle_nodes(1) == Bytes(a.id) ? a : b;
  auto asked = AskLease(head, inside);
  v1::GrantLease grant = Answer(holder, true);
  CHECK(grant.demand().strategy().bundle_affinity().bundle_index() == 1);
  CHECK(asked.get().status.ok());
  auto outside = AskLease(head, Lease({{"CPU", 1}}, 0.3)).get();
  CHECK(outside.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);

  v1::RemoveGroupRequest remove;
  remove.set_group_id(Bytes(id));
  head.Call(head.cluster, &Cluster::RemoveGroup, remove);
  CHECK(a.Expect(Kind::kReturnBundles).return_bundles().group_id() == Bytes(id));
  b.Expect(Kind::kReturnBundles);
  CHECK(head.Call(head.cluster, &Cluster::ListGroups, v1::Empty()).groups_size() == 0);
}

TEST_CASE("Head: a group that fits one node is prepared and committed by one message, and tried again when the node refuses") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 2}});
  a.Expect(Kind::kRegistered);
  GroupId id = GroupId::Random();
  v1::GroupSpec spec;
  spec.set_group_id(Bytes(id));
  for (int i = 0; i < 2; ++i) (*spec.add_bundles()->mutable_resources())["CPU"] = 1;
  Create(head, spec);
  for (bool ok : {false, true}) {
    v1::PrepareBundles asked = AnswerPrepare(a, ok);
    CHECK(asked.commit());
    CHECK(asked.bundles_size() == 2);
  }
  v1::WaitGroupRequest wait;
  wait.set_group_id(Bytes(id));
  wait.set_wait_seconds(15);
  CHECK(head.Call(head.cluster, &Cluster::WaitGroup, wait).state() == v1::GroupInfo::CREATED);
}

TEST_CASE("Head: groups are known after a restart, with the bundles that nodes hold; of ended jobs and removed ones none is") {
  TestHead head;
  NodeId node_id = NodeId::Random();
  GroupId created = GroupId::Random(), waiting = GroupId::Random(), removed = GroupId::Random(), of_job = GroupId::Random();
  auto spec = [](GroupId id, double cpus) {
    v1::GroupSpec spec;
    spec.set_group_id(Bytes(id));
    spec.set_name("group " + id.Short());
    spec.set_detached(true);
    (*spec.add_bundles()->mutable_resources())["CPU"] = cpus;
    (*spec.mutable_bundles(0)->mutable_label_selector())["zone"] = "!b";
    return spec;
  };
  auto wait = [&](GroupId id, double seconds) {
    v1::WaitGroupRequest request;
    request.set_group_id(Bytes(id));
    request.set_wait_seconds(seconds);
    return head.Call(head.cluster, &Cluster::WaitGroup, request);
  };
  {
    TestNode node(head, "n", {{"CPU", 2}}, false, node_id);
    node.Expect(Kind::kRegistered);
    JoinDriver(head, node, JobId::FromNumber(7));
    Create(head, spec(created, 1));
    AnswerPrepare(node, true);
    REQUIRE(wait(created, 15).state() == v1::GroupInfo::CREATED);
    Create(head, spec(waiting, 64));
    Create(head, spec(removed, 64));
    v1::GroupSpec of = spec(of_job, 64);
    of.set_detached(false);
    of.set_job_id(Bytes(JobId::FromNumber(7)));
    Create(head, of);
    v1::RemoveGroupRequest remove;
    remove.set_group_id(Bytes(removed));
    head.Call(head.cluster, &Cluster::RemoveGroup, remove);
    v1::NodeMessage left;
    left.mutable_driver_left()->set_job_id(Bytes(JobId::FromNumber(7)));
    node.Send(left);
    node.Expect(Kind::kJobEnded);
    head.Stop();
  }
  head.Start();
  CHECK(head.Call(head.cluster, &Cluster::ListGroups, v1::Empty()).groups_size() == 2);
  v1::GroupInfo known = wait(created, 0);
  CHECK(known.state() == v1::GroupInfo::PENDING);
  CHECK(known.spec().name() == "group " + created.Short());
  CHECK(known.spec().bundles(0).label_selector().at("zone") == "!b");
  TestNode node(head, "n", {{"CPU", 2}}, false, node_id, [&](v1::Register& r) {
    v1::HeldBundle* held = r.add_bundles();
    held->set_group_id(Bytes(created));
    held->set_committed(true);
    (*held->mutable_resources())["CPU"] = 1;
  });
  node.Expect(Kind::kRegistered);
  known = wait(created, 15);
  CHECK(known.state() == v1::GroupInfo::CREATED);
  CHECK(known.bundle_nodes(0) == Bytes(node_id));
  CHECK_FALSE(node.Has(Kind::kReturnBundles));
  CHECK(wait(waiting, 0).state() == v1::GroupInfo::PENDING);
  // What waits is placed once all nodes are back.
  TestNode large(head, "large", {{"CPU", 64}});
  large.Expect(Kind::kRegistered);
  AnswerPrepare(large, true);
  CHECK(wait(waiting, 15).state() == v1::GroupInfo::CREATED);
}

TEST_CASE("Head: what a job has whose driver did not come back with the head ends, but for what a detached actor may have made") {
  TestHead head(Token("secret"), absl::Seconds(1));
  JobId gone = JobId::FromNumber(7), left_an_actor = JobId::FromNumber(8);
  GroupId of_gone = GroupId::Random(), of_detached = GroupId::Random(), late = GroupId::Random();
  auto create = [&](GroupId id, JobId job) {
    v1::GroupSpec spec;
    spec.set_group_id(Bytes(id));
    spec.set_job_id(Bytes(job));
    (*spec.add_bundles()->mutable_resources())["nowhere"] = 1;
    Create(head, spec);
  };
  auto group_ids = [&] {
    std::set<std::string> ids;
    v1::ListGroupsReply reply = head.Call(head.cluster, &Cluster::ListGroups, v1::Empty());
    for (const v1::GroupInfo& group : reply.groups()) ids.insert(group.spec().group_id());
    return ids;
  };
  v1::CreateActorRequest actor;
  *actor.mutable_spec() = Spec(ActorId::Random(), "stays");
  actor.mutable_spec()->set_detached(true);
  actor.mutable_spec()->set_job_id(Bytes(left_an_actor));
  (*actor.mutable_spec()->mutable_placement()->mutable_resources())["nowhere"] = 1;
  head.Call(head.cluster, &Cluster::CreateActor, actor);
  create(of_gone, gone);
  create(of_detached, left_an_actor);
  head.Stop();
  head.Start();
  CHECK(group_ids() == std::set<std::string>{Bytes(of_gone), Bytes(of_detached)});
  CHECK(WaitFor([&] { return group_ids() == std::set<std::string>{Bytes(of_detached)}; }));
  // A creation that was under way when its job ended.
  create(late, gone);
  CHECK(WaitFor([&] { return group_ids() == std::set<std::string>{Bytes(of_detached)}; }));
}

TEST_CASE("Head: a node that rejoins is not told again to return bundles, which may have been placed there since") {
  TestHead head;
  NodeId node_id = NodeId::Random();
  GroupId id = GroupId::Random();
  v1::GroupSpec spec;
  spec.set_group_id(Bytes(id));
  (*spec.add_bundles()->mutable_resources())["CPU"] = 1;
  TestNode node(head, "n", {{"CPU", 2}}, false, node_id);
  node.Expect(Kind::kRegistered);
  Create(head, spec);
  AnswerPrepare(node, true);
  v1::RemoveGroupRequest remove;
  remove.set_group_id(Bytes(id));
  head.Call(head.cluster, &Cluster::RemoveGroup, remove);
  node.Expect(Kind::kReturnBundles);
  TestNode again(head, "n", {{"CPU", 2}}, false, node_id, [&](v1::Register& r) {
    v1::HeldBundle* held = r.add_bundles();
    held->set_group_id(Bytes(id));
    held->set_committed(true);
    (*held->mutable_resources())["CPU"] = 1;
  });
  again.Expect(Kind::kRegistered);
  // Once, for the bundle that it says it holds.
  CHECK(again.Expect(Kind::kReturnBundles).return_bundles().group_id() == Bytes(id));
  v1::GroupSpec other = spec;
  other.set_group_id(Bytes(GroupId::Random()));
  Create(head, other);
  AnswerPrepare(again, true);
  CHECK_FALSE(again.Has(Kind::kReturnBundles));
}

}  // namespace
}  // namespace argosy::head
