#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;

namespace argosy::head {

// What the head has acknowledged: rows (table, key) -> value, in SQLite with a write-ahead log and synchronous=FULL.
//
// Thread:   Write from one thread (the head's loop). One writer thread of its own commits whatever is queued as one transaction.
// Lifetime: the destructor commits what is queued and calls back.
// Failure:  a commit that fails (disk full) is reported to every write that was in it, and the journal is read-only from then on:
//           a head that went on would acknowledge what it cannot keep.
class Journal {
 public:
  struct Row { std::string table; std::string key; std::string value; };
  struct Change { std::string table; std::string key; std::string value; bool erase = false; };
  // Where callbacks run: posts to the head's loop.
  using Post = std::function<void(std::function<void()>)>;

  static constexpr int kSchemaVersion = 1;

  // Opens or makes the file. FailedPrecondition when another head has it, or when its schema is of another major version.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& path, Post post);
  ~Journal();

  // Every row, ordered by table and key. Before the first Write.
  absl::StatusOr<std::vector<Row>> Load();
  // All of `changes` or none. `committed` is posted when they are on disk, or with the error.
  void Write(std::vector<Change> changes, std::function<void(absl::Status)> committed = nullptr);

 private:
  struct Batch { std::vector<Change> changes; std::function<void(absl::Status)> committed; };

  Journal(sqlite3* database, Post post);
  void Run();
  absl::Status Commit(const std::vector<Batch>& batches);

  static constexpr size_t kQueuedMax = 100'000;

  sqlite3* database_;
  Post post_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Batch> queued_;
  bool stopping_ = false;
  absl::Status failed_;      // the writer thread's
  std::thread writer_;
};

}  // namespace argosy::head
