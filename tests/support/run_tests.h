#pragma once

namespace argosy::testing {

// Runs the Catch2 test cases of this executable as the arguments choose them; returns the exit code. For executables with a main of their
// own; the others link argosy_catch, whose main calls it. Catch2 v2's runner costs 20 s to compile, so it stands in one file.
int RunTests(int argc, char** argv);

}  // namespace argosy::testing
