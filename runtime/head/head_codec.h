#pragma once

// Wire <-> domain. What the core must never see (ids of the wrong size, negative amounts, unknown enum values, texts without end) is
// an InvalidArgument here that names the field.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "argosy/v1/common.pb.h"
#include "argosy/v1/head.pb.h"
#include "argosy/v1/job.pb.h"
#include "runtime/base/status.h"
#include "runtime/head/head_core.h"

namespace argosy::head {

// A field's id: exactly 16 bytes.
template <class IdType>
absl::StatusOr<IdType> IdFromWire(const std::string& bytes, const char* field) {
  auto id = IdType::FromBytes(bytes);
  if (!id || id->IsNil()) return InvalidArgument("{}: an id has 16 bytes and is not all zero; {} bytes came", field, bytes.size());
  return *id;
}
// As above, but empty means none.
template <class IdType>
absl::StatusOr<IdType> OptionalIdFromWire(const std::string& bytes, const char* field) {
  if (bytes.empty()) return IdType();
  auto id = IdType::FromBytes(bytes);
  if (!id) return InvalidArgument("{}: an id has 16 bytes; {} came", field, bytes.size());
  return *id;
}
template <class IdType>
std::string IdToWire(IdType id) { return id.IsNil() ? std::string() : std::string(id.Bytes()); }

absl::StatusOr<scheduler::Demand> FromWire(const v1::Demand& wire);
void ToWire(const scheduler::Demand& demand, v1::Demand* wire);
absl::StatusOr<WorkerAddress> FromWire(const v1::WorkerAddress& wire);
void ToWire(const WorkerAddress& address, v1::WorkerAddress* wire);

absl::StatusOr<Registration> FromWire(const v1::Register& wire);
absl::StatusOr<FromNode> FromWire(const v1::NodeMessage& wire);
v1::HeadMessage ToWire(const ToNode& message);

absl::Status CheckRequestId(const std::string& id);
absl::StatusOr<LeaseRequest> FromWire(const v1::LeaseRequest& wire, absl::Time now);
absl::StatusOr<ActorRecord> FromWire(const v1::ActorSpec& wire);
void ToWire(const ActorRecord& actor, const std::string& pending_reason, v1::ActorInfo* wire);
absl::StatusOr<GroupSpec> FromWire(const v1::GroupSpec& wire);
void ToWire(const GroupView& group, v1::GroupInfo* wire);
void ToWire(const NodeTable::Node& node, const scheduler::NodeView* view, v1::NodeInfo* wire);

absl::StatusOr<JobRecord> FromWire(const v1::SubmitJobRequest& wire);
void ToWire(const JobRecord& job, const std::string& message, uint64_t log_end, v1::JobInfo* wire);

}  // namespace argosy::head
