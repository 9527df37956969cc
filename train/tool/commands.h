#pragma once

// The verbs of argosy-finetune. Each adds its sub-command; the callback runs it and throws CommandFailed for a bad end.

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

void AddFinetuneCommand(CLI::App& app, ProcessArguments process);
void AddGenerateCommand(CLI::App& app);
void AddDatasetCommand(CLI::App& app);
void AddModelCommand(CLI::App& app);
void AddPlanCommand(CLI::App& app);
void AddValidateCommand(CLI::App& app);

}  // namespace argosy::train
