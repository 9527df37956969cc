#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

// The reference recipes write some flags with one dash and several letters, which the parser takes for several flags, and others with
// underscores between the words.
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
    if (argument.rfind("--", 0) == 0) {
      auto end_of_name = std::find(argument.begin(), argument.end(), '=');
      std::replace(argument.begin(), end_of_name, '_', '-');
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

}  // namespace

void MustSucceed(const absl::Status& status) {
  if (!status.ok()) throw CommandFailed(Message(status));
}

int RunCommands(int argc, char** argv, std::string process_name, const std::function<void(CLI::App&)>& add_commands) {
  InitLog({.process = std::move(process_name)});
  CLI::App app("Fine-tunes Llama-family models on a cluster, and prepares what that needs.", "argosy");
  app.require_subcommand(1);
  add_commands(app);
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

}  // namespace argosy::train
