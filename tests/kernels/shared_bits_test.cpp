// Shared bits of cells, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the floor of the product in float32, in plain C++.
#include <cmath>
#include <limits>

#include "kernels/isa_test.h"
#include "kernels/kernels.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::shared_bits_test {
namespace {

using reference::Floats;

class SharedBitsOfCells : public OnEveryIsa {};

bool bit_of(float x, float per_cell) {
  const float y = x * per_cell;
  return std::abs(y) < 0x1p23f && std::fmod(std::floor(y), 2.0f) != 0;
}

TEST_P(SharedBitsOfCells, EqualTheFloorsEvenAtEdgesAndBeyondFractions) {
  Floats x = grid::wild_floats(2000, 3);
  for (int i = -300; i < 300; ++i) x.push_back(static_cast<float>(i) / 7.3f);
  for (const float edge : {0x1p23f, 0x1p22f, 0x1p24f, 0x1p31f, 0.0f}) {
    for (const float y : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, 1e38f)}) {
      x.insert(x.end(), {y, -y});
    }
  }
  for (const float per_cell : {7.3f, 1.0f, 0.0f, 1 / 1.5f}) {
    SharedBits bits;
    bits.x = ConstFloats(std::span<const float>(x));
    bits.per_cell = per_cell;
    for (const std::uint64_t flip : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      bits.flip = flip;
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(bits.at(i / 64) >> (i % 64) & 1, bit_of(x[i], per_cell) != (flip != 0))
            << x[i] << " by " << per_cell;
        if (i >= 128) {
          ASSERT_EQ(bits.from(128).at(i / 64 - 2), bits.at(i / 64));
        }
      }
    }
  }
}

// As two halves of 16 bits, which hold the same values.
TEST_P(SharedBitsOfCells, ReadMastersInHalves) {
  const Floats x = grid::awkward_floats(300, 5);
  std::vector<std::uint16_t> upper(x.size()), lower(x.size());
  split(x, upper.data(), lower.data());
  SharedBits whole, halves;
  whole.x = ConstFloats(std::span<const float>(x));
  halves.x = ConstFloats(upper.data(), lower.data(), x.size());
  whole.per_cell = halves.per_cell = 7.3f;
  for (std::size_t k = 0; k < words_for(x.size()); ++k) EXPECT_EQ(whole.at(k), halves.at(k));
}

PRIDE_ON_EVERY_ISA(SharedBitsOfCells);

}  // namespace
}  // namespace pride::kernels::shared_bits_test
