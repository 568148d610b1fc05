// SPDX-License-Identifier: Apache-2.0
#include "device/device_space.h"

#include <algorithm>
#include <cstring>

namespace pride {
namespace {

constexpr std::size_t kLeastBlock = std::size_t{1} << 20;
constexpr std::size_t kAligned = 256;

device::Betas betas_of(const kernels::Blend& b) {
  return {b.beta1, b.one_minus_beta1, b.beta2, b.one_minus_beta2};
}
device::Hash hash_of(const kernels::HashWords& h) { return {h.key, h.first_word, h.flip}; }
device::Rate rate_of(kernels::Step step) { return {step.decay, step.lr}; }
device::Values values_of(const Values& v) {
  return {v.data, static_cast<device::u32>(v.dtype), v.factor};
}
device::Fault fault_of(FaultSlot fault) { return {fault.word, fault.tensor}; }

static_assert(static_cast<device::u32>(DType::kFloat32) == device::kFloat32);
static_assert(static_cast<device::u32>(DType::kBFloat16) == device::kBFloat16);
static_assert(static_cast<device::u32>(DType::kFloat16) == device::kFloat16);

using device::Kernel;

}  // namespace

DeviceSpace::DeviceSpace(std::shared_ptr<Device> device) : device_(std::move(device)) {}
DeviceSpace::~DeviceSpace() = default;

// --- Memory. -------------------------------------------------------------------------------------

std::shared_ptr<float[]> DeviceSpace::zeros(std::size_t n) {
  auto* memory = static_cast<float*>(device_->allocate(n * sizeof(float)));
  std::shared_ptr<float[]> owner(memory, [device = device_](float* p) { device->free(p); });
  device_->fill(memory, 0, n);
  return owner;
}

std::shared_ptr<std::byte[]> DeviceSpace::frame(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(device_->allocate_host(bytes));
  return {memory, [device = device_](std::byte* p) { device->free_host(p); }};
}

void DeviceSpace::read(const float* from, std::span<float> to) {
  barrier();
  device_->copy_out(to.data(), from, to.size_bytes());
  device_->wait(device_->record());
}

void DeviceSpace::write(std::span<const float> from, float* to) {
  barrier();
  device_->copy_in(to, from.data(), from.size_bytes());
  device_->wait(device_->record());
}

// Of the same memory in every turn: the queue runs in order, so that what an earlier turn used is
// done with it.
void* DeviceSpace::scratch(std::size_t bytes) {
  bytes = (bytes + kAligned - 1) / kAligned * kAligned;
  for (; block_ < blocks_.size(); ++block_, used_ = 0) {
    if (used_ + bytes > blocks_[block_].bytes) continue;
    used_ += bytes;
    return blocks_[block_].memory.get() + (used_ - bytes);
  }
  const std::size_t size = std::max(bytes, kLeastBlock);
  auto* memory = static_cast<std::byte*>(device_->allocate(size));
  blocks_.push_back({{memory, [device = device_](std::byte* p) { device->free(p); }}, size});
  used_ = bytes;
  return memory;
}

void DeviceSpace::begin_frames() {
  barrier();
  block_ = used_ = 0;
}

// --- Frames. -------------------------------------------------------------------------------------

std::span<std::uint64_t> DeviceSpace::stage(std::span<std::uint64_t> frame) {
  return {static_cast<std::uint64_t*>(scratch(frame.size_bytes())), frame.size()};
}

void DeviceSpace::send(std::span<const std::uint64_t> staged, std::span<std::uint64_t> frame) {
  barrier();
  if (!frame.empty()) device_->copy_out(frame.data(), staged.data(), frame.size_bytes());
}

const std::byte* DeviceSpace::bring_bytes(std::span<const std::byte> frame) {
  if (frame.empty()) return nullptr;
  auto* memory = static_cast<std::byte*>(scratch(frame.size()));
  device_->copy_in(memory, frame.data(), frame.size());
  return memory;
}

std::uint32_t* DeviceSpace::watch(std::uint32_t&) {
  auto* word = static_cast<std::uint32_t*>(scratch(sizeof(std::uint32_t)));
  device_->fill(word, device::kNoTensor, 1);
  return word;
}

void DeviceSpace::report(const std::uint32_t* watched, std::uint32_t& word) {
  barrier();
  device_->copy_out(&word, watched, sizeof word);
}

// --- Kernels. ------------------------------------------------------------------------------------

template <typename Job>
void DeviceSpace::add(Kernel kernel, const Job& job) {
  if (job.n == 0) return;
  std::size_t b = 0;
  while (b < n_batches_ && batches_[b].kernel != kernel) ++b;
  if (b == n_batches_) {
    if (b == batches_.size()) batches_.emplace_back();
    batches_[b].kernel = kernel;
    batches_[b].jobs.clear();
    batches_[b].first.assign(1, 0);
    ++n_batches_;
  }
  Batch& batch = batches_[b];
  const std::size_t at = batch.jobs.size();
  batch.jobs.resize(at + sizeof job);
  std::memcpy(batch.jobs.data() + at, &job, sizeof job);
  batch.first.push_back(batch.first.back() + (job.n + device::kChunk - 1) / device::kChunk);
}

void DeviceSpace::barrier() {
  for (std::size_t b = 0; b < n_batches_; ++b) {
    device_->launch({batches_[b].kernel, batches_[b].jobs, batches_[b].first});
  }
  n_batches_ = 0;
}

void DeviceSpace::clear(std::span<std::uint64_t> words) {
  barrier();
  if (!words.empty()) device_->fill(words.data(), 0, 2 * words.size());
}

void DeviceSpace::lion_sign_update(const Values& g, const kernels::Blend& blend,
                                   kernels::HashWords zeros, std::span<float> m,
                                   std::span<std::uint64_t> bits, FaultSlot fault) {
  add(Kernel::k_lion_signs, device::LionSigns{values_of(g), m.data(), bits.data(), m.size(),
                                              betas_of(blend), hash_of(zeros), fault_of(fault)});
}

void DeviceSpace::apply_signs(std::span<const std::uint64_t> bits, kernels::Step step,
                              std::span<float> x) {
  add(Kernel::k_apply_signs,
      device::ApplySigns{bits.data(), nullptr, x.data(), x.size(), rate_of(step)});
}

void DeviceSpace::apply_ternary(std::span<const std::uint64_t> positive,
                                std::span<const std::uint64_t> nonzero, kernels::Step step,
                                std::span<float> x) {
  add(Kernel::k_apply_signs,
      device::ApplySigns{positive.data(), nonzero.data(), x.data(), x.size(), rate_of(step)});
}

void DeviceSpace::apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                               std::size_t plane_stride, int present, int world, kernels::Step step,
                               std::span<float> x) {
  add(Kernel::k_apply_counts, device::ApplyCounts{planes.data(), n_planes, plane_stride, x.data(),
                                                  x.size(), rate_of(step), present, world});
}

void DeviceSpace::apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                                      std::size_t first_word, int present, int world,
                                      kernels::Step step, std::span<float> x) {
  add(Kernel::k_apply_packed,
      device::ApplyPacked{packed.data(), radix.n_digits, first_word, x.data(), x.size(),
                          rate_of(step), present, world, radix.base});
}

void DeviceSpace::apply_decay(float decay, std::span<float> x) {
  if (decay != 1) add(Kernel::k_scale, device::Scale{x.data(), x.size(), decay});
}

void DeviceSpace::adopt(const void* values, DType dtype, std::span<float> master) {
  // the kernel only reads the values
  add(Kernel::k_adopt, device::Narrow{const_cast<void*>(values), master.data(), master.size(),
                                      static_cast<device::u32>(dtype)});
}

void DeviceSpace::publish(std::span<const float> master, DType dtype, void* values) {
  add(Kernel::k_publish, device::Narrow{values, const_cast<float*>(master.data()), master.size(),
                                        static_cast<device::u32>(dtype)});
}

// --- Order. --------------------------------------------------------------------------------------

Space::Event DeviceSpace::record() {
  barrier();
  return device_->record();
}

void DeviceSpace::after(void* stream) {
  barrier();
  device_->after(stream);
}

void DeviceSpace::before(void* stream) {
  barrier();
  device_->before(stream);
}

}  // namespace pride
