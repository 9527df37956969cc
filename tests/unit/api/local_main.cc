// Runs local_test.cc in local mode.

#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"

#include <argosy/argosy.h>

int main(int argc, char** argv) {
  argosy::ConnectOptions options;
  options.address = "local";
  argosy::Runtime runtime = argosy::Connect(argc, argv, options);
  return Catch::Session().run(argc, argv);
}
