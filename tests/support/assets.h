#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/catch.h"

namespace argosy::testing {

// A file or folder of the real models, tokenizers and data that some tests read. They lie where ARGOSY_ASSETS says, or in or beside the
// source tree (tests run in its root), and not in the repository: where they are missing, the test passes without them and this says so.
inline std::optional<std::filesystem::path> FindAsset(const std::string& part) {
  std::vector<std::filesystem::path> roots = {"shared/assets", "../shared/assets"};
  if (const char* set = std::getenv("ARGOSY_ASSETS")) roots.insert(roots.begin(), set);
  std::error_code error;
  for (const std::filesystem::path& root : roots) {
    if (std::filesystem::exists(root / part, error)) return root / part;
  }
  WARN("skipped: there is no " << part << " among the assets (set ARGOSY_ASSETS)");
  return std::nullopt;
}

}  // namespace argosy::testing
