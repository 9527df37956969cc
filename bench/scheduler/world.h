#pragma once

// Simulated clusters and the work that is placed on them. Everything follows from a seed.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/prng.h"
#include "scheduler/cluster_view.h"
#include "scheduler/demand.h"

namespace argosy::bench {

// `nodes` nodes of which one in five has 8 GPUs and one in a hundred `large_cpu_mem`, with labels as a cloud gives them: region, zone, rack,
// instance type, host name, and the accelerator type where there is one. Racks have 40 nodes.
scheduler::ClusterView MakeCluster(size_t nodes, uint64_t seed);

// Distinct shapes: CPU alone, with memory, in a zone, on any of two instance types, on no spot node, in one rack, on GPUs of a type, on the few
// nodes with a custom resource, and one in ten of them SPREAD.
std::vector<scheduler::Demand> MakeDemands(size_t shapes, uint64_t seed);

// Equal bundles of one CPU; every fourth group asks for one bundle on a node with `large_cpu_mem`.
scheduler::GroupDemand MakeGroup(size_t number, scheduler::GroupStrategy strategy, size_t bundles);

// Bytes that the process holds on its heap now.
int64_t HeapBytes();

}  // namespace argosy::bench
