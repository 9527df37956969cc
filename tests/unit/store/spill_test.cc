// Objects that go to disk when memory is full, and come back.

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "runtime/store/object_store.h"
#include "runtime/store/spill_file.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store/objects.h"

namespace argosy::store {
namespace {

// In memory, and fails when it is told to.
class FakeDisk final : public Disk {
 public:
  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override {
    if (full) return MakeStatus(absl::StatusCode::kResourceExhausted, "spilling to the fake disk: No space left on device");
    for (size_t i = 0; i < bytes.size(); ++i) written[offset + i] = bytes[i];
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t offset, std::span<std::byte> bytes) override {
    if (broken) return MakeStatus(absl::StatusCode::kDataLoss, "Input/output error");
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = written.at(offset + i);
    return absl::OkStatus();
  }
  void Free(Range range) override { written.erase(written.lower_bound(range.offset), written.lower_bound(range.offset + range.size)); }
  void FreeAll() override { written.clear(); }

  std::atomic<bool> full = false;
  std::atomic<bool> broken = false;

 private:
  std::map<uint64_t, std::byte> written;
};

struct SpillFixture {
  SpillFixture(uint64_t size, std::shared_ptr<Disk> disk, uint64_t spill_max, absl::Duration create_wait = absl::Seconds(60)) {
    auto opened = ObjectStore::Open(loop, {.size = size,
                                           .door_path = folder / "door",
                                           .create_wait_max = create_wait,
                                           .spill_disk = std::move(disk),
                                           .spill_max = spill_max,
                                           .spill_pause = absl::Milliseconds(50)});
    REQUIRE(opened.ok());
    store = std::move(*opened);
  }
  bool RunUntil(const std::function<bool()>& condition) { return testing::RunUntil(loop, condition); }
  absl::StatusOr<Place> Create(ObjectId object, uint64_t size) {
    std::optional<absl::StatusOr<Place>> result;
    store->Create({.object = object, .size = size, .client = 1, .owner = WorkerId::FromNumber(1), .job = JobId::FromNumber(1)},
                  [&](absl::StatusOr<Place> place) { result = std::move(place); });
    REQUIRE(RunUntil([&] { return result.has_value(); }));
    return *result;
  }
  // Filled with a byte that its number gives.
  absl::Status Put(uint64_t number, uint64_t size) {
    absl::StatusOr<Place> place = Create(Object(number), size);
    if (!place.ok()) return place.status();
    std::memset(store->Bytes(*place).data(), static_cast<int>(number % 251), size);
    return store->Seal(Object(number), 1);
  }
  absl::Status Read(uint64_t number, uint64_t size) {
    std::optional<absl::Status> result;
    store->WhenHere(Object(number), [&](absl::Status status) {
      if (status.ok()) {
        absl::StatusOr<Place> place = store->Pin(Object(number), 2);
        if (!place.ok() || place->size != size) {
          status = place.ok() ? InvalidArgument("{} bytes", place->size) : place.status();
        } else {
          for (std::byte byte : store->Bytes(*place)) {
            if (byte != static_cast<std::byte>(number % 251)) status = absl::DataLossError("another byte");
          }
        }
      }
      result = status;
    });
    REQUIRE(RunUntil([&] { return result.has_value(); }));
    store->Release(Object(number), 2);
    return *result;
  }

  async::Loop loop;
  testing::TemporaryFolder folder;
  std::unique_ptr<ObjectStore> store;
};

// Bytes that files of this process without a name take in `folder`.
uint64_t UnnamedBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (int fd = 0; fd < 256; ++fd) {
    struct stat info;
    char name[64], target[256] = {};
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (::readlink(name, target, sizeof target - 1) <= 0 || !std::string_view(target).starts_with(folder) || ::fstat(fd, &info) != 0) continue;
    if (S_ISREG(info.st_mode) && info.st_nlink == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

std::shared_ptr<Disk> OpenFile(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<SpillFile>> file = SpillFile::Open(folder);
  REQUIRE(file.ok());
  return std::move(*file);
}

}  // namespace

TEST_CASE("Spill: three times what memory holds can be put and read back, and the disk is empty when all is deleted") {
  testing::TemporaryFolder disk;
  SpillFixture f(16 << 20, OpenFile(disk / "spill"), 1 << 30);
  constexpr uint64_t kSize = 1'000'000;
  for (uint64_t n = 1; n <= 48; ++n) REQUIRE(f.Put(n, kSize).ok());
  CHECK(f.store->used() <= 16u << 20);
  CHECK(f.store->table().spilled_bytes() >= 32 * kSize);
  for (uint64_t n = 1; n <= 48; ++n) {
    INFO(n);
    REQUIRE(f.store->Contains(Object(n)));
    REQUIRE(f.Read(n, kSize).ok());
  }
  // No name is left for anybody to forget.
  CHECK(std::filesystem::is_empty(disk / "spill"));
  for (uint64_t n = 1; n <= 48; ++n) REQUIRE(f.store->Delete(Object(n)));
  REQUIRE(f.RunUntil([&] { return f.store->used() == 0 && f.store->table().spilled_bytes() == 0 && UnnamedBytes(disk.path()) == 0; }));
}

TEST_CASE("Spill: what is read stays, what was read longest ago goes first, and what is on disk already is not written again") {
  auto disk = std::make_shared<FakeDisk>();
  SpillFixture f(8192, disk, 1 << 20);
  for (uint64_t n = 1; n <= 8; ++n) REQUIRE(f.Put(n, 1024).ok());
  REQUIRE(f.store->Pin(Object(2), 3).ok());
  REQUIRE(f.Read(1, 1024).ok());   // now 3 is the oldest without a reader
  REQUIRE(f.Put(9, 1024).ok());
  CHECK(f.store->IsSpilled(Object(3)));
  CHECK_FALSE(f.store->IsSpilled(Object(1)));
  CHECK_FALSE(f.store->IsSpilled(Object(2)));
  REQUIRE(f.Read(3, 1024).ok());
  disk->full = true;   // 3 can leave memory again all the same
  f.store->Release(Object(2), 3);
  REQUIRE(f.Put(10, 1024).ok());
  for (uint64_t n = 1; n <= 10; ++n) CHECK(f.store->Contains(Object(n)));
}

TEST_CASE("Spill: a full disk fails creates with the reason, loses nothing, and is tried again") {
  auto disk = std::make_shared<FakeDisk>();
  SpillFixture f(8192, disk, 1 << 20, absl::Milliseconds(300));
  for (uint64_t n = 1; n <= 8; ++n) REQUIRE(f.Put(n, 1024).ok());
  disk->full = true;
  absl::Status status = f.Put(9, 1024);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Message(status).find("No space left on device") != std::string::npos);
  for (uint64_t n = 1; n <= 8; ++n) REQUIRE(f.Read(n, 1024).ok());
  CHECK(f.store->table().spilled_bytes() == 0);
  disk->full = false;
  REQUIRE(f.RunUntil([&] { return f.Put(9, 1024).ok(); }));
  for (uint64_t n = 1; n <= 9; ++n) REQUIRE(f.Read(n, 1024).ok());
}

TEST_CASE("Spill: the bound on disk holds, and the error names it") {
  SpillFixture f(8192, std::make_shared<FakeDisk>(), 4096, absl::Milliseconds(200));
  for (uint64_t n = 1; n <= 12; ++n) REQUIRE(f.Put(n, 1024).ok());
  absl::Status status = f.Put(13, 1024);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Message(status).find("4096 of at most 4096 bytes are spilled to disk") != std::string::npos);
  for (uint64_t n = 1; n <= 12; ++n) CHECK(f.store->Contains(Object(n)));
}

TEST_CASE("Spill: an object that cannot be read back is lost, the others are not") {
  auto disk = std::make_shared<FakeDisk>();
  SpillFixture f(8192, disk, 1 << 20);
  for (uint64_t n = 1; n <= 16; ++n) REQUIRE(f.Put(n, 1024).ok());
  REQUIRE(f.store->IsSpilled(Object(1)));
  REQUIRE(f.store->IsSpilled(Object(2)));
  disk->broken = true;
  absl::Status status = f.Read(1, 1024);
  CHECK(absl::IsNotFound(status));
  CHECK(Message(status).find("is lost") != std::string::npos);
  CHECK(Message(status).find("Input/output error") != std::string::npos);
  CHECK_FALSE(f.store->Contains(Object(1)));
  disk->broken = false;
  CHECK(f.Read(2, 1024).ok());
}

TEST_CASE("Spill: what an owner, a job or a deletion takes goes from the disk too, also while it is written or read") {
  auto disk = std::make_shared<FakeDisk>();
  SpillFixture f(8192, disk, 1 << 20);
  for (uint64_t n = 1; n <= 16; ++n) REQUIRE(f.Put(n, 1024).ok());
  std::optional<absl::Status> read;
  f.store->WhenHere(Object(1), [&](absl::Status status) { read = status; });
  REQUIRE(f.store->Delete(Object(1)));   // before it was read
  REQUIRE(f.RunUntil([&] { return read.has_value(); }));
  CHECK(absl::IsNotFound(*read));
  bool created = false;
  f.store->Create({.object = Object(17), .size = 4096, .client = 1}, [&](absl::StatusOr<Place>) { created = true; });   // writes begin
  f.store->JobGone(JobId::FromNumber(1));
  REQUIRE(f.RunUntil([&] { return created; }));
  REQUIRE(f.store->Abort(Object(17), 1).ok());
  REQUIRE(f.RunUntil([&] { return f.store->used() == 0 && f.store->table().spilled_bytes() == 0; }));
}

TEST_CASE("Spill: many readers of one object share one restore, and all of them get it") {
  SpillFixture f(8192, std::make_shared<FakeDisk>(), 1 << 20);
  for (uint64_t n = 1; n <= 16; ++n) REQUIRE(f.Put(n, 1024).ok());
  int pinned = 0;
  for (ClientNumber client = 10; client < 20; ++client) {
    f.store->WhenHere(Object(1), [&, client](absl::Status status) { pinned += status.ok() && f.store->Pin(Object(1), client).ok(); });
  }
  REQUIRE(f.RunUntil([&] { return pinned == 10; }));
  for (ClientNumber client = 10; client < 20; ++client) CHECK(f.store->Release(Object(1), client));
}

TEST_CASE("Spill: a folder that cannot be used is refused by its name") {
  absl::StatusOr<std::unique_ptr<SpillFile>> file = SpillFile::Open("/proc/argosy-spill");
  REQUIRE_FALSE(file.ok());
  CHECK(Message(file.status()).find("/proc/argosy-spill") != std::string::npos);
}

// A real disk that is full: a small tmpfs in a mount namespace of a child process.
TEST_CASE("Spill: a file system without room gives a typed error, and what was put before can be read") {
  testing::TemporaryFolder disk;
  pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
      ::_exit(77);   // not allowed here
    }
    int code = 0;
    {
      SpillFixture f(16 << 20, OpenFile(disk.path()), 1 << 30, absl::Milliseconds(500));
      absl::Status status;
      uint64_t put = 0;
      while (put < 100 && (status = f.Put(put + 1, 1 << 20)).ok()) ++put;
      if (status.code() != absl::StatusCode::kResourceExhausted || Message(status).find("No space left") == std::string::npos) code = 1;
      if (put < 16 || put > 21) code = 2;
      for (uint64_t n = 1; n <= put && code == 0; ++n) {
        // Each makes room for the next by going to disk again.
        if (!f.store->Contains(Object(n))) code = 3;
      }
      for (uint64_t n = put; n > put - 12 && code == 0; --n) {
        if (!f.store->IsSpilled(Object(n)) && !f.Read(n, 1 << 20).ok()) code = 4;
      }
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    WARN("this process may not mount a tmpfs: not tested");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

// Creates, reads, deletions and failures in any order, with slow disks: who pins an object finds its bytes, and nothing leaks.
TEST_CASE("Spill: the table never mixes up what lies where, whatever the order of events") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    ObjectTable table({.capacity = 64 * 1024, .waiting_creates_max = 50, .spill_max = 256 * 1024, .spill_batch = 8 * 1024});
    absl::Time now = absl::UnixEpoch();
    std::map<uint64_t, ObjectId> memory, disk;           // offset -> what was written there last
    std::map<ObjectId, int> pins;
    std::set<ObjectId> sealed;
    std::vector<ObjectTable::Spill> spills;
    std::vector<ObjectTable::Answer> restores;
    std::map<uint64_t, ObjectId> written;                // a spill's serial -> the bytes it read
    uint64_t next = 1;
    auto settle = [&] {
      for (ObjectTable::Answer& answer : table.TakeAnswers(now)) {
        if (!answer.place.ok()) continue;
        if (answer.is_restore) {
          restores.push_back(answer);
        } else {
          memory[answer.place->offset] = answer.object;
          REQUIRE(table.Seal(answer.object, 1).ok());
          sealed.insert(answer.object);
        }
      }
      for (const ObjectTable::Spill& spill : table.TakeSpills()) spills.push_back(spill);
      (void)table.TakeFreed();
      (void)table.TakeFreedDisk();
      (void)table.TakeAborted();
    };
    auto any = [&](const std::set<ObjectId>& set) { return *std::next(set.begin(), static_cast<long>(prng.Below(set.size()))); };
    for (int step = 0; step < 2000; ++step) {
      now += absl::Milliseconds(prng.Below(100));
      switch (prng.Below(8)) {
        case 0:
        case 1:
          table.Create({.object = Object(next++), .size = 1 + prng.Below(12 * 1024), .client = 1}, now);
          break;
        case 2:
        case 3:
          if (sealed.empty()) break;
          if (ObjectId object = any(sealed); table.StateOf(object) == ObjectTable::State::kSpilled) {
            table.Restore(object, now);
          } else {
            absl::StatusOr<Place> place = table.Pin(object, 2);
            REQUIRE(place.ok());
            REQUIRE(memory.at(place->offset) == object);
            ++pins[object];
          }
          break;
        case 4:
          if (!pins.empty()) {
            auto at = std::next(pins.begin(), static_cast<long>(prng.Below(pins.size())));
            REQUIRE(table.Release(at->first, 2));
            if (--at->second == 0) pins.erase(at);
          }
          break;
        case 5:
          if (prng.Below(3) == 0 && !sealed.empty()) {
            ObjectId object = any(sealed);
            REQUIRE(table.Delete(object));
            sealed.erase(object);
          }
          break;
        case 6:
          if (!spills.empty()) {
            ObjectTable::Spill spill = spills.front();
            spills.erase(spills.begin());
            bool ok = prng.Below(10) > 0;
            if (ok) disk[spill.disk_offset] = memory.at(spill.place.offset);
            table.SpillDone(spill.serial, ok ? absl::OkStatus() : absl::ResourceExhaustedError("full"), now);
          }
          break;
        case 7:
          if (!restores.empty()) {
            ObjectTable::Answer restore = restores.front();
            restores.erase(restores.begin());
            uint64_t what = prng.Below(20);
            if (what > 1) memory[restore.place->offset] = disk.at(restore.disk_offset);
            if (what == 1) sealed.erase(restore.object);
            table.RestoreDone(restore.serial, what == 0   ? ObjectTable::Restored::kNoMemory
                                              : what == 1 ? ObjectTable::Restored::kLost
                                                          : ObjectTable::Restored::kHere);
          }
          break;
      }
      settle();
      REQUIRE(table.used() <= table.capacity());
      REQUIRE(table.spilled_bytes() <= table.spill_max());
      for (ObjectId object : sealed) REQUIRE(table.StateOf(object) != ObjectTable::State::kAbsent);
    }
    // Everything goes.
    for (const auto& [object, count] : pins) {
      for (int i = 0; i < count; ++i) REQUIRE(table.Release(object, 2));
    }
    while (!spills.empty() || !restores.empty() || !sealed.empty()) {
      for (ObjectId object : sealed) REQUIRE(table.Delete(object));
      sealed.clear();
      for (const ObjectTable::Spill& spill : std::exchange(spills, {})) table.SpillDone(spill.serial, absl::OkStatus(), now);
      for (const ObjectTable::Answer& restore : std::exchange(restores, {})) table.RestoreDone(restore.serial, ObjectTable::Restored::kHere);
      settle();
    }
    REQUIRE(table.used() == 0);
    REQUIRE(table.spilled_bytes() == 0);
    REQUIRE(table.objects() == 0);
  }
}

}  // namespace argosy::store
