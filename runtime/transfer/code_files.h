#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/async/loop.h"
#include "runtime/store/work_thread.h"
#include "runtime/transfer/peers.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/messages.h"

namespace argosy::transfer {

struct CodeFilesOptions {
  std::string folder;                       // where fetched files are kept, by hash
  uint64_t chunk_bytes = 4ull << 20;
  uint64_t file_bytes_max = 16ull << 30;
};

// The files of code packages: finds them in place, or fetches each once from the node that has them; serves them to others. A file is
// what its SHA-256 says, never what its path says; hashes are remembered by (device, inode, size, modification time).
//
// Thread:   the loop's; hashing and disk are done on its own thread.
// Lifetime: the loop and the peers outlive it; callbacks that wait when it is destroyed are dropped.
// Failure:  NOT_FOUND, or whatever the disk or the source says, with the file's path.
class CodeFiles {
 public:
  CodeFiles(async::Loop& loop, Peers& peers, CodeFilesOptions options);
  ~CodeFiles();

  // Where each of the package's files lies on this node, in the package's order. Files that share a fetched folder can find each
  // other: fetched ones keep their base names in one folder a package.
  struct Located { std::vector<std::string> paths; bool fetched = false; };
  using Done = std::function<void(absl::StatusOr<Located>)>;
  void Locate(const wire::CodePackage& package, Done done);

  // For the node's service: a kReadCodeFile request. Only answers for files whose hash is the one that is asked for.
  void ServeRead(wire::Call call);

 private:
  struct Key {
    uint64_t device, inode, size;
    int64_t modified_ns;
    auto operator<=>(const Key&) const = default;
  };
  struct Fetch;

  // On the work thread: the file's hash, from the cache when it is unchanged.
  absl::StatusOr<std::string> HashOf(const std::string& path, uint64_t size_wanted);
  void FetchMissing(const std::shared_ptr<Fetch>& fetch);
  void FetchChunk(const std::shared_ptr<Fetch>& fetch);
  void FinishPackage(const std::string& id, absl::StatusOr<Located> located);

  async::Loop& loop_;
  Peers& peers_;
  CodeFilesOptions options_;
  std::unordered_map<std::string, std::vector<Done>> locating_;        // by package id
  std::map<Key, std::string> hashes_;                                  // the work thread's
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  store::WorkThread work_;
};

}  // namespace argosy::transfer
