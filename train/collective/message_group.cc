#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/base/status.h"
#include "train/collective/group.h"
#include "train/collective/sum.h"

namespace argosy::train {
namespace {

enum class Operation : uint8_t {
  kAllReduceDouble, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kGather, kSendRecv, kBarrier,
};

std::string_view Name(Operation operation) {
  constexpr std::array<std::string_view, 8> kNames = {"AllReduce", "AllReduce", "ReduceScatter", "AllGather", "Broadcast",
                                                      "Gather",    "Send/Recv", "Barrier"};
  auto index = static_cast<size_t>(operation);
  return index < kNames.size() ? kNames[index] : "unknown operation";
}

// Before every message's bytes. Both sides are the same build on like machines, so the bytes are the struct.
struct Header {
  uint32_t magic = 0x41524743;  // "ARGC"
  Operation operation = Operation::kBarrier;
  std::array<uint8_t, 3> reserved = {};
  uint64_t epoch = 0;
  int64_t step = 0;
  int64_t unit = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 48 && std::is_trivially_copyable_v<Header>);

std::string Describe(const Header& header) {
  return fmt::format("{} #{} (epoch {}, step {}, unit {}, {} bytes)", Name(header.operation), header.sequence, header.epoch,
                     header.step, header.unit, header.bytes);
}

template <class T>
std::span<const std::byte> BytesOf(std::span<T> values) {
  return std::as_bytes(values);
}

// The two halves of every operation, each on a thread of its own: what goes out and what comes in. Both run the operations in the
// order in which they were started, so every pair of ranks sees its messages in one order, and a blocked Send never keeps this
// rank from receiving. (No cycle of waits: order all messages by (operation, sender, receiver); the least one that is not done is at
// the head of its sender's queue and is what its receiver reads next, since receivers take senders in rank order.)
class MessageGroup final : public Group {
 public:
  MessageGroup(std::unique_ptr<Transport> transport, const GroupOptions& options)
      : options_(options),
        transport_(std::move(transport)),
        rank_(transport_->rank()),
        size_(transport_->size()),
        sent_sequence_(size_, 0),
        received_sequence_(size_, 0),
        sender_([this] { Run(sends_); }),
        receiver_([this] { Run(receives_); }) {}

  ~MessageGroup() override {
    bool unfinished = false;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      unfinished = !sends_.empty() || !receives_.empty();
    }
    // Leaving in peace does not close: the others may still be exchanging the last messages among themselves.
    if (unfinished) transport_->Close(fmt::format("rank {} left the group with operations under way", rank_));
    sender_.join();
    receiver_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Pending AllReduce(std::span<double> values, Where where) override {
    auto task = NewTask(Operation::kAllReduceDouble, where);
    if (rank_ != 0) {
      task->send = [this, values](Task& t) { return SendTo(0, BytesOf(values), t); };
      task->receive_after_send = true;
      task->receive = [this, values](Task& t) { return ReceiveFrom(0, std::as_writable_bytes(values), t); };
    } else {
      // The owner's second half: what comes in is summed before anything goes out.
      task->receive = [this, values](Task& t) -> absl::Status {
        std::vector<double> part(values.size());
        for (int peer = 1; peer < size_; ++peer) {
          ARGOSY_RETURN_IF_ERROR(ReceiveFrom(peer, std::as_writable_bytes(std::span(part)), t));
          for (size_t i = 0; i < part.size(); ++i) values[i] += part[i];
        }
        return absl::OkStatus();
      };
      task->send_after_receive = true;
      task->send = [this, values](Task& t) { return SendToAll(BytesOf(values), t); };
    }
    return Start(std::move(task));
  }

  Pending AllReduce(std::span<float> values, Where where) override {
    Cuts cuts = CutEvenly(static_cast<int64_t>(values.size()), size_);
    std::vector<float> sums(cuts[rank_ + 1] - cuts[rank_]);
    std::span<float> own = values.subspan(cuts[rank_], sums.size());
    absl::Status status =
        ReduceScatter(ConstElements(std::span<const float>(values)), cuts, sums, Into::kReplace, where).Wait();
    if (!status.ok()) return Pending(status);
    std::copy(sums.begin(), sums.end(), own.begin());
    return AllGather(std::as_bytes(own), std::as_writable_bytes(values), cuts, sizeof(float), where);
  }

  Pending ReduceScatter(ConstElements input, const Cuts& cuts, std::span<float> output, Into into, Where where) override {
    if (absl::Status status = CheckCuts(cuts, input.size(), 1, input.size()); !status.ok()) return Pending(status);
    if (static_cast<int64_t>(output.size()) != cuts[rank_ + 1] - cuts[rank_]) {
      return Pending(absl::Status(InvalidArgument("ReduceScatter: rank {}'s share has {} elements, the output {}", rank_,
                                                  cuts[rank_ + 1] - cuts[rank_], output.size())));
    }
    auto task = NewTask(Operation::kReduceScatter, where);
    task->send = [this, input, cuts](Task& t) -> absl::Status {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        size_t begin = cuts[peer], count = cuts[peer + 1] - cuts[peer];
        auto bytes = input.is_bf16 ? BytesOf(input.bf16.subspan(begin, count)) : BytesOf(input.f32.subspan(begin, count));
        ARGOSY_RETURN_IF_ERROR(SendTo(peer, bytes, t));
      }
      return absl::OkStatus();
    };
    task->receive = [this, input, cuts, output, into](Task& t) -> absl::Status {
      int64_t begin = cuts[rank_];
      std::span<float> sum = output;
      if (into == Into::kAdd) {
        sum_.resize(output.size());
        sum = sum_;
      }
      for (int peer = 0; peer < size_; ++peer) {
        ConstElements part = input;
        int64_t part_begin = begin;
        if (peer != rank_) {
          part_begin = 0;
          part_.resize(output.size() * (input.is_bf16 ? sizeof(uint16_t) : sizeof(float)));
          ARGOSY_RETURN_IF_ERROR(ReceiveFrom(peer, part_, t));
          part = input.is_bf16
                     ? ConstElements(std::span(reinterpret_cast<const uint16_t*>(part_.data()), output.size()))
                     : ConstElements(std::span(reinterpret_cast<const float*>(part_.data()), output.size()));
        }
        if (peer == 0) {
          internal::Put(part, part_begin, sum);
        } else {
          internal::Add(part, part_begin, sum);
        }
      }
      if (into == Into::kAdd) internal::Add(ConstElements(std::span<const float>(sum)), 0, output);
      return absl::OkStatus();
    };
    return Start(std::move(task));
  }

  Pending AllGather(std::span<const std::byte> own, std::span<std::byte> all, const Cuts& cuts, int64_t element_bytes,
                    Where where) override {
    int64_t elements = cuts.empty() ? 0 : cuts.back();
    if (absl::Status status = CheckCuts(cuts, elements, element_bytes, static_cast<int64_t>(all.size())); !status.ok()) {
      return Pending(status);
    }
    if (static_cast<int64_t>(own.size()) != (cuts[rank_ + 1] - cuts[rank_]) * element_bytes) {
      return Pending(absl::Status(InvalidArgument("AllGather: rank {}'s share has {} bytes, its buffer {}", rank_,
                                                  (cuts[rank_ + 1] - cuts[rank_]) * element_bytes, own.size())));
    }
    auto task = NewTask(Operation::kAllGather, where);
    task->send = [this, own](Task& t) { return SendToAll(own, t); };
    task->receive = [this, own, all, cuts, element_bytes](Task& t) -> absl::Status {
      for (int peer = 0; peer < size_; ++peer) {
        auto part = all.subspan(cuts[peer] * element_bytes, (cuts[peer + 1] - cuts[peer]) * element_bytes);
        if (peer == rank_) {
          if (part.data() != own.data() && !part.empty()) std::memcpy(part.data(), own.data(), part.size());
          continue;
        }
        ARGOSY_RETURN_IF_ERROR(ReceiveFrom(peer, part, t));
      }
      return absl::OkStatus();
    };
    return Start(std::move(task));
  }

  Pending Broadcast(int root, std::span<std::byte> bytes, Where where) override {
    if (absl::Status status = CheckPeer(root); !status.ok()) return Pending(status);
    auto task = NewTask(Operation::kBroadcast, where);
    if (rank_ == root) {
      task->send = [this, bytes](Task& t) { return SendToAll(bytes, t); };
    } else {
      task->receive = [this, root, bytes](Task& t) { return ReceiveFrom(root, bytes, t); };
    }
    return Start(std::move(task));
  }

  Pending Gather(int root, std::span<const std::byte> own, std::vector<std::vector<std::byte>>* all, Where where) override {
    if (absl::Status status = CheckPeer(root); !status.ok()) return Pending(status);
    auto task = NewTask(Operation::kGather, where);
    if (rank_ != root) {
      task->send = [this, root, own](Task& t) { return SendTo(root, own, t); };
    } else {
      task->receive = [this, own, all](Task& t) -> absl::Status {
        all->assign(size_, {});
        for (int peer = 0; peer < size_; ++peer) {
          auto& entry = (*all)[peer];
          if (peer == rank_) {
            entry.assign(own.begin(), own.end());
            continue;
          }
          ARGOSY_ASSIGN_OR_RETURN(uint64_t bytes, ReceiveHeader(peer, t));
          entry.resize(bytes);
          ARGOSY_RETURN_IF_ERROR(ReceiveBody(peer, entry, t));
        }
        return absl::OkStatus();
      };
    }
    return Start(std::move(task));
  }

  Pending Send(int peer, std::span<const std::byte> bytes, Where where) override {
    if (absl::Status status = CheckPeer(peer); !status.ok()) return Pending(status);
    auto task = NewTask(Operation::kSendRecv, where);
    task->send = [this, peer, bytes](Task& t) { return SendTo(peer, bytes, t); };
    return Start(std::move(task));
  }

  Pending Recv(int peer, std::span<std::byte> bytes, Where where) override {
    if (absl::Status status = CheckPeer(peer); !status.ok()) return Pending(status);
    auto task = NewTask(Operation::kSendRecv, where);
    task->receive = [this, peer, bytes](Task& t) { return ReceiveFrom(peer, bytes, t); };
    return Start(std::move(task));
  }

  Pending Barrier(Where where) override {
    auto task = NewTask(Operation::kBarrier, where);
    task->send = [this](Task& t) { return SendToAll({}, t); };
    task->receive = [this](Task& t) -> absl::Status {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) ARGOSY_RETURN_IF_ERROR(ReceiveFrom(peer, {}, t));
      }
      return absl::OkStatus();
    };
    return Start(std::move(task));
  }

  void Abort(std::string_view reason) override {
    std::string text = fmt::format("aborted by rank {}: {}", rank_, reason);
    Break(MakeStatus(absl::StatusCode::kAborted, "{}", text));
  }

 private:
  struct Task {
    Operation operation;
    Where where;
    absl::Time deadline;
    std::function<absl::Status(Task&)> send;
    std::function<absl::Status(Task&)> receive;
    // A half that needs the other one first waits for it on its own thread.
    bool send_after_receive = false;
    bool receive_after_send = false;
    // Guarded by mutex_.
    bool sent = false;
    bool received = false;
    absl::Status status;
  };
  using TaskPtr = std::shared_ptr<Task>;
  static constexpr size_t kInFlightMax = 256;

  TaskPtr NewTask(Operation operation, Where where) {
    auto task = std::make_shared<Task>();
    task->operation = operation;
    task->where = where;
    task->deadline = absl::Now() + options_.deadline;
    return task;
  }

  Pending Start(TaskPtr task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !broken_.ok() || sends_.size() + receives_.size() < kInFlightMax; });
    if (!broken_.ok()) return Pending(broken_);
    task->sent = !task->send;
    task->received = !task->receive;
    if (task->send) sends_.push_back(task);
    if (task->receive) receives_.push_back(task);
    changed_.notify_all();
    return Pending([this, task]() -> absl::Status {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return task->sent && task->received; });
      return task->status;
    });
  }

  // A thread of this group: runs one half of every operation in order, until the group ends.
  void Run(std::deque<TaskPtr>& queue) {
    bool sending = &queue == &sends_;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !queue.empty(); });
      if (queue.empty()) return;
      TaskPtr task = queue.front();
      if (sending && task->send_after_receive) changed_.wait(lock, [&] { return task->received; });
      if (!sending && task->receive_after_send) changed_.wait(lock, [&] { return task->sent; });
      absl::Status status = !broken_.ok() ? broken_ : task->status;
      if (status.ok()) {
        lock.unlock();
        status = sending ? task->send(*task) : task->receive(*task);
        if (!status.ok()) Break(status);
        lock.lock();
        if (!status.ok()) status = broken_;
      }
      if (task->status.ok()) task->status = status;
      (sending ? task->sent : task->received) = true;
      queue.pop_front();
      changed_.notify_all();
    }
  }

  void Break(absl::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (!broken_.ok()) return;
      broken_ = status;
      changed_.notify_all();
    }
    transport_->Close(ToStd(status.message()));
  }

  absl::Status CheckPeer(int peer) const {
    if (peer >= 0 && peer < size_) return absl::OkStatus();
    return InvalidArgument("rank {} in a group of {} ranks", peer, size_);
  }

  absl::Status CheckCuts(const Cuts& cuts, int64_t elements, int64_t element_bytes, int64_t bytes) const {
    if (static_cast<int>(cuts.size()) != size_ + 1 || cuts.back() != elements || elements * element_bytes != bytes) {
      return InvalidArgument("a buffer of {} elements is cut into {} shares that end at {}, for {} ranks", bytes / element_bytes,
                             cuts.size() - 1, cuts.empty() ? 0 : cuts.back(), size_);
    }
    return absl::OkStatus();
  }

  Header HeaderFor(const Task& task, uint64_t sequence, uint64_t bytes) const {
    Header header;
    header.operation = task.operation;
    header.epoch = options_.epoch;
    header.step = task.where.step;
    header.unit = task.where.unit;
    header.sequence = sequence;
    header.bytes = bytes;
    return header;
  }

  absl::Status SendToAll(std::span<const std::byte> bytes, Task& task) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) ARGOSY_RETURN_IF_ERROR(SendTo(peer, bytes, task));
    }
    return absl::OkStatus();
  }

  absl::Status SendTo(int peer, std::span<const std::byte> bytes, Task& task) {
    Header header = HeaderFor(task, sent_sequence_[peer]++, bytes.size());
    absl::Status status = transport_->Send(peer, std::as_bytes(std::span(&header, 1)), task.deadline);
    if (status.ok() && !bytes.empty()) status = transport_->Send(peer, bytes, task.deadline);
    if (status.ok()) return status;
    return Annotate(status, fmt::format("rank {} could not send {} to rank {}", rank_, Describe(header), peer));
  }

  absl::StatusOr<uint64_t> ReceiveHeader(int peer, Task& task) {
    Header wanted = HeaderFor(task, received_sequence_[peer]++, 0);
    Header header;
    absl::Status status = transport_->Receive(peer, std::as_writable_bytes(std::span(&header, 1)), task.deadline);
    if (!status.ok()) {
      return Annotate(status, fmt::format("rank {} waits for rank {} in {} #{} (epoch {}, step {}, unit {})", rank_, peer,
                                          Name(wanted.operation), wanted.sequence, wanted.epoch, wanted.step, wanted.unit));
    }
    if (header.magic != wanted.magic || header.operation != wanted.operation || header.epoch != wanted.epoch ||
        header.step != wanted.step || header.unit != wanted.unit || header.sequence != wanted.sequence) {
      wanted.bytes = header.bytes;
      return FailedPrecondition("ranks are out of step: rank {} is in {}, rank {} sent {}", rank_, Describe(wanted), peer,
                                Describe(header));
    }
    return header.bytes;
  }

  absl::Status ReceiveBody(int peer, std::span<std::byte> bytes, Task& task) {
    if (bytes.empty()) return absl::OkStatus();
    absl::Status status = transport_->Receive(peer, bytes, task.deadline);
    if (status.ok()) return status;
    return Annotate(status, fmt::format("rank {} waits for {} bytes of rank {} in {} (epoch {}, step {}, unit {})", rank_,
                                        bytes.size(), peer, Name(task.operation), options_.epoch, task.where.step,
                                        task.where.unit));
  }

  absl::Status ReceiveFrom(int peer, std::span<std::byte> bytes, Task& task) {
    ARGOSY_ASSIGN_OR_RETURN(uint64_t sent, ReceiveHeader(peer, task));
    if (sent != bytes.size()) {
      return FailedPrecondition("ranks are out of step: in {} (epoch {}, step {}, unit {}) rank {} expects {} bytes, rank {} sent {}",
                                Name(task.operation), options_.epoch, task.where.step, task.where.unit, rank_, bytes.size(), peer,
                                sent);
    }
    return ReceiveBody(peer, bytes, task);
  }

  const GroupOptions options_;
  const std::unique_ptr<Transport> transport_;
  const int rank_;
  const int size_;

  // Of the sender thread and the receiver thread alone.
  std::vector<uint64_t> sent_sequence_;
  std::vector<uint64_t> received_sequence_;
  std::vector<std::byte> part_;
  std::vector<float> sum_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  absl::Status broken_;
  std::deque<TaskPtr> sends_;
  std::deque<TaskPtr> receives_;

  std::thread sender_;
  std::thread receiver_;
};

}  // namespace

std::unique_ptr<Group> MakeMessageGroup(std::unique_ptr<Transport> transport, const GroupOptions& options) {
  if (transport->size() == 1) return MakeLoopbackGroup();
  return std::make_unique<MessageGroup>(std::move(transport), options);
}

}  // namespace argosy::train
