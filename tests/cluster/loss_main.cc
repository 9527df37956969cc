// A cluster whose nodes die: the driver and the head are on "first"; the test cases add nodes and kill them. ARGOSY_TEST_SHORT=1: two nodes
// of one host on which memory is always short.

#include <cstdlib>
#include <vector>

#include <argosy/argosy.h>
#include <argosy/testing.h>

#include "tests/cluster/loss.h"
#include "tests/support/run_tests.h"

namespace argosy::testing {

Cluster* LossyCluster::cluster = nullptr;

}  // namespace argosy::testing

int main(int argc, char** argv) {
  std::vector<argosy::testing::NodeOptions> nodes{{.name = "first", .num_cpus = 2, .object_store_memory = 64u << 20}};
  if (std::getenv("ARGOSY_TEST_SHORT") != nullptr) {
    nodes.push_back({.name = "second", .num_cpus = 2, .resources = {{"second", 2}}});
    for (argosy::testing::NodeOptions& node : nodes) node.flags = {"--memory-threshold", "0.001", "--memory-watch-period", "100"};
  }
  argosy::testing::Cluster cluster(nodes);
  argosy::testing::LossyCluster::cluster = &cluster;
  argosy::ConnectOptions options = cluster.connect_options();
  options.lineage_bytes_max = 1 << 20;
  argosy::Runtime runtime = argosy::Connect(argc, argv, options);
  int failed = argosy::testing::RunTests(argc, argv);
  runtime.Shutdown();
  return failed;
}
