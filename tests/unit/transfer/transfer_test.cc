#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "absl/time/clock.h"
#include "runtime/base/file.h"
#include "runtime/transfer/code_files.h"
#include "runtime/transfer/object_mover.h"
#include "runtime/wire/sha256.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/temporary_folder.h"

namespace argosy::transfer {
namespace {

// The parts of a node that move data: a store, its mover and code files, served over TCP.
struct Node {
  Node(async::Loop& loop, const std::string& folder, const std::string& name, uint64_t store_size, uint64_t chunk_bytes = 1 << 20)
      : self{wire::Role::kNode, std::string(id.Bytes())} {
    store = std::move(*store::ObjectStore::Open(loop, {.size = store_size, .door_path = folder + "/" + name}));
    peers = std::make_unique<Peers>(loop, wire::ConnectOptions{.self = self, .token = Token("secret")});
    mover = std::make_unique<ObjectMover>(loop, *store, *peers, ObjectMoverOptions{.self = id, .chunk_bytes = chunk_bytes});
    files = std::make_unique<CodeFiles>(loop, *peers, CodeFilesOptions{.folder = folder + "/" + name + ".code", .chunk_bytes = 64 * 1024});
    listener = std::move(*wire::Listener::Tcp(loop, "127.0.0.1", 0, {.self = self, .token = Token("secret")},
                                              [this](std::shared_ptr<wire::Connection> connection) {
      accepted.push_back(connection);
      connection->Start({.on_request = [this](wire::Call call) {
        ++requests;
        if (requests > fail_after) return call.Fail(absl::NotFoundError("not here"));
        if (call.method() == wire::Method::kPullObject) mover->ServePull(std::move(call));
        else if (call.method() == wire::Method::kPullBytes) mover->ServeBytes(std::move(call));
        else if (!host_file.empty()) ServeHostFile(std::move(call));
        else files->ServeRead(std::move(call));
      },
      .on_notice = [this](wire::Connection&, wire::Method, std::string body) { mover->ServeDrop(*Decode<wire::DropObject>(body)); },
      .on_closed = [](absl::Status) {}});
    }));
  }
  ~Node() {
    listener.reset();
    for (auto& connection : accepted) connection->Close(absl::CancelledError("end"));
  }
  // As ServeRead on another host, where the file exists.
  void ServeHostFile(wire::Call call) {
    wire::ReadCodeFile request = *call.As<wire::ReadCodeFile>();
    wire::CodeFileChunk chunk{host_file.size(), host_file.substr(request.offset, std::min<uint64_t>(request.size_max, 64 * 1024))};
    call.Answer(chunk);
  }
  wire::ObjectLocation Location(uint64_t size = 0) const { return {id, listener->address(), size}; }

  NodeId id = NodeId::Random();
  wire::Identity self;
  std::unique_ptr<store::ObjectStore> store;
  std::unique_ptr<Peers> peers;
  std::unique_ptr<ObjectMover> mover;
  std::unique_ptr<CodeFiles> files;
  std::unique_ptr<wire::Listener> listener;
  std::vector<std::shared_ptr<wire::Connection>> accepted;
  std::string host_file;
  int requests = 0;
  int fail_after = INT_MAX;   // requests
};

struct Fixture {
  bool RunUntil(const std::function<bool()>& condition) { return testing::RunUntil(loop, condition); }
  ObjectId MakeObject(Node& node, uint64_t size) {
    ObjectId object = ObjectId::Random();
    std::optional<absl::StatusOr<store::Place>> place;
    node.store->Create({.object = object, .size = size}, [&](absl::StatusOr<store::Place> made) { place = std::move(made); });
    REQUIRE(RunUntil([&] { return place.has_value(); }));
    REQUIRE(place->ok());
    std::span<std::byte> bytes = node.store->Bytes(**place);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096);
    REQUIRE(node.store->Seal(object, 0).ok());
    return object;
  }
  static bool SameBytes(Node& a, Node& b, ObjectId object) {
    auto in_a = a.store->Pin(object, 0);
    auto in_b = b.store->Pin(object, 0);
    if (!in_a.ok() || !in_b.ok() || in_a->size != in_b->size) return false;
    bool same = std::memcmp(a.store->Bytes(*in_a).data(), b.store->Bytes(*in_b).data(), in_a->size) == 0;
    a.store->Release(object, 0);
    b.store->Release(object, 0);
    return same;
  }

  async::Loop loop;
  testing::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("ObjectMover: an object is pulled over TCP, once for all who want it") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 64 << 20);
  Node b(f.loop, f.folder.path(), "b", 64 << 20);
  ObjectId object = f.MakeObject(a, 7'654'321);
  int done = 0;
  for (int i = 0; i < 3; ++i) {
    b.mover->Pull(object, {a.Location(7'654'321)}, JobId(), [&](absl::Status status) {
      REQUIRE(status.ok());
      ++done;
    });
  }
  REQUIRE(f.RunUntil([&] { return done == 3; }));
  REQUIRE(Fixture::SameBytes(a, b, object));
  REQUIRE(a.requests == 8);   // chunks of 1 MiB, each asked for once
  REQUIRE(b.mover->pulls() == 0);
}

TEST_CASE("ObjectMover: an empty object and one of exactly a chunk arrive") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 64 << 20);
  Node b(f.loop, f.folder.path(), "b", 64 << 20);
  for (uint64_t size : {uint64_t{0}, uint64_t{1} << 20}) {
    ObjectId object = f.MakeObject(a, size);
    std::optional<absl::Status> status;
    b.mover->Pull(object, {a.Location()}, JobId(), [&](absl::Status result) { status = result; });
    REQUIRE(f.RunUntil([&] { return status.has_value(); }));
    REQUIRE(status->ok());
    REQUIRE(Fixture::SameBytes(a, b, object));
  }
}

TEST_CASE("ObjectMover: when a location fails the next one goes on, and what has arrived is kept") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 64 << 20, 256 * 1024);
  Node b(f.loop, f.folder.path(), "b", 64 << 20, 256 * 1024);
  Node c(f.loop, f.folder.path(), "c", 64 << 20, 256 * 1024);
  ObjectId object = f.MakeObject(a, 8 << 20);
  std::optional<absl::Status> first;
  b.mover->Pull(object, {a.Location()}, JobId(), [&](absl::Status result) { first = result; });
  REQUIRE(f.RunUntil([&] { return first.has_value(); }));

  // Breaks after some chunks of 32.
  std::optional<absl::Status> status;
  a.fail_after = a.requests + 6;
  c.mover->Pull(object, {a.Location(), b.Location()}, JobId(), [&](absl::Status result) { status = result; });
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  REQUIRE(status->ok());
  REQUIRE(Fixture::SameBytes(b, c, object));
  REQUIRE(b.requests > 0);
  REQUIRE(b.requests < 32);
}

TEST_CASE("ObjectMover: an object that nobody has is NOT_FOUND, one that may be where nobody answers is UNAVAILABLE; neither leaves anything behind") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 16 << 20);
  Node b(f.loop, f.folder.path(), "b", 16 << 20);
  std::optional<absl::Status> status;
  wire::ObjectLocation nobody{NodeId::Random(), "127.0.0.1:1", 10};
  b.mover->Pull(ObjectId::Random(), {nobody, a.Location()}, JobId(), [&](absl::Status result) { status = result; });
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  REQUIRE(status->code() == absl::StatusCode::kUnavailable);
  REQUIRE(std::string(status->message()).find("127.0.0.1:1") != std::string::npos);
  status.reset();
  b.mover->Pull(ObjectId::Random(), {a.Location()}, JobId(), [&](absl::Status result) { status = result; });
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  REQUIRE(status->code() == absl::StatusCode::kNotFound);
  REQUIRE(std::string(status->message()).find(a.Location().wire_address) != std::string::npos);
  REQUIRE(b.store->used() == 0);
}

TEST_CASE("ObjectMover: an object too large for the store is refused with sizes") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 32 << 20);
  Node b(f.loop, f.folder.path(), "b", 4 << 20);
  ObjectId object = f.MakeObject(a, 20 << 20);
  std::optional<absl::Status> status;
  b.mover->Pull(object, {a.Location()}, JobId(), [&](absl::Status result) { status = result; });
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  REQUIRE(status->code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(b.store->used() == 0);
}

TEST_CASE("ObjectMover: an object deleted while it is pulled writes nothing into the one that has its place now") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 64 << 20);
  Node b(f.loop, f.folder.path(), "b", 34 << 20);
  ObjectId object = f.MakeObject(a, 32 << 20);
  std::optional<absl::Status> status;
  b.mover->Pull(object, {a.Location(32 << 20)}, JobId(), [&](absl::Status result) { status = result; });
  ObjectId next = ObjectId::Random();
  bool made = false;
  // Between two turns of the loop, with chunks under way: there is room for one object only.
  std::function<void()> look = [&] {
    if (b.mover->bytes_received() < 2 << 20) return f.loop.Post(look);
    REQUIRE_FALSE(status.has_value());
    b.store->Delete(object);
    b.store->Create({.object = next, .size = 32 << 20}, [&](absl::StatusOr<store::Place> place) {
      REQUIRE(place.ok());
      std::span<std::byte> bytes = b.store->Bytes(*place);
      std::fill(bytes.begin(), bytes.end(), std::byte{77});
      made = b.store->Seal(next, 0).ok();
    });
  };
  f.loop.Post(look);
  REQUIRE(f.RunUntil([&] { return status.has_value() && made; }));
  CHECK_FALSE(status->ok());
  CHECK(b.mover->pulls() == 0);
  // What was asked for has come by now.
  REQUIRE(f.RunUntil([&] { return a.accepted.front()->unsent_bytes() == 0; }));
  absl::StatusOr<store::Place> place = b.store->Pin(next, 0);
  REQUIRE(place.ok());
  std::span<std::byte> bytes = b.store->Bytes(*place);
  CHECK(std::count(bytes.begin(), bytes.end(), std::byte{77}) == 32 << 20);
  b.store->Release(next, 0);
}

TEST_CASE("ObjectMover: what is pulled may be made here meanwhile: who waits for the pull has it from here") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 64 << 20);
  Node b(f.loop, f.folder.path(), "b", 34 << 20);
  ObjectId object = f.MakeObject(a, 32 << 20);
  std::optional<absl::Status> status;
  b.mover->Pull(object, {a.Location(32 << 20)}, JobId(), [&](absl::Status result) { status = result; });
  std::optional<store::Place> made;
  std::function<void()> look = [&] {
    if (b.mover->bytes_received() < 2 << 20) return f.loop.Post(look);
    REQUIRE_FALSE(status.has_value());
    // As its task does that runs again on this node.
    b.store->Create({.object = object, .size = 32 << 20, .client = 5, .owner = WorkerId::FromNumber(1)}, [&](absl::StatusOr<store::Place> place) {
      INFO(place.status().ToString());
      REQUIRE(place.ok());
      made = *place;
      std::span<std::byte> bytes = b.store->Bytes(*place);
      std::fill(bytes.begin(), bytes.end(), std::byte{77});
    });
  };
  f.loop.Post(look);
  REQUIRE(f.RunUntil([&] { return made.has_value() && a.accepted.front()->unsent_bytes() == 0; }));
  REQUIRE(b.store->Seal(object, 5).ok());
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  INFO(status->ToString());
  CHECK(status->ok());
  CHECK(b.mover->pulls() == 0);
  absl::StatusOr<store::Place> place = b.store->Pin(object, 0);
  REQUIRE(place.ok());
  std::span<std::byte> bytes = b.store->Bytes(*place);
  CHECK(std::count(bytes.begin(), bytes.end(), std::byte{77}) == 32 << 20);
  b.store->Release(object, 0);
}

TEST_CASE("ObjectMover: copies elsewhere are dropped with their object") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 16 << 20);
  Node b(f.loop, f.folder.path(), "b", 16 << 20);
  ObjectId object = f.MakeObject(a, 1000);
  std::optional<absl::Status> status;
  b.mover->Pull(object, {a.Location()}, JobId(), [&](absl::Status result) { status = result; });
  REQUIRE(f.RunUntil([&] { return status.has_value(); }));
  a.mover->DropElsewhere({object}, {a.Location(), b.Location()});
  REQUIRE(f.RunUntil([&] { return !b.store->Contains(object); }));
  REQUIRE(a.store->Contains(object));
}

TEST_CASE("CodeFiles: a file is used in place when it is the same, else fetched once and checked") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 4 << 20);
  Node b(f.loop, f.folder.path(), "b", 4 << 20);
  std::string path = f.folder / "program";
  std::string content(300'000, 'p');
  REQUIRE(WriteFileAtomic(path, content, {.mode = 0755}).ok());
  wire::CodePackage package;
  package.id = "package";
  package.source_address = a.listener->address();
  package.files = {{path, wire::Sha256Hex(content), content.size(), 0755}};

  std::optional<absl::StatusOr<CodeFiles::Located>> located;
  b.files->Locate(package, [&](absl::StatusOr<CodeFiles::Located> result) { located = std::move(result); });
  REQUIRE(f.RunUntil([&] { return located.has_value(); }));
  REQUIRE((*located)->paths[0] == path);
  REQUIRE_FALSE((*located)->fetched);

  // On a node that has another file there: moved away, so that only the source's path differs.
  std::string elsewhere = f.folder / "source-program";
  std::filesystem::rename(path, elsewhere);
  package.id = "package 2";
  package.files[0].path = elsewhere;
  wire::CodePackage wrong = package;
  wrong.id = "package 3";
  wrong.files[0].sha256 = wire::Sha256Hex("something else");
  located.reset();
  b.files->Locate(wrong, [&](absl::StatusOr<CodeFiles::Located> result) { located = std::move(result); });
  REQUIRE(f.RunUntil([&] { return located.has_value(); }));
  REQUIRE_FALSE(located->ok());   // the source does not serve what is not the driver's file
}

TEST_CASE("CodeFiles: a fetched file keeps its name, content and mode") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 4 << 20);
  Node b(f.loop, f.folder.path(), "b", 4 << 20);
  std::string content;
  for (int i = 0; i < 200'000; ++i) content.push_back(static_cast<char>(i * 13));
  wire::CodePackage package;
  package.id = "package";
  package.source_address = a.listener->address();
  package.files = {{"/on/another/host/program", wire::Sha256Hex(content), content.size(), 0755}};
  a.host_file = content;
  std::optional<absl::StatusOr<CodeFiles::Located>> located;
  b.files->Locate(package, [&](absl::StatusOr<CodeFiles::Located> result) { located = std::move(result); });
  REQUIRE(f.RunUntil([&] { return located.has_value(); }));
  REQUIRE(located->ok());
  REQUIRE((*located)->fetched);
  REQUIRE(std::filesystem::path((*located)->paths[0]).filename() == "program");
  REQUIRE(*ReadFile((*located)->paths[0]) == content);
  struct stat info;
  REQUIRE(::stat((*located)->paths[0].c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0755);
  // The second time it is there; and what arrives with another content is refused.
  int requests = a.requests;
  located.reset();
  b.files->Locate(package, [&](absl::StatusOr<CodeFiles::Located> result) { located = std::move(result); });
  REQUIRE(f.RunUntil([&] { return located.has_value(); }));
  REQUIRE(located->ok());
  REQUIRE(a.requests == requests);
  package.id = "package 2";
  package.files[0].sha256 = wire::Sha256Hex("another");
  located.reset();
  b.files->Locate(package, [&](absl::StatusOr<CodeFiles::Located> result) { located = std::move(result); });
  REQUIRE(f.RunUntil([&] { return located.has_value(); }));
  REQUIRE_FALSE(located->ok());
}

TEST_CASE("CodeFiles: a node serves the driver's file, in chunks, and nothing else under its path") {
  Fixture f;
  Node a(f.loop, f.folder.path(), "a", 4 << 20);
  Node b(f.loop, f.folder.path(), "b", 4 << 20);
  std::string path = f.folder / "program";
  std::string content(100'000, 'q');
  REQUIRE(WriteFileAtomic(path, content).ok());
  auto read = [&](const std::string& sha256, uint64_t offset) {
    std::optional<absl::StatusOr<wire::CodeFileChunk>> chunk;
    wire::ReadCodeFile request{sha256, path, offset, 1 << 20};
    b.peers->Get(a.listener->address(), [&](absl::StatusOr<std::shared_ptr<wire::Connection>> connection) {
      (*connection)->Request(request, [&](absl::StatusOr<wire::CodeFileChunk> result) { chunk = std::move(result); });
    });
    REQUIRE(f.RunUntil([&] { return chunk.has_value(); }));
    return *chunk;
  };
  REQUIRE(read(wire::Sha256Hex(content), 0)->bytes.size() == 64 * 1024);
  REQUIRE(read(wire::Sha256Hex(content), 64 * 1024)->bytes.size() == 100'000 - 64 * 1024);
  REQUIRE(read(wire::Sha256Hex("another"), 0).status().code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace argosy::transfer
