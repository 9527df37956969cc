// Starts a real cluster, then runs the test cases as its driver. ARGOSY_TEST_NODES=1: one node with one CPU; else three unequal ones.
// Started as a worker, it serves.

#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"

#include <cstdlib>
#include <memory>
#include <string>

#include <argosy/argosy.h>

#include "tests/cluster/cluster.h"

int main(int argc, char** argv) {
  std::unique_ptr<argosy::testing::Cluster> cluster;
  argosy::ConnectOptions options;
  if (std::getenv("ARGOSY_WORKER") == nullptr) {
    const char* nodes = std::getenv("ARGOSY_TEST_NODES");
    bool one = nodes != nullptr && std::string(nodes) == "1";
    cluster = std::make_unique<argosy::testing::Cluster>(
        std::vector<std::string>{"--num-cpus", one ? "1" : "2", "--object-store-memory", "256M", "--node-name", "first"});
    if (!one) {
      cluster->Join({"--num-cpus", "2", "--resources", R"({"second": 4})", "--labels", "zone=b", "--object-store-memory", "256M",
                     "--node-name", "second"});
      cluster->Join({"--num-cpus", "2", "--resources", R"({"third": 4, "large_cpu_mem": 1})", "--labels", "zone=c",
                     "--object-store-memory", "256M", "--node-name", "third"});
    }
    options.address = cluster->head_address();
  }
  argosy::Runtime runtime = argosy::Connect(argc, argv, options);
  int failed = Catch::Session().run(argc, argv);
  runtime.Shutdown();
  return failed;
}
