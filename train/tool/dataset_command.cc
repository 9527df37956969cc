#include <cstdio>
#include <memory>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/data/arithmetic.h"
#include "train/data/dataset.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

struct DatasetFlags {
  std::string kind, dataset_path;
  int prompt_type = 1;
  CreateDatasetOptions dataset;
  ArithmeticOptions arithmetic;
};

absl::Status Create(DatasetFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(flags.dataset.prompt_type, ParsePromptType(flags.prompt_type));
  std::vector<QaRow> rows;
  if (!flags.kind.empty()) {
    if (flags.kind != "arithmetic") return InvalidArgument("--kind {}: only \"arithmetic\" can be generated", flags.kind);
    if (!flags.dataset_path.empty()) return InvalidArgument("give either --kind or --dataset-path");
    flags.arithmetic.seed = flags.dataset.seed;
    ARGOSY_ASSIGN_OR_RETURN(rows, MakeSums(flags.arithmetic));
    ARGOSY_RETURN_IF_ERROR(MakeDirectories(flags.dataset.output_dir));
    std::string path = flags.dataset.output_dir + "/dataset.json";
    ARGOSY_RETURN_IF_ERROR(WriteQaRows(path, rows));
    std::printf("dataset: %s (%zu rows)\n", path.c_str(), rows.size());
  } else {
    if (flags.dataset_path.empty()) return InvalidArgument("give --dataset-path FILE, or --kind arithmetic");
    ARGOSY_ASSIGN_OR_RETURN(rows, ReadQaRows(flags.dataset_path));
  }
  ARGOSY_ASSIGN_OR_RETURN(CreatedDataset created, CreateDataset(rows, flags.dataset));
  std::printf("train:   %s (%lld rows)\ntest:    %s (%lld rows)\n", created.train_path.c_str(),
              static_cast<long long>(created.train_rows), created.test_path.c_str(), static_cast<long long>(created.test_rows));
  if (!created.tokens_path.empty()) std::printf("tokens:  %s\n", created.tokens_path.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddDatasetCommand(CLI::App& app) {
  CLI::App* dataset = app.add_subcommand("dataset", "Prepare training data");
  dataset->require_subcommand(1);
  auto flags = std::make_shared<DatasetFlags>();
  CLI::App* create = dataset->add_subcommand("create", "Make train.jsonl, test.jsonl and tokens.json from question-answer rows");
  create->option_defaults()->ignore_underscore();
  create->add_option("--kind", flags->kind, "Generate the rows instead of reading them: arithmetic");
  create->add_option("--dataset-path", flags->dataset_path, "JSON or JSON lines with question, context, answer");
  create->add_option("--prompt-type", flags->prompt_type, "1: instruction text, 2: question and answer marks, 3: a context mark too")
      ->capture_default_str();
  create->add_option("--test-split", flags->dataset.test_split, "Share of the rows held out")->capture_default_str();
  create->add_option("--output-dir", flags->dataset.output_dir, "")->capture_default_str();
  create->add_option("--seed", flags->dataset.seed, "")->capture_default_str();
  create->add_option("--rows", flags->arithmetic.rows, "Rows to generate")->capture_default_str();
  create->add_option("--operand-bound", flags->arithmetic.operand_bound, "Operands are below it")->capture_default_str();
  create->callback([flags] { MustSucceed(Create(*flags)); });
}

}  // namespace argosy::train
