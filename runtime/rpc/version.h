#pragma once

#include "absl/status/status.h"

namespace argosy::v1 {
class Version;
}

namespace argosy::rpc {

void FillVersion(v1::Version* version);
// OK when the majors are equal; the error names both and who must be upgraded. `peer` is for the message: "node gpu-1".
absl::Status CheckVersion(const v1::Version& version, const char* peer);

}  // namespace argosy::rpc
