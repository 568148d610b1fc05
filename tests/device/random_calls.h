// Random calls of all kernels on memory that they share. A call's own spans lie in different
// arrays, as kernels require.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <type_traits>
#include <vector>

#include "base/wire.h"
#include "device/both_spaces.h"

namespace pride::space_test {

class RandomCalls {
 public:
  static constexpr std::size_t kKinds = std::variant_size_v<kernels::Call>;

  explicit RandomCalls(Both& both) : both_(both) {
    const auto bounded = [&](std::size_t n) {
      std::vector<float> x(n);
      for (float& y : x) y = static_cast<float>(both.below(1 << 20)) * 0x1p-20f - 0.5f;
      return x;
    };
    const auto words = [&](std::size_t n) { return both.words(64 * n); };
    for (int k = 0; k < 5; ++k) {
      floats_.emplace_back(both, bounded(kMost));
      bits_.emplace_back(both, words(kWords));
    }
    for (int k = 0; k < 2; ++k) {
      std::vector<std::uint16_t> high(kMost), low(kMost), narrow(kMost);
      split(bounded(kMost), high.data(), low.data());
      to_bf16(bounded(kMost), {reinterpret_cast<BFloat16*>(narrow.data()), kMost});
      upper_.emplace_back(both, high);
      lower_.emplace_back(both, low);
      narrow_.emplace_back(both, narrow);
      std::vector<float> squares = bounded(kMost), scales = bounded(6);
      for (float& x : squares) x = std::abs(x);
      for (float& x : scales) x = std::abs(x) + 0x1p-20f;
      squares_.emplace_back(both, squares);
      scales_.emplace_back(both, scales);
      sums_.emplace_back(both, std::vector<double>(2));
      poisoned_.emplace_back(both, bounded(kMost));
      to_float16(bounded(kMost), {reinterpret_cast<Float16*>(narrow.data()), kMost});
      rounded_.emplace_back(both, narrow);
      std::vector<std::uint64_t> lines = words(kShape.size());
      lines_.emplace_back(both, lines);
    }
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      std::vector<float> g = bounded(kMost);
      finite_.emplace_back(both, g, dtype, 0.5f);
      g[both.below(kMost)] = std::numeric_limits<float>::infinity();
      broken_.emplace_back(both, g, dtype, 1.0f);
    }
    std::vector<std::uint32_t> fractions(64 * kWords);
    for (std::uint32_t& f : fractions) f = both.below(~0U);
    packed_.emplace_back(both, fractions);
    integers_.emplace_back(both, std::vector<std::byte>(kMost + 100));
    faults_.emplace_back(both, std::vector<std::uint32_t>(4, Wire::kNoTensor));
  }

  // Runs the same calls for equal seeds.
  void run(Space& space, bool on_device, std::uint32_t seed, int n_calls) {
    random_.seed(seed);
    on_ = on_device;
    // of a few kinds, so that launches merge many
    std::array<std::size_t, 6> kinds;
    for (std::size_t& kind : kinds) kind = below(kKinds);
    for (int k = 0; k < n_calls; ++k) {
      begin_call();
      switch (below(20)) {
        case 0:
          space.clear(bits());
          continue;
        case 1:
          space.forget(faults_[0].at(on_).subspan(below(4), 1));
          continue;
      }
      const std::size_t kind = kinds[below(kinds.size())];
      space.run(of_kind(kind, std::make_index_sequence<kKinds>()));
      ++drawn[kind];
    }
  }
  std::array<int, kKinds> drawn = {};

  void expect_equal(std::size_t seed) {
    const auto all = [&](const char* what, auto& arrays) {
      for (auto& array : arrays) array.expect_equal(what, seed);
    };
    all("floats", floats_), all("bits", bits_), all("upper", upper_), all("lower", lower_);
    all("narrow", narrow_), all("squares", squares_), all("scales", scales_), all("sums", sums_);
    all("lines", lines_), all("integers", integers_), all("rounded", rounded_);
    all("poisoned", poisoned_), all("faults", faults_);
  }

 private:
  template <typename Call>
  using Of = std::type_identity<Call>;

  static constexpr std::size_t kMost = 1024, kWords = 2 * kMost / 64;
  static constexpr kernels::LevelShape kShape{kWords, 3};
  static constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
  static constexpr kernels::Step kStep{0.999f, 0.0137f};

  std::size_t below(std::size_t n) { return random_() % n; }
  bool coin() { return below(2) == 0; }

  // Each array is drawn at most once in a call.
  void begin_call() {
    n_ = 64 * below(8) + (coin() ? 64 : 1 + below(64));
    used_.clear();
  }
  template <typename T>
  Pair<T>& one_of(std::deque<Pair<T>>& arrays) {
    for (;;) {
      Pair<T>& array = arrays[below(arrays.size())];
      if (std::ranges::find(used_, &array) != used_.end()) continue;
      used_.push_back(&array);
      return array;
    }
  }
  template <typename T>
  std::span<T> part(std::deque<Pair<T>>& arrays, std::size_t n) {
    const auto all = one_of(arrays).at(on_);
    return all.subspan(below(all.size() - n + 1), n);
  }
  std::span<float> floats() { return part(floats_, n_); }
  std::span<std::uint64_t> bits() { return part(bits_, words_for(n_)); }
  Floats masters() {
    const std::size_t k = below(2);
    if (coin() || std::ranges::find(used_, &upper_[k]) != used_.end()) return floats();
    return {part(upper_, n_).data(), part(lower_, n_).data(), n_};
  }
  Floats momenta() {
    if (coin()) return floats();
    return {part(narrow_, n_).data(), nullptr, n_};
  }
  Floats any_floats() { return coin() ? masters() : momenta(); }
  Values gradient(std::deque<Gradient>& of) {
    Values g = of[below(3)].at(on_);
    const std::size_t at = below(kMost - n_ + 1);
    g.data = static_cast<const std::byte*>(g.data) + at * size_of(g.dtype);
    g.n = n_;
    return g;
  }
  // A gradient that other calls write, too.
  Values gradient() { return coin() ? Values::of(floats()) : gradient(finite_); }
  Values broken() { return coin() ? gradient() : gradient(broken_); }
  kernels::SharedBits cells() {
    kernels::SharedBits zeros;
    zeros.x = masters();
    zeros.per_cell = 7.3f;
    zeros.flip = coin() ? 0 : ~std::uint64_t{0};
    return zeros;
  }
  // A call has its faults in other words than its guard.
  FaultSlot fault() {
    return {faults_[0].at(on_).data() + below(2), static_cast<std::uint32_t>(below(9))};
  }
  Guard set_guard() { return faults_[0].at(on_).data() + 2 + below(2); }
  Guard guard() { return coin() ? nullptr : set_guard(); }
  FaultSlot other_fault() {
    return {faults_[0].at(on_).data() + 2 + below(2), static_cast<std::uint32_t>(below(9))};
  }
  std::span<float> block_scales() {
    return part(scales_, 1 + (lead_ + n_ - 1) / kernels::kScaleBlock);
  }
  void draw_lead() { lead_ = 64 * below(64); }
  kernels::BlendOf blend_of() {
    kernels::BlendOf u{gradient(), kBlend, floats(), {}};
    if (coin()) u.e = floats();
    return u;
  }
  kernels::LevelLines lines(std::size_t n_words) {
    return {.shape = kShape,
            .first_word = below(kWords - n_words + 1),
            .n_words = n_words,
            .words = one_of(lines_).at(on_)};
  }
  kernels::Size size() { return static_cast<kernels::Size>(below(3)); }

  template <std::size_t... Index>
  kernels::Call of_kind(std::size_t kind, std::index_sequence<Index...>) {
    kernels::Call call = kernels::Fill{};
    const auto draw = [&]<std::size_t I>() {
      if (kind == I) call = of(Of<std::variant_alternative_t<I, kernels::Call>>());
    };
    (draw.template operator()<Index>(), ...);
    return call;
  }

  // Braced lists are evaluated from left to right, so both spaces get the same draws.
  kernels::Call of(Of<kernels::LionSigns>) {
    return kernels::LionSigns{broken(), kBlend, cells(), momenta(), bits(), fault()};
  }
  kernels::Call of(Of<kernels::LionBlend>) {
    return kernels::LionBlend{broken(), kBlend, momenta(), floats(), fault(), guard()};
  }
  kernels::Call of(Of<kernels::PackSigns>) {
    return kernels::PackSigns{floats(), cells(), bits(), guard(), fault()};
  }
  kernels::Call of(Of<kernels::CellBits>) { return kernels::CellBits{cells(), bits()}; }
  kernels::Call of(Of<kernels::CheckFinite>) {
    return kernels::CheckFinite{broken(), coin() ? fault() : other_fault()};
  }
  kernels::Call of(Of<kernels::ApplySigns>) {
    return kernels::ApplySigns{bits(), kStep, masters()};
  }
  kernels::Call of(Of<kernels::ApplyTernary>) {
    return kernels::ApplyTernary{bits(), bits(), kStep, masters()};
  }
  kernels::Call of(Of<kernels::ApplyCounts>) {
    const std::size_t stride = words_for(n_) + below(3);
    return kernels::ApplyCounts{part(bits_, 2 * stride), 2, stride, 3, 3, kStep, masters()};
  }
  kernels::Call of(Of<kernels::ApplyPackedCounts>) {
    return kernels::ApplyPackedCounts{
        packed_[0].at(on_), kernels::radix_of(5), below(9), 4, 4, kStep, masters()};
  }
  kernels::Call of(Of<kernels::ApplyDecay>) {
    return kernels::ApplyDecay{coin() ? 1.0f : 0.875f, masters()};
  }
  kernels::Call of(Of<kernels::Compress>) {
    draw_lead();
    const auto norm = coin() ? kernels::Norm::kRms : kernels::Norm::kMeanAbs;
    return kernels::Compress{gradient(), {0.9f, 0.1f, 1}, norm,   {below(99), 3, 0, 0},
                             floats(),   floats(),        bits(), {block_scales(), lead_},
                             fault()};
  }
  kernels::Call of(Of<kernels::KeepFeedback>) {
    draw_lead();
    const kernels::BlockScales<const float> scales{block_scales(), lead_};
    const Values g = coin() ? Values{} : gradient();
    return kernels::KeepFeedback{g, {0.9f, 0.1f, 1}, bits(), scales, floats(), floats()};
  }
  kernels::Call of(Of<kernels::ApplyScaledSigns>) {
    draw_lead();
    const kernels::BlockScales<const float> scales{block_scales(), lead_};
    return kernels::ApplyScaledSigns{bits(), scales, 0.999f, masters()};
  }
  kernels::Call of(Of<kernels::AdamW>) {
    const kernels::AdamScalars adam{0.9f, 0.1f, 0.999f, 0.001f, 0.003f, 0.7f, 1e-8f, 0.999f};
    return kernels::AdamW{gradient(), adam, floats(), part(squares_, n_), masters(), guard()};
  }
  kernels::Call of(Of<kernels::DenseLion>) {
    return kernels::DenseLion{gradient(), kBlend, kStep, momenta(), masters(), guard()};
  }
  kernels::Call of(Of<kernels::SgdMomentum>) {
    return kernels::SgdMomentum{gradient(), 0.5f, coin(), kStep, floats(), masters(), guard()};
  }
  kernels::Call of(Of<kernels::Widen>) { return kernels::Widen{gradient(), floats()}; }
  kernels::Call of(Of<kernels::Copy>) { return kernels::Copy{any_floats(), any_floats()}; }
  kernels::Call of(Of<kernels::Fill>) {
    const auto x = coin() ? floats() : part(poisoned_, n_);
    return kernels::Fill{x, static_cast<float>(below(100)) * 0.01f};
  }
  kernels::Call of(Of<kernels::Poison>) {
    return kernels::Poison{part(poisoned_, n_), set_guard()};
  }
  kernels::Call of(Of<kernels::Sum>) {
    const Floats a = masters();
    return kernels::Sum{a, floats(), coin() ? a : masters()};
  }
  kernels::Call of(Of<kernels::Scale>) { return kernels::Scale{0.5f, floats()}; }
  kernels::Call of(Of<kernels::FindNonzero>) {
    return kernels::FindNonzero{floats(), coin() ? fault() : other_fault()};
  }
  std::span<Float16> rounded() {
    return {reinterpret_cast<Float16*>(part(rounded_, n_).data()), n_};
  }
  kernels::Call of(Of<kernels::Adopt>) { return kernels::Adopt{rounded(), floats()}; }
  kernels::Call of(Of<kernels::Publish>) { return kernels::Publish{floats(), rounded()}; }
  kernels::Call of(Of<kernels::Measure>) {
    return kernels::Measure{blend_of(), size(), part(sums_, 1)};
  }
  kernels::Call of(Of<kernels::MeasureBlocks>) {
    draw_lead();
    return kernels::MeasureBlocks{blend_of(), size(), 3, {block_scales(), lead_}};
  }
  kernels::Call of(Of<kernels::Quantise>) {
    draw_lead();
    kernels::LevelLines to = lines(words_for(n_));
    if (coin()) {
      const std::size_t width = 1 + below(2);
      to = {.shape = {0, 3}, .integers = part(integers_, width * n_), .width = width};
    }
    const kernels::LevelSteps steps{block_scales(), kernels::kScaleBlock, lead_};
    const auto m = floats(), next = floats();
    kernels::BlendOf u{gradient(finite_), kBlend, m, {}};
    if (coin()) u.e = floats();
    return kernels::Quantise{u, steps, m, next, to, fault()};
  }
  kernels::Call of(Of<kernels::WriteValues>) {
    const std::size_t n_words = 1 + n_ / 128;
    n_ = 64 * n_words;
    return kernels::WriteValues{floats(), part(scales_, n_words), lines(n_words), fault()};
  }
  kernels::Call of(Of<kernels::ReadValues>) {
    const std::size_t n_words = 1 + n_ / 128;
    n_ = 64 * n_words;
    return kernels::ReadValues{part(scales_, n_words), one_of(lines_).at(on_), kShape,
                               below(kWords - n_words + 1), floats()};
  }

  Both& both_;
  std::mt19937 random_;
  bool on_ = false;
  std::size_t n_ = 0, lead_ = 0;
  std::vector<const void*> used_;
  std::deque<Pair<float>> floats_, squares_, scales_, poisoned_;
  std::deque<Pair<double>> sums_;
  std::deque<Pair<std::uint64_t>> bits_, lines_;
  std::deque<Pair<std::uint16_t>> upper_, lower_, narrow_, rounded_;
  std::deque<Pair<std::byte>> integers_;
  std::deque<Pair<std::uint32_t>> packed_, faults_;
  std::deque<Gradient> finite_, broken_;
};

}  // namespace pride::space_test
