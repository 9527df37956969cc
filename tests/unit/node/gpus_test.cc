#include "runtime/node/gpus.h"

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace argosy::node {
namespace {

std::string Devices(const std::vector<Gpu>& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus) text += (text.empty() ? "" : ",") + gpu.device;
  return text;
}

}  // namespace

TEST_CASE("Gpus: what NVML lists, by UUID, with name and memory") {
  std::vector<Gpu> gpus = FindGpus(std::nullopt, FAKE_NVML);
  REQUIRE(gpus.size() == 3);
  CHECK(Devices(gpus) == "GPU-0abc,GPU-1abc,GPU-2abc");
  CHECK(gpus[1].name == "NVIDIA H100 80GB HBM3");
  CHECK(gpus[1].memory == 80ull << 30);
}

TEST_CASE("Gpus: CUDA_VISIBLE_DEVICES is read as CUDA does") {
  auto seen = [](const std::string& visible) { return Devices(FindGpus(visible, FAKE_NVML)); };
  CHECK(seen("2,0") == "GPU-2abc,GPU-0abc");
  CHECK(seen("GPU-1") == "GPU-1abc");
  CHECK(seen(" 1 , GPU-0abc") == "GPU-1abc,GPU-0abc");
  CHECK(seen("") == "");
  CHECK(seen("-1") == "");
  CHECK(seen("0,7,1") == "GPU-0abc");    // what follows an entry that names nothing does not count
  CHECK(seen("0,99999999999999999999,1") == "GPU-0abc");
  CHECK(seen("NoDevFiles") == "");
  CHECK(seen("1,1") == "GPU-1abc");
  CHECK(seen("MIG-abc,MIG-def") == "MIG-abc,MIG-def");
}

TEST_CASE("Gpus: without NVML the kernel driver counts, and a host without both has none") {
  testing::TemporaryFolder folder;
  CHECK(FindGpus(std::nullopt, "/nowhere/libnvidia-ml.so.1", folder.path()).empty());
  CHECK(FindGpus("0,1", "/nowhere/libnvidia-ml.so.1", folder.path()).empty());
  std::filesystem::create_directory(folder / "0000:01:00.0");
  std::filesystem::create_directory(folder / "0000:02:00.0");
  CHECK(Devices(FindGpus(std::nullopt, "/nowhere/libnvidia-ml.so.1", folder.path())) == "0,1");
  CHECK(Devices(FindGpus("1", "/nowhere/libnvidia-ml.so.1", folder.path())) == "1");
}

TEST_CASE("Gpus: the accelerator type is the model's word") {
  CHECK(AcceleratorType("NVIDIA H100 80GB HBM3") == "H100");
  CHECK(AcceleratorType("NVIDIA A100-SXM4-80GB") == "A100");
  CHECK(AcceleratorType("Tesla T4") == "T4");
  CHECK(AcceleratorType("NVIDIA L40S") == "L40S");
  CHECK(AcceleratorType("NVIDIA GeForce RTX 4090") == "4090");
  CHECK(AcceleratorType("").empty());
}

}  // namespace argosy::node
