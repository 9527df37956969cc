#pragma once

#include <string>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::train {

// A folder of its own that goes with the test, and files in it.
class Scratch : public testing::TemporaryFolder {
 public:
  std::string Write(const std::string& name, const std::string& content) const {
    REQUIRE(WriteFileAtomic(*this / name, content).ok());
    return *this / name;
  }
};

}  // namespace argosy::train
