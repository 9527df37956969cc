#include "runtime/wire/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/time/clock.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"
#include "runtime/wire/connection_impl.h"

namespace argosy::wire {
namespace {

constexpr size_t kReadBufferBytes = 128 << 10;
// Reads a peer may have in a row before other connections get their turn.
constexpr int kReadsPerTurn = 8;
// How much and how long frames are held back to be written together.
constexpr size_t kHeldBytesMax = 64 << 10;
constexpr int64_t kHeldNanosMax = 100'000;
// Bytes below this are copied among the frames; more are sent from where they lie.
constexpr size_t kCopiedBytesMax = 16 << 10;
// Sent in a row before other connections get their turn.
constexpr size_t kBytesPerTurn = 4 << 20;
// Answers that lie waiting for one peer.
constexpr size_t kLyingMax = 256;
constexpr size_t kSkippedBytes = 64 << 10;

void PutLittle(char* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<char>(value >> (8 * i));
}
uint64_t GetLittle(const char* in, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(in[i]);
  return value;
}

void PutHeader(char* header, FrameKind kind, Method method, uint64_t number, size_t body_bytes) {
  PutLittle(header, body_bytes, 4);
  PutLittle(header + 4, static_cast<uint16_t>(method), 2);
  header[6] = static_cast<char>(kind);
  header[7] = 0;
  PutLittle(header + 8, number, 8);
}

struct WireError { int32_t code = 0; std::string message; };

}  // namespace

void AppendFrame(std::string& out, FrameKind kind, Method method, uint64_t number, std::string_view body) {
  size_t begin = out.size();
  out.append(kFrameHeaderBytes, '\0');
  out.append(body);
  FinishFrame(out, begin, kind, method, number);
}

void FinishFrame(std::string& out, size_t begin, FrameKind kind, Method method, uint64_t number) {
  PutHeader(out.data() + begin, kind, method, number, out.size() - begin - kFrameHeaderBytes);
}

void AppendHeader(std::string& out, FrameKind kind, Method method, uint64_t number, size_t body_bytes) {
  char header[kFrameHeaderBytes];
  PutHeader(header, kind, method, number, body_bytes);
  out.append(header, sizeof header);
}

FrameHeader ParseHeader(std::string_view bytes) {
  return {.body_bytes = GetLittle(bytes.data(), 4),
          .method = static_cast<Method>(GetLittle(bytes.data() + 4, 2)),
          .kind = static_cast<uint8_t>(bytes[6]),
          .number = GetLittle(bytes.data() + 8, 8)};
}

absl::StatusOr<std::optional<Frame>> ParseFrame(std::string_view bytes, size_t body_max, size_t* wanted) {
  *wanted = kFrameHeaderBytes;
  if (bytes.size() < kFrameHeaderBytes) return std::optional<Frame>();
  FrameHeader header = ParseHeader(bytes);
  size_t body = header.body_bytes;
  if (body > body_max) return InvalidArgument("a frame of {} bytes: at most {} are accepted", body, body_max);
  if (header.kind > static_cast<uint8_t>(FrameKind::kHandshake)) return InvalidArgument("unknown frame kind {}", header.kind);
  Frame frame{.kind = static_cast<FrameKind>(header.kind), .method = header.method, .number = header.number, .body = {}};
  *wanted = kFrameHeaderBytes + body;
  if (bytes.size() < *wanted) return std::optional<Frame>();
  frame.body = bytes.substr(kFrameHeaderBytes, body);
  return std::optional<Frame>(frame);
}

Call::Call(std::weak_ptr<Connection> connection, Method method, uint64_t number, std::string body)
    : connection_(std::move(connection)), method_(method), number_(number), body_(std::move(body)) {}

Call::~Call() {
  // A moved-from call has no connection left to answer on.
  if (!answered_ && !connection_.expired()) Fail(Internal("the request was dropped unanswered"));
}

void Call::AnswerBody(std::string body) {
  if (answered_) return;
  answered_ = true;
  if (auto connection = connection_.lock(); connection && connection->is_open()) {
    connection->impl_->Append(FrameKind::kReply, method_, number_, body);
  }
}

void Call::AnswerBytes(std::span<const std::byte> bytes, std::shared_ptr<void> keep) {
  if (answered_) return;
  auto connection = connection_.lock();
  if (!connection || !connection->is_open()) {
    answered_ = true;
    return;
  }
  Connection::Impl& impl = *connection->impl_;
  if (bytes.size() > kFrameBytesMax) return Fail(InvalidArgument("{} bytes were asked for: at most {} fit a frame", bytes.size(), kFrameBytesMax));
  if (impl.lying.size() >= kLyingMax) return Fail(MakeStatus(absl::StatusCode::kResourceExhausted, "{} answers wait to be sent to this peer", kLyingMax));
  answered_ = true;
  AppendHeader(impl.out, FrameKind::kBytesReply, method_, number_, bytes.size());
  if (bytes.size() <= kCopiedBytesMax) impl.out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  else impl.lying.push_back({impl.out.size(), bytes, std::move(keep)});
  impl.Appended(FrameKind::kReply);
}

void Call::Fail(const absl::Status& status) {
  if (answered_) return;
  answered_ = true;
  if (auto connection = connection_.lock(); connection && connection->is_open()) {
    connection->impl_->Append(FrameKind::kErrorReply, method_, number_,
                              Encode(WireError{static_cast<int32_t>(status.code()), Message(status)}));
  }
}

std::shared_ptr<Connection> Connection::Impl::Make(async::Loop& loop, UniqueFd fd, Identity peer, std::string unread) {
  std::shared_ptr<Connection> connection(
      new Connection(std::make_unique<Impl>(loop, std::move(fd), std::move(peer), std::move(unread))));
  connection->impl_->self = connection.get();
  return connection;
}

Connection::Impl::Impl(async::Loop& loop, UniqueFd fd, Identity peer, std::string unread)
    : loop(loop), fd(std::move(fd)), peer(std::move(peer)), in(std::move(unread)), in_end(in.size()) {}

Connection::Connection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Connection::~Connection() {
  if (impl_->watch) impl_->watch->Stop();
}

void Connection::Start(Handlers handlers) {
  impl_->handlers = std::move(handlers);
  // From its own turn, so that the caller has stored the connection before the first request comes in.
  impl_->loop.Post([self = shared_from_this()] {
    if (!self->is_open()) return;
    if (!self->impl_->ParseAndDispatch()) return;
    self->impl_->watch = std::make_unique<async::FdWatch>(self->impl_->loop, self->impl_->fd.get());
    // The watch does not outlive the Impl that owns it; the loop holds the connection while it waits for bytes.
    self->impl_->watch->OnReadable([impl = self->impl_.get()] { return impl->OnReadable(); }, self);
    if (!self->impl_->out.empty()) self->impl_->WriteOut();
  });
}

void Connection::UseOutbox(Outbox* outbox) { impl_->outbox = outbox; }

void Outbox::Add(std::shared_ptr<Connection> connection, bool urgent) {
  if (waiting_.empty()) oldest_nanos_ = absl::GetCurrentTimeNanos();
  if (connection) waiting_.push_back(std::move(connection));
  urgent_ |= urgent;
}

void Outbox::Flush() {
  urgent_ = false;
  // Writing may close a connection, whose handlers run in turns of their own: nothing is added meanwhile.
  for (const std::shared_ptr<Connection>& connection : waiting_) {
    connection->impl_->in_outbox = false;
    if (connection->is_open()) connection->impl_->WriteOut();
  }
  waiting_.clear();
}

void Outbox::FlushDue() {
  if (waiting_.empty()) return;
  if (urgent_ || absl::GetCurrentTimeNanos() - oldest_nanos_ > kHeldNanosMax) Flush();
}

void Connection::SetHandlers(Handlers handlers) { impl_->handlers = std::move(handlers); }

bool Connection::Impl::OnReadable() {
  auto keep = self->shared_from_this();
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    const bool into_place = arriving.has_value();
    std::span<std::byte> room = into_place ? RoomForBytes() : RoomForFrames();
    ssize_t n = ::recv(fd.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      Close(n == 0 ? Unavailable("the peer closed the connection") : ErrnoStatus(errno, "connection"), false);
      return false;
    }
    if (!into_place) in_end += static_cast<size_t>(n);
    if (!(into_place ? BytesArrived(static_cast<size_t>(n)) : ParseAndDispatch())) return false;
    if (static_cast<size_t>(n) < room.size()) return true;
  }
  return true;
}

// Behind what is unread, for the whole of a frame whose header is there, else for many small ones.
std::span<std::byte> Connection::Impl::RoomForFrames() {
  size_t wanted = kReadBufferBytes;
  if (in_end - in_begin >= kFrameHeaderBytes) {
    size_t frame = kFrameHeaderBytes + ParseHeader(std::string_view(in).substr(in_begin)).body_bytes;
    wanted = std::max(wanted, frame - std::min(frame, in_end - in_begin));
  }
  if (in_begin > 0 && in.size() - in_end < wanted) {
    std::memmove(in.data(), in.data() + in_begin, in_end - in_begin);
    in_end -= in_begin;
    in_begin = 0;
  }
  if (in.size() - in_end < wanted) in.resize(in_end + wanted);
  return std::as_writable_bytes(std::span(in)).subspan(in_end);
}

// False when the connection is no longer open.
bool Connection::Impl::ParseAndDispatch() {
  auto keep = self->shared_from_this();
  ++corked;
  while (fd.ok()) {
    if (in_end - in_begin >= kFrameHeaderBytes && in[in_begin + 6] == static_cast<char>(FrameKind::kBytesReply)) {
      if (!BeginBytes(ParseHeader(std::string_view(in).substr(in_begin)))) break;
      if (arriving) break;   // the rest is received into place
      continue;
    }
    size_t wanted = 0;
    absl::StatusOr<std::optional<Frame>> frame =
        ParseFrame(std::string_view(in).substr(in_begin, in_end - in_begin), kFrameBytesMax, &wanted);
    if (!frame.ok()) {
      Close(frame.status(), false);
      break;
    }
    if (!frame->has_value()) break;
    in_begin += wanted;
    Dispatch(**frame);
  }
  --corked;
  if (in_begin == in_end) {
    in_begin = in_end = 0;
    if (in.size() > 4 * kReadBufferBytes) std::string().swap(in);
  }
  if (fd.ok() && corked == 0) WriteSoon();
  return fd.ok();
}

bool Connection::Impl::BeginBytes(const FrameHeader& header) {
  if (header.body_bytes > kFrameBytesMax) {
    Close(InvalidArgument("a frame of {} bytes: at most {} are accepted", header.body_bytes, kFrameBytesMax), false);
    return false;
  }
  if (!sinks.contains(header.number)) {
    Close(InvalidArgument("bytes for request {}, which wants none", header.number), false);
    return false;
  }
  in_begin += kFrameHeaderBytes;
  arriving = Arriving{header.number, header.body_bytes, 0};
  if (arriving->size == 0) return BytesArrived(0);
  while (arriving && in_begin < in_end) {
    std::span<std::byte> room = RoomForBytes();
    size_t size = std::min(room.size(), in_end - in_begin);
    std::memcpy(room.data(), in.data() + in_begin, size);
    in_begin += size;
    if (!BytesArrived(size)) return false;
  }
  return true;
}

std::span<std::byte> Connection::Impl::RoomForBytes() {
  uint64_t left = arriving->size - arriving->at;
  std::span<std::byte> room = sinks[arriving->number].room(arriving->at);
  if (room.empty()) {
    if (skipped.empty()) skipped.resize(kSkippedBytes);
    room = skipped;
  }
  return room.first(std::min<uint64_t>(room.size(), left));
}

bool Connection::Impl::BytesArrived(size_t size) {
  arriving->at += size;
  if (arriving->at < arriving->size) return true;
  uint64_t total = arriving->size;
  auto sink = sinks.extract(arriving->number);
  TakeReply(arriving->number);
  arriving.reset();
  ++corked;
  (*sink.mapped().done)(total);
  --corked;
  if (fd.ok() && corked == 0) WriteSoon();
  return fd.ok();
}

// Of a pending request; empty when there is none.
Connection::RawReply Connection::Impl::TakeReply(uint64_t number) {
  uint64_t at = number - oldest_number;
  if (at >= pending.size() || !pending[at]) return {};
  RawReply done = std::move(pending[at]);
  --pending_count;
  while (!pending.empty() && !pending.front()) {
    pending.pop_front();
    ++oldest_number;
  }
  return done;
}

void Connection::Impl::Dispatch(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kRequest: {
      Call call(self->weak_from_this(), frame.method, frame.number, std::string(frame.body));
      if (handlers.on_request) handlers.on_request(std::move(call));
      else call.Fail(absl::UnimplementedError("this end takes no requests"));
      return;
    }
    case FrameKind::kReply:
    case FrameKind::kErrorReply: {
      RawReply done = TakeReply(frame.number);
      if (!done) return Close(InvalidArgument("a reply to request {}, which is not pending", frame.number), false);
      if (!sinks.empty()) sinks.erase(frame.number);
      // The bytes stay where they are: what `done` does may append to `out`, and only this loop changes `in`.
      if (frame.kind == FrameKind::kReply) return done(frame.body);
      absl::StatusOr<WireError> error = Decode<WireError>(frame.body);
      if (!error.ok() || error->code == 0) return done(Internal("the peer sent a bad error reply"));
      return done(absl::Status(static_cast<absl::StatusCode>(error->code), ToAbsl(error->message)));
    }
    case FrameKind::kNotice:
      if (handlers.on_notice) handlers.on_notice(*self, frame.method, std::string(frame.body));
      return;
    case FrameKind::kHandshake: return Close(InvalidArgument("a handshake frame after the handshake"), false);
    case FrameKind::kBytesReply: return;   // ParseFrame does not give it
  }
}

void Connection::Impl::Append(FrameKind kind, Method method, uint64_t number, std::string_view body) {
  if (body.size() > kFrameBytesMax) {
    // A reply too large for a frame becomes an error the caller sees; anything else is a bug of this process.
    ARGOSY_CHECK(kind == FrameKind::kReply, "a frame of {} bytes", body.size());
    std::string error = Encode(WireError{static_cast<int32_t>(absl::StatusCode::kResourceExhausted),
                                         fmt::format("the reply has {} bytes: at most {} fit", body.size(), kFrameBytesMax)});
    return Append(FrameKind::kErrorReply, method, number, error);
  }
  AppendFrame(out, kind, method, number, body);
  Appended(kind);
}

void Connection::Impl::Appended(FrameKind kind) {
  if (kind == FrameKind::kRequest && pending_count == 1) urgent = true;
  if (corked == 0 && watch) WriteSoon();
}

void Connection::Impl::WriteSoon() {
  if (out_begin == out.size() && lying.empty()) return;
  if (outbox == nullptr || !lying.empty() || out.size() - out_begin >= kHeldBytesMax) return WriteOut();
  if (in_outbox && !urgent) return;
  bool first = !std::exchange(in_outbox, true);
  outbox->Add(first ? self->shared_from_this() : nullptr, std::exchange(urgent, false));
}

void Connection::Impl::WriteOut() {
  if (waits_writable || !fd.ok()) return;
  size_t bytes_left = kBytesPerTurn;
  while (out_begin < out.size() || !lying.empty()) {
    size_t until = lying.empty() ? out.size() : lying.front().at;
    bool from_out = out_begin < until;
    ssize_t n;
    if (from_out) n = ::send(fd.get(), out.data() + out_begin, until - out_begin, MSG_NOSIGNAL | MSG_DONTWAIT | (lying.empty() ? 0 : MSG_MORE));
    else if (bytes_left == 0) n = -1, errno = EAGAIN;   // others' turn
    else n = ::send(fd.get(), lying.front().bytes.data(), std::min(lying.front().bytes.size(), bytes_left), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (!watch) return;
      waits_writable = true;
      watch->OnceWritable([keep = self->shared_from_this()] {
        keep->impl_->waits_writable = false;
        keep->impl_->WriteOut();
      });
      // The sent part is given up now and then, so that a slow peer does not keep it.
      if (out_begin > (1u << 20)) {
        out.erase(0, out_begin);
        for (Lying& bytes : lying) bytes.at -= out_begin;
        out_begin = 0;
      }
      return;
    }
    if (n < 0) return Close(ErrnoStatus(errno, "connection"), false);
    if (from_out) {
      out_begin += static_cast<size_t>(n);
      continue;
    }
    bytes_left -= static_cast<size_t>(n);
    Lying& bytes = lying.front();
    bytes.bytes = bytes.bytes.subspan(static_cast<size_t>(n));
    if (bytes.bytes.empty()) lying.pop_front();
  }
  out_begin = 0;
  if (out.capacity() > (1u << 20)) std::string().swap(out);
  else out.clear();
}

std::deque<Connection::RawReply> Connection::Impl::TakePending() {
  oldest_number += pending.size();
  pending_count = 0;
  sinks.clear();
  return std::exchange(pending, {});
}

void Connection::Impl::Close(absl::Status why, bool flush) {
  if (!fd.ok()) return;
  auto keep = self->shared_from_this();
  if (size_t until = lying.empty() ? out.size() : lying.front().at; flush && out_begin < until) {
    (void)!::send(fd.get(), out.data() + out_begin, until - out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if (watch) watch->Stop();
  fd.Reset();
  out.clear();
  out_begin = 0;
  absl::Status status = Unavailable("connection closed: {}", Message(why));
  // In a turn of their own: whoever called Close may hold state that the functions would change.
  arriving.reset();
  loop.Post([keep, status, why, failed = TakePending(), on_closed = std::move(handlers.on_closed), unsent = std::exchange(lying, {})]() mutable {
    unsent.clear();
    for (RawReply& done : failed) {
      if (done) done(status);
    }
    if (on_closed) on_closed(why);
    keep->impl_->watch.reset();
    keep->impl_->handlers = {};
  });
}

std::string& Connection::BeginFrame() {
  std::string& out = is_open() ? impl_->out : impl_->unwanted;
  impl_->frame_begin = out.size();
  out.append(kFrameHeaderBytes, '\0');
  return out;
}

void Connection::EndRequest(Method method, RawReply done) {
  absl::Status refused;
  if (!is_open()) {
    impl_->unwanted.clear();
    refused = Unavailable("connection closed");
  } else if (size_t size = impl_->out.size() - impl_->frame_begin - kFrameHeaderBytes; size > kFrameBytesMax) {
    refused = InvalidArgument("a message of {} bytes: at most {} fit a frame", size, kFrameBytesMax);
  } else if (impl_->frame_begin - impl_->out_begin > impl_->options.unsent_bytes_max) {
    refused = absl::ResourceExhaustedError(ToAbsl(fmt::format("{} bytes wait to be sent to a slow peer", impl_->frame_begin - impl_->out_begin)));
  }
  if (!refused.ok()) {
    if (is_open()) impl_->out.resize(impl_->frame_begin);
    return impl_->loop.Post([done = std::move(done), refused]() mutable { done(refused); });
  }
  FinishFrame(impl_->out, impl_->frame_begin, FrameKind::kRequest, method, impl_->oldest_number + impl_->pending.size());
  impl_->pending.push_back(std::move(done));
  ++impl_->pending_count;
  impl_->Appended(FrameKind::kRequest);
}

void Connection::EndBytesRequest(Method method, BytesSink sink, BytesDone done) {
  auto shared = std::make_shared<BytesDone>(std::move(done));
  uint64_t number = impl_->oldest_number + impl_->pending.size();
  size_t before = impl_->pending.size();
  EndRequest(method, [shared](absl::StatusOr<std::string_view> body) {
    (*shared)(body.ok() ? absl::StatusOr<uint64_t>(Internal("the peer answered with a message, not with bytes")) : body.status());
  });
  if (impl_->pending.size() > before) impl_->sinks[number] = {std::move(sink), std::move(shared)};
}

void Connection::EndNotice(Method method) {
  if (!is_open()) return impl_->unwanted.clear();
  if (impl_->out.size() - impl_->frame_begin - kFrameHeaderBytes > kFrameBytesMax ||
      impl_->frame_begin - impl_->out_begin > impl_->options.unsent_bytes_max) {
    impl_->out.resize(impl_->frame_begin);
    return Close(absl::ResourceExhaustedError("a notice does not fit the send queue"), false);
  }
  FinishFrame(impl_->out, impl_->frame_begin, FrameKind::kNotice, method, 0);
  impl_->Appended(FrameKind::kNotice);
}

void Connection::Cork() { ++impl_->corked; }

void Connection::Uncork() {
  ARGOSY_CHECK(impl_->corked > 0);
  if (--impl_->corked == 0 && is_open() && impl_->watch) impl_->WriteSoon();
}

bool Connection::is_open() const { return impl_->fd.ok(); }
const Identity& Connection::peer() const { return impl_->peer; }
size_t Connection::unsent_bytes() const {
  size_t bytes = impl_->out.size() - impl_->out_begin;
  for (const Impl::Lying& lying : impl_->lying) bytes += lying.bytes.size();
  return bytes;
}
size_t Connection::pending_requests() const { return impl_->pending_count; }
void Connection::Close(absl::Status why, bool flush) { impl_->Close(std::move(why), flush); }

Connection::Detached Connection::Detach() {
  Detached detached;
  auto keep = shared_from_this();
  for (absl::Time deadline = absl::Now() + absl::Seconds(1); is_open() && impl_->out_begin < impl_->out.size() && absl::Now() < deadline;) {
    ssize_t n = ::send(impl_->fd.get(), impl_->out.data() + impl_->out_begin, impl_->out.size() - impl_->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) impl_->out_begin += static_cast<size_t>(n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR) break;
    else {
      pollfd ready{impl_->fd.get(), POLLOUT, 0};
      ::poll(&ready, 1, 100);
    }
  }
  if (impl_->watch) impl_->watch->Stop();
  detached.fd = std::move(impl_->fd);
  detached.unread = impl_->in.substr(impl_->in_begin, impl_->in_end - impl_->in_begin);
  impl_->in_begin = impl_->in_end = 0;
  impl_->handlers.on_closed = nullptr;
  impl_->loop.Post([keep, failed = impl_->TakePending()]() mutable {
    for (RawReply& done : failed) {
      if (done) done(Unavailable("connection became a channel"));
    }
    keep->impl_->watch.reset();
    keep->impl_->handlers = {};
  });
  return detached;
}

}  // namespace argosy::wire
