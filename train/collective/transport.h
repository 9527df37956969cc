#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace argosy::train {

// What a MessageGroup needs of the world: one reliable byte stream to and one from every other rank, bytes in order. Message
// borders need not survive: the receiver asks for exactly the sizes that were sent, though perhaps in other pieces.
//
// Thread:   one thread calls Send, another calls Receive, at the same time; Close may come from any. So Send may block until the
//           peer reads (a bounded buffer, or none): the group's order of messages cannot form a cycle of waits.
// Lifetime: destroying one tells the peers that this rank left: what they still wait for from it fails, the rest goes on.
// Failure:  a deadline gives DeadlineExceeded, a lost peer Unavailable, Close Aborted with its reason, promptly, on this side and,
//           as far as the medium can, on the peers' side too. After any error the streams are not used again.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns when `bytes` may be changed again.
  virtual absl::Status Send(int peer, std::span<const std::byte> bytes, absl::Time deadline) = 0;
  // Returns when all of `bytes` are filled.
  virtual absl::Status Receive(int peer, std::span<std::byte> bytes, absl::Time deadline) = 0;
  // Wakes blocked calls; later calls fail. Idempotent: the first reason stays.
  virtual void Close(std::string_view reason) = 0;
};

}  // namespace argosy::train
