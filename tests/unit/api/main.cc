// Runs tests/cluster/behaviour_test.cc on one node with one CPU, without head and gRPC. Started as a worker, it serves.

#include <cstdlib>
#include <memory>

#include <argosy/argosy.h>

#include "tests/support/run_tests.h"
#include "tests/unit/api/small_node.h"

int main(int argc, char** argv) {
  std::unique_ptr<argosy::testing::SmallNode> node;
  if (std::getenv("ARGOSY_WORKER") == nullptr) {
    node = std::make_unique<argosy::testing::SmallNode>(1);
    ::setenv("ARGOSY_NODE_SOCKET", node->socket().c_str(), 1);
    ::unsetenv("ARGOSY_ADDRESS");
  }
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  int failed = argosy::testing::RunTests(argc, argv);
  runtime.Shutdown();
  return failed;
}
