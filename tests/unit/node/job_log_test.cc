#include "runtime/node/job_log.h"

#include <sys/stat.h>

#include <optional>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::node {
namespace {

struct LogFixture {
  explicit LogFixture(JobLog::Options options = JobLog::Options{}) {
    auto made = JobLog::Create(folder / "log", options);
    REQUIRE(made.ok());
    log.emplace(std::move(*made));
  }
  testing::TemporaryFolder folder;
  std::optional<JobLog> log;
};

}  // namespace

TEST_CASE("JobLog: ranges come in order, no further than the window, and again after a broken stream") {
  LogFixture f({.chunk_bytes = 4, .unacknowledged_max = 8});
  REQUIRE(f.log->Append("0123456789").ok());
  REQUIRE(f.log->Next()->data == "0123");
  JobLog::Chunk second = *f.log->Next();
  REQUIRE(second.offset == 4);
  REQUIRE(second.data == "4567");
  REQUIRE(f.log->Next()->data.empty());   // 8 bytes are on their way
  f.log->Acknowledge(4);
  REQUIRE(f.log->Next()->data == "89");
  f.log->Rewind();
  JobLog::Chunk again = *f.log->Next();
  REQUIRE(again.offset == 4);
  REQUIRE(again.data == "4567");
  REQUIRE_FALSE(*f.log->IsShipped());
  f.log->Acknowledge(10);
  REQUIRE(*f.log->IsShipped());
  f.log->Acknowledge(3);   // an old word changes nothing
  REQUIRE(f.log->acknowledged() == 10);
  REQUIRE(f.log->Append("ab").ok());
  REQUIRE(f.log->Next()->offset == 10);
}

TEST_CASE("JobLog: what the head has is punched out, and offsets stay") {
  LogFixture f;
  std::string megabyte(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) REQUIRE(f.log->Append(megabyte).ok());
  f.log->Acknowledge(4 << 20);
  struct stat info;
  REQUIRE(::stat((f.folder / "log").c_str(), &info) == 0);
  REQUIRE(info.st_size == 4 << 20);
  REQUIRE(info.st_blocks * 512 < 1 << 20);
  REQUIRE(f.log->Append("end").ok());
  JobLog::Chunk chunk = *f.log->Next();
  REQUIRE(chunk.offset == 4u << 20);
  REQUIRE(chunk.data == "end");
}

}  // namespace argosy::node
