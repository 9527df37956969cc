#pragma once

// A working directory as the zip file that nodes unpack.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::node {

struct PackageEntry {
  std::string name;   // relative, with '/'
  std::string path;   // where its content is
  uint64_t size = 0;
  unsigned mode = 0;
};

struct PackagePlan {
  std::vector<PackageEntry> entries;        // by name
  std::vector<std::string> left_out;        // one line each, for people: links that lead outside and the like
  uint64_t size = 0;
  std::string name;                         // "_ray_pkg_<16 hex>.zip": the same for the same names, contents and modes
};

// What of `directory` belongs to the package: every regular file but those below .git, .venv, venv, node_modules and __pycache__, and
// those that a .gitignore file names. Links to files inside are taken as files; links that lead outside, and links to folders, are left out.
absl::StatusOr<PackagePlan> PlanPackage(const std::string& directory);

// Writes the zip file. The result depends on names, contents and modes alone.
absl::Status WritePackage(const PackagePlan& plan, const std::string& zip_path);

// True when `name` (relative to the folder of the .gitignore) is matched by its lines; later lines win, '!' takes back.
bool IsIgnored(const std::vector<std::string>& lines, const std::string& name, bool is_directory, bool before);

}  // namespace argosy::node
