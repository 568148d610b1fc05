// A device's kernels against the host's, bit for bit: sizes around words and chunks, dtypes,
// factors, NaN, infinities, denormal numbers and zeros of both signs.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/wire.h"
#include "base/words.h"
#include "device/both_spaces.h"
#include "pride/bf16.h"
#include "pride/float16.h"

namespace pride::space_test {
namespace {

constexpr std::size_t kSizes[] = {1, 3, 63, 64, 65, 255, 256, 257, 1000, 4095, 4097};
constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
constexpr kernels::Step kStep{{0.999f, 1.0f}, 0.0137f};

template <typename Body>
void for_sizes(const Body& body) {
  std::uint32_t seed = 1;
  for (const std::size_t n : kSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Both both(seed++);
      body(both, n, dtype, both.below(2) == 0 ? 1.0f : 0.375f);
    }
  }
}

TEST(DeviceKernels, EncodeAsTheHost) {
  for_sizes([](Both& both, std::size_t n, DType dtype, float factor) {
    Gradient g(both, both.floats(n, false), dtype, factor);
    Pair<float> m(both, both.floats(n)), u(both, both.floats(n)), n_of(both, both.floats(n));
    Pair<std::uint64_t> bits(both, both.words(n)), packed(both, both.words(n));
    Pair<std::uint32_t> faults(both, {Wire::kNoTensor, Wire::kNoTensor, Wire::kNoTensor, 3});
    Pair<float> x(both, both.floats(n));
    Pair<std::uint64_t> cells(both, both.words(n));
    const std::uint64_t flip = both.below(2) == 0 ? 0 : ~std::uint64_t{0};
    run(both, [&](Space& space, bool on) {
      kernels::SharedBits zeros;
      zeros.x = Floats(x.at(on));
      zeros.per_cell = 7.3f;
      zeros.flip = flip;
      space.run(kernels::CellBits{zeros, cells.at(on)});
      std::uint32_t* const words = faults.at(on).data();
      space.run(kernels::LionSigns{g.at(on), kBlend, zeros, m.at(on), bits.at(on), {words, 9}});
      space.run(kernels::LionBlend{g.at(on), kBlend, n_of.at(on), u.at(on), {words + 1, 4}});
      space.run(kernels::PackSigns{
          u.at(on), zeros, packed.at(on), words + (n % 2 == 0 ? 3 : 2), {words + 2, 6}});
      space.run(kernels::CheckFinite{g.at(on), {words, 8}});
    });
    m.expect_equal("lion_sign_update m", n);
    bits.expect_equal("lion_sign_update bits", n);
    n_of.expect_equal("lion_blend m", n);
    u.expect_equal("lion_blend u", n);
    packed.expect_equal("pack_signs", n);
    cells.expect_equal("cell_bits", n);
    faults.expect_equal("faults", n);
  });
}

TEST(DeviceKernels, ApplyAsTheHost) {
  for_sizes([](Both& both, std::size_t n, DType, float) {
    Pair<float> signs(both, both.floats(n)), ternary(both, both.floats(n)),
        counts(both, both.floats(n)), packed_x(both, both.floats(n)), decayed(both, both.floats(n));
    Pair<std::uint64_t> positive(both, both.words(n)), nonzero(both, both.words(n));
    const std::size_t stride = words_for(n) + both.below(3), planes = 1 + both.below(4);
    Pair<std::uint64_t> counted(both, both.words(64 * stride * planes));
    const kernels::Radix radix = kernels::radix_of(2 + both.below(9));
    const std::size_t first = both.below(20);
    std::vector<std::uint32_t> fractions(
        64 * ((first + words_for(n) + radix.n_digits - 1) / radix.n_digits));
    for (std::uint32_t& f : fractions) f = both.below(~0u);
    Pair<std::uint32_t> packed(both, std::move(fractions));
    run(both, [&](Space& space, bool on) {
      space.run(kernels::ApplySigns{positive.at(on), kStep, signs.at(on)});
      space.run(kernels::ApplyTernary{positive.at(on), nonzero.at(on), kStep, ternary.at(on)});
      space.run(kernels::ApplyCounts{counted.at(on), planes, stride, 5, 7, kStep, counts.at(on)});
      space.run(
          kernels::ApplyPackedCounts{packed.at(on), radix, first, 3, 4, kStep, packed_x.at(on)});
      space.run(kernels::ApplyDecay{0.97f, decayed.at(on)});
    });
    signs.expect_equal("apply_signs", n);
    ternary.expect_equal("apply_ternary", n);
    counts.expect_equal("apply_counts", n);
    packed_x.expect_equal("apply_packed_counts", n);
    decayed.expect_equal("apply_decay", n);
  });
}

TEST(DeviceKernels, StepAsTheHost) {
  for_sizes([](Both& both, std::size_t n, DType dtype, float factor) {
    Gradient g(both, both.floats(n), dtype, factor);
    std::vector<float> squares = both.floats(n);
    for (float& v : squares) v = std::abs(v);
    Pair<float> m(both, both.floats(n)), v(both, squares), x(both, both.floats(n)),
        lion_m(both, both.floats(n)), lion_x(both, both.floats(n)), sgd_m(both, both.floats(n)),
        sgd_x(both, both.floats(n)), left(both, both.floats(n));
    Pair<std::uint32_t> guards(both, {Wire::kNoTensor, 2});
    const kernels::AdamScalars adam{0.9f,   0.1f, 0.999f, 0.001f,
                                    0.003f, 0.7f, 1e-8f,  {0.999f, 1.0f}};
    run(both, [&](Space& space, bool on) {
      const Guard good = guards.at(on).data(), faulty = good + 1;
      space.run(kernels::AdamW{g.at(on), adam, m.at(on), v.at(on), x.at(on), good});
      space.run(kernels::DenseLion{g.at(on), kBlend, kStep, lion_m.at(on), lion_x.at(on)});
      space.run(kernels::SgdMomentum{g.at(on), 0.9f, n % 2 == 0, kStep, sgd_m.at(on), sgd_x.at(on),
                                     good});
      space.run(kernels::DenseLion{g.at(on), kBlend, kStep, left.at(on), left.at(on), faulty});
    });
    for (Pair<float>* each : {&m, &v, &x}) each->expect_equal("adamw", n);
    for (Pair<float>* each : {&lion_m, &lion_x}) each->expect_equal("dense_lion", n);
    for (Pair<float>* each : {&sgd_m, &sgd_x}) each->expect_equal("sgd_momentum", n);
    left.expect_equal("dense_lion with a fault at the guard", n);
  });
}

// Chains that depend on each other in both orders: calls run as if one after the other.
TEST(DeviceKernels, MoveAsTheHost) {
  for_sizes([](Both& both, std::size_t n, DType dtype, float factor) {
    Gradient g(both, both.floats(n), dtype, factor);
    Pair<float> a(both, both.floats(n)), b(both, both.floats(n)), c(both, both.floats(n)),
        poisoned(both, both.floats(n));
    Pair<std::uint32_t> guards(both, {Wire::kNoTensor, 2});
    run(both, [&](Space& space, bool on) {
      space.run(kernels::Widen{g.at(on), a.at(on)});
      space.run(kernels::Sum{a.at(on), b.at(on), c.at(on)});
      space.run(kernels::Scale{-0.5f, c.at(on)});
      space.run(kernels::Sum{c.at(on), a.at(on), b.at(on)});
      space.run(kernels::Copy{b.at(on), a.at(on)});
      space.run(kernels::Scale{3.0f, a.at(on)});
      space.run(kernels::Fill{c.at(on), 0.25f});
      space.run(kernels::Sum{c.at(on), a.at(on), c.at(on)});
      space.run(kernels::Poison{poisoned.at(on), guards.at(on).data() + n % 2});
    });
    for (Pair<float>* each : {&a, &b, &c}) each->expect_equal("a chain", n);
    poisoned.expect_equal("poison", n);
  });
}

TEST(DeviceKernels, RoundMastersAsTheHost) {
  Both both(3);
  for (const std::size_t n : kSizes) {
    std::vector<float> values = both.floats(n, false);
    std::vector<std::uint16_t> narrow(n);
    for (std::uint16_t& x : narrow) x = static_cast<std::uint16_t>(both.below(65536));
    Pair<float> published(both, values), adopted(both, both.floats(n));
    Pair<std::uint16_t> to(both, narrow), from(both, narrow);
    run(both, [&](Space& space, bool on) {
      space.run(kernels::Publish{
          published.at(on),
          {reinterpret_cast<Float16*>(to.at(on).data()), published.at(on).size()}});
      space.run(kernels::Adopt{
          {reinterpret_cast<const Float16*>(from.at(on).data()), adopted.at(on).size()},
          adopted.at(on)});
    });
    to.expect_equal("publish", n);
    adopted.expect_equal("adopt", n);
  }
}

// All kernels that change parameters: halves on the host and on the device, and floats.
TEST(DeviceKernels, ChangeHalvesAsFloats) {
  Both both(4);
  for (const std::size_t n : kSizes) {
    const auto values = both.floats(n);
    std::vector<std::uint16_t> high(n), low(n);
    split(values, high.data(), low.data());
    std::vector<float> whole = values, mean = values;
    Pair<std::uint16_t> upper(both, high), lower(both, low), other(both, high), rest(both, low);
    Pair<float> g(both, both.floats(n)), m(both, both.floats(n)), v(both, std::vector(n, 0.5f));
    std::vector<float> m_of_whole = m.host, v_of_whole = v.host;
    Pair<std::uint64_t> bits(both, both.words(n)), more(both, both.words(n));
    std::vector<std::uint64_t> both_planes = bits.host;
    both_planes.insert(both_planes.end(), more.host.begin(), more.host.end());
    Pair<std::uint64_t> planes(both, both_planes);
    std::vector<std::uint32_t> some(64 * (words_for(n) / 2 + 2));
    for (std::uint32_t& x : some) x = both.below(0xFFFFFFFFu);
    Pair<std::uint32_t> packed(both, some);
    const auto change = [&](Space& space, bool on, Floats x, Floats y, std::span<float> mx,
                            std::span<float> vx) {
      const auto plus = std::span<const std::uint64_t>(bits.at(on));
      const auto gradient = Values::of(g.at(on));
      const kernels::AdamScalars adam{.step_size = 0.01f, .eps = 1e-8f, .decay = 0.999f};
      space.run(kernels::ApplySigns{plus, kStep, x});
      space.run(kernels::ApplyTernary{plus, more.at(on), kStep, x});
      space.run(kernels::ApplyCounts{planes.at(on), 2, words_for(n), 3, 3, kStep, x});
      space.run(
          kernels::ApplyPackedCounts{packed.at(on), {.base = 4, .n_digits = 2}, 1, 3, 3, kStep, x});
      space.run(kernels::ApplyDecay{0.875f, x});
      space.run(kernels::DenseLion{gradient, kBlend, kStep, mx, x});
      space.run(kernels::SgdMomentum{gradient, 0.5f, true, kStep, mx, x});
      space.run(kernels::AdamW{gradient, adam, mx, vx, x});
      space.run(kernels::Copy{x, y});
      space.run(kernels::Sum{y, g.at(on), x});
      space.run(kernels::Sum{x, g.at(on), x});
    };
    change(Space::host(), false, std::span(whole), std::span(mean), m_of_whole, v_of_whole);
    run(both, [&](Space& space, bool on) {
      const Floats x(upper.at(on).data(), lower.at(on).data(), n);
      const Floats y(other.at(on).data(), rest.at(on).data(), n);
      change(space, on, x, y, m.at(on), v.at(on));
    });
    for (auto* half : {&upper, &lower, &other, &rest}) half->expect_equal("halves", n);
    std::vector<float> joined(n);
    join(upper.host.data(), lower.host.data(), joined);
    EXPECT_EQ(std::memcmp(joined.data(), whole.data(), 4 * n), 0) << n;
    join(other.host.data(), rest.host.data(), joined);
    EXPECT_EQ(std::memcmp(joined.data(), mean.data(), 4 * n), 0) << n;
    // and through the spaces' own copies
    std::vector<float> read(n);
    both.on.read(ConstFloats(upper.at(true).data(), lower.at(true).data(), n), read);
    EXPECT_EQ(std::memcmp(read.data(), whole.data(), 4 * n), 0) << n;
    both.on.write(values, Floats(upper.at(true).data(), lower.at(true).data(), n));
    both.on.read(ConstFloats(upper.at(true).data(), lower.at(true).data(), n), read);
    EXPECT_EQ(std::memcmp(read.data(), values.data(), 4 * n), 0) << n;
  }
}

TEST(DeviceKernels, RoundMomentaInBFloat16AsTheHost) {
  Both both(5);
  for (const std::size_t n : kSizes) {
    std::vector<std::uint16_t> halves(n);
    to_bf16(both.floats(n), {reinterpret_cast<BFloat16*>(halves.data()), n});
    Pair<std::uint16_t> m(both, halves);
    Pair<float> g(both, both.floats(n)), u(both, std::vector<float>(n)), x(both, both.floats(n));
    Pair<std::uint64_t> bits(both, both.words(n));
    Pair<std::uint32_t> fault(both, {7});
    run(both, [&](Space& space, bool on) {
      const Floats momentum(m.at(on).data(), nullptr, n);
      const FaultSlot slot{fault.at(on).data(), 3};
      kernels::SharedBits zeros;
      zeros.x = Floats(x.at(on));
      zeros.per_cell = 7.3f;
      space.run(
          kernels::LionSigns{Values::of(g.at(on)), kBlend, zeros, momentum, bits.at(on), slot});
      space.run(kernels::LionBlend{Values::of(g.at(on)), kBlend, momentum, u.at(on), slot});
      space.run(kernels::DenseLion{Values::of(g.at(on)), kBlend, kStep, momentum, x.at(on)});
    });
    m.expect_equal("m", n);
    u.expect_equal("u", n);
    x.expect_equal("x", n);
    bits.expect_equal("bits", n);
    EXPECT_TRUE(n <= 3 || m.host != halves) << n;
    // a copy in and out, to nearest
    const auto values = both.floats(n);
    std::vector<float> read(n), rounded(n);
    to_bf16(values, {reinterpret_cast<BFloat16*>(halves.data()), n});
    to_float({reinterpret_cast<const BFloat16*>(halves.data()), n}, rounded);
    both.on.write(values, Floats(m.at(true).data(), nullptr, n));
    both.on.read(ConstFloats(m.at(true).data(), nullptr, n), read);
    EXPECT_EQ(read, rounded) << n;
  }
}

TEST(DeviceKernels, FindWhatIsNotZero) {
  Both both(1);
  for (const std::size_t n : kSizes) {
    std::vector<float> values(n, -0.0f);
    Pair<float> zeros(both, values);
    values[n - 1] = 1e-40f;
    Pair<float> one(both, values);
    Pair<std::uint32_t> found(both, {Wire::kNoTensor, Wire::kNoTensor});
    run(both, [&](Space& space, bool on) {
      space.run(kernels::FindNonzero{zeros.at(on), {found.at(on).data(), 0}});
      space.run(kernels::FindNonzero{one.at(on), {found.at(on).data() + 1, 3}});
    });
    EXPECT_EQ(found.host, (std::vector<std::uint32_t>{Wire::kNoTensor, 3})) << n;
    found.expect_equal("found", n);
  }
}

}  // namespace
}  // namespace pride::space_test
