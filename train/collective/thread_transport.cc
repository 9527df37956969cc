#include "train/collective/thread_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>

#include "absl/time/clock.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

// One direction of one pair: what the sender offers and the receiver has not taken.
struct Pipe {
  const std::byte* data = nullptr;
  size_t left = 0;
  std::condition_variable changed;
};

struct Hub {
  explicit Hub(int size) : size(size), left(size, false), pipes(static_cast<size_t>(size) * size) {}
  Pipe& From(int source, int target) { return pipes[static_cast<size_t>(source) * size + target]; }

  int size;
  std::mutex mutex;
  bool closed = false;
  std::string reason;
  std::vector<bool> left;
  std::vector<Pipe> pipes;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override {
    std::lock_guard lock(hub_->mutex);
    hub_->left[rank_] = true;
    for (Pipe& pipe : hub_->pipes) pipe.changed.notify_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }

  absl::Status Send(int peer, std::span<const std::byte> bytes, absl::Time deadline) override {
    if (bytes.empty()) return absl::OkStatus();
    std::unique_lock lock(hub_->mutex);
    Pipe& pipe = hub_->From(rank_, peer);
    if (hub_->closed) return Closed();
    pipe.data = bytes.data();
    pipe.left = bytes.size();
    pipe.changed.notify_all();
    absl::Status status = Await(lock, pipe, peer, deadline, [&] { return pipe.left == 0; });
    pipe.left = 0;
    return status;
  }

  absl::Status Receive(int peer, std::span<std::byte> bytes, absl::Time deadline) override {
    std::unique_lock lock(hub_->mutex);
    Pipe& pipe = hub_->From(peer, rank_);
    while (!bytes.empty()) {
      ARGOSY_RETURN_IF_ERROR(Await(lock, pipe, peer, deadline, [&] { return pipe.left > 0; }));
      // Copied under the hub's lock: the sender may withdraw its buffer when its deadline passes.
      size_t count = std::min(bytes.size(), pipe.left);
      std::memcpy(bytes.data(), pipe.data, count);
      pipe.data += count;
      pipe.left -= count;
      bytes = bytes.subspan(count);
      if (pipe.left == 0) pipe.changed.notify_all();
    }
    return absl::OkStatus();
  }

  void Close(std::string_view reason) override {
    std::lock_guard lock(hub_->mutex);
    if (hub_->closed) return;
    hub_->closed = true;
    hub_->reason = reason;
    for (Pipe& pipe : hub_->pipes) pipe.changed.notify_all();
  }

 private:
  absl::Status Closed() const { return MakeStatus(absl::StatusCode::kAborted, "{}", hub_->reason); }

  template <class Ready>
  absl::Status Await(std::unique_lock<std::mutex>& lock, Pipe& pipe, int peer, absl::Time deadline, Ready ready) {
    auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(deadline - absl::Now(), absl::Hours(24)));
    while (!ready()) {
      if (hub_->closed) return Closed();
      if (hub_->left[peer]) return Unavailable("rank {} left the group", peer);
      if (pipe.changed.wait_until(lock, until) == std::cv_status::timeout && !ready()) {
        return MakeStatus(absl::StatusCode::kDeadlineExceeded, "no answer in time");
      }
    }
    return absl::OkStatus();
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeThreadTransports(int size) {
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_unique<ThreadTransport>(hub, rank));
  return transports;
}

}  // namespace argosy::train
