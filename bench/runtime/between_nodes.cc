// An object from one node to another on this machine, beside what one TCP connection over loopback carries in the same run.
//
//   between_nodes [MEBIBYTES]
#include <argosy/argosy.h>
#include <argosy/testing.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/runtime/harness.h"

namespace {

int64_t Size(const argosy::Array<char>& bytes) { return bytes.size(); }

}  // namespace

int main(int argc, char** argv) {
  using namespace argosy;
  const size_t size = static_cast<size_t>(argc > 1 ? std::max(1, std::atoi(argv[1])) : 256) << 20;
  testing::Cluster cluster({{.name = "source", .object_store_memory = 2 * size},
                            {.name = "sink", .resources = {{"sink", 1}}, .object_store_memory = 2 * size}});
  Runtime runtime = Connect(argc, argv, cluster.connect_options());
  std::vector<char> bytes(size, 1);
  std::vector<double> rates, limits;
  // Alternated: the machine's speed changes within a run.
  for (int round = 0; round < 8; ++round) {
    limits.push_back(bench::MeasureLoopback(size));
    ObjectRef<Array<char>> object = Put(Array<char>(bytes.data(), bytes.size(), nullptr));
    auto begin = std::chrono::steady_clock::now();
    Get(Task<Size>({.resources = {{"sink", 1}}}).Submit(object));
    rates.push_back(static_cast<double>(size) / 1e9 / bench::SecondsSince(begin));
  }
  std::printf("object of %zu MiB from node to node: %.2f GB/s, %.2f of one TCP connection over loopback (%.2f GB/s)\n", size >> 20, bench::Median(rates),
              bench::Median(rates) / bench::Median(limits), bench::Median(limits));
  return 0;
}
