// The tests' device: memory that the host cannot access, and a queue that runs as late as possible,
// when a thread waits. So a missing copy is a fault, and a missing wait a wrong result. Chunks of a
// launch run in a random order, as on a GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "pride/device.h"
#include "pride/error.h"
#include "rules/orthogonalise.h"

namespace pride::testing {

class TestDevice final : public Device {
 public:
  // A fault planted for the tests to find.
  enum class Planted { kNothing, kNoCopyIn, kNoCopyOut, kNoWait };

  explicit TestDevice(Planted planted = Planted::kNothing) : planted_(planted) {
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    PRIDE_CHECK(memory_ != MAP_FAILED, "test device: no memory");
  }
  ~TestDevice() override { munmap(memory_, kBytes); }

  std::string name() const override { return "the device of the tests"; }

  // Never returns the same memory twice. New and freed memory hold 0xFF, which shows a use before a
  // write or after a free.
  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    std::byte* const at = memory_ + used_;
    queue([at, bytes] { std::memset(at, 0xFF, bytes); });
    used_ += (bytes + 255) / 256 * 256;
    PRIDE_CHECK(used_ <= kBytes, "test device: ", used_, " bytes, at most ", kBytes);
    sizes_.push_back({at, bytes});
    held_ += bytes;
    return at;
  }
  void free(void* memory) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [at, bytes] : sizes_) held_ -= at == memory ? bytes : 0;
    }
    add([this, memory] {
      for (const auto& [at, bytes] : sizes_) {
        if (at == memory) std::memset(at, 0xFF, bytes);
      }
    });
  }
  // Bytes that were allocated on the device and not freed.
  std::size_t held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  void* allocate_host(std::size_t bytes) override {
    const std::size_t whole = (bytes + 63) / 64 * 64;
    return std::memset(std::aligned_alloc(64, whole), 0xA5, whole);
  }
  void free_host(void* memory) noexcept override { std::free(memory); }

  void copy_in(void* device, const void* host, std::size_t bytes) override {
    if (planted_ == Planted::kNoCopyIn) return;
    copy(device, host, bytes);
  }
  void copy_out(void* host, const void* device, std::size_t bytes) override {
    if (planted_ == Planted::kNoCopyOut) return;
    copy(host, device, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) add([=] { std::memcpy(to, from, bytes); });
  }
  void fill(void* device, std::uint32_t word, std::size_t words) override {
    add([=] { std::fill_n(static_cast<std::uint32_t*>(device), words, word); });
  }
  void launch(const device::Launch& launch) override {
    if (failing > 0 && --failing == 0) throw Error("the device of the tests: a launch fails");
    ++launches;
    add([this, kernel = launch.kernel, jobs = std::vector(launch.jobs.begin(), launch.jobs.end()),
         first = std::vector(launch.first.begin(), launch.first.end())] {
      device::run_on_host({kernel, jobs, first}, done_);
    });
  }
  void call(const std::function<void()>& body) override { add(body); }
  void* stream() const noexcept override { return nullptr; }

  Event record() override {
    const std::lock_guard lock(mutex_);
    return added_;
  }
  // With kNoWait the host continues, and frees memory that the queue still needs.
  void wait(Event event) override {
    if (planted_ == Planted::kNoWait) return forget();
    run_until(event);
  }
  void after(void* stream) override { awaited.push_back(stream); }
  void before(void*) override {}

  int launches = 0;            // so far
  int failing = 0;             // above 0: that launch from now fails
  std::vector<void*> awaited;  // arguments of after()

  // For tests: copies values to the device and back, after the queued work.
  void put(void* device, std::span<const std::byte> host) {
    copy(device, host.data(), host.size());
    run_until(record());
  }
  void get(const void* device, std::span<std::byte> host) {
    copy(host.data(), device, host.size());
    run_until(record());
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 30;

  void add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue(std::move(work));
  }
  void queue(std::function<void()> work) {  // REQUIRES: the lock
    queue_.push_back(std::move(work));
    ++added_;
  }
  void run_until(Event event) {
    const std::lock_guard lock(mutex_);
    protect(PROT_READ | PROT_WRITE);
    for (; done_ < event; ++done_) {
      queue_.front()();
      queue_.pop_front();
    }
    protect(PROT_NONE);
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    done_ = added_;
  }
  void protect(int access) {
    if (used_ > 0) mprotect(memory_, (used_ + 4095) / 4096 * 4096, access);
  }

  Planted planted_;
  std::size_t held_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;
  std::vector<std::pair<std::byte*, std::size_t>> sizes_;
  std::mutex mutex_;
  std::deque<std::function<void()>> queue_;
  Event added_ = 0, done_ = 0;
};

// Orthogonalises as on the host. The queue calls it when the host may access the device's memory.
inline void by_blas(const DeviceMatrices& matrices, void*) {
  rules::Orthogonaliser orthogonaliser(matrices.iterations);
  for (float* data : matrices.data) {
    orthogonaliser.run({data, matrices.rows, matrices.cols, matrices.stride});
  }
}

// Values in device memory.
template <typename T>
class OnDevice {
 public:
  OnDevice(TestDevice& device, std::span<const T> values)
      : device_(device),
        memory_(static_cast<T*>(device.allocate(std::max<std::size_t>(1, values.size_bytes())))),
        n_(values.size()) {
    put(values);
  }
  void put(std::span<const T> values) { device_.put(memory_, std::as_bytes(values)); }
  std::vector<T> get() const {
    std::vector<T> values(n_);
    device_.get(memory_, std::as_writable_bytes(std::span(values)));
    return values;
  }
  T* data() const { return memory_; }
  std::span<T> span() const { return {memory_, n_}; }

 private:
  TestDevice& device_;
  T* memory_;
  std::size_t n_;
};

}  // namespace pride::testing
