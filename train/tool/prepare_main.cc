// argosy-prepare: the verbs of `argosy` that only look at files. It is free of libtorch and starts at once.

#include "train/tool/commands.h"

int main(int argc, char** argv) {
  using namespace argosy::train;
  return RunCommands(argc, argv, "prepare", [](CLI::App& app) {
    AddDatasetCommand(app);
    AddMergeCommand(app);
    AddModelCommand(app);
    AddPlanCommand(app);
    AddTokenizeCommand(app);
    AddTokenizerCommand(app);
    AddTrainCommand(app);
    AddValidateCommand(app);
  });
}
