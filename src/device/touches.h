// The memory that a call of a kernel reads and writes, from the types of its members.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/members.h"
#include "kernels/calls.h"

namespace pride::device {

// Notes of faults may come in any order, as the lowest stays.
enum class Use : std::uint8_t { kRead, kNote, kWrite };

struct Touch {
  std::uintptr_t begin = 0, end = 0;
  Use use = Use::kRead;
};

class Touches {
 public:
  explicit Touches(const kernels::Call& call) {
    std::visit([this](const auto& of) { this->add_members(of); }, call);
  }
  explicit Touches(std::span<std::byte> written) { add(written); }

  const Touch* begin() const { return all_.data(); }
  const Touch* end() const { return all_.data() + n_; }

 private:
  void add_members(const auto& of) {
    for_members(of, [this](const auto& member) { this->add(member); });
  }
  void add(const void* at, std::size_t bytes, Use use) {
    if (bytes == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(at);
    all_[n_++] = {begin, begin + bytes, use};
  }

  // Values and views of values. A type that is not here does not compile.
  template <typename T>
  void add(const std::span<T>& values) {
    add(values.data(), values.size_bytes(), std::is_const_v<T> ? Use::kRead : Use::kWrite);
  }
  template <typename Float>
  void add(const BasicFloats<Float>& x) {
    if (!x.halved()) return add(x.span());
    add(std::span(x.upper, x.n));
    add(std::span(x.lower, x.lower == nullptr ? 0 : x.n));
  }
  template <typename Float>
  void add(const kernels::BlockScales<Float>& scales) {
    add(scales.of);
  }
  void add(const pride::Values& g) {
    add(g.data, g.data == nullptr ? 0 : g.n * size_of(g.dtype), Use::kRead);
    add(g.scale, g.scale == nullptr ? 0 : sizeof *g.scale, Use::kRead);
  }
  void add(const kernels::SharedBits& bits) { add(bits.x); }  // of cells
  void add(const FaultSlot& fault) { add(fault.word, sizeof *fault.word, Use::kNote); }
  void add(const Guard& guard) { add(guard, guard == nullptr ? 0 : sizeof *guard, Use::kRead); }
  void add(const kernels::BlendOf& u) { add_members(u); }
  void add(const kernels::LevelSteps& steps) { add(steps.of); }
  // The words of a tensor in all lines, as if they lay behind each other: lines of several tensors
  // interleave, and a frame is read and written only as lines.
  void add(const kernels::LevelLines& lines) {
    const auto bits = static_cast<std::size_t>(lines.shape.bits);
    if (!lines.words.empty())
      add(lines.words.subspan(lines.first_word * bits, lines.n_words * bits));
    add(lines.integers);
  }
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void add(const T&) {}
  void add(const kernels::Blend&) {}
  void add(const pride::Decay&) {}
  void add(const kernels::Step&) {}
  void add(const kernels::AdamScalars&) {}
  void add(const kernels::Feedback&) {}
  void add(const kernels::HashWords&) {}
  void add(const kernels::Radix&) {}
  void add(const kernels::LevelShape&) {}
  template <typename T>
  void add(const std::optional<T>&) {}  // of the host

  std::array<Touch, 14> all_;
  std::size_t n_ = 0;
};

}  // namespace pride::device
