#include "runtime/store/object_store.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "absl/time/clock.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/temporary_folder.h"

namespace argosy::store {
namespace {

struct Fixture {
  explicit Fixture(uint64_t size, absl::Duration create_wait = absl::Seconds(60)) {
    auto opened = ObjectStore::Open(loop, {.size = size, .door_path = folder / "door", .create_wait_max = create_wait});
    REQUIRE(opened.ok());
    store = std::move(*opened);
  }
  bool RunUntil(const std::function<bool()>& condition) { return testing::RunUntil(loop, condition); }
  absl::StatusOr<Place> Create(ObjectId object, uint64_t size, ClientNumber client = 0) {
    std::optional<absl::StatusOr<Place>> result;
    store->Create({.object = object, .size = size, .client = client}, [&](absl::StatusOr<Place> place) { result = std::move(place); });
    REQUIRE(RunUntil([&] { return result.has_value(); }));
    return *result;
  }
  // Runs `body` in a child process, with the loop running here; its exit code.
  int InChild(const std::function<int()>& body) {
    pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    int status = 0;
    bool ended = false;
    REQUIRE(RunUntil([&] { return ended = ended || ::waitpid(child, &status, WNOHANG) == child; }));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  async::Loop loop;
  testing::TemporaryFolder folder;
  std::unique_ptr<ObjectStore> store;
};

}  // namespace

TEST_CASE("ObjectStore: another process reads a sealed object in place, and cannot write it") {
  Fixture f(64 << 20);
  ObjectId object = ObjectId::Random();
  absl::StatusOr<Place> place = f.Create(object, 5 << 20);
  REQUIRE(place.ok());
  std::memset(f.store->Bytes(*place).data(), 0x5a, place->size);
  REQUIRE(f.store->Seal(object, 0).ok());
  REQUIRE(f.store->Pin(object, 1).ok());

  int code = f.InChild([&] {
    auto mapping = ArenaMapping::Connect(f.store->door_path());
    if (!mapping.ok()) return 1;
    auto bytes = (*mapping)->ReadableSpan(place->offset, place->size);
    if (!bytes.ok()) return 2;
    for (std::byte byte : *bytes) {
      if (byte != std::byte{0x5a}) return 3;
    }
    if ((*mapping)->ReadableSpan((*mapping)->size(), 1).ok()) return 4;
    return 0;
  });
  REQUIRE(code == 0);
  code = f.InChild([&] {
    auto mapping = ArenaMapping::Connect(f.store->door_path());
    if (!mapping.ok()) return 1;
    auto bytes = (*mapping)->ReadableSpan(place->offset, place->size);
    ::signal(SIGSEGV, SIG_DFL);   // not the test runner's handler
    *const_cast<std::byte*>(bytes->data()) = std::byte{0};
    return 0;
  });
  REQUIRE(code == 128 + SIGSEGV);
}

TEST_CASE("ObjectStore: a part of any size copied into an object is just that part, the first time and when its pages were written before") {
  Fixture f(16 << 20);
  ObjectId object = ObjectId::Random();
  absl::StatusOr<Place> place = f.Create(object, 5 << 20);
  REQUIRE(place.ok());
  std::memset(f.store->Bytes(*place).data(), 0x5a, place->size);
  int code = f.InChild([&] {
    auto mapping = ArenaMapping::Connect(f.store->door_path());
    if (!mapping.ok()) return 1;
    std::span<std::byte> bytes = *(*mapping)->WritableSpan(place->offset, place->size);
    std::vector<std::byte> from(3 << 20);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + (i >> 12));
    for (int time = 0; time < 2; ++time) {
      (*mapping)->Write(bytes.data() + 1001, from.data(), from.size());
      (*mapping)->Write(bytes.data() + (4 << 20), from.data(), 1);
    }
    return 0;
  });
  REQUIRE(code == 0);
  std::span<std::byte> bytes = f.store->Bytes(*place);
  size_t wrong = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t in_part = i - 1001;
    std::byte want{0x5a};
    if (i >= 1001 && in_part < (3 << 20)) want = static_cast<std::byte>(in_part * 7 + (in_part >> 12));
    if (i == 4 << 20) want = std::byte{0};
    wrong += bytes[i] != want;
  }
  CHECK(wrong == 0);
}

TEST_CASE("ObjectStore: what another process writes before sealing is what is read") {
  Fixture f(16 << 20);
  ObjectId object = ObjectId::Random();
  absl::StatusOr<Place> place = f.Create(object, 3'000'000, 1);
  REQUIRE(place.ok());
  int code = f.InChild([&] {
    auto mapping = ArenaMapping::Connect(f.store->door_path());
    if (!mapping.ok()) return 1;
    auto bytes = (*mapping)->WritableSpan(place->offset, place->size);
    for (size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<std::byte>(i * 7);
    return 0;
  });
  REQUIRE(code == 0);
  REQUIRE(f.store->Seal(object, 1).ok());
  std::span<std::byte> bytes = f.store->Bytes(*place);
  for (size_t i = 0; i < bytes.size(); i += 997) REQUIRE(bytes[i] == static_cast<std::byte>(i * 7));
}

TEST_CASE("ObjectStore: memory is there before a create is answered, and goes back when it is idle") {
  Fixture f(64 << 20);
  REQUIRE(f.store->backed() == 0);
  ObjectId object = ObjectId::Random();
  absl::StatusOr<Place> place = f.Create(object, 10 << 20);
  REQUIRE(place.ok());
  REQUIRE(f.store->backed() == 10u << 20);
  REQUIRE(f.store->Delete(object));
  REQUIRE(f.store->used() == 0);
  f.store->PunchIdle(absl::ZeroDuration());
  REQUIRE(f.store->backed() == 0);
  // Again, right behind the punching.
  place = f.Create(object, 10 << 20);
  REQUIRE(place.ok());
  std::memset(f.store->Bytes(*place).data(), 1, place->size);
  REQUIRE(f.store->backed() == 10u << 20);
}

TEST_CASE("ObjectStore: a create in a full store waits for room, and fails with the sizes when none comes") {
  Fixture f(8 << 20, absl::Milliseconds(200));
  ObjectId first = ObjectId::Random();
  REQUIRE(f.Create(first, 6 << 20).ok());
  REQUIRE(f.store->Seal(first, 0).ok());
  absl::StatusOr<Place> late = f.Create(ObjectId::Random(), 4 << 20);
  REQUIRE(late.status().code() == absl::StatusCode::kResourceExhausted);

  std::optional<absl::StatusOr<Place>> result;
  f.store->Create({.object = ObjectId::Random(), .size = 4 << 20}, [&](absl::StatusOr<Place> place) { result = std::move(place); });
  f.loop.Poll();
  REQUIRE_FALSE(result.has_value());
  REQUIRE(f.store->Delete(first));
  REQUIRE(f.RunUntil([&] { return result.has_value(); }));
  REQUIRE(result->ok());
}

TEST_CASE("ObjectStore: the end of a client frees what it was creating and wakes who waited for it") {
  Fixture f(8 << 20);
  ClientNumber client = f.store->AddClient();
  ObjectId object = ObjectId::Random();
  REQUIRE(f.Create(object, 6 << 20, client).ok());
  std::optional<bool> sealed;
  f.store->WhenCreated(object, [&](bool is_sealed) { sealed = is_sealed; });
  std::optional<absl::StatusOr<Place>> other;
  f.store->Create({.object = ObjectId::Random(), .size = 6 << 20}, [&](absl::StatusOr<Place> place) { other = std::move(place); });
  f.store->RemoveClient(client);
  REQUIRE(sealed == false);
  REQUIRE(f.RunUntil([&] { return other.has_value(); }));
  REQUIRE(other->ok());
}

TEST_CASE("ArenaMapping: nobody at the door is UNAVAILABLE") {
  REQUIRE(ArenaMapping::Connect("/tmp/argosy-no-such-door").status().code() == absl::StatusCode::kUnavailable);
  REQUIRE(ArenaMapping::Connect(std::string(200, 'x')).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace argosy::store
