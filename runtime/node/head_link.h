#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/token.h"
#include "runtime/node/types.h"

namespace argosy::node {

struct HeadLinkOptions {
  std::string address;     // host:port
  Token token;
  absl::Duration backoff_min = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(2);
  absl::Duration answer_timeout = absl::Seconds(10);   // of Register
  size_t waiting_max = 100'000;                        // messages kept while there is no stream; the oldest go first
  size_t room_max = 1000;                              // messages that wait to be written, for SendIfRoom
};

// The node's stream to the head: connects, registers, keeps messages in order, and does it again when the stream breaks.
//
// Thread:   the loop's; gRPC's threads only post to it.
// Lifetime: the loop outlives it.
// Failure:  a broken stream is not one. PERMISSION_DENIED, UNAUTHENTICATED and FAILED_PRECONDITION (wrong token, wrong version) are:
//           `refused` is called and nothing is tried again.
class HeadLink {
 public:
  struct Callbacks {
    std::function<Registration()> registration;           // asked for at each new stream
    std::function<void(const Registered&)> registered;
    std::function<void(const Rejected&)> rejected;        // declared dead, or refused: Restart tries again
    std::function<void()> lost;                           // after registered, or before
    std::function<void(FromHead message)> message;
    std::function<void(const absl::Status& why)> refused;
  };
  HeadLink(async::Loop& loop, HeadLinkOptions options, Callbacks callbacks);
  ~HeadLink();

  void Start();
  // A new stream with a new registration; what waits to be sent is dropped.
  void Restart();
  // Sent once registered; kept until then. Messages of a broken stream that may not have arrived are not sent again: the registration
  // tells what is.
  void Send(ToHead message);
  // As Send, but dropped (and false) when there is no stream: for what is sent again anyway.
  bool SendNow(ToHead message);
  // As SendNow, but also dropped when many messages wait to be written: for what nobody waits for.
  bool SendIfRoom(ToHead message);
  bool is_registered() const { return registered_; }

 private:
  class Stream;

  void Connect();
  void OnMessage(uint64_t stream, FromHead message);
  void OnDone(uint64_t stream, absl::Status status);
  void Close();

  async::Loop& loop_;
  HeadLinkOptions options_;
  Callbacks callbacks_;
  struct Stub;
  std::unique_ptr<Stub> stub_;
  Stream* stream_ = nullptr;           // owned by gRPC until it is done
  uint64_t stream_number_ = 0;
  bool registered_ = false;
  bool stopped_ = false;
  std::deque<ToHead> waiting_;
  absl::Duration backoff_;
  async::Timer timer_;
  // Streams that gRPC is not done with.
  struct Live;
  std::shared_ptr<Live> live_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace argosy::node
