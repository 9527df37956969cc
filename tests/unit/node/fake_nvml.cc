// A management library with three GPUs, for hosts that have none.

#include <cstdio>
#include <cstring>

namespace {
int started = 0;
int numbers[] = {0, 1, 2};
}  // namespace

extern "C" {
struct Memory { unsigned long long total, free, used; };
int nvmlInit_v2() { return ++started > 0 ? 0 : 1; }
int nvmlShutdown() { return --started >= 0 ? 0 : 1; }
int nvmlDeviceGetCount_v2(unsigned* count) { return started > 0 ? (*count = 3, 0) : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return index < 3 ? (*device = &numbers[index], 0) : 2; }
int nvmlDeviceGetName(void*, char* name, unsigned size) { return std::snprintf(name, size, "NVIDIA H100 80GB HBM3") > 0 ? 0 : 1; }
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  return std::snprintf(uuid, size, "GPU-%dabc", *static_cast<int*>(device)) > 0 ? 0 : 1;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) { return memory->total = 80ull << 30, 0; }
}
