#include "runtime/rpc/status.h"

#include <string>

#include "runtime/base/status.h"

namespace argosy::rpc {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Message(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), ToAbsl(status.error_message()));
}

}  // namespace argosy::rpc
