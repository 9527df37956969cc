#include "train/model/adapter_layout.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/status.h"
#include "spdlog/fmt/ranges.h"

namespace argosy::train {
namespace {

// What peft puts before a module's name.
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kEmbedding = "model.embed_tokens", kHead = "lm_head";

std::string_view ModuleOf(std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); }
bool IsBias(std::string_view tensor) { return tensor.ends_with(".bias"); }

void AddRange(UnitAdapters& unit, std::string name, std::vector<int64_t> shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  unit.layout.ranges.push_back({.name = std::move(name), .shape = std::move(shape), .offset = unit.layout.elements, .elements = elements});
  unit.layout.elements += (elements + kRangeGrain - 1) / kRangeGrain * kRangeGrain;
}

void AddModule(UnitAdapters& unit, std::string_view module, const TensorRange& base, const LoraConfig& lora, uint32_t number) {
  const bool embedding = module == kEmbedding;
  AdaptedModule adapted{.name = std::string(module), .tensor = base.name, .rank = lora.RankOf(module), .scale = lora.ScaleOf(module),
                        .embedding = embedding, .number = number};
  adapted.a = unit.layout.ranges.size();
  adapted.b = adapted.a + 1;
  if (embedding) {
    AddRange(unit, fmt::format("{}{}.lora_embedding_A", kPrefix, module), {adapted.rank, base.shape[0]});
    AddRange(unit, fmt::format("{}{}.lora_embedding_B", kPrefix, module), {base.shape[1], adapted.rank});
  } else {
    AddRange(unit, fmt::format("{}{}.lora_A.weight", kPrefix, module), {adapted.rank, base.shape[1]});
    AddRange(unit, fmt::format("{}{}.lora_B.weight", kPrefix, module), {base.shape[0], adapted.rank});
  }
  unit.modules.push_back(std::move(adapted));
}

// Every name of the list must be of some module.
absl::Status CheckNames(std::string_view key, const std::vector<std::string>& names, const std::set<std::string>& modules, bool at_dots) {
  for (const std::string& name : names) {
    bool found = std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
      return module == name || module.ends_with(at_dots ? "." + name : name);
    });
    if (found) continue;
    std::set<std::string> ends;
    for (const std::string& module : modules) ends.insert(module.substr(module.rfind('.') == std::string::npos ? 0 : module.rfind('.') + 1));
    return InvalidArgument("\"{}\" has \"{}\": the model has no such module; there are {}", key, name, fmt::join(ends, ", "));
  }
  return absl::OkStatus();
}

class NewSource final : public WeightSource {
 public:
  NewSource(const AdapterLayout& layout, LoraInit init, const WeightSource& base, uint64_t seed) : base_(base), seed_(seed) {
    for (const UnitAdapters& unit : layout.units) {
      for (const AdaptedModule& module : unit.modules) {
        const TensorRange &a = unit.layout.ranges[module.a], &b = unit.layout.ranges[module.b];
        const double deviation = 1.0 / static_cast<double>(module.rank), bound = 1.0 / std::sqrt(static_cast<double>(a.shape[1]));
        if (module.embedding) fills_[b.name] = {.normal = 1.0};
        else if (init == LoraInit::kGaussian) fills_[a.name] = {.normal = deviation};
        else fills_[a.name] = {.uniform = bound};   // kaiming_uniform with a = sqrt(5)
      }
      for (const WholeTensor& whole : unit.whole) copies_[unit.layout.ranges[whole.range].name] = whole.tensor;
    }
  }

  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    if (auto copy = copies_.find(tensor.name); copy != copies_.end()) {
      TensorRange of_base = tensor;
      of_base.name = copy->second;
      return base_.Read(of_base, begin, out);
    }
    auto fill = fills_.find(tensor.name);
    if (fill == fills_.end()) {
      std::fill(out.begin(), out.end(), 0.0f);
      return absl::OkStatus();
    }
    if (fill->second.normal > 0) FillNormal(seed_, tensor.name, begin, fill->second.normal, out);
    else FillUniform(seed_, tensor.name, begin, fill->second.uniform, out);
    return absl::OkStatus();
  }

 private:
  struct Fill { double normal = 0, uniform = 0; };
  const WeightSource& base_;
  uint64_t seed_;
  std::map<std::string, Fill> fills_;
  std::map<std::string, std::string> copies_;
};

// The base with some of its tensors out of the adapter's file.
class OverlaidSource final : public WeightSource {
 public:
  OverlaidSource(const WeightSource& base, const HfWeights& files, std::map<std::string, std::string> names)
      : base_(base), files_(files), names_(std::move(names)) {}
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    auto it = names_.find(tensor.name);
    return it == names_.end() ? base_.Read(tensor, begin, out) : files_.ReadRange(it->second, begin, out);
  }

 private:
  const WeightSource& base_;
  const HfWeights& files_;
  std::map<std::string, std::string> names_;   // of the base -> of the file
};

// Names that the file may have for a module's own weight.
std::vector<std::string> StoredNames(std::string_view module) {
  return {fmt::format("{}{}.weight", kPrefix, module), fmt::format("{}{}.base_layer.weight", kPrefix, module)};
}

// `known`: tensors of the file beside the adapter's own.
absl::Status CheckAgainstFiles(const StoredAdapter& adapter, std::set<std::string> known) {
  std::vector<std::string> missing;
  for (const TensorSpec& spec : adapter.layout.Tensors(DType::kF32)) {
    known.insert(spec.name);
    if (!adapter.files->Has(spec.name)) {
      missing.push_back(spec.name);
      continue;
    }
    ARGOSY_ASSIGN_OR_RETURN(HfWeights::Location place, adapter.files->Find(spec.name));
    if (place.tensor->shape != spec.shape) {
      return InvalidArgument("{}: tensor \"{}\" is [{}], and the base with the ranks of {} makes it [{}]: it is the adapter of another base, or its "
                             "config was changed", place.file->Path(), spec.name, fmt::join(place.tensor->shape, ", "), kAdapterConfigName,
                             fmt::join(spec.shape, ", "));
    }
  }
  if (!missing.empty()) {
    return InvalidArgument("{} lacks {} of the adapter's {} tensors, the first is \"{}\": it is the adapter of another base, or cut short",
                           adapter.files->Directory(), missing.size(), adapter.layout.Tensors(DType::kF32).size(), missing.front());
  }
  std::vector<std::string> surplus;
  for (const SafetensorsFile& file : adapter.files->Files()) {
    for (const StoredTensor& tensor : file.Tensors()) {
      if (!known.contains(tensor.name)) surplus.push_back(tensor.name);
    }
  }
  if (!surplus.empty()) {
    return InvalidArgument("{} has {} tensors that {} and the base have no place for, the first is \"{}\": it is the adapter of another base, or its "
                           "config was changed", adapter.files->Directory(), surplus.size(), kAdapterConfigName, surplus.front());
  }
  return absl::OkStatus();
}

}  // namespace

const WholeTensor* UnitAdapters::FindWhole(std::string_view tensor) const {
  for (const WholeTensor& one : whole) {
    if (one.tensor == tensor) return &one;
  }
  return nullptr;
}

int64_t AdapterLayout::ParameterCount() const {
  int64_t count = 0;
  for (const TensorRange& range : Ranges()) count += range.elements;
  return count;
}

int64_t AdapterLayout::ModuleCount() const {
  size_t count = 0;
  for (const UnitAdapters& unit : units) count += unit.modules.size();
  return static_cast<int64_t>(count);
}

std::vector<TensorRange> AdapterLayout::Ranges() const {
  std::vector<TensorRange> ranges;
  for (const UnitAdapters& unit : units) ranges.insert(ranges.end(), unit.layout.ranges.begin(), unit.layout.ranges.end());
  return ranges;
}

std::vector<TensorSpec> AdapterLayout::Tensors(DType as) const {
  std::vector<TensorSpec> specs;
  for (TensorRange& range : Ranges()) specs.push_back({.name = std::move(range.name), .shape = std::move(range.shape), .dtype = as});
  return specs;
}

absl::StatusOr<AdapterLayout> MakeAdapterLayout(const ModelConfig& config, const LoraConfig& lora) {
  const ModelLayout model = MakeLayout(config);
  AdapterLayout layout{.dropout = lora.dropout};
  std::set<std::string> modules;
  uint32_t number = 0;
  for (size_t u = 0; u < model.units.size(); ++u) {
    UnitAdapters unit{.layout = {.name = model.units[u].name}};
    std::vector<std::pair<std::string, const TensorRange*>> matrices;
    for (const TensorRange& range : model.units[u].ranges) {
      const std::string module(ModuleOf(range.name));
      modules.insert(module);
      if (range.is_matrix()) matrices.emplace_back(module, &range);
    }
    if (model.tied && u + 1 == model.units.size()) {
      matrices.emplace_back(kHead, model.units.front().Find("embed_tokens.weight"));
      modules.insert(std::string(kHead));
    }
    std::set<std::string> adapted;
    for (const auto& [module, range] : matrices) {
      const bool linear = module != kEmbedding && module != kHead;
      if (!lora.Targets(module, linear)) continue;
      adapted.insert(module);
      AddModule(unit, module, *range, lora, number++);
    }
    for (const TensorRange& range : model.units[u].ranges) {
      const std::string module(ModuleOf(range.name));
      std::string stored;
      if (lora.Saves(module)) {
        stored = fmt::format("{}{}", kPrefix, range.name);
      } else if (IsBias(range.name) && (lora.bias == LoraBias::kAll || (lora.bias == LoraBias::kLoraOnly && adapted.contains(module)))) {
        stored = fmt::format("{}{}{}.bias", kPrefix, module, adapted.contains(module) ? ".base_layer" : "");
      }
      if (stored.empty()) continue;
      unit.whole.push_back({.tensor = range.name, .range = unit.layout.ranges.size()});
      AddRange(unit, stored, range.shape);
    }
    layout.units.push_back(std::move(unit));
  }
  ARGOSY_RETURN_IF_ERROR(CheckNames("target_modules", lora.target_modules, modules, /*at_dots=*/true));
  ARGOSY_RETURN_IF_ERROR(CheckNames("modules_to_save", lora.modules_to_save, modules, /*at_dots=*/false));
  for (std::string_view module : {kEmbedding, kHead}) {
    if (model.tied && lora.Saves(module)) {
      return InvalidArgument("\"modules_to_save\" has {}: this model's embedding and head are one matrix (\"tie_word_embeddings\"), which training one "
                             "end alone would take apart; give it an adapter (\"target_modules\") instead", module);
    }
  }
  if (layout.ParameterCount() == 0) {
    return InvalidArgument("\"target_modules\" {} leaves nothing to train: modules are named like {}",
                           lora.target_pattern.empty() ? fmt::format("[{}]", fmt::join(lora.target_modules, ", ")) : "\"" + lora.target_pattern + "\"",
                           ModuleOf(model.units[1].ranges.back().name));
  }
  return layout;
}

std::unique_ptr<WeightSource> NewAdapter(const AdapterLayout& layout, const LoraConfig& lora, const WeightSource& base, uint64_t seed) {
  return std::make_unique<NewSource>(layout, lora.init, base, seed);
}

absl::StatusOr<std::string> BaseOfAdapter(const std::string& directory, const std::string& given) {
  ARGOSY_ASSIGN_OR_RETURN(LoraConfig lora, LoraConfig::Load(directory));
  std::error_code error;
  const std::string base = given.empty() ? lora.base_model : given;
  if (std::filesystem::is_directory(base, error)) return base;
  if (!given.empty()) return NotFound("--model {}: there is no such folder", given);
  return NotFound("{}: \"base_model_name_or_path\" is \"{}\", which is no folder here: give the adapter's base by --model",
                  (std::filesystem::path(directory) / kAdapterConfigName).string(), base);
}

absl::StatusOr<StoredAdapter> OpenAdapter(const std::string& directory, const ModelConfig& base_config, const WeightSource& base) {
  StoredAdapter adapter;
  ARGOSY_ASSIGN_OR_RETURN(adapter.lora, LoraConfig::Load(directory));
  ARGOSY_ASSIGN_OR_RETURN(HfWeights files, HfWeights::Open(directory, "adapter_model"));
  adapter.files = std::make_unique<HfWeights>(std::move(files));
  // Embeddings that the file brings: trained whole, or the base's with rows for the tokens that were added.
  std::map<std::string, std::string> embeddings;
  std::set<std::string> brought;
  int64_t vocabulary = base_config.vocab_size;
  for (std::string_view module : {kEmbedding, kHead}) {
    for (const std::string& name : StoredNames(module)) {
      if (!adapter.files->Has(name)) continue;
      ARGOSY_ASSIGN_OR_RETURN(HfWeights::Location place, adapter.files->Find(name));
      if (place.tensor->shape.size() != 2 || place.tensor->shape[1] != base_config.hidden_size) {
        return InvalidArgument("{}: tensor \"{}\" is [{}], and the base is {} wide: it is the adapter of another base", place.file->Path(), name,
                               fmt::join(place.tensor->shape, ", "), base_config.hidden_size);
      }
      const int64_t rows = place.tensor->shape[0];
      if (!brought.empty() && rows != vocabulary) {
        return InvalidArgument("{}: tensor \"{}\" has {} rows, the adapter's embedding has {}: both have one for each token", place.file->Path(), name,
                               rows, vocabulary);
      }
      vocabulary = rows;
      brought.insert(name);
      // peft writes a tied matrix under both names.
      if (module == kEmbedding || !base_config.tie_word_embeddings) embeddings[fmt::format("{}.weight", module)] = name;
    }
  }
  adapter.config = base_config;
  if (vocabulary != base_config.vocab_size) {
    if (!base_config.tie_word_embeddings && embeddings.size() == 1) {
      return InvalidArgument("{} has a vocabulary of {} in \"{}\", the base has {} in the other matrix: the adapter must bring both embedding and head",
                             directory, vocabulary, embeddings.begin()->second, base_config.vocab_size);
    }
    ARGOSY_ASSIGN_OR_RETURN(adapter.config, ModelConfig::Parse(base_config.ToJson({.vocab_size = vocabulary})));
  }
  absl::StatusOr<AdapterLayout> layout = MakeAdapterLayout(adapter.config, adapter.lora);
  if (!layout.ok()) return Annotate(layout.status(), (std::filesystem::path(directory) / kAdapterConfigName).string());
  adapter.layout = *std::move(layout);
  ARGOSY_RETURN_IF_ERROR(CheckAgainstFiles(adapter, std::move(brought)));
  adapter.values = WeightsFromHf(*adapter.files);
  adapter.base = std::make_unique<OverlaidSource>(base, *adapter.files, std::move(embeddings));
  return adapter;
}

}  // namespace argosy::train
