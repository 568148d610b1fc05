// The host as a space: kernels run at once, in place.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/wire.h"
#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "kernels/space.h"
#include "kernels/ternary.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kBlock = Values::kBlock;
static_assert(kBlock >= kernels::kScaleBlock);
constexpr std::uint32_t kNoFault = Wire::kNoTensor;

class HostSpace final : public Space {
 public:
  bool is_host() const noexcept override { return true; }
  std::shared_ptr<float[]> zeros(std::size_t n) override { return counted(memory_.zeros(n), n); }
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override { return memory_.frame(bytes); }
  void read_bytes(const void* from, std::span<std::byte> to) override {
    memory_.read_bytes(from, to);
  }
  void write_bytes(std::span<const std::byte> from, void* to) override {
    memory_.write_bytes(from, to);
  }

  std::uint32_t* watch(std::uint32_t& word) override { return &word; }
  void report(const std::uint32_t*, std::uint32_t&) override {}
  void forget(std::span<std::uint32_t> words) override { std::ranges::fill(words, kNoFault); }
  std::uint32_t fault_in(Guard word) override { return *word; }

  void clear(std::span<std::uint64_t> words) override { std::ranges::fill(words, 0); }

  void lion_sign_update(const Values& g, const kernels::Blend& blend,
                        const kernels::SharedBits& zeros, Floats m, std::span<std::uint64_t> bits,
                        FaultSlot fault) override {
    for_both(g, m, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
      const std::size_t bad = kernels::lion_sign_update(
          gradient, blend, zeros.from(at), part, bits.subspan(at / 64, words_for(part.size())));
      if (bad != kernels::kAllFinite) fault.note();
    });
  }
  void lion_blend(const Values& g, const kernels::Blend& blend, Floats m, std::span<float> u,
                  FaultSlot fault, Guard guard) override {
    if (is_faulty(guard)) return;
    for_both(g, m, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
      if (kernels::lion_blend(gradient, blend, part, u.subspan(at, part.size())) !=
          kernels::kAllFinite) {
        fault.note();
      }
    });
  }
  void pack_signs(std::span<const float> p, const kernels::SharedBits& zeros,
                  std::span<std::uint64_t> bits, Guard guard, FaultSlot fault) override {
    if (!is_faulty(guard)) return kernels::pack_signs(p, zeros, bits);
    std::ranges::fill(bits, 0);
    fault.note();
  }
  void cell_bits(const kernels::SharedBits& cells, std::span<std::uint64_t> bits) override {
    for (std::size_t k = 0; k < bits.size(); ++k) bits[k] = cells.at(k);
  }
  void check(const Values& g, FaultSlot fault) override {
    g.for_blocks([&](std::size_t, std::span<const float> part) {
      if (kernels::first_non_finite(part) != kernels::kAllFinite) fault.note();
    });
  }
  void apply_signs(std::span<const std::uint64_t> bits, kernels::Step step, Floats x) override {
    x.for_blocks([&](std::size_t at, std::span<float> part) {
      kernels::apply_signs(bits.subspan(at / 64, words_for(part.size())), step, part);
    });
  }
  void apply_ternary(std::span<const std::uint64_t> positive,
                     std::span<const std::uint64_t> nonzero, kernels::Step step,
                     Floats x) override {
    x.for_blocks([&](std::size_t at, std::span<float> part) {
      const std::size_t first = at / 64, n = words_for(part.size());
      kernels::apply_ternary(positive.subspan(first, n), nonzero.subspan(first, n), step, part);
    });
  }
  void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int present, int world, kernels::Step step,
                    Floats x) override {
    x.for_blocks([&](std::size_t at, std::span<float> part) {
      kernels::apply_counts(planes.subspan(at / 64), n_planes, plane_stride, present, world, step,
                            part);
    });
  }
  void apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                           std::size_t first_word, int present, int world, kernels::Step step,
                           Floats x) override {
    x.for_blocks([&](std::size_t at, std::span<float> part) {
      kernels::apply_packed_counts(packed, radix, first_word + at / 64, present, world, step, part);
    });
  }
  void apply_decay(float decay, Floats x) override {
    if (decay == 1) return;
    x.for_blocks([&](std::size_t, std::span<float> part) { kernels::apply_decay(decay, part); });
  }

  // All data of a block stay in the L1 cache.
  void compress(const Values& g, const kernels::Feedback& f, kernels::Norm norm,
                kernels::HashWords zeros, std::span<const float> m, std::span<const float> e,
                std::span<std::uint64_t> bits, kernels::BlockScales<float> scales,
                FaultSlot fault) override {
    alignas(64) std::array<float, kBlock> widened, room;
    scales.for_blocks(m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
      const auto p = std::span(room).first(n);
      kernels::feedback(or_zeros(g, at, n, widened), m.subspan(at, n), e.subspan(at, n), f, p);
      kernels::HashWords words = zeros;
      words.first_word += at / 64;
      scales.of[k] = kernels::compress(p, norm, words, bits.subspan(at / 64, words_for(n)));
      if (!std::isfinite(scales.of[k])) fault.note();
    });
  }
  void keep_feedback(const Values& g, const kernels::Feedback& f,
                     std::span<const std::uint64_t> bits, kernels::BlockScales<const float> scales,
                     std::span<float> m, std::span<float> e) override {
    alignas(64) std::array<float, kBlock> widened;
    scales.for_blocks(m.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
      kernels::keep_feedback(or_zeros(g, at, n, widened), f, bits.subspan(at / 64, words_for(n)),
                             scales.of[k], m.subspan(at, n), e.subspan(at, n));
    });
  }
  void apply_scaled_signs(std::span<const std::uint64_t> bits,
                          kernels::BlockScales<const float> scales, float decay,
                          Floats x) override {
    scales.for_blocks(x.size(), [&](std::size_t k, std::size_t at, std::size_t n) {
      apply_signs(bits.subspan(at / 64, words_for(n)), {decay, scales.of[k]}, x.subspan(at, n));
    });
  }

  void adamw(const Values& g, const kernels::AdamScalars& s, std::span<float> m, std::span<float> v,
             Floats x, Guard guard) override {
    if (is_faulty(guard)) return;
    for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
      const std::size_t n = part.size();
      kernels::adamw(gradient, s, m.subspan(at, n), v.subspan(at, n), part);
    });
  }
  void dense_lion(const Values& g, const kernels::Blend& blend, kernels::Step step, Floats m,
                  Floats x, Guard guard) override {
    if (is_faulty(guard)) return;
    for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
      const std::size_t n = part.size();
      m.subspan(at, n).for_blocks([&](std::size_t from, std::span<float> momentum) {
        kernels::dense_lion(gradient.subspan(from, momentum.size()), blend, step, momentum,
                            part.subspan(from, momentum.size()));
      });
    });
  }
  void sgd_momentum(const Values& g, float momentum, bool nesterov, kernels::Step step,
                    std::span<float> m, Floats x, Guard guard) override {
    if (is_faulty(guard)) return;
    for_both(g, x, [&](std::size_t at, std::span<const float> gradient, std::span<float> part) {
      kernels::sgd_momentum(gradient, momentum, nesterov, step, m.subspan(at, part.size()), part);
    });
  }

  void widen(const Values& g, std::span<float> out) override {
    g.for_blocks([&](std::size_t at, std::span<const float> part) {
      std::ranges::copy(part, out.subspan(at).begin());
    });
  }
  void copy(ConstFloats from, Floats to) override {
    if (!from.halved() && !to.halved()) {
      std::ranges::copy(from.span(), to.span().begin());
      return;
    }
    to.for_blocks([&](std::size_t at, std::span<float> part) {
      Memory::host().read(from.subspan(at, part.size()), part);
    });
  }
  void fill(std::span<float> x, float value) override { std::ranges::fill(x, value); }
  void poison(std::span<float> x, Guard guard) override {
    if (is_faulty(guard)) std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
  }
  void sum(ConstFloats a, std::span<const float> b, Floats out) override {
    alignas(64) std::array<float, kBlock> room;
    const std::size_t most = a.halved() ? kBlock : out.size();
    for (std::size_t begin = 0; begin < out.size(); begin += most) {
      const Floats some = out.subspan(begin, std::min(most, out.size() - begin));
      some.for_blocks([&](std::size_t at, std::span<float> part) {
        const ConstFloats row = a.subspan(begin + at, part.size());
        const float* const rows[] = {row.read(room).data(), b.data() + begin + at};
        kernels::sum_rows(rows, part);
      });
    }
  }
  void scale(float factor, std::span<float> x) override { kernels::scale(factor, x); }
  void find(std::span<const float> x, FaultSlot found) override {
    if (kernels::max_abs(x) > 0) found.note();
  }

  void adopt(const Float16* values, std::span<float> master) override {
    std::array<Float16, kBlock> block;
    for (std::size_t at = 0; at < master.size(); at += kBlock) {
      const auto part = master.subspan(at, std::min(kBlock, master.size() - at));
      const std::span given(values + at, part.size());
      const std::span rounded(block.data(), part.size());
      to_float16(part, rounded);
      if (std::ranges::equal(given, rounded)) continue;
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (given[i] != rounded[i]) to_float(given.subspan(i, 1), part.subspan(i, 1));
      }
    }
  }
  void publish(std::span<const float> master, Float16* values) override {
    to_float16(master, std::span(values, master.size()));
  }

 private:
  const std::byte* bring_bytes(std::span<const std::byte> frame) override { return frame.data(); }
  std::byte* stage_bytes(std::span<std::byte> frame) override { return frame.data(); }
  void send_bytes(const void*, std::span<std::byte>) override {}
  static std::span<const float> or_zeros(const Values& g, std::size_t at, std::size_t n,
                                         std::span<float> room) {
    alignas(64) static constexpr std::array<float, kBlock> kZeros{};
    return g.data == nullptr ? std::span(kZeros).first(n) : g.read(at, n, room);
  }
  // Calls body(at, gradient, x) for blocks of both, or for all at once.
  static void for_both(const Values& g, Floats x, auto&& body) {
    alignas(64) std::array<float, kBlock> room;
    const auto of_block = [&](std::size_t at, std::span<float> part) {
      body(at, g.read(at, part.size(), room), part);
    };
    if (!x.halved() && g.direct()) return of_block(0, x.span());
    for (std::size_t at = 0; at < x.size(); at += kBlock) {
      x.subspan(at, std::min(kBlock, x.size() - at))
          .for_blocks([&](std::size_t, std::span<float> part) { of_block(at, part); });
    }
  }
  static bool is_faulty(Guard guard) { return guard != nullptr && *guard != kNoFault; }

  Memory& memory_ = Memory::host();
};

}  // namespace

std::shared_ptr<std::uint32_t[]> Space::fault_words(std::size_t n) {
  auto floats = zeros(n);
  auto* words = reinterpret_cast<std::uint32_t*>(floats.get());
  return {std::move(floats), words};
}

void Space::call(const std::function<void(void*)>&) {
  throw Error("space: call() needs a device; the host has no queue");
}

Space& Space::host() {
  static HostSpace space;
  return space;
}

std::unique_ptr<Space> Space::make_host() { return std::make_unique<HostSpace>(); }

}  // namespace pride
