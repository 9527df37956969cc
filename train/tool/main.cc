// argosy-finetune: the verbs of `argosy` that compute with libtorch. The same executable is the driver and, started by node daemons, the
// workers of a run.

#include <cstdlib>

#include "train/tool/commands.h"

int main(int argc, char** argv) {
  using namespace argosy::train;
  return RunCommands(argc, argv, "finetune", [&](CLI::App& app) {
    AddFinetuneCommand(app, {.argc = argc, .argv = argv, .is_worker = std::getenv("ARGOSY_WORKER") != nullptr});
    AddGenerateCommand(app);
  });
}
