#include "runtime/head/head_codec.h"

#include <cmath>

#include "nlohmann/json.hpp"
#include "runtime/base/codec.h"
#include "runtime/base/overloaded.h"

namespace argosy::head {
namespace {

constexpr size_t kTextMax = 4096;

template <class Map>
auto ToStdMap(const Map& map) {
  return std::map<typename Map::key_type, typename Map::mapped_type>(map.begin(), map.end());
}
template <class Wire>
void FillMap(const std::map<std::string, typename Wire::mapped_type>& map, Wire* wire) {
  for (const auto& [key, value] : map) (*wire)[key] = value;
}

absl::StatusOr<ResourceSet> ResourcesFromWire(const google::protobuf::Map<std::string, double>& wire, const char* field) {
  absl::StatusOr<ResourceSet> resources = ResourceSet::FromMap(ToStdMap(wire));
  if (!resources.ok()) return Annotate(resources.status(), field);
  return resources;
}

absl::Status CheckText(const std::string& text, const char* field, size_t max = kTextMax) {
  if (text.size() > max) return InvalidArgument("{} has {} bytes; at most {} are allowed", field, text.size(), max);
  return absl::OkStatus();
}

absl::StatusOr<scheduler::BundleKey> BundleFromWire(const std::string& group, int index) {
  ARGOSY_ASSIGN_OR_RETURN(GroupId id, IdFromWire<GroupId>(group, "group_id"));
  if (index < 0) return InvalidArgument("bundle_index {} is negative", index);
  return scheduler::BundleKey{id, index};
}
}  // namespace

absl::StatusOr<scheduler::Demand> FromWire(const v1::Demand& wire) {
  scheduler::Demand demand;
  ARGOSY_ASSIGN_OR_RETURN(demand.resources, ResourcesFromWire(wire.resources(), "resources"));
  ARGOSY_ASSIGN_OR_RETURN(demand.labels, scheduler::LabelSelector::FromMap(ToStdMap(wire.label_selector())));
  if (wire.strategy().has_bundle_affinity()) {
    ARGOSY_ASSIGN_OR_RETURN(GroupId group, IdFromWire<GroupId>(wire.strategy().bundle_affinity().group_id(), "bundle_affinity.group_id"));
    if (wire.strategy().bundle_affinity().bundle_index() < -1) return InvalidArgument("bundle_index must be -1 (any) or a bundle's number");
    demand.strategy = scheduler::BundleAffinity{group, wire.strategy().bundle_affinity().bundle_index()};
  } else if (wire.strategy().has_node_affinity()) {
    ARGOSY_ASSIGN_OR_RETURN(NodeId node, IdFromWire<NodeId>(wire.strategy().node_affinity().node_id(), "node_affinity.node_id"));
    demand.strategy = scheduler::NodeAffinity{node, wire.strategy().node_affinity().soft()};
  } else if (wire.strategy().kind() == v1::Strategy::SPREAD) {
    demand.strategy = scheduler::SpreadStrategy();
  }
  for (const v1::ObjectBytes& object : wire.locality()) {
    ARGOSY_ASSIGN_OR_RETURN(NodeId node, IdFromWire<NodeId>(object.node_id(), "locality.node_id"));
    demand.locality.push_back({node, static_cast<int64_t>(std::min<uint64_t>(object.bytes(), 1ull << 60))});
  }
  demand.priority = wire.priority();
  demand.retriable = !wire.not_retriable();
  demand.job_priority = wire.job_priority();
  return demand;
}

void ToWire(const scheduler::Demand& demand, v1::Demand* wire) {
  FillMap(demand.resources.ToMap(), wire->mutable_resources());
  FillMap(demand.labels.ToMap(), wire->mutable_label_selector());
  std::visit(Overloaded{[&](const scheduler::DefaultStrategy&) {},
                        [&](const scheduler::SpreadStrategy&) { wire->mutable_strategy()->set_kind(v1::Strategy::SPREAD); },
                        [&](const scheduler::NodeAffinity& a) {
                          wire->mutable_strategy()->mutable_node_affinity()->set_node_id(IdToWire(a.node));
                          wire->mutable_strategy()->mutable_node_affinity()->set_soft(a.soft);
                        },
                        [&](const scheduler::BundleAffinity& a) {
                          wire->mutable_strategy()->mutable_bundle_affinity()->set_group_id(IdToWire(a.group));
                          wire->mutable_strategy()->mutable_bundle_affinity()->set_bundle_index(a.bundle_index);
                        }},
             demand.strategy);
  for (const scheduler::Locality& locality : demand.locality) {
    v1::ObjectBytes* object = wire->add_locality();
    object->set_node_id(IdToWire(locality.node));
    object->set_bytes(static_cast<uint64_t>(locality.bytes));
  }
  wire->set_priority(demand.priority);
  wire->set_not_retriable(!demand.retriable);
  wire->set_job_priority(demand.job_priority);
}

absl::StatusOr<WorkerAddress> FromWire(const v1::WorkerAddress& wire) {
  WorkerAddress address;
  ARGOSY_ASSIGN_OR_RETURN(address.worker, OptionalIdFromWire<WorkerId>(wire.worker_id(), "worker_id"));
  ARGOSY_ASSIGN_OR_RETURN(address.node, OptionalIdFromWire<NodeId>(wire.node_id(), "node_id"));
  address.unix_path = wire.unix_path();
  address.tcp = wire.tcp();
  return address;
}

void ToWire(const WorkerAddress& address, v1::WorkerAddress* wire) {
  wire->set_worker_id(IdToWire(address.worker));
  wire->set_node_id(IdToWire(address.node));
  wire->set_unix_path(address.unix_path);
  wire->set_tcp(address.tcp);
}

absl::StatusOr<Registration> FromWire(const v1::Register& wire) {
  const v1::NodeInfo& info = wire.node();
  Registration registration;
  NodeDescription& node = registration.node;
  ARGOSY_ASSIGN_OR_RETURN(node.id, IdFromWire<NodeId>(info.node_id(), "node.node_id"));
  ARGOSY_RETURN_IF_ERROR(CheckText(info.name(), "node.name"));
  node.name = info.name().empty() ? node.id.Short() : info.name();
  node.ip = info.ip();
  node.wire_address = info.wire_address();
  node.agent_address = info.agent_address();
  node.hostname = info.hostname();
  ARGOSY_ASSIGN_OR_RETURN(ResourceSet total, ResourcesFromWire(info.resources_total(), "node.resources_total"));
  node.total = total.ToMap();
  node.labels = ToStdMap(info.labels());
  if (absl::Status labels = scheduler::CheckLabels(node.labels); !labels.ok()) return Annotate(labels, "node.labels");
  node.is_head_node = info.is_head_node();
  node.started_unix_ms = info.started_unix_ms();
  node.pid = info.pid();
  if (info.resources_available().empty()) {
    registration.available = total;
  } else {
    ARGOSY_ASSIGN_OR_RETURN(registration.available, ResourcesFromWire(info.resources_available(), "node.resources_available"));
  }
  for (const v1::HeldLease& held : wire.leases()) {
    HeldLease lease;
    ARGOSY_ASSIGN_OR_RETURN(lease.lease, IdFromWire<LeaseId>(held.lease_id(), "leases.lease_id"));
    ARGOSY_ASSIGN_OR_RETURN(lease.worker, FromWire(held.worker()));
    ARGOSY_ASSIGN_OR_RETURN(lease.resources, ResourcesFromWire(held.resources(), "leases.resources"));
    registration.leases.push_back(std::move(lease));
  }
  for (const v1::HeldActor& held : wire.actors()) {
    HeldActor actor;
    ARGOSY_ASSIGN_OR_RETURN(actor.actor, IdFromWire<ActorId>(held.actor_id(), "actors.actor_id"));
    ARGOSY_ASSIGN_OR_RETURN(actor.worker, FromWire(held.worker()));
    actor.worker.node = node.id;
    actor.incarnation = held.incarnation();
    registration.actors.push_back(std::move(actor));
  }
  for (const v1::HeldBundle& held : wire.bundles()) {
    HeldBundle bundle;
    ARGOSY_ASSIGN_OR_RETURN(bundle.bundle, BundleFromWire(held.group_id(), held.bundle_index()));
    bundle.committed = held.committed();
    ARGOSY_ASSIGN_OR_RETURN(bundle.resources, ResourcesFromWire(held.resources(), "bundles.resources"));
    registration.bundles.push_back(std::move(bundle));
  }
  if (wire.draining()) registration.draining = wire.drain_reason().substr(0, kTextMax);
  registration.jobs.assign(wire.job_submission_ids().begin(), wire.job_submission_ids().end());
  return registration;
}

absl::StatusOr<FromNode> FromWire(const v1::NodeMessage& wire) {
  switch (wire.message_case()) {
    case v1::NodeMessage::kHeartbeat:
      return FromNode(Heartbeat{wire.heartbeat().object_store_used(), wire.heartbeat().workers(), wire.heartbeat().object_store_spilled()});
    case v1::NodeMessage::kResources: {
      ResourceReport report;
      report.version = wire.resources().version();
      report.waiting_requests = wire.resources().waiting_requests();
      ARGOSY_ASSIGN_OR_RETURN(report.available, ResourcesFromWire(wire.resources().available(), "available"));
      for (const v1::BundleAvailable& bundle : wire.resources().bundles()) {
        BundleAvailable available;
        ARGOSY_ASSIGN_OR_RETURN(available.bundle, BundleFromWire(bundle.group_id(), bundle.bundle_index()));
        ARGOSY_ASSIGN_OR_RETURN(available.available, ResourcesFromWire(bundle.available(), "bundles.available"));
        report.bundles.push_back(std::move(available));
      }
      for (const std::string& ended : wire.resources().ended_leases()) {
        ARGOSY_ASSIGN_OR_RETURN(report.ended_leases.emplace_back(), IdFromWire<LeaseId>(ended, "ended_leases"));
      }
      return FromNode(std::move(report));
    }
    case v1::NodeMessage::kLeaseResult: {
      const v1::LeaseResult& message = wire.lease_result();
      LeaseResult result{message.request_id()};
      ARGOSY_ASSIGN_OR_RETURN(result.lease, IdFromWire<LeaseId>(message.lease_id(), "lease_id"));
      result.granted = message.granted();
      result.refusal = message.refusal();
      result.retry_elsewhere = message.retry_elsewhere();
      ARGOSY_ASSIGN_OR_RETURN(result.worker, FromWire(message.worker()));
      result.gpu_ids.assign(message.gpu_ids().begin(), message.gpu_ids().end());
      result.environment_failed = message.environment_failed();
      return FromNode(std::move(result));
    }
    case v1::NodeMessage::kBundlesPrepared: {
      const v1::BundlesPrepared& message = wire.bundles_prepared();
      ARGOSY_ASSIGN_OR_RETURN(GroupId group, IdFromWire<GroupId>(message.group_id(), "group_id"));
      return FromNode(BundlesPrepared{group, message.attempt(), message.ok(), message.reason()});
    }
    case v1::NodeMessage::kBundlesCommitted: {
      const v1::BundlesCommitted& message = wire.bundles_committed();
      ARGOSY_ASSIGN_OR_RETURN(GroupId group, IdFromWire<GroupId>(message.group_id(), "group_id"));
      return FromNode(BundlesCommitted{group, message.attempt(), message.ok(), message.reason()});
    }
    case v1::NodeMessage::kActorStarted: {
      ActorStarted started;
      ARGOSY_ASSIGN_OR_RETURN(started.actor, IdFromWire<ActorId>(wire.actor_started().actor_id(), "actor_id"));
      ARGOSY_ASSIGN_OR_RETURN(started.worker, FromWire(wire.actor_started().worker()));
      started.incarnation = wire.actor_started().incarnation();
      return FromNode(std::move(started));
    }
    case v1::NodeMessage::kActorEnded: {
      const v1::ActorEnded& message = wire.actor_ended();
      ARGOSY_ASSIGN_OR_RETURN(ActorId actor, IdFromWire<ActorId>(message.actor_id(), "actor_id"));
      return FromNode(ActorEnded{actor, message.incarnation(), message.reason(), message.retry_elsewhere(), message.constructor_failed(),
                                 message.intended()});
    }
    case v1::NodeMessage::kWorkerDied: {
      ARGOSY_ASSIGN_OR_RETURN(WorkerId worker, IdFromWire<WorkerId>(wire.worker_died().worker_id(), "worker_id"));
      return FromNode(WorkerDied{worker, wire.worker_died().reason(), wire.worker_died().exit_code(), wire.worker_died().out_of_memory()});
    }
    case v1::NodeMessage::kDriverJoined: {
      const v1::DriverJoined& message = wire.driver_joined();
      DriverJoined joined;
      ARGOSY_ASSIGN_OR_RETURN(joined.job, IdFromWire<JobId>(message.job_id(), "job_id"));
      ARGOSY_ASSIGN_OR_RETURN(joined.driver, FromWire(message.driver()));
      joined.submission_id = message.submission_id();
      joined.pid = message.pid();
      joined.entrypoint = message.entrypoint().substr(0, kTextMax);
      joined.name_space = message.namespace_();
      joined.quiet = message.quiet();
      return FromNode(std::move(joined));
    }
    case v1::NodeMessage::kDriverLeft: {
      ARGOSY_ASSIGN_OR_RETURN(JobId job, IdFromWire<JobId>(wire.driver_left().job_id(), "job_id"));
      return FromNode(DriverLeft{job, wire.driver_left().reason()});
    }
    case v1::NodeMessage::kJobStarted: return FromNode(JobStarted{wire.job_started().submission_id(), wire.job_started().pid()});
    case v1::NodeMessage::kJobStartFailed: {
      const v1::JobStartFailed& message = wire.job_start_failed();
      return FromNode(JobStartFailed{message.submission_id(), message.message(), message.error_type(), message.retry_elsewhere()});
    }
    case v1::NodeMessage::kJobExited: {
      const v1::JobExited& message = wire.job_exited();
      return FromNode(JobExited{message.submission_id(), message.exit_code(), message.signal(), message.stopped()});
    }
    case v1::NodeMessage::kJobLog:
      return FromNode(JobLogBytes{wire.job_log().submission_id(), wire.job_log().offset(), wire.job_log().data()});
    case v1::NodeMessage::kJobPrints: {
      ARGOSY_ASSIGN_OR_RETURN(JobId job, IdFromWire<JobId>(wire.job_prints().job_id(), "job_id"));
      return FromNode(CarriedPrints{job, wire.job_prints().body()});
    }
    case v1::NodeMessage::kFlushPrints: {
      ARGOSY_ASSIGN_OR_RETURN(JobId job, IdFromWire<JobId>(wire.flush_prints().job_id(), "job_id"));
      return FromNode(FlushPrints{job});
    }
    case v1::NodeMessage::kMetrics: return FromNode(CarriedMetrics{wire.metrics().body()});
    case v1::NodeMessage::kLeft: return FromNode(NodeLeft{wire.left().reason().substr(0, kTextMax)});
    case v1::NodeMessage::kTaskEvents: return FromNode(TaskEventsReport{wire.task_events().body(), wire.task_events().dropped()});
    case v1::NodeMessage::kAnswer: {
      const v1::NodeAnswer& message = wire.answer();
      NodeAnswer answer{message.number(), message.body()};
      if (message.error_code() != 0) {
        answer.body = absl::Status(static_cast<absl::StatusCode>(message.error_code()), ToAbsl(message.error()));
        if (answer.body.status().code() > absl::StatusCode::kUnauthenticated) answer.body = absl::UnknownError(ToAbsl(message.error()));
      }
      return FromNode(std::move(answer));
    }
    case v1::NodeMessage::kRegister: return InvalidArgument("Register must be the first message of a stream, and only that");
    case v1::NodeMessage::MESSAGE_NOT_SET: break;
  }
  return InvalidArgument("a message of a kind that this head does not know");
}

namespace {

// What a node needs of a job's runtime environment beside the whole text.
void FillRuntimeEnv(const std::string& text, v1::StartJob* wire) {
  nlohmann::json env = nlohmann::json::parse(text.empty() ? "{}" : text, nullptr, false);
  if (!env.is_object()) return;
  if (auto vars = env.find("env_vars"); vars != env.end() && vars->is_object()) {
    for (const auto& [key, value] : vars->items()) {
      if (value.is_string()) (*wire->mutable_env_vars())[key] = value.get<std::string>();
    }
  }
  if (auto dir = env.find("working_dir"); dir != env.end() && dir->is_string()) wire->set_working_dir_uri(dir->get<std::string>());
  if (auto modules = env.find("py_modules"); modules != env.end() && modules->is_array()) {
    for (const auto& uri : *modules) {
      if (uri.is_string()) wire->add_py_modules_uris(uri.get<std::string>());
    }
  }
}

}  // namespace

v1::HeadMessage ToWire(const ToNode& message) {
  v1::HeadMessage wire;
  std::visit(
      Overloaded{
          [&](const Registered& m) {
            wire.mutable_registered()->set_cluster_id(m.cluster_id);
            wire.mutable_registered()->set_epoch(m.epoch);
            wire.mutable_registered()->set_heartbeat_seconds(m.heartbeat_seconds);
            wire.mutable_registered()->set_node_timeout_seconds(m.node_timeout_seconds);
          },
          [&](const Rejected& m) {
            wire.mutable_rejected()->set_reason(m.reason);
            wire.mutable_rejected()->set_declared_dead(m.declared_dead);
          },
          [&](const GrantLease& m) {
            v1::GrantLease* grant = wire.mutable_grant_lease();
            grant->set_request_id(m.request);
            grant->set_lease_id(IdToWire(m.lease));
            grant->set_job_id(IdToWire(m.job));
            ToWire(m.demand, grant->mutable_demand());
            if (!m.code.empty()) grant->mutable_code()->ParseFromString(m.code);
            grant->set_holder_worker_id(IdToWire(m.holder));
          },
          [&](const ReleaseLease& m) {
            wire.mutable_release_lease()->set_lease_id(IdToWire(m.lease));
            wire.mutable_release_lease()->set_worker_failed(m.worker_failed);
          },
          [&](const RecallLease& m) { wire.mutable_recall_lease()->set_lease_id(IdToWire(m.lease)); },
          [&](const PrepareBundles& m) {
            v1::PrepareBundles* prepare = wire.mutable_prepare_bundles();
            prepare->set_group_id(IdToWire(m.group));
            prepare->set_attempt(m.attempt);
            prepare->set_commit(m.commit);
            for (const BundleToPrepare& bundle : m.bundles) {
              v1::PrepareBundles::Bundle* out = prepare->add_bundles();
              out->set_index(bundle.index);
              FillMap(bundle.resources.ToMap(), out->mutable_resources());
            }
          },
          [&](const CommitBundles& m) {
            wire.mutable_commit_bundles()->set_group_id(IdToWire(m.group));
            wire.mutable_commit_bundles()->set_attempt(m.attempt);
            wire.mutable_commit_bundles()->mutable_indices()->Assign(m.indices.begin(), m.indices.end());
          },
          [&](const ReturnBundles& m) {
            wire.mutable_return_bundles()->set_group_id(IdToWire(m.group));
            wire.mutable_return_bundles()->mutable_indices()->Assign(m.indices.begin(), m.indices.end());
          },
          [&](const StartActor& m) {
            wire.mutable_start_actor()->mutable_spec()->ParseFromString(m.spec);
            wire.mutable_start_actor()->set_incarnation(m.incarnation);
            wire.mutable_start_actor()->set_lease_id(IdToWire(m.lease));
          },
          [&](const StopActor& m) {
            wire.mutable_stop_actor()->set_actor_id(IdToWire(m.actor));
            wire.mutable_stop_actor()->set_incarnation(m.incarnation);
            wire.mutable_stop_actor()->set_no_restart(m.no_restart);
            wire.mutable_stop_actor()->set_reason(m.reason);
          },
          [&](const JobEnded& m) {
            wire.mutable_job_ended()->set_job_id(IdToWire(m.job));
            wire.mutable_job_ended()->set_reason(m.reason);
          },
          [&](const StartJob& m) {
            v1::StartJob* start = wire.mutable_start_job();
            start->set_submission_id(m.submission_id);
            start->set_entrypoint(m.entrypoint);
            start->set_runtime_env_json(m.runtime_env_json);
            FillRuntimeEnv(m.runtime_env_json, start);
            FillMap(m.metadata, start->mutable_metadata());
            start->set_lease_id(IdToWire(m.lease));
            if (!m.lease.IsNil()) ToWire(m.demand, start->mutable_demand());
          },
          [&](const StopJob& m) {
            wire.mutable_stop_job()->set_submission_id(m.submission_id);
            wire.mutable_stop_job()->set_grace_seconds(m.grace_seconds);
          },
          [&](const JobLogAck& m) {
            wire.mutable_job_log_ack()->set_submission_id(m.submission_id);
            wire.mutable_job_log_ack()->set_end(m.end);
          },
          [&](const JobExitAck& m) { wire.mutable_job_exit_ack()->set_submission_id(m.submission_id); },
          [&](const OtherNodeLost& m) { wire.mutable_other_node_lost()->set_node_id(IdToWire(m.node)); },
          [&](const NodeContended& m) {
            wire.mutable_contended()->set_contended(m.contended);
            wire.mutable_contended()->set_job_priority(m.job_priority);
          },
          [&](const CarriedPrints& m) {
            wire.mutable_job_prints()->set_job_id(IdToWire(m.job));
            wire.mutable_job_prints()->set_body(m.body);
          },
          [&](const PrintsFlushed& m) { wire.mutable_prints_flushed()->set_job_id(IdToWire(m.job)); },
          [&](const MutePrints& m) { wire.mutable_mute_prints()->set_job_id(IdToWire(m.job)); },
          [&](const DrainNode& m) {
            wire.mutable_drain()->set_reason(m.reason);
            wire.mutable_drain()->set_deadline_seconds(m.deadline_seconds);
            wire.mutable_drain()->set_undo(m.undo);
          },
          [&](const AskNode& m) {
            wire.mutable_question()->set_number(m.number);
            wire.mutable_question()->set_body(Encode(m.question));
          },
      },
      message);
  return wire;
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() != 16) return InvalidArgument("request_id has {} bytes, not 16", id.size());
  return absl::OkStatus();
}

absl::StatusOr<LeaseRequest> FromWire(const v1::LeaseRequest& wire, absl::Time now) {
  LeaseRequest request;
  ARGOSY_RETURN_IF_ERROR(CheckRequestId(wire.request_id()));
  request.id = wire.request_id();
  ARGOSY_ASSIGN_OR_RETURN(request.job, OptionalIdFromWire<JobId>(wire.job_id(), "job_id"));
  ARGOSY_ASSIGN_OR_RETURN(request.holder, OptionalIdFromWire<WorkerId>(wire.holder_worker_id(), "holder_worker_id"));
  ARGOSY_ASSIGN_OR_RETURN(request.holder_node, OptionalIdFromWire<NodeId>(wire.holder_node_id(), "holder_node_id"));
  ARGOSY_ASSIGN_OR_RETURN(request.demand, FromWire(wire.demand()));
  if (wire.has_code()) request.code = wire.code().SerializeAsString();
  if (!(wire.deadline_seconds() >= 0)) return InvalidArgument("deadline_seconds {} is negative", wire.deadline_seconds());
  if (wire.deadline_seconds() > 0) request.deadline = now + absl::Seconds(wire.deadline_seconds());
  return request;
}

absl::StatusOr<ActorRecord> FromWire(const v1::ActorSpec& wire) {
  ActorRecord actor;
  ARGOSY_ASSIGN_OR_RETURN(actor.id, IdFromWire<ActorId>(wire.actor_id(), "spec.actor_id"));
  ARGOSY_ASSIGN_OR_RETURN(actor.job, OptionalIdFromWire<JobId>(wire.job_id(), "spec.job_id"));
  ARGOSY_RETURN_IF_ERROR(CheckText(wire.name(), "spec.name"));
  ARGOSY_RETURN_IF_ERROR(CheckText(wire.namespace_(), "spec.namespace"));
  actor.class_name = wire.class_name().substr(0, kTextMax);
  actor.name = wire.name();
  actor.name_space = wire.namespace_();
  actor.detached = wire.detached();
  if (wire.max_restarts() < -1) return InvalidArgument("max_restarts {}: use -1 (no bound), 0 or more", wire.max_restarts());
  actor.max_restarts = wire.max_restarts();
  actor.max_task_retries = wire.max_task_retries();
  actor.max_pending_calls = wire.max_pending_calls();
  actor.fail_when_full = wire.fail_when_full();
  ARGOSY_ASSIGN_OR_RETURN(WorkerAddress owner, FromWire(wire.owner()));
  actor.owner = owner.worker;
  actor.owner_node = owner.node;
  ARGOSY_ASSIGN_OR_RETURN(ResourceSet running, ResourcesFromWire(wire.running_resources(), "spec.running_resources"));
  actor.running_resources = running.ToMap();
  actor.start_timeout_seconds = wire.start_timeout_seconds();
  ARGOSY_ASSIGN_OR_RETURN(scheduler::Demand placement, FromWire(wire.placement()));
  actor.placement = ToRecord(placement);
  actor.spec = wire.SerializeAsString();
  return actor;
}

void ToWire(const ActorRecord& actor, const std::string& pending_reason, v1::ActorInfo* wire) {
  wire->set_actor_id(IdToWire(actor.id));
  wire->set_state(static_cast<v1::ActorInfo::State>(actor.state));
  wire->set_incarnation(actor.incarnation);
  if (actor.state == ActorState::kAlive) ToWire(actor.worker, wire->mutable_worker());
  else if (!actor.node.IsNil()) wire->mutable_worker()->set_node_id(IdToWire(actor.node));
  wire->set_name(actor.name);
  wire->set_namespace_(actor.name_space);
  wire->set_class_name(actor.class_name);
  wire->set_death_reason(actor.death_reason);
  wire->set_job_id(IdToWire(actor.job));
  wire->set_max_task_retries(actor.max_task_retries);
  wire->set_pending_reason(pending_reason);
  FillMap(actor.state == ActorState::kAlive ? actor.running_resources : actor.placement.resources, wire->mutable_resources());
  wire->set_restarts(actor.restarts);
  wire->set_constructor_failed(actor.constructor_failed);
  wire->set_detached(actor.detached);
  wire->set_max_pending_calls(actor.max_pending_calls);
  wire->set_fail_when_full(actor.fail_when_full);
}

absl::StatusOr<GroupSpec> FromWire(const v1::GroupSpec& wire) {
  GroupSpec spec;
  ARGOSY_ASSIGN_OR_RETURN(spec.id, IdFromWire<GroupId>(wire.group_id(), "group_id"));
  ARGOSY_ASSIGN_OR_RETURN(spec.job, OptionalIdFromWire<JobId>(wire.job_id(), "job_id"));
  ARGOSY_RETURN_IF_ERROR(CheckText(wire.name(), "name"));
  spec.name = wire.name();
  spec.detached = wire.detached();
  switch (wire.strategy()) {
    case v1::GroupSpec::PACK: spec.demand.strategy = scheduler::GroupStrategy::kPack; break;
    case v1::GroupSpec::SPREAD: spec.demand.strategy = scheduler::GroupStrategy::kSpread; break;
    case v1::GroupSpec::STRICT_PACK: spec.demand.strategy = scheduler::GroupStrategy::kStrictPack; break;
    case v1::GroupSpec::STRICT_SPREAD: spec.demand.strategy = scheduler::GroupStrategy::kStrictSpread; break;
    default: return InvalidArgument("strategy {}: use PACK, SPREAD, STRICT_PACK or STRICT_SPREAD", static_cast<int>(wire.strategy()));
  }
  for (const v1::Bundle& bundle : wire.bundles()) {
    scheduler::BundleDemand demand;
    ARGOSY_ASSIGN_OR_RETURN(demand.resources, ResourcesFromWire(bundle.resources(), "bundles.resources"));
    ARGOSY_ASSIGN_OR_RETURN(demand.labels, scheduler::LabelSelector::FromMap(ToStdMap(bundle.label_selector())));
    spec.demand.bundles.push_back(std::move(demand));
  }
  return spec;
}

void ToWire(const GroupView& group, v1::GroupInfo* wire) {
  v1::GroupSpec* spec = wire->mutable_spec();
  spec->set_group_id(IdToWire(group.spec.id));
  spec->set_name(group.spec.name);
  spec->set_strategy(static_cast<v1::GroupSpec::Strategy>(group.spec.demand.strategy));
  spec->set_job_id(IdToWire(group.spec.job));
  spec->set_detached(group.spec.detached);
  for (const scheduler::BundleDemand& demand : group.spec.demand.bundles) {
    v1::Bundle* bundle = spec->add_bundles();
    FillMap(demand.resources.ToMap(), bundle->mutable_resources());
    FillMap(demand.labels.ToMap(), bundle->mutable_label_selector());
  }
  wire->set_state(static_cast<v1::GroupInfo::State>(group.state));
  for (NodeId node : group.nodes) wire->add_bundle_nodes(IdToWire(node));
  wire->set_pending_reason(group.pending_reason);
}

void ToWire(const NodeTable::Node& node, const scheduler::NodeView* view, v1::NodeInfo* wire) {
  const NodeDescription& description = node.description;
  wire->set_node_id(IdToWire(description.id));
  wire->set_name(description.name);
  wire->set_ip(description.ip);
  wire->set_wire_address(description.wire_address);
  wire->set_agent_address(description.agent_address);
  FillMap(description.total, wire->mutable_resources_total());
  if (view != nullptr && node.alive) {
    // What bundles hold but nobody uses is free to whoever has the group.
    ResourceSet available = view->available;
    for (const auto& [key, bundle] : view->bundles) available.Add(bundle.available);
    for (const auto& [name, total] : description.total) {
      (*wire->mutable_resources_available())[name] = std::max(0.0, available.Get(name).ToDouble());
    }
  }
  FillMap(description.labels, wire->mutable_labels());
  wire->set_alive(node.alive);
  wire->set_is_head_node(description.is_head_node);
  wire->set_started_unix_ms(description.started_unix_ms);
  wire->set_lost_unix_ms(node.lost_unix_ms);
  wire->set_lost_reason(node.lost_reason);
  wire->set_object_store_used(node.object_store_used);
  wire->set_object_store_spilled(node.object_store_spilled);
  wire->set_draining(view != nullptr && view->draining);
  wire->set_workers(node.workers);
  wire->set_hostname(description.hostname);
  wire->set_pid(description.pid);
}

absl::StatusOr<JobRecord> FromWire(const v1::SubmitJobRequest& wire) {
  JobRecord job;
  job.name = wire.submission_id();
  job.entrypoint = wire.entrypoint();
  ARGOSY_RETURN_IF_ERROR(CheckText(wire.runtime_env_json(), "runtime_env", 1 << 20));
  nlohmann::json env = nlohmann::json::parse(wire.runtime_env_json().empty() ? "{}" : wire.runtime_env_json(), nullptr, false);
  if (!env.is_object()) return InvalidArgument("runtime_env is not a JSON object: {}", wire.runtime_env_json().substr(0, 200));
  if (auto vars = env.find("env_vars"); vars != env.end() && !vars->is_null()) {
    if (!vars->is_object()) return InvalidArgument("runtime_env env_vars must be an object of strings, got {}", vars->dump().substr(0, 200));
    for (const auto& [key, value] : vars->items()) {
      if (!value.is_string()) return InvalidArgument("runtime_env env_vars: the value of {} must be a string, got {}", key, value.dump());
      if (key.empty() || key.find('=') != std::string::npos) return InvalidArgument("runtime_env env_vars: \"{}\" cannot be a variable's name", key);
    }
  }
  job.runtime_env_json = wire.runtime_env_json();
  job.metadata = ToStdMap(wire.metadata());
  if (!wire.has_entrypoint_resources()) return job;
  job.has_resources = true;
  job.resources = ToStdMap(wire.entrypoint_resources());
  for (const char* reserved : {"CPU", "GPU", "memory"}) {
    if (job.resources.contains(reserved)) {
      return InvalidArgument("entrypoint_resources: use entrypoint_num_cpus, entrypoint_num_gpus or entrypoint_memory for {}", reserved);
    }
  }
  if (wire.entrypoint_num_cpus() != 0) job.resources[kCpu] = wire.entrypoint_num_cpus();
  if (wire.entrypoint_num_gpus() != 0) job.resources[kGpu] = wire.entrypoint_num_gpus();
  if (wire.entrypoint_memory() != 0) job.resources[kMemory] = static_cast<double>(wire.entrypoint_memory());
  job.label_selector = ToStdMap(wire.entrypoint_label_selector());
  return job;
}

void ToWire(const JobRecord& job, const std::string& message, uint64_t log_end, v1::JobInfo* wire) {
  if (job.is_submission) wire->set_submission_id(job.name);
  wire->set_state(static_cast<v1::JobInfo::State>(job.state));
  wire->set_entrypoint(job.entrypoint);
  wire->set_message(message);
  wire->set_error_type(job.error_type);
  wire->set_start_unix_ms(job.start_unix_ms);
  wire->set_end_unix_ms(job.end_unix_ms);
  FillMap(job.metadata, wire->mutable_metadata());
  wire->set_runtime_env_json(job.runtime_env_json);
  wire->set_driver_agent_http_address(job.agent_address);
  wire->set_driver_node_id(IdToWire(job.node));
  wire->set_has_exit_code(job.has_exit_code);
  wire->set_driver_exit_code(job.exit_code);
  wire->set_driver_job_id(IdToWire(job.driver_job));
  wire->set_driver_ip(job.node_ip);
  wire->set_driver_pid(job.driver_pid);
  wire->set_node_name(job.node_name);
  wire->set_log_end(log_end);
  wire->set_is_submission(job.is_submission);
}

}  // namespace argosy::head
