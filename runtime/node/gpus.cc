#include "runtime/node/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

// Of nvml.h: https://docs.nvidia.com/deploy/nvml-api. Declared here so that nothing of NVIDIA's is needed to build.
using NvmlDevice = struct NvmlDeviceOpaque*;
struct NvmlMemory { unsigned long long total = 0; unsigned long long free = 0; unsigned long long used = 0; };

class Nvml {
 public:
  static std::optional<std::vector<Gpu>> List(const std::string& library) {
    std::unique_ptr<void, int (*)(void*)> handle(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), ::dlclose);
    if (handle == nullptr) return std::nullopt;
    auto load = [&](const char* name) { return ::dlsym(handle.get(), name); };
    auto init = reinterpret_cast<int (*)()>(load("nvmlInit_v2"));
    auto shutdown = reinterpret_cast<int (*)()>(load("nvmlShutdown"));
    auto count = reinterpret_cast<int (*)(unsigned*)>(load("nvmlDeviceGetCount_v2"));
    auto by_index = reinterpret_cast<int (*)(unsigned, NvmlDevice*)>(load("nvmlDeviceGetHandleByIndex_v2"));
    auto get_name = reinterpret_cast<int (*)(NvmlDevice, char*, unsigned)>(load("nvmlDeviceGetName"));
    auto get_uuid = reinterpret_cast<int (*)(NvmlDevice, char*, unsigned)>(load("nvmlDeviceGetUUID"));
    auto get_memory = reinterpret_cast<int (*)(NvmlDevice, NvmlMemory*)>(load("nvmlDeviceGetMemoryInfo"));
    if (init == nullptr || shutdown == nullptr || count == nullptr || by_index == nullptr || get_uuid == nullptr) {
      spdlog::warn("{} is not the NVML that is known: GPUs are counted without it", library);
      return std::nullopt;
    }
    if (int error = init(); error != 0) {
      spdlog::warn("NVML cannot be used (error {}): GPUs are counted without it", error);
      return std::nullopt;
    }
    std::vector<Gpu> gpus;
    unsigned number = 0;
    if (count(&number) != 0) number = 0;
    for (unsigned i = 0; i < number; ++i) {
      NvmlDevice device = nullptr;
      Gpu gpu;
      gpu.device = std::to_string(i);
      char text[96] = {};
      if (by_index(i, &device) == 0) {
        if (get_name != nullptr && get_name(device, text, sizeof text) == 0) gpu.name = text;
        NvmlMemory memory;
        if (get_memory != nullptr && get_memory(device, &memory) == 0) gpu.memory = memory.total;
        if (get_uuid(device, text, sizeof text) == 0) gpu.device = text;
      } else {
        spdlog::warn("GPU {} cannot be asked: it is counted all the same", i);
      }
      gpus.push_back(std::move(gpu));
    }
    shutdown();
    return gpus;
  }
};

std::vector<Gpu> CountFolders(const std::string& folder) {
  std::vector<Gpu> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_directory()) gpus.push_back({std::to_string(gpus.size()), "", 0});
  }
  return gpus;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<Gpu> FindGpus(const std::optional<std::string>& visible, const std::string& library, const std::string& kernel_folder) {
  std::optional<std::vector<Gpu>> listed = Nvml::List(library);
  std::vector<Gpu> all = listed ? std::move(*listed) : CountFolders(kernel_folder);
  if (!visible) return all;
  std::vector<Gpu> seen;
  std::string_view rest = *visible;
  while (!rest.empty()) {
    size_t comma = std::min(rest.find(','), rest.size());
    std::string_view entry = Trimmed(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const Gpu* found = nullptr;
    bool is_index = !entry.empty() && std::all_of(entry.begin(), entry.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_index) {
      size_t index = entry.size() > 4 ? all.size() : static_cast<size_t>(std::stoul(std::string(entry)));
      if (index < all.size()) found = &all[index];
    } else if (entry.starts_with("GPU-")) {
      for (const Gpu& gpu : all) {
        if (gpu.device.starts_with(entry)) found = &gpu;
      }
    } else if (entry.starts_with("MIG-") && !all.empty()) {
      // A part of a GPU: CUDA finds it by this name.
      seen.push_back({std::string(entry), "", 0});
      continue;
    }
    bool again = found != nullptr && std::any_of(seen.begin(), seen.end(), [&](const Gpu& gpu) { return gpu.device == found->device; });
    if (found == nullptr || again) break;
    seen.push_back(*found);
  }
  return seen;
}

std::string AcceleratorType(const std::string& name) {
  // The word that names the model: the first one with a digit, such as H100 in "NVIDIA H100 80GB HBM3" or T4 in "Tesla T4".
  size_t at = 0;
  while (at < name.size()) {
    size_t end = std::min(name.find_first_of(" -", at), name.size());
    std::string word = name.substr(at, end - at);
    at = end + 1;
    bool digits = std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!digits) continue;
    bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
    if (plain) return word;
  }
  return "";
}

}  // namespace argosy::node
