#pragma once

// Framed connections: requests, replies and notices over a Unix or TCP stream, after a handshake that proves the token both ways.
//
// Frame, little endian: u32 body bytes | u16 method | u8 kind | u8 0 | u64 call number | body (msgpack, or bytes as they are).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/codec.h"
#include "runtime/base/token.h"
#include "runtime/base/unique_function.h"
#include "runtime/base/unique_fd.h"
#include "runtime/wire/messages.h"

namespace argosy::wire {

enum class Role : uint8_t { kNode = 1, kWorker = 2, kDriver = 3 };

// Who is at one end. `id` is a WorkerId's or NodeId's 16 bytes.
struct Identity {
  Role role = Role::kWorker;
  std::string id;
};

// A request that came in: answer it once, now or later, from the loop. Dropping it unanswered sends an error reply.
class Call {
 public:
  Call(std::weak_ptr<class Connection> connection, Method method, uint64_t number, std::string body);
  Call(Call&&) = default;
  Call& operator=(Call&&) = default;
  ~Call();

  Method method() const { return method_; }
  const std::string& body() const { return body_; }
  // The connection it came on; null once that is gone.
  std::shared_ptr<Connection> connection() const { return connection_.lock(); }

  // INVALID_ARGUMENT when the body is not a `Message`.
  template <class Message>
  absl::StatusOr<Message> As() const { return Decode<Message>(body_); }
  template <class Reply>
  void Answer(const Reply& reply) { AnswerBody(Encode(reply)); }
  void AnswerBody(std::string body);
  // Answers a RequestBytes with bytes that are sent from where they lie; `keep` holds them until they are sent or never will be.
  void AnswerBytes(std::span<const std::byte> bytes, std::shared_ptr<void> keep);
  void Fail(const absl::Status& status);

 private:
  std::weak_ptr<Connection> connection_;
  Method method_;
  uint64_t number_;
  std::string body_;
  bool answered_ = false;
};

class Connection;

// Connections of one loop whose frames wait to be written together: a burst of calls costs one system call instead of one each. Their
// owner flushes it before it sleeps, and when it is due.
//
// Thread:   the loop's.
// Lifetime: outlives the connections that use it.
// Failure:  none; a connection that has closed is skipped.
class Outbox {
 public:
  void Add(std::shared_ptr<Connection> connection, bool urgent);
  // Everything.
  void Flush();
  // What is urgent (nothing else is under way on its connection, so somebody waits for just this), or all once the oldest has waited.
  void FlushDue();

 private:
  std::vector<std::shared_ptr<Connection>> waiting_;
  bool urgent_ = false;
  int64_t oldest_nanos_ = 0;
};

struct ConnectionOptions {
  size_t unsent_bytes_max = 256u << 20;   // above it Request fails and Notify closes the connection
};

// One framed connection, after its handshake.
//
// Thread:   the loop's (whoever runs the loop); destroy it there too.
// Lifetime: shared; the loop keeps it alive while it is open.
// Failure:  a broken stream or a bad frame closes it: every pending request fails with UNAVAILABLE, then on_closed runs once. That is
//           not a death of the peer: only its daemon or the head says dead.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Handlers {
    std::function<void(Call call)> on_request;                                             // requests
    std::function<void(Connection& connection, Method method, std::string body)> on_notice;  // notices
    std::function<void(absl::Status why)> on_closed;
  };
  // `body` is there during the call only.
  using RawReply = UniqueFunction<void(absl::StatusOr<std::string_view> body)>;

  ~Connection();

  // From now on frames wait in `outbox`. Before Start.
  void UseOutbox(Outbox* outbox);
  // Before this nothing is read.
  void Start(Handlers handlers);
  void SetHandlers(Handlers handlers);

  // `done` takes the absl::StatusOr<Message::Reply>.
  template <class Message, class Done>
  void Request(const Message& message, Done done) {
    Encoder(BeginFrame()).Write(message);
    EndRequest(Message::kMethod, [done = std::move(done)](absl::StatusOr<std::string_view> body) mutable {
      using Reply = absl::StatusOr<typename Message::Reply>;
      done(body.ok() ? Reply(Decode<typename Message::Reply>(*body)) : Reply(body.status()));
    });
  }
  // Where the bytes of an answer go from its byte `at` on. Asked before each piece is received; what does not fit, or is wanted no more
  // (an empty answer), is skipped.
  using BytesSink = UniqueFunction<std::span<std::byte>(uint64_t at)>;
  using BytesDone = UniqueFunction<void(absl::StatusOr<uint64_t> size)>;
  // A request that the peer answers with AnswerBytes: they are received straight into place. `done` takes how many they were.
  template <class Message>
  void RequestBytes(const Message& message, BytesSink sink, BytesDone done) {
    Encoder(BeginFrame()).Write(message);
    EndBytesRequest(Message::kMethod, std::move(sink), std::move(done));
  }
  template <class Message>
  void Notify(const Message& message) {
    Encoder(BeginFrame()).Write(message);
    EndNotice(Message::kMethod);
  }

  // Frames sent while corked are written together by Uncork. Nests.
  void Cork();
  void Uncork();

  bool is_open() const;
  const Identity& peer() const;
  size_t unsent_bytes() const;
  size_t pending_requests() const;
  // Closes now; unsent frames are dropped unless `flush` and the socket takes them at once.
  void Close(absl::Status why, bool flush = true);

  // Takes the socket out: the frames sent so far are flushed (blocking up to a second), bytes already read are handed out too, and
  // the connection counts as closed without on_closed. For OpenChannel.
  struct Detached { UniqueFd fd; std::string unread; };
  Detached Detach();

 private:
  friend class Call;
  friend class Handshaker;
  friend class Outbox;
  struct Impl;
  explicit Connection(std::unique_ptr<Impl> impl);
  // A frame is encoded where it is sent from: its body is appended to what BeginFrame returns, then its end is told.
  std::string& BeginFrame();
  void EndRequest(Method method, RawReply done);
  void EndBytesRequest(Method method, BytesSink sink, BytesDone done);
  void EndNotice(Method method);

  std::unique_ptr<Impl> impl_;
};

struct ConnectOptions {
  Identity self;
  Token token;                                       // TCP only
  absl::Duration timeout = absl::Seconds(5);         // for connecting and for the handshake, each
};

// Connects and shakes hands. `done` runs on the loop; the connection still has to be started. Errors: UNAVAILABLE (nobody there, or a
// time-out), FAILED_PRECONDITION (another protocol version: names both), PERMISSION_DENIED (token or user).
using Connected = std::function<void(absl::StatusOr<std::shared_ptr<Connection>>)>;
void ConnectUnix(async::Loop& loop, const std::string& path, ConnectOptions options, Connected done);
void ConnectTcp(async::Loop& loop, const std::string& host_port, ConnectOptions options, Connected done);
// Unix when the path exists on this host and `same_host`, else TCP.
void ConnectWorker(async::Loop& loop, const WorkerAddress& address, bool same_host, ConnectOptions options, Connected done);

struct ListenOptions {
  Identity self;
  Token token;
  size_t unproven_max = 256;                         // handshakes in progress; more are closed at once
  absl::Duration handshake_timeout = absl::Seconds(5);
};

// Accepts connections until destroyed. `accepted` runs on the loop with connections that have proven themselves (TCP: the token;
// Unix: the same user) and still have to be started.
class Listener {
 public:
  using Accepted = std::function<void(std::shared_ptr<Connection>)>;
  // The socket file is made with mode 0600 in an existing 0700 folder; a stale one is replaced. INVALID_ARGUMENT above 107 bytes.
  static absl::StatusOr<std::unique_ptr<Listener>> Unix(async::Loop& loop, const std::string& path, ListenOptions options,
                                                        Accepted accepted);
  // Port 0: any free one. Refuses an address other than loopback when the token is empty.
  static absl::StatusOr<std::unique_ptr<Listener>> Tcp(async::Loop& loop, const std::string& host, uint16_t port,
                                                       ListenOptions options, Accepted accepted);
  ~Listener();

  uint16_t port() const;   // TCP
  const std::string& address() const;   // path, or host:port

 private:
  struct Impl;
  explicit Listener(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace argosy::wire
