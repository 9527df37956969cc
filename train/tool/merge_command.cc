#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/model/merged_weights.h"
#include "train/tool/commands.h"

namespace argosy::train {
namespace {

constexpr int64_t kElements = 1 << 20;   // in memory at a time

struct MergeFlags {
  std::string adapter, model, output_dir, save_dtype;
  int64_t shard_size = kShardBytesDefault;
  bool untie = false;
};

absl::Status Merge(const MergeFlags& flags) {
  ARGOSY_ASSIGN_OR_RETURN(std::string base, BaseOfAdapter(flags.adapter, flags.model));
  ARGOSY_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(base));
  ARGOSY_ASSIGN_OR_RETURN(HfWeights files, HfWeights::Open(base));
  ARGOSY_RETURN_IF_ERROR(files.CheckModel(config));
  std::unique_ptr<WeightSource> weights = WeightsFromHf(files);
  ARGOSY_ASSIGN_OR_RETURN(StoredAdapter adapter, OpenAdapter(flags.adapter, config, *weights));
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<MergedWeights> merged, MergedWeights::Make(adapter, flags.untie));

  DType dtype = files.MainDType() == DType::kF32 ? DType::kF32 : DType::kBF16;
  if (flags.save_dtype == "fp32") dtype = DType::kF32;
  else if (flags.save_dtype == "bf16") dtype = DType::kBF16;
  else if (!flags.save_dtype.empty()) return InvalidArgument("--save-dtype {}: \"fp32\" or \"bf16\"", flags.save_dtype);
  CheckpointWriterOptions options{.directory = flags.output_dir};
  ARGOSY_ASSIGN_OR_RETURN(options.layout, PlanCheckpoint(merged->config().Tensors(dtype), {.shard_bytes_max = flags.shard_size}));
  ARGOSY_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointWriter> writer, CheckpointWriter::Create(std::move(options)));

  ModelFiles model{.config = &merged->config(), .changes = {.dtype = dtype}, .source_directory = base};
  // The adapter's tokenizer knows the tokens that were added for it.
  for (const char* name : TokenizerFileNames()) {
    const std::string path = (std::filesystem::path(flags.adapter) / name).string();
    if (std::error_code error; !std::filesystem::exists(path, error)) continue;
    ARGOSY_ASSIGN_OR_RETURN(model.contents[name], ReadFile(path));
  }
  ARGOSY_RETURN_IF_ERROR(AddModelFiles(*writer, model));

  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const PlannedFile& file : writer->Layout().files) {
    for (const PlacedTensor& tensor : file.tensors) {
      const TensorRange range{.name = tensor.spec.name, .shape = tensor.spec.shape, .elements = tensor.spec.Elements()};
      for (int64_t begin = 0; begin < range.elements; begin += kElements) {
        values.resize(static_cast<size_t>(std::min(kElements, range.elements - begin)));
        ARGOSY_RETURN_IF_ERROR(merged->Read(range, begin, values));
        ConvertWeights(std::as_bytes(std::span(values)), DType::kF32, bytes, dtype);   // rounded once
        ARGOSY_RETURN_IF_ERROR(writer->Write(range.name, begin * SizeOf(dtype), bytes));
      }
    }
  }
  ARGOSY_RETURN_IF_ERROR(writer->Commit());
  fmt::print("base:    {}\nadapter: {} ({}; {} modules)\nmerged:  {} ({} parameters in {}, {} file{}; the largest change of a weight is {:.3g})\n", base,
             flags.adapter, adapter.lora.ToText(), adapter.layout.ModuleCount(), flags.output_dir, writer->Layout().parameters, TorchName(dtype),
             writer->Layout().files.size(), writer->Layout().files.size() == 1 ? "" : "s", merged->change_max());
  return absl::OkStatus();
}

}  // namespace

void AddMergeCommand(CLI::App& app) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* merge = app.add_subcommand("merge-lora", "Add an adapter to its base: a model that needs no adapter");
  merge->option_defaults()->ignore_underscore();
  merge->add_option("--adapter,--checkpoint", flags->adapter, "Folder of the adapter: adapter_config.json and adapter_model.safetensors")->required();
  merge->add_option("--model,--model-name", flags->model, "Folder of its base; what adapter_config.json names when not given (-mn)");
  merge->add_option("--output-dir,--output-path", flags->output_dir, "Folder that gets the model")->required();
  merge->add_option("--save-dtype", flags->save_dtype, "fp32 or bf16; as the base is stored when not given");
  merge->add_option("--shard-size", flags->shard_size, "Bytes of one weights file")->capture_default_str();
  merge->add_flag("--untie", flags->untie, "Where the base's embedding and head are one matrix: write them as two");
  merge->callback([flags] { MustSucceed(Merge(*flags)); });
}

}  // namespace argosy::train
