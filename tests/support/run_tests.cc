#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include "tests/support/catch.h"
#include "tests/support/run_tests.h"

namespace argosy::testing {

int RunTests(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace argosy::testing
