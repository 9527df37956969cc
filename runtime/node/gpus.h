#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace argosy::node {

struct Gpu {
  std::string device;        // what CUDA_VISIBLE_DEVICES calls it: an index or a UUID
  std::string name;          // "NVIDIA H100 80GB HBM3"; empty: not known
  uint64_t memory = 0;       // bytes; 0: not known
};

// The GPUs that this process may use: those that the driver's management library (NVML, loaded now, absent on hosts without GPUs) lists,
// or the kernel driver when the library is missing; of these the ones that `visible`, the value of CUDA_VISIBLE_DEVICES, names, in its
// order. As CUDA reads it: an entry that names no GPU ends the list, and "" or "-1" is none. Indices count from CUDA's order of the bus.
std::vector<Gpu> FindGpus(const std::optional<std::string>& visible, const std::string& library = "libnvidia-ml.so.1",
                          const std::string& kernel_folder = "/proc/driver/nvidia/gpus");

// "NVIDIA H100 80GB HBM3" -> "H100", as users select it by label; empty when nothing is recognised.
std::string AcceleratorType(const std::string& name);

}  // namespace argosy::node
