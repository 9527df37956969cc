#include "cli/head_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <optional>

#include "cli/session.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/rpc/channel.h"

namespace argosy::cli {

void AddHeadFlags(CLI::App& command, HeadFlags& flags) {
  command.add_option("--address", flags.address, "HOST:PORT of the head (default: ARGOSY_ADDRESS, else this host's newest)");
  command.add_option("--temp-dir", flags.temp_dir, "Where session folders are (default: ARGOSY_SESSIONS_DIR, else /tmp/argosy)");
  AddTokenFlags(command, flags.token);
}

absl::StatusOr<HeadChannel> ConnectHead(const HeadFlags& flags) {
  std::string address = flags.address;
  TokenFlags token_flags = flags.token;
  if (address.empty()) {
    if (const char* variable = std::getenv("ARGOSY_ADDRESS"); variable != nullptr && *variable != '\0') address = variable;
  }
  if (address.empty()) {
    if (std::optional<DaemonRecord> head = NewestHead(SessionsRoot(flags.temp_dir))) {
      address = head->address;
      if (token_flags.file.empty() && std::getenv("ARGOSY_AUTH_TOKEN") == nullptr) token_flags.file = head->token_file;
    } else {
      address = fmt::format("127.0.0.1:{}", kHeadPort);
    }
  }
  absl::StatusOr<ResolvedToken> token = ResolveToken(token_flags);
  HeadChannel head;
  head.token = token.status();
  head.channel = rpc::OpenChannel({.address = address, .token = token.ok() ? token->token : Token()});
  ARGOSY_RETURN_IF_ERROR(rpc::WaitConnected(*head.channel, address, absl::Seconds(5)));
  return head;
}

absl::Status OrNoToken(const HeadChannel& head, const absl::Status& error) {
  return absl::IsUnauthenticated(error) && !head.token.ok() ? head.token : error;
}

}  // namespace argosy::cli
