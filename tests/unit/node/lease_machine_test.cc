#include "runtime/node/lease_machine.h"

#include "runtime/base/status.h"
#include "runtime/node/demand_codec.h"
#include "tests/support/catch.h"

namespace argosy::node {
namespace {

const NodeId kNode = NodeId::FromNumber(1);
const JobId kJob = JobId::FromNumber(1);
const WorkerId kDriver = WorkerId::FromNumber(1000);

ResourceSet Amounts(std::map<std::string, double> amounts) { return *ResourceSet::FromMap(amounts); }

// The machine, and what it said last.
struct Machine {
  explicit Machine(std::map<std::string, double> total = {{"CPU", 2}, {"GPU", 2}})
      : machine({.node = kNode, .total = Amounts(std::move(total)), .labels = {{"zone", "a"}}}) {}

  void Step(const LeaseEvent& event) { effects = machine.Step(event, now); }
  template <class Effect>
  std::vector<Effect> Of() const {
    std::vector<Effect> found;
    for (const LeaseEffect& effect : effects) {
      if (auto* one = std::get_if<Effect>(&effect)) found.push_back(*one);
    }
    return found;
  }
  template <class Effect>
  Effect One() const {
    std::vector<Effect> found = Of<Effect>();
    REQUIRE(found.size() == 1);
    return found[0];
  }

  LeaseAsked Ask(const std::string& id, std::map<std::string, double> resources = {{"CPU", 1}}, WorkerId holder = kDriver, JobId job = kJob) {
    LeaseAsked asked;
    asked.request_id = id;
    asked.holder = holder;
    asked.job = job;
    asked.demand.resources = resources;
    asked.parsed = *ParseDemand(asked.demand);
    asked.code.id = "code";
    asked.new_lease = LeaseId::FromNumber(++number);
    asked.new_worker = WorkerId::FromNumber(number);
    return asked;
  }
  // Asks, lets the worker register, and returns what was granted.
  wire::LeaseGrant Granted(const LeaseAsked& asked) {
    Step(asked);
    if (!Of<SpawnWorker>().empty()) Register(One<SpawnWorker>().worker);
    AnswerRequest answer = One<AnswerRequest>();
    REQUIRE(answer.request_id == asked.request_id);
    REQUIRE(answer.grant.ok());
    return *answer.grant;
  }
  void Register(WorkerId worker) { Step(WorkerRegistered{worker, {worker, kNode, "/socket", ""}}); }
  double Free(const char* name) const { return machine.ledger().Available().Get(name).ToDouble(); }

  LeaseMachine machine;
  std::vector<LeaseEffect> effects;
  absl::Time now = absl::UnixEpoch();
  uint64_t number = 0;
};

ActorAsked Actor(uint64_t actor, uint64_t incarnation, bool detached = false) {
  ActorAsked asked;
  asked.start.spec.actor = ActorId::FromNumber(actor);
  asked.start.spec.job = kJob;
  asked.start.spec.detached = detached;
  asked.start.spec.placement.resources = {{"CPU", 1}, {"GPU", 1}};
  asked.start.spec.code.id = "code";
  asked.start.incarnation = incarnation;
  asked.start.lease = LeaseId::FromNumber(500 + actor * 10 + incarnation);
  asked.parsed = *ParseDemand(asked.start.spec.placement);
  asked.held = *ActorResources(asked.start.spec);
  asked.new_worker = WorkerId::FromNumber(500 + actor * 10 + incarnation);
  return asked;
}

}  // namespace

TEST_CASE("LeaseMachine: what fits is granted here; a returned worker is used again") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant first = m.Granted(m.Ask("a"));
  REQUIRE(m.Free("CPU") == 1);
  m.Step(LeaseReturned{first.lease});
  REQUIRE(m.Free("CPU") == 2);
  wire::LeaseGrant second = m.Granted(m.Ask("b"));
  REQUIRE(second.worker.worker == first.worker.worker);
  REQUIRE(second.lease != first.lease);
}

TEST_CASE("LeaseMachine: a worker is never used for another job, other code or other GPUs") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant gpu = m.Granted(m.Ask("a", {{"GPU", 1}}));
  REQUIRE(gpu.gpu_ids == std::vector<uint32_t>{0});
  wire::LeaseGrant other = m.Granted(m.Ask("b", {{"GPU", 1}}));
  REQUIRE(other.gpu_ids == std::vector<uint32_t>{1});
  m.Step(LeaseReturned{gpu.lease});
  m.Step(m.Ask("c", {{"CPU", 1}}));
  REQUIRE(m.Of<SpawnWorker>().size() == 1);
  m.Step(m.Ask("d", {{"GPU", 1}}, kDriver, JobId::FromNumber(2)));
  REQUIRE(m.Of<SpawnWorker>().size() == 1);
}

TEST_CASE("LeaseMachine: what does not fit, or has a constraint, goes to the head") {
  Machine m;
  m.Step(HeadSet{true});
  m.Granted(m.Ask("a", {{"CPU", 2}}));
  m.Step(m.Ask("full"));
  REQUIRE(m.One<ForwardRequest>().request.request_id == "full");
  m.Step(m.Ask("huge", {{"CPU", 100}}));
  REQUIRE(m.Of<ForwardRequest>().size() == 1);
  LeaseAsked labels = m.Ask("labels", {{"GPU", 1}});
  labels.demand.label_selector = {{"zone", "b"}};
  labels.parsed = *ParseDemand(labels.demand);
  m.Step(labels);
  REQUIRE(m.Of<ForwardRequest>().size() == 1);
  LeaseAsked spread = m.Ask("spread", {{"GPU", 1}});
  spread.parsed.strategy = scheduler::SpreadStrategy{};
  m.Step(spread);
  REQUIRE(m.Of<ForwardRequest>().size() == 1);
  REQUIRE(m.machine.waiting() == 4);
}

TEST_CASE("LeaseMachine: what becomes free goes to those that wait at the head, oldest first, and no newer request overtakes them") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant all = m.Granted(m.Ask("a", {{"CPU", 2}}));
  m.Step(m.Ask("z first", {{"CPU", 2}}));
  m.Step(m.Ask("b second"));
  REQUIRE(m.One<ForwardRequest>().request.request_id == "b second");
  m.Step(LeaseReturned{all.lease});
  REQUIRE(m.One<AnswerRequest>().request_id == "z first");
  REQUIRE(m.One<WithdrawForwarded>().request_id == "z first");
  wire::LeaseGrant first = *m.One<AnswerRequest>().grant;
  m.Step(m.Ask("third"));
  REQUIRE(m.One<ForwardRequest>().request.request_id == "third");
  m.Step(LeaseReturned{first.lease});
  REQUIRE(m.Of<AnswerRequest>().size() + m.Of<SpawnWorker>().size() == 2);   // there is an idle worker for one of them
  REQUIRE(m.Of<WithdrawForwarded>().size() == 2);
  REQUIRE(m.machine.waiting() == 0);
  // The head's grant was under way: nobody takes it.
  m.Step(ForwardAnswered{"third", wire::LeaseGrant{LeaseId::FromNumber(50), {WorkerId::FromNumber(51), NodeId::FromNumber(2), "", "host:1"}, {}}});
  REQUIRE(m.One<ReturnForwarded>().lease == LeaseId::FromNumber(50));
}

TEST_CASE("LeaseMachine: what becomes free goes to jobs as their requests came, and to a job's most urgent one first") {
  Machine m({{"CPU", 1}});
  m.Step(HeadSet{true});
  wire::LeaseGrant lease = m.Granted(m.Ask("a"));
  const JobId other = JobId::FromNumber(2);
  m.Step(m.Ask("one"));
  LeaseAsked urgent = m.Ask("two");
  urgent.parsed.priority = 5;
  m.Step(urgent);
  m.Step(m.Ask("theirs", {{"CPU", 1}}, kDriver, other));
  std::vector<std::string> order;
  for (int i = 0; i < 3; ++i) {
    m.Step(LeaseReturned{lease.lease});
    order.push_back(m.One<WithdrawForwarded>().request_id);
    if (m.Of<AnswerRequest>().empty()) m.Register(m.One<SpawnWorker>().worker);
    lease = *m.One<AnswerRequest>().grant;
  }
  REQUIRE(order == std::vector<std::string>{"two", "one", "theirs"});
}

TEST_CASE("LeaseMachine: what becomes free goes to the job of the highest priority, and a lease is not recalled for one of less") {
  Machine m({{"CPU", 1}});
  const JobId other = JobId::FromNumber(2);
  auto ask = [&](const char* id, int job_priority) {
    LeaseAsked asked = m.Ask(id, {{"CPU", 1}}, WorkerId::FromNumber(1001), other);
    asked.parsed.job_priority = job_priority;
    return asked;
  };
  m.Step(HeadSet{true});
  wire::LeaseGrant lease = m.Granted(m.Ask("a"));
  m.Step(m.Ask("older"));
  m.Step(ask("urgent", 3));
  m.Step(ContendedSet{true, 3});
  REQUIRE(m.Of<TellRecalled>().size() == 2);   // its holder and its worker
  m.Step(ContendedSet{false});
  m.Step(LeaseReturned{lease.lease});
  REQUIRE(m.One<WithdrawForwarded>().request_id == "urgent");
  m.Register(m.One<SpawnWorker>().worker);
  lease = *m.One<AnswerRequest>().grant;
  m.Step(ContendedSet{true, 2});
  REQUIRE(m.Of<TellRecalled>().empty());
  m.Step(ContendedSet{true, 3});
  REQUIRE(m.Of<TellRecalled>().size() == 2);
  // Without a head too.
  m.Step(HeadSet{false});
  m.Step(ForwardAnswered{"older", absl::UnavailableError("the head is away")});
  m.Step(ask("last", -1));
  m.Step(ask("first", 3));
  m.Step(LeaseReturned{lease.lease});
  REQUIRE(m.One<AnswerRequest>().request_id == "first");
}

TEST_CASE("LeaseMachine: on a contended node what becomes free waits for the head") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant all = m.Granted(m.Ask("a", {{"CPU", 2}}));
  m.Step(m.Ask("first", {{"CPU", 2}}));
  m.Step(ContendedSet{true});
  m.Step(LeaseReturned{all.lease});
  REQUIRE(m.Of<AnswerRequest>().empty());
  m.Step(m.Ask("second"));
  REQUIRE(m.Of<SpawnWorker>().empty());
  REQUIRE(m.One<ForwardRequest>().request.request_id == "second");
  m.Step(ContendedSet{false});
  REQUIRE(m.One<AnswerRequest>().request_id == "first");
}

TEST_CASE("LeaseMachine: a contended node grants only what the head places, and recalls its own leases") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant own = m.Granted(m.Ask("a"));
  m.Step(ContendedSet{true});
  std::vector<TellRecalled> recalled = m.Of<TellRecalled>();
  REQUIRE(recalled.size() == 2);   // the holder, and the leased worker
  REQUIRE(recalled[0].to == kDriver);
  REQUIRE(recalled[0].lease == own.lease);
  m.Step(m.Ask("b"));
  REQUIRE(m.Of<ForwardRequest>().size() == 1);
  GrantLease grant{.request_id = 9, .lease = LeaseId::FromNumber(77), .job = kJob};
  grant.demand.resources = {{"CPU", 1}};
  grant.code.id = "code";
  m.Step(HeadGrants{grant, *ParseDemand(grant.demand), WorkerId::FromNumber(78)});
  REQUIRE(m.Of<SpawnWorker>().size() == 1);
}

TEST_CASE("LeaseMachine: without a head requests wait here, holders are recalled, and the first that fits is granted") {
  Machine m({{"CPU", 1}});
  wire::LeaseGrant first = m.Granted(m.Ask("a"));
  WorkerId other = WorkerId::FromNumber(1001);
  m.Step(m.Ask("b", {{"CPU", 1}}, other));
  REQUIRE(m.Of<ForwardRequest>().empty());
  REQUIRE(m.Of<TellRecalled>().size() == 2);
  m.Step(LeaseReturned{first.lease});
  REQUIRE(m.One<AnswerRequest>().request_id == "b");
  // When the head is back it gets the rest.
  m.Step(m.Ask("c"));
  m.Step(HeadSet{true});
  REQUIRE(m.One<ForwardRequest>().request.request_id == "c");
  // And when it goes away again, they come back.
  m.Step(HeadSet{false});
  m.Step(ForwardAnswered{"c", Unavailable("the head is away")});
  REQUIRE(m.machine.waiting() == 1);
}

TEST_CASE("LeaseMachine: a grant of the head is answered once, a repeat gets the same answer, too much is refused with 'no room'") {
  Machine m({{"CPU", 1}});
  m.Step(HeadSet{true});
  GrantLease grant{.request_id = 9, .lease = LeaseId::FromNumber(77), .job = kJob};
  grant.demand.resources = {{"CPU", 1}};
  grant.code.id = "code";
  HeadGrants event{grant, *ParseDemand(grant.demand), WorkerId::FromNumber(78)};
  m.Step(event);
  m.Step(event);
  REQUIRE(m.effects.empty());   // still starting
  m.Register(WorkerId::FromNumber(78));
  REQUIRE(m.One<AnswerHead>().result.granted);
  event.grant.request_id = 10;
  m.Step(event);
  REQUIRE(m.One<AnswerHead>().result.request_id == 10);
  REQUIRE(m.One<AnswerHead>().result.worker.worker == WorkerId::FromNumber(78));
  event.grant.lease = LeaseId::FromNumber(79);
  m.Step(event);
  REQUIRE_FALSE(m.One<AnswerHead>().result.granted);
  REQUIRE(m.One<AnswerHead>().result.refusal == "no room");
  REQUIRE(m.One<AnswerHead>().result.retry_elsewhere);
}

TEST_CASE("LeaseMachine: the head is told of its leases that were returned here, once") {
  Machine m;
  m.Step(HeadSet{true});
  LeaseAsked asked = m.Ask("a");
  GrantLease grant{.request_id = 7, .lease = LeaseId::FromNumber(70), .job = kJob, .demand = asked.demand, .code = asked.code, .holder = kDriver};
  m.Step(HeadGrants{grant, asked.parsed, WorkerId::FromNumber(71)});
  m.Register(WorkerId::FromNumber(71));
  wire::LeaseGrant own = m.Granted(m.Ask("b"));
  m.Step(LeaseReturned{own.lease});
  REQUIRE(m.machine.TakeEnded().empty());
  m.Step(LeaseReturned{grant.lease});
  REQUIRE(m.machine.TakeEnded() == std::vector<LeaseId>{grant.lease});
  REQUIRE(m.machine.TakeEnded().empty());
}

TEST_CASE("LeaseMachine: a blocked worker lends its CPU and takes it back") {
  Machine m({{"CPU", 1}});
  wire::LeaseGrant outer = m.Granted(m.Ask("outer"));
  m.Step(m.Ask("inner", {{"CPU", 1}}, outer.worker.worker));
  REQUIRE(m.Of<SpawnWorker>().empty());
  m.Step(WorkerBlockedSet{outer.worker.worker, true});
  WorkerId inner = m.One<SpawnWorker>().worker;
  m.Register(inner);
  REQUIRE(m.One<AnswerRequest>().request_id == "inner");
  m.Step(WorkerBlockedSet{outer.worker.worker, false});
  REQUIRE(m.Free("CPU") == 0);
  m.Step(LeaseReturned{LeaseId::FromNumber(2)});
  REQUIRE(m.Free("CPU") == 0);   // the outer one has it again
  m.Step(LeaseReturned{outer.lease});
  REQUIRE(m.Free("CPU") == 1);
}

TEST_CASE("LeaseMachine: a worker that dies frees its lease, and takes the leases it held with it") {
  Machine m;
  m.Step(HeadSet{true});
  wire::LeaseGrant outer = m.Granted(m.Ask("outer"));
  wire::LeaseGrant inner = m.Granted(m.Ask("inner", {{"CPU", 1}}, outer.worker.worker));
  m.Step(WorkerEnded{outer.worker.worker, "exited with code 1"});
  REQUIRE(m.One<KillWorker>().worker == inner.worker.worker);
  REQUIRE(m.Free("CPU") == 1);
  m.Step(WorkerEnded{inner.worker.worker, "killed"});
  REQUIRE(m.Free("CPU") == 2);
  // One that dies before it has registered fails the request, with the reason.
  m.Step(m.Ask("c"));
  m.Step(WorkerEnded{m.One<SpawnWorker>().worker, "it exited with code 127"});
  REQUIRE_FALSE(m.One<AnswerRequest>().grant.ok());
  REQUIRE(std::string(m.One<AnswerRequest>().grant.status().message()).find("127") != std::string::npos);
  REQUIRE(m.Free("CPU") == 2);
}

TEST_CASE("LeaseMachine: a cancelled request gives its resources back, and its worker serves the next") {
  Machine m;
  m.Step(m.Ask("a"));
  WorkerId worker = m.One<SpawnWorker>().worker;
  m.Step(LeaseCancelled{"a"});
  REQUIRE(m.One<AnswerRequest>().grant.status().code() == absl::StatusCode::kCancelled);
  REQUIRE(m.Free("CPU") == 2);
  m.Step(m.Ask("b"));
  REQUIRE(m.Of<SpawnWorker>().empty());
  m.Register(worker);
  REQUIRE(m.One<AnswerRequest>().request_id == "b");
}

TEST_CASE("LeaseMachine: a grant of the head for a request that was cancelled goes back") {
  Machine m({{"CPU", 1}});
  m.Step(HeadSet{true});
  m.Step(m.Ask("far", {{"CPU", 5}}));
  m.Step(LeaseCancelled{"far"});
  REQUIRE(m.Of<WithdrawForwarded>().size() == 1);
  wire::LeaseGrant grant{LeaseId::FromNumber(9), {WorkerId::FromNumber(9), NodeId::FromNumber(2), "", "host:1"}, {}};
  m.Step(ForwardAnswered{"far", grant});
  REQUIRE(m.One<ReturnForwarded>().lease == grant.lease);
  REQUIRE(m.One<ReturnForwarded>().node == NodeId::FromNumber(2));
}

TEST_CASE("LeaseMachine: while a request waits, other holders are asked once for what lies idle") {
  const WorkerId other = WorkerId::FromNumber(2000);
  Machine m({{"CPU", 1}});
  m.Step(HeadSet{true});
  wire::LeaseGrant held = m.Granted(m.Ask("a"));
  m.Step(m.Ask("mine"));
  REQUIRE(m.Of<TellRecalled>().empty());   // its own holder knows best
  m.Step(m.Ask("theirs", {{"CPU", 1}}, other));
  TellRecalled told = m.One<TellRecalled>();
  REQUIRE(told.to == kDriver);
  REQUIRE(told.lease == held.lease);
  REQUIRE(told.when_idle);
  m.Step(m.Ask("more", {{"CPU", 1}}, other));
  REQUIRE(m.Of<TellRecalled>().empty());
  // What this node can never serve asks nobody here.
  Machine far({{"CPU", 1}});
  far.Step(HeadSet{true});
  far.Granted(far.Ask("a"));
  far.Step(far.Ask("gpu", {{"GPU", 1}}, other));
  REQUIRE(far.Of<TellRecalled>().empty());
  // What goes to the next is asked for as well, as long as others wait; a grant of the head too.
  m.Step(LeaseReturned{held.lease});
  REQUIRE(m.One<TellRecalled>().to == kDriver);
  held = *m.One<AnswerRequest>().grant;
  m.Step(ContendedSet{true});
  m.Step(LeaseReturned{held.lease});
  m.Step(m.Ask("mine too"));
  GrantLease grant{.request_id = 1, .lease = LeaseId::FromNumber(77), .job = kJob, .holder = other};
  grant.code.id = "code";
  grant.demand.resources = {{"CPU", 1}};
  m.Step(HeadGrants{grant, *ParseDemand(grant.demand), WorkerId::FromNumber(77)});
  wire::LeaseGrant placed = {LeaseId::FromNumber(77), {held.worker.worker, kNode, "/socket", ""}, {}};
  m.Step(ForwardAnswered{"theirs", placed});
  REQUIRE(m.One<TellRecalled>().to == other);
}

TEST_CASE("LeaseMachine: a request whose answer was lost is withdrawn once nobody wants the head's grant") {
  absl::Status lost = absl::UnavailableError("connection reset");
  SECTION("it was called off, and then the call broke") {
    Machine m({{"CPU", 1}});
    m.Step(HeadSet{true});
    m.Step(m.Ask("far", {{"CPU", 5}}));
    m.Step(LeaseCancelled{"far"});
    REQUIRE(m.One<WithdrawForwarded>().request_id == "far");
    m.Step(ForwardAnswered{"far", absl::CancelledError("withdrawn")});
    REQUIRE(m.Of<AnswerRequest>().empty());
  }
  SECTION("it is granted here meanwhile") {
    Machine m({{"CPU", 1}});
    m.Step(HeadSet{true});
    m.Step(ContendedSet{true});
    m.Step(m.Ask("a"));
    REQUIRE(m.Of<ForwardRequest>().size() == 1);
    m.Step(HeadSet{false});
    m.Step(ForwardAnswered{"a", lost});
    REQUIRE(m.Of<SpawnWorker>().size() == 1);
    REQUIRE(m.One<WithdrawForwarded>().request_id == "a");
  }
  SECTION("it waits here, and its holder goes") {
    Machine m({{"CPU", 1}});
    m.Step(HeadSet{true});
    m.Step(m.Ask("far", {{"CPU", 5}}));
    m.Step(HeadSet{false});
    m.Step(ForwardAnswered{"far", lost});
    REQUIRE(m.Of<AnswerRequest>().empty());
    REQUIRE(m.Of<WithdrawForwarded>().empty());
    SECTION("called off") { m.Step(LeaseCancelled{"far"}); }
    SECTION("its job ends") { m.Step(JobGone{m.Ask("other").job, "done"}); }
    REQUIRE(m.One<WithdrawForwarded>().request_id == "far");
    REQUIRE(m.One<AnswerRequest>().grant.status().code() == absl::StatusCode::kCancelled);
  }
  SECTION("the head comes back: it is asked for the same again") {
    Machine m({{"CPU", 1}});
    m.Step(HeadSet{true});
    m.Step(m.Ask("far", {{"CPU", 5}}));
    m.Step(HeadSet{false});
    m.Step(ForwardAnswered{"far", lost});
    m.Step(HeadSet{true});
    REQUIRE(m.One<ForwardRequest>().request.request_id == "far");
    REQUIRE(m.Of<WithdrawForwarded>().empty());
  }
  SECTION("a refusal of the head needs no withdrawal") {
    Machine m({{"CPU", 1}});
    m.Step(HeadSet{true});
    m.Step(m.Ask("far", {{"CPU", 5}}));
    m.Step(ForwardAnswered{"far", absl::FailedPreconditionError("no such group")});
    REQUIRE(m.Of<WithdrawForwarded>().empty());
    REQUIRE(m.Of<AnswerRequest>().size() == 1);
  }
}

TEST_CASE("LeaseMachine: leases on other nodes go back when their holder returns them or dies") {
  Machine m({{"CPU", 1}});
  m.Step(HeadSet{true});
  for (uint64_t i : {20, 21}) {
    std::string id = "far" + std::to_string(i);
    m.Step(m.Ask(id, {{"CPU", 5}}));
    m.Step(ForwardAnswered{id, wire::LeaseGrant{LeaseId::FromNumber(i), {WorkerId::FromNumber(i), NodeId::FromNumber(2), "", "host:1"}, {}}});
    REQUIRE(m.One<AnswerRequest>().grant.ok());
  }
  m.Step(LeaseReturned{LeaseId::FromNumber(20)});
  REQUIRE(m.One<ReturnForwarded>().lease == LeaseId::FromNumber(20));
  m.Step(HolderGone{kDriver});
  REQUIRE(m.One<ReturnForwarded>().lease == LeaseId::FromNumber(21));
}

TEST_CASE("LeaseMachine: an actor holds its running resources for life on a worker of its own") {
  Machine m;
  wire::LeaseGrant idle = m.Granted(m.Ask("a"));
  m.Step(LeaseReturned{idle.lease});
  ActorAsked asked = Actor(1, 1);
  m.Step(asked);
  REQUIRE(m.One<SpawnWorker>().gpu_ids == std::vector<uint32_t>{0});
  m.Register(asked.new_worker);
  REQUIRE(m.One<ConstructActor>().spec.actor == asked.start.spec.actor);
  m.Step(ActorConstructed{asked.start.spec.actor, 1, ""});
  REQUIRE(m.One<ReportStarted>().started.worker.worker == asked.new_worker);
  REQUIRE(m.Free("CPU") == 2);   // 1 to be placed, 0 to run
  REQUIRE(m.Free("GPU") == 1);
  // A repeat of the head's message changes nothing and is answered again.
  m.Step(asked);
  REQUIRE(m.Of<SpawnWorker>().empty());
  REQUIRE(m.Of<ReportStarted>().size() == 1);
  REQUIRE(m.machine.HeldActors().size() == 1);

  m.Step(WorkerEnded{asked.new_worker, "was killed by signal 9 (SIGKILL)"});
  ActorEnded ended = m.One<ReportEnded>().ended;
  REQUIRE(ended.reason == "was killed by signal 9 (SIGKILL)");
  REQUIRE_FALSE(ended.intended);
  REQUIRE(m.Free("GPU") == 2);
}

TEST_CASE("LeaseMachine: how an actor ends is told: constructor, stop, exit of its own") {
  Machine m;
  auto start = [&](uint64_t number) {
    ActorAsked asked = Actor(number, 1);
    m.Step(asked);
    m.Register(asked.new_worker);
    return asked;
  };
  ActorAsked failed = start(1);
  m.Step(ActorConstructed{failed.start.spec.actor, 1, "std::runtime_error: no"});
  REQUIRE(m.One<KillWorker>().worker == failed.new_worker);
  m.Step(WorkerEnded{failed.new_worker, "killed"});
  REQUIRE(m.One<ReportEnded>().ended.constructor_failed);
  REQUIRE(m.One<ReportEnded>().ended.reason == "std::runtime_error: no");

  ActorAsked stopped = start(2);
  m.Step(ActorStopAsked{{stopped.start.spec.actor, 1, true, "killed by its owner"}});
  m.Step(WorkerEnded{stopped.new_worker, "killed"});
  REQUIRE(m.One<ReportEnded>().ended.intended);
  REQUIRE(m.One<ReportEnded>().ended.reason == "killed by its owner");

  ActorAsked left = start(3);
  m.Step(ActorExitAnnounced{left.new_worker, "done"});
  m.Step(WorkerEnded{left.new_worker, "exited with code 0"});
  REQUIRE(m.One<ReportEnded>().ended.intended);
}

TEST_CASE("LeaseMachine: an actor that finds no room is placed elsewhere") {
  Machine m({{"CPU", 1}});
  m.Step(Actor(1, 1));
  REQUIRE(m.One<ReportEnded>().ended.retry_elsewhere);
  REQUIRE(m.Of<SpawnWorker>().empty());
}

TEST_CASE("LeaseMachine: a job's end kills its workers but for detached actors") {
  Machine m;
  wire::LeaseGrant lease = m.Granted(m.Ask("a"));
  ActorAsked detached = Actor(1, 1, true);
  m.Step(detached);
  ActorAsked actor = Actor(2, 1);
  m.Step(actor);
  m.Step(JobGone{kJob, "its driver left"});
  std::vector<KillWorker> killed = m.Of<KillWorker>();
  REQUIRE(killed.size() == 2);
  for (const KillWorker& kill : killed) REQUIRE(kill.worker != detached.new_worker);
  m.Step(WorkerEnded{actor.new_worker, "killed"});
  REQUIRE(m.One<ReportEnded>().ended.intended);
  m.Step(WorkerEnded{lease.worker.worker, "killed"});
  REQUIRE(m.machine.pool().size() == 1);
}

TEST_CASE("LeaseMachine: a removed bundle ends what runs in it") {
  Machine m;
  scheduler::BundleKey key{GroupId::FromNumber(1), 0};
  REQUIRE(m.machine.ledger().PrepareBundle(key, Amounts({{"CPU", 1}})).ok());
  LeaseAsked inside = m.Ask("a");
  inside.parsed.strategy = scheduler::BundleAffinity{key.group, 0};
  m.Step(HeadSet{true});
  m.Step(inside);
  REQUIRE(m.Of<ForwardRequest>().size() == 1);   // not committed: the head knows better
  m.Step(LeaseCancelled{"a"});
  REQUIRE(m.machine.ledger().CommitBundle(key).ok());
  LeaseAsked again = m.Ask("b");
  again.parsed.strategy = scheduler::BundleAffinity{key.group, -1};
  wire::LeaseGrant grant = m.Granted(again);
  m.Step(BundleReturned{key});
  REQUIRE(m.One<KillWorker>().worker == grant.worker.worker);
  m.Step(WorkerEnded{grant.worker.worker, "killed"});
  REQUIRE(m.Free("CPU") == 2);
}

TEST_CASE("LeaseMachine: workers that do not register are killed, those idle for long leave") {
  Machine m;
  m.Step(m.Ask("a"));
  WorkerId slow = m.One<SpawnWorker>().worker;
  m.now += absl::Seconds(60);
  m.Step(Tick{});
  REQUIRE(m.One<KillWorker>().worker == slow);
  m.Step(WorkerEnded{slow, "killed"});
  wire::LeaseGrant grant = m.Granted(m.Ask("b"));
  m.Step(LeaseReturned{grant.lease});
  m.now += absl::Seconds(59);
  m.Step(Tick{});
  REQUIRE(m.Of<RetireWorker>().empty());
  m.now += absl::Seconds(1);
  m.Step(Tick{});
  REQUIRE(m.One<RetireWorker>().worker == grant.worker.worker);
  // It is not used again.
  m.Step(m.Ask("c"));
  REQUIRE(m.Of<SpawnWorker>().size() == 1);
}

TEST_CASE("ParseDemand: bad demands are refused with the value") {
  wire::Demand demand;
  demand.resources = {{"CPU", -1}};
  REQUIRE_FALSE(ParseDemand(demand).ok());
  demand.resources = {{"GPU", 1.5}};
  REQUIRE_FALSE(ParseDemand(demand).ok());
  demand.resources = {};
  demand.strategy = wire::BundleAffinity{GroupId::FromNumber(1), -2};
  REQUIRE(std::string(ParseDemand(demand).status().message()).find("-2") != std::string::npos);
}

}  // namespace argosy::node
