#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"

namespace argosy::head {

// Where package files are. A package appears whole under its name or not at all.
class PackageStore {
 public:
  explicit PackageStore(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Open();

  // "_ray_pkg_0123456789abcdef.zip", "mylib-1.0.whl", or a sha256 in hex: letters, digits and . _ - + only, no leading dot.
  static absl::Status CheckName(const std::string& name);
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // One upload. Its temporary file goes with it unless it was committed.
  class Writer {
   public:
    ~Writer();
    // ResourceExhausted above kPackageBytesMax.
    absl::Status Write(const std::string& bytes);
    // On disk, under its name, when this returns OK.
    absl::Status Commit();
    uint64_t size() const { return size_; }

   private:
    friend class PackageStore;
    std::string temporary_;
    std::string path_;
    std::string folder_;
    UniqueFd fd_;
    uint64_t size_ = 0;
  };
  absl::StatusOr<std::unique_ptr<Writer>> StartWrite(const std::string& name) const;

 private:
  std::string folder_;
};

}  // namespace argosy::head
