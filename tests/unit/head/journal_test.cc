#include "runtime/head/journal.h"

#include <sqlite3.h>
#include <sys/resource.h>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>

#include "runtime/base/id.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::head {
namespace {

constexpr char kFile[] = "journal.sqlite";

// Callbacks run where they are posted from: the writer thread.
void RunHere(std::function<void()> function) { function(); }

absl::Status WriteAndWait(Journal& journal, std::vector<Journal::Change> changes) {
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  absl::Status result;
  journal.Write(std::move(changes), [&](absl::Status status) {
    std::lock_guard lock(mutex);
    result = status;
    done = true;
    wake.notify_one();
  });
  std::unique_lock lock(mutex);
  REQUIRE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return done; }));
  return result;
}

TEST_CASE("Journal: what was committed is there after opening again, the last value of each key") {
  testing::TemporaryFolder folder;
  std::string bytes("k\0\xff", 3);
  {
    auto journal = Journal::Open(folder / kFile, RunHere);
    REQUIRE(journal.ok());
    CHECK(WriteAndWait(**journal, {{"a", bytes, "1"}, {"a", "gone", "x"}, {"b", "k", ""}}).ok());
    CHECK(WriteAndWait(**journal, {{"a", bytes, bytes}, {"a", "gone", "", true}}).ok());
    (*journal)->Write({{"b", "last", "without waiting"}});
  }
  auto journal = Journal::Open(folder / kFile, RunHere);
  REQUIRE(journal.ok());
  auto rows = (*journal)->Load();
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 3);
  CHECK((*rows)[0].key == bytes);
  CHECK((*rows)[0].value == bytes);
  CHECK((*rows)[1].value.empty());
  CHECK((*rows)[2].value == "without waiting");
}

TEST_CASE("Journal: a second opener is refused while the first lives") {
  testing::TemporaryFolder folder;
  auto first = Journal::Open(folder / kFile, RunHere);
  REQUIRE(first.ok());
  CHECK(Journal::Open(folder / kFile, RunHere).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Journal: a journal of another schema version is refused with both versions") {
  testing::TemporaryFolder folder;
  { REQUIRE(Journal::Open(folder / kFile, RunHere).ok()); }
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((folder / kFile).c_str(), &database) == SQLITE_OK);
  REQUIRE(sqlite3_exec(database, "PRAGMA user_version=77", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
  auto opened = Journal::Open(folder / kFile, RunHere);
  REQUIRE(!opened.ok());
  CHECK(std::string(opened.status().message()).find("77") != std::string::npos);
}

TEST_CASE("Journal: a damaged file is an error, not a crash") {
  testing::TemporaryFolder folder;
  FILE* file = fopen((folder / kFile).c_str(), "w");
  for (int i = 0; i < 5000; ++i) fputs("not a database ", file);
  fclose(file);
  CHECK(!Journal::Open(folder / kFile, RunHere).ok());
}

TEST_CASE("Journal: a disk that takes no more fails the write and every later one") {
  testing::TemporaryFolder folder;
  auto journal = Journal::Open(folder / kFile, RunHere);
  REQUIRE(journal.ok());
  REQUIRE(WriteAndWait(**journal, {{"a", "k", "1"}}).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small{256 << 10, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  absl::Status full = WriteAndWait(**journal, {{"a", "k", std::string(1 << 20, 'x')}});
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(!full.ok());
  CHECK(!WriteAndWait(**journal, {{"a", "k2", "2"}}).ok());   // read-only from then on
  journal->reset();
  auto again = Journal::Open(folder / kFile, RunHere);
  REQUIRE(again.ok());
  auto rows = (*again)->Load();
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 1);
  CHECK((*rows)[0].value == "1");
}

}  // namespace
}  // namespace argosy::head
