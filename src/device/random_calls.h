// Random calls of all kernels. The maker draws their arguments: numbers, and memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/words.h"
#include "kernels/calls.h"

namespace pride::device {

inline constexpr std::size_t kCallKinds = std::variant_size_v<kernels::Call>;

template <typename Maker>
class RandomCalls {
 public:
  explicit RandomCalls(Maker& make) : make_(make) {}

  // A call of that alternative of kernels::Call, on make.n coordinates.
  kernels::Call of_kind(std::size_t kind) {
    lead_ = 64 * make_.below(64);
    return of_kind(kind, std::make_index_sequence<kCallKinds>());
  }

 private:
  template <typename Call>
  using Of = std::type_identity<Call>;
  template <std::size_t... Index>
  kernels::Call of_kind(std::size_t kind, std::index_sequence<Index...>) {
    kernels::Call call;
    const auto draw = [&]<std::size_t I>() {
      if (kind == I) call = of(Of<std::variant_alternative_t<I, kernels::Call>>());
    };
    (draw.template operator()<Index>(), ...);
    return call;
  }

  static constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
  static constexpr kernels::Step kStep{{0.999f, 1}, 0.0137f};

  std::span<float> scales() {
    return make_.scales((lead_ + make_.n - 1) / kernels::kScaleBlock + 1);
  }
  kernels::Feedback feedback() {
    if (make_.coin()) return {0.9f, 1, 0.0137f};
    return {0.9f, 0.1f, 1};
  }
  pride::Values values_or_none() { return make_.below(4) == 0 ? pride::Values{} : make_.values(); }
  kernels::BlendOf blend() {
    kernels::BlendOf u{make_.values(), kBlend, make_.floats(), {}};
    if (make_.coin()) u.e = make_.floats();
    return u;
  }
  // Cells of a few values each.
  kernels::SharedBits cells() {
    kernels::SharedBits bits;
    bits.x = make_.masters();
    bits.per_cell = 7.3f;
    bits.flip = make_.coin() ? 0 : ~std::uint64_t{0};
    return bits;
  }
  kernels::Size size() { return static_cast<kernels::Size>(make_.below(3)); }

  // Braced lists are evaluated from left to right, so equal makers draw the same.
  kernels::LionSigns of(Of<kernels::LionSigns>) {
    return {make_.broken_values(), kBlend, cells(), make_.momenta(), make_.bits(), make_.fault()};
  }
  kernels::LionBlend of(Of<kernels::LionBlend>) {
    return {make_.broken_values(), kBlend,        make_.momenta(),
            make_.floats(),        make_.fault(), make_.guard()};
  }
  kernels::PackSigns of(Of<kernels::PackSigns>) {
    return {make_.floats(), cells(), make_.bits(), make_.guard(), make_.fault()};
  }
  kernels::CellBits of(Of<kernels::CellBits>) { return {cells(), make_.bits()}; }
  kernels::ApplySigns of(Of<kernels::ApplySigns>) { return {make_.bits(), kStep, make_.masters()}; }
  kernels::ApplyTernary of(Of<kernels::ApplyTernary>) {
    return {make_.bits(), make_.bits(), kStep, make_.masters()};
  }
  kernels::ApplyCounts of(Of<kernels::ApplyCounts>) {
    const std::size_t planes = 1 + make_.below(4), stride = words_for(make_.n) + make_.below(3);
    const int world = (1 << planes) - 1;
    return {make_.words(planes * stride), planes, stride, world, world, kStep, make_.masters()};
  }
  kernels::ApplyPackedCounts of(Of<kernels::ApplyPackedCounts>) {
    const kernels::Radix radix{5, 2 + make_.below(12)};
    const std::size_t first = make_.below(50);
    const std::size_t groups = (first + words_for(make_.n)) / radix.n_digits + 1;
    return {make_.packed(64 * groups), radix, first, 4, 4, kStep, make_.masters()};
  }
  kernels::Compress of(Of<kernels::Compress>) {
    const auto norm = make_.coin() ? kernels::Norm::kRms : kernels::Norm::kMeanAbs;
    const kernels::HashWords zeros{make_.below(99), make_.below(99),
                                   make_.coin() ? 0 : ~std::uint64_t{0}, make_.below(64)};
    return {make_.feedback_values(),
            feedback(),
            norm,
            zeros,
            make_.floats(),
            make_.floats(),
            make_.bits(),
            {scales(), lead_},
            make_.fault()};
  }
  kernels::KeepFeedback of(Of<kernels::KeepFeedback>) {
    return {values_or_none(),  feedback(),     make_.bits(),
            {scales(), lead_}, make_.floats(), make_.floats()};
  }
  kernels::ApplyScaledSigns of(Of<kernels::ApplyScaledSigns>) {
    return {make_.bits(), {scales(), lead_}, kStep.decay, make_.masters()};
  }
  kernels::AdamW of(Of<kernels::AdamW>) {
    const kernels::AdamScalars adam{0.9f, 0.1f, 0.99f, 0.01f, 0.003f, 0.7f, 1e-8f, kStep.decay};
    return {make_.values(), adam, make_.floats(), make_.squares(), make_.masters(), make_.guard()};
  }
  kernels::DenseLion of(Of<kernels::DenseLion>) {
    return {make_.values(), kBlend, kStep, make_.momenta(), make_.masters(), make_.guard()};
  }
  kernels::SgdMomentum of(Of<kernels::SgdMomentum>) {
    return {make_.values(),  0.9f,         make_.coin(), kStep, make_.floats(),
            make_.masters(), make_.guard()};
  }
  kernels::Widen of(Of<kernels::Widen>) { return {make_.values(), make_.floats()}; }
  kernels::Copy of(Of<kernels::Copy>) { return {make_.any_floats(), make_.any_floats()}; }
  kernels::Fill of(Of<kernels::Fill>) { return {make_.poisoned(), 0.25f}; }
  kernels::Poison of(Of<kernels::Poison>) { return {make_.poisoned(), make_.set_guard()}; }
  kernels::Sum of(Of<kernels::Sum>) {
    const Floats a = make_.masters();
    return {a, make_.floats(), make_.coin() ? a : make_.masters()};
  }
  kernels::ApplyDecay of(Of<kernels::ApplyDecay>) { return {0.37f, make_.masters()}; }
  kernels::Scale of(Of<kernels::Scale>) { return {0.37f, make_.floats()}; }
  kernels::CheckFinite of(Of<kernels::CheckFinite>) {
    return {make_.broken_values(), make_.fault()};
  }
  kernels::FindNonzero of(Of<kernels::FindNonzero>) { return {make_.floats(), make_.fault()}; }
  kernels::Adopt of(Of<kernels::Adopt>) { return {make_.rounded(), make_.floats()}; }
  kernels::Publish of(Of<kernels::Publish>) { return {make_.floats(), make_.rounded()}; }
  kernels::Measure of(Of<kernels::Measure>) {
    return {blend(), size(), make_.sums((make_.n - 1) / kernels::kScaleBlock + 1)};
  }
  kernels::MeasureBlocks of(Of<kernels::MeasureBlocks>) {
    return {blend(), size(), 7, {scales(), lead_}};
  }
  kernels::Quantise of(Of<kernels::Quantise>) {
    const auto m = make_.floats();
    kernels::BlendOf u{make_.broken_values(), kBlend, m, {}};
    std::span<float> next;
    if (make_.coin()) u.e = make_.floats(), next = make_.floats();
    kernels::LevelSteps steps{scales(), kernels::kScaleBlock, lead_};
    if (make_.coin()) steps = {steps.of.first(1), make_.n, 0};
    kernels::LevelLines lines = make_.lines(words_for(make_.n));
    if (make_.coin()) {
      lines.words = {};
      lines.width = std::array{1, 2, 4}[make_.below(3)];
      lines.integers = make_.integers(lines.width * make_.n);
    }
    return {u, steps, m, next, lines, make_.fault()};
  }
  kernels::WriteValues of(Of<kernels::WriteValues>) {
    const std::size_t n_words = words_for(make_.n);
    return {make_.broken_values(), make_.scales_of_values(n_words), make_.lines(n_words),
            make_.fault()};
  }
  kernels::ReadValues of(Of<kernels::ReadValues>) {
    const std::size_t n_words = words_for(make_.n);
    make_.n = 64 * n_words;
    const kernels::LevelLines lines = make_.lines(n_words);
    return {make_.scales_of_values(n_words), lines.words, lines.shape, lines.first_word,
            make_.floats()};
  }

  Maker& make_;
  std::size_t lead_ = 0;
};

}  // namespace pride::device
