#include "bench/scheduler/world.h"

#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "runtime/base/status.h"

namespace argosy::bench {
namespace {

template <class T>
T Must(absl::StatusOr<T> value) {
  ARGOSY_CHECK(value.ok(), "{}", Message(value.status()));
  return *std::move(value);
}

ResourceSet Amounts(const std::map<std::string, double>& amounts) { return Must(ResourceSet::FromMap(amounts)); }

scheduler::Demand Needs(const std::map<std::string, double>& amounts, const std::string& labels = "", scheduler::Strategy strategy = {}) {
  return {Amounts(amounts), Must(scheduler::LabelSelector::Parse(labels)), std::move(strategy), {}};
}

}  // namespace

scheduler::ClusterView MakeCluster(size_t nodes, uint64_t seed) {
  scheduler::ClusterView view;
  Prng prng(seed);
  for (size_t i = 0; i < nodes; ++i) {
    const double cpus = static_cast<double>(8u << prng.Below(4));
    std::map<std::string, double> total = {{"CPU", cpus}, {"memory", cpus * 4e9}, {"object_store_memory", cpus * 1e9}};
    scheduler::Labels labels = {{"region", fmt::format("r{}", i % 3)},
                                {"zone", fmt::format("z{}", i % 9)},
                                {"rack", fmt::format("rack-{}", i / 40)},
                                {"host", fmt::format("host-{}", i)},
                                {"instance", fmt::format("type-{}", prng.Below(6))},
                                {"market", prng.Below(4) == 0 ? "spot" : "reserved"}};
    if (i % 5 == 4) {
      total["GPU"] = 8;
      labels["accelerator-type"] = prng.Below(2) == 0 ? "H100" : "A100";
    }
    if (i % 100 == 7) total["large_cpu_mem"] = 1;
    absl::Status added = view.AddNode(NodeId::FromNumber(i + 1), fmt::format("host-{}", i), Amounts(total), std::move(labels));
    ARGOSY_CHECK(added.ok(), "{}", Message(added));
  }
  return view;
}

std::vector<scheduler::Demand> MakeDemands(size_t shapes, uint64_t seed) {
  std::vector<scheduler::Demand> demands;
  Prng prng(seed);
  for (size_t i = 0; i < shapes; ++i) {
    // Makes each shape of a kind another one: 0.5 to 5, and a little more beyond a hundred shapes.
    const double step = static_cast<double>(1 + i / 10 % 10) / 2 + static_cast<double>(i / 100) * 0.001;
    switch (i % 10) {
      case 0: demands.push_back(Needs({{"CPU", step}})); break;
      case 1: demands.push_back(Needs({{"CPU", step}, {"memory", 1e9 * step}})); break;
      case 2: demands.push_back(Needs({{"CPU", step}}, fmt::format("zone=z{}", prng.Below(9)))); break;
      case 3: demands.push_back(Needs({{"CPU", step}}, "instance in (type-1,type-4)")); break;
      case 4: demands.push_back(Needs({{"CPU", step}, {"memory", 2e9}}, "market!=spot")); break;
      case 5: demands.push_back(Needs({{"CPU", step}, {"GPU", 1 + static_cast<double>(i / 30 % 4)}}, i % 20 == 5 ? "accelerator-type=H100" : "")); break;
      case 6: demands.push_back(Needs({{"CPU", step}}, "", scheduler::SpreadStrategy{})); break;
      case 7: demands.push_back(Needs({{"CPU", step}}, fmt::format("rack=rack-{}", i / 40))); break;
      case 8: demands.push_back(Needs({{"CPU", step}, {"large_cpu_mem", 0.01}})); break;
      default: demands.push_back(Needs({{"CPU", step}}, fmt::format("region=r{},market=reserved", prng.Below(3))));
    }
  }
  return demands;
}

scheduler::GroupDemand MakeGroup(size_t number, scheduler::GroupStrategy strategy, size_t bundles) {
  scheduler::GroupDemand group{strategy, {}};
  // All bundles of a STRICT_PACK share a node of at most 64 CPUs.
  const double cpus = strategy == scheduler::GroupStrategy::kStrictPack ? 0.25 : 1;
  for (size_t i = 0; i < bundles; ++i) group.bundles.push_back({Amounts({{"CPU", cpus}}), {}});
  if (number % 4 == 0) group.bundles[0].resources = Amounts({{"CPU", cpus}, {"large_cpu_mem", 0.01}});
  return group;
}

int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace argosy::bench
