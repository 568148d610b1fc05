// SPDX-License-Identifier: Apache-2.0
#include "methods/zeros.h"

#include <bit>
#include <cmath>

#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr float kStepsInCell = 4.25f;
constexpr std::uint64_t kAll = ~std::uint64_t{0};

// 1 over the size of a cell: the smallest of 2^k and 1.5 * 2^k that is at least 4.25 steps; 0 (one
// cell) for a step of 0 and sizes that a float does not hold well.
float cells_per_unit(float step) {
  const float least = kStepsInCell * step;
  if (!(least >= 0x1p-100f && least <= 0x1p100f)) return 0;
  int exponent = 0;
  const float fraction = std::frexp(least, &exponent);  // [0.5, 1)
  const float size = fraction <= 0.5f ? 0.5f : fraction <= 0.75f ? 0.75f : 1;
  return 1 / std::ldexp(size, exponent);
}

}  // namespace

kernels::SharedBits cell_bits_of(const SharedContext& shared, const Piece& piece, float scale) {
  PRIDE_CHECK(!shared.x.empty() && static_cast<std::size_t>(piece.group) < shared.groups.size(),
              "bits of zeros and ties need the parameters of the step and the rate of group ",
              piece.group, "; the server has ", shared.x.empty() ? "no" : "some",
              " parameters and rates of ", shared.groups.size(), " groups");
  kernels::SharedBits bits;
  bits.x = shared.x.of(piece);
  bits.per_cell = cells_per_unit(shared.groups[static_cast<std::size_t>(piece.group)].lr * scale);
  return bits;
}

kernels::SharedBits zero_bits_of(const StepContext& ctx, const Piece& piece, float scale) {
  kernels::SharedBits bits = cell_bits_of(ctx, piece, scale);
  bits.flip = (ctx.rank + ctx.step / 2) % 2 != 0 ? kAll : 0;
  return bits;
}

kernels::SharedBits tie_bits_of(const SharedContext& shared, const Piece& piece, float scale,
                                std::span<const std::uint64_t> cells) {
  kernels::SharedBits bits;
  if (cells.empty()) {
    bits = cell_bits_of(shared, piece, scale);
  } else {
    bits.row = cells.data() + piece.first_word;
  }
  bits.flip = (shared.step + 1) / 2 % 2 != 0 ? kAll : 0;
  return bits;
}

kernels::SharedBits tie_bits_of(const SharedContext& shared,
                                std::span<const std::uint64_t* const> rows) {
  PRIDE_CHECK(shared.central, "bits of ties need the parameters of the step; the server has none");
  kernels::SharedBits bits;
  if (!rows.empty()) bits.row = rows[static_cast<std::size_t>(shared.step) % rows.size()];
  return bits;
}

}  // namespace pride::methods
