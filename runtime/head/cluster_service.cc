#include "runtime/head/cluster_service.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "runtime/head/head_codec.h"

namespace argosy::head {
namespace {

constexpr size_t kKeyMax = 64 << 10;
constexpr double kWaitSecondsMax = 600;

absl::Status CheckKey(const std::string& key) {
  if (key.empty() || key.size() > kKeyMax) return InvalidArgument("key has {} bytes; 1 to {} are allowed", key.size(), kKeyMax);
  return absl::OkStatus();
}

// Longer waits are asked again by the caller; NaN waits not at all.
absl::Duration WaitOf(double seconds) { return seconds > 0 ? absl::Seconds(std::min(seconds, kWaitSecondsMax)) : absl::ZeroDuration(); }

}  // namespace

// ---- key-value store ----------------------------------------------------------------------------------------------------------

ClusterService::Unary* ClusterService::KvPut(Context* context, const v1::KvPutRequest* request, v1::KvPutReply* reply) {
  return gate_.Unary<v1::KvPutReply>(context, reply, [this, request](rpc::Answer<v1::KvPutReply> answer) {
    if (absl::Status status = CheckKey(request->key()); !status.ok()) return answer.Error(status);
    core_.KvPut(request->namespace_(), request->key(), request->value(), request->overwrite(), [answer](absl::StatusOr<bool> added) {
      if (!added.ok()) return answer.Error(added.status());
      answer.Ok([&](v1::KvPutReply& reply) { reply.set_added(*added); });
    });
  });
}

ClusterService::Unary* ClusterService::KvGet(Context* context, const v1::KvGetRequest* request, v1::KvGetReply* reply) {
  return gate_.Unary<v1::KvGetReply>(context, reply, [this, request](rpc::Answer<v1::KvGetReply> answer) {
    const std::string* value = core_.KvGet(request->namespace_(), request->key());
    answer.Ok([&](v1::KvGetReply& reply) {
      reply.set_found(value != nullptr);
      if (value != nullptr) reply.set_value(*value);
    });
  });
}

ClusterService::Unary* ClusterService::KvDelete(Context* context, const v1::KvDeleteRequest* request, v1::KvDeleteReply* reply) {
  return gate_.Unary<v1::KvDeleteReply>(context, reply, [this, request](rpc::Answer<v1::KvDeleteReply> answer) {
    core_.KvDelete(request->namespace_(), request->key(), [answer](absl::StatusOr<bool> deleted) {
      if (!deleted.ok()) return answer.Error(deleted.status());
      answer.Ok([&](v1::KvDeleteReply& reply) { reply.set_deleted(*deleted); });
    });
  });
}

ClusterService::Unary* ClusterService::KvList(Context* context, const v1::KvListRequest* request, v1::KvListReply* reply) {
  return gate_.Unary<v1::KvListReply>(context, reply, [this, request](rpc::Answer<v1::KvListReply> answer) {
    std::vector<std::string> keys = core_.KvList(request->namespace_(), request->prefix());
    answer.Ok([&](v1::KvListReply& reply) { reply.mutable_keys()->Assign(keys.begin(), keys.end()); });
  });
}

// ---- leases -------------------------------------------------------------------------------------------------------------------

ClusterService::Unary* ClusterService::RequestLease(Context* context, const v1::LeaseRequest* request, v1::LeaseReply* reply) {
  return gate_.Unary<v1::LeaseReply>(context, reply, [this, request](rpc::Answer<v1::LeaseReply> answer) {
    absl::StatusOr<LeaseRequest> parsed = FromWire(*request, Clock::Real().Now());
    if (!parsed.ok()) return answer.Error(parsed.status());
    std::string id = parsed->id;
    uint64_t waiter = core_.RequestLease(std::move(*parsed), [answer](absl::StatusOr<LeaseMachine::Lease> lease) {
      if (!lease.ok()) return answer.Error(lease.status());
      answer.Ok([&](v1::LeaseReply& reply) {
        reply.set_lease_id(IdToWire(lease->id));
        ToWire(lease->worker, reply.mutable_worker());
        reply.mutable_gpu_ids()->Assign(lease->gpu_ids.begin(), lease->gpu_ids.end());
      });
    });
    answer.OnCancelled([this, id, waiter] { core_.CancelLease(id, waiter); });
  });
}

ClusterService::Unary* ClusterService::WithdrawLease(Context* context, const v1::WithdrawLeaseRequest* request, v1::Empty* reply) {
  return gate_.Unary<v1::Empty>(context, reply, [this, request](rpc::Answer<v1::Empty> answer) {
    if (absl::Status status = CheckRequestId(request->request_id()); !status.ok()) return answer.Error(status);
    core_.WithdrawLease(request->request_id());
    answer.Ok();
  });
}

ClusterService::Unary* ClusterService::ReturnLease(Context* context, const v1::ReturnLeaseRequest* request, v1::Empty* reply) {
  return gate_.Unary<v1::Empty>(context, reply, [this, request](rpc::Answer<v1::Empty> answer) {
    absl::StatusOr<LeaseId> lease = IdFromWire<LeaseId>(request->lease_id(), "lease_id");
    absl::StatusOr<NodeId> node = OptionalIdFromWire<NodeId>(request->node_id(), "node_id");
    if (!lease.ok()) return answer.Error(lease.status());
    if (!node.ok()) return answer.Error(node.status());
    core_.ReturnLease(*lease, *node, request->worker_failed());
    answer.Ok();
  });
}

// ---- actors -------------------------------------------------------------------------------------------------------------------

void ClusterService::FillActor(ActorId id, v1::ActorInfo* wire) const {
  const ActorRecord* actor = core_.actors().Find(id);
  if (actor != nullptr) return ToWire(*actor, core_.ActorPendingReason(*actor), wire);
  wire->set_actor_id(IdToWire(id));
  wire->set_state(v1::ActorInfo::DEAD);
  wire->set_death_reason("it ended");
}

ClusterService::Unary* ClusterService::CreateActor(Context* context, const v1::CreateActorRequest* request, v1::ActorInfo* reply) {
  return gate_.Unary<v1::ActorInfo>(context, reply, [this, request](rpc::Answer<v1::ActorInfo> answer) {
    absl::StatusOr<ActorRecord> actor = FromWire(request->spec());
    if (!actor.ok()) return answer.Error(actor.status());
    core_.CreateActor(std::move(*actor), request->spec().get_if_exists(), [this, answer](absl::StatusOr<ActorId> id) {
      if (!id.ok()) return answer.Error(id.status());
      answer.Ok([&](v1::ActorInfo& reply) { FillActor(*id, &reply); });
    });
  });
}

ClusterService::Unary* ClusterService::ResolveActor(Context* context, const v1::ResolveActorRequest* request, v1::ActorInfo* reply) {
  return gate_.Unary<v1::ActorInfo>(context, reply, [this, request](rpc::Answer<v1::ActorInfo> answer) {
    absl::StatusOr<ActorId> id = OptionalIdFromWire<ActorId>(request->actor_id(), "actor_id");
    if (!id.ok()) return answer.Error(id.status());
    if (id->IsNil() && request->name().empty()) return answer.Error(InvalidArgument("give actor_id, or name and namespace"));
    HeadCore::ResolveActor resolve{*id, request->name(), request->namespace_(), request->incarnation_min(), WaitOf(request->wait_seconds())};
    core_.Resolve(resolve, [this, answer](absl::StatusOr<ActorId> found) {
      if (!found.ok()) return answer.Error(found.status());
      answer.Ok([&](v1::ActorInfo& reply) { FillActor(*found, &reply); });
    });
  });
}

ClusterService::Unary* ClusterService::KillActor(Context* context, const v1::KillActorRequest* request, v1::Empty* reply) {
  return gate_.Unary<v1::Empty>(context, reply, [this, request](rpc::Answer<v1::Empty> answer) {
    absl::StatusOr<ActorId> id = IdFromWire<ActorId>(request->actor_id(), "actor_id");
    if (!id.ok()) return answer.Error(id.status());
    answer.Error(core_.KillActor(*id, request->no_restart(), request->reason()));
  });
}

ClusterService::Unary* ClusterService::ListActors(Context* context, const v1::ListActorsRequest* request, v1::ListActorsReply* reply) {
  return gate_.Unary<v1::ListActorsReply>(context, reply, [this, request](rpc::Answer<v1::ListActorsReply> answer) {
    answer.Ok([&](v1::ListActorsReply& reply) {
      for (const ActorRecord* actor : core_.actors().All(request->include_dead())) {
        ToWire(*actor, core_.ActorPendingReason(*actor), reply.add_actors());
      }
    });
  });
}

// ---- placement groups ---------------------------------------------------------------------------------------------------------

ClusterService::Unary* ClusterService::CreateGroups(Context* context, const v1::CreateGroupsRequest* request, v1::CreateGroupsReply* reply) {
  return gate_.Unary<v1::CreateGroupsReply>(context, reply, [this, request](rpc::Answer<v1::CreateGroupsReply> answer) {
    struct Made { std::vector<absl::StatusOr<GroupView>> groups; size_t missing = 0; };
    auto made = std::make_shared<Made>();
    made->groups.resize(static_cast<size_t>(request->groups_size()), absl::UnknownError(""));
    made->missing = made->groups.size() + 1;
    auto one_is_there = [made, answer] {
      if (--made->missing > 0) return;
      answer.Ok([&](v1::CreateGroupsReply& reply) {
        for (const absl::StatusOr<GroupView>& group : made->groups) {
          v1::CreateGroupResult* result = reply.add_results();
          if (group.ok()) {
            ToWire(*group, result->mutable_group());
          } else {
            result->set_error_code(static_cast<int>(group.status().code()));
            result->set_error(Message(group.status()));
          }
        }
      });
    };
    for (size_t i = 0; i < made->groups.size(); ++i) {
      auto done = [made, one_is_there, i](absl::StatusOr<GroupView> group) {
        made->groups[i] = std::move(group);
        one_is_there();
      };
      absl::StatusOr<GroupSpec> spec = FromWire(request->groups(static_cast<int>(i)));
      if (spec.ok()) core_.CreateGroup(std::move(*spec), done);
      else done(spec.status());
    }
    one_is_there();
  });
}

ClusterService::Unary* ClusterService::WaitGroup(Context* context, const v1::WaitGroupRequest* request, v1::GroupInfo* reply) {
  return gate_.Unary<v1::GroupInfo>(context, reply, [this, request](rpc::Answer<v1::GroupInfo> answer) {
    absl::StatusOr<GroupId> id = IdFromWire<GroupId>(request->group_id(), "group_id");
    if (!id.ok()) return answer.Error(id.status());
    core_.WaitGroup(*id, WaitOf(request->wait_seconds()), [answer](absl::StatusOr<GroupView> group) {
      if (!group.ok()) return answer.Error(group.status());
      answer.Ok([&](v1::GroupInfo& reply) { ToWire(*group, &reply); });
    });
  });
}

ClusterService::Unary* ClusterService::RemoveGroup(Context* context, const v1::RemoveGroupRequest* request, v1::Empty* reply) {
  return gate_.Unary<v1::Empty>(context, reply, [this, request](rpc::Answer<v1::Empty> answer) {
    absl::StatusOr<GroupId> id = IdFromWire<GroupId>(request->group_id(), "group_id");
    if (!id.ok()) return answer.Error(id.status());
    core_.RemoveGroup(*id, [answer](absl::Status status) {
      if (!status.ok()) return answer.Error(status);
      answer.Ok();
    });
  });
}

ClusterService::Unary* ClusterService::ListGroups(Context* context, const v1::Empty* request, v1::ListGroupsReply* reply) {
  return gate_.Unary<v1::ListGroupsReply>(context, reply, [this](rpc::Answer<v1::ListGroupsReply> answer) {
    answer.Ok([&](v1::ListGroupsReply& reply) {
      for (const GroupView& group : core_.Groups()) ToWire(group, reply.add_groups());
    });
  });
}

// ---- listings -----------------------------------------------------------------------------------------------------------------

ClusterService::Unary* ClusterService::ListNodes(Context* context, const v1::Empty* request, v1::ListNodesReply* reply) {
  return gate_.Unary<v1::ListNodesReply>(context, reply, [this](rpc::Answer<v1::ListNodesReply> answer) {
    answer.Ok([&](v1::ListNodesReply& reply) {
      for (const NodeTable::Node* node : core_.nodes().All()) ToWire(*node, core_.view().Find(node->description.id), reply.add_nodes());
    });
  });
}

ClusterService::Unary* ClusterService::ClusterStatus(Context* context, const v1::Empty* request, v1::ClusterStatusReply* reply) {
  return gate_.Unary<v1::ClusterStatusReply>(context, reply, [this](rpc::Answer<v1::ClusterStatusReply> answer) {
    answer.Ok([&](v1::ClusterStatusReply& reply) {
      reply.set_cluster_id(core_.cluster_id());
      reply.set_head_address(core_.options().head_address);
      reply.set_dashboard_url(core_.options().dashboard_url);
      reply.set_session_name(core_.options().session_name);
      reply.set_version(kVersion);
      reply.set_started_unix_ms(core_.started_unix_ms());
      for (const NodeTable::Node* node : core_.nodes().All()) ToWire(*node, core_.view().Find(node->description.id), reply.add_nodes());
      for (const PendingSummary& pending : core_.Pending()) {
        v1::PendingDemand* wire = reply.add_pending();
        wire->set_what(pending.what);
        wire->set_count(pending.count);
        wire->set_explanation(pending.explanation);
        for (const auto& [name, amount] : pending.resources) (*wire->mutable_resources())[name] = amount;
        for (const auto& [name, value] : pending.label_selector) (*wire->mutable_label_selector())[name] = value;
      }
      reply.set_actors_alive(static_cast<uint32_t>(core_.actors().alive_count()));
      uint32_t groups = 0;
      for (const GroupView& group : core_.Groups()) groups += group.state == GroupView::State::kCreated;
      reply.set_groups_created(groups);
      reply.set_jobs_running(static_cast<uint32_t>(core_.jobs().running_count()));
    });
  });
}

ClusterService::Unary* ClusterService::WorkerFate(Context* context, const v1::WorkerFateRequest* request, v1::WorkerFateReply* reply) {
  return gate_.Unary<v1::WorkerFateReply>(context, reply, [this, request](rpc::Answer<v1::WorkerFateReply> answer) {
    absl::StatusOr<WorkerId> worker = IdFromWire<WorkerId>(request->worker_id(), "worker_id");
    absl::StatusOr<NodeId> node = OptionalIdFromWire<NodeId>(request->node_id(), "node_id");
    if (!worker.ok()) return answer.Error(worker.status());
    if (!node.ok()) return answer.Error(node.status());
    struct WorkerFate fate = core_.Fate(*worker, *node);
    answer.Ok([&](v1::WorkerFateReply& reply) {
      reply.set_dead(fate.dead);
      reply.set_reason(fate.reason);
      reply.set_node_lost(fate.node_lost);
      reply.set_out_of_memory(fate.out_of_memory);
    });
  });
}

ClusterService::Unary* ClusterService::ExplainDemand(Context* context, const v1::Demand* request, v1::ExplainReply* reply) {
  return gate_.Unary<v1::ExplainReply>(context, reply, [this, request](rpc::Answer<v1::ExplainReply> answer) {
    absl::StatusOr<scheduler::Demand> demand = FromWire(*request);
    if (!demand.ok()) return answer.Error(demand.status());
    auto [placeable, text] = core_.Explain(*demand);
    answer.Ok([&, placeable = placeable, text = text](v1::ExplainReply& reply) {
      reply.set_placeable(placeable);
      reply.set_text(text);
    });
  });
}

}  // namespace argosy::head
