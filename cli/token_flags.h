#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/token.h"

namespace CLI {
class App;
}

namespace argosy::cli {

struct TokenFlags {
  std::string file;           // --token-file
  std::string auth = "token"; // --auth
  int fd = -1;                // --token-fd, between our own processes
  bool create = false;        // make the file when it is missing
};

// --token-file, --auth and the hidden --token-fd.
void AddTokenFlags(CLI::App& command, TokenFlags& flags);

struct ResolvedToken {
  Token token;
  std::string file;   // where it came from; empty when it is no file
};
// The descriptor, else --auth none, else --token-file, else ARGOSY_AUTH_TOKEN, else ~/.argosy/token.
absl::StatusOr<ResolvedToken> ResolveToken(const TokenFlags& flags);

}  // namespace argosy::cli
