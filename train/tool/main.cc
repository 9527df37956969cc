// argosy-finetune: the verbs of `argosy` that train, generate and prepare models and data. The same executable is the driver and, started
// by node daemons, the workers of a run.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "train/tool/commands.h"

namespace argosy::train {

void MustSucceed(const absl::Status& status) {
  if (!status.ok()) throw CommandFailed(Message(status));
}

namespace {

// The reference recipes write some flags with one dash and several letters, which the parser takes for several flags.
std::vector<std::string> WithLongNames(int argc, char** argv) {
  static const std::pair<const char*, const char*> kAliases[] = {
      {"-mn", "--model-name"}, {"-nd", "--num-devices"}, {"-bs", "--batch-size-per-device"}, {"-ebs", "--eval-batch-size-per-device"},
      {"-ne", "--num-epochs"}, {"-lr", "--learning-rate"}, {"-ga", "--grad-accum"}, {"-dc", "--ds-config"}, {"-hft", "--hf-token"}};
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    for (const auto& [alias, name] : kAliases) {
      if (argument == alias) argument = name;
      else if (argument.rfind(std::string(alias) + "=", 0) == 0) argument = name + argument.substr(std::string(alias).size());
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

int Main(int argc, char** argv) {
  InitLog({.process = "finetune"});
  CLI::App app("Fine-tunes Llama-family models on a cluster, and prepares what that needs.", "argosy");
  app.require_subcommand(1);
  AddFinetuneCommand(app, {.argc = argc, .argv = argv, .is_worker = std::getenv("ARGOSY_WORKER") != nullptr});
  AddGenerateCommand(app);
  AddDatasetCommand(app);
  AddModelCommand(app);
  AddPlanCommand(app);
  AddValidateCommand(app);
  std::vector<std::string> arguments = WithLongNames(argc, argv);
  std::reverse(arguments.begin(), arguments.end());   // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace argosy::train

int main(int argc, char** argv) { return argosy::train::Main(argc, argv); }
