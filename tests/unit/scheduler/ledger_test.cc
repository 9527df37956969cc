#include "scheduler/ledger.h"

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

TEST_CASE("NodeLedger: a grant spends, a release gives back, and both are idempotent") {
  NodeLedger ledger(Res({{"CPU", 2}, {"memory", 100}}));
  auto first = ledger.Grant(L(1), Res({{"CPU", 1}, {"memory", 60}}));
  REQUIRE(first.ok());
  CHECK(ledger.Available() == Res({{"CPU", 1}, {"memory", 40}}));
  uint64_t version = ledger.version();
  CHECK(ledger.Grant(L(1), Res({{"CPU", 1}, {"memory", 60}})).ok());
  CHECK(ledger.version() == version);
  CHECK(ledger.Grant(L(1), Res({{"CPU", 2}})).status().code() == absl::StatusCode::kFailedPrecondition);
  absl::Status busy = ledger.Grant(L(2), Res({{"memory", 50}})).status();
  CHECK(absl::IsUnavailable(busy));
  CHECK(Message(busy) == "the node is busy: memory: 40 of 100 free");
  absl::Status never = ledger.Grant(L(2), Res({{"CPU", 3}})).status();
  CHECK(never.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(ledger.Release(L(1)));
  CHECK_FALSE(ledger.Release(L(1)));
  CHECK(ledger.Available() == ledger.total());
  CHECK(ledger.version() > version);
}

TEST_CASE("NodeLedger: GPU leases get whole devices, or a part of one, never the same twice") {
  NodeLedger ledger(Res({{"GPU", 3}}));
  CHECK(ledger.Grant(L(1), Res({{"GPU", 0.5}}))->gpu_indices() == std::vector<int>{0});
  CHECK(ledger.Grant(L(2), Res({{"GPU", 1}}))->gpu_indices() == std::vector<int>{1});
  // The fullest device with room.
  CHECK(ledger.Grant(L(3), Res({{"GPU", 0.3}}))->gpu_indices() == std::vector<int>{0});
  CHECK(ledger.Grant(L(4), Res({{"GPU", 0.3}}))->gpu_indices() == std::vector<int>{2});
  absl::Status split = ledger.Grant(L(5), Res({{"GPU", 0.8}})).status();
  CHECK(absl::IsUnavailable(split));
  CHECK(Message(split) == "the node is busy: GPU: 0.9 free, but at most 0.7 of one device");
  CHECK(ledger.Release(L(4)));
  CHECK(ledger.Release(L(2)));
  CHECK(ledger.Grant(L(6), Res({{"GPU", 2}}))->gpu_indices() == std::vector<int>{1, 2});
  // Amounts of a peer are refused, not trusted.
  CHECK_FALSE(NodeLedger(Res({{"GPU", 3}}))
                  .Grant(L(1),
                         [] {
                           ResourceSet r;
                           r.Set("GPU", Amount::FromRaw(15'000));
                           return r;
                         }())
                  .ok());
  CHECK_FALSE(NodeLedger(Res({{"CPU", 3}}))
                  .Grant(L(1),
                         [] {
                           ResourceSet r;
                           r.Set("CPU", Amount::FromRaw(-1));
                           return r;
                         }())
                  .ok());
}

TEST_CASE("NodeLedger: a blocked worker lends its CPU, and takes it back even when it is lent") {
  NodeLedger ledger(Res({{"CPU", 1}, {"GPU", 1}}));
  REQUIRE(ledger.Grant(L(1), Res({{"CPU", 1}, {"GPU", 1}})).ok());
  CHECK(ledger.ReleaseCpu(L(1)));
  CHECK(ledger.ReleaseCpu(L(1)));
  CHECK(ledger.Available() == Res({{"CPU", 1}}));
  REQUIRE(ledger.Grant(L(2), Res({{"CPU", 1}})).ok());
  CHECK(ledger.ReacquireCpu(L(1)));
  CHECK(ledger.ReacquireCpu(L(1)));
  CHECK(ledger.CpuOversubscribed() == Amount::FromInt(1));
  CHECK(ledger.Available().IsEmpty());
  CHECK(absl::IsUnavailable(ledger.Grant(L(3), Res({{"CPU", 1}})).status()));
  CHECK(ledger.Release(L(2)));
  CHECK(ledger.CpuOversubscribed().IsZero());
  CHECK(absl::IsUnavailable(ledger.Grant(L(3), Res({{"CPU", 1}})).status()));
  CHECK(ledger.ReleaseCpu(L(1)));
  CHECK(ledger.Release(L(1)));
  CHECK(ledger.Available() == ledger.total());
  CHECK_FALSE(ledger.ReleaseCpu(L(1)));
}

TEST_CASE("NodeLedger: a bundle is prepared, committed, used, and returned with its leases") {
  NodeLedger ledger(Res({{"CPU", 4}, {"GPU", 2}}));
  const BundleKey key{G(1), 0};
  REQUIRE(ledger.PrepareBundle(key, Res({{"CPU", 2}, {"GPU", 1}})).ok());
  REQUIRE(ledger.PrepareBundle(key, Res({{"CPU", 2}, {"GPU", 1}})).ok());
  CHECK_FALSE(ledger.PrepareBundle(key, Res({{"CPU", 1}})).ok());
  CHECK(ledger.Available() == Res({{"CPU", 2}, {"GPU", 1}}));
  CHECK(absl::IsNotFound(ledger.Grant(L(1), Res({{"CPU", 1}}), BundleAffinity{G(1), 0}).status()));
  REQUIRE(ledger.CommitBundle(key).ok());
  REQUIRE(ledger.CommitBundle(key).ok());
  CHECK(absl::IsNotFound(ledger.CommitBundle({G(1), 1})));

  auto inside = ledger.Grant(L(1), Res({{"CPU", 1}, {"GPU", 1}}), BundleAffinity{G(1), -1});
  REQUIRE(inside.ok());
  CHECK(inside->bundle == key);
  CHECK(inside->gpu_indices() == std::vector<int>{0});
  CHECK(ledger.Available() == Res({{"CPU", 2}, {"GPU", 1}}));
  CHECK(ledger.FindBundle(key)->available == Res({{"CPU", 1}}));
  CHECK(absl::IsUnavailable(ledger.Grant(L(2), Res({{"CPU", 2}}), BundleAffinity{G(1), 0}).status()));
  CHECK(ledger.Grant(L(2), Res({{"CPU", 3}}), BundleAffinity{G(1), 0}).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(ledger.Grant(L(3), Res({{"GPU", 1}}))->gpu_indices() == std::vector<int>{1});

  CHECK(ledger.ReleaseCpu(L(1)));
  CHECK(ledger.FindBundle(key)->available == Res({{"CPU", 2}}));
  CHECK(ledger.ReturnBundle(key) == std::vector<LeaseId>{L(1)});
  CHECK(ledger.ReturnBundle(key).empty());
  CHECK_FALSE(ledger.ReacquireCpu(L(1)));
  CHECK(ledger.Available() == Res({{"CPU", 4}, {"GPU", 1}}));
  CHECK(absl::IsUnavailable(ledger.PrepareBundle(key, Res({{"GPU", 2}}))));
  CHECK(ledger.Leases() == std::vector<LeaseId>{L(3)});
}

}  // namespace argosy::scheduler
