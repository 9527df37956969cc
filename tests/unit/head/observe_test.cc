// What the head passes on and answers about what goes on.

#include <thread>

#include "nlohmann/json.hpp"
#include "runtime/base/codec.h"
#include "runtime/base/observation.h"
#include "tests/unit/head/head_fixture.h"

namespace argosy::head {
namespace {

v1::NodeMessage Joined(JobId job, bool quiet = false) {
  v1::NodeMessage message;
  v1::DriverJoined* joined = message.mutable_driver_joined();
  joined->set_job_id(std::string(job.Bytes()));
  joined->mutable_driver()->set_worker_id(std::string(WorkerId::Random().Bytes()));
  joined->set_entrypoint("./program");
  joined->set_pid(7);
  joined->set_quiet(quiet);
  return message;
}

v1::NodeMessage Prints(JobId job, const std::string& text, uint64_t skipped = 0) {
  JobPrints prints{job, {}};
  prints.lines.emplace_back();
  prints.lines.back().text = text;
  prints.lines.back().skipped = skipped;
  v1::NodeMessage message;
  message.mutable_job_prints()->set_job_id(std::string(job.Bytes()));
  message.mutable_job_prints()->set_body(Encode(prints));
  return message;
}

}  // namespace

TEST_CASE("Head: what workers print goes to the node of their job's driver") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  TestNode b(head, "b", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  b.Expect(v1::HeadMessage::kRegistered);
  JobId job = JobId::Random();
  a.Send(Joined(job));
  REQUIRE(WaitFor([&] { return head.Call(head.jobs, &v1::JobService::Stub::ListJobs, v1::ListJobsRequest()).jobs_size() == 1; }));
  b.Send(Prints(job, "hello\n"));
  v1::HeadMessage shown = a.Expect(v1::HeadMessage::kJobPrints);
  absl::StatusOr<JobPrints> prints = Decode<JobPrints>(shown.job_prints().body());
  REQUIRE(prints.ok());
  CHECK(prints->lines.at(0).text == "hello\n");
  CHECK_FALSE(b.Has(v1::HeadMessage::kMutePrints));
}

TEST_CASE("Head: a node is told when nobody looks at what a job prints") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  JobId stranger = JobId::Random();
  a.Send(Prints(stranger, "x\n"));
  CHECK(a.Expect(v1::HeadMessage::kMutePrints).mute_prints().job_id() == std::string(stranger.Bytes()));
  JobId quiet = JobId::Random();
  a.Send(Joined(quiet, true));
  a.Send(Prints(quiet, "x\n"));
  CHECK(a.Expect(v1::HeadMessage::kMutePrints).mute_prints().job_id() == std::string(quiet.Bytes()));
  CHECK_FALSE(a.Has(v1::HeadMessage::kJobPrints));
}

TEST_CASE("Head: prints above a job's bound are dropped, and the next that pass say how much") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  JobId job = JobId::Random();
  a.Send(Joined(job));
  std::string megabyte((1 << 20) - 1, 'x');
  for (int i = 0; i < 24; ++i) a.Send(Prints(job, megabyte + "\n"));
  uint64_t seen = 0;
  uint64_t skipped = 0;
  auto take = [&] {
    absl::StatusOr<JobPrints> prints = Decode<JobPrints>(a.Expect(v1::HeadMessage::kJobPrints).job_prints().body());
    REQUIRE(prints.ok());
    seen += prints->lines.at(0).text.size();
    skipped += prints->lines.at(0).skipped;
    return prints->lines.at(0).text;
  };
  // Something passes again after a while.
  std::string last;
  REQUIRE(WaitFor([&] {
    a.Send(Prints(job, "again\n"));
    while (a.Has(v1::HeadMessage::kJobPrints)) last = take();
    return last == "again\n";
  }));
  CHECK(seen + skipped >= 24u << 20);
  CHECK(skipped > 0);
}

TEST_CASE("Head: a flush of prints asks the other nodes and is answered after them") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  TestNode b(head, "b", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  b.Expect(v1::HeadMessage::kRegistered);
  JobId job = JobId::Random();
  a.Send(Joined(job));
  v1::NodeMessage flush;
  flush.mutable_flush_prints()->set_job_id(std::string(job.Bytes()));
  a.Send(flush);
  v1::HeadMessage asked = b.Expect(v1::HeadMessage::kQuestion);
  absl::StatusOr<NodeQuestion> question = Decode<NodeQuestion>(asked.question().body());
  REQUIRE(question.ok());
  CHECK(std::get<FlushPrintsQuestion>(*question).job == job);
  CHECK_FALSE(a.Has(v1::HeadMessage::kPrintsFlushed));
  b.Send(Prints(job, "the rest\n"));
  v1::NodeMessage answer;
  answer.mutable_answer()->set_number(asked.question().number());
  answer.mutable_answer()->set_body(Encode(EmptyAnswer{}));
  b.Send(answer);
  a.Expect(v1::HeadMessage::kPrintsFlushed);
  CHECK(a.Has(v1::HeadMessage::kJobPrints));
  // A node that goes away does not keep the driver waiting.
  a.Send(flush);
  b.Expect(v1::HeadMessage::kQuestion);
  b.Leave();
  a.Expect(v1::HeadMessage::kPrintsFlushed);
}

namespace {

std::vector<nlohmann::json> Rows(TestHead& head, const std::string& kind, const std::vector<std::pair<std::string, std::string>>& filters = {},
                                 v1::ListStateReply* whole = nullptr) {
  v1::ListStateRequest request;
  request.set_kind(kind);
  request.set_limit(100);
  request.set_detail(true);
  for (const auto& [key, value] : filters) {
    request.add_filters()->set_key(key);
    request.mutable_filters()->rbegin()->set_value(value);
  }
  v1::ListStateReply reply = head.Call(head.cluster, &v1::ClusterService::Stub::ListState, request);
  std::vector<nlohmann::json> rows;
  for (const std::string& row : reply.rows()) rows.push_back(nlohmann::json::parse(row));
  if (whole != nullptr) *whole = reply;
  return rows;
}

v1::NodeMessage TaskReportOf(JobId job, WorkerId worker, const std::vector<TaskEvent>& events) {
  TaskReport report;
  report.events.job = job;
  report.events.node_name = "a";
  report.events.worker = worker;
  report.events.pid = 5;
  report.events.events = events;
  v1::NodeMessage message;
  message.mutable_task_events()->set_body(Encode(report));
  return message;
}

}  // namespace

TEST_CASE("Head: what processes report of tasks is listed, filtered, cut and counted") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  JobId job = JobId::Random();
  WorkerId worker = WorkerId::Random();
  std::vector<TaskEvent> events;
  for (int i = 0; i < 5; ++i) {
    TaskEvent& event = events.emplace_back();
    event.task = TaskId::Random();
    event.name = i == 0 ? "Odd" : "Even";
    event.state = i == 0 ? TaskEvent::kFailed : TaskEvent::kFinished;
    event.error = i == 0 ? "a bad day" : "";
    event.executed = true;
    event.started_us = 1'000'000;
    event.ended_us = 3'500'000;
  }
  a.Send(TaskReportOf(job, worker, events));
  REQUIRE(WaitFor([&] { return Rows(head, "tasks").size() == 5; }));
  std::vector<nlohmann::json> odd = Rows(head, "tasks", {{"state", "failed"}});
  REQUIRE(odd.size() == 1);
  CHECK(odd[0]["name"] == "Odd");
  CHECK(odd[0]["reason"] == "a bad day");
  CHECK(odd[0]["seconds"] == 2.5);
  CHECK(odd[0]["worker_id"] == worker.Hex());
  v1::ListStateRequest request;
  request.set_kind("tasks");
  request.set_limit(2);
  request.set_offset(1);
  v1::ListStateReply page = head.Call(head.cluster, &v1::ClusterService::Stub::ListState, request);
  CHECK(page.rows_size() == 2);
  CHECK(page.matched() == 5);
  std::vector<nlohmann::json> counts = Rows(head, "task-summary", {{"name", "Even"}});
  REQUIRE(counts.size() == 1);
  CHECK(counts[0]["finished"] == 4);
  // Bytes that are no report harm nobody.
  v1::NodeMessage nonsense;
  nonsense.mutable_task_events()->set_body("nonsense");
  nonsense.mutable_task_events()->set_dropped(3);
  a.Send(nonsense);
  v1::ListStateReply whole;
  REQUIRE(WaitFor([&] {
    Rows(head, "tasks", {}, &whole);
    return whole.warnings_size() == 1;
  }));
  CHECK(whole.warnings(0).find("3 reports") != std::string::npos);
}

TEST_CASE("Head: workers are asked of the nodes, and one that does not answer is a warning") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  TestNode b(head, "b", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  b.Expect(v1::HeadMessage::kRegistered);
  std::thread answering([&] {
    v1::HeadMessage asked = a.Expect(v1::HeadMessage::kQuestion);
    WorkersAnswer workers;
    workers.workers.emplace_back();
    workers.workers.back().state = "IDLE";
    workers.workers.back().pid = 9;
    v1::NodeMessage answer;
    answer.mutable_answer()->set_number(asked.question().number());
    answer.mutable_answer()->set_body(Encode(workers));
    a.Send(answer);
    b.Expect(v1::HeadMessage::kQuestion);
    answer.mutable_answer()->clear_body();
    answer.mutable_answer()->set_error_code(12);
    answer.mutable_answer()->set_error("too old to know");
    b.Send(answer);
  });
  v1::ListStateReply whole;
  std::vector<nlohmann::json> workers = Rows(head, "workers", {}, &whole);
  answering.join();
  REQUIRE(workers.size() == 1);
  CHECK(workers[0]["pid"] == 9);
  CHECK(workers[0]["node"] == "a");
  REQUIRE(whole.warnings_size() == 1);
  CHECK(whole.warnings(0) == "node b: too old to know");
}

TEST_CASE("Head: a drained node gets nothing, says goodbye, and is lost at once") {
  TestHead head;
  // Its id begins with the other's name, which is meant all the same.
  TestNode first(head, "first", {{"CPU", 1}}, true, *NodeId::FromBytes(std::string(NodeId::kSize, '\xaa')));
  TestNode a(head, "a", {{"CPU", 1}});
  first.Expect(v1::HeadMessage::kRegistered);
  a.Expect(v1::HeadMessage::kRegistered);
  v1::DrainNodeRequest request;
  request.set_node("a");
  request.set_reason("new disks");
  head.Call(head.cluster, &v1::ClusterService::Stub::DrainNode, request);
  CHECK(a.Expect(v1::HeadMessage::kDrain).drain().reason() == "new disks");
  CHECK(a.Expect(v1::HeadMessage::kContended).contended().contended());
  CHECK(Rows(head, "nodes", {{"name", "a"}}).at(0)["state"] == "DRAINING");
  v1::NodeMessage left;
  left.mutable_left()->set_reason("it was drained (new disks)");
  a.Send(left);
  a.Expect(v1::HeadMessage::kRejected);
  std::vector<nlohmann::json> nodes = Rows(head, "nodes", {{"name", "a"}});
  CHECK(nodes.at(0)["state"] == "LOST");
  CHECK(nodes.at(0)["lost_reason"] == "it was drained (new disks)");
}

TEST_CASE("Head: a node tells a restarted head that it is drained") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}}, false, NodeId::Random(), [](v1::Register& message) {
    message.set_draining(true);
    message.set_drain_reason("old");
  });
  a.Expect(v1::HeadMessage::kRegistered);
  CHECK(Rows(head, "nodes").at(0)["state"] == "DRAINING");
  CHECK_FALSE(a.Has(v1::HeadMessage::kDrain));
}

TEST_CASE("Head: metrics of users and of the cluster are served as text") {
  TestHead head;
  TestNode a(head, "a", {{"CPU", 1}});
  a.Expect(v1::HeadMessage::kRegistered);
  MetricsReported report;
  report.metrics.job = JobId::FromNumber(1);
  report.metrics.worker = WorkerId::Random();
  report.metrics.metrics.emplace_back();
  report.metrics.metrics.back().name = "rows_read";
  report.metrics.metrics.back().value = 5;
  v1::NodeMessage message;
  message.mutable_metrics()->set_body(Encode(report));
  a.Send(message);
  REQUIRE(WaitFor([&] {
    std::string text = head.Call(head.cluster, &v1::ClusterService::Stub::ReadMetrics, v1::Empty()).text();
    return text.find("rows_read{job_id=\"" + JobId::FromNumber(1).Hex() + "\",node=\"a\"} 5\n") != std::string::npos &&
           text.find("argosy_nodes{state=\"ALIVE\"} 1\n") != std::string::npos;
  }));
}

}  // namespace argosy::head
