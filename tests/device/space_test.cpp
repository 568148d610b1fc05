// A device's kernels against the host's, bit for bit: sizes around words and chunks, dtypes,
// factors, NaN, infinities, denormal numbers and zeros of both signs.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/wire.h"
#include "base/words.h"
#include "device/device_space.h"
#include "pride/bf16.h"
#include "pride/float16.h"
#include "support/test_device.h"

namespace pride::space_test {
namespace {

using testing::OnDevice;
using testing::TestDevice;

constexpr std::size_t kSizes[] = {1, 3, 63, 64, 65, 255, 256, 257, 1000, 4095, 4097};
constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
constexpr kernels::Step kStep{0.999f, 0.0137f};

// One call on both spaces, with memory of each and the same content.
class Both {
 public:
  explicit Both(std::uint32_t seed) : random_(seed) {}

  // Some are zeros, denormal, large or, if they may be, not finite.
  std::vector<float> floats(std::size_t n, bool finite = true) {
    std::vector<float> x(n);
    for (float& y : x) {
      const auto kind = random_() % 40;
      y = (static_cast<float>(random_() >> 8) * 0x1p-24f - 0.5f) * (kind < 4 ? 1e30f : 1.0f);
      if (kind == 5) y = 0.0f;
      if (kind == 6) y = -0.0f;
      if (kind == 7) y *= 1e-39f;
      if (kind == 8 && !finite && random_() % 8 == 0) y = std::numeric_limits<float>::infinity();
      if (kind == 9 && !finite && random_() % 8 == 0) y = std::nanf("");
    }
    return x;
  }
  std::vector<std::uint64_t> words(std::size_t n) {
    std::vector<std::uint64_t> x(words_for(n));
    for (std::uint64_t& y : x) y = std::uint64_t{random_()} << 32 | random_();
    return x;
  }
  std::uint32_t below(std::uint32_t n) { return random_() % n; }

  TestDevice device;
  DeviceSpace on{std::shared_ptr<Device>(&device, [](Device*) {})};

 private:
  std::mt19937 random_;
};

// The same values in both memories.
template <typename T>
class Pair {
 public:
  Pair(Both& both, std::vector<T> values)
      : host(std::move(values)), device_(both.device, std::span<const T>(host)) {}
  std::span<T> at(bool on_device) { return on_device ? device_.span() : std::span(host); }
  void expect_equal(const char* what, std::size_t n) {
    const std::vector<T> got = device_.get();
    EXPECT_TRUE(std::memcmp(got.data(), host.data(), sizeof(T) * host.size()) == 0)
        << what << ", n = " << n;
  }
  std::vector<T> host;

 private:
  OnDevice<T> device_;
};

// A gradient in a dtype of its own; on the device a part of its factor may lie there.
class Gradient {
 public:
  Gradient(Both& both, std::vector<float> values, DType dtype, float factor)
      : n_(values.size()),
        dtype_(dtype),
        factor_(factor),
        bytes_(both, bytes_of(values, dtype)),
        scaled_(both.below(2) == 0),
        scale_(both, {0.7f}) {}
  Values at(bool on_device) {
    const float factor = scaled_ && !on_device ? factor_ * scale_.host[0] : factor_;
    const float* const scale = scaled_ && on_device ? scale_.at(true).data() : nullptr;
    return {bytes_.at(on_device).data(), n_, dtype_, factor, scale};
  }

 private:
  static std::vector<std::byte> bytes_of(std::span<const float> x, DType dtype) {
    std::vector<std::byte> bytes(x.size() * size_of(dtype));
    void* const at = bytes.data();
    if (dtype == DType::kFloat32) std::memcpy(at, x.data(), bytes.size());
    if (dtype == DType::kBFloat16) to_bf16(x, {static_cast<BFloat16*>(at), x.size()});
    if (dtype == DType::kFloat16) to_float16(x, {static_cast<Float16*>(at), x.size()});
    return bytes;
  }
  std::size_t n_;
  DType dtype_;
  float factor_;
  Pair<std::byte> bytes_;
  bool scaled_;
  Pair<float> scale_;
};

// Calls body(space, on_device) for both, and waits.
template <typename Body>
void run(Both& both, const Body& body) {
  body(Space::host(), false);
  body(both.on, true);
  both.on.wait(both.on.record());
}

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
    const kernels::HashWords zeros{77, 5, both.below(2) == 0 ? 0 : ~std::uint64_t{0},
                                   both.below(2) == 0 ? 0u : 13u};
    run(both, [&](Space& space, bool on) {
      std::uint32_t* const words = faults.at(on).data();
      space.lion_sign_update(g.at(on), kBlend, zeros, m.at(on), bits.at(on), {words, 9});
      space.lion_blend(g.at(on), kBlend, n_of.at(on), u.at(on), {words + 1, 4});
      space.pack_signs(u.at(on), zeros, packed.at(on), words + (n % 2 == 0 ? 3 : 2),
                       {words + 2, 6});
      space.check(g.at(on), {words, 8});
    });
    m.expect_equal("lion_sign_update m", n);
    bits.expect_equal("lion_sign_update bits", n);
    n_of.expect_equal("lion_blend m", n);
    u.expect_equal("lion_blend u", n);
    packed.expect_equal("pack_signs", n);
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
      space.apply_signs(positive.at(on), kStep, signs.at(on));
      space.apply_ternary(positive.at(on), nonzero.at(on), kStep, ternary.at(on));
      space.apply_counts(counted.at(on), planes, stride, 5, 7, kStep, counts.at(on));
      space.apply_packed_counts(packed.at(on), radix, first, 3, 4, kStep, packed_x.at(on));
      space.apply_decay(0.97f, decayed.at(on));
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
    const kernels::AdamScalars adam{0.9f, 0.1f, 0.999f, 0.001f, 0.003f, 0.7f, 1e-8f, 0.999f};
    run(both, [&](Space& space, bool on) {
      const Guard good = guards.at(on).data(), faulty = good + 1;
      space.adamw(g.at(on), adam, m.at(on), v.at(on), x.at(on), good);
      space.dense_lion(g.at(on), kBlend, kStep, lion_m.at(on), lion_x.at(on));
      space.sgd_momentum(g.at(on), 0.9f, n % 2 == 0, kStep, sgd_m.at(on), sgd_x.at(on), good);
      space.dense_lion(g.at(on), kBlend, kStep, left.at(on), left.at(on), faulty);
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
      space.widen(g.at(on), a.at(on));
      space.sum(a.at(on), b.at(on), c.at(on));
      space.scale(-0.5f, c.at(on));
      space.sum(c.at(on), a.at(on), b.at(on));
      space.copy(b.at(on), a.at(on));
      space.scale(3.0f, a.at(on));
      space.fill(c.at(on), 0.25f);
      space.sum(c.at(on), a.at(on), c.at(on));
      space.poison(poisoned.at(on), guards.at(on).data() + n % 2);
    });
    for (Pair<float>* each : {&a, &b, &c}) each->expect_equal("a chain", n);
    poisoned.expect_equal("poison", n);
  });
}

// A call on a part of what a longer one has touched, before the same kernel on another part.
TEST(DeviceKernels, DependOnPartsOfLongerRanges) {
  Both both(3);
  const std::size_t n = 4000;
  Pair<float> x(both, both.floats(n)), y(both, both.floats(n));
  run(both, [&](Space& space, bool on) {
    const auto all = x.at(on), out = y.at(on);
    space.fill(out.first(10), 1);
    space.sum(all, all, all);
    space.sum(all.subspan(8, 16), all.subspan(8, 16), all.subspan(8, 16));
    space.fill(all.subspan(2000, 100), 0.25f);  // after the sums, not with the first fill
    space.sum(all.first(500), all.subspan(1990, 500), out.first(500));
  });
  x.expect_equal("x", n);
  y.expect_equal("y", n);
}

// Three sums of each of ten tensors, where each sum needs the one before: three launches.
TEST(DeviceKernels, MergeCallsThatDoNotDependOnEachOther) {
  Both both(3);
  Pair<float> x(both, both.floats(1000)), y(both, both.floats(1000));
  run(both, [&](Space& space, bool on) {
    for (std::size_t t = 0; t < 10; ++t) {
      const auto part = x.at(on).subspan(100 * t, 100), shared = y.at(on).first(100);
      for (int k = 0; k < 3; ++k) space.sum(part, shared, part);
    }
  });
  EXPECT_EQ(both.device.launches, 3);
  x.expect_equal("x", 1000);
}

// Several calls note faults in a word; a call whose guard is that word comes after them.
TEST(DeviceKernels, MergeNotesButNotTheirGuards) {
  Both both(3);
  const std::size_t n = 100;
  Pair<float> x(both, both.floats(3 * n)), y(both, both.floats(3 * n));
  Pair<std::uint64_t> bits(both, both.words(5 * 128));
  Pair<std::uint32_t> faults(both, {2, Wire::kNoTensor});
  run(both, [&](Space& space, bool on) {
    std::uint32_t* const words = faults.at(on).data();
    for (std::uint32_t t = 0; t < 3; ++t) {
      const auto signs = bits.at(on).subspan(2 * t, 2);
      space.pack_signs(x.at(on).subspan(n * t, n), {}, signs, words, {words + 1, 9 - t});
    }
    space.pack_signs(y.at(on).first(n), {}, bits.at(on).subspan(6, 2), words + 1, {words + 1, 5});
  });
  EXPECT_EQ(both.device.launches, 2);
  bits.expect_equal("bits", n);
  faults.expect_equal("faults", n);
}

// The queue waits when something is queued: once for a stream, and for each of several.
TEST(DeviceSpace, WaitsForTheCallersStreamsOnceBeforeItsNextWork) {
  Both both(3);
  Pair<float> x(both, both.floats(100));
  int a = 0, b = 0;
  both.on.scale(2, x.at(true));
  for (void* stream : {&a, &a, &b, &b}) both.on.after(stream);
  both.on.scale(2, x.at(true));
  EXPECT_EQ(both.device.awaited, (std::vector<void*>{&a}));
  both.on.record();
  EXPECT_EQ(both.device.awaited, (std::vector<void*>{&a, &b}));
  both.on.wait(both.on.record());
  EXPECT_EQ(both.device.awaited.size(), 2u);
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
      space.publish(published.at(on), reinterpret_cast<Float16*>(to.at(on).data()));
      space.adopt(reinterpret_cast<const Float16*>(from.at(on).data()), adopted.at(on));
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
      space.apply_signs(plus, kStep, x);
      space.apply_ternary(plus, more.at(on), kStep, x);
      space.apply_counts(planes.at(on), 2, words_for(n), 3, 3, kStep, x);
      space.apply_packed_counts(packed.at(on), {.base = 4, .n_digits = 2}, 1, 3, 3, kStep, x);
      space.apply_decay(0.875f, x);
      space.dense_lion(gradient, kBlend, kStep, mx, x);
      space.sgd_momentum(gradient, 0.5f, true, kStep, mx, x);
      space.adamw(gradient, adam, mx, vx, x);
      space.copy(x, y);
      space.sum(y, g.at(on), x);
      space.sum(x, g.at(on), x);
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
      space.lion_sign_update(Values::of(g.at(on)), kBlend, {5, 1}, momentum, bits.at(on), slot);
      space.lion_blend(Values::of(g.at(on)), kBlend, momentum, u.at(on), slot);
      space.dense_lion(Values::of(g.at(on)), kBlend, kStep, momentum, x.at(on));
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
      space.find(zeros.at(on), {found.at(on).data(), 0});
      space.find(one.at(on), {found.at(on).data() + 1, 3});
    });
    EXPECT_EQ(found.host, (std::vector<std::uint32_t>{Wire::kNoTensor, 3})) << n;
    found.expect_equal("found", n);
  }
}

}  // namespace
}  // namespace pride::space_test
