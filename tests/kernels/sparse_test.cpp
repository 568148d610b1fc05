// The kernels of the sparse methods against plain code, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse.h"

#include <limits>

#include "kernels/isa_test.h"
#include "reference/kernels_ref.h"
#include "reference/sparse_ref.h"
#include "support/grid.h"

namespace pride::kernels::sparse_test {
namespace {

using grid::Guarded;
using reference::Floats;

class Sparse : public OnEveryIsa {};

TEST_P(Sparse, MomentumCorrectionEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const bool nesterov : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " nesterov " << nesterov);
      const Floats g = grid::wild_floats(n, 1);
      Floats u = grid::awkward_floats(n, 2), v = grid::awkward_floats(n, 3);
      Guarded<float> gg(g, 1), gu(u), gv(v, 3);
      correct_momentum(gg.span(), 0.7f, 0.9f, nesterov, gu.span(), gv.span());
      for (std::size_t i = 0; i < n; ++i) {
        const float gs = 0.7f * g[i];
        const float sum = u[i] + gs, kept = 0.9f * u[i];
        u[i] = nesterov ? 0.9f * sum : kept + gs;
        const float next = v[i] + u[i];
        v[i] = nesterov ? next + gs : next;
      }
      EXPECT_TRUE(grid::same_floats(gu.values(), u));
      EXPECT_TRUE(grid::same_floats(gv.values(), v));
      EXPECT_TRUE(gg.intact() && gu.intact() && gv.intact());
    }
  }
}

TEST_P(Sparse, SgdEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    const Floats g = grid::wild_floats(n, 4);
    Floats x = grid::awkward_floats(n, 5);
    Guarded<float> gg(g, 2), gx(x);
    sgd(gg.span(), {.decay = {0.99f, 1.0f}, .lr = 3e-3f}, gx.span());
    for (std::size_t i = 0; i < n; ++i) {
      const bool away = (x[i] > 0 && g[i] < 0) || (x[i] < 0 && g[i] > 0);
      const float kept = x[i] * (away ? 1.0f : 0.99f), change = 3e-3f * g[i];
      x[i] = kept - change;
    }
    EXPECT_TRUE(grid::same_floats(gx.values(), x)) << "n " << n;
    EXPECT_TRUE(gg.intact() && gx.intact());
  }
}

// The entries that top_k and select choose, as indices.
std::vector<std::size_t> chosen(std::span<const float> v, std::size_t k) {
  TopK top = top_k(v, k);
  Guarded<std::uint64_t> mask(words_for(v.size()));
  const std::size_t n = select(v, top, mask.span());
  EXPECT_TRUE(mask.intact());
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < 64 * words_for(v.size()); ++i) {
    if ((mask.span()[i / 64] >> (i % 64)) & 1) out.push_back(i);
  }
  EXPECT_EQ(out.size(), n);
  return out;
}

TEST_P(Sparse, SelectsExactlyTheLargest) {
  for (const std::size_t n : grid::kSizes) {
    const Floats v = grid::awkward_floats(n, 6);  // zeros and denormals among them
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 25, n / 2, n, n + 5}) {
      EXPECT_EQ(chosen(v, k), reference::largest(v, k)) << "k " << k << " of " << n;
    }
  }
}

TEST_P(Sparse, EqualMagnitudesGoByIndex) {
  Floats v(1000, 1.0f);
  for (std::size_t i = 0; i < v.size(); i += 3) v[i] = -1;
  v[700] = 2;
  v[701] = 0;
  for (const std::size_t k : {1, 2, 64, 65, 999, 1000}) {
    EXPECT_EQ(chosen(v, k), reference::largest(v, k)) << "k " << k;
  }
  EXPECT_TRUE(chosen(Floats(200, -0.0f), 10).empty());
}

TEST_P(Sparse, SpansShareOneChoice) {
  const Floats v(300, 0.5f);
  TopK top = top_k(v, 150);
  std::uint64_t mask[2];
  EXPECT_EQ(select(std::span(v).first(100), top, mask), 100u);
  EXPECT_EQ(select(std::span(v).subspan(100, 100), top, mask), 50u);
  EXPECT_EQ(select(std::span(v).subspan(200, 100), top, mask), 0u);
}

TEST_P(Sparse, CountsInfAndNaNAsLarge) {
  Floats v(100, 1e30f);
  v[40] = std::numeric_limits<float>::infinity();
  v[41] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(chosen(v, 2), (std::vector<std::size_t>{40, 41}));
}

TEST_P(Sparse, ClearsWhatIsSelectedOnly) {
  for (const std::size_t n : grid::kSizes) {
    Floats v = grid::awkward_floats(n, 7);
    TopK top = top_k(v, n / 3);
    std::vector<std::uint64_t> mask(words_for(n));
    select(v, top, mask);
    Guarded<float> gv(v, 1);
    clear_selected(mask, gv.span());
    for (const std::size_t i : reference::largest(v, n / 3)) v[i] = 0;
    EXPECT_TRUE(grid::same_floats(gv.values(), v));
    EXPECT_TRUE(gv.intact());
  }
}

PRIDE_ON_EVERY_ISA(Sparse);

}  // namespace
}  // namespace pride::kernels::sparse_test
