#include "scheduler/demand.h"

#include <unordered_set>

#include "tests/support/catch.h"
#include "tests/unit/scheduler/testing.h"

namespace argosy::scheduler {

using namespace testing;

TEST_CASE("Shape: equal resources, labels and strategy make one shape, whatever the locality") {
  Demand a = Needs({{"CPU", 1}}, SpreadStrategy{}, "zone=a");
  Demand b = a;
  b.locality.push_back({N(1), 100});
  CHECK(a.GetShape() == b.GetShape());
  CHECK(a.GetShape().Hash() == b.GetShape().Hash());
  std::unordered_set<Shape> shapes = {
      a.GetShape(),
      Needs({{"CPU", 2}}, SpreadStrategy{}, "zone=a").GetShape(),
      Needs({{"CPU", 1}}, DefaultStrategy{}, "zone=a").GetShape(),
      Needs({{"CPU", 1}}, SpreadStrategy{}, "zone!=a").GetShape(),
      Needs({{"CPU", 1}}, NodeAffinity{N(1), true}, "zone=a").GetShape(),
      Needs({{"CPU", 1}}, NodeAffinity{N(1), false}, "zone=a").GetShape(),
      Needs({{"CPU", 1}}, BundleAffinity{G(1), 0}, "zone=a").GetShape(),
      Needs({{"CPU", 1}}, BundleAffinity{G(1), -1}, "zone=a").GetShape(),
  };
  CHECK(shapes.size() == 8);
  CHECK(shapes.contains(b.GetShape()));
  Demand back = Demand::FromShape(a.GetShape(), b.locality);
  CHECK(back.GetShape() == a.GetShape());
  CHECK(back.locality.size() == 1);
}

TEST_CASE("Shape: reads as a person would say it") {
  CHECK(Needs({{"CPU", 1}, {"GPU", 0.5}}, SpreadStrategy{}, "zone=a").ToString() ==
        "CPU: 1, GPU: 0.5; labels zone=a; SPREAD");
  CHECK(Needs({}).ToString() == "nothing");
}

TEST_CASE("GroupDemand: strategies by name, kinds of bundles counted, nonsense refused") {
  for (GroupStrategy strategy :
       {GroupStrategy::kPack, GroupStrategy::kSpread, GroupStrategy::kStrictPack, GroupStrategy::kStrictSpread}) {
    CHECK(ParseGroupStrategy(ToString(strategy)) == strategy);
  }
  CHECK_FALSE(ParseGroupStrategy("pack").has_value());
  GroupDemand demand{GroupStrategy::kSpread,
                     {{Res({{"CPU", 1}}), {}}, {Res({{"GPU", 1}}), {}}, {Res({{"CPU", 1}}), {}}}};
  CHECK(demand.ToString() == "SPREAD of 3 bundles: 2 x {CPU: 1}, 1 x {GPU: 1}");
  CHECK(CheckGroupDemand(demand).ok());
  CHECK(Message(CheckGroupDemand({})) == "a placement group needs at least one bundle");
  demand.bundles[1].resources = {};
  CHECK(Message(CheckGroupDemand(demand)) ==
        "bundle 1 of the placement group is empty: want at least one resource above 0");
}

}  // namespace argosy::scheduler
