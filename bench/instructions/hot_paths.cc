// The paths that every task, call, object and placement takes through this process, each run a fixed number of times on fixed input, for counting
// their instructions under callgrind (count.py): a number that does not depend on the machine's load.
//
//   hot_paths               runs all; prints "PATH OPERATIONS" for each, in the order in which MeasuredPath is entered
//   hot_paths --compiler    prints what built it, e.g. gcc-12

#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/scheduler/world.h"
#include "runtime/base/codec.h"
#include "runtime/base/status.h"
#include "runtime/store/object_table.h"
#include "runtime/wire/messages.h"
#include "runtime/worker/actor_call_machine.h"
#include "runtime/worker/reference_machine.h"
#include "runtime/worker/submit_machine.h"
#include "scheduler/group_machine.h"
#include "scheduler/place.h"

// What callgrind counts: from its first instruction to its last.
extern "C" __attribute__((noinline)) void MeasuredPath(const std::function<void(int)>& path, int operations) { path(operations); }

namespace {

using namespace argosy;

constexpr int kOperations = 1'000;

wire::WorkerAddress Address(uint64_t number) {
  wire::WorkerAddress address;
  address.worker = WorkerId::FromNumber(number);
  address.node = NodeId::FromNumber(number);
  address.unix_path = "/run/argosy/session/worker.sock";
  address.tcp = "127.0.0.1:40000";
  return address;
}

// Once to warm up, so that containers have grown, and once for the count.
void Run(const char* name, const std::function<void(int)>& path, int operations = kOperations) {
  path(operations);
  MeasuredPath(path, operations);
  std::printf("%s %d\n", name, operations);
}

// A task from its submission to its answer, with a lease whose pipeline is full.
void TaskSubmission() {
  worker::SubmitMachine machine;
  const worker::SubmitMachine::ShapeId shape = machine.Shape("CPU: 1");
  const LeaseId lease = LeaseId::FromNumber(1);
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  worker::SubmitMachine::Effects effects;
  std::deque<TaskId> pushed;
  uint64_t next = 1;
  auto take_pushes = [&] {
    for (const auto& push : effects.pushes) pushed.push_back(push.task);
    for (const auto& request : std::exchange(effects.requests, {})) {
      if (machine.leases() == 0) machine.Granted(request.request, lease, now, effects);
    }
    for (const auto& push : effects.pushes) {
      if (pushed.empty()) pushed.push_back(push.task);
    }
    effects = {};
  };
  for (int i = 0; i < 100; ++i) machine.Submit(TaskId::FromNumber(next++), {.shape = shape, .retries_max = 3}, now, effects);
  take_pushes();
  Run("task submitted, pushed and finished", [&](int operations) {
    for (int i = 0; i < operations; ++i) {
      now += absl::Microseconds(10);
      machine.Submit(TaskId::FromNumber(next++), {.shape = shape, .retries_max = 3}, now, effects);
      const TaskId done = pushed.front();
      pushed.pop_front();
      machine.Finished(lease, done, now, effects);
      for (const auto& push : effects.pushes) pushed.push_back(push.task);
      effects.pushes.clear();
      effects.requests.clear();
      effects.cancelled_requests.clear();
    }
  });
}

void ActorCalls() {
  worker::ActorCallMachine machine("counter");
  worker::ActorCallMachine::Effects effects;
  wire::ActorInfo alive;
  alive.state = wire::ActorInfo::kAlive;
  alive.incarnation = 1;
  alive.worker = Address(1);
  uint64_t next = 1, oldest = 1;
  for (int i = 0; i < 100; ++i, ++next) {
    machine.Submit(TaskId::FromNumber(next), effects);
    machine.ArgumentsReady(TaskId::FromNumber(next), effects);
  }
  machine.Resolved(alive, effects);
  Run("actor call submitted, sent and answered", [&](int operations) {
    for (int i = 0; i < operations; ++i, ++next, ++oldest) {
      machine.Submit(TaskId::FromNumber(next), effects);
      machine.ArgumentsReady(TaskId::FromNumber(next), effects);
      machine.Answered(TaskId::FromNumber(oldest));
      effects.sends.clear();
    }
  });
}

void ObjectReferences() {
  const wire::WorkerAddress self = Address(1);
  worker::ReferenceMachine machine(self.worker);
  worker::ReferenceMachine::Effects effects;
  uint64_t next = 1;
  Run("object owned, pinned by a task and dropped", [&](int operations) {
    for (int i = 0; i < operations; ++i, ++next) {
      const ObjectId object = ObjectId::FromNumber(next);
      machine.AddOwned(object, self);
      machine.AddLocal(object, self);
      machine.Pin({object, self});
      machine.Unpin(object, effects);
      machine.DropLocal(object, effects);
      effects.freed.clear();
    }
  });
}

void Codecs() {
  wire::PushTask push;
  push.spec.task = TaskId::FromNumber(1);
  push.spec.job = JobId::FromNumber(2);
  push.spec.function = "example::Square(int)";
  push.spec.arguments = {wire::InlineValue{std::string("\x2a", 1), {}}, wire::Reference{ObjectId::FromNumber(3), Address(4)}};
  push.spec.owner = Address(5);
  push.spec.lease = LeaseId::FromNumber(6);
  push.spec.name = "Square";
  push.spec.code_id = std::string(64, 'a');
  const std::string body = Encode(push);
  size_t bytes = 0;
  Run("PushTask encoded", [&](int operations) {
    for (int i = 0; i < operations; ++i) bytes += Encode(push).size();
  });
  Run("PushTask decoded", [&](int operations) {
    for (int i = 0; i < operations; ++i) bytes += Decode<wire::PushTask>(body)->spec.arguments.size();
  });
  ARGOSY_CHECK(bytes > 0, "nothing was encoded");
}

void Objects() {
  store::ObjectTable table({.capacity = 1u << 30});
  const absl::Time now = absl::UnixEpoch();
  uint64_t next = 1;
  Run("object created, sealed, read and deleted", [&](int operations) {
    for (int i = 0; i < operations; ++i, ++next) {
      const ObjectId object = ObjectId::FromNumber(next);
      table.Create({.object = object, .size = 200'000, .client = 1, .owner = WorkerId::FromNumber(1), .job = JobId::FromNumber(1)}, now);
      ARGOSY_CHECK(table.TakeAnswers(now).at(0).place.ok(), "no room");
      (void)table.Seal(object, 1);
      (void)table.Pin(object, 2);
      (void)table.Release(object, 2);
      (void)table.Delete(object);
      table.TakeFreed();
    }
  });
}

void Scheduling() {
  scheduler::ClusterView view = bench::MakeCluster(1'000, 1);
  const std::vector<scheduler::Demand> demands = bench::MakeDemands(100, 2);
  Prng prng(3);
  std::deque<std::pair<NodeId, const scheduler::Demand*>> running;
  size_t next = 0;
  auto place = [&](int operations) {
    for (int i = 0; i < operations; ++i) {
      const scheduler::Demand& demand = demands[next++ % demands.size()];
      const std::optional<NodeId> node = scheduler::Place(view, demand, prng);
      if (node) {
        (void)view.Take(*node, demand.resources);
        running.emplace_back(*node, &demand);
      }
      if (running.size() < 2'000) continue;
      (void)view.Give(running.front().first, running.front().second->resources);
      running.pop_front();
    }
  };
  place(3'000);
  Run("demand placed and given back, 1,000 nodes, 100 shapes", place);

  scheduler::GroupMachine machine;
  uint64_t group = 1;
  Run("placement group of 4 bundles made and removed, 1,000 nodes", [&](int operations) {
    for (int i = 0; i < operations; ++i, ++group) {
      const GroupId id = GroupId::FromNumber(group);
      std::deque<scheduler::GroupEvent> events{scheduler::CreateGroup{id, bench::MakeGroup(1, scheduler::GroupStrategy::kPack, 4)}};
      for (; !events.empty(); events.pop_front()) {
        for (const scheduler::GroupEffect& effect : machine.Step(events.front(), view, prng, absl::UnixEpoch())) {
          if (const auto* prepare = std::get_if<scheduler::SendPrepare>(&effect)) {
            events.push_back(scheduler::NodePrepared{prepare->node, prepare->group, prepare->attempt});
          } else if (const auto* commit = std::get_if<scheduler::SendCommit>(&effect)) {
            events.push_back(scheduler::NodeCommitted{commit->node, commit->group, commit->attempt});
          } else if (std::holds_alternative<scheduler::GroupReady>(effect)) {
            events.push_back(scheduler::RemoveGroup{id});
          }
        }
      }
    }
  }, 10);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--compiler") == 0) {
#if defined(__clang__)
    std::printf("clang-%d\n", __clang_major__);
#else
    std::printf("gcc-%d\n", __GNUC__);
#endif
    return 0;
  }
  if (argc != 1) {
    std::fprintf(stderr, "usage: hot_paths [--compiler]\n");
    return 2;
  }
  TaskSubmission();
  ActorCalls();
  ObjectReferences();
  Codecs();
  Objects();
  Scheduling();
  return 0;
}
