// What goes on in the cluster, of the head's core: prints of workers on their way to drivers, reports of tasks, questions to nodes.

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/codec.h"
#include "runtime/base/status.h"
#include "runtime/head/head_core.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

constexpr absl::Duration kFlushWait = absl::Seconds(1);
constexpr absl::Duration kQuestionWait = absl::Seconds(5);
constexpr absl::Duration kStackWait = absl::Seconds(10);
// What passes through the head of one job's prints, bytes: a burst (where PrintsFlow starts), and a second.
constexpr double kPrintsBurst = 8 << 20;
constexpr double kPrintsRate = 4 << 20;

// The one that `text` means, of those whose id begins with it or whose name it is: one that lives before those that have ended, and one of that
// name before one whose id only begins so.
template <class T, class Lives, class HasName>
absl::StatusOr<T> TheOne(std::string_view kind, const std::string& text, std::vector<T> found, Lives lives, HasName has_name) {
  if (found.size() > 1) std::erase_if(found, [&](const T& one) { return !lives(one); });
  if (std::any_of(found.begin(), found.end(), has_name)) std::erase_if(found, [&](const T& one) { return !has_name(one); });
  if (found.empty()) return NotFound("no {} has the id or name {}", kind, text);
  if (found.size() > 1) return InvalidArgument("{} {}s have an id or name that is {}; give more of the id", found.size(), kind, text);
  return found.front();
}

}  // namespace

void HeadCore::AskNodes(const std::set<NodeId>& nodes, const NodeQuestion& question, absl::Duration wait, NodeQuestions::Done done) {
  TickSoon();
  uint64_t number = questions_.Begin(nodes, Now() + wait, std::move(done));
  for (NodeId node : nodes) Send(node, AskNode{number, question});
}

std::set<NodeId> HeadCore::ConnectedNodes() const {
  std::set<NodeId> nodes;
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive && node->connected) nodes.insert(node->description.id);
  }
  return nodes;
}

void HeadCore::On(NodeId node, NodeAnswer message) { questions_.Answer(node, message.number, std::move(message.body)); }

void HeadCore::On(NodeId node, CarriedPrints message) {
  auto driver = drivers_.find(message.job);
  // The driver has left (a detached actor prints), or does not want to see it: the node need not send more.
  if (driver == drivers_.end() || driver->second.quiet) return Send(node, MutePrints{message.job});
  PrintsFlow& flow = prints_flow_[message.job];
  flow.room = std::min(kPrintsBurst, flow.room + absl::ToDoubleSeconds(Now() - flow.at) * kPrintsRate);
  flow.at = Now();
  double size = static_cast<double>(message.body.size());
  if (size > flow.room) {
    flow.dropped += message.body.size();
    return;
  }
  flow.room -= size;
  if (flow.dropped > 0) {
    // The count goes with what is shown next.
    if (absl::StatusOr<JobPrints> prints = Decode<JobPrints>(message.body); prints.ok() && !prints->lines.empty()) {
      prints->lines.front().skipped += std::exchange(flow.dropped, 0);
      message.body = Encode(*prints);
    }
  }
  Send(driver->second.driver.node, std::move(message));
}

void HeadCore::On(NodeId node, FlushPrints message) {
  // The answers of the nodes come after what they had printed, and this one goes after that to the driver's node.
  AskNodes(ConnectedNodes(), FlushPrintsQuestion{message.job}, kFlushWait,
           [this, node, job = message.job](const NodeQuestions::Answers&) { Send(node, PrintsFlushed{job}); });
}

// ---- tasks and metrics ----------------------------------------------------------------------------------------------------------

void HeadCore::On(NodeId node, TaskEventsReport message) {
  tasks_.AddDropped(message.dropped);
  if (message.body.empty()) return;
  absl::StatusOr<TaskReport> report = Decode<TaskReport>(message.body);
  if (!report.ok()) return spdlog::warn("a report of tasks from node {} was ignored: {}", node.Short(), Message(report.status()));
  report->events.node = node;
  tasks_.Add(report->events);
}

void HeadCore::On(NodeId node, CarriedMetrics message) {
  absl::StatusOr<MetricsReported> report = Decode<MetricsReported>(message.body);
  if (!report.ok()) return spdlog::warn("metrics from node {} were ignored: {}", node.Short(), Message(report.status()));
  report->metrics.node = node;
  report->metrics.node_name = nodes_.Find(node)->description.name;
  // A report that a dying worker left behind must not bring it back to life.
  if (!dead_workers_.contains(report->metrics.worker)) metrics_.Report(report->metrics);
}

std::string HeadCore::MetricsText() const {
  std::string text;
  auto family = [&](const char* name, const char* kind, const char* help) { text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, kind); };
  auto line = [&](const char* name, const std::map<std::string, std::string>& labels, double value) {
    text += fmt::format("{}{} {}\n", name, PrometheusLabels(labels), PrometheusNumber(value));
  };
  std::map<std::string, double> states{{"ALIVE", 0}, {"DRAINING", 0}, {"LOST", 0}};
  for (const NodeTable::Node* node : nodes_.All()) ++states[!node->alive ? "LOST" : IsDraining(node->description.id) ? "DRAINING" : "ALIVE"];
  family("argosy_nodes", "gauge", "Nodes by state");
  for (const auto& [state, count] : states) line("argosy_nodes", {{"state", state}}, count);
  family("argosy_resource_total", "gauge", "What a node offers");
  for (const NodeTable::Node* node : nodes_.All()) {
    if (!node->alive) continue;
    for (const auto& [name, amount] : node->description.total) line("argosy_resource_total", {{"node", node->description.name}, {"resource", name}}, amount);
  }
  family("argosy_resource_available", "gauge", "What of it is free, outside placement groups");
  for (const NodeTable::Node* node : nodes_.All()) {
    const scheduler::NodeView* view = view_.Find(node->description.id);
    if (!node->alive || view == nullptr) continue;
    for (const auto& [name, amount] : node->description.total) {
      line("argosy_resource_available", {{"node", node->description.name}, {"resource", name}}, view->available.Get(name).ToDouble());
    }
  }
  family("argosy_object_store_used_bytes", "gauge", "Bytes of objects in a node's store");
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive) line("argosy_object_store_used_bytes", {{"node", node->description.name}}, static_cast<double>(node->object_store_used));
  }
  family("argosy_object_store_spilled_bytes", "gauge", "Bytes of objects that a node has on disk");
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive) line("argosy_object_store_spilled_bytes", {{"node", node->description.name}}, static_cast<double>(node->object_store_spilled));
  }
  family("argosy_workers", "gauge", "Worker processes of a node");
  for (const NodeTable::Node* node : nodes_.All()) {
    if (node->alive) line("argosy_workers", {{"node", node->description.name}}, node->workers);
  }
  std::map<std::string, double> actors;
  for (ActorState state : {ActorState::kPending, ActorState::kAlive, ActorState::kRestarting}) actors[ToString(state)] = 0;
  for (const ActorRecord* actor : actors_.All(false)) ++actors[ToString(actor->state)];
  family("argosy_actors", "gauge", "Living actors by state");
  for (const auto& [state, count] : actors) line("argosy_actors", {{"state", state}}, count);
  uint64_t tasks[4] = {};
  for (const auto& [name, counts] : tasks_.counts()) {
    for (size_t i = 0; i < 4; ++i) tasks[i] += counts.by_state[i];
  }
  family("argosy_tasks", "gauge", "Tasks and calls that have not ended, as far as they were reported");
  line("argosy_tasks", {{"state", "PENDING"}}, static_cast<double>(tasks[TaskEvent::kPending]));
  line("argosy_tasks", {{"state", "RUNNING"}}, static_cast<double>(tasks[TaskEvent::kRunning]));
  family("argosy_tasks_ended_total", "counter", "Tasks and calls that have ended, as far as they were reported");
  line("argosy_tasks_ended_total", {{"state", "FINISHED"}}, static_cast<double>(tasks[TaskEvent::kFinished]));
  line("argosy_tasks_ended_total", {{"state", "FAILED"}}, static_cast<double>(tasks[TaskEvent::kFailed]));
  family("argosy_task_reports_dropped_total", "counter", "Reports of tasks that were too many to send");
  line("argosy_task_reports_dropped_total", {}, static_cast<double>(tasks_.dropped()));
  family("argosy_drivers", "gauge", "Programs that are connected as drivers");
  line("argosy_drivers", {}, static_cast<double>(drivers_.size()));
  family("argosy_demands_waiting", "gauge", "Leases, actors and jobs that wait for a node");
  line("argosy_demands_waiting", {}, static_cast<double>(placement_.size()));
  family("argosy_user_series_dropped_total", "counter", "Series of users' metrics above the bounds");
  line("argosy_user_series_dropped_total", {}, static_cast<double>(metrics_.dropped()));
  return text + metrics_.Text();
}

// ---- draining -----------------------------------------------------------------------------------------------------------------

absl::Status HeadCore::Drain(NodeId id, const std::string& reason, absl::Duration wait, bool undo) {
  const NodeTable::Node* node = nodes_.Find(id);
  if (node == nullptr || !node->alive) return FailedPrecondition("node {} is not alive", node == nullptr ? id.Short() : node->description.name);
  if (node->description.is_head_node) {
    return FailedPrecondition("node {} stands beside the head, and jobs run there: it ends with the cluster (argosy stop)", node->description.name);
  }
  if (undo && !draining_.contains(id)) return FailedPrecondition("node {} is not being drained", node->description.name);
  if (undo) draining_.erase(id);
  else draining_[id] = reason.empty() ? "asked for" : reason;
  spdlog::info("node {} {}: {}", node->description.name, undo ? "is not drained any more" : "is being drained", undo ? "taken back" : draining_[id]);
  (void)view_.SetDraining(id, !undo);
  Send(id, DrainNode{undo ? "" : draining_[id], absl::ToDoubleSeconds(wait), undo});
  UpdateContention();
  SchedulePass();
  return absl::OkStatus();
}

void HeadCore::On(NodeId node, NodeLeft message) {
  if (nodes_.Leave(node, message.reason, NowMillis())) LoseNode(node);
}

// ---- logs and stacks ----------------------------------------------------------------------------------------------------------

absl::StatusOr<NodeId> HeadCore::FindNode(const std::string& name) const {
  std::vector<NodeId> found;
  for (const NodeTable::Node* node : nodes_.All()) {
    if (!name.empty() && (node->description.name == name || node->description.id.Hex().starts_with(name))) found.push_back(node->description.id);
  }
  return TheOne("node", name, std::move(found), [this](NodeId id) { return nodes_.Find(id)->alive; },
                [&](NodeId id) { return nodes_.Find(id)->description.name == name; });
}

absl::StatusOr<HeadCore::LogPlace> HeadCore::FindLog(const LogRequest& request) const {
  LogPlace place;
  if (request.kind == "node") {
    ARGOSY_ASSIGN_OR_RETURN(NodeId node, FindNode(request.id));
    place.nodes = {node};
    place.what = "node " + nodes_.Find(node)->description.name;
    return place;
  }
  if (request.kind == "worker") {
    if (request.id.size() < 4) return InvalidArgument("worker {}: give at least four digits of its id", request.id);
    place.nodes = ConnectedNodes();
    place.worker = request.id;
    place.what = "worker " + request.id;
    return place;
  }
  if (request.kind == "actor") {
    std::vector<const ActorRecord*> found;
    for (const ActorRecord* actor : actors_.All(true)) {
      if (!request.id.empty() && (actor->id.Hex().starts_with(request.id) || actor->name == request.id)) found.push_back(actor);
    }
    ARGOSY_ASSIGN_OR_RETURN(const ActorRecord* one, TheOne("actor", request.id, std::move(found),
                                                           [](const ActorRecord* actor) { return actor->state != ActorState::kDead; },
                                                           [&](const ActorRecord* actor) { return actor->name == request.id; }));
    const ActorRecord& actor = *one;
    place.what = fmt::format("actor {} ({})", actor.id.Short(), actor.class_name);
    NodeId node = actor.node;
    WorkerId worker = actor.worker.worker;
    if (worker.IsNil()) {
      // It has ended: who ran its constructor last?
      tasks_.ForEach([&](const TaskTable::Task& task) {
        if (!worker.IsNil() || task.event.actor != actor.id || !task.event.executed) return;
        worker = task.worker;
        node = task.node;
      });
    }
    if (worker.IsNil()) {
      std::string why = actor.state == ActorState::kDead ? "it is dead and never ran, or long ago" : ActorPendingReason(actor);
      return FailedPrecondition("{} has no log: {}", place.what, why);
    }
    place.nodes = {node};
    place.worker = worker.Hex();
    return place;
  }
  if (request.kind == "task") {
    const TaskTable::Task* found = nullptr;
    size_t count = 0;
    if (request.id.size() >= 4) {
      tasks_.ForEach([&](const TaskTable::Task& task) {
        if (!task.event.task.Hex().starts_with(request.id)) return;
        found = &task;
        ++count;
      });
    }
    if (count == 0) return NotFound("no task has the id {} (at least four digits; of old tasks nothing is kept)", request.id);
    if (count > 1) return InvalidArgument("{} tasks have an id that begins with {}; give more of it", count, request.id);
    if (!found->event.executed) return FailedPrecondition("task {} has no log: it has not run yet", found->event.task.Short());
    place.what = fmt::format("task {} ({})", found->event.task.Short(), found->event.name);
    place.nodes = {found->node};
    place.worker = found->worker.Hex();
    place.begin = request.error_stream ? found->event.error_begin : found->event.out_begin;
    if (found->event.state == TaskEvent::kFinished || found->event.state == TaskEvent::kFailed) {
      uint64_t end = request.error_stream ? found->event.error_end : found->event.out_end;
      if (end >= place.begin && end > 0) place.end = end;
    }
    return place;
  }
  return InvalidArgument("there are no logs of kind {}; there are worker, actor, task, node", request.kind);
}

void HeadCore::ReadWorkerLog(const LogRequest& request, Done<LogChunk> done) {
  absl::StatusOr<LogPlace> place = FindLog(request);
  if (!place.ok()) return done(place.status());
  std::set<NodeId> connected = ConnectedNodes();
  std::set<NodeId> nodes;
  for (NodeId node : place->nodes) {
    if (connected.contains(node)) nodes.insert(node);
  }
  if (nodes.empty()) return done(Unavailable("{}: its node is not connected, and its logs are there", place->what));
  constexpr uint64_t kChunkMax = 1 << 20;
  LogQuestion question{place->worker, request.error_stream, std::max(request.offset, place->begin), std::clamp<uint64_t>(request.size_max, 1, kChunkMax),
                       request.from_end};
  if (request.from_end && place->end) {
    // The end of a part is not the end of the file.
    question.from_end = false;
    question.offset = std::max(place->begin, *place->end - std::min(*place->end, question.size_max));
  }
  AskNodes(nodes, question, kQuestionWait, [place = *place, done = std::move(done)](NodeQuestions::Answers answers) {
    absl::Status error;
    std::vector<std::pair<LogAnswer, LogChunk>> found;
    for (auto& [node, body] : answers) {
      absl::StatusOr<LogAnswer> answer = body.ok() ? Decode<LogAnswer>(*body) : absl::StatusOr<LogAnswer>(body.status());
      if (!answer.ok()) {
        error = answer.status();
        continue;
      }
      if (!answer->found) continue;
      LogChunk chunk{std::move(answer->data), answer->offset, place.end ? std::min(*place.end, answer->end) : answer->end, place.what,
                     answer->may_grow && !place.end};
      if (chunk.offset < place.begin) {
        chunk.data.erase(0, std::min<uint64_t>(chunk.data.size(), place.begin - chunk.offset));
        chunk.offset = place.begin;
      }
      if (chunk.offset + chunk.data.size() > chunk.end) chunk.data.resize(chunk.end - std::min(chunk.end, chunk.offset));
      found.emplace_back(std::move(*answer), std::move(chunk));
    }
    if (found.size() == 1) return done(std::move(found.front().second));
    if (found.size() > 1) return done(InvalidArgument("workers of {} nodes have an id that begins with {}; give more of it", found.size(), place.worker));
    if (!error.ok()) return done(error);
    done(NotFound("{} has no log on any connected node", place.what));
  });
}

void HeadCore::DumpStacks(const std::string& worker, Done<std::string> done) {
  if (worker.size() < 4) return done(InvalidArgument("worker {}: give at least four digits of its id", worker));
  AskNodes(ConnectedNodes(), StackQuestion{worker}, kStackWait, [worker, done = std::move(done)](NodeQuestions::Answers answers) {
    absl::Status error;
    std::vector<std::string> found;
    for (auto& [node, body] : answers) {
      absl::StatusOr<StackAnswer> answer = body.ok() ? Decode<StackAnswer>(*body) : absl::StatusOr<StackAnswer>(body.status());
      if (!answer.ok()) error = answer.status();
      else if (answer->found) found.push_back(std::move(answer->text));
    }
    if (found.size() == 1) return done(std::move(found.front()));
    if (found.size() > 1) return done(InvalidArgument("{} workers have an id that begins with {}; give more of it", found.size(), worker));
    if (!error.ok()) return done(error);
    done(NotFound("no living worker or driver has an id that begins with {}; argosy list workers lists them", worker));
  });
}

}  // namespace argosy::head
