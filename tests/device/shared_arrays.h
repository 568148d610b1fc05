// Arrays that random calls share. A call's own spans lie in different arrays, as kernels require.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "base/wire.h"
#include "device/both_spaces.h"

namespace pride::space_test {

class SharedArrays {
 public:
  explicit SharedArrays(Both& both) {
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
      std::vector<float> squares = bounded(kMost), scales = bounded(9);
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
    std::vector<std::uint32_t> fractions(64 * 32);
    for (std::uint32_t& f : fractions) f = both.below(~0U);
    packed_.emplace_back(both, fractions);
    integers_.emplace_back(both, std::vector<std::byte>(2 * kMost + 100));
    faults_.emplace_back(both, std::vector<std::uint32_t>(4, Wire::kNoTensor));
  }

  // Draws the same from then on for equal seeds.
  void begin(bool on_device, std::uint32_t seed) {
    random_.seed(seed);
    on_ = on_device;
  }
  // Each array is drawn at most once in a call.
  void begin_call() {
    n = 64 * below(8) + (coin() ? 64 : 1 + below(64));
    used_.clear();
  }

  void expect_equal(std::size_t seed) {
    const auto all = [&](const char* what, auto& arrays) {
      for (auto& array : arrays) array.expect_equal(what, seed);
    };
    all("floats", floats_), all("bits", bits_), all("upper", upper_), all("lower", lower_);
    all("narrow", narrow_), all("squares", squares_), all("scales", scales_), all("sums", sums_);
    all("lines", lines_), all("integers", integers_), all("rounded", rounded_);
    all("poisoned", poisoned_), all("faults", faults_);
  }

  // ---- What random calls draw (device/random_calls.h).

  std::size_t n = 0;  // coordinates of the call

  std::size_t below(std::size_t most) { return random_() % most; }
  bool coin() { return below(2) == 0; }

  std::span<float> floats() { return part(floats_, n); }
  std::span<float> squares() { return part(squares_, n); }
  std::span<float> poisoned() { return part(poisoned_, n); }
  std::span<float> scales(std::size_t count) { return part(scales_, count); }
  std::span<BFloat16> scales_of_values(std::size_t count) {
    return {reinterpret_cast<BFloat16*>(part(narrow_, count).data()), count};
  }
  std::span<double> sums(std::size_t count) { return part(sums_, count); }
  std::span<std::uint64_t> words(std::size_t count) { return part(bits_, count); }
  std::span<std::uint64_t> bits() { return words(words_for(n)); }
  std::span<const std::uint32_t> packed(std::size_t count) { return part(packed_, count); }
  std::span<std::byte> integers(std::size_t bytes) {  // at multiples of 4, as in a frame
    const auto all = one_of(integers_).at(on_);
    return all.subspan(4 * below((all.size() - bytes) / 4 + 1), bytes);
  }
  std::span<Float16> rounded() { return {reinterpret_cast<Float16*>(part(rounded_, n).data()), n}; }
  kernels::LevelLines lines(std::size_t n_words) {
    return {.shape = kShape,
            .first_word = below(kShape.n_words - n_words + 1),
            .n_words = n_words,
            .words = one_of(lines_).at(on_)};
  }
  Floats masters() {
    if (coin() || is_used(&upper_[0]) || is_used(&upper_[1])) return floats();
    return {part(upper_, n).data(), part(lower_, n).data(), n};
  }
  Floats momenta() {
    if (coin()) return floats();
    return {part(narrow_, n).data(), nullptr, n};
  }
  Floats any_floats() { return coin() ? masters() : momenta(); }
  // In one of two calls, a gradient that other calls write.
  Values values() { return coin() ? Values::of(floats()) : part(finite_); }
  Values broken_values() { return coin() ? values() : part(broken_); }
  Values feedback_values() { return below(4) == 0 ? Values{} : values(); }
  FaultSlot fault() { return {fault_word(), static_cast<std::uint32_t>(below(9))}; }
  Guard set_guard() { return fault_word(); }
  Guard guard() { return coin() ? nullptr : set_guard(); }
  std::uint32_t* fault_word() {
    const auto words = faults_[0].at(on_);
    for (;;) {
      std::uint32_t& word = words[below(words.size())];
      if (is_used(&word)) continue;
      used_.push_back(&word);
      return &word;
    }
  }

 private:
  static constexpr std::size_t kMost = 1024, kWords = 48;
  static constexpr kernels::LevelShape kShape{32, 3};

  bool is_used(const void* at) const { return std::ranges::find(used_, at) != used_.end(); }
  template <typename T>
  Pair<T>& one_of(std::deque<Pair<T>>& arrays) {
    for (;;) {
      Pair<T>& array = arrays[below(arrays.size())];
      if (is_used(&array)) continue;
      used_.push_back(&array);
      return array;
    }
  }
  template <typename T>
  std::span<T> part(std::deque<Pair<T>>& arrays, std::size_t size) {
    const auto all = one_of(arrays).at(on_);
    return all.subspan(below(all.size() - size + 1), size);
  }
  Values part(std::deque<Gradient>& of) {
    Values g = of[below(of.size())].at(on_);
    const std::size_t at = below(kMost - n + 1);
    g.data = static_cast<const std::byte*>(g.data) + at * size_of(g.dtype);
    g.n = n;
    return g;
  }

  std::mt19937 random_;
  bool on_ = false;
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
