#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "argosy/options.h"
#include "runtime/base/codec.h"

namespace argosy {

// How another process reaches this one. A plain value: return it from an actor, pass it to others.
struct Endpoint {
  WorkerId worker;
  NodeId node;
  std::string unix_path;
  std::string tcp;
};
Endpoint ThisEndpoint();

// An ordered byte stream between two processes of a cluster: a Unix socket on one host, TCP between hosts.
//
//   one side                                        the other
//   Channel c = Channel::Accept("ring/0-1", 10s);   Channel c = Channel::Connect(endpoint, "ring/0-1", 10s);
//
// Thread:   one thread may Send while another Receives; Abort from any.
// Lifetime: destroying it ends the stream: the peer reads what was sent, then gets an error.
// Failure:  throws. GetTimeoutError at the deadline (the stream must not be used after it), Error when the peer is gone or after Abort.
class Channel {
 public:
  Channel();
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;
  ~Channel();

  // Waits for the peer's Connect with this name. It may come before or after.
  static Channel Accept(const std::string& name, Timeout timeout = {});
  // Does not wait for the peer's Accept, only for its process.
  static Channel Connect(const Endpoint& peer, const std::string& name, Timeout timeout = {});

  // Returns when the bytes may be changed again.
  void Send(std::span<const std::byte> bytes, Timeout timeout = {});
  // Returns when all of `bytes` are filled.
  void Receive(std::span<std::byte> bytes, Timeout timeout = {});
  // Wakes both directions on both ends; they throw.
  void Abort(std::string_view reason);

  bool IsOpen() const;

 private:
  struct Impl;
  explicit Channel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace argosy
