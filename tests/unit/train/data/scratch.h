#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "runtime/base/id.h"
#include "tests/support/catch.h"

namespace argosy::train {

// A folder of its own that goes with the test.
class Scratch {
 public:
  Scratch() {
    unsigned char random[8];
    internal::FillRandom(random, sizeof(random));
    path_ = std::filesystem::temp_directory_path() / ("argosy-data-test-" + internal::ToHex(random, sizeof(random)));
    std::filesystem::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string Write(const std::string& name, const std::string& content) const {
    REQUIRE(WriteFileAtomic(*this / name, content).ok());
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace argosy::train
