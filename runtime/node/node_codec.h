#pragma once

// gRPC messages <-> the node's and the wire's types. What the core must never see is refused here.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "argosy/v1/head.pb.h"
#include "runtime/node/types.h"
#include "runtime/wire/messages.h"

namespace argosy::node {

v1::NodeMessage ToProto(const ToHead& message);
// INVALID_ARGUMENT names what is wrong; UNIMPLEMENTED: a message of a newer head.
absl::StatusOr<FromHead> FromProto(const v1::HeadMessage& message);

v1::WorkerAddress ToProto(const wire::WorkerAddress& address);
wire::WorkerAddress FromProto(const v1::WorkerAddress& address);
v1::Demand ToProto(const wire::Demand& demand);
wire::Demand FromProto(const v1::Demand& demand);
v1::CodePackage ToProto(const wire::CodePackage& code);
wire::CodePackage FromProto(const v1::CodePackage& code);
v1::ActorSpec ToProto(const wire::ActorSpec& spec);
wire::ActorSpec FromProto(const v1::ActorSpec& spec);
wire::ActorInfo FromProto(const v1::ActorInfo& info);
wire::GroupInfo FromProto(const v1::GroupInfo& info);
wire::NodeInfo FromProto(const v1::NodeInfo& info);
v1::NodeInfo ToProto(const wire::NodeInfo& info);

// Empty text for the nil id, as the protocol has it.
template <class Tag>
std::string IdBytes(const Id<Tag>& id) {
  return id.IsNil() ? std::string() : std::string(id.Bytes());
}
// Nil for anything but 16 bytes.
template <class AnId>
AnId IdFrom(const std::string& bytes) {
  return AnId::FromBytes(bytes).value_or(AnId());
}

}  // namespace argosy::node
