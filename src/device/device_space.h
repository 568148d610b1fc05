// DeviceSpace: a device as a space for methods. It collects their kernel calls as lists of jobs,
// and has device memory for the words of frames.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "kernels/level_kernels.h"
#include "kernels/space.h"

namespace pride {

class DeviceSpace final : public Space, public LevelKernels {
 public:
  explicit DeviceSpace(std::shared_ptr<Device> device);
  ~DeviceSpace() override;

  bool is_host() const noexcept override { return false; }
  std::shared_ptr<float[]> zeros(std::size_t n) override;
  std::shared_ptr<float[]> room(std::size_t n) override;
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override;
  void read_bytes(const void* from, std::span<std::byte> to) override;
  void write_bytes(std::span<const std::byte> from, void* to) override;

  std::uint32_t* watch(std::uint32_t& word) override;
  void report(const std::uint32_t* watched, std::uint32_t& word) override;
  void stage_block(std::span<std::byte> block) override;
  void bring_block(std::span<const std::byte> block) override;
  void forget(std::span<std::uint32_t> words) override;
  std::uint32_t fault_in(Guard word) override;

  void clear(std::span<std::uint64_t> words) override;
  void lion_sign_update(const Values& g, const kernels::Blend& blend,
                        const kernels::SharedBits& zeros, Floats m, std::span<std::uint64_t> bits,
                        FaultSlot fault) override;
  void lion_blend(const Values& g, const kernels::Blend& blend, Floats m, std::span<float> u,
                  FaultSlot fault, Guard guard) override;
  void pack_signs(std::span<const float> p, const kernels::SharedBits& zeros,
                  std::span<std::uint64_t> bits, Guard guard, FaultSlot fault) override;
  void cell_bits(const kernels::SharedBits& cells, std::span<std::uint64_t> bits) override;
  void check(const Values& g, FaultSlot fault) override;
  void apply_signs(std::span<const std::uint64_t> bits, kernels::Step step, Floats x) override;
  void apply_ternary(std::span<const std::uint64_t> positive,
                     std::span<const std::uint64_t> nonzero, kernels::Step step, Floats x) override;
  void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int present, int world, kernels::Step step,
                    Floats x) override;
  void apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                           std::size_t first_word, int present, int world, kernels::Step step,
                           Floats x) override;
  void apply_decay(float decay, Floats x) override;
  void compress(const Values& g, const kernels::Feedback& f, kernels::Norm norm,
                kernels::HashWords zeros, std::span<const float> m, std::span<const float> e,
                std::span<std::uint64_t> bits, kernels::BlockScales<float> scales,
                FaultSlot fault) override;
  void keep_feedback(const Values& g, const kernels::Feedback& f,
                     std::span<const std::uint64_t> bits, kernels::BlockScales<const float> scales,
                     std::span<float> m, std::span<float> e) override;
  void apply_scaled_signs(std::span<const std::uint64_t> bits,
                          kernels::BlockScales<const float> scales, float decay, Floats x) override;
  void adamw(const Values& g, const kernels::AdamScalars& s, std::span<float> m, std::span<float> v,
             Floats x, Guard guard) override;
  void dense_lion(const Values& g, const kernels::Blend& blend, kernels::Step step, Floats m,
                  Floats x, Guard guard) override;
  void sgd_momentum(const Values& g, float momentum, bool nesterov, kernels::Step step,
                    std::span<float> m, Floats x, Guard guard) override;
  void widen(const Values& g, std::span<float> out) override;
  void copy(ConstFloats from, Floats to) override;
  void fill(std::span<float> x, float value) override;
  void poison(std::span<float> x, Guard guard) override;
  void sum(ConstFloats a, std::span<const float> b, Floats out) override;
  void scale(float factor, std::span<float> x) override;
  void find(std::span<const float> x, FaultSlot found) override;
  void adopt(const Float16* values, std::span<float> master) override;
  void publish(std::span<const float> master, Float16* values) override;

  std::size_t scratch_bytes() const noexcept override;
  LevelKernels* levels() override { return this; }
  void measure(const BlendOf& u, Size size, std::span<double> sums) override;
  void measure_blocks(const BlendOf& u, Size size, int largest,
                      kernels::BlockScales<float> steps) override;
  void quantise(const BlendOf& u, const Steps& steps, std::span<float> m, std::span<float> next,
                const Lines& lines, FaultSlot fault) override;
  void write_values(std::span<const float> values, std::span<float> scales, const Lines& lines,
                    FaultSlot fault) override;
  void read_values(std::span<const float> scales, const Lines& lines,
                   std::span<float> values) override;

  void call(const std::function<void(void* stream)>& body) override;
  void begin_frames() override;
  Event record() override;
  void wait(Event event) override { device_->wait(event); }
  void after(void* stream) override;
  void before(void* stream) override;

 private:
  // What a call does with a range of memory. Notes of faults may come in any order, as the lowest
  // stays.
  enum class Use : std::uint8_t { kRead, kNote, kWrite };
  struct Range {
    template <typename T>
    Range(std::span<T> s) : begin(s.data()), bytes(s.size_bytes()) {}
    Range(const Values& v) : begin(v.data), bytes(v.n * size_of(v.dtype)) {}
    Range(const ConstFloats& f)
        : begin(f.halved() ? static_cast<const void*>(f.upper) : f.data),
          bytes(f.n * (f.halved() ? sizeof *f.upper : sizeof *f.data)) {}
    Range(const Floats& f) : Range(ConstFloats(f)) {}
    Range(const Lines& lines, std::size_t n);
    Range(Guard guard) : Range(guard, guard == nullptr ? 0 : sizeof *guard) {}
    Range(const void* at, std::size_t n_bytes) : begin(at), bytes(n_bytes) {}
    const void* begin;
    std::size_t bytes;
    Use use = Use::kRead;
  };
  static Range from(Range range) { return range; }
  static Range to(Range range) {
    range.use = Use::kWrite;
    return range;
  }
  static Range notes(FaultSlot fault) {
    Range range(fault.word);
    range.use = Use::kNote;
    return range;
  }
  // Calls of one kernel that are not launched yet, and the memory that they use (begin to end).
  struct Batch {
    device::Kernel kernel;
    std::vector<std::byte> jobs;
    std::vector<device::u64> first;
    std::array<std::map<std::uintptr_t, std::uintptr_t>, 3> used;  // by Use
    bool conflicts(std::span<const Range> ranges) const;
    void use(const Range& range);
  };
  // A block of frames in the host's memory, and its copy on the device.
  struct Copied {
    std::span<std::byte> block;
    std::byte* copy;
  };
  const Copied* block_of(std::span<const std::byte> frame) const;
  const std::byte* bring_bytes(std::span<const std::byte> frame) override;
  std::byte* stage_bytes(std::span<std::byte> frame) override;
  void send_bytes(const void* staged, std::span<std::byte> frame) override;
  Batch& batch_of(device::Kernel kernel, std::span<const Range> ranges);
  template <typename Job>
  void add(device::Kernel kernel, const Job& job, std::initializer_list<Range> ranges) {
    if (job.n > 0) add_job(kernel, std::as_bytes(std::span(&job, 1)), job.n, ranges);
  }
  void add_job(device::Kernel kernel, std::span<const std::byte> job, std::size_t n,
               std::initializer_list<Range> ranges);
  void flush();
  void set(const Range& words, std::uint32_t value);
  void* scratch(std::size_t bytes);

  // The lower halves of `f`, which from() and to() of `f` leave out.
  static Range lower_of(const ConstFloats& f) {
    return {f.lower, f.lower != nullptr ? f.n * sizeof *f.lower : 0};
  }

  struct Kept;

  std::shared_ptr<Device> device_;
  std::shared_ptr<Kept> kept_;  // shared: floats may outlive this
  std::vector<Batch> batches_;
  std::size_t n_batches_ = 0;  // in use; the others keep their memory
  // copies to frames that follow the batches
  struct Sent {
    std::span<std::byte> frame;
    const void* staged;
  };
  std::vector<Sent> sent_;
  std::vector<Copied> copied_;
  std::optional<void*> behind_;  // the caller's stream, if the queue does not wait for it yet
  // memory for the words of frames, in blocks that are filled in order
  struct Block {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

}  // namespace pride
