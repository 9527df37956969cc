#pragma once

// The inside of a Connection; for wire's own files.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/wire/connection.h"
#include "runtime/wire/frame.h"

namespace argosy::wire {

struct Connection::Impl {
  static std::shared_ptr<Connection> Make(async::Loop& loop, UniqueFd fd, Identity peer, std::string unread);

  Impl(async::Loop& loop, UniqueFd fd, Identity peer, std::string unread);

  bool OnReadable();
  bool ParseAndDispatch();
  // Bytes that are being received into place: takes what was read beyond a header, begins, goes on, ends. False: it closed.
  bool BeginBytes(const FrameHeader& header);
  std::span<std::byte> RoomForBytes();
  std::span<std::byte> RoomForFrames();
  bool BytesArrived(size_t size);
  RawReply TakeReply(uint64_t number);
  void Dispatch(const Frame& frame);
  void Append(FrameKind kind, Method method, uint64_t number, std::string_view body);
  // A whole frame lies at the end of `out`.
  void Appended(FrameKind kind);
  void WriteOut();
  // Writes now, or leaves it to the outbox.
  void WriteSoon();
  void Close(absl::Status why, bool flush);
  std::deque<RawReply> TakePending();

  async::Loop& loop;
  Connection* self = nullptr;
  UniqueFd fd;
  Identity peer;
  std::unique_ptr<async::FdWatch> watch;
  Handlers handlers;
  ConnectionOptions options;

  std::string in;            // bytes [in_begin, in_end) are unread
  size_t in_begin = 0;
  size_t in_end = 0;
  std::string out;           // bytes from out_begin are unsent
  size_t out_begin = 0;
  // Bytes that are sent from where they lie, after out's first `at` bytes.
  struct Lying { size_t at = 0; std::span<const std::byte> bytes; std::shared_ptr<void> keep; };
  std::deque<Lying> lying;
  bool waits_writable = false;
  int corked = 0;
  Outbox* outbox = nullptr;
  bool in_outbox = false;
  bool urgent = false;       // a request went out with no other under way

  // Requests without a reply yet: the one with number `oldest_number` is in front; answered ones between others are empty.
  std::deque<RawReply> pending;
  uint64_t oldest_number = 1;
  size_t pending_count = 0;
  struct Sink { BytesSink room; std::shared_ptr<BytesDone> done; };
  std::unordered_map<uint64_t, Sink> sinks;   // of the pending requests that want bytes
  struct Arriving { uint64_t number = 0; uint64_t size = 0; uint64_t at = 0; };
  std::optional<Arriving> arriving;
  std::vector<std::byte> skipped;             // where bytes go that nobody wants
  size_t frame_begin = 0;    // of the frame that is being encoded
  std::string unwanted;      // where frames of a closed connection are encoded
};

}  // namespace argosy::wire
