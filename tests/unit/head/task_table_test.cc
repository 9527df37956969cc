#include "runtime/head/task_table.h"

#include <algorithm>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/head/marks.h"

namespace argosy::head {
namespace {

const WorkerId kOwner = WorkerId::FromNumber(2);
const WorkerId kWorker = WorkerId::FromNumber(3);

TaskEvents From(WorkerId sender, std::vector<TaskEvent> events) {
  TaskEvents report{kJob, kNode, "n", sender, 77, std::move(events)};
  return report;
}
TaskEvent Event(uint64_t number, TaskEvent::State state, bool executed, uint32_t attempt = 0) {
  TaskEvent event;
  event.task = TaskId::FromNumber(number);
  event.state = state;
  event.name = "Square";
  event.executed = executed;
  event.attempt = attempt;
  if (executed) event.started_us = 1000;
  if (state >= TaskEvent::kFinished) event.ended_us = 2000;
  if (!executed) event.submitted_us = 500;
  return event;
}
uint64_t Count(const TaskTable& table, TaskEvent::State state) {
  uint64_t sum = 0;
  for (const auto& [name, counts] : table.counts()) sum += counts.by_state[state];
  return sum;
}

}  // namespace

TEST_CASE("TaskTable: a task is put together from its owner's and its worker's reports, in any order") {
  TaskTable table;
  bool owner_first = GENERATE(true, false);
  if (owner_first) table.Add(From(kOwner, {Event(1, TaskEvent::kPending, false)}));
  table.Add(From(kWorker, {Event(1, TaskEvent::kRunning, true)}));
  if (!owner_first) table.Add(From(kOwner, {Event(1, TaskEvent::kPending, false)}));
  const TaskTable::Task* task = table.Find(TaskId::FromNumber(1));
  REQUIRE(task != nullptr);
  CHECK(task->event.state == TaskEvent::kRunning);
  CHECK(task->event.submitted_us == 500);
  CHECK(task->worker == kWorker);
  table.Add(From(kWorker, {Event(1, TaskEvent::kFinished, true)}));
  CHECK(task->event.state == TaskEvent::kFinished);
  CHECK(task->event.started_us == 1000);
  CHECK(Count(table, TaskEvent::kFinished) == 1);
  CHECK(Count(table, TaskEvent::kPending) == 0);
  CHECK(Count(table, TaskEvent::kRunning) == 0);
}

TEST_CASE("TaskTable: what a dead worker ran has failed, until a later attempt runs") {
  TaskTable table;
  table.Add(From(kWorker, {Event(1, TaskEvent::kRunning, true)}));
  table.WorkerDied(kWorker, "killed", 3000);
  const TaskTable::Task* task = table.Find(TaskId::FromNumber(1));
  CHECK(task->event.state == TaskEvent::kFailed);
  CHECK(task->event.error == "its worker died: killed");
  table.Add(From(WorkerId::FromNumber(9), {Event(1, TaskEvent::kRunning, true, 1)}));
  CHECK(task->event.state == TaskEvent::kRunning);
  CHECK(task->worker == WorkerId::FromNumber(9));
  table.Add(From(kWorker, {Event(1, TaskEvent::kFinished, true, 0)}));   // an old attempt's word is old
  CHECK(task->event.state == TaskEvent::kRunning);
  CHECK(Count(table, TaskEvent::kFailed) == 0);
}

TEST_CASE("TaskTable: a job's end ends what had not ended; a worker's last word counts all the same") {
  TaskTable table;
  table.Add(From(kOwner, {Event(1, TaskEvent::kPending, false), Event(2, TaskEvent::kPending, false)}));
  table.JobEnded(kJob, "the driver left", 3000);
  CHECK(Count(table, TaskEvent::kFailed) == 2);
  table.Add(From(kWorker, {Event(2, TaskEvent::kFinished, true)}));
  CHECK(table.Find(TaskId::FromNumber(2))->event.state == TaskEvent::kFinished);
  CHECK(table.Find(TaskId::FromNumber(2))->event.error.empty());
  CHECK(Count(table, TaskEvent::kFailed) == 1);
}

TEST_CASE("TaskTable: the newest stay, failures longer, and counts are of all") {
  TaskTable table({.tasks_max = 10, .failures_max = 3});
  for (uint64_t i = 1; i <= 100; ++i) {
    table.Add(From(kWorker, {Event(i, i % 10 == 0 ? TaskEvent::kFailed : TaskEvent::kFinished, true)}));
  }
  CHECK(table.size() == 13);
  CHECK(table.forgotten() == 87);
  for (uint64_t i : {70, 80, 90}) CHECK(table.Find(TaskId::FromNumber(i)) != nullptr);
  for (uint64_t i = 91; i <= 100; ++i) CHECK(table.Find(TaskId::FromNumber(i)) != nullptr);
  CHECK(table.Find(TaskId::FromNumber(60)) == nullptr);
  CHECK(Count(table, TaskEvent::kFinished) == 90);
  CHECK(Count(table, TaskEvent::kFailed) == 10);
  std::vector<uint64_t> orders;
  table.ForEach([&](const TaskTable::Task& task) { orders.push_back(task.order); });
  CHECK(std::is_sorted(orders.rbegin(), orders.rend()));
}

TEST_CASE("TaskTable: pending tasks that no longer fit leave the counts") {
  TaskTable table({.tasks_max = 5});
  for (uint64_t i = 1; i <= 50; ++i) table.Add(From(kOwner, {Event(i, TaskEvent::kPending, false)}));
  CHECK(table.size() == 5);
  CHECK(Count(table, TaskEvent::kPending) == 5);
}

TEST_CASE("TaskTable: what never came is counted, and nonsense is ignored") {
  TaskTable table;
  TaskEvents report = From(kWorker, {});
  report.dropped = 7;
  report.events.push_back(Event(1, static_cast<TaskEvent::State>(9), true));
  table.Add(report);
  table.AddDropped(3);
  CHECK(table.dropped() == 10);
  CHECK(table.size() == 0);
}

}  // namespace argosy::head
