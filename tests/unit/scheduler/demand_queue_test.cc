#include "scheduler/demand_queue.h"

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

namespace {

DemandQueue::Request Want(uint64_t id, JobId job, std::map<std::string, double> amounts = {{"CPU", 1}}) {
  DemandQueue::Request request;
  request.id = id;
  request.job = job;
  request.demand = Needs(amounts);
  return request;
}

const DemandQueue::TryPlace kAlways = [](const Demand&) { return N(1); };

std::vector<uint64_t> ServedIds(DemandQueue& queue, const DemandQueue::TryPlace& try_place) {
  std::vector<uint64_t> ids;
  queue.ServeAll(try_place, [&](const DemandQueue::Served& served) { ids.push_back(served.id); });
  return ids;
}

}  // namespace

TEST_CASE("DemandQueue: jobs take turns, each in its own order") {
  DemandQueue queue;
  for (uint64_t id : {1, 2, 3}) REQUIRE(queue.Add(Want(id, J(1))).ok());
  for (uint64_t id : {11, 12}) REQUIRE(queue.Add(Want(id, J(2))).ok());
  CHECK(queue.shape_count() == 1);
  CHECK(ServedIds(queue, kAlways) == std::vector<uint64_t>{1, 11, 2, 12, 3});
  CHECK(queue.size() == 0);
  CHECK(queue.shape_count() == 0);
}

TEST_CASE("DemandQueue: priority goes first within a job") {
  DemandQueue queue;
  REQUIRE(queue.Add(Want(1, J(1))).ok());
  DemandQueue::Request urgent = Want(2, J(1), {{"CPU", 2}});
  urgent.priority = 5;
  REQUIRE(queue.Add(urgent).ok());
  CHECK(ServedIds(queue, kAlways) == std::vector<uint64_t>{2, 1});
}

TEST_CASE("DemandQueue: jobs of a higher priority come first, equal ones take turns, and what they cannot use goes to the others") {
  DemandQueue queue;
  auto want = [&](uint64_t id, JobId job, int job_priority, std::map<std::string, double> amounts = {{"CPU", 1}}) {
    DemandQueue::Request request = Want(id, job, amounts);
    request.job_priority = job_priority;
    request.priority = static_cast<int>(id);   // of its tasks: says nothing between jobs
    REQUIRE(queue.Add(request).ok());
  };
  want(902, J(1), -5);
  want(901, J(1), -5);
  for (uint64_t id : {12, 11}) want(id, J(2), 3);
  for (uint64_t id : {22, 21}) want(id, J(3), 3);
  want(1, J(4), 7);
  want(2, J(4), 7, {{"GPU", 1}});
  auto no_gpu = [](const Demand& demand) { return demand.resources.Get(kGpu).IsZero() ? std::optional(N(1)) : std::nullopt; };
  CHECK(ServedIds(queue, no_gpu) == std::vector<uint64_t>{1, 12, 22, 11, 21, 902, 901});
  // What is refused keeps its place, and a job's priority grows with what it asks for.
  want(500, J(1), 0);
  want(501, J(5), 0);
  want(502, J(1), 8);
  CHECK(ServedIds(queue, kAlways) == std::vector<uint64_t>{502, 500, 2, 501});
  CHECK(queue.size() == 0);
}

TEST_CASE("DemandQueue: a shape that cannot be placed is asked once a pass and does not hold up others") {
  DemandQueue queue;
  for (uint64_t id = 1; id <= 50; ++id) REQUIRE(queue.Add(Want(id, J(id % 3), {{"GPU", 1}})).ok());
  REQUIRE(queue.Add(Want(100, J(1), {{"CPU", 1}})).ok());
  int asked_for_gpu = 0;
  auto only_cpu = [&](const Demand& demand) -> std::optional<NodeId> {
    if (demand.resources.Get(kGpu).IsZero()) return N(1);
    ++asked_for_gpu;
    return std::nullopt;
  };
  CHECK(ServedIds(queue, only_cpu) == std::vector<uint64_t>{100});
  CHECK(asked_for_gpu == 1);
  CHECK(queue.size() == 50);
  CHECK_FALSE(queue.NextServable(only_cpu).has_value());
}

TEST_CASE("DemandQueue: a request for many leases is one entry, served one by one in turn") {
  DemandQueue queue;
  DemandQueue::Request many = Want(1, J(1));
  many.count = 1'000'000;
  REQUIRE(queue.Add(many).ok());
  REQUIRE(queue.Add(Want(2, J(2))).ok());
  CHECK(queue.size() == 2);
  CHECK(queue.NextServable(kAlways)->count_left == 999'999);
  CHECK(queue.NextServable(kAlways)->id == 2);
  CHECK(queue.NextServable(kAlways)->id == 1);
  REQUIRE(queue.Summaries().size() == 1);
  CHECK(queue.Summaries()[0].count == 999'998);
  CHECK(queue.SetCount(1, 1));
  CHECK(queue.NextServable(kAlways)->count_left == 0);
  CHECK_FALSE(queue.SetCount(1, 1));
}

TEST_CASE("DemandQueue: requests leave by cancel, job end or deadline") {
  DemandQueue queue;
  DemandQueue::Request soon = Want(1, J(1));
  soon.deadline = At(5);
  soon.demand.locality = {{N(3), 10}};
  REQUIRE(queue.Add(soon).ok());
  for (uint64_t id : {2, 3}) REQUIRE(queue.Add(Want(id, J(2), {{"CPU", static_cast<double>(id)}})).ok());
  REQUIRE(queue.Add(Want(4, J(1))).ok());
  CHECK(queue.NextDeadline() == At(5));
  CHECK(queue.Expire(At(4)).empty());
  auto expired = queue.Expire(At(5));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].id == 1);
  CHECK(expired[0].demand.locality.size() == 1);
  CHECK(queue.NextDeadline() == absl::InfiniteFuture());
  CHECK(queue.CancelJob(J(2)).size() == 2);
  CHECK(queue.Cancel(4)->job == J(1));
  CHECK_FALSE(queue.Cancel(4).has_value());
  CHECK(queue.size() == 0);
  CHECK(queue.SizesByJob().empty());
}

TEST_CASE("DemandQueue: says so when it is full, and refuses an id that waits") {
  DemandQueue queue(DemandQueue::Options{.requests_max = 2});
  REQUIRE(queue.Add(Want(1, J(1))).ok());
  CHECK_FALSE(queue.Add(Want(1, J(1))).ok());
  REQUIRE(queue.Add(Want(2, J(1))).ok());
  absl::Status full = queue.Add(Want(3, J(1)));
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Message(full) == "the queue of waiting demands is full: 2 wait, 2 are possible");
  DemandQueue::Request none = Want(4, J(1));
  none.count = 0;
  CHECK(full.code() != queue.Add(none).code());
}

}  // namespace argosy::scheduler
