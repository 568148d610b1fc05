// bodies.h as NVRTC reads it, with what CUDA declares made up for the host.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/warps.h"

#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr unsigned kThreads = 64, kWarp = 32;

struct Dimension {
  unsigned x;
};
thread_local Dimension threadIdx, blockIdx;
Dimension blockDim{kThreads}, gridDim;

// A warp's lanes meet at a ballot or a shuffle: when all have voted, and when all have read.
struct Warp {
  std::barrier<> met{kWarp};
  std::atomic<unsigned> bits = 0;
  std::atomic<int> left = 0;  // lanes that have ended
  std::array<double, kWarp> values = {};
};
thread_local Warp* warp;

unsigned __ballot_sync(unsigned mask, bool vote) {
  if (mask != 0xFFFFFFFFU) throw std::logic_error("a ballot of some lanes");
  if (vote) warp->bits |= 1U << threadIdx.x % kWarp;
  warp->met.arrive_and_wait();
  if (warp->left != 0) throw std::logic_error("a ballot that not all lanes reach");
  const unsigned bits = warp->bits;
  warp->met.arrive_and_wait();
  warp->bits = 0;
  warp->met.arrive_and_wait();
  return bits;
}

// floats, and doubles, which hold them all
template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned lane) {
  if (mask != 0xFFFFFFFFU) throw std::logic_error("a shuffle of some lanes");
  warp->values[threadIdx.x % kWarp] = static_cast<double>(value);
  warp->met.arrive_and_wait();
  if (warp->left != 0) throw std::logic_error("a shuffle that not all lanes reach");
  const auto of_lane = static_cast<T>(warp->values[lane % kWarp]);
  warp->met.arrive_and_wait();
  return of_lane;
}

void atomicMin(unsigned* at, unsigned value) {
  std::atomic_ref<unsigned> word(*at);
  unsigned old = word;
  while (value < old && !word.compare_exchange_weak(old, value)) continue;
}

unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
float __fsqrt_rn(float x) { return std::sqrt(x); }
double __dsqrt_rn(double x) { return std::sqrt(x); }
int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }

}  // namespace

#define __CUDACC__
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __builtin_assume(condition) static_cast<void>(condition)
#define __isGlobal(pointer) (pointer != nullptr)
#define device device_of_warps  // the host's own compilation has the other name
// clang-format off
#include "device/lanes.h"
#include "device/rule_bodies.h"
#include "device/scale_bodies.h"
#include "device/level_bodies.h"
#include "device/bodies.h"
// clang-format on

namespace pride {
namespace {

using namespace device;
using Run = std::function<void(const void*, const void*, u32)>;

Run kernel_of(const std::string& wanted) {
#define PRIDE_KERNEL(name, Job)                                                       \
  if (wanted == #name) {                                                              \
    return [](const void* jobs, const void* first, u32 n) {                           \
      pride_##name(static_cast<const Job*>(jobs), static_cast<const u64*>(first), n); \
    };                                                                                \
  }
  PRIDE_KERNELS
#undef PRIDE_KERNEL
  throw std::invalid_argument("no kernel " + wanted);
}

class Block {
 public:
  void run_lane(unsigned thread, unsigned block, const std::function<void()>& kernel) {
    threadIdx = {thread}, blockIdx = {block};
    warp = &warps_[thread / kWarp];
    try {
      kernel();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!fault_) fault_ = std::current_exception();
    }
    ++warp->left;
    warp->met.arrive_and_drop();
  }
  void rethrow() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  std::array<Warp, kThreads / kWarp> warps_;
  std::mutex mutex_;  // guards fault_
  std::exception_ptr fault_;
};

}  // namespace

void run_as_warps(const std::string& kernel, const void* jobs, const void* first, std::uint32_t n,
                  unsigned blocks) {
  const Run run = kernel_of(kernel);
  gridDim = {blocks};
  for (unsigned b = 0; b < blocks; ++b) {
    Block block;
    std::vector<std::thread> lanes;
    for (unsigned t = 0; t < kThreads; ++t) {
      lanes.emplace_back([&, t] { block.run_lane(t, b, [&] { run(jobs, first, n); }); });
    }
    for (std::thread& lane : lanes) lane.join();
    block.rethrow();
  }
}

}  // namespace pride
