#include "train/config/lora_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <regex>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/fmt/ranges.h"
#include "train/config/json.h"
#include "train/config/relaxed_json.h"

namespace argosy::train {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kAllLinear = "all-linear";
constexpr int64_t kRankMax = 1 << 16;

// Keys that this reader knows, and keys that say nothing about the numbers.
constexpr std::string_view kRead[] = {"peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "exclude_modules",
                                      "modules_to_save", "bias", "init_lora_weights", "rank_pattern", "alpha_pattern", "layers_to_transform",
                                      "layers_pattern", "base_model_name_or_path", "fan_in_fan_out"};
constexpr std::string_view kWithoutEffect[] = {"peft_version", "inference_mode", "revision", "auto_mapping", "megatron_core", "qalora_group_size",
                                               "runtime_config"};

struct Refusal { std::string_view key, what; };
constexpr Refusal kRefused[] = {
    {"use_dora", "DoRA"}, {"use_qalora", "QALoRA"}, {"lora_bias", "a bias in the adapters"}, {"layer_replication", "replicated layers"},
    {"trainable_token_indices", "single trainable tokens"}, {"target_parameters", "adapters of parameters that are no modules"},
    {"alora_invocation_tokens", "activated LoRA"}, {"ensure_weight_tying", "one adapter for both ends of a tied matrix"},
    {"use_bdlora", "block-diagonal LoRA"}, {"arrow_config", "Arrow"}, {"eva_config", "EVA"}, {"corda_config", "CorDA"}, {"lora_ga_config", "LoRA-GA"},
    {"loftq_config", "LoftQ"}, {"megatron_config", "Megatron layers"}, {"kasa_config", "KaSA"}, {"velora_config", "VeLoRA"},
    {"monteclora_config", "MonteCLoRA"}};

bool SaysNothing(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

// A regular expression that matches whole strings.
absl::StatusOr<std::regex> Compile(std::string_view key, const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    return InvalidArgument("\"{}\" has \"{}\", which is no regular expression: {}", key, pattern, error.what());
  }
}
bool Matches(std::string_view text, const std::string& pattern) {
  return std::regex_match(text.begin(), text.end(), std::regex(pattern));   // Parse has tried it
}

bool IsOrEndsWith(std::string_view module, std::string_view name) {
  return module == name || (module.ends_with(name) && module.size() > name.size() && module[module.size() - name.size() - 1] == '.');
}

// A string, or a list of strings.
absl::Status ReadNames(const json& object, std::string_view key, std::vector<std::string>& names, std::string* pattern) {
  const json* value = FindValue(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_string() && pattern != nullptr) {
    *pattern = value->get<std::string>();
    return *pattern == kAllLinear ? absl::OkStatus() : Compile(key, *pattern).status();
  }
  if (!value->is_array()) {
    return InvalidArgument("\"{}\" is {}: it must be a list of module names{}", key, Shown(*value), pattern == nullptr ? "" : ", or a regular expression");
  }
  for (const json& name : *value) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      return InvalidArgument("\"{}\" has {}: a list of module names, like \"q_proj\"", key, Shown(name));
    }
    names.push_back(name.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status CheckRank(std::string_view key, const json& value, int64_t& rank) {
  std::optional<int64_t> number = AsInteger(value);
  if (!number || *number < 1 || *number > kRankMax) {
    return InvalidArgument("\"{}\" is {}: a rank is a whole number of at least 1 and at most {}", key, Shown(value), kRankMax);
  }
  rank = *number;
  return absl::OkStatus();
}

absl::Status CheckAlpha(std::string_view key, const json& value, double& alpha) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
    return InvalidArgument("\"{}\" is {}: it must be a number above 0", key, Shown(value));
  }
  alpha = value.get<double>();
  return absl::OkStatus();
}

// In the file's order, which decides between patterns that match the same module.
template <class T, class Check>
absl::Status ReadPattern(const ordered_json& object, std::string_view key, std::vector<std::pair<std::string, T>>& out, Check check) {
  auto value = object.find(std::string(key));
  if (value == object.end() || value->is_null()) return absl::OkStatus();
  if (!value->is_object()) return InvalidArgument("\"{}\" is {}: it must be an object of patterns and values", key, Shown(json(*value)));
  for (const auto& [pattern, entry] : value->items()) {
    ARGOSY_RETURN_IF_ERROR(Compile(key, pattern).status());
    T parsed{};
    ARGOSY_RETURN_IF_ERROR(check(fmt::format("{}.{}", key, pattern), json(entry), parsed));
    out.emplace_back(pattern, parsed);
  }
  return absl::OkStatus();
}

template <class T>
const T* FirstMatch(const std::vector<std::pair<std::string, T>>& patterns, std::string_view module) {
  for (const auto& [pattern, value] : patterns) {
    if (Matches(module, fmt::format("(.*\\.)?({})", pattern))) return &value;
  }
  return nullptr;
}

absl::Status CheckKeys(const json& file) {
  for (const auto& [key, value] : file.items()) {
    if (SaysNothing(value)) continue;
    for (const Refusal& refused : kRefused) {
      if (key == refused.key) return InvalidArgument("\"{}\" is {}: {} is not done here; leave it out for plain LoRA", key, Shown(value), refused.what);
    }
    auto is_key = [&key = key](std::string_view known) { return key == known; };
    if (std::any_of(std::begin(kRead), std::end(kRead), is_key) || std::any_of(std::begin(kWithoutEffect), std::end(kWithoutEffect), is_key)) continue;
    NearestName nearest(key);
    for (std::string_view known : kRead) nearest.Consider(EditDistance(key, known), known);
    return InvalidArgument("\"{}\" is {}: this key of a LoRA config is not known here{}", key, Shown(value),
                           nearest.best().empty() ? "; leave it out" : fmt::format("; did you mean \"{}\"?", nearest.best()));
  }
  return absl::OkStatus();
}

absl::Status ReadChoices(const json& file, LoraConfig& config) {
  if (const json* type = FindValue(file, "peft_type"); type != nullptr && *type != "LORA") {
    return InvalidArgument("\"peft_type\" is {}: adapters here are of the kind \"LORA\"", Shown(*type));
  }
  if (const json* task = FindValue(file, "task_type"); task != nullptr && *task != "CAUSAL_LM") {
    return InvalidArgument("\"task_type\" is {}: models here are of the kind \"CAUSAL_LM\"", Shown(*task));
  }
  bool transposed = false;
  ARGOSY_RETURN_IF_ERROR(ReadBool(file, "fan_in_fan_out", transposed));
  if (transposed) return InvalidArgument("\"fan_in_fan_out\" is true: weights of these models are [out, in], so it is false");
  std::string bias = "none";
  ARGOSY_RETURN_IF_ERROR(ReadString(file, "bias", bias));
  if (bias == "all") config.bias = LoraBias::kAll;
  else if (bias == "lora_only") config.bias = LoraBias::kLoraOnly;
  else if (bias != "none") return InvalidArgument("\"bias\" is \"{}\": \"none\", \"all\" or \"lora_only\"", bias);
  if (const json* init = FindValue(file, "init_lora_weights"); init != nullptr) {
    if (*init == "gaussian") config.init = LoraInit::kGaussian;
    else if (*init == false) config.init = LoraInit::kNone;
    else if (*init != true) {
      return InvalidArgument("\"init_lora_weights\" is {}: true, false and \"gaussian\" are done here, other beginnings (which change the base too) "
                             "are not", Shown(*init));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLayers(const json& file, LoraConfig& config) {
  if (const json* layers = FindValue(file, "layers_to_transform"); layers != nullptr) {
    for (const json& layer : layers->is_array() ? *layers : json::array({*layers})) {
      std::optional<int64_t> number = AsInteger(layer);
      if (!number || *number < 0) return InvalidArgument("\"layers_to_transform\" has {}: numbers of layers, from 0", Shown(layer));
      config.layers_to_transform.push_back(*number);
    }
  }
  if (const json* pattern = FindValue(file, "layers_pattern"); pattern != nullptr && pattern->is_string()) {
    if (!pattern->get_ref<const std::string&>().empty()) config.layers_pattern.push_back(pattern->get<std::string>());
  } else {
    ARGOSY_RETURN_IF_ERROR(ReadNames(file, "layers_pattern", config.layers_pattern, nullptr));
  }
  for (const std::string& pattern : config.layers_pattern) ARGOSY_RETURN_IF_ERROR(Compile("layers_pattern", pattern).status());
  return absl::OkStatus();
}

}  // namespace

LoraConfig LoraConfig::Default() { return {.rank = 8, .alpha = 16, .target_pattern = std::string(kAllLinear)}; }

absl::StatusOr<LoraConfig> LoraConfig::Parse(std::string_view text) {
  json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return InvalidArgument("it is not a JSON object: peft's adapter_config.json has \"r\", \"lora_alpha\", \"target_modules\", ...");
  ARGOSY_RETURN_IF_ERROR(CheckKeys(file));
  LoraConfig config;
  ARGOSY_RETURN_IF_ERROR(ReadChoices(file, config));
  if (const json* rank = FindValue(file, "r"); rank != nullptr) ARGOSY_RETURN_IF_ERROR(CheckRank("r", *rank, config.rank));
  if (const json* alpha = FindValue(file, "lora_alpha"); alpha != nullptr) ARGOSY_RETURN_IF_ERROR(CheckAlpha("lora_alpha", *alpha, config.alpha));
  ARGOSY_RETURN_IF_ERROR(ReadDouble(file, "lora_dropout", config.dropout));
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    return InvalidArgument("\"lora_dropout\" is {}: a share of at least 0 and below 1", config.dropout);
  }
  ARGOSY_RETURN_IF_ERROR(ReadBool(file, "use_rslora", config.rank_stabilised));
  ARGOSY_RETURN_IF_ERROR(ReadNames(file, "target_modules", config.target_modules, &config.target_pattern));
  ARGOSY_RETURN_IF_ERROR(ReadNames(file, "exclude_modules", config.exclude_modules, &config.exclude_pattern));
  ARGOSY_RETURN_IF_ERROR(ReadNames(file, "modules_to_save", config.modules_to_save, nullptr));
  // peft's own choice for these models.
  if (config.target_modules.empty() && config.target_pattern.empty()) config.target_modules = {"q_proj", "v_proj"};
  if (FindValue(file, "rank_pattern") != nullptr || FindValue(file, "alpha_pattern") != nullptr) {
    const ordered_json in_order = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    ARGOSY_RETURN_IF_ERROR(ReadPattern(in_order, "rank_pattern", config.rank_pattern, CheckRank));
    ARGOSY_RETURN_IF_ERROR(ReadPattern(in_order, "alpha_pattern", config.alpha_pattern, CheckAlpha));
  }
  ARGOSY_RETURN_IF_ERROR(ReadLayers(file, config));
  ARGOSY_RETURN_IF_ERROR(ReadString(file, "base_model_name_or_path", config.base_model));
  return config;
}

absl::StatusOr<LoraConfig> LoraConfig::Load(const std::string& path) {
  std::error_code error;
  std::string file = std::filesystem::is_directory(path, error) ? (std::filesystem::path(path) / kAdapterConfigName).string() : path;
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(file));
  absl::StatusOr<LoraConfig> config = Parse(text);
  if (!config.ok()) return Annotate(config.status(), file);
  return config;
}

bool LoraConfig::Targets(std::string_view module, bool is_linear) const {
  auto in = [&](const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return IsOrEndsWith(module, name); });
  };
  if (!exclude_pattern.empty() && exclude_pattern != kAllLinear && Matches(module, exclude_pattern)) return false;
  if (in(exclude_modules) || Saves(module)) return false;
  if (target_pattern == kAllLinear) {
    if (!is_linear) return false;
  } else if (!target_pattern.empty()) {
    return Matches(module, target_pattern);
  } else if (!in(target_modules)) {
    return false;
  }
  if (layers_to_transform.empty()) return true;
  std::match_results<std::string_view::const_iterator> match;
  std::vector<std::string> lists = layers_pattern;
  if (lists.empty()) lists = {"[^.]*"};
  for (const std::string& list : lists) {
    if (!std::regex_search(module.begin(), module.end(), match, std::regex(fmt::format("^(?:.*?\\.)?(?:{})\\.([0-9]+)\\.", list)))) continue;
    // The last group: the list's pattern may have groups of its own.
    const std::string digits = match[match.size() - 1].str();
    int64_t layer = -1;
    std::from_chars(digits.data(), digits.data() + digits.size(), layer);
    return std::find(layers_to_transform.begin(), layers_to_transform.end(), layer) != layers_to_transform.end();
  }
  return false;
}

bool LoraConfig::Saves(std::string_view module) const {
  // As in peft, a name need not begin at a dot: "norm" is "input_layernorm" too.
  return std::any_of(modules_to_save.begin(), modules_to_save.end(), [&](const std::string& name) { return module.ends_with(name); });
}

int64_t LoraConfig::RankOf(std::string_view module) const {
  const int64_t* special = FirstMatch(rank_pattern, module);
  return special != nullptr ? *special : rank;
}

double LoraConfig::ScaleOf(std::string_view module) const {
  const double* special = FirstMatch(alpha_pattern, module);
  const double rank_of_module = static_cast<double>(RankOf(module));
  return (special != nullptr ? *special : alpha) / (rank_stabilised ? std::sqrt(rank_of_module) : rank_of_module);
}

std::string LoraConfig::ToText() const {
  std::string text = fmt::format("rank {}, alpha {}{}, dropout {}", rank, alpha, rank_stabilised ? " (rsLoRA)" : "", dropout);
  if (!rank_pattern.empty() || !alpha_pattern.empty()) text += fmt::format(", {} other ranks and alphas", rank_pattern.size() + alpha_pattern.size());
  text += target_pattern.empty() ? fmt::format(", {}", fmt::join(target_modules, " ")) : fmt::format(", {}", target_pattern);
  if (!modules_to_save.empty()) text += fmt::format(", whole {}", fmt::join(modules_to_save, " "));
  if (bias != LoraBias::kNone) text += bias == LoraBias::kAll ? ", all biases" : ", biases of adapted modules";
  return text;
}

std::string LoraConfig::ToJson() const {
  const ordered_json none;
  auto names_or_none = [&](const std::vector<std::string>& names) { return names.empty() ? none : ordered_json(names); };
  // peft reads whole numbers as ints; both give the same scale.
  auto number = [](double value) {
    return std::floor(value) == value && std::abs(value) < 1e15 ? ordered_json(static_cast<int64_t>(value)) : ordered_json(value);
  };
  ordered_json ranks = ordered_json::object(), alphas = ordered_json::object();
  for (const auto& [pattern, value] : rank_pattern) ranks[pattern] = value;
  for (const auto& [pattern, value] : alpha_pattern) alphas[pattern] = number(value);
  ordered_json file = {
      {"alpha_pattern", alphas},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base_model.empty() ? none : ordered_json(base_model)},
      {"bias", bias == LoraBias::kNone ? "none" : bias == LoraBias::kAll ? "all" : "lora_only"},
      {"exclude_modules", exclude_pattern.empty() ? names_or_none(exclude_modules) : ordered_json(exclude_pattern)},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", init == LoraInit::kGaussian ? ordered_json("gaussian") : ordered_json(init == LoraInit::kKaiming)},
      {"layers_pattern", names_or_none(layers_pattern)},
      {"layers_to_transform", layers_to_transform.empty() ? none : ordered_json(layers_to_transform)},
      {"lora_alpha", number(alpha)},
      {"lora_bias", false},
      {"lora_dropout", dropout},
      {"modules_to_save", names_or_none(modules_to_save)},
      {"peft_type", "LORA"},
      {"r", rank},
      {"rank_pattern", ranks},
      {"revision", nullptr},
      {"target_modules", target_pattern.empty() ? ordered_json(target_modules) : ordered_json(target_pattern)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", rank_stabilised}};
  return file.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace argosy::train
