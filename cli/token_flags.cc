#include "cli/token_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "cli/daemon.h"
#include "runtime/base/status.h"

namespace argosy::cli {

void AddTokenFlags(CLI::App& command, TokenFlags& flags) {
  command.add_option("--token-file", flags.file, "File with the cluster token (default: ARGOSY_AUTH_TOKEN, else ~/.argosy/token)");
  command.add_option("--auth", flags.auth, "token, or none: anyone who reaches the ports controls the cluster; on loopback only")->capture_default_str();
  command.add_option("--token-fd", flags.fd)->group("");
}

absl::StatusOr<ResolvedToken> ResolveToken(const TokenFlags& flags) {
  if (flags.auth != "token" && flags.auth != "none") return InvalidArgument("--auth {}: use token or none", flags.auth);
  if (flags.fd >= 0) {
    ARGOSY_ASSIGN_OR_RETURN(Token token, ReadTokenFd(flags.fd));
    return ResolvedToken{std::move(token), flags.file};
  }
  if (flags.auth == "none") return ResolvedToken{};
  const char* variable = std::getenv("ARGOSY_AUTH_TOKEN");
  if (flags.file.empty() && variable != nullptr && *variable != '\0') return ResolvedToken{Token(variable), ""};
  std::string path = flags.file;
  if (path.empty()) {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') return InvalidArgument("HOME is not set: give --token-file or ARGOSY_AUTH_TOKEN");
    path = DefaultTokenPath(home);
  }
  absl::StatusOr<Token> token = flags.create ? ReadOrCreateToken(path) : ReadToken(path);
  if (!token.ok()) {
    return Annotate(token.status(), flags.file.empty() ? "cluster token (give --token-file or ARGOSY_AUTH_TOKEN)" : "--token-file");
  }
  return ResolvedToken{std::move(*token), path};
}

}  // namespace argosy::cli
