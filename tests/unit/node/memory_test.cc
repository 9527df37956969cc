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
    std::filesystem::create_directories(folder / "proc/self");
    std::filesystem::create_directories(folder / "cgroup/memory");
  }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
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

TEST_CASE("Memory: a limit of a control group around this process's own holds too, the one nearest to its end is named") {
  Host host;
  constexpr uint64_t kGiB = 1ull << 30;
  host.Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  auto group = [&](const std::string& path, const std::string& limit, uint64_t used) {
    host.Write("cgroup/" + path + "/memory.max", limit + "\n");
    host.Write("cgroup/" + path + "/memory.current", std::to_string(used) + "\n");
  };
  // As systemd makes it: MemoryMax of a slice, none of the service in it.
  host.Write("proc/self/cgroup", "0::/work.slice/argosy.service/daemon\n");
  group("work.slice/argosy.service/daemon", "max", kGiB);
  group("work.slice/argosy.service", "max", kGiB);
  group("work.slice", std::to_string(4 * kGiB), 3 * kGiB);
  group("other.slice", std::to_string(kGiB), kGiB);
  HostMemory memory = *host.reader().Read();
  CHECK(memory.group_limit == 4 * kGiB);
  CHECK(memory.group == "/work.slice");
  CHECK(memory.share() == Approx(0.75));
  CHECK(memory.available == kGiB);
  CHECK(memory.ToString() == "3.0 GiB of the control group /work.slice's 4.0 GiB (75.0%)");
  // The service's own is nearer to its end, the slice has less left.
  group("work.slice/argosy.service", std::to_string(2 * kGiB), kGiB * 9 / 5);
  group("work.slice", std::to_string(8 * kGiB), 8 * kGiB - kGiB / 10);
  memory = *host.reader().Read();
  CHECK(memory.group == "/work.slice");
  CHECK(memory.available == kGiB / 10);
  group("work.slice", std::to_string(8 * kGiB), 4 * kGiB);
  memory = *host.reader().Read();
  CHECK(memory.group == "/work.slice/argosy.service");
  CHECK(memory.available == 2 * kGiB - kGiB * 9 / 5);
  // What the kernel can drop at once is not in use.
  host.Write("cgroup/work.slice/argosy.service/memory.stat", "anon 1\ninactive_file 966367641\n");
  CHECK(host.reader().Read()->share() == Approx(0.5));
  // The host is shorter than any group: nothing else is lost.
  host.Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1024 kB\n");
  CHECK(host.reader().Read()->available == 1 << 20);

  // Version 1, with controllers together, and the unified hierarchy beside it.
  Host old;
  old.Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  old.Write("proc/self/cgroup", "9:name=systemd:/elsewhere\n4:cpu,memory:/docker/box\n0::/elsewhere\n");
  old.Write("cgroup/memory/docker/box/memory.limit_in_bytes", "9223372036854771712\n");
  old.Write("cgroup/memory/docker/box/memory.usage_in_bytes", "1\n");
  old.Write("cgroup/memory/docker/memory.limit_in_bytes", std::to_string(2 * kGiB));
  old.Write("cgroup/memory/docker/memory.usage_in_bytes", std::to_string(kGiB));
  CHECK(old.reader().Read()->group == "/docker");
  CHECK(old.reader().Read()->available == kGiB);
  old.Write("cgroup/unified/elsewhere/memory.max", std::to_string(kGiB));
  old.Write("cgroup/unified/elsewhere/memory.current", std::to_string(kGiB));
  CHECK(old.reader().Read()->group == "/elsewhere");
  // A path that is not below this root (another namespace's) leaves the root's own.
  for (const char* path : {"0::/../../outside\n", "0::/not/here\n"}) {
    Host inside;
    inside.Write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
    inside.Write("proc/self/cgroup", path);
    inside.Write("cgroup/memory.max", std::to_string(kGiB));
    inside.Write("cgroup/memory.current", std::to_string(kGiB / 2));
    CHECK(inside.reader().Read()->available == kGiB / 2);
  }
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
