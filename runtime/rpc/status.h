#pragma once

// absl::Status <-> grpc::Status. The codes have the same numbers.

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace argosy::rpc {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace argosy::rpc
