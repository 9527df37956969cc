#include "runtime/rpc/version.h"

#include "argosy/v1/common.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace argosy::rpc {

void FillVersion(v1::Version* version) {
  version->set_major(kProtocolMajor);
  version->set_minor(kProtocolMinor);
  version->set_build(kVersion);
}

absl::Status CheckVersion(const v1::Version& version, const char* peer) {
  if (version.major() == kProtocolMajor) return absl::OkStatus();
  return FailedPrecondition("{} speaks protocol {}.{} (build {}), this head {}.{} (build {}): both need the same major version", peer,
                            version.major(), version.minor(), version.build(), kProtocolMajor, kProtocolMinor, kVersion);
}

}  // namespace argosy::rpc
