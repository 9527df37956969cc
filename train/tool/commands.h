#pragma once

// The verbs of argosy-finetune and argosy-prepare. Each adds its sub-command; the callback runs it and throws CommandFailed for a bad end.

#include <functional>
#include <stdexcept>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace argosy::train {

struct CommandFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Throws the status' message.
void MustSucceed(const absl::Status& status);

// The process's arguments, for commands that join a cluster.
struct ProcessArguments {
  int argc = 0;
  char** argv = nullptr;
  bool is_worker = false;   // started by a node daemon to serve a run
};

// A process's main: parses the arguments, runs the command, and prints why it failed. The exit code: 0, 1, or 2 for wrong arguments.
int RunCommands(int argc, char** argv, std::string process_name, const std::function<void(CLI::App&)>& add_commands);

void AddFinetuneCommand(CLI::App& app, ProcessArguments process);
void AddGenerateCommand(CLI::App& app);
void AddDatasetCommand(CLI::App& app);
void AddMergeCommand(CLI::App& app);
void AddModelCommand(CLI::App& app);
void AddPlanCommand(CLI::App& app);
void AddTokenizeCommand(CLI::App& app);
void AddTokenizerCommand(CLI::App& app);
void AddTrainCommand(CLI::App& app);
void AddValidateCommand(CLI::App& app);

}  // namespace argosy::train
