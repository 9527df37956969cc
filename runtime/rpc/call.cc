#include "runtime/rpc/call.h"

#include <string_view>

namespace argosy::rpc {

absl::Status CallGate::Check(const grpc::ServerContextBase& context) const {
  if (token_.IsEmpty()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  auto found = metadata.find("authorization");
  if (found == metadata.end()) {
    return absl::UnauthenticatedError("missing cluster token: set ARGOSY_AUTH_TOKEN or pass --token-file");
  }
  std::string_view value(found->second.data(), found->second.size());
  constexpr std::string_view kScheme = "Bearer ";
  if (!value.starts_with(kScheme) || !token_.Matches(value.substr(kScheme.size()))) {
    return absl::PermissionDeniedError("wrong cluster token: use the token of the cluster's head (~/.argosy/token there)");
  }
  return absl::OkStatus();
}

}  // namespace argosy::rpc
