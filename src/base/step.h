// Inputs of a step: views of the tensors, the step's scalars, the participating ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/floats.h"
#include "base/memory.h"
#include "pride/step_scalars.h"
#include "pride/tensors.h"

namespace pride {

// A tensor's values. The first one belongs to flat coordinate `offset`.
struct ParameterPlace {
  Floats values;
  std::size_t offset = 0;
};
struct GradientPlace {
  const void* data = nullptr;  // null: no gradient
  std::size_t offset = 0;
  DType dtype = DType::kFloat32;
};

// Parameters as float32: one flat buffer; or by tensor, either in the caller's memory (perhaps with
// the masters' lower halves beside it) or as masters. A range must lie in one tensor.
template <typename Float>
struct ParameterView {
  BasicFloats<Float> flat = {};
  const ParameterPlace* places = nullptr;  // by tensor; null: `flat`
  Memory* memory = &Memory::host();        // of all values

  BasicFloats<Float> f32(std::size_t tensor, std::size_t begin, std::size_t end) const {
    if (places == nullptr) return flat.subspan(begin, end - begin);
    return places[tensor].values.subspan(begin - places[tensor].offset, end - begin);
  }
  BasicFloats<Float> of(const auto& piece) const {
    return f32(piece.tensor, piece.begin, piece.end);
  }
  bool empty() const noexcept { return places == nullptr && flat.n == 0; }
  operator ParameterView<const float>() const { return {flat, places, memory}; }
};
using View = ParameterView<float>;
using ConstView = ParameterView<const float>;

// A part of a gradient in its own dtype. Reads multiply it by `factor`; on a device also by the
// float at `scale`, unless that is null.
struct Values {
  static constexpr std::size_t kBlock = 4096;  // coordinates widened at a time, in the L1 cache

  const void* data = nullptr;
  std::size_t n = 0;
  DType dtype = DType::kFloat32;
  float factor = 1;
  const float* scale = nullptr;

  static Values of(std::span<const float> g) { return {g.data(), g.size()}; }
  // True if values can be read in place.
  bool direct() const noexcept { return dtype == DType::kFloat32 && factor == 1; }
  // Values [at, at + size): in place, or widened into `block`.
  std::span<const float> read(std::size_t at, std::size_t size, std::span<float> block) const {
    if (direct()) return {static_cast<const float*>(data) + at, size};
    return widen(at, block.first(size));
  }
  // Calls body(at, g) for ascending blocks of the values; for a single one if direct().
  void for_blocks(auto&& body) const {
    if (direct()) return body(std::size_t{0}, read(0, n, {}));
    alignas(64) float block[kBlock];
    for (std::size_t at = 0; at < n; at += kBlock) {
      body(at, read(at, std::min(kBlock, n - at), std::span(block)));
    }
  }

 private:
  std::span<const float> widen(std::size_t at, std::span<float> out) const;
};

// Gradients of this rank, by tensor, each in its own dtype. `factor` and `scale` are those of
// Values.
struct GradientView {
  static constexpr std::size_t kBlock = Values::kBlock;

  const float* flat = nullptr;  // all float32 in one buffer, factor 1
  const GradientPlace* places = nullptr;
  float factor = 1;
  const float* scale = nullptr;

  // Coordinates [begin, end) of the tensor.
  Values of(std::size_t tensor, std::size_t begin, std::size_t end) const {
    if (places == nullptr) return {flat + begin, end - begin};
    const GradientPlace& place = places[tensor];
    const auto* data = static_cast<const std::byte*>(place.data);
    return {data + (begin - place.offset) * size_of(place.dtype), end - begin, place.dtype, factor,
            scale};
  }
  Values of(const auto& piece) const { return of(piece.tensor, piece.begin, piece.end); }
  // In place; or widened into `block`, or into `room`, which grows as needed.
  std::span<const float> read(std::size_t tensor, std::size_t begin, std::size_t end,
                              std::span<float> block) const {
    return of(tensor, begin, end).read(0, end - begin, block);
  }
  std::span<const float> read(std::size_t tensor, std::size_t begin, std::size_t end,
                              std::vector<float>& room) const {
    const Values values = of(tensor, begin, end);
    if (!values.direct() && room.size() < values.n) room.resize(values.n);
    return values.read(0, values.n, room);
  }
  // Calls body(at, g) for ascending blocks of [begin, end); for a single one if direct().
  void for_blocks(std::size_t tensor, std::size_t begin, std::size_t end, auto&& body) const {
    of(tensor, begin, end).for_blocks([&](std::size_t at, std::span<const float> g) {
      body(begin + at, g);
    });
  }
};

// A server's view of a step.
struct SharedContext {
  std::int64_t step = 0;  // 0 for the first
  int voters = 1;         // ranks
  std::uint64_t seed = 0;
  std::uint64_t scalars_digest = 0;
  std::span<const int> weights = {};  // votes of each rank; empty: 1 each
  bool central = false;  // with a coordinator: one shard per bucket, whose server is not a worker
  // Of zeros and ties. A coordinator has neither.
  std::span<const StepScalars> groups = {};
  ConstView x = {};  // the parameters before the step, equal on all ranks

  int weight_of(int rank) const {
    return weights.empty() ? 1 : weights[static_cast<std::size_t>(rank)];
  }
  // Votes of all ranks.
  int votes() const {
    return weights.empty() ? voters : std::accumulate(weights.begin(), weights.end(), 0);
  }
};

// A worker's view of a step; constant within the step.
struct StepContext : SharedContext {
  int rank = 0;
  std::span<const char> unused;       // by tensor: 1 if it has no gradient on this rank
  std::span<const char> frozen = {};  // by tensor: 1 if it is frozen; empty: none
  float grad_scale = 1;               // global-norm clipping: factor of the mean gradient, at apply
  Memory* memory = &Memory::host();   // of parameters, state and frames
  bool lean = false;  // virtual workers: encode() frees what apply() does not read, as each worker
                      // would hold it. Buckets are encoded in order

  bool is_unused(std::size_t tensor) const noexcept { return unused[tensor] != 0; }
  bool is_frozen(std::size_t tensor) const noexcept {
    return !frozen.empty() && frozen[tensor] != 0;
  }
  const StepScalars& scalars_of_group(int group) const {
    return groups[static_cast<std::size_t>(group)];
  }
  // No rank uses a frozen tensor, and it does not decay.
  StepScalars scalars_of(const auto& piece) const {
    StepScalars s = scalars_of_group(piece.group);
    if (is_frozen(piece.tensor)) s.decay = 1;
    return s;
  }
};

}  // namespace pride
