// What goes on, as the CLI asks for it: lists, logs, stacks, draining, metrics.

#include <algorithm>

#include "runtime/head/cluster_service.h"
#include "runtime/head/head_codec.h"
#include "runtime/head/state_list.h"

namespace argosy::head {

ClusterService::Unary* ClusterService::ListState(Context* context, const v1::ListStateRequest* request, v1::ListStateReply* reply) {
  return gate_.Unary<v1::ListStateReply>(context, reply, [this, request](rpc::Answer<v1::ListStateReply> answer) {
    StateQuery query;
    query.kind = request->kind();
    for (const v1::StateFilter& filter : request->filters()) query.filters.push_back({filter.key(), filter.value(), filter.not_equal()});
    query.limit = request->limit();
    query.offset = request->offset();
    query.id = request->id();
    query.detail = request->detail();
    head::ListState(core_, query, [answer](absl::StatusOr<StateList> list) {
      if (!list.ok()) return answer.Error(list.status());
      answer.Ok([&](v1::ListStateReply& reply) {
        for (std::string& row : list->rows) reply.add_rows(std::move(row));
        reply.set_matched(list->matched);
        reply.set_missing(list->missing);
        for (std::string& warning : list->warnings) reply.add_warnings(std::move(warning));
      });
    });
  });
}

ClusterService::Unary* ClusterService::ReadWorkerLog(Context* context, const v1::ReadWorkerLogRequest* request, v1::WorkerLogChunk* reply) {
  return gate_.Unary<v1::WorkerLogChunk>(context, reply, [this, request](rpc::Answer<v1::WorkerLogChunk> answer) {
    HeadCore::LogRequest read{request->kind(), request->id(), request->error_stream(), request->offset(), request->size_max(), request->from_end()};
    core_.ReadWorkerLog(read, [answer](absl::StatusOr<HeadCore::LogChunk> chunk) {
      if (!chunk.ok()) return answer.Error(chunk.status());
      answer.Ok([&](v1::WorkerLogChunk& reply) {
        reply.set_data(std::move(chunk->data));
        reply.set_offset(chunk->offset);
        reply.set_end(chunk->end);
        reply.set_what(chunk->what);
        reply.set_may_grow(chunk->may_grow);
      });
    });
  });
}

ClusterService::Unary* ClusterService::DumpStacks(Context* context, const v1::DumpStacksRequest* request, v1::DumpStacksReply* reply) {
  return gate_.Unary<v1::DumpStacksReply>(context, reply, [this, request](rpc::Answer<v1::DumpStacksReply> answer) {
    core_.DumpStacks(request->worker_id(), [answer](absl::StatusOr<std::string> text) {
      if (!text.ok()) return answer.Error(text.status());
      answer.Ok([&](v1::DumpStacksReply& reply) { reply.set_text(std::move(*text)); });
    });
  });
}

ClusterService::Unary* ClusterService::DrainNode(Context* context, const v1::DrainNodeRequest* request, v1::DrainNodeReply* reply) {
  return gate_.Unary<v1::DrainNodeReply>(context, reply, [this, request](rpc::Answer<v1::DrainNodeReply> answer) {
    absl::StatusOr<NodeId> node = core_.FindNode(request->node());
    if (!node.ok()) return answer.Error(node.status());
    constexpr double kYear = 366 * 86400.0;
    if (!(request->deadline_seconds() >= 0 && request->deadline_seconds() <= kYear)) {
      return answer.Error(InvalidArgument("deadline_seconds {}: give 0 (none) to {}", request->deadline_seconds(), kYear));
    }
    absl::Status status = core_.Drain(*node, request->reason(), absl::Seconds(request->deadline_seconds()), request->undo());
    if (!status.ok()) return answer.Error(status);
    answer.Ok([&](v1::DrainNodeReply& reply) {
      reply.set_node_id(node->Hex());
      reply.set_name(core_.nodes().Find(*node)->description.name);
    });
  });
}

ClusterService::Unary* ClusterService::ReadMetrics(Context* context, const v1::Empty* request, v1::MetricsText* reply) {
  return gate_.Unary<v1::MetricsText>(context, reply, [this](rpc::Answer<v1::MetricsText> answer) {
    answer.Ok([&](v1::MetricsText& reply) { reply.set_text(core_.MetricsText()); });
  });
}

}  // namespace argosy::head
