// add_planes and the votes of planes, for many divisions of the rows over nodes. Oracle: vote and
// count of the rows themselves, which have their own oracle.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/planes.h"

#include <bit>

#include "kernels/isa_test.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::planes_test {
namespace {

using grid::Guarded;
using reference::Words;

constexpr std::size_t kWordCounts[] = {0, 1, 2, 3, 7, 8, 9, 17, 70};
const HashWords kTies{.key = 0xBEEF, .first_word = 5, .flip = 0x3333CCCC5555AAAA, .shift = 13};

std::size_t planes_for(std::size_t most) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::bit_width(most)));
}

// Rows that agree often enough to give ties, all-plus and all-minus coordinates.
std::vector<Words> random_rows(std::size_t n_rows, std::size_t n_words) {
  std::vector<Words> rows;
  for (std::size_t r = 0; r < n_rows; ++r) {
    Words words = grid::random_words(n_words, 1000 + r);
    if (n_words > 0) words[0] = r < n_rows / 2 ? 0 : ~std::uint64_t{0};
    if (n_words > 1) words[1] = r % 2 == 0 ? 0xF0F0 : 0xFF00;
    if (n_words > 2) words[2] = ~std::uint64_t{0};
    rows.push_back(words);
  }
  return rows;
}

std::vector<const std::uint64_t*> pointers(std::span<const Words> rows) {
  std::vector<const std::uint64_t*> result;
  for (const Words& row : rows) result.push_back(row.data());
  return result;
}

class CountPlanes : public OnEveryIsa {};

TEST_P(CountPlanes, OfNodesAddUpToThoseOfAllRanks) {
  for (const std::size_t n_nodes : {1, 2, 3, 5, 64}) {
    for (const std::size_t per_node : {1, 2, 3, 8, 100}) {
      for (const std::size_t n_words : kWordCounts) {
        SCOPED_TRACE(::testing::Message()
                     << n_nodes << " nodes of " << per_node << " rows, " << n_words << " words");
        const auto rows = random_rows(n_nodes * per_node, n_words);
        const std::size_t n_few = planes_for(per_node), n_all = planes_for(rows.size());
        const std::size_t stride = n_words + 2;
        Guarded<std::uint64_t> sum(Words(n_all * stride, 0), 1);
        for (std::size_t h = 0; h < n_nodes; ++h) {
          const auto some = pointers(std::span(rows).subspan(h * per_node, per_node));
          const Words few = reference::count(some, n_words, n_few);
          add_planes({few, n_few, n_words}, n_words, {sum.span(), n_all, stride});
        }
        const Words want = reference::count(pointers(rows), n_words, n_all);
        const auto got = sum.values();
        for (std::size_t p = 0; p < n_all; ++p) {
          for (std::size_t k = 0; k < n_words; ++k) {
            ASSERT_EQ(got[p * stride + k], want[p * n_words + k]) << "plane " << p << " word " << k;
          }
          for (std::size_t k = n_words; k < stride; ++k) ASSERT_EQ(got[p * stride + k], 0u);
        }
        ASSERT_TRUE(sum.intact());
      }
    }
  }
}

TEST_P(CountPlanes, VoteAsTheirRowsDo) {
  for (const std::size_t n_rows : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 100, 1024}) {
    for (const std::size_t n_words : kWordCounts) {
      for (const std::size_t more : {0, 3}) {  // planes that are all 0
        SCOPED_TRACE(::testing::Message() << n_rows << " rows of " << n_words << " words");
        const auto rows = random_rows(n_rows, n_words);
        const std::size_t n_planes = planes_for(n_rows) + more;
        const Words counted = reference::count(pointers(rows), n_words, n_planes);
        const Planes counts{counted, n_planes, n_words};
        const auto want = reference::vote(pointers(rows), kTies, n_words);
        Guarded<std::uint64_t> majority(n_words, 1), positive(n_words, 1), nonzero(n_words, 1);
        const int present = static_cast<int>(n_rows);
        vote_planes(counts, present, kTies, majority.span());
        vote_planes_ternary(counts, present, positive.span(), nonzero.span());
        EXPECT_TRUE(grid::same_words(majority.values(), want.majority));
        EXPECT_TRUE(grid::same_words(positive.values(), want.positive));
        EXPECT_TRUE(grid::same_words(nonzero.values(), want.nonzero));
        EXPECT_TRUE(majority.intact() && positive.intact() && nonzero.intact());
      }
    }
  }
}

TEST_P(CountPlanes, OfNoRanksGiveNoVote) {
  const Words zeros(2 * 9, 0), none(9, 0);
  Guarded<std::uint64_t> majority(9), positive(9), nonzero(9);
  vote_planes({zeros, 2, 9}, 0, kTies, majority.span());
  vote_planes_ternary({zeros, 2, 9}, 0, positive.span(), nonzero.span());
  EXPECT_TRUE(grid::same_words(majority.values(), none));
  EXPECT_TRUE(grid::same_words(positive.values(), none));
  EXPECT_TRUE(grid::same_words(nonzero.values(), none));
}

PRIDE_ON_EVERY_ISA(CountPlanes);

}  // namespace
}  // namespace pride::kernels::planes_test
