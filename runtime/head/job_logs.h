#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/async/loop.h"

namespace argosy::head {

// The logs of jobs, a file each: the bytes [first, end). Offsets never change; over the size cap the oldest bytes go.
//
// Thread:   called on the head's loop, which is also where callbacks run. Files are touched on the disk loop only.
// Lifetime: the disk loop is stopped before this goes.
// Failure:  a write that fails is an error to its caller and is not acknowledged.
class JobLogs {
 public:
  struct Options {
    std::string folder;
    uint64_t bytes_max = 1ull << 30;   // of one log
  };
  struct Chunk { uint64_t offset = 0; std::string data; uint64_t first = 0; uint64_t end = 0; };
  template <class T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  JobLogs(Options options, async::Loop& loop, async::Loop& disk) : options_(std::move(options)), loop_(loop), disk_(disk) {}

  // How far each log on disk goes; before anything else.
  absl::Status Open();

  // Bytes that were appended already may come again. The result is the log's end, from where the sender goes on: bytes beyond it
  // would leave a gap and are dropped.
  void Append(const std::string& name, uint64_t offset, std::string data, Done<uint64_t> done);
  // At most `size_max` bytes from `offset`; from `first` when the offset is older.
  void Read(const std::string& name, uint64_t offset, uint64_t size_max, Done<Chunk> done);
  // The last `lines` lines, at most `bytes_max` bytes; empty when there is no log.
  void Tail(const std::string& name, int lines, uint64_t bytes_max, std::function<void(std::string)> done);
  void Erase(const std::string& name);

  // What was acknowledged.
  uint64_t End(const std::string& name) const;

 private:
  std::string Path(const std::string& name) const { return options_.folder + "/" + name + ".log"; }

  Options options_;
  async::Loop& loop_;
  async::Loop& disk_;
  std::map<std::string, uint64_t> ends_;
};

}  // namespace argosy::head
