#include "runtime/worker/lineage_table.h"

#include <map>
#include <set>

#include "runtime/base/prng.h"
#include "tests/support/catch.h"
#include "tests/unit/worker/ids.h"

namespace argosy::worker {

TEST_CASE("LineageTable: a task stays until the last of its results is gone") {
  LineageTable table(1000);
  LineageTable::Effects effects;
  table.Keep(T(1), 100, 2, {O(7)}, effects);
  table.ResultGone(T(1), effects);
  CHECK(effects.forgotten.empty());
  CHECK(table.bytes() == 100);
  table.ResultGone(T(1), effects);
  CHECK(effects.forgotten == std::vector<TaskId>{T(1)});
  CHECK(effects.arguments == std::vector<ObjectId>{O(7)});
  CHECK(table.bytes() == 0);
  table.ResultGone(T(1), effects);   // unknown by now
  CHECK(effects.forgotten.size() == 1);
}

TEST_CASE("LineageTable: above the bound the task that was kept first goes") {
  LineageTable table(1000);
  LineageTable::Effects effects;
  table.Keep(T(1), 400, 1, {O(1)}, effects);
  table.Keep(T(2), 400, 1, {O(2)}, effects);
  CHECK(effects.dropped.empty());
  table.Keep(T(3), 700, 1, {O(3)}, effects);
  CHECK(effects.dropped == std::vector<TaskId>{T(1), T(2)});
  CHECK(effects.arguments == std::vector<ObjectId>{O(1), O(2)});
  CHECK(table.Knows(T(3)));
  CHECK(table.bytes() == 700);
  effects = {};
  table.Keep(T(4), 1001, 1, {}, effects);   // larger than all of it
  CHECK(effects.dropped == std::vector<TaskId>{T(3), T(4)});
  CHECK(table.size() == 0);
}

TEST_CASE("LineageTable: a task that runs again is not kept meanwhile") {
  LineageTable table(1000);
  LineageTable::Effects effects;
  table.Keep(T(1), 400, 1, {O(1), O(2)}, effects);
  CHECK(table.Take(T(1)) == std::vector<ObjectId>{O(1), O(2)});
  CHECK_FALSE(table.Knows(T(1)));
  CHECK(table.bytes() == 0);
  CHECK(table.Take(T(1)).empty());
  // Nobody wants its results any more when it has ended: its arguments are needed by nobody.
  table.Keep(T(1), 400, 0, {O(1)}, effects);
  CHECK(effects.arguments == std::vector<ObjectId>{O(1)});
  CHECK(table.size() == 0);
}

// Whatever happens, every argument that was given is given back exactly once, and the bound holds.
TEST_CASE("LineageTable: arguments are counted exactly, whatever the order of events") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    LineageTable table(2000);
    std::map<ObjectId, int> needed;
    std::map<TaskId, int> open;
    auto take = [&](const LineageTable::Effects& effects) {
      for (ObjectId argument : effects.arguments) REQUIRE(--needed[argument] >= 0);
      for (TaskId task : effects.forgotten) open.erase(task);
      for (TaskId task : effects.dropped) open.erase(task);
    };
    for (uint64_t step = 1; step <= 300; ++step) {
      LineageTable::Effects effects;
      if (prng.Below(2) == 0 || open.empty()) {
        std::vector<ObjectId> arguments;
        for (uint64_t i = prng.Below(3); i-- > 0;) arguments.push_back(O(prng.Below(20)));
        for (ObjectId argument : arguments) ++needed[argument];
        uint32_t results = 1 + static_cast<uint32_t>(prng.Below(2));
        open[T(step)] = static_cast<int>(results);
        table.Keep(T(step), 1 + prng.Below(500), results, arguments, effects);
      } else {
        TaskId task = std::next(open.begin(), static_cast<long>(prng.Below(open.size())))->first;
        if (prng.Below(4) == 0) {
          effects.arguments = table.Take(task);
          effects.forgotten.push_back(task);
        } else {
          table.ResultGone(task, effects);
        }
      }
      take(effects);
      REQUIRE(table.bytes() <= table.bytes_max());
      REQUIRE(table.size() == open.size());
    }
    LineageTable::Effects effects;
    for (const auto& [task, results] : std::map<TaskId, int>(open)) {
      for (int i = 0; i < 2; ++i) table.ResultGone(task, effects);
    }
    take(effects);
    for (const auto& [object, count] : needed) REQUIRE(count == 0);
    REQUIRE(table.bytes() == 0);
  }
}

}  // namespace argosy::worker
