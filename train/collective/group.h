#pragma once

// The only door from one rank to the others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "train/collective/transport.h"

namespace argosy::train {

// Where in the run an operation belongs. It travels in every message: ranks that drifted apart find out at once, not by a hang.
struct Where {
  int64_t step = 0;
  int32_t unit = -1;  // -1: not of one unit
};

// An operation on its way. The buffers it was given stay untouched until Wait has returned.
//
// Thread:   the one that started the operation.
class Pending {
 public:
  // Already done.
  explicit Pending(absl::Status status = absl::OkStatus()) : status_(std::move(status)) {}
  explicit Pending(std::function<absl::Status()> wait) : wait_(std::move(wait)) {}

  // Waits for the end, at most until the operation's deadline. Repeated calls give the same answer.
  absl::Status Wait() {
    if (wait_) {
      status_ = wait_();
      wait_ = nullptr;
    }
    return status_;
  }

 private:
  std::function<absl::Status()> wait_;
  absl::Status status_;
};

// Elements of a buffer whose parts belong to ranks: rank r has [cuts[r], cuts[r + 1]).
using Cuts = std::vector<int64_t>;
// Equal contiguous shares of `elements`, borders at multiples of 64 elements (a cache line or more in every type).
Cuts CutEvenly(int64_t elements, int ranks);

// What a reduction takes: fp32, or bf16 bits.
struct ConstElements {
  ConstElements(std::span<const float> values) : f32(values) {}
  ConstElements(std::span<const uint16_t> bits) : bf16(bits), is_bf16(true) {}
  std::span<const float> f32;
  std::span<const uint16_t> bf16;
  bool is_bf16 = false;
  int64_t size() const { return static_cast<int64_t>(is_bf16 ? bf16.size() : f32.size()); }
};

enum class Into { kReplace, kAdd };

// Every rank calls the same operations in the same order. Reductions are exact in the sense that matters: each rank sends its
// part to the part's owner once, and the owner adds the parts in fp32 (AllReduce of doubles: in double) in rank order; so the bits
// do not depend on timing, and ZeRO stages agree.
//
// Thread:   one thread starts operations; they run in the background in that order.
// Lifetime: buffers as Pending says. A group ends when its work has ended; with operations under way it closes the transport.
// Failure:  a mismatch or a deadline is an error that names both sides and what each was doing. It breaks the group: every later
//           operation gives the same error.
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place; for few values (norms, counts, flags).
  virtual Pending AllReduce(std::span<double> values, Where where) = 0;
  // In place; large buffers: every rank sums a share (this half is done when the call returns) and the sums are gathered.
  virtual Pending AllReduce(std::span<float> values, Where where) = 0;
  // `input` is cut by `cuts`; `output` is this rank's share of the sum.
  virtual Pending ReduceScatter(ConstElements input, const Cuts& cuts, std::span<float> output, Into into, Where where) = 0;
  // `own` lands in `all` at cuts[rank] * element_bytes, on every rank; `own` may already lie there.
  virtual Pending AllGather(std::span<const std::byte> own, std::span<std::byte> all, const Cuts& cuts, int64_t element_bytes,
                            Where where) = 0;
  virtual Pending Broadcast(int root, std::span<std::byte> bytes, Where where) = 0;
  // `all` (root only) gets one entry a rank; sizes may differ.
  virtual Pending Gather(int root, std::span<const std::byte> own, std::vector<std::vector<std::byte>>* all, Where where) = 0;
  virtual Pending Send(int peer, std::span<const std::byte> bytes, Where where) = 0;
  virtual Pending Recv(int peer, std::span<std::byte> bytes, Where where) = 0;
  virtual Pending Barrier(Where where) = 0;
  // Ends all operations, here and at the peers, with `reason`.
  virtual void Abort(std::string_view reason) = 0;
};

struct GroupOptions {
  uint64_t epoch = 0;  // counts the group's re-formations: a message of an earlier one is a mismatch
  absl::Duration deadline = absl::Seconds(60);
};

// A group of one.
std::unique_ptr<Group> MakeLoopbackGroup();
// A group over any transport; of size one it is the loopback group.
std::unique_ptr<Group> MakeMessageGroup(std::unique_ptr<Transport> transport, const GroupOptions& options = {});

}  // namespace argosy::train
