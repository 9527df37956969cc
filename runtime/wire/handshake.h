#pragma once

// Who is there, which protocol it speaks, and (on TCP) that it knows the cluster token: each side proves it with
// HMAC-SHA-256(token, label of its direction | versions | both nonces | both identities), so that the token never travels and a
// recorded proof is worth nothing.
//
//   client                            server
//   Hello(nonce)              ->
//                             <-      Hello(nonce, proof)
//   Proof(proof)              ->                               TCP only
//                             <-      Accepted                 TCP only
// Either side may send Rejected(why) instead.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/base/token.h"
#include "runtime/base/unique_fd.h"
#include "runtime/wire/connection.h"

namespace argosy::wire {

struct Hello {
  std::string magic = "ARGOSY";
  uint16_t major = 0;
  uint16_t minor = 0;
  Role role = Role::kWorker;
  std::string id;
  std::string nonce;
  std::string proof;
};
struct Proof { std::string proof; };
struct Accepted {};
struct Rejected { int32_t code = 0; std::string message; };
using HandshakeBody = std::variant<Hello, Proof, Accepted, Rejected>;

// One side of the exchange as a pure machine: bodies in, bodies out.
//
// Thread:   none of its own.
// Failure:  OnBody's error ends it; `farewell()` is then what to tell the peer, if anything.
class HandshakeMachine {
 public:
  struct Options {
    bool is_client = false;
    Identity self;
    Token token;
    bool needs_proof = true;        // false on a Unix socket, whose peer's user was checked
    std::string nonce;              // 16 random bytes
    uint16_t major = kProtocolMajor;
    uint16_t minor = kProtocolMinor;
  };
  explicit HandshakeMachine(Options options);

  // What to send first; empty for a server.
  std::vector<std::string> Start();
  absl::StatusOr<std::vector<std::string>> OnBody(std::string_view body);
  bool done() const { return done_; }
  const Identity& peer() const { return peer_; }
  const std::string& farewell() const { return farewell_; }

 private:
  Hello MyHello() const;
  std::string ProofOf(std::string_view label, const Hello& client, const Hello& server) const;
  absl::StatusOr<std::vector<std::string>> OnHello(Hello hello);
  absl::StatusOr<std::vector<std::string>> OnProof(const Proof& proof);
  absl::Status Reject(absl::Status why);

  Options options_;
  Hello peer_hello_;
  Identity peer_;
  std::string farewell_;
  bool got_hello_ = false;
  bool done_ = false;
};

// Runs the machine over a socket, then hands the connection out. Keeps itself alive until then; Cancel ends it.
class Handshaker : public std::enable_shared_from_this<Handshaker> {
 public:
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<Connection>>)>;
  static std::shared_ptr<Handshaker> Start(async::Loop& loop, UniqueFd fd, HandshakeMachine::Options options,
                                           absl::Duration timeout, Done done);
  void Cancel();

 private:
  Handshaker(async::Loop& loop, UniqueFd fd, HandshakeMachine::Options options, Done done);
  bool OnReadable();
  bool Send(const std::vector<std::string>& bodies);
  void Finish(absl::StatusOr<std::shared_ptr<Connection>> result);

  async::Loop& loop_;
  UniqueFd fd_;
  HandshakeMachine machine_;
  Done done_;
  std::string in_;
  std::unique_ptr<async::FdWatch> watch_;
  async::Timer timer_;
};

}  // namespace argosy::wire
