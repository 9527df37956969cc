#include "runtime/head/journal.h"

#include <sqlite3.h>

#include "runtime/base/status.h"
#include "spdlog/spdlog.h"

namespace argosy::head {
namespace {

absl::Status SqliteError(sqlite3* database, const char* what) {
  int code = sqlite3_errcode(database);
  std::string text = fmt::format("journal: {}: {}", what, sqlite3_errmsg(database));
  if (code == SQLITE_FULL) return absl::ResourceExhaustedError(text + "; free disk space, then restart the head");
  if (code == SQLITE_BUSY || code == SQLITE_LOCKED) return absl::FailedPreconditionError(text + "; another head uses this session folder");
  return absl::InternalError(text);
}

absl::Status Execute(sqlite3* database, const char* sql) {
  if (sqlite3_exec(database, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return SqliteError(database, sql);
  return absl::OkStatus();
}

class Statement {
 public:
  Statement(sqlite3* database, const char* sql) : database_(database) {
    ok_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr) == SQLITE_OK;
  }
  ~Statement() { sqlite3_finalize(statement_); }
  absl::Status status(const char* what) const { return ok_ ? absl::OkStatus() : SqliteError(database_, what); }
  void BindText(int index, const std::string& text) {
    sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
  }
  void BindBlob(int index, const std::string& bytes) {
    sqlite3_bind_blob64(statement_, index, bytes.data() == nullptr ? "" : bytes.data(), bytes.size(), SQLITE_STATIC);
  }
  int Step() { return sqlite3_step(statement_); }
  void Reset() { sqlite3_reset(statement_); }
  std::string Column(int index) {
    const void* bytes = sqlite3_column_blob(statement_, index);
    int size = sqlite3_column_bytes(statement_, index);
    return size == 0 ? std::string() : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
  }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  bool ok_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& path, Post post) {
  sqlite3* database = nullptr;
  int opened = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> guard(database, sqlite3_close);
  if (opened != SQLITE_OK) return Annotate(SqliteError(database, "open"), path);
  // The exclusive lock keeps a second head off the same journal; WAL then needs no shared memory file.
  for (const char* sql : {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
                          "CREATE TABLE IF NOT EXISTS rows (tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, "
                          "PRIMARY KEY (tbl, key)) WITHOUT ROWID"}) {
    if (absl::Status status = Execute(database, sql); !status.ok()) return Annotate(status, path);
  }
  int version = 0;
  {
    Statement read(database, "PRAGMA user_version");
    if (read.Step() == SQLITE_ROW) version = std::atoi(read.Column(0).c_str());
  }
  if (version != 0 && version != kSchemaVersion) {
    return FailedPrecondition("{}: the journal has schema version {}, this build writes {}: use a build of that version, or another session folder",
                              path, version, kSchemaVersion);
  }
  ARGOSY_RETURN_IF_ERROR(Execute(database, fmt::format("PRAGMA user_version={}", kSchemaVersion).c_str()));
  guard.release();
  return std::unique_ptr<Journal>(new Journal(database, std::move(post)));
}

Journal::Journal(sqlite3* database, Post post) : database_(database), post_(std::move(post)), writer_([this] { Run(); }) {}

Journal::~Journal() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  writer_.join();
  sqlite3_close(database_);
}

absl::StatusOr<std::vector<Journal::Row>> Journal::Load() {
  Statement select(database_, "SELECT tbl, key, value FROM rows ORDER BY tbl, key");
  ARGOSY_RETURN_IF_ERROR(select.status("load"));
  std::vector<Row> rows;
  int step;
  while ((step = select.Step()) == SQLITE_ROW) rows.push_back({select.Column(0), select.Column(1), select.Column(2)});
  if (step != SQLITE_DONE) return SqliteError(database_, "load");
  return rows;
}

void Journal::Write(std::vector<Change> changes, std::function<void(absl::Status)> committed) {
  {
    std::lock_guard lock(mutex_);
    if (queued_.size() < kQueuedMax) {
      queued_.push_back({std::move(changes), std::move(committed)});
      wake_.notify_one();
      return;
    }
  }
  if (committed) {
    post_([committed = std::move(committed)] {
      committed(absl::ResourceExhaustedError("journal: the disk is too slow, 100,000 writes wait"));
    });
  }
}

void Journal::Run() {
  while (true) {
    std::vector<Batch> batches;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
      if (queued_.empty()) return;
      batches.swap(queued_);
    }
    if (failed_.ok()) {
      failed_ = Commit(batches);
      if (!failed_.ok()) spdlog::error("{}; nothing more is acknowledged", Message(failed_));
    }
    for (Batch& batch : batches) {
      if (batch.committed) post_([committed = std::move(batch.committed), status = failed_] { committed(status); });
    }
  }
}

absl::Status Journal::Commit(const std::vector<Batch>& batches) {
  ARGOSY_RETURN_IF_ERROR(Execute(database_, "BEGIN IMMEDIATE"));
  absl::Status status;
  {
    Statement put(database_, "INSERT OR REPLACE INTO rows (tbl, key, value) VALUES (?, ?, ?)");
    Statement erase(database_, "DELETE FROM rows WHERE tbl = ? AND key = ?");
    for (const Batch& batch : batches) {
      for (const Change& change : batch.changes) {
        Statement& statement = change.erase ? erase : put;
        statement.BindText(1, change.table);
        statement.BindBlob(2, change.key);
        if (!change.erase) statement.BindBlob(3, change.value);
        if (statement.Step() != SQLITE_DONE) status = SqliteError(database_, "write");
        statement.Reset();
        if (!status.ok()) break;
      }
      if (!status.ok()) break;
    }
  }
  if (status.ok()) status = Execute(database_, "COMMIT");
  if (!status.ok()) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

}  // namespace argosy::head
