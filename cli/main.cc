// The command line: one file per command. The verbs of fine-tuning are other executables'.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "cli/command.h"
#include "cli/daemon.h"
#include "runtime/base/limits.h"

namespace argosy::cli {
namespace {

struct TrainingVerb {
  std::string_view verb;
  const char* executable;   // argosy-finetune links libtorch; what argosy-prepare does needs none and starts at once
};
constexpr TrainingVerb kTrainingVerbs[] = {
    {"finetune", "argosy-finetune"}, {"generate", "argosy-finetune"}, {"dataset", "argosy-prepare"},
    {"model", "argosy-prepare"},     {"merge-lora", "argosy-prepare"}, {"plan", "argosy-prepare"},      {"tokenize", "argosy-prepare"},
    {"train", "argosy-prepare"},     {"tokenizer", "argosy-prepare"}, {"validate-config", "argosy-prepare"},
};

// Runs another executable of this folder in this process's place; does not return when it works.
int ExecBeside(const char* program, const char* verb, const char* how_to_build, char** argv) {
  std::string path = (std::filesystem::path(OwnExecutable()).parent_path() / program).string();
  ::execv(path.c_str(), argv);
  std::fprintf(stderr, "argosy: %s is done by %s, which cannot be run: %s; %s\n", verb, path.c_str(), std::strerror(errno), how_to_build);
  return 1;
}

int Main(int argc, char** argv) {
  for (const TrainingVerb& training : kTrainingVerbs) {
    if (argc > 1 && argv[1] == training.verb) return ExecBeside(training.executable, argv[1], "build it with -DARGOSY_TRAIN=ON", argv);
  }
  if (argc > 1 && std::string_view(argv[1]) == "bench") return ExecBeside("argosy-bench", argv[1], "build the target argosy-bench", argv + 1);
  constexpr std::array<std::string_view, 14> kVerbs = {"start", "stop", "status", "drain", "list", "get", "summary", "logs", "timeline", "memory",
                                                       "stack", "job", "head", "node"};
  if (argc > 1 && argv[1][0] != '-' && std::find(kVerbs.begin(), kVerbs.end(), argv[1]) == kVerbs.end()) {
    std::fprintf(stderr, "argosy: there is no command %s; argosy --help lists them\n", argv[1]);
    return 2;
  }
  CLI::App app("Argosy: a distributed task and actor runtime, with fine-tuning on top");
  app.name("argosy");
  app.set_version_flag("--version", std::string("argosy ") + kVersion);
  app.require_subcommand(1);
  app.footer("Fine-tuning: finetune generate merge-lora dataset model plan tokenize tokenizer train validate-config (argosy VERB --help)\nMeasuring: bench");
  RegisterStart(app);
  RegisterStop(app);
  RegisterStatus(app);
  RegisterDrain(app);
  RegisterList(app);
  RegisterGet(app);
  RegisterSummary(app);
  RegisterLogs(app);
  RegisterTimeline(app);
  RegisterMemory(app);
  RegisterStack(app);
  RegisterJob(app);
  RegisterHead(app);
  RegisterNode(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();   // the command has said why
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "argosy: %s\nRun with --help for more information.\n", e.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace argosy::cli

int main(int argc, char** argv) {
  // Distributions build Abseil with its search for deadlocks on, which gRPC then pays for at each of its locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return argosy::cli::Main(argc, argv);
}
