#include <cstdio>
#include <memory>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/report/run_report.h"
#include "train/tool/commands.h"

namespace argosy::train {

void AddTrainCommand(CLI::App& app) {
  struct Flags { std::string run, to; };
  auto flags = std::make_shared<Flags>();
  CLI::App* train = app.add_subcommand("train", "Look at training runs");
  train->require_subcommand(1);
  CLI::App* report = train->add_subcommand("report", "Print what a run did, base against fine-tuned, and plot it as SVG");
  report->option_defaults()->ignore_underscore();
  report->add_option("run", flags->run, "The run's --output-dir")->required();
  report->add_option("--output-dir", flags->to, "Folder for the plots; RUN/report when not given");
  report->callback([flags] {
    std::string to = flags->to.empty() ? flags->run + "/report" : flags->to;
    absl::StatusOr<std::string> metrics = ReadFile(flags->run + "/metrics.jsonl");
    if (!metrics.ok()) throw CommandFailed(fmt::format("{} is no output folder of a run: {}", flags->run, Message(metrics.status())));
    absl::StatusOr<RunReport> made = ReportRun(*metrics);
    if (!made.ok()) throw CommandFailed(fmt::format("{}: {}", flags->run, Message(made.status())));
    std::fputs(made->text.c_str(), stdout);
    MustSucceed(MakeDirectories(to));
    for (const auto& [name, svg] : made->plots) {
      MustSucceed(WriteFileAtomic(to + "/" + name, svg));
      fmt::print("plot:  {}/{}\n", to, name);
    }
  });
}

}  // namespace argosy::train
