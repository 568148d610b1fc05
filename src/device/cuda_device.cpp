// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_device.h"

#include <algorithm>
#include <cstring>

#include "pride/error.h"

namespace pride::cuda {
namespace {

constexpr unsigned kThreads = 256;  // of a block; the kernels' launch bounds
constexpr std::uint64_t kBlocksPerMultiprocessor = 32;
constexpr std::size_t kRingPart = 1 << 18;  // jobs of about 2,000 tensors

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

// Enough warps for all chunks, at most kBlocksPerMultiprocessor.
unsigned blocks_for(std::uint64_t chunks, int multiprocessors) {
  constexpr std::uint64_t warps = kThreads / device::kLanes;
  const auto most = kBlocksPerMultiprocessor * static_cast<std::uint64_t>(multiprocessors);
  return static_cast<unsigned>(std::min((chunks + warps - 1) / warps, most));
}

}  // namespace

CudaDevice::CudaDevice(const Driver& driver, int number, const std::string& image)
    : context_(driver, number) {
  try {
    open(image);
  } catch (...) {
    close();
    throw;
  }
}

CudaDevice::~CudaDevice() { close(); }

void CudaDevice::load(const std::string& image) {
  const Driver& driver = context_.driver();
  const Result result = driver.cuModuleLoadData.function(&module_, image.c_str());
  PRIDE_CHECK(result != kInvalidImage && result != kNoBinaryForGpu && result != kNewerPtx,
              context_.name(), ": the driver, of CUDA ", driver.version(),
              ", refuses the kernels: ", driver.text_of(result));
  if (result != kSuccess) driver.fail(context_.name(), "cuModuleLoadData", result);
}

// Of the highest priority: beside backward, a bucket's kernels run at once and its frame leaves.
void CudaDevice::create_stream() {
  const Driver& driver = context_.driver();
  if (driver.cuStreamCreateWithPriority.function == nullptr ||
      driver.cuCtxGetStreamPriorityRange.function == nullptr) {
    return context_.run(driver.cuStreamCreate, &stream_, kNonBlockingStream);
  }
  int least = 0, greatest = 0;
  context_.run(driver.cuCtxGetStreamPriorityRange, &least, &greatest);
  context_.run(driver.cuStreamCreateWithPriority, &stream_, kNonBlockingStream, greatest);
}

void CudaDevice::open(const std::string& image) {
  const PrimaryContext::Current current(context_);
  const Driver& driver = context_.driver();
  load(image);
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const std::string kernel = concat("pride_", name_of(static_cast<device::Kernel>(k)));
    context_.run(driver.cuModuleGetFunction, &kernels_[k], module_, kernel.c_str());
  }
  create_stream();
  context_.run(driver.cuEventCreate, &join_event_, kNoTiming);
  marks_.emplace(context_);
  ring_.emplace(*this, kRingPart);
}

// An error here comes from work queued earlier. A destructor cannot report it.
void CudaDevice::close() noexcept try {
  const PrimaryContext::Current current(context_);
  const Driver& driver = context_.driver();
  if (stream_ != nullptr) driver.cuStreamSynchronize.function(stream_);
  ring_.reset();
  marks_.reset();
  if (join_event_ != nullptr) driver.cuEventDestroy.function(join_event_);
  if (stream_ != nullptr) driver.cuStreamDestroy.function(stream_);
  if (module_ != nullptr) driver.cuModuleUnload.function(module_);
} catch (const Error&) {
  return;  // the context is gone, and all that was in it
}

Result CudaDevice::allocate(Address& address, std::size_t bytes) {
  const PrimaryContext::Current current(context_);
  const Driver& driver = context_.driver();
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  return context_.facts().pools ? driver.cuMemAllocAsync.function(&address, size, stream_)
                                : driver.cuMemAlloc.function(&address, size);
}

void* CudaDevice::allocate(std::size_t bytes) {
  Address address = 0;
  Result result = allocate(address, bytes);
  if (result == kOutOfMemory && make_room_) {
    make_room_();
    result = allocate(address, bytes);
  }
  if (result != kSuccess) {
    context_.driver().fail(concat(context_.name(), ", ", bytes, " bytes"),
                           context_.facts().pools ? "cuMemAllocAsync" : "cuMemAlloc", result);
  }
  return reinterpret_cast<void*>(address);
}

void CudaDevice::free(void* memory) noexcept try {
  if (memory == nullptr) return;
  const PrimaryContext::Current current(context_);
  const Driver& driver = context_.driver();
  if (context_.facts().pools) {
    driver.cuMemFreeAsync.function(address_of(memory), stream_);
  } else {
    driver.cuStreamSynchronize.function(stream_);
    driver.cuMemFree.function(address_of(memory));
  }
} catch (const Error&) {
  return;  // the context is gone, and the memory with it
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  const PrimaryContext::Current current(context_);
  const Driver& driver = context_.driver();
  void* memory = nullptr;
  const Result result =
      driver.cuMemHostAlloc.function(&memory, std::max<std::size_t>(bytes, 1), kPortable);
  if (result != kSuccess) {
    driver.fail(concat(context_.name(), ", ", bytes, " bytes"), "cuMemHostAlloc", result);
  }
  return memory;
}

void CudaDevice::free_host(void* memory) noexcept try {
  if (memory == nullptr) return;
  const PrimaryContext::Current current(context_);
  context_.driver().cuMemFreeHost.function(memory);
} catch (const Error&) {
  return;  // as in free()
}

void CudaDevice::copy_in(void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const PrimaryContext::Current current(context_);
  context_.run(context_.driver().cuMemcpyHtoDAsync, address_of(device), host, bytes, stream_);
}

void CudaDevice::copy_out(void* host, const void* device, std::size_t bytes) {
  if (bytes == 0) return;
  const PrimaryContext::Current current(context_);
  context_.run(context_.driver().cuMemcpyDtoHAsync, host, address_of(device), bytes, stream_);
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const PrimaryContext::Current current(context_);
  context_.run(context_.driver().cuMemcpyDtoDAsync, address_of(to), address_of(from), bytes,
               stream_);
}

void CudaDevice::fill(void* device, std::uint32_t word, std::size_t words) {
  if (words == 0) return;
  const PrimaryContext::Current current(context_);
  context_.run(context_.driver().cuMemsetD32Async, address_of(device), word, words, stream_);
}

void CudaDevice::launch(const device::Launch& launch) {
  if (launch.first.empty() || launch.first.back() == 0) return;
  const PrimaryContext::Current current(context_);
  auto n_jobs = static_cast<std::uint32_t>(launch.first.size() - 1);
  const std::size_t first_bytes = launch.first.size_bytes();
  // numbers of chunks first: they keep the jobs behind them aligned to 8 bytes
  const std::size_t bytes = first_bytes + launch.jobs.size();
  const std::lock_guard lock(mutex_);
  const LaunchRing::Room room = ring_->take(bytes);
  std::memcpy(room.host, launch.first.data(), first_bytes);
  std::memcpy(room.host + first_bytes, launch.jobs.data(), launch.jobs.size());
  copy_in(room.device, room.host, bytes);
  Address first = address_of(room.device), jobs = first + first_bytes;
  void* parameters[] = {&jobs, &first, &n_jobs};
  const unsigned blocks = blocks_for(launch.first.back(), context_.facts().multiprocessors);
  const Driver& driver = context_.driver();
  const Result result =
      driver.cuLaunchKernel.function(kernels_[static_cast<std::size_t>(launch.kernel)], blocks, 1,
                                     1, kThreads, 1, 1, 0, stream_, parameters, nullptr);
  if (result != kSuccess) {
    driver.fail(concat(context_.name(), ", kernel ", name_of(launch.kernel)), "cuLaunchKernel",
                result);
  }
}

void CudaDevice::call(const std::function<void()>& body) {
  const PrimaryContext::Current current(context_);
  body();
}

Device::Event CudaDevice::record() {
  const PrimaryContext::Current current(context_);
  return marks_->record(stream_);
}

void CudaDevice::wait(Event event) { marks_->wait(event); }

void CudaDevice::after(void* stream) { join(stream, stream_); }
void CudaDevice::before(void* stream) { join(stream_, stream); }

// The event can be reused at once: cuStreamWaitEvent waits for its state at the time of the call.
void CudaDevice::join(Stream from, Stream to) {
  if (from == to) return;
  const std::lock_guard lock(mutex_);
  const PrimaryContext::Current current(context_);
  context_.run(context_.driver().cuEventRecord, join_event_, from);
  context_.run(context_.driver().cuStreamWaitEvent, to, join_event_, 0U);
}

}  // namespace pride::cuda
