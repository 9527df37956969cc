#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "train/config/relaxed_json.h"
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

// "argosy finetune has no flag --lerning-rate: did you mean --learning-rate?", for what the parser could not place.
std::string UnknownArguments(const CLI::App& app) {
  std::string command = app.get_name();
  const CLI::App* last = &app;
  for (auto chosen = last->get_subcommands(); !chosen.empty(); chosen = last->get_subcommands()) {
    last = chosen.back();
    command += " " + last->get_name();
  }
  std::string text;
  for (const std::string& argument : app.remaining(true)) {
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string flag = argument.substr(0, argument.find('='));
    NearestName nearest(flag, 2);
    for (const CLI::Option* option : last->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        size_t distance = EditDistance(flag, "--" + name);
        // A name that goes on where the flag ends is what was meant, however much is missing.
        if (flag.size() > 4 && ("--" + name).starts_with(flag)) distance = 1;
        nearest.Consider(distance, "--" + name);
      }
    }
    text += fmt::format("{}{} has no flag {}{}", text.empty() ? "" : "; ", command, flag,
                        nearest.best().empty() ? "" : fmt::format(": did you mean {}?", nearest.best()));
  }
  return text.empty() ? text : fmt::format("{} ({} --help lists the flags)", text, command);
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
    // An unknown flag is what is wrong also where a required one is then missing.
    if (std::string unknown = error.get_exit_code() == 0 ? "" : UnknownArguments(app); !unknown.empty()) {
      std::fprintf(stderr, "error: %s\n", unknown.c_str());
      return 2;
    }
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace argosy::train
