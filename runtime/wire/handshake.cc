#include "runtime/wire/handshake.h"

#include <sys/socket.h>

#include <cerrno>

#include "runtime/base/status.h"
#include "runtime/wire/connection_impl.h"
#include "runtime/wire/frame.h"
#include "runtime/wire/sha256.h"

namespace argosy::wire {
namespace {

constexpr size_t kHandshakeBodyMax = 4096;
constexpr char kClientLabel[] = "argosy client proof";
constexpr char kServerLabel[] = "argosy server proof";

}  // namespace

HandshakeMachine::HandshakeMachine(Options options) : options_(std::move(options)) {}

Hello HandshakeMachine::MyHello() const {
  Hello hello;
  hello.major = options_.major;
  hello.minor = options_.minor;
  hello.role = options_.self.role;
  hello.id = options_.self.id;
  hello.nonce = options_.nonce;
  return hello;
}

std::vector<std::string> HandshakeMachine::Start() {
  if (!options_.is_client) return {};
  return {Encode(HandshakeBody(MyHello()))};
}

std::string HandshakeMachine::ProofOf(std::string_view label, const Hello& client, const Hello& server) const {
  auto part = [](const Hello& h) {
    return std::make_tuple(h.major, h.minor, static_cast<uint8_t>(h.role), h.id, h.nonce);
  };
  return HmacSha256(options_.token.text(), Encode(std::make_tuple(std::string(label), part(client), part(server))));
}

absl::Status HandshakeMachine::Reject(absl::Status why) {
  farewell_ = Encode(HandshakeBody(Rejected{static_cast<int32_t>(why.code()), Message(why)}));
  return why;
}

absl::StatusOr<std::vector<std::string>> HandshakeMachine::OnBody(std::string_view body) {
  absl::StatusOr<HandshakeBody> decoded = Decode<HandshakeBody>(body);
  if (!decoded.ok()) return Annotate(decoded.status(), "the peer does not speak Argosy's protocol");
  if (auto* rejected = std::get_if<Rejected>(&*decoded)) {
    // A refusal with the code of success would be no error at all.
    if (rejected->code == 0) return absl::UnknownError(ToAbsl("refused by the peer: " + rejected->message));
    return absl::Status(static_cast<absl::StatusCode>(rejected->code), ToAbsl("refused by the peer: " + rejected->message));
  }
  if (auto* hello = std::get_if<Hello>(&*decoded); hello != nullptr && !got_hello_) return OnHello(std::move(*hello));
  if (auto* proof = std::get_if<Proof>(&*decoded); proof != nullptr && got_hello_ && !options_.is_client) return OnProof(*proof);
  if (std::holds_alternative<Accepted>(*decoded) && got_hello_ && options_.is_client) {
    done_ = true;
    return std::vector<std::string>();
  }
  return Reject(InvalidArgument("handshake message {} out of order", decoded->index()));
}

absl::StatusOr<std::vector<std::string>> HandshakeMachine::OnHello(Hello hello) {
  if (hello.magic != "ARGOSY") return InvalidArgument("the peer does not speak Argosy's protocol");
  if (hello.major != options_.major) {
    return Reject(FailedPrecondition("protocol versions differ: {}.{} here, {}.{} at the peer; run the same release on both",
                                     options_.major, options_.minor, hello.major, hello.minor));
  }
  if (hello.id.size() != WorkerId::kSize || hello.nonce.size() != 16) return Reject(InvalidArgument("bad id or nonce in the handshake"));
  got_hello_ = true;
  peer_hello_ = std::move(hello);
  peer_ = Identity{peer_hello_.role, peer_hello_.id};
  Hello mine = MyHello();
  if (!options_.needs_proof) {
    done_ = true;
    if (options_.is_client) return std::vector<std::string>();
    return std::vector<std::string>{Encode(HandshakeBody(mine))};
  }
  if (options_.is_client) {
    if (!Token(ProofOf(kServerLabel, mine, peer_hello_)).Matches(peer_hello_.proof)) {
      return Reject(absl::PermissionDeniedError("the peer does not know this cluster's token"));
    }
    return std::vector<std::string>{Encode(HandshakeBody(Proof{ProofOf(kClientLabel, mine, peer_hello_)}))};
  }
  mine.proof = ProofOf(kServerLabel, peer_hello_, mine);
  return std::vector<std::string>{Encode(HandshakeBody(mine))};
}

absl::StatusOr<std::vector<std::string>> HandshakeMachine::OnProof(const Proof& proof) {
  if (!Token(ProofOf(kClientLabel, peer_hello_, MyHello())).Matches(proof.proof)) {
    return Reject(absl::PermissionDeniedError("wrong cluster token"));
  }
  done_ = true;
  return std::vector<std::string>{Encode(HandshakeBody(Accepted{}))};
}

Handshaker::Handshaker(async::Loop& loop, UniqueFd fd, HandshakeMachine::Options options, Done done)
    : loop_(loop), fd_(std::move(fd)), machine_(std::move(options)), done_(std::move(done)),
      watch_(std::make_unique<async::FdWatch>(loop, fd_.get())), timer_(loop) {}

std::shared_ptr<Handshaker> Handshaker::Start(async::Loop& loop, UniqueFd fd, HandshakeMachine::Options options,
                                              absl::Duration timeout, Done done) {
  std::shared_ptr<Handshaker> self(new Handshaker(loop, std::move(fd), std::move(options), std::move(done)));
  self->timer_.After(timeout, [self] { self->Finish(Unavailable("no handshake within the time allowed")); });
  self->watch_->OnReadable([raw = self.get()] { return raw->OnReadable(); }, self);
  self->Send(self->machine_.Start());
  return self;
}

void Handshaker::Cancel() {
  done_ = nullptr;
  Finish(absl::CancelledError());
}

// Handshake bodies are far smaller than any socket buffer: a short write is a broken peer.
bool Handshaker::Send(const std::vector<std::string>& bodies) {
  std::string bytes;
  for (const std::string& body : bodies) AppendFrame(bytes, FrameKind::kHandshake, Method::kNone, 0, body);
  if (bytes.empty()) return true;
  ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n == static_cast<ssize_t>(bytes.size())) return true;
  Finish(n < 0 ? ErrnoStatus(errno, "handshake") : Unavailable("handshake: short write"));
  return false;
}

bool Handshaker::OnReadable() {
  if (!fd_.ok()) return false;
  char buffer[8192];
  ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    Finish(n == 0 ? Unavailable("the peer closed the connection during the handshake") : ErrnoStatus(errno, "handshake"));
    return false;
  }
  in_.append(buffer, static_cast<size_t>(n));
  while (fd_.ok() && !machine_.done()) {
    size_t wanted = 0;
    absl::StatusOr<std::optional<Frame>> frame = ParseFrame(in_, kHandshakeBodyMax, &wanted);
    if (!frame.ok() || (frame->has_value() && (*frame)->kind != FrameKind::kHandshake)) {
      Finish(InvalidArgument("the peer does not speak Argosy's protocol"));
      return false;
    }
    if (!frame->has_value()) return true;
    absl::StatusOr<std::vector<std::string>> answer = machine_.OnBody((*frame)->body);
    in_.erase(0, kFrameHeaderBytes + (*frame)->body.size());
    if (!answer.ok()) {
      absl::Status why = answer.status();
      if (!machine_.farewell().empty() && !Send({machine_.farewell()})) return false;
      Finish(why);
      return false;
    }
    if (!Send(*answer)) return false;
  }
  if (!fd_.ok()) return false;
  watch_->Stop();
  Finish(Connection::Impl::Make(loop_, std::move(fd_), machine_.peer(), std::move(in_)));
  return false;
}

void Handshaker::Finish(absl::StatusOr<std::shared_ptr<Connection>> result) {
  timer_.Cancel();
  watch_->Stop();
  fd_.Reset();
  if (done_) std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace argosy::wire
