#pragma once

#include "argosy/v1/head.grpc.pb.h"
#include "runtime/head/head_core.h"
#include "runtime/rpc/call.h"

namespace argosy::head {

// The stream of each node: wire in, events out.
//
// Thread:   gRPC's; streams post to the loop.
// Lifetime: outlives the server.
// Failure:  a message that the codec refuses ends the stream with its status; the node reconnects.
class NodeService final : public v1::NodeService::CallbackService {
 public:
  NodeService(rpc::CallGate& gate, HeadCore& core) : gate_(gate), core_(core) {}
  grpc::ServerBidiReactor<v1::NodeMessage, v1::HeadMessage>* Connect(grpc::CallbackServerContext* context) override;

 private:
  rpc::CallGate& gate_;
  HeadCore& core_;
};

}  // namespace argosy::head
