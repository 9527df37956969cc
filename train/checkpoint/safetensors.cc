#include "train/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "spdlog/fmt/ranges.h"
#include "train/config/json.h"

namespace argosy::train {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is read as it lies");

// The format's own bound on the header.
constexpr int64_t kHeaderBytesMax = 100'000'000;
constexpr int64_t kReadBufferBytes = 1 << 20;

absl::Status ReadFully(int fd, int64_t offset, std::span<std::byte> out, const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t n = ::pread(fd, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("cannot read {}", path));
    if (n == 0) {
      return absl::DataLossError(ToAbsl(fmt::format("{} ends at byte {} while bytes up to {} were to be read: it was cut while in use",
                                                    path, offset + static_cast<int64_t>(done), offset + static_cast<int64_t>(out.size()))));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// The header's JSON; a key given twice is an error, as in the reference reader.
absl::StatusOr<json> ParseHeader(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty()) {
      auto [it, added] = keys.back().insert(parsed.get<std::string>());
      if (!added && duplicate.empty()) duplicate = *it;
    }
    return true;
  };
  json header = json::parse(text, callback, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) return InvalidArgument("its header is not a JSON object");
  if (!duplicate.empty()) return InvalidArgument("its header has \"{}\" twice", duplicate);
  return header;
}

absl::StatusOr<StoredTensor> ParseTensor(const std::string& name, const json& entry, int64_t data_begin, int64_t data_bytes) {
  StoredTensor tensor;
  tensor.name = name;
  if (!entry.is_object()) return InvalidArgument("its entry is {}, not an object", Shown(entry));
  std::string dtype;
  ARGOSY_RETURN_IF_ERROR(ReadString(entry, "dtype", dtype));
  std::optional<DType> known = DTypeFromSafetensorsName(dtype);
  if (!known) return InvalidArgument("its dtype is \"{}\", which is not supported", dtype);
  tensor.dtype = *known;

  const json* shape = FindValue(entry, "shape");
  if (shape == nullptr || !shape->is_array()) return InvalidArgument("its shape is missing");
  tensor.elements = 1;
  for (const json& item : *shape) {
    std::optional<int64_t> size = item.is_number_integer() ? AsInteger(item) : std::nullopt;
    if (!size || *size < 0) return InvalidArgument("its shape is {}", Shown(*shape));
    if (__builtin_mul_overflow(tensor.elements, *size, &tensor.elements)) return InvalidArgument("its shape {} is too large", Shown(*shape));
    tensor.shape.push_back(*size);
  }
  if (__builtin_mul_overflow(tensor.elements, SizeOf(tensor.dtype), &tensor.bytes)) {
    return InvalidArgument("its shape {} is too large", Shown(*shape));
  }

  const json* offsets = FindValue(entry, "data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_integer() ||
      !(*offsets)[1].is_number_integer()) {
    return InvalidArgument("its data_offsets are not two integers");
  }
  std::optional<int64_t> begin = AsInteger((*offsets)[0]);
  std::optional<int64_t> end = AsInteger((*offsets)[1]);
  if (!begin || !end || *begin < 0 || *end < *begin) return InvalidArgument("its data_offsets are {}", Shown(*offsets));
  if (*end > data_bytes) {
    return InvalidArgument("it ends at byte {} of the data, of which the file holds only {}: the file is cut short or its header is damaged",
                           *end, data_bytes);
  }
  if (*end - *begin != tensor.bytes) {
    return InvalidArgument("shape {} of {} takes {} bytes, but its data_offsets {} span {}", Shown(*shape), dtype, tensor.bytes,
                           Shown(*offsets), *end - *begin);
  }
  tensor.offset = data_begin + *begin;
  return tensor;
}

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

// Calls convert(bytes, count, out_index) for pieces of the range that fit the buffer.
template <class Convert>
absl::Status ReadInPieces(const SafetensorsFile& file, const StoredTensor& tensor, int64_t element_begin, int64_t count, Convert convert) {
  const int64_t size = SizeOf(tensor.dtype);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kReadBufferBytes, count * size)));
  const int64_t piece_max = kReadBufferBytes / size;
  for (int64_t done = 0; done < count;) {
    int64_t piece = std::min(piece_max, count - done);
    std::span<std::byte> bytes(buffer.data(), static_cast<size_t>(piece * size));
    ARGOSY_RETURN_IF_ERROR(file.ReadBytes(tensor, (element_begin + done) * size, bytes));
    convert(bytes.data(), piece, done);
    done += piece;
  }
  return absl::OkStatus();
}

template <class T>
T Load(const std::byte* bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

absl::Status CheckRange(const StoredTensor& tensor, int64_t begin, size_t count) {
  if (begin < 0 || begin > tensor.elements || count > static_cast<size_t>(tensor.elements - begin)) {
    return InvalidArgument("elements {} to {} of \"{}\" were asked for: it has {}", begin, begin + static_cast<int64_t>(count), tensor.name,
                           tensor.elements);
  }
  if (!IsFloat(tensor.dtype)) {
    return InvalidArgument("\"{}\" is stored as {}: weights are read from F32, BF16 or F16", tensor.name, SafetensorsName(tensor.dtype));
  }
  return absl::OkStatus();
}

// Files that the index names, checked to be plain names inside the directory.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  ARGOSY_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json* map = index.is_discarded() ? nullptr : FindValue(index, "weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return InvalidArgument("{} has no \"weight_map\" that says which file holds each tensor", path);
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : map->items()) {
    std::string file = value.is_string() ? value.get<std::string>() : std::string();
    if (file.empty() || file.find('/') != std::string::npos || file.find('\0') != std::string::npos || file == "." || file == "..") {
      return InvalidArgument("{}: \"weight_map\" places \"{}\" in {}, which is not a file name", path, tensor, Shown(value));
    }
    files.emplace(tensor, file);
  }
  return files;
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.fd_.ok()) return ErrnoStatus(errno, fmt::format("cannot open {}", path));
  struct stat info {};
  if (::fstat(file.fd_.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("cannot stat {}", path));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} is not a regular file", path);
  file.file_bytes_ = info.st_size;
  if (file.file_bytes_ < 8) return InvalidArgument("{} has {} bytes: a safetensors file has at least 8, so it was cut short", path, file.file_bytes_);

  std::array<std::byte, 8> prefix;
  ARGOSY_RETURN_IF_ERROR(ReadFully(file.fd_.get(), 0, prefix, path));
  uint64_t header_bytes = Load<uint64_t>(prefix.data(), 0);
  if (header_bytes > static_cast<uint64_t>(kHeaderBytesMax)) {
    return InvalidArgument("{} says that its header has {} bytes: at most {} are allowed, so this is not a safetensors file or it is damaged",
                           path, header_bytes, kHeaderBytesMax);
  }
  if (static_cast<int64_t>(header_bytes) > file.file_bytes_ - 8) {
    return InvalidArgument("{} is cut short: its header alone has {} bytes, and {} are left after the length", path, header_bytes,
                           file.file_bytes_ - 8);
  }
  std::string text(header_bytes, '\0');
  ARGOSY_RETURN_IF_ERROR(ReadFully(file.fd_.get(), 8, std::as_writable_bytes(std::span(text.data(), text.size())), path));
  if (text.empty() || text.front() != '{') return InvalidArgument("{}: its header does not start with \"{{\"", path);
  absl::StatusOr<json> header = ParseHeader(text);
  if (!header.ok()) return Annotate(header.status(), path);

  const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file.file_bytes_ - data_begin;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return InvalidArgument("{}: \"__metadata__\" is {}, not an object", path, Shown(entry));
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return InvalidArgument("{}: \"__metadata__\" has {} for \"{}\", not a string", path, Shown(value), key);
        file.metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<StoredTensor> tensor = ParseTensor(name, entry, data_begin, data_bytes);
    if (!tensor.ok()) return Annotate(tensor.status(), fmt::format("{}: tensor \"{}\"", path, name));
    file.tensors_.push_back(*std::move(tensor));
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = data_begin;
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    const StoredTensor& tensor = file.tensors_[i];
    if (tensor.offset < end) {
      return InvalidArgument("{}: tensor \"{}\" overlaps \"{}\" by {} bytes", path, tensor.name, i == 0 ? "" : file.tensors_[i - 1].name,
                             end - tensor.offset);
    }
    if (tensor.offset > end) {
      return InvalidArgument("{}: {} bytes before tensor \"{}\" belong to no tensor", path, tensor.offset - end, tensor.name);
    }
    end = tensor.offset + tensor.bytes;
    file.index_by_name_.emplace(tensor.name, i);
  }
  if (end != file.file_bytes_) {
    return InvalidArgument("{}: its tensors end at byte {}, the file at {}", path, end, file.file_bytes_);
  }
  return file;
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  auto it = index_by_name_.find(std::string(name));
  return it == index_by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::Status SafetensorsFile::ReadBytes(const StoredTensor& tensor, int64_t byte_begin, std::span<std::byte> out) const {
  if (byte_begin < 0 || byte_begin > tensor.bytes || out.size() > static_cast<size_t>(tensor.bytes - byte_begin)) {
    return InvalidArgument("bytes {} to {} of \"{}\" were asked for: it has {}", byte_begin, byte_begin + static_cast<int64_t>(out.size()),
                           tensor.name, tensor.bytes);
  }
  return ReadFully(fd_.get(), tensor.offset + byte_begin, out, path_);
}

absl::StatusOr<HfWeights> HfWeights::Open(const std::string& directory, std::string_view stem) {
  namespace fs = std::filesystem;
  HfWeights weights;
  weights.directory_ = directory;
  const fs::path folder(directory);
  const std::string single_name = fmt::format("{}.safetensors", stem), index_name = single_name + ".index.json";
  const std::string single = (folder / single_name).string();
  const std::string index = (folder / index_name).string();
  std::error_code error;
  std::map<std::string, std::string> placed;
  std::set<std::string> names;
  if (fs::exists(single, error)) {
    names.insert(single_name);
  } else if (fs::exists(index, error)) {
    ARGOSY_ASSIGN_OR_RETURN(placed, ReadIndex(index));
    for (const auto& [tensor, file] : placed) names.insert(file);
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      if (!fs::exists(folder / name, error)) missing.push_back(name);
    }
    if (!missing.empty()) {
      return NotFound("{} has {} of the {} shards that {} names; missing: {}", directory, names.size() - missing.size(), names.size(),
                      index_name, fmt::join(missing, ", "));
    }
  } else {
    return NotFound("{} has no weights: neither {} nor {} is there", directory, single_name, index_name);
  }

  for (const std::string& name : names) {
    ARGOSY_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open((folder / name).string()));
    const size_t file_index = weights.files_.size();
    for (size_t i = 0; i < file.Tensors().size(); ++i) {
      const std::string& tensor = file.Tensors()[i].name;
      auto [it, added] = weights.locations_.emplace(tensor, std::pair(file_index, i));
      if (!added) {
        return InvalidArgument("tensor \"{}\" is in two files of {}: {} and {}", tensor, directory,
                               fs::path(weights.files_[it->second.first].Path()).filename().string(), name);
      }
    }
    weights.files_.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : placed) {
    auto it = weights.locations_.find(tensor);
    if (it == weights.locations_.end() || fs::path(weights.files_[it->second.first].Path()).filename() != file) {
      return NotFound("{} places tensor \"{}\" in {}, which does not hold it", index_name, tensor, (folder / file).string());
    }
  }
  return weights;
}

bool HfWeights::Has(std::string_view name) const { return locations_.contains(std::string(name)); }

absl::StatusOr<HfWeights::Location> HfWeights::Find(std::string_view name) const {
  auto it = locations_.find(std::string(name));
  if (it == locations_.end()) {
    return NotFound("tensor \"{}\" is in none of the {} weight file{} of {}", name, files_.size(), files_.size() == 1 ? "" : "s", directory_);
  }
  const SafetensorsFile& file = files_[it->second.first];
  return Location{&file, &file.Tensors()[it->second.second]};
}

// Names that differ in the number of their layer as one: "model.layers.*.mlp.up_proj.bias (layers 0 to 31)".
static std::string GroupedNames(const std::vector<std::string>& names) {
  constexpr std::string_view kLayers = "model.layers.";
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const std::string& name : names) {
    std::string pattern = name;
    int layer = -1;
    if (name.starts_with(kLayers)) {
      const char *begin = name.data() + kLayers.size(), *end = name.data() + name.size();
      auto [behind, error] = std::from_chars(begin, end, layer);
      if (error == std::errc() && behind < end && *behind == '.') pattern = fmt::format("{}*{}", kLayers, std::string_view(behind, end - behind));
      else layer = -1;
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == pattern; });
    if (group == groups.end()) group = groups.insert(groups.end(), {pattern, {}});
    if (layer >= 0) group->second.push_back(layer);
  }
  std::string text;
  for (auto& [pattern, layers] : groups) {
    text += text.empty() ? "" : ", ";
    std::sort(layers.begin(), layers.end());
    const bool run = !layers.empty() && layers.back() - layers.front() + 1 == static_cast<int>(layers.size());
    if (layers.size() == 1) text += fmt::format("{}{}{}", pattern.substr(0, pattern.find('*')), layers.front(), pattern.substr(pattern.find('*') + 1));
    else if (run) text += fmt::format("{} (layers {} to {})", pattern, layers.front(), layers.back());
    else if (!layers.empty()) text += fmt::format("{} (layers {})", pattern, fmt::join(layers, ", "));
    else text += pattern;
  }
  return text;
}

std::vector<std::string> HfWeights::Problems(std::span<const TensorSpec> wanted) const {
  std::vector<std::string> problems, missing;
  for (const TensorSpec& spec : wanted) {
    absl::StatusOr<Location> location = Find(spec.name);
    if (!location.ok()) {
      missing.push_back(spec.name);
    } else if (location->tensor->shape != spec.shape) {
      problems.push_back(fmt::format("{}: tensor \"{}\" has shape {}, config.json asks for {}", location->file->Path(), spec.name,
                                     ShapeText(location->tensor->shape), ShapeText(spec.shape)));
    } else if (!IsFloat(location->tensor->dtype)) {
      problems.push_back(fmt::format("{}: tensor \"{}\" is stored as {}: weights are read from F32, BF16 or F16", location->file->Path(), spec.name,
                                     SafetensorsName(location->tensor->dtype)));
    }
  }
  if (!missing.empty()) {
    problems.push_back(fmt::format("{} lacks {} tensor{} that config.json asks for: {}", directory_, missing.size(), missing.size() == 1 ? "" : "s",
                                   GroupedNames(missing)));
  }
  return problems;
}

absl::Status HfWeights::Check(std::span<const TensorSpec> wanted) const {
  std::vector<std::string> problems = Problems(wanted);
  return problems.empty() ? absl::OkStatus() : InvalidArgument("{}", fmt::join(problems, "; "));
}

absl::StatusOr<bool> HfWeights::SameValues(std::string_view a, std::string_view b) const {
  ARGOSY_ASSIGN_OR_RETURN(Location one, Find(a));
  ARGOSY_ASSIGN_OR_RETURN(Location other, Find(b));
  if (one.tensor->shape != other.tensor->shape) return false;
  std::vector<float> of_one(1 << 18), of_other(1 << 18);
  for (int64_t at = 0; at < one.tensor->elements; at += 1 << 18) {
    const auto count = static_cast<size_t>(std::min<int64_t>(1 << 18, one.tensor->elements - at));
    ARGOSY_RETURN_IF_ERROR(ReadRange(a, at, std::span(of_one).first(count)));
    ARGOSY_RETURN_IF_ERROR(ReadRange(b, at, std::span(of_other).first(count)));
    if (!std::equal(of_one.begin(), of_one.begin() + static_cast<ptrdiff_t>(count), of_other.begin())) return false;
  }
  return true;
}

absl::Status HfWeights::CheckModel(const ModelConfig& config) const {
  const std::vector<TensorSpec> wanted = config.Tensors(config.dtype);
  std::vector<std::string> problems = Problems(wanted);
  std::set<std::string_view> known;
  for (const TensorSpec& spec : wanted) known.insert(spec.name);
  std::vector<std::string> surplus;
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.Tensors()) {
      if (known.contains(tensor.name) || tensor.name.ends_with(".rotary_emb.inv_freq")) continue;
      if (problems.empty() && config.tie_word_embeddings && tensor.name == "lm_head.weight") {
        ARGOSY_ASSIGN_OR_RETURN(bool same, SameValues(tensor.name, "model.embed_tokens.weight"));
        if (same) continue;
        problems.push_back(fmt::format("{}: config.json ties head and embedding (\"tie_word_embeddings\"), but \"lm_head.weight\" is another matrix than "
                                       "\"model.embed_tokens.weight\": say false there, or remove that tensor", file.Path()));
        continue;
      }
      surplus.push_back(tensor.name);
    }
  }
  std::sort(surplus.begin(), surplus.end());
  if (!surplus.empty()) {
    problems.push_back(fmt::format("{} has {} tensor{} that config.json has no place for: {}", directory_, surplus.size(), surplus.size() == 1 ? "" : "s",
                                   GroupedNames(surplus)));
  }
  if (problems.empty()) return absl::OkStatus();
  return InvalidArgument("{}. The weights are those of another model, or config.json was changed", fmt::join(problems, "; "));
}

DType HfWeights::MainDType() const {
  std::map<DType, int64_t> elements;
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.Tensors()) elements[tensor.dtype] += tensor.elements;
  }
  DType main = DType::kF32;
  int64_t most = -1;
  for (const auto& [dtype, count] : elements) {
    if (count > most) {
      most = count;
      main = dtype;
    }
  }
  return main;
}

absl::Status HfWeights::ReadRange(std::string_view name, int64_t element_begin, std::span<float> out) const {
  ARGOSY_ASSIGN_OR_RETURN(Location location, Find(name));
  ARGOSY_RETURN_IF_ERROR(CheckRange(*location.tensor, element_begin, out.size()));
  const DType dtype = location.tensor->dtype;
  if (dtype == DType::kF32) return location.file->ReadBytes(*location.tensor, element_begin * 4, std::as_writable_bytes(out));
  return ReadInPieces(*location.file, *location.tensor, element_begin, static_cast<int64_t>(out.size()),
                      [&](const std::byte* bytes, int64_t count, int64_t at) {
                        for (int64_t i = 0; i < count; ++i) {
                          uint16_t bits = Load<uint16_t>(bytes, i);
                          out[at + i] = dtype == DType::kBF16 ? FloatFromBf16(bits) : FloatFromF16(bits);
                        }
                      });
}

absl::Status HfWeights::ReadRangeBf16(std::string_view name, int64_t element_begin, std::span<uint16_t> out) const {
  ARGOSY_ASSIGN_OR_RETURN(Location location, Find(name));
  ARGOSY_RETURN_IF_ERROR(CheckRange(*location.tensor, element_begin, out.size()));
  const DType dtype = location.tensor->dtype;
  if (dtype == DType::kBF16) return location.file->ReadBytes(*location.tensor, element_begin * 2, std::as_writable_bytes(out));
  return ReadInPieces(*location.file, *location.tensor, element_begin, static_cast<int64_t>(out.size()),
                      [&](const std::byte* bytes, int64_t count, int64_t at) {
                        for (int64_t i = 0; i < count; ++i) {
                          float value = dtype == DType::kF32 ? Load<float>(bytes, i) : FloatFromF16(Load<uint16_t>(bytes, i));
                          out[at + i] = Bf16FromFloat(value);
                        }
                      });
}

}  // namespace argosy::train
