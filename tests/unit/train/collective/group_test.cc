#include "train/collective/group.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"
#include "tests/support/catch.h"
#include "train/collective/thread_transport.h"
#include "train/config/dtype.h"

namespace argosy::train {
namespace {

// Runs `body` as every rank of a group of threads; the statuses by rank.
template <class Body>
std::vector<absl::Status> RunRanks(int size, Body body, GroupOptions options = {}) {
  auto transports = MakeThreadTransports(size);
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = MakeMessageGroup(std::move(transports[rank]), options);
      statuses[rank] = body(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void CheckAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    CHECK(status.ok());
  }
}

float Value(int rank, int64_t i) {
  Prng prng(static_cast<uint64_t>(rank) * 1000003 + i);
  return static_cast<float>(prng.Unit() - 0.5);
}

TEST_CASE("CutEvenly: shares cover the buffer and their borders are multiples of 64") {
  for (int64_t elements : {0, 1, 64, 65, 1000, 4096, 100000}) {
    for (int ranks : {1, 2, 3, 7, 32}) {
      Cuts cuts = CutEvenly(elements, ranks);
      REQUIRE(cuts.size() == static_cast<size_t>(ranks) + 1);
      CHECK(cuts.front() == 0);
      CHECK(cuts.back() == elements);
      for (int r = 0; r < ranks; ++r) {
        CHECK(cuts[r] <= cuts[r + 1]);
        if (r > 0 && cuts[r] != elements) CHECK(cuts[r] % 64 == 0);
      }
    }
  }
}

TEST_CASE("Group: every operation gives on 1 to 5 ranks what a loop in rank order gives") {
  for (int size : {1, 2, 3, 5}) {
    CheckAllOk(RunRanks(size, [size](Group& group) -> absl::Status {
      const int64_t n = 5000;
      int rank = group.rank();
      std::vector<float> mine(n), sum(n);
      std::vector<uint16_t> mine16(n);
      std::vector<float> sum16(n);
      for (int64_t i = 0; i < n; ++i) {
        mine[i] = Value(rank, i);
        mine16[i] = Bf16FromFloat(mine[i]);
        sum[i] = Value(0, i);
        sum16[i] = FloatFromBf16(Bf16FromFloat(sum[i]));
        for (int r = 1; r < size; ++r) {
          sum[i] += Value(r, i);
          sum16[i] += FloatFromBf16(Bf16FromFloat(Value(r, i)));
        }
      }
      Cuts cuts = CutEvenly(n, size);
      int64_t begin = cuts[rank], count = cuts[rank + 1] - cuts[rank];
      std::vector<float> share(count), share16(count, 1.0f);
      // Two at once: what overlapping a reduction with the next unit's work does.
      Pending a = group.ReduceScatter(ConstElements(std::span<const float>(mine)), cuts, share, Into::kReplace, {1, 0});
      Pending b = group.ReduceScatter(ConstElements(std::span<const uint16_t>(mine16)), cuts, share16, Into::kAdd, {1, 1});
      ARGOSY_RETURN_IF_ERROR(a.Wait());
      ARGOSY_RETURN_IF_ERROR(b.Wait());
      bool equal = true;
      for (int64_t i = 0; i < count; ++i) {
        equal &= share[i] == sum[begin + i];
        equal &= share16[i] == 1.0f + sum16[begin + i];
      }
      if (!equal) return Internal("ReduceScatter differs on rank {}", rank);

      std::vector<float> all(n, -1.0f);
      ARGOSY_RETURN_IF_ERROR(group.AllGather(std::as_bytes(std::span(share)), std::as_writable_bytes(std::span(all)), cuts,
                                             sizeof(float), {1, 2}).Wait());
      if (all != sum) return Internal("AllGather differs on rank {}", rank);

      ARGOSY_RETURN_IF_ERROR(group.AllReduce(std::span<float>(mine), {1, 3}).Wait());
      if (mine != sum) return Internal("AllReduce differs on rank {}", rank);

      std::vector<double> doubles = {rank + 0.25, 1.0};
      ARGOSY_RETURN_IF_ERROR(group.AllReduce(std::span<double>(doubles), {1}).Wait());
      if (doubles[0] != size * (size - 1) / 2.0 + 0.25 * size || doubles[1] != size) return Internal("double AllReduce differs");

      for (int root = 0; root < size; ++root) {
        std::vector<int> word = {rank == root ? 42 + root : 0, 7};
        ARGOSY_RETURN_IF_ERROR(group.Broadcast(root, std::as_writable_bytes(std::span(word)), {2}).Wait());
        if (word[0] != 42 + root) return Internal("Broadcast differs on rank {}", rank);
        std::vector<std::vector<std::byte>> gathered;
        std::vector<std::byte> own(rank * 10, std::byte(rank));
        ARGOSY_RETURN_IF_ERROR(group.Gather(root, own, &gathered, {3}).Wait());
        if (rank == root) {
          for (int r = 0; r < size; ++r) {
            if (gathered.at(r) != std::vector<std::byte>(r * 10, std::byte(r))) return Internal("Gather differs");
          }
        }
      }
      if (size > 1) {
        int next = (rank + 1) % size, previous = (rank + size - 1) % size;
        int out = rank, in = -1;
        Pending sent = group.Send(next, std::as_bytes(std::span(&out, 1)), {4});
        Pending received = group.Recv(previous, std::as_writable_bytes(std::span(&in, 1)), {4});
        ARGOSY_RETURN_IF_ERROR(sent.Wait());
        ARGOSY_RETURN_IF_ERROR(received.Wait());
        if (in != previous) return Internal("Recv got {}", in);
      }
      return group.Barrier({5}).Wait();
    }));
  }
}

TEST_CASE("Group: many operations in flight over an unbuffered transport do not deadlock") {
  CheckAllOk(RunRanks(4, [](Group& group) -> absl::Status {
    const int64_t n = 10000;
    Cuts cuts = CutEvenly(n, 4);
    std::vector<std::vector<float>> inputs(40, std::vector<float>(n, 1.0f));
    std::vector<std::vector<float>> outputs(40, std::vector<float>(cuts[group.rank() + 1] - cuts[group.rank()]));
    std::vector<std::vector<double>> counts(40, {1.0});
    std::vector<Pending> pending;
    for (int i = 0; i < 40; ++i) {
      pending.push_back(
          group.ReduceScatter(ConstElements(std::span<const float>(inputs[i])), cuts, outputs[i], Into::kReplace, {i}));
      pending.push_back(group.AllReduce(std::span<double>(counts[i]), {i}));
    }
    for (Pending& p : pending) ARGOSY_RETURN_IF_ERROR(p.Wait());
    for (int i = 0; i < 40; ++i) {
      if (counts[i][0] != 4.0) return Internal("count {}", counts[i][0]);
      for (float value : outputs[i]) {
        if (value != 4.0f) return Internal("sum {}", value);
      }
    }
    return absl::OkStatus();
  }));
}

TEST_CASE("Group: ranks that drifted apart get an error that names both sides") {
  auto statuses = RunRanks(2, [](Group& group) -> absl::Status {
    std::vector<double> value = {1.0};
    return group.rank() == 0 ? group.AllReduce(std::span<double>(value), {7, 3}).Wait() : group.Barrier({8, -1}).Wait();
  });
  bool named = false;
  for (const absl::Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(!status.ok());
    std::string text = Message(status);
    named |= text.find("rank 0") != std::string::npos && text.find("rank 1") != std::string::npos &&
             text.find("step 7") != std::string::npos && text.find("step 8") != std::string::npos;
  }
  CHECK(named);
}

TEST_CASE("Group: an absent rank is a time-out that says who waits for whom, and the group stays broken") {
  auto statuses = RunRanks(
      2,
      [](Group& group) -> absl::Status {
        if (group.rank() == 1) {
          // Waits until the other side's time-out has closed the group.
          std::byte byte;
          return group.Recv(0, std::span(&byte, 1), {1}).Wait();
        }
        std::byte byte;
        absl::Status first = group.Recv(1, std::span(&byte, 1), {1}).Wait();
        absl::Status second = group.Barrier({2}).Wait();
        if (second != first) return Internal("the second operation gave {}", Message(second));
        return first;
      },
      {.deadline = absl::Milliseconds(100)});
  CHECK(absl::IsDeadlineExceeded(statuses[0]) != absl::IsAborted(statuses[0]));
  bool timed_out = false;
  for (const absl::Status& status : statuses) {
    REQUIRE(!status.ok());
    timed_out |= absl::IsDeadlineExceeded(status) && Message(status).find("waits for rank") != std::string::npos;
  }
  CHECK(timed_out);
}

TEST_CASE("Group: Abort ends the peers' operations with its reason, and a rank that left is named") {
  auto statuses = RunRanks(3, [](Group& group) -> absl::Status {
    if (group.rank() == 2) {
      group.Abort("out of disk");
      return absl::OkStatus();
    }
    return group.Barrier({1}).Wait();
  });
  for (int rank : {0, 1}) {
    INFO(statuses[rank].ToString());
    CHECK(absl::IsAborted(statuses[rank]));
    CHECK(Message(statuses[rank]).find("out of disk") != std::string::npos);
  }
  statuses = RunRanks(2, [](Group& group) { return group.rank() == 1 ? absl::OkStatus() : group.Barrier({1}).Wait(); });
  INFO(statuses[0].ToString());
  CHECK(absl::IsUnavailable(statuses[0]));
  CHECK(Message(statuses[0]).find("rank 1") != std::string::npos);
}

}  // namespace
}  // namespace argosy::train
