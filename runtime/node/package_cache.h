#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/base/limits.h"
#include "runtime/node/cluster_client.h"
#include "runtime/store/work_thread.h"

namespace argosy::node {

struct UnzipLimits {
  uint64_t bytes_max = 8ull << 30;      // of all files, unpacked
  uint64_t files_max = 500'000;
};

// Unpacks a zip file into an existing folder. INVALID_ARGUMENT, naming the entry: a link or special file, an absolute path, `..`, too
// many bytes or files, not a zip file.
absl::Status Unzip(const std::string& zip_path, const std::string& folder, const UnzipLimits& limits);

// Packages (working_dir, py_modules), named by their content: unpacked ones, fetched from the head once each, and folders that go there.
//
// Thread:   the loop's; the disk is on its own thread.
// Lifetime: the loop and the cluster client outlive it; callbacks that wait when it is destroyed are dropped.
// Failure:  INVALID_ARGUMENT: a name that is not a package's, a bad zip file; else the head's and the disk's.
class PackageCache {
 public:
  PackageCache(async::Loop& loop, ClusterClient& cluster, std::string folder);
  ~PackageCache();

  using Done = std::function<void(absl::StatusOr<std::string> folder)>;
  // `uri`: "gcs://_ray_pkg_0123456789abcdef.zip".
  void Get(const std::string& uri, Done done);
  // Packs a folder of this host as package_plan.h says, and sends it unless the head has it. NOT_FOUND: the folder; RESOURCE_EXHAUSTED: it is
  // too large.
  void Upload(const std::string& path, std::function<void(absl::StatusOr<wire::UploadFolderReply>)> done);

 private:
  struct Download;
  struct Pack;
  void SendPacked(std::shared_ptr<Pack> pack);
  void Finish(const std::string& name, absl::StatusOr<std::string> folder);

  async::Loop& loop_;
  ClusterClient& cluster_;
  std::string folder_;
  std::unordered_map<std::string, std::vector<Done>> waiting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  store::WorkThread work_;
};

}  // namespace argosy::node
