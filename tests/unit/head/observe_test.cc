// What the head passes on and answers about what goes on.

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

}  // namespace argosy::head
