#include "tests/support/run_tests.h"

int main(int argc, char** argv) { return argosy::testing::RunTests(argc, argv); }
