#include <unistd.h>

#include <fstream>

#include "runtime/base/status.h"
#include "runtime/node/host_memory.h"
#include "runtime/node/memory_policy.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::node {
namespace {

wire::MemoryWorker Worker(uint64_t id, uint64_t job, uint64_t bytes, int64_t since, bool retriable = true) {
  return {WorkerId::FromNumber(id), static_cast<uint32_t>(id), bytes, JobId::FromNumber(job), retriable, since};
}

// /proc and the control group of a made-up host.
struct Host {
  Host() {
    std::filesystem::create_directories(folder / "proc/pressure");
    std::filesystem::create_directories(folder / "cgroup/memory");
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(folder / name) << text; }
  MemoryReader reader() const { return MemoryReader(folder / "proc", folder / "cgroup"); }

  testing::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("Memory: the host's use is what is not available") {
  Host host;
  CHECK(absl::IsNotFound(host.reader().Read().status()));
  host.Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:    4194304 kB\n");
  absl::StatusOr<HostMemory> memory = host.reader().Read();
  REQUIRE(memory.ok());
  CHECK(memory->total == 16ull << 30);
  CHECK(memory->used == 12ull << 30);
  CHECK(memory->share() == Approx(0.75));
  CHECK_FALSE(memory->stalled.has_value());
  CHECK(memory->ToString() == "12.0 GiB of the host's 16.0 GiB (75.0%)");
  host.Write("proc/pressure/memory", "some avg10=50.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=42.50 avg60=1.00 avg300=0.00 total=1\n");
  CHECK(host.reader().Read()->stalled == Approx(0.425));
}

TEST_CASE("Memory: a control group with less than the host counts when it is nearer to its end, in version 2 and 1") {
  Host host;
  host.Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  host.Write("cgroup/memory.max", "max\n");
  host.Write("cgroup/memory.current", "123\n");
  CHECK_FALSE(host.reader().Read()->group_limit.has_value());
  host.Write("cgroup/memory.max", "1073741824\n");
  host.Write("cgroup/memory.current", "1073741824\n");
  host.Write("cgroup/memory.stat", "anon 1\ninactive_file 107374182\n");
  CHECK(host.reader().Read()->share() == Approx(0.9).epsilon(0.001));
  CHECK(host.reader().Read()->ToString().find("control group's 1.0 GiB (90.0%)") != std::string::npos);
  std::filesystem::remove(host.folder / "cgroup/memory.max");
  host.Write("cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  host.Write("cgroup/memory/memory.usage_in_bytes", "2040109465\n");
  CHECK(host.reader().Read()->share() == Approx(0.95).epsilon(0.001));
  // None: as it is written where there is none.
  host.Write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(host.reader().Read()->share() == Approx(0.5));
}

TEST_CASE("Memory: what a process has for itself is read from the real /proc") {
  MemoryReader reader;
  uint64_t before = reader.OfProcess(static_cast<uint32_t>(::getpid()));
  CHECK(before > 1 << 20);
  std::string filled(64 << 20, 'x');
  CHECK(reader.OfProcess(static_cast<uint32_t>(::getpid())) >= before + (60 << 20));
  CHECK(filled[12345] == 'x');
  CHECK(reader.OfProcess(0) == 0);
}

TEST_CASE("Memory: the newest work of the largest job is ended, what can be run again first") {
  CHECK_FALSE(ChooseVictim({}).has_value());
  // Job 1 takes more together, though job 2 has the largest worker.
  std::vector<wire::MemoryWorker> workers{Worker(1, 1, 600, 10), Worker(2, 1, 500, 30), Worker(3, 1, 400, 20), Worker(4, 2, 900, 40)};
  CHECK(ChooseVictim(workers) == 1u);
  workers[1].retriable = false;
  CHECK(ChooseVictim(workers) == 2u);
  workers[0].retriable = workers[2].retriable = false;
  CHECK(ChooseVictim(workers) == 3u);   // the other job has something that can be run again
  workers[3].retriable = false;
  CHECK(ChooseVictim(workers) == 1u);
  workers[1].bytes = 0;                 // it has ended
  CHECK(ChooseVictim(workers) == 2u);
}

}  // namespace argosy::node
