#include <cstdio>
#include <memory>

#include "runtime/base/status.h"
#include "train/config/deepspeed_config.h"
#include "train/config/model_config.h"
#include "train/tool/commands.h"

namespace argosy::train {

void AddValidateCommand(CLI::App& app) {
  struct Flags {
    std::string ds_config, model;
    int64_t world_size = 1;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* validate = app.add_subcommand("validate-config", "Print what a DeepSpeed JSON means here, and what is wrong with it");
  validate->option_defaults()->ignore_underscore();
  validate->add_option("--ds-config,ds-config", flags->ds_config, "DeepSpeed JSON: a file, or its text in base64")->required();
  validate->add_option("--num-devices", flags->world_size, "Ranks of the run")->capture_default_str();
  validate->add_option("--model-name", flags->model, "Folder of the model: resolves sizes that are \"auto\"");
  validate->callback([flags] {
    if (flags->world_size < 1) throw CommandFailed(fmt::format("--num-devices {}: at least 1", flags->world_size));
    absl::StatusOr<std::string> json = ReadDeepSpeedText(flags->ds_config);
    MustSucceed(json.status());
    SettingsContext context{.world_size = flags->world_size};
    if (!flags->model.empty()) {
      absl::StatusOr<ModelConfig> config = ModelConfig::Load(flags->model);
      MustSucceed(config.status());
      context.hidden_size = config->hidden_size;
    }
    SettingsReport report = ValidateDeepSpeedConfig(*json, context);
    std::fputs(report.ToText().c_str(), stdout);
    if (!report.ok()) throw CommandFailed(fmt::format("{} has {} error{}", flags->ds_config, report.errors.size(), report.errors.size() == 1 ? "" : "s"));
  });
}

}  // namespace argosy::train
