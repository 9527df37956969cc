#include "runtime/head/state_list.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/base/codec.h"
#include "runtime/base/status.h"

namespace argosy::head {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kNodesWait = absl::Seconds(3);
constexpr size_t kRowsMax = 10'000;
constexpr uint32_t kObjectsOfNodeMax = 10'000;

Json TimeOf(int64_t unix_us) {
  if (unix_us <= 0) return nullptr;
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMicros(unix_us), absl::UTCTimeZone());
}
template <class Tag>
Json IdOf(Id<Tag> id) {
  if (id.IsNil()) return nullptr;
  return id.Hex();
}
Json TextOf(const std::string& text) {
  if (text.empty()) return nullptr;
  return text;
}
template <class Map>
Json MapOf(const Map& map) {
  Json json = Json::object();
  for (const auto& [key, value] : map) json[key] = value;
  return json;
}

bool SameText(const std::string& a, const std::string& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}
std::string Plain(const Json& json) {
  if (json.is_null()) return "";
  if (json.is_number_float()) return fmt::format("{}", json.get<double>());   // 2, not 2.0
  return json.is_string() ? json.get<std::string>() : json.dump();
}

enum class Show { kId, kName, kAlways, kDetail };

template <class T>
struct Column {
  const char* name;
  Show show;
  std::function<Json(const T&)> get;
};

// Lets through what a query asks for, and counts it.
template <class T>
class Rows {
 public:
  Rows(StateQuery query, std::vector<Column<T>> columns) : query_(std::move(query)), columns_(std::move(columns)) {}

  absl::Status Check() {
    for (const StateFilter& filter : query_.filters) {
      std::string name = filter.key.substr(0, filter.key.find('.'));
      auto at = std::find_if(columns_.begin(), columns_.end(), [&](const Column<T>& column) { return name == column.name; });
      if (at != columns_.end()) continue;
      std::string known;
      for (const Column<T>& column : columns_) known += (known.empty() ? "" : ", ") + std::string(column.name);
      return InvalidArgument("{} have no field {}; they have {}", query_.kind, name, known);
    }
    return absl::OkStatus();
  }

  void Offer(const T& item) {
    if (!query_.id.empty()) {
      bool named = std::any_of(columns_.begin(), columns_.end(), [&](const Column<T>& column) {
        if (column.show == Show::kId) return Plain(column.get(item)).starts_with(query_.id);
        return column.show == Show::kName && Plain(column.get(item)) == query_.id;
      });
      if (!named) return;
    }
    for (const StateFilter& filter : query_.filters) {
      if (Matches(item, filter) == filter.not_equal) return;
    }
    uint64_t number = list.matched++;
    if (number < query_.offset || list.rows.size() >= std::min(query_.limit, kRowsMax)) return;
    Json row = Json::object();
    for (const Column<T>& column : columns_) {
      if (column.show == Show::kDetail && !query_.detail) continue;
      row[column.name] = column.get(item);
    }
    list.rows.push_back(row.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  StateList list;

 private:
  bool Matches(const T& item, const StateFilter& filter) {
    size_t dot = filter.key.find('.');
    std::string name = filter.key.substr(0, dot);
    for (const Column<T>& column : columns_) {
      if (name != column.name) continue;
      Json value = column.get(item);
      if (dot == std::string::npos) return SameText(Plain(value), filter.value);
      std::string inner = filter.key.substr(dot + 1);
      return value.is_object() && value.contains(inner) && SameText(Plain(value[inner]), filter.value);
    }
    return false;
  }

  StateQuery query_;
  std::vector<Column<T>> columns_;
};

using Done = std::function<void(absl::StatusOr<StateList>)>;

std::string NodeName(HeadCore& core, NodeId node) {
  const NodeTable::Node* known = core.nodes().Find(node);
  return known == nullptr ? "" : known->description.name;
}

// ---- what the head knows itself -----------------------------------------------------------------------------------------------

void ListNodes(HeadCore& core, const StateQuery& query, const Done& done) {
  using Node = NodeTable::Node;
  Rows<Node> rows(query, {
      {"node_id", Show::kId, [](const Node& n) { return IdOf(n.description.id); }},
      {"name", Show::kName, [](const Node& n) { return Json(n.description.name); }},
      {"state", Show::kAlways, [&core](const Node& n) { return Json(!n.alive ? "LOST" : core.IsDraining(n.description.id) ? "DRAINING" : "ALIVE"); }},
      {"ip", Show::kAlways, [](const Node& n) { return Json(n.description.ip); }},
      {"is_head_node", Show::kAlways, [](const Node& n) { return Json(n.description.is_head_node); }},
      {"workers", Show::kAlways, [](const Node& n) { return Json(n.workers); }},
      {"resources_total", Show::kAlways, [](const Node& n) { return MapOf(n.description.total); }},
      {"resources_available", Show::kAlways, [&core](const Node& n) {
         const scheduler::NodeView* view = core.view().Find(n.description.id);
         return view == nullptr || !n.alive ? Json::object() : MapOf(view->available.ToMap());
       }},
      {"labels", Show::kDetail, [](const Node& n) { return MapOf(n.description.labels); }},
      {"hostname", Show::kDetail, [](const Node& n) { return TextOf(n.description.hostname); }},
      {"pid", Show::kDetail, [](const Node& n) { return Json(n.description.pid); }},
      {"wire_address", Show::kDetail, [](const Node& n) { return TextOf(n.description.wire_address); }},
      {"agent_address", Show::kDetail, [](const Node& n) { return TextOf(n.description.agent_address); }},
      {"object_store_used", Show::kDetail, [](const Node& n) { return Json(n.object_store_used); }},
      {"object_store_spilled", Show::kDetail, [](const Node& n) { return Json(n.object_store_spilled); }},
      {"started", Show::kDetail, [](const Node& n) { return TimeOf(n.description.started_unix_ms * 1000); }},
      {"lost", Show::kDetail, [](const Node& n) { return TimeOf(n.lost_unix_ms * 1000); }},
      {"lost_reason", Show::kDetail, [](const Node& n) { return TextOf(n.lost_reason); }},
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  for (const Node* node : core.nodes().All()) rows.Offer(*node);
  done(std::move(rows.list));
}

void ListActors(HeadCore& core, const StateQuery& query, const Done& done) {
  Rows<ActorRecord> rows(query, {
      {"actor_id", Show::kId, [](const ActorRecord& a) { return IdOf(a.id); }},
      {"class_name", Show::kAlways, [](const ActorRecord& a) { return Json(a.class_name); }},
      {"state", Show::kAlways, [](const ActorRecord& a) { return Json(ToString(a.state)); }},
      {"name", Show::kName, [](const ActorRecord& a) { return TextOf(a.name); }},
      {"namespace", Show::kDetail, [](const ActorRecord& a) { return TextOf(a.name_space); }},
      {"job_id", Show::kAlways, [](const ActorRecord& a) { return IdOf(a.job); }},
      {"node", Show::kAlways, [&core](const ActorRecord& a) { return TextOf(NodeName(core, a.node)); }},
      {"node_id", Show::kDetail, [](const ActorRecord& a) { return IdOf(a.node); }},
      {"worker_id", Show::kDetail, [](const ActorRecord& a) { return IdOf(a.worker.worker); }},
      {"restarts", Show::kAlways, [](const ActorRecord& a) { return Json(a.restarts); }},
      {"incarnation", Show::kDetail, [](const ActorRecord& a) { return Json(a.incarnation); }},
      {"detached", Show::kDetail, [](const ActorRecord& a) { return Json(a.detached); }},
      {"max_restarts", Show::kDetail, [](const ActorRecord& a) { return Json(a.max_restarts); }},
      {"resources", Show::kDetail, [](const ActorRecord& a) { return MapOf(a.running_resources); }},
      {"owner", Show::kDetail, [](const ActorRecord& a) { return IdOf(a.owner); }},
      {"reason", Show::kAlways, [&core](const ActorRecord& a) {
         return TextOf(a.state == ActorState::kDead ? a.death_reason : a.state == ActorState::kAlive ? "" : core.ActorPendingReason(a));
       }},
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  for (const ActorRecord* actor : core.actors().All(true)) rows.Offer(*actor);
  done(std::move(rows.list));
}

void ListGroups(HeadCore& core, const StateQuery& query, const Done& done) {
  auto state = [](GroupView::State state) {
    switch (state) {
      case GroupView::State::kPending: return "PENDING";
      case GroupView::State::kCreated: return "CREATED";
      case GroupView::State::kRemoved: return "REMOVED";
      case GroupView::State::kRescheduling: return "RESCHEDULING";
    }
    return "";
  };
  auto strategy = [](scheduler::GroupStrategy strategy) {
    switch (strategy) {
      case scheduler::GroupStrategy::kPack: return "PACK";
      case scheduler::GroupStrategy::kSpread: return "SPREAD";
      case scheduler::GroupStrategy::kStrictPack: return "STRICT_PACK";
      case scheduler::GroupStrategy::kStrictSpread: return "STRICT_SPREAD";
    }
    return "";
  };
  Rows<GroupView> rows(query, {
      {"placement_group_id", Show::kId, [](const GroupView& g) { return IdOf(g.spec.id); }},
      {"name", Show::kName, [](const GroupView& g) { return TextOf(g.spec.name); }},
      {"state", Show::kAlways, [state](const GroupView& g) { return Json(state(g.state)); }},
      {"strategy", Show::kAlways, [strategy](const GroupView& g) { return Json(strategy(g.spec.demand.strategy)); }},
      {"bundles", Show::kAlways, [](const GroupView& g) {
         Json bundles = Json::array();
         for (const scheduler::BundleDemand& bundle : g.spec.demand.bundles) bundles.push_back(MapOf(bundle.resources.ToMap()));
         return bundles;
       }},
      {"nodes", Show::kAlways, [&core](const GroupView& g) {
         Json nodes = Json::array();
         for (NodeId node : g.nodes) nodes.push_back(NodeName(core, node));
         return nodes;
       }},
      {"job_id", Show::kDetail, [](const GroupView& g) { return IdOf(g.spec.job); }},
      {"detached", Show::kDetail, [](const GroupView& g) { return Json(g.spec.detached); }},
      {"reason", Show::kAlways, [](const GroupView& g) { return TextOf(g.pending_reason); }},
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  for (const GroupView& group : core.Groups()) rows.Offer(group);
  done(std::move(rows.list));
}

const char* StateName(JobState state) {
  switch (state) {
    case JobState::kPending: return "PENDING";
    case JobState::kRunning: return "RUNNING";
    case JobState::kStopped: return "STOPPED";
    case JobState::kSucceeded: return "SUCCEEDED";
    case JobState::kFailed: return "FAILED";
  }
  return "";
}

void ListJobs(HeadCore& core, const StateQuery& query, const Done& done) {
  Rows<JobRecord> rows(query, {
      {"submission_id", Show::kId, [](const JobRecord& j) { return j.is_submission ? Json(j.name) : Json(nullptr); }},
      {"job_id", Show::kId, [](const JobRecord& j) { return IdOf(j.driver_job); }},
      {"state", Show::kAlways, [](const JobRecord& j) { return Json(StateName(j.state)); }},
      {"entrypoint", Show::kAlways, [](const JobRecord& j) { return Json(j.entrypoint); }},
      {"node", Show::kAlways, [](const JobRecord& j) { return TextOf(j.node_name); }},
      {"started", Show::kAlways, [](const JobRecord& j) { return TimeOf(j.start_unix_ms * 1000); }},
      {"ended", Show::kAlways, [](const JobRecord& j) { return TimeOf(j.end_unix_ms * 1000); }},
      {"pid", Show::kDetail, [](const JobRecord& j) { return Json(j.driver_pid); }},
      {"resources", Show::kDetail, [](const JobRecord& j) { return MapOf(j.resources); }},
      {"metadata", Show::kDetail, [](const JobRecord& j) { return MapOf(j.metadata); }},
      {"message", Show::kDetail, [&core](const JobRecord& j) { return TextOf(core.JobMessage(j)); }},
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  for (const JobRecord* job : core.jobs().All()) rows.Offer(*job);
  done(std::move(rows.list));
}

const char* ToString(TaskEvent::State state) {
  switch (state) {
    case TaskEvent::kPending: return "PENDING";
    case TaskEvent::kRunning: return "RUNNING";
    case TaskEvent::kFinished: return "FINISHED";
    case TaskEvent::kFailed: return "FAILED";
  }
  return "";
}
const char* ToString(TaskEvent::Kind kind) {
  switch (kind) {
    case TaskEvent::kTask: return "TASK";
    case TaskEvent::kCall: return "ACTOR_CALL";
    case TaskEvent::kConstructor: return "ACTOR_CREATION";
  }
  return "";
}

std::string WhyPending(HeadCore& core, const TaskTable::Task& task, const std::vector<PendingSummary>& pending) {
  if (task.event.state != TaskEvent::kPending) return "";
  if (task.event.waits_for_arguments) return "waits for its arguments";
  if (task.event.kind == TaskEvent::kCall) {
    const ActorRecord* actor = core.actors().Find(task.event.actor);
    if (actor == nullptr || actor->state == ActorState::kDead) return "its actor is gone";
    if (actor->state == ActorState::kAlive) return "waits for its turn at actor " + actor->id.Short();
    return fmt::format("waits for actor {}: {}", actor->id.Short(), core.ActorPendingReason(*actor));
  }
  for (const PendingSummary& summary : pending) {
    if (summary.resources == task.event.resources) return summary.explanation;
  }
  return "waits for a worker that is busy with tasks before it";
}

void ListTasks(HeadCore& core, const StateQuery& query, const Done& done) {
  using Task = TaskTable::Task;
  // Explained once, when the first row asks.
  auto pending = std::make_shared<std::optional<std::vector<PendingSummary>>>();
  Rows<Task> rows(query, {
      {"task_id", Show::kId, [](const Task& t) { return IdOf(t.event.task); }},
      {"name", Show::kAlways, [](const Task& t) { return Json(t.event.name); }},
      {"state", Show::kAlways, [](const Task& t) { return Json(ToString(t.event.state)); }},
      {"kind", Show::kAlways, [](const Task& t) { return Json(ToString(t.event.kind)); }},
      {"job_id", Show::kAlways, [](const Task& t) { return IdOf(t.job); }},
      {"node", Show::kAlways, [](const Task& t) { return TextOf(t.node_name); }},
      {"pid", Show::kAlways, [](const Task& t) { return t.pid == 0 ? Json(nullptr) : Json(t.pid); }},
      {"attempt", Show::kDetail, [](const Task& t) { return Json(t.event.attempt); }},
      {"actor_id", Show::kDetail, [](const Task& t) { return IdOf(t.event.actor); }},
      {"worker_id", Show::kDetail, [](const Task& t) { return IdOf(t.worker); }},
      {"node_id", Show::kDetail, [](const Task& t) { return IdOf(t.node); }},
      {"owner", Show::kDetail, [](const Task& t) { return IdOf(t.event.owner); }},
      {"submitted", Show::kDetail, [](const Task& t) { return TimeOf(t.event.submitted_us); }},
      {"started", Show::kDetail, [](const Task& t) { return TimeOf(t.event.started_us); }},
      {"ended", Show::kDetail, [](const Task& t) { return TimeOf(t.event.ended_us); }},
      {"started_us", Show::kDetail, [](const Task& t) { return t.event.started_us == 0 ? Json(nullptr) : Json(t.event.started_us); }},
      {"ended_us", Show::kDetail, [](const Task& t) { return t.event.ended_us == 0 ? Json(nullptr) : Json(t.event.ended_us); }},
      {"seconds", Show::kAlways, [&core](const Task& t) {
         if (t.event.started_us == 0) return Json(nullptr);
         int64_t until = t.event.ended_us != 0 ? t.event.ended_us : core.NowUnixMicros();
         return Json(static_cast<double>(std::max<int64_t>(0, until - t.event.started_us) / 1000) / 1000);
       }},
      {"trace", Show::kDetail, [](const Task& t) { return TextOf(t.event.trace); }},
      {"span", Show::kDetail, [](const Task& t) { return TextOf(t.event.span); }},
      {"parent_span", Show::kDetail, [](const Task& t) { return TextOf(t.event.parent_span); }},
      {"reason", Show::kAlways, [&core, pending](const Task& t) {
         if (t.event.state != TaskEvent::kPending) return TextOf(t.event.error);
         if (!*pending) *pending = core.Pending();
         return TextOf(WhyPending(core, t, **pending));
       }},
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  core.tasks().ForEach([&](const Task& task) { rows.Offer(task); });
  rows.list.missing = core.tasks().forgotten();
  if (core.tasks().dropped() > 0) {
    rows.list.warnings.push_back(fmt::format("{} reports of tasks were too many to send and are missing", core.tasks().dropped()));
  }
  done(std::move(rows.list));
}

void SummarizeTasks(HeadCore& core, const StateQuery& query, const Done& done) {
  using Item = std::pair<const std::pair<std::string, TaskEvent::Kind>, TaskTable::Counts>;
  auto count = [](const char* name, TaskEvent::State state) {
    return Column<Item>{name, Show::kAlways, [state](const Item& i) { return Json(i.second.by_state[state]); }};
  };
  Rows<Item> rows(query, {
      {"name", Show::kName, [](const Item& i) { return Json(i.first.first); }},
      {"kind", Show::kAlways, [](const Item& i) { return Json(ToString(i.first.second)); }},
      count("pending", TaskEvent::kPending),
      count("running", TaskEvent::kRunning),
      count("finished", TaskEvent::kFinished),
      count("failed", TaskEvent::kFailed),
  });
  if (absl::Status status = rows.Check(); !status.ok()) return done(status);
  for (const Item& item : core.tasks().counts()) rows.Offer(item);
  if (core.tasks().dropped() > 0) {
    rows.list.warnings.push_back(fmt::format("{} reports of tasks were too many to send and are not counted", core.tasks().dropped()));
  }
  done(std::move(rows.list));
}

// ---- what the nodes know ------------------------------------------------------------------------------------------------------

// Hands each node's answer to `take`, the others' errors to the list.
template <class Answer>
void AskAll(HeadCore& core, const NodeQuestion& question, std::function<void(NodeId, Answer)> take, std::vector<std::string>* warnings,
            std::function<void()> finish) {
  core.AskNodes(core.ConnectedNodes(), question, kNodesWait,
                [&core, take = std::move(take), warnings, finish = std::move(finish)](NodeQuestions::Answers answers) {
                  for (auto& [node, body] : answers) {
                    absl::StatusOr<Answer> answer = body.ok() ? Decode<Answer>(*body) : absl::StatusOr<Answer>(body.status());
                    if (answer.ok()) take(node, std::move(*answer));
                    else warnings->push_back(fmt::format("node {}: {}", NodeName(core, node), Message(answer.status())));
                  }
                  finish();
                });
}

void ListWorkers(HeadCore& core, const StateQuery& query, const Done& done) {
  struct Item { NodeId node; WorkerFacts facts; };
  auto rows = std::make_shared<Rows<Item>>(query, std::vector<Column<Item>>{
      {"worker_id", Show::kId, [](const Item& i) { return IdOf(i.facts.worker); }},
      {"type", Show::kAlways, [](const Item& i) { return Json(i.facts.is_driver ? "DRIVER" : i.facts.actor.IsNil() ? "WORKER" : "ACTOR"); }},
      {"state", Show::kAlways, [](const Item& i) { return Json(i.facts.state); }},
      {"pid", Show::kAlways, [](const Item& i) { return Json(i.facts.pid); }},
      {"node", Show::kAlways, [&core](const Item& i) { return TextOf(NodeName(core, i.node)); }},
      {"job_id", Show::kAlways, [](const Item& i) { return IdOf(i.facts.job); }},
      {"actor_id", Show::kAlways, [](const Item& i) { return IdOf(i.facts.actor); }},
      {"node_id", Show::kDetail, [](const Item& i) { return IdOf(i.node); }},
      {"gpu_ids", Show::kDetail, [](const Item& i) { return Json(i.facts.gpu_ids); }},
      {"address", Show::kDetail, [](const Item& i) { return TextOf(i.facts.address); }},
  });
  if (absl::Status status = rows->Check(); !status.ok()) return done(status);
  AskAll<WorkersAnswer>(core, WorkersQuestion{},
                        [rows](NodeId node, WorkersAnswer answer) {
                          for (WorkerFacts& facts : answer.workers) rows->Offer({node, std::move(facts)});
                        },
                        &rows->list.warnings, [rows, done] { done(std::move(rows->list)); });
}

void ListObjects(HeadCore& core, const StateQuery& query, const Done& done) {
  // One row an object and node that has it, or, when its value is in its owner's heap, the owner's.
  struct Item {
    ObjectId object;
    NodeId node;
    std::string where;
    uint64_t size = 0;
    std::string state;
    WorkerId owner;
    JobId job;
    uint32_t pins = 0;
    std::vector<ReferenceFacts> holders;
  };
  auto rows = std::make_shared<Rows<Item>>(query, std::vector<Column<Item>>{
      {"object_id", Show::kId, [](const Item& i) { return IdOf(i.object); }},
      {"size", Show::kAlways, [](const Item& i) { return Json(i.size); }},
      {"state", Show::kAlways, [](const Item& i) { return Json(i.state); }},
      {"where", Show::kAlways, [](const Item& i) { return Json(i.where); }},
      {"node", Show::kAlways, [&core](const Item& i) { return TextOf(NodeName(core, i.node)); }},
      {"owner", Show::kAlways, [](const Item& i) { return IdOf(i.owner); }},
      {"pins", Show::kAlways, [](const Item& i) { return Json(i.pins); }},
      {"handles", Show::kAlways, [](const Item& i) {
         int64_t handles = 0;
         for (const ReferenceFacts& holder : i.holders) handles += holder.handles;
         return Json(handles);
       }},
      {"made_by", Show::kAlways, [](const Item& i) {
         for (const ReferenceFacts& holder : i.holders) {
           if (!holder.made_by.empty()) return Json(holder.made_by);
         }
         return Json(nullptr);
       }},
      {"job_id", Show::kDetail, [](const Item& i) { return IdOf(i.job); }},
      {"node_id", Show::kDetail, [](const Item& i) { return IdOf(i.node); }},
      {"held_by", Show::kDetail, [](const Item& i) {
         Json holders = Json::array();
         for (const ReferenceFacts& holder : i.holders) {
           holders.push_back({{"worker_id", holder.holder.Hex()}, {"pid", holder.pid}, {"handles", holder.handles}, {"pins", holder.pins},
                              {"borrowers", holder.borrowers}, {"is_owner", holder.holder == holder.owner}});
         }
         return holders;
       }},
  });
  if (absl::Status status = rows->Check(); !status.ok()) return done(status);
  struct Gathered {
    std::vector<Item> stored;
    std::map<ObjectId, std::vector<ReferenceFacts>> holders;
    std::map<WorkerId, NodeId> nodes;
  };
  auto gathered = std::make_shared<Gathered>();
  AskAll<ObjectsAnswer>(
      core, ObjectsQuestion{kObjectsOfNodeMax},
      [rows, gathered, &core](NodeId node, ObjectsAnswer answer) {
        for (const ObjectFacts& facts : answer.objects) {
          Item item{facts.object, node, facts.is_copy ? "STORE_COPY" : "STORE", facts.size, !facts.sealed ? "CREATING" : facts.spilled ? "SPILLED" : "SEALED", facts.owner, facts.job,
                    facts.pins, {}};
          gathered->stored.push_back(std::move(item));
        }
        for (ReferenceFacts& facts : answer.references) {
          gathered->nodes[facts.holder] = node;
          gathered->holders[facts.object].push_back(std::move(facts));
        }
        rows->list.missing += answer.missing;
        for (const std::string& silent : answer.silent) {
          rows->list.warnings.push_back(fmt::format("node {}: {} did not say what it holds", NodeName(core, node), silent));
        }
      },
      &rows->list.warnings, [rows, gathered, done] {
        std::set<ObjectId> stored;
        for (Item& item : gathered->stored) {
          stored.insert(item.object);
          if (auto at = gathered->holders.find(item.object); at != gathered->holders.end()) item.holders = at->second;
          rows->Offer(item);
        }
        for (auto& [object, holders] : gathered->holders) {
          if (stored.contains(object)) continue;
          // Its owner's word, when that was heard.
          auto word = std::find_if(holders.begin(), holders.end(), [](const ReferenceFacts& f) { return f.holder == f.owner; });
          const ReferenceFacts& facts = word == holders.end() ? holders.front() : *word;
          Item item{object, gathered->nodes[facts.holder], facts.value == "INLINE" ? "HEAP" : "", facts.size, facts.value, facts.owner, JobId(), 0, holders};
          rows->Offer(item);
        }
        done(std::move(rows->list));
      });
}

// One row a node: its store.
void ListStores(HeadCore& core, const StateQuery& query, const Done& done) {
  struct Item { NodeId node; ObjectsAnswer answer; };
  auto rows = std::make_shared<Rows<Item>>(query, std::vector<Column<Item>>{
      {"node", Show::kName, [&core](const Item& i) { return Json(NodeName(core, i.node)); }},
      {"node_id", Show::kId, [](const Item& i) { return IdOf(i.node); }},
      {"used", Show::kAlways, [](const Item& i) { return Json(i.answer.used); }},
      {"capacity", Show::kAlways, [](const Item& i) { return Json(i.answer.capacity); }},
      {"host_memory", Show::kAlways, [](const Item& i) { return Json(i.answer.backed); }},
      {"spilled", Show::kAlways, [](const Item& i) { return Json(i.answer.spilled); }},
      {"spill_max", Show::kAlways, [](const Item& i) { return Json(i.answer.spill_max); }},
      {"objects", Show::kAlways, [](const Item& i) { return Json(i.answer.objects.size() + i.answer.missing); }},
  });
  if (absl::Status status = rows->Check(); !status.ok()) return done(status);
  AskAll<ObjectsAnswer>(core, ObjectsQuestion{kObjectsOfNodeMax},
                        [rows](NodeId node, ObjectsAnswer answer) { rows->Offer({node, std::move(answer)}); },
                        &rows->list.warnings, [rows, done] { done(std::move(rows->list)); });
}

}  // namespace

void ListState(HeadCore& core, const StateQuery& query, Done done) {
  static constexpr struct { const char* kind; void (*list)(HeadCore&, const StateQuery&, const Done&); } kKinds[] = {
      {"nodes", ListNodes},   {"actors", ListActors},   {"tasks", ListTasks}, {"objects", ListObjects},         {"workers", ListWorkers},
      {"jobs", ListJobs},     {"placement-groups", ListGroups}, {"task-summary", SummarizeTasks}, {"stores", ListStores},
  };
  std::string known;
  for (const auto& [kind, list] : kKinds) {
    if (query.kind == kind) return list(core, query, done);
    known += (known.empty() ? "" : ", ") + std::string(kind);
  }
  done(InvalidArgument("there is nothing of kind {}; there are {}", query.kind, known));
}

}  // namespace argosy::head
