#include "runtime/node/node_codec.h"

#include <utility>

#include "runtime/base/codec.h"
#include "runtime/base/status.h"
#include "runtime/rpc/version.h"

namespace argosy::node {
namespace {

template <class Map, class ProtoMap>
void Fill(ProtoMap* out, const Map& in) {
  for (const auto& [key, value] : in) (*out)[key] = value;
}
template <class Map, class ProtoMap>
Map FromMap(const ProtoMap& in) {
  return Map(in.begin(), in.end());
}
using Amounts = std::map<std::string, double>;
using Texts = std::map<std::string, std::string>;

absl::StatusOr<ResourceSet> Resources(const google::protobuf::Map<std::string, double>& map) { return ResourceSet::FromMap(FromMap<Amounts>(map)); }

template <class Message>
void SetBundle(Message* out, const scheduler::BundleKey& key) {
  out->set_group_id(IdBytes(key.group));
  out->set_bundle_index(key.index);
}
template <class Message>
absl::StatusOr<GroupId> GroupOf(const Message& message) {
  auto group = GroupId::FromBytes(message.group_id());
  if (!group) return InvalidArgument("a group id of {} bytes", message.group_id().size());
  return *group;
}
template <class Message>
absl::StatusOr<std::vector<int>> IndicesOf(const Message& message) {
  std::vector<int> indices(message.indices().begin(), message.indices().end());
  for (int index : indices) {
    if (index < 0) return InvalidArgument("bundle {} of a group", index);
  }
  return indices;
}

// Fills the alternative of NodeMessage that belongs to each type.
struct Filler {
  v1::NodeMessage* out;

  void operator()(const Registration& m) {
    v1::Register* r = out->mutable_register_();
    rpc::FillVersion(r->mutable_version());
    v1::NodeInfo info = ToProto(m.node);
    info.set_agent_address(m.agent_address);
    info.set_hostname(m.hostname);
    info.set_pid(m.pid);
    info.set_started_unix_ms(m.started_unix_ms);
    *r->mutable_node() = std::move(info);
    for (const HeldLease& lease : m.leases) {
      v1::HeldLease* held = r->add_leases();
      held->set_lease_id(IdBytes(lease.lease));
      *held->mutable_worker() = ToProto(lease.worker);
      Fill(held->mutable_resources(), lease.resources.ToMap());
    }
    for (const HeldActor& actor : m.actors) {
      v1::HeldActor* held = r->add_actors();
      held->set_actor_id(IdBytes(actor.actor));
      held->set_incarnation(actor.incarnation);
      *held->mutable_worker() = ToProto(actor.worker);
    }
    r->set_draining(m.draining.has_value());
    r->set_drain_reason(m.draining.value_or(""));
    for (const std::string& id : m.job_submission_ids) r->add_job_submission_ids(id);
    for (const HeldBundle& bundle : m.bundles) {
      v1::HeldBundle* held = r->add_bundles();
      SetBundle(held, bundle.bundle);
      held->set_committed(bundle.committed);
      Fill(held->mutable_resources(), bundle.resources.ToMap());
    }
  }
  void operator()(const Heartbeat& m) {
    v1::Heartbeat* h = out->mutable_heartbeat();
    h->set_number(m.number);
    h->set_object_store_used(m.object_store_used);
    h->set_workers(m.workers);
    h->set_object_store_spilled(m.object_store_spilled);
  }
  void operator()(const ResourceUpdate& m) {
    v1::ResourceUpdate* r = out->mutable_resources();
    r->set_version(m.version);
    Fill(r->mutable_available(), m.available.ToMap());
    r->set_waiting_requests(m.waiting_requests);
    for (const BundleAvailable& bundle : m.bundles) {
      v1::BundleAvailable* b = r->add_bundles();
      SetBundle(b, bundle.bundle);
      Fill(b->mutable_available(), bundle.available.ToMap());
    }
    for (LeaseId lease : m.ended_leases) r->add_ended_leases(IdBytes(lease));
  }
  void operator()(const LeaseResult& m) {
    v1::LeaseResult* r = out->mutable_lease_result();
    r->set_request_id(m.request_id);
    r->set_lease_id(IdBytes(m.lease));
    r->set_granted(m.granted);
    r->set_refusal(m.refusal);
    r->set_retry_elsewhere(m.retry_elsewhere);
    if (m.granted) *r->mutable_worker() = ToProto(m.worker);
    for (uint32_t gpu : m.gpu_ids) r->add_gpu_ids(gpu);
    r->set_environment_failed(m.environment_failed);
  }
  void operator()(const BundlesPrepared& m) {
    v1::BundlesPrepared* b = out->mutable_bundles_prepared();
    b->set_group_id(IdBytes(m.group));
    b->set_attempt(m.attempt);
    b->set_ok(m.ok);
    b->set_reason(m.reason);
  }
  void operator()(const BundlesCommitted& m) {
    v1::BundlesCommitted* b = out->mutable_bundles_committed();
    b->set_group_id(IdBytes(m.group));
    b->set_attempt(m.attempt);
    b->set_ok(m.ok);
    b->set_reason(m.reason);
  }
  void operator()(const ActorStarted& m) {
    v1::ActorStarted* a = out->mutable_actor_started();
    a->set_actor_id(IdBytes(m.actor));
    a->set_incarnation(m.incarnation);
    *a->mutable_worker() = ToProto(m.worker);
  }
  void operator()(const ActorEnded& m) {
    v1::ActorEnded* a = out->mutable_actor_ended();
    a->set_actor_id(IdBytes(m.actor));
    a->set_incarnation(m.incarnation);
    a->set_reason(m.reason);
    a->set_retry_elsewhere(m.retry_elsewhere);
    a->set_constructor_failed(m.constructor_failed);
    a->set_intended(m.intended);
  }
  void operator()(const WorkerDied& m) {
    v1::WorkerDied* w = out->mutable_worker_died();
    w->set_worker_id(IdBytes(m.worker));
    w->set_reason(m.reason);
    w->set_exit_code(m.exit_code);
    w->set_out_of_memory(m.out_of_memory);
  }
  void operator()(const DriverJoined& m) {
    v1::DriverJoined* d = out->mutable_driver_joined();
    d->set_job_id(IdBytes(m.job));
    d->set_submission_id(m.submission_id);
    *d->mutable_driver() = ToProto(m.driver);
    d->set_pid(m.pid);
    d->set_entrypoint(m.entrypoint);
    d->set_namespace_(m.ns);
    d->set_quiet(m.quiet);
  }
  void operator()(const DriverLeft& m) {
    v1::DriverLeft* d = out->mutable_driver_left();
    d->set_job_id(IdBytes(m.job));
    d->set_reason(m.reason);
  }
  void operator()(const JobStarted& m) {
    v1::JobStarted* j = out->mutable_job_started();
    j->set_submission_id(m.submission_id);
    j->set_pid(m.pid);
  }
  void operator()(const JobStartFailed& m) {
    v1::JobStartFailed* j = out->mutable_job_start_failed();
    j->set_submission_id(m.submission_id);
    j->set_message(m.message);
    j->set_error_type(m.error_type);
    j->set_retry_elsewhere(m.retry_elsewhere);
  }
  void operator()(const JobExited& m) {
    v1::JobExited* j = out->mutable_job_exited();
    j->set_submission_id(m.submission_id);
    j->set_exit_code(m.exit_code);
    j->set_signal(m.signal);
    j->set_stopped(m.stopped);
  }
  void operator()(const JobLogBytes& m) {
    v1::JobLogBytes* j = out->mutable_job_log();
    j->set_submission_id(m.submission_id);
    j->set_offset(m.offset);
    j->set_data(m.data);
  }
  void operator()(const JobPrints& m) {
    out->mutable_job_prints()->set_job_id(IdBytes(m.job));
    out->mutable_job_prints()->set_body(Encode(m));
  }
  void operator()(const FlushPrints& m) { out->mutable_flush_prints()->set_job_id(IdBytes(m.job)); }
  void operator()(const CarriedMetrics& m) { out->mutable_metrics()->set_body(m.body); }
  void operator()(const NodeLeft& m) { out->mutable_left()->set_reason(m.reason); }
  void operator()(const CarriedTaskEvents& m) {
    out->mutable_task_events()->set_body(m.body);
    out->mutable_task_events()->set_dropped(m.dropped);
  }
  void operator()(const NodeAnswer& m) {
    v1::NodeAnswer* a = out->mutable_answer();
    a->set_number(m.number);
    if (m.body.ok()) return a->set_body(*m.body);
    a->set_error_code(static_cast<int32_t>(m.body.status().code()));
    a->set_error(Message(m.body.status()));
  }
};

}  // namespace

v1::NodeMessage ToProto(const ToHead& message) {
  v1::NodeMessage out;
  std::visit(Filler{&out}, message);
  return out;
}

absl::StatusOr<FromHead> FromProto(const v1::HeadMessage& message) {
  using Case = v1::HeadMessage;
  switch (message.message_case()) {
    case Case::kRegistered: {
      const v1::Registered& m = message.registered();
      return Registered{m.cluster_id(), m.epoch(), m.heartbeat_seconds(), m.node_timeout_seconds()};
    }
    case Case::kRejected: return Rejected{message.rejected().reason(), message.rejected().declared_dead()};
    case Case::kGrantLease: {
      const v1::GrantLease& m = message.grant_lease();
      GrantLease grant;
      grant.request_id = m.request_id();
      auto lease = LeaseId::FromBytes(m.lease_id());
      if (!lease) return InvalidArgument("GrantLease without a lease id");
      grant.lease = *lease;
      grant.job = IdFrom<JobId>(m.job_id());
      grant.demand = FromProto(m.demand());
      grant.code = FromProto(m.code());
      grant.holder = IdFrom<WorkerId>(m.holder_worker_id());
      return grant;
    }
    case Case::kReleaseLease: return ReleaseLease{IdFrom<LeaseId>(message.release_lease().lease_id()), message.release_lease().worker_failed()};
    case Case::kRecallLease: return RecallLease{IdFrom<LeaseId>(message.recall_lease().lease_id())};
    case Case::kPrepareBundles: {
      const v1::PrepareBundles& m = message.prepare_bundles();
      PrepareBundles prepare{GroupId(), m.attempt(), {}, m.commit()};
      ARGOSY_ASSIGN_OR_RETURN(prepare.group, GroupOf(m));
      for (const v1::PrepareBundles::Bundle& bundle : m.bundles()) {
        if (bundle.index() < 0) return InvalidArgument("PrepareBundles with bundle {}", bundle.index());
        ARGOSY_ASSIGN_OR_RETURN(ResourceSet resources, Resources(bundle.resources()));
        prepare.bundles.push_back({bundle.index(), std::move(resources)});
      }
      return prepare;
    }
    case Case::kCommitBundles: {
      CommitBundles commit{GroupId(), message.commit_bundles().attempt(), {}};
      ARGOSY_ASSIGN_OR_RETURN(commit.group, GroupOf(message.commit_bundles()));
      ARGOSY_ASSIGN_OR_RETURN(commit.indices, IndicesOf(message.commit_bundles()));
      return commit;
    }
    case Case::kReturnBundles: {
      ReturnBundles returned;
      ARGOSY_ASSIGN_OR_RETURN(returned.group, GroupOf(message.return_bundles()));
      ARGOSY_ASSIGN_OR_RETURN(returned.indices, IndicesOf(message.return_bundles()));
      return returned;
    }
    case Case::kStartActor: {
      const v1::StartActor& m = message.start_actor();
      StartActor start{FromProto(m.spec()), m.incarnation(), IdFrom<LeaseId>(m.lease_id())};
      if (start.spec.actor.IsNil() || start.lease.IsNil()) return InvalidArgument("StartActor without an actor id or a lease id");
      return start;
    }
    case Case::kStopActor: {
      const v1::StopActor& m = message.stop_actor();
      return StopActor{IdFrom<ActorId>(m.actor_id()), m.incarnation(), m.no_restart(), m.reason()};
    }
    case Case::kJobEnded: return JobEnded{IdFrom<JobId>(message.job_ended().job_id()), message.job_ended().reason()};
    case Case::kStartJob: {
      const v1::StartJob& m = message.start_job();
      StartJob start;
      start.submission_id = m.submission_id();
      start.entrypoint = m.entrypoint();
      start.env_vars = FromMap<Texts>(m.env_vars());
      start.working_dir_uri = m.working_dir_uri();
      start.py_modules_uris.assign(m.py_modules_uris().begin(), m.py_modules_uris().end());
      start.runtime_env_json = m.runtime_env_json();
      start.metadata = FromMap<Texts>(m.metadata());
      start.lease = IdFrom<LeaseId>(m.lease_id());
      start.demand = FromProto(m.demand());
      if (start.submission_id.empty()) return InvalidArgument("StartJob without a submission id");
      return start;
    }
    case Case::kStopJob: return StopJob{message.stop_job().submission_id(), message.stop_job().grace_seconds()};
    case Case::kJobLogAck: return JobLogAck{message.job_log_ack().submission_id(), message.job_log_ack().end()};
    case Case::kJobExitAck: return JobExitAck{message.job_exit_ack().submission_id()};
    case Case::kOtherNodeLost: return OtherNodeLost{IdFrom<NodeId>(message.other_node_lost().node_id())};
    case Case::kContended: return NodeContended{message.contended().contended(), message.contended().job_priority()};
    case Case::kJobPrints: {
      ARGOSY_ASSIGN_OR_RETURN(JobPrints prints, Decode<JobPrints>(message.job_prints().body()));
      return prints;
    }
    case Case::kPrintsFlushed: return PrintsFlushed{IdFrom<JobId>(message.prints_flushed().job_id())};
    case Case::kMutePrints: return MutePrints{IdFrom<JobId>(message.mute_prints().job_id())};
    case Case::kDrain: return DrainNode{message.drain().reason(), message.drain().deadline_seconds(), message.drain().undo()};
    case Case::kQuestion: {
      // A question that this node does not know is answered all the same.
      absl::StatusOr<NodeQuestion> question = Decode<NodeQuestion>(message.question().body());
      if (!question.ok()) return AskedNode{message.question().number(), std::nullopt};
      return AskedNode{message.question().number(), std::move(*question)};
    }
    case Case::MESSAGE_NOT_SET: break;
  }
  return absl::UnimplementedError("a message of the head that this node does not know");
}

v1::WorkerAddress ToProto(const wire::WorkerAddress& address) {
  v1::WorkerAddress out;
  out.set_worker_id(IdBytes(address.worker));
  out.set_node_id(IdBytes(address.node));
  out.set_unix_path(address.unix_path);
  out.set_tcp(address.tcp);
  return out;
}
wire::WorkerAddress FromProto(const v1::WorkerAddress& address) {
  return {IdFrom<WorkerId>(address.worker_id()), IdFrom<NodeId>(address.node_id()), address.unix_path(), address.tcp()};
}

v1::Demand ToProto(const wire::Demand& demand) {
  v1::Demand out;
  Fill(out.mutable_resources(), demand.resources);
  Fill(out.mutable_label_selector(), demand.label_selector);
  if (std::holds_alternative<wire::SpreadStrategy>(demand.strategy)) {
    out.mutable_strategy()->set_kind(v1::Strategy::SPREAD);
  } else if (auto* node = std::get_if<wire::NodeAffinity>(&demand.strategy)) {
    out.mutable_strategy()->mutable_node_affinity()->set_node_id(IdBytes(node->node));
    out.mutable_strategy()->mutable_node_affinity()->set_soft(node->soft);
  } else if (auto* bundle = std::get_if<wire::BundleAffinity>(&demand.strategy)) {
    out.mutable_strategy()->mutable_bundle_affinity()->set_group_id(IdBytes(bundle->group));
    out.mutable_strategy()->mutable_bundle_affinity()->set_bundle_index(bundle->bundle_index);
  }
  for (const wire::ObjectLocation& location : demand.locality) {
    v1::ObjectBytes* bytes = out.add_locality();
    bytes->set_node_id(IdBytes(location.node));
    bytes->set_bytes(location.size);
  }
  out.set_priority(demand.priority);
  out.set_not_retriable(!demand.retriable);
  out.set_job_priority(demand.job_priority);
  return out;
}
wire::Demand FromProto(const v1::Demand& demand) {
  wire::Demand out;
  out.resources = FromMap<Amounts>(demand.resources());
  out.label_selector = FromMap<Texts>(demand.label_selector());
  const v1::Strategy& strategy = demand.strategy();
  if (strategy.has_node_affinity()) {
    out.strategy = wire::NodeAffinity{IdFrom<NodeId>(strategy.node_affinity().node_id()), strategy.node_affinity().soft()};
  } else if (strategy.has_bundle_affinity()) {
    out.strategy = wire::BundleAffinity{IdFrom<GroupId>(strategy.bundle_affinity().group_id()), strategy.bundle_affinity().bundle_index()};
  } else if (strategy.kind() == v1::Strategy::SPREAD) {
    out.strategy = wire::SpreadStrategy{};
  }
  for (const v1::ObjectBytes& bytes : demand.locality()) out.locality.push_back({IdFrom<NodeId>(bytes.node_id()), "", bytes.bytes()});
  out.priority = demand.priority();
  out.retriable = !demand.not_retriable();
  out.job_priority = demand.job_priority();
  return out;
}

v1::CodePackage ToProto(const wire::CodePackage& code) {
  v1::CodePackage out;
  out.set_id(code.id);
  for (const wire::CodeFile& file : code.files) {
    v1::CodeFile* f = out.add_files();
    f->set_path(file.path);
    f->set_sha256(file.sha256);
    f->set_size(file.size);
    f->set_mode(file.mode);
  }
  for (const std::string& argument : code.argv) out.add_argv(argument);
  for (const std::string& folder : code.library_path) out.add_library_path(folder);
  out.set_source_address(code.source_address);
  Fill(out.mutable_env_vars(), code.env_vars);
  out.set_working_dir(code.working_dir);
  out.set_job_priority(code.job_priority);
  out.set_working_dir_uri(code.working_dir_uri);
  for (const std::string& folder : code.loader_path) out.add_loader_path(folder);
  return out;
}
wire::CodePackage FromProto(const v1::CodePackage& code) {
  wire::CodePackage out;
  out.id = code.id();
  for (const v1::CodeFile& file : code.files()) out.files.push_back({file.path(), file.sha256(), file.size(), file.mode()});
  out.argv.assign(code.argv().begin(), code.argv().end());
  out.library_path.assign(code.library_path().begin(), code.library_path().end());
  out.source_address = code.source_address();
  out.env_vars = FromMap<Texts>(code.env_vars());
  out.working_dir = code.working_dir();
  out.job_priority = code.job_priority();
  out.working_dir_uri = code.working_dir_uri();
  out.loader_path.assign(code.loader_path().begin(), code.loader_path().end());
  return out;
}

v1::ActorSpec ToProto(const wire::ActorSpec& spec) {
  v1::ActorSpec out;
  out.set_actor_id(IdBytes(spec.actor));
  out.set_job_id(IdBytes(spec.job));
  out.set_class_name(spec.class_name);
  out.set_creator(spec.creator);
  out.set_arguments(spec.arguments);
  out.set_name(spec.name);
  out.set_namespace_(spec.ns);
  out.set_get_if_exists(spec.get_if_exists);
  out.set_detached(spec.detached);
  *out.mutable_placement() = ToProto(spec.placement);
  Fill(out.mutable_running_resources(), spec.running_resources);
  out.set_max_restarts(spec.max_restarts);
  out.set_max_task_retries(spec.max_task_retries);
  out.set_max_concurrency(spec.max_concurrency);
  *out.mutable_code() = ToProto(spec.code);
  *out.mutable_owner() = ToProto(spec.owner);
  out.set_start_timeout_seconds(spec.start_timeout_seconds);
  for (const wire::ConcurrencyGroup& group : spec.concurrency_groups) {
    v1::ConcurrencyGroup* g = out.add_concurrency_groups();
    g->set_name(group.name);
    g->set_max_concurrency(group.max_concurrency);
    for (const std::string& method : group.methods) g->add_methods(method);
  }
  out.set_max_pending_calls(spec.max_pending_calls);
  out.set_fail_when_full(spec.fail_when_full);
  return out;
}
wire::ActorSpec FromProto(const v1::ActorSpec& spec) {
  wire::ActorSpec out;
  out.actor = IdFrom<ActorId>(spec.actor_id());
  out.class_name = spec.class_name();
  out.creator = spec.creator();
  out.arguments = spec.arguments();
  out.name = spec.name();
  out.ns = spec.namespace_();
  out.get_if_exists = spec.get_if_exists();
  out.detached = spec.detached();
  out.placement = FromProto(spec.placement());
  out.running_resources = FromMap<Amounts>(spec.running_resources());
  out.max_restarts = spec.max_restarts();
  out.max_task_retries = spec.max_task_retries();
  out.max_concurrency = spec.max_concurrency();
  out.code = FromProto(spec.code());
  out.owner = FromProto(spec.owner());
  out.job = IdFrom<JobId>(spec.job_id());
  out.start_timeout_seconds = spec.start_timeout_seconds();
  for (const v1::ConcurrencyGroup& group : spec.concurrency_groups()) {
    out.concurrency_groups.push_back({group.name(), group.max_concurrency(), {group.methods().begin(), group.methods().end()}});
  }
  out.max_pending_calls = spec.max_pending_calls();
  out.fail_when_full = spec.fail_when_full();
  return out;
}

wire::ActorInfo FromProto(const v1::ActorInfo& info) {
  wire::ActorInfo out;
  out.actor = IdFrom<ActorId>(info.actor_id());
  out.state = static_cast<wire::ActorInfo::State>(info.state());
  out.incarnation = info.incarnation();
  out.worker = FromProto(info.worker());
  out.name = info.name();
  out.ns = info.namespace_();
  out.class_name = info.class_name();
  out.death_reason = info.death_reason();
  out.max_task_retries = info.max_task_retries();
  out.pending_reason = info.pending_reason();
  out.constructor_failed = info.constructor_failed();
  out.node = out.worker.node;
  out.max_pending_calls = info.max_pending_calls();
  out.fail_when_full = info.fail_when_full();
  return out;
}

wire::GroupInfo FromProto(const v1::GroupInfo& info) {
  wire::GroupInfo out;
  out.group = IdFrom<GroupId>(info.spec().group_id());
  out.state = static_cast<wire::GroupInfo::State>(info.state());
  for (const std::string& node : info.bundle_nodes()) out.bundle_nodes.push_back(IdFrom<NodeId>(node));
  out.pending_reason = info.pending_reason();
  return out;
}

wire::NodeInfo FromProto(const v1::NodeInfo& info) {
  wire::NodeInfo out;
  out.node = IdFrom<NodeId>(info.node_id());
  out.name = info.name();
  out.ip = info.ip();
  out.wire_address = info.wire_address();
  out.resources_total = FromMap<Amounts>(info.resources_total());
  out.resources_available = FromMap<Amounts>(info.resources_available());
  out.labels = FromMap<Texts>(info.labels());
  out.alive = info.alive();
  out.is_head_node = info.is_head_node();
  out.hostname = info.hostname();
  out.object_store_used = info.object_store_used();
  out.draining = info.draining();
  return out;
}
v1::NodeInfo ToProto(const wire::NodeInfo& info) {
  v1::NodeInfo out;
  out.set_node_id(IdBytes(info.node));
  out.set_name(info.name);
  out.set_ip(info.ip);
  out.set_wire_address(info.wire_address);
  Fill(out.mutable_resources_total(), info.resources_total);
  Fill(out.mutable_resources_available(), info.resources_available);
  Fill(out.mutable_labels(), info.labels);
  out.set_alive(info.alive);
  out.set_is_head_node(info.is_head_node);
  return out;
}

}  // namespace argosy::node
