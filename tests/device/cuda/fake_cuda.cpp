// A driver of CUDA for tests: memory is the host's, each stream has a thread, and a kernel is the
// host's function of that name. It checks what the driver checks: handles, contexts, ranges of
// memory.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/fake_cuda.h"

#include <array>
#include <cstring>

#include "device/cuda/fake_world.h"
#include "device/device.h"

namespace pride::fake_cuda {
namespace {

void run_kernel(device::Kernel kernel, std::uintptr_t jobs, std::uintptr_t first, std::uint32_t n,
                int number) {
  using namespace device;
  if (crashed()) return;
  run_on_host({.kernel = kernel,
               .jobs = {reinterpret_cast<const std::byte*>(jobs), n * job_bytes(kernel)},
               .first = {reinterpret_cast<const u64*>(first), n + std::size_t{1}}},
              static_cast<u64>(number));
  const std::lock_guard lock(world().mutex);
  world().dead = world().dead || world().crashing_kernel == name_of(kernel);
  if (world().wrong_kernel != name_of(kernel)) return;
  for (std::uint32_t job = 0; job < n; ++job) {
    auto* const wrong = *reinterpret_cast<unsigned char**>(jobs + job * job_bytes(kernel));
    if (wrong == nullptr) continue;  // a job without gradients
    wrong[3] ^= 0x40;                // of a float: no NaN remains one
    return;
  }
}

}  // namespace

extern "C" {

void fake_cuda_state(FakeCudaState* state) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const int retained = w.contexts[0].retained + w.contexts[1].retained;
  *state = {.device_blocks = w.device_blocks.size(),
            .host_blocks = w.host_blocks.size(),
            .streams = static_cast<int>(w.streams.size() - w.streams.count(nullptr)),
            .events = static_cast<int>(w.events.size()),
            .modules = static_cast<int>(w.modules.size()),
            .contexts = retained,
            .waiting = w.waiting,
            .launches = w.launches,
            .grid = w.grid,
            .priority = w.priority};
}

void fake_cuda_fail(const char* call, int result, int calls) {
  const std::lock_guard lock(world().mutex);
  world().failing = call;
  world().failure = result;
  world().calls_before = calls;
}

void fake_cuda_hold(int held) {
  const std::lock_guard lock(world().mutex);
  world().held = held != 0;
  world().changed.notify_all();
}

int fake_cuda_calls(const char* call) {
  const std::lock_guard lock(world().mutex);
  return world().calls[call];
}

void fake_cuda_wrong(const char* kernel) {
  const std::lock_guard lock(world().mutex);
  world().wrong_kernel = kernel;
}

void fake_cuda_crash(const char* kernel) {
  const std::lock_guard lock(world().mutex);
  world().crashing_kernel = kernel;
  if (!world().dead) return;
  world().dead = false;
  release_all(world().device_blocks);
  release_all(world().host_blocks);
}

void fake_cuda_change(bool (*which)(unsigned word)) {
  const std::lock_guard lock(world().mutex);
  world().changes = which;
}

void fake_cuda_machine(int gpus, int pools) {
  const std::lock_guard lock(world().mutex);
  world().gpus = gpus;
  world().pools = pools != 0;
}

int cuInit(unsigned) {
  const std::lock_guard lock(world().mutex);
  return planned("cuInit", world().gpus == 0 ? kNoDevice : kOk);
}
int cuDriverGetVersion(int* version) {
  *version = 13010;
  return kOk;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == kNoMemory         ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kNoDevice       ? "CUDA_ERROR_NO_DEVICE"
          : error == kBadHandle      ? "CUDA_ERROR_INVALID_HANDLE"
          : error == kBadImage       ? "CUDA_ERROR_INVALID_IMAGE"
          : error == kNewerPtx       ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : nullptr;
  return *name == nullptr ? kInvalidValue : kOk;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kNoMemory ? "out of memory" : nullptr;
  return *text == nullptr ? kInvalidValue : kOk;
}
int cuDeviceGetCount(int* count) {
  const std::lock_guard lock(world().mutex);
  *count = world().gpus;
  return kOk;
}
int cuDeviceGet(int* device, int number) {
  const std::lock_guard lock(world().mutex);
  *device = number;
  return number < world().gpus ? kOk : kBadDevice;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  std::strncpy(name, device == 0 ? "Fake A" : "Fake B", static_cast<std::size_t>(bytes));
  return kOk;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const std::lock_guard lock(world().mutex);
  const std::map<int, int> values = {{16, 2}, {75, 9}, {76, 0}, {115, world().pools ? 1 : 0}};
  const auto found = values.find(attribute);
  if (found == values.end()) return kInvalidValue;
  *value = found->second;
  return kOk;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{1} << 34;
  return kOk;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(world().mutex);
  if (const int result = planned("cuDevicePrimaryCtxRetain"); result != kOk) return result;
  FakeContext& primary = world().contexts[static_cast<std::size_t>(device)];
  primary.gpu = device;
  ++primary.retained;
  *context = &primary;
  return kOk;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(world().mutex);
  return --world().contexts[static_cast<std::size_t>(device)].retained < 0 ? kBadContext : kOk;
}
int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard lock(world().mutex);
  if (const int result = planned("cuCtxPushCurrent"); result != kOk) return result;
  contexts_of_thread().push_back(static_cast<FakeContext*>(context));
  return kOk;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current();
  if (*context == nullptr) return kBadContext;
  contexts_of_thread().pop_back();
  return kOk;
}

int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuModuleLoadData"); result != kOk) return result;
  if (std::strncmp(static_cast<const char*>(image), "fake", 4) != 0) return kBadImage;
  *module = new int;
  world().modules.insert(*module);
  return kOk;
}
int cuModuleUnload(void* module) {
  const std::lock_guard lock(world().mutex);
  if (world().modules.erase(module) == 0) return kBadHandle;
  delete static_cast<int*>(module);
  return kOk;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  using namespace device;
  static std::array<Kernel, kKernels> kernels;
  for (std::size_t k = 0; k < kKernels; ++k) {
    if (std::string("pride_") + name_of(static_cast<Kernel>(k)) != name) continue;
    const std::lock_guard lock(world().mutex);
    kernels[k] = static_cast<Kernel>(k);
    *function = &kernels[k];
    return planned("cuModuleGetFunction");
  }
  return kNotFound;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void* stream, void** parameters, void**) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuLaunchKernel"); result != kOk) return result;
  if (blocks == 0 || threads != 256) return kInvalidValue;
  ++world().launches;
  world().grid = blocks;
  const auto kernel = *static_cast<device::Kernel*>(function);
  const auto jobs = *static_cast<std::uintptr_t*>(parameters[0]);
  const auto first = *static_cast<std::uintptr_t*>(parameters[1]);
  const auto n = *static_cast<std::uint32_t*>(parameters[2]);
  return enqueue(stream,
                 [=, number = world().launches] { run_kernel(kernel, jobs, first, n, number); });
}

}  // extern "C"

}  // namespace pride::fake_cuda
