#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/token_flags.h"

namespace CLI {
class App;
}
namespace grpc {
class Channel;
}

namespace argosy::cli {

// Which head a command talks to.
struct HeadFlags {
  std::string address;     // --address
  std::string temp_dir;    // --temp-dir
  TokenFlags token;
};

void AddHeadFlags(CLI::App& command, HeadFlags& flags);

// A channel to the head: --address, else ARGOSY_ADDRESS, else this host's newest, else the usual port. Waits until it answers.
// A cluster without authentication needs no token; one that has it refuses the first call, and NoToken then says why.
struct HeadChannel {
  std::shared_ptr<grpc::Channel> channel;
  absl::Status token;      // why there is none
};
absl::StatusOr<HeadChannel> ConnectHead(const HeadFlags& flags);
// The call's own error, or, when the head asked for a token that there is none of, why there is none.
absl::Status OrNoToken(const HeadChannel& head, const absl::Status& error);

}  // namespace argosy::cli
