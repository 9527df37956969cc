#pragma once

// Real models to read, where a checkout has them; a test that needs one skips itself, and says so, where it does not.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"

namespace argosy::train {

// $ARGOSY_ASSETS, else ../shared/assets beside the source tree (tests run in its root). Empty when `part` is not there.
inline std::string AssetDirectory(const std::string& part) {
  const char* root = std::getenv("ARGOSY_ASSETS");
  std::filesystem::path path = std::filesystem::path(root != nullptr ? root : "../shared/assets") / part;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path.string();
  WARN("skipped: " << path.string() << " is not there (set ARGOSY_ASSETS)");
  return "";
}

inline bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace argosy::train
