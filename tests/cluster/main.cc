// Starts a real cluster, then runs the test cases as its driver. ARGOSY_TEST_NODES=1: one node with one CPU; else three unequal ones.
// Started as a worker, it serves.

#include <cstdlib>
#include <string>
#include <vector>

#include <argosy/argosy.h>
#include <argosy/testing.h>

#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  const char* count = std::getenv("ARGOSY_TEST_NODES");
  std::vector<argosy::testing::NodeOptions> nodes;
  if (count != nullptr && std::string(count) == "1") {
    nodes = {{.name = "first", .num_cpus = 1}};
  } else {
    nodes = {{.name = "first", .num_cpus = 2},
             {.name = "second", .num_cpus = 2, .resources = {{"second", 4}}, .labels = {{"zone", "b"}}},
             {.name = "third", .num_cpus = 2, .resources = {{"third", 4}, {"large_cpu_mem", 1}}, .labels = {{"zone", "c"}}}};
  }
  argosy::testing::Cluster cluster(nodes);
  argosy::Runtime runtime = argosy::Connect(argc, argv, cluster.connect_options());
  int failed = argosy::testing::RunTests(argc, argv);
  runtime.Shutdown();
  return failed;
}
