// Runs local_test.cc in local mode.

#include <argosy/argosy.h>

#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  argosy::ConnectOptions options;
  options.address = "local";
  argosy::Runtime runtime = argosy::Connect(argc, argv, options);
  return argosy::testing::RunTests(argc, argv);
}
