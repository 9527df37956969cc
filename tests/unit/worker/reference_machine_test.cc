#include "runtime/worker/reference_machine.h"

#include <deque>
#include <set>

#include "runtime/base/prng.h"
#include "tests/support/catch.h"
#include "tests/unit/worker/ids.h"

namespace argosy::worker {
namespace {

wire::WorkerAddress W(uint64_t n) {
  wire::WorkerAddress address;
  address.worker = WorkerId::FromNumber(n);
  return address;
}

}  // namespace

TEST_CASE("ReferenceMachine: an owned object is freed with its last handle, pin or borrower") {
  ReferenceMachine machine(W(1).worker);
  machine.AddLocal(O(1), W(1));
  machine.Pin({O(1), W(1)});
  machine.AddBorrower(O(1), W(2).worker);
  ReferenceMachine::Effects effects;
  machine.DropLocal(O(1), effects);
  machine.Unpin(O(1), effects);
  CHECK(effects.freed.empty());
  machine.ReleaseBorrow(O(1), W(2).worker, effects);
  CHECK(effects.freed == std::vector<ObjectId>{O(1)});
  CHECK(machine.size() == 0);
}

TEST_CASE("ReferenceMachine: a value keeps the refs inside it, through any depth") {
  ReferenceMachine machine(W(1).worker);
  for (uint64_t n = 1; n <= 1000; ++n) {
    machine.AddLocal(O(n), W(1));
    if (n > 1) machine.SetContents(O(n), {{O(n - 1), W(1)}}, false);
  }
  ReferenceMachine::Effects effects;
  for (uint64_t n = 1; n < 1000; ++n) machine.DropLocal(O(n), effects);
  CHECK(effects.freed.empty());
  machine.DropLocal(O(1000), effects);
  CHECK(effects.freed.size() == 1000);
}

TEST_CASE("ReferenceMachine: what only lineage refers to loses its value, and goes with the lineage") {
  ReferenceMachine machine(W(1).worker);
  machine.AddLocal(O(1), W(1));
  machine.AddLocal(O(2), W(1));
  machine.SetContents(O(1), {{O(2), W(1)}}, false);
  machine.AddLineage(O(1));
  CHECK_FALSE(machine.LineageOnly(O(1)));
  ReferenceMachine::Effects effects;
  machine.DropLocal(O(2), effects);
  CHECK(effects.freed.empty());
  machine.DropLocal(O(1), effects);
  CHECK(effects.released == std::vector<ObjectId>{O(1)});
  CHECK(effects.freed == std::vector<ObjectId>{O(2)});   // that was inside the value
  CHECK(machine.LineageOnly(O(1)));
  CHECK(machine.Owns(O(1)));

  // Made again and wanted again.
  machine.AddLocal(O(1), W(1));
  CHECK_FALSE(machine.LineageOnly(O(1)));
  effects = {};
  machine.DropLineage(O(1), effects);
  CHECK(effects.freed.empty());
  machine.DropLocal(O(1), effects);
  CHECK(effects.freed == std::vector<ObjectId>{O(1)});
  CHECK(machine.size() == 0);
}

TEST_CASE("ReferenceMachine: a dead borrower's registrations are void") {
  ReferenceMachine machine(W(1).worker);
  machine.AddLocal(O(1), W(1));
  machine.AddBorrower(O(1), W(2).worker);
  machine.AddBorrower(O(1), W(2).worker);
  ReferenceMachine::Effects effects;
  machine.DropLocal(O(1), effects);
  machine.BorrowerDied(W(2).worker, effects);
  CHECK(effects.freed.size() == 1);
}

// Three workers pass one object's ref around in arguments, results and kept handles, with every message delayed at random (each pair's
// messages in order). While any handle exists the owner must not free it; when all are gone, it must.
TEST_CASE("ReferenceMachine: simulated: never freed while someone holds it, always freed after") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    Prng prng(seed);
    constexpr uint64_t kWorkers = 3;
    std::vector<ReferenceMachine> machines;
    for (uint64_t w = 0; w < kWorkers; ++w) machines.emplace_back(W(w + 1).worker);
    const wire::Reference object{O(7), W(1)};
    std::vector<int> handles(kWorkers, 0);
    std::vector<int> held_by_calls(kWorkers, 0);   // of the handles: those of arguments in flight
    std::map<std::pair<uint64_t, uint64_t>, std::deque<std::function<void()>>> wires;
    int in_flight = 0;   // refs on the way, in arguments or results
    bool freed = false;

    std::function<void(uint64_t, ReferenceMachine::Effects)> apply;
    auto send = [&](uint64_t from, uint64_t to, std::function<void()> what) { wires[{from, to}].push_back(std::move(what)); };
    apply = [&](uint64_t self, ReferenceMachine::Effects effects) {
      for (ObjectId id : effects.freed) {
        REQUIRE(self == 0);
        freed = id == object.object;
      }
      for (const auto& release : effects.releases) {
        for (int i = 0; i < release.count; ++i) {
          send(self, 0, [&, self] {
            ReferenceMachine::Effects more;
            machines[0].ReleaseBorrow(object.object, W(self + 1).worker, more);
            apply(0, std::move(more));
          });
        }
      }
      for (const auto& registration : effects.registers) {
        send(self, 0, [&, self, borrower = registration.borrower.worker] {
          machines[0].AddBorrower(object.object, borrower);
          send(0, self, [&, self] {
            ReferenceMachine::Effects more;
            machines[self].Unpin(object.object, more);
            apply(self, std::move(more));
          });
        });
      }
    };
    auto add = [&](uint64_t w) {
      machines[w].AddLocal(object.object, object.owner);
      ++handles[w];
    };
    auto drop = [&](uint64_t w) {
      --handles[w];
      ReferenceMachine::Effects effects;
      machines[w].DropLocal(object.object, effects);
      apply(w, std::move(effects));
    };
    auto deliver_one = [&] {
      std::vector<std::pair<uint64_t, uint64_t>> busy;
      for (auto& [pair, queue] : wires) {
        if (!queue.empty()) busy.push_back(pair);
      }
      if (busy.empty()) return false;
      auto& queue = wires[busy[prng.Below(busy.size())]];
      auto what = std::move(queue.front());
      queue.pop_front();
      what();
      return true;
    };

    add(0);
    for (int step = 0; step < 60; ++step) {
      uint64_t a = prng.Below(kWorkers);
      uint64_t b = prng.Below(kWorkers);
      switch (prng.Below(4)) {
        case 0:   // a calls b with the ref; b may keep a handle; a holds its own until the reply
          if (a == b || handles[a] == 0) break;
          add(a);
          ++held_by_calls[a];
          ++in_flight;
          send(a, b, [&, a, b, keeps = prng.Below(2) == 0] {
            add(b);
            if (!keeps) drop(b);
            std::vector<ObjectId> kept = machines[b].TakeKept({object.object});
            send(b, a, [&, a, b, kept] {
              ReferenceMachine::Effects effects;
              machines[a].Kept(W(b + 1), kept, effects);
              apply(a, std::move(effects));
              --in_flight;
              --held_by_calls[a];
              drop(a);
            });
          });
          break;
        case 1: {   // a answers b with a result that holds the ref; b keeps a handle of it
          if (a == b || handles[a] == 0) break;
          ReferenceMachine::Effects effects;
          machines[a].PassTo(W(b + 1), {object}, effects);
          apply(a, std::move(effects));
          ++in_flight;
          send(a, b, [&, b, step] {
            --in_flight;
            // The outer value, decoded and dropped again.
            ObjectId outer = O(1000 + static_cast<uint64_t>(step));
            machines[b].AddLocal(outer, W(b + 1));
            machines[b].SetContents(outer, {object}, true);
            add(b);
            ReferenceMachine::Effects more;
            machines[b].DropLocal(outer, more);
            more.freed.clear();
            apply(b, std::move(more));
          });
          break;
        }
        case 2:
          if (handles[a] > held_by_calls[a] && (handles[0] + handles[1] + handles[2] + in_flight > 1 || step > 50)) drop(a);
          break;
        default: deliver_one();
      }
      if (handles[0] + handles[1] + handles[2] > 0) REQUIRE_FALSE(freed);
    }
    while (deliver_one()) {
      if (handles[0] + handles[1] + handles[2] > 0) REQUIRE_FALSE(freed);
    }
    for (uint64_t w = 0; w < kWorkers; ++w) {
      while (handles[w] > 0) {
        REQUIRE_FALSE(freed);
        drop(w);
        while (deliver_one()) {}
      }
    }
    CHECK(freed);
  }
}

}  // namespace argosy::worker
