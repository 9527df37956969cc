#include "runtime/wire/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "runtime/wire/address.h"
#include "runtime/base/limits.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"
#include "tests/support/temporary_folder.h"

namespace argosy::wire {
namespace {

using testing::RunUntil;
using testing::TemporaryFolder;

Identity Worker() { return {Role::kWorker, std::string(WorkerId::Random().Bytes())}; }
Identity Node() { return {Role::kNode, std::string(NodeId::Random().Bytes())}; }

// A server that answers KvGet with its key, keeps WaitGroup waiting, and counts notices.
struct Server {
  Server(async::Loop& loop, bool tcp, const std::string& path, const std::string& token) {
    ListenOptions options{.self = Node(), .token = Token(token)};
    auto accepted = [this](std::shared_ptr<Connection> connection) {
      connections.push_back(connection);
      connection->Start({.on_request = [this](Call call) {
                           if (call.method() == Method::kKvGet) {
                             absl::StatusOr<KvGet> get = call.As<KvGet>();
                             if (!get.ok()) return call.Fail(get.status());
                             return call.Answer(KvGetReply{get->key});
                           }
                           if (call.method() == Method::kPullBytes) {
                             PullBytes wanted = call.As<PullBytes>().value();
                             if (wanted.offset + wanted.size > bytes.size()) return call.Fail(absl::OutOfRangeError("not so many"));
                             auto keep = std::shared_ptr<void>(nullptr, [this](void*) { ++let_go; });
                             return call.AnswerBytes(std::span(bytes).subspan(wanted.offset, wanted.size), std::move(keep));
                           }
                           if (call.method() == Method::kWaitGroup) return held.push_back(std::move(call));
                           call.Fail(absl::UnimplementedError("no such method here"));
                         },
                         .on_notice = [this](Connection&, Method, std::string) { ++notices; },
                         .on_closed = [this](absl::Status) { ++closed; }});
    };
    absl::StatusOr<std::unique_ptr<Listener>> made =
        tcp ? Listener::Tcp(loop, "127.0.0.1", 0, options, accepted) : Listener::Unix(loop, path, options, accepted);
    REQUIRE(made.ok());
    listener = *std::move(made);
  }
  std::unique_ptr<Listener> listener;
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<Call> held;
  std::vector<std::byte> bytes;   // what PullBytes gives
  int let_go = 0;                 // answers of it whose bytes are needed no more
  int notices = 0;
  int closed = 0;
};

absl::StatusOr<std::shared_ptr<Connection>> Connect(async::Loop& loop, const Server& server, bool tcp, const std::string& token) {
  absl::StatusOr<std::shared_ptr<Connection>> result = absl::UnknownError("pending");
  bool done = false;
  auto connected = [&](absl::StatusOr<std::shared_ptr<Connection>> connection) { result = std::move(connection); done = true; };
  ConnectOptions options{.self = Worker(), .token = Token(token)};
  if (tcp) ConnectTcp(loop, server.listener->address(), options, connected);
  else ConnectUnix(loop, server.listener->address(), options, connected);
  REQUIRE(RunUntil(loop, [&] { return done; }));
  return result;
}

}  // namespace

TEST_CASE("Connection: requests are answered over Unix and TCP sockets, in any number at once") {
  bool tcp = GENERATE(false, true);
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, tcp, folder / "s", "secret");
  auto client = Connect(loop, server, tcp, "secret");
  REQUIRE(client.ok());
  (*client)->Start({});
  int answered = 0;
  for (int i = 0; i < 2000; ++i) {
    (*client)->Request(KvGet{"", std::to_string(i)}, [&, i](absl::StatusOr<KvGetReply> reply) {
      REQUIRE(reply.ok());
      CHECK(reply->value == std::to_string(i));
      ++answered;
    });
  }
  (*client)->Notify(AbortObject{});
  CHECK(RunUntil(loop, [&] { return answered == 2000 && server.notices == 1; }));
}

TEST_CASE("Connection: frames from one byte to many megabytes arrive whole, both ways at once") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  (*client)->Start({});
  int answered = 0;
  std::vector<size_t> sizes{0, 1, 100, 65536, 1 << 20, 40 << 20, 33 << 20, 5};
  for (size_t size : sizes) {
    std::string key(size, static_cast<char>('a' + size % 26));
    (*client)->Request(KvGet{"", key}, [&answered, key](absl::StatusOr<KvGetReply> reply) {
      REQUIRE(reply.ok());
      CHECK((reply->value == key));
      ++answered;
    });
  }
  CHECK(RunUntil(loop, [&] { return answered == static_cast<int>(sizes.size()); }));
  bool refused = false;
  (*client)->Request(KvGet{"", std::string(kFrameBytesMax + 1, 'x')}, [&](absl::StatusOr<KvGetReply> reply) {
    refused = reply.status().code() == absl::StatusCode::kInvalidArgument;
  });
  CHECK(RunUntil(loop, [&] { return refused; }));
}

TEST_CASE("Connection: bytes are received where they are wanted, in order with other replies") {
  bool tcp = GENERATE(false, true);
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, tcp, folder / "s", "secret");
  server.bytes.resize(20 << 20);
  for (size_t i = 0; i < server.bytes.size(); ++i) server.bytes[i] = static_cast<std::byte>(i * 7 + i / 5000);
  auto client = Connect(loop, server, tcp, "secret");
  REQUIRE(client.ok());
  (*client)->Start({});
  std::vector<std::byte> got(server.bytes.size());
  const std::vector<uint64_t> sizes{0, 1, 16 << 10, (16 << 10) + 1, 3, 1 << 20, 10 << 20, 100'000};
  std::vector<uint64_t> ends;
  int answered = 0;
  uint64_t offset = 0;
  for (uint64_t size : sizes) {
    auto room = [&got, offset, size](uint64_t at) { return std::span(got).subspan(offset + at, size - at); };
    (*client)->RequestBytes(PullBytes{{}, offset, size}, room, [&, size](absl::StatusOr<uint64_t> reply) {
      REQUIRE(reply.ok());
      CHECK(*reply == size);
      ++answered;
    });
    (*client)->Request(KvGet{"", "between"}, [&](absl::StatusOr<KvGetReply> reply) {
      REQUIRE(reply.ok());
      CHECK(reply->value == "between");
      ++answered;
    });
    offset += size;
  }
  REQUIRE(RunUntil(loop, [&] { return answered == 2 * static_cast<int>(sizes.size()); }));
  CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(offset), server.bytes.begin()));
  CHECK(server.let_go == static_cast<int>(sizes.size()));
  CHECK((*client)->pending_requests() == 0);
}

TEST_CASE("Connection: bytes that nobody wants any more, or that do not fit, are skipped; an error is an error") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  server.bytes.resize(3 << 20, std::byte{5});
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  (*client)->Start({});
  std::vector<std::byte> got(1 << 20);
  std::optional<uint64_t> unwanted, small;
  absl::Status refused;
  (*client)->RequestBytes(PullBytes{{}, 0, 3 << 20}, [](uint64_t) { return std::span<std::byte>(); },
                          [&](absl::StatusOr<uint64_t> size) { unwanted = size.value(); });
  (*client)->RequestBytes(PullBytes{{}, 0, 3 << 20},
                          [&](uint64_t at) { return at < got.size() ? std::span(got).subspan(at) : std::span<std::byte>(); },
                          [&](absl::StatusOr<uint64_t> size) { small = size.value(); });
  (*client)->RequestBytes(PullBytes{{}, 0, 4 << 20}, [](uint64_t) { return std::span<std::byte>(); },
                          [&](absl::StatusOr<uint64_t> size) { refused = size.status(); });
  bool after = false;
  (*client)->Request(KvGet{"", "after"}, [&](absl::StatusOr<KvGetReply> reply) { after = reply.ok(); });
  REQUIRE(RunUntil(loop, [&] { return after; }));
  CHECK(unwanted == 3u << 20);
  CHECK(small == 3u << 20);
  CHECK(absl::IsOutOfRange(refused));
  CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{5}; }));
}

TEST_CASE("Connection: when it breaks under bytes, their request fails and the sender lets them go") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  server.bytes.resize(50 << 20);
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  (*client)->Start({});
  std::vector<std::byte> got(50 << 20);
  absl::Status failed;
  bool closing = false;
  auto room = [&](uint64_t at) {
    // In a turn of its own, long before all of them have come.
    if (at > 0 && !std::exchange(closing, true)) loop.Post([&] { (*client)->Close(absl::CancelledError("enough")); });
    return std::span(got).subspan(at);
  };
  (*client)->RequestBytes(PullBytes{{}, 0, 50 << 20}, room, [&](absl::StatusOr<uint64_t> size) { failed = size.status(); });
  CHECK(RunUntil(loop, [&] { return absl::IsUnavailable(failed); }));
  CHECK(RunUntil(loop, [&] { return server.closed == 1; }));
  CHECK(RunUntil(loop, [&] { return server.let_go == 1; }));
}

TEST_CASE("Connection: an error reply carries code and message, and a dropped request is answered too") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  (*client)->Start({});
  absl::Status unknown, dropped;
  int done = 0;
  (*client)->Request(ListNodes{}, [&](auto reply) { unknown = reply.status(); ++done; });
  (*client)->Request(WaitGroup{}, [&](auto reply) { dropped = reply.status(); ++done; });
  REQUIRE(RunUntil(loop, [&] { return server.held.size() == 1 && done == 1; }));
  CHECK(unknown == absl::UnimplementedError("no such method here"));
  server.held.clear();
  REQUIRE(RunUntil(loop, [&] { return done == 2; }));
  CHECK(dropped.code() == absl::StatusCode::kInternal);
}

TEST_CASE("Connection: when it breaks, every pending request fails once and on_closed runs once") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  int failed = 0, closed = 0;
  (*client)->Start({.on_closed = [&](absl::Status) { ++closed; }});
  for (int i = 0; i < 10; ++i) (*client)->Request(WaitGroup{}, [&](auto reply) {
    CHECK(reply.status().code() == absl::StatusCode::kUnavailable);
    ++failed;
  });
  REQUIRE(RunUntil(loop, [&] { return server.held.size() == 10; }));
  server.connections[0]->Close(absl::CancelledError("test"));
  REQUIRE(RunUntil(loop, [&] { return failed == 10 && closed == 1 && server.closed == 1; }));
  bool late = false;
  (*client)->Request(ListNodes{}, [&](auto reply) { late = !reply.ok(); });
  CHECK(RunUntil(loop, [&] { return late; }));
  CHECK_FALSE((*client)->is_open());
}

TEST_CASE("Connection: a wrong token is refused with a reason, and nobody else is disturbed") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, true, "", "secret");
  auto refused = Connect(loop, server, true, "guess");
  CHECK(refused.status().code() == absl::StatusCode::kPermissionDenied);
  CHECK(server.connections.empty());
  CHECK(Connect(loop, server, true, "secret").ok());
}

TEST_CASE("Listener: a peer that sends garbage or nothing is dropped") {
  async::Loop loop;
  Server server(loop, true, "", "secret");
  HostPort at = *ParseHostPort(server.listener->address());
  SocketAddress address = *ResolveTcp(at.host, at.port);
  UniqueFd garbage(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::connect(garbage.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) == 0);
  REQUIRE(::send(garbage.get(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, 0) == 27);
  bool ended = false;
  CHECK(RunUntil(loop, [&] {
    char byte;
    ssize_t n = ::recv(garbage.get(), &byte, 1, MSG_DONTWAIT);
    return ended = ended || n == 0 || (n < 0 && errno == ECONNRESET);
  }));
  CHECK(server.connections.empty());
}

TEST_CASE("Listener: an open address without a token is refused") {
  async::Loop loop;
  auto made = Listener::Tcp(loop, "0.0.0.0", 0, {.self = Node()}, [](auto) {});
  CHECK(made.status().code() == absl::StatusCode::kPermissionDenied);
  CHECK_FALSE(Listener::Unix(loop, "/tmp/" + std::string(200, 'x'), {.self = Node()}, [](auto) {}).ok());
}

TEST_CASE("Connection: Detach hands out the socket with the bytes that came after the last frame") {
  TemporaryFolder folder;
  async::Loop loop;
  Server server(loop, false, folder / "s", "");
  auto client = Connect(loop, server, false, "");
  REQUIRE(client.ok());
  (*client)->Start({});
  bool answered = false;
  (*client)->Request(KvGet{"", "x"}, [&](auto) { answered = true; });
  REQUIRE(RunUntil(loop, [&] { return answered; }));
  Connection::Detached ours = (*client)->Detach();
  Connection::Detached theirs = server.connections[0]->Detach();
  REQUIRE(::write(ours.fd.get(), "raw", 3) == 3);
  char bytes[4] = {};
  loop.RunFor(absl::ZeroDuration());
  CHECK(::read(theirs.fd.get(), bytes, 3) == 3);
  CHECK(std::string(bytes) == "raw");
  CHECK(server.closed == 0);
}

TEST_CASE("Connection: an attempt at an address where nobody listens fails with the address in the message") {
  async::Loop loop;
  absl::Status status;
  ConnectTcp(loop, "127.0.0.1:1", {.self = Worker()}, [&](auto result) { status = result.status(); });
  REQUIRE(RunUntil(loop, [&] { return !status.ok(); }));
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Message(status).find("127.0.0.1:1") != std::string::npos);
}

}  // namespace argosy::wire
