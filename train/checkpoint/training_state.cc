#include "train/checkpoint/training_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <system_error>
#include <utility>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "train/checkpoint/crc32c.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/retention.h"
#include "train/config/json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr std::pair<TensorPart, std::string_view> kPrefixes[] = {
    {TensorPart::kMaster, "master."}, {TensorPart::kMoment1, "exp_avg."}, {TensorPart::kMoment2, "exp_avg_sq."}};

// JSON has no infinity; a loss may be one.
json Number(double value) { return std::isfinite(value) ? json(value) : json(fmt::format("{}", value)); }

absl::Status ReadNumber(const json& object, std::string_view key, double& out) {
  const json* value = FindValue(object, key);
  if (value != nullptr && value->is_string()) {
    out = *value == "inf" ? HUGE_VAL : *value == "-inf" ? -HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
    return absl::OkStatus();
  }
  return ReadDouble(object, key, out);
}

absl::Status ReadStrings(const json& object, std::string_view key, std::map<std::string, std::string>& out) {
  const json* values = FindValue(object, key);
  if (values == nullptr || !values->is_object()) return InvalidArgument("\"{}\" is missing", key);
  for (const auto& [name, value] : values->items()) {
    if (!value.is_string()) return InvalidArgument("\"{}.{}\" is {}: it must be a string", key, name, Shown(value));
    out[name] = value.get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status CheckFile(const std::string& path, const CheckpointManifest::File& want) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  std::vector<std::byte> buffer(1 << 20);
  uint32_t crc = 0;
  int64_t bytes = 0;
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    crc = ExtendCrc32c(crc, std::span<const std::byte>(buffer.data(), static_cast<size_t>(n)));
    bytes += n;
  }
  if (bytes != want.bytes) return absl::DataLossError(ToAbsl(fmt::format("{} is damaged: it has {} bytes of {}", path, bytes, want.bytes)));
  if (crc != want.crc32c) {
    return absl::DataLossError(ToAbsl(fmt::format("{} is damaged: its checksum is not the one noted when it was written", path)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NameOfPart(TensorPart part, std::string_view tensor) {
  for (const auto& [prefixed, prefix] : kPrefixes) {
    if (part == prefixed) return fmt::format("{}{}", prefix, tensor);
  }
  return std::string(tensor);
}

PartName ParsePartName(std::string_view name) {
  for (const auto& [part, prefix] : kPrefixes) {
    if (name.starts_with(prefix)) return {part, std::string(name.substr(prefix.size()))};
  }
  return {TensorPart::kWeights, std::string(name)};
}

std::vector<TensorSpec> StateTensors(std::span<const TensorSpec> trained) {
  std::vector<TensorSpec> specs;
  for (const auto& [part, prefix] : kPrefixes) {
    for (const TensorSpec& spec : trained) specs.push_back({.name = NameOfPart(part, spec.name), .shape = spec.shape, .dtype = DType::kF32});
  }
  return specs;
}

std::vector<TensorSpec> StateTensors(const ModelConfig& config) { return StateTensors(config.Tensors(DType::kF32)); }

std::string TrainingState::ToJson() const {
  json rows = json::array();
  for (const EpochRecord& row : epochs) {
    rows.push_back({{"epoch", row.epoch}, {"steps", row.steps}, {"train_seconds", row.train_seconds}, {"eval_seconds", row.eval_seconds},
                    {"save_seconds", row.save_seconds}, {"train_loss", Number(row.train_loss)}, {"eval_loss", Number(row.eval_loss)},
                    {"tokens_per_second", row.tokens_per_second}, {"has_eval", row.has_eval}});
  }
  json file = {{"format", kFormat}, {"epoch", epoch}, {"step", step}, {"steps_done", steps_done}, {"optimizer_steps", optimizer_steps},
               {"skipped", skipped}, {"rows_per_step", rows_per_step}, {"loss_sum", Number(loss_sum)}, {"target_tokens", target_tokens},
               {"epoch_seconds", epoch_seconds}, {"epoch_tokens", epoch_tokens}, {"epochs", rows}, {"checkpoint", checkpoint}, {"deal", deal},
               {"identity", identity}, {"settings", settings}};
  return file.dump(1, ' ', true, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TrainingState> TrainingState::Parse(std::string_view text) {
  json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return InvalidArgument("{} is not a JSON object", kStateJsonName);
  int64_t format = 0;
  ARGOSY_RETURN_IF_ERROR(ReadInteger(file, "format", format));
  if (format != kFormat) {
    return InvalidArgument("{} has format {}: this version reads format {}; resume with the version that wrote it", kStateJsonName, format,
                           kFormat);
  }
  TrainingState state;
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, int64_t*>>{
           {"epoch", &state.epoch}, {"step", &state.step}, {"steps_done", &state.steps_done}, {"optimizer_steps", &state.optimizer_steps},
           {"skipped", &state.skipped}, {"rows_per_step", &state.rows_per_step}, {"epoch_tokens", &state.epoch_tokens}}) {
    ARGOSY_RETURN_IF_ERROR(ReadInteger(file, key, *value));
    if (*value < 0) return InvalidArgument("\"{}\" is {}: it must not be negative", key, *value);
  }
  ARGOSY_RETURN_IF_ERROR(ReadNumber(file, "loss_sum", state.loss_sum));
  ARGOSY_RETURN_IF_ERROR(ReadNumber(file, "target_tokens", state.target_tokens));
  ARGOSY_RETURN_IF_ERROR(ReadNumber(file, "epoch_seconds", state.epoch_seconds));
  ARGOSY_RETURN_IF_ERROR(ReadString(file, "checkpoint", state.checkpoint));
  ARGOSY_RETURN_IF_ERROR(ReadStrings(file, "identity", state.identity));
  state.identity.try_emplace(std::string(kTrainedNote), kAllWeights);
  ARGOSY_RETURN_IF_ERROR(ReadStrings(file, "settings", state.settings));
  if (const json* deal = FindValue(file, "deal"); deal != nullptr) {
    for (const json& part : *deal) {
      if (!part.is_number() || !(part.get<double>() > 0)) return InvalidArgument("\"deal\" has {}: parts are positive numbers", Shown(part));
      state.deal.push_back(part.get<double>());
    }
  }
  const json* rows = FindValue(file, "epochs");
  if (rows != nullptr && !rows->is_array()) return InvalidArgument("\"epochs\" is {}: it must be a list", Shown(*rows));
  for (const json& row : rows != nullptr ? *rows : json::array()) {
    EpochRecord record;
    ARGOSY_RETURN_IF_ERROR(ReadInteger(row, "epoch", record.epoch));
    ARGOSY_RETURN_IF_ERROR(ReadInteger(row, "steps", record.steps));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "train_seconds", record.train_seconds));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "eval_seconds", record.eval_seconds));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "save_seconds", record.save_seconds));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "train_loss", record.train_loss));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "eval_loss", record.eval_loss));
    ARGOSY_RETURN_IF_ERROR(ReadNumber(row, "tokens_per_second", record.tokens_per_second));
    ARGOSY_RETURN_IF_ERROR(ReadBool(row, "has_eval", record.has_eval));
    state.epochs.push_back(record);
  }
  return state;
}

absl::StatusOr<TrainingState> TrainingState::Load(const std::string& directory) {
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile((std::filesystem::path(directory) / kStateJsonName).string()));
  absl::StatusOr<TrainingState> state = Parse(text);
  if (!state.ok()) return Annotate(state.status(), directory);
  return state;
}

absl::StatusOr<std::optional<std::string>> NewestState(const std::string& output_dir) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<SavedCheckpoint> states,
                          ListCheckpoints((std::filesystem::path(output_dir) / kStateFolder).string()));
  if (states.empty()) return std::optional<std::string>();
  return std::optional<std::string>(states.back().directory);
}

absl::StatusOr<UsableState> NewestUsableState(const std::string& output_dir) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = fs::path(output_dir) / kStateFolder;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    std::string name = it->path().filename().string();
    if (it->is_directory(ignored) && name.starts_with("step-")) names.push_back(std::move(name));
  }
  if (error && error != std::errc::no_such_file_or_directory) return FailedPrecondition("cannot list {}: {}", folder.string(), error.message());
  // By number, whatever its digits.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) > std::pair(b.size(), b); });
  UsableState usable;
  for (const std::string& name : names) {
    const std::string directory = (folder / name).string();
    absl::Status status = VerifyCheckpoint(directory);
    if (status.ok()) status = TrainingState::Load(directory).status();
    if (status.ok()) {
      usable.directory = directory;
      break;
    }
    usable.damaged.push_back(Message(status));
  }
  return usable;
}

absl::Status VerifyCheckpoint(const std::string& directory) {
  ARGOSY_ASSIGN_OR_RETURN(CheckpointManifest manifest, CheckpointManifest::Load(directory));
  for (const auto& [name, file] : manifest.files) {
    ARGOSY_RETURN_IF_ERROR(CheckFile((std::filesystem::path(directory) / name).string(), file));
  }
  return absl::OkStatus();
}

absl::Status CheckIdentity(const TrainingState& state, const std::map<std::string, std::string>& now) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : now) {
    auto it = state.identity.find(name);
    if (it == state.identity.end()) {
      differences.push_back(fmt::format("{} is {} and was not noted", name, value));
    } else if (it->second != value) {
      differences.push_back(fmt::format("{} is {} and was {}", name, value, it->second));
    }
  }
  if (differences.empty()) return absl::OkStatus();
  return InvalidArgument("the training state is another run's: {}. Give the flags and files of that run, or another --output-dir",
                         fmt::join(differences, "; "));
}

std::vector<std::string> ChangedSettings(const TrainingState& state, const std::map<std::string, std::string>& now) {
  std::vector<std::string> changes;
  for (const auto& [name, value] : now) {
    auto it = state.settings.find(name);
    if (it != state.settings.end() && it->second != value) changes.push_back(fmt::format("{} {} -> {}", name, it->second, value));
  }
  return changes;
}

}  // namespace argosy::train
