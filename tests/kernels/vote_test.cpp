// vote, vote_ternary and count against the scalar oracle, bit for bit, for many row counts.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/isa_test.h"
#include "kernels/kernels.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::vote_test {
namespace {

using grid::Guarded;
using reference::Words;

constexpr std::size_t kRowCounts[] = {0,  1,  2,  3,  4,  5,  6,  7,   8,   9,   15,   16,
                                      17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 1000, 1024};
constexpr std::size_t kWordCounts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 70};
const HashWords kTies{.key = 0xBEEF, .first_word = 5, .flip = 0x3333CCCC5555AAAA, .shift = 13};

// Rows that agree often enough to give ties, all-plus and all-minus coordinates.
std::vector<Guarded<std::uint64_t>> random_rows(std::size_t n_rows, std::size_t n_words) {
  std::vector<Guarded<std::uint64_t>> rows;
  for (std::size_t r = 0; r < n_rows; ++r) {
    Words words = grid::random_words(n_words, 1000 + r);
    if (n_words > 0 && r < n_rows / 2) words[0] = 0;  // even row counts: every coordinate ties
    if (n_words > 0 && r >= n_rows / 2) words[0] = ~std::uint64_t{0};
    if (n_words > 1) words[1] = r % 2 == 0 ? 0xF0F0 : 0xFF00;
    rows.emplace_back(words, r % 3);
  }
  return rows;
}

std::vector<const std::uint64_t*> pointers(std::vector<Guarded<std::uint64_t>>& rows) {
  std::vector<const std::uint64_t*> result;
  for (auto& row : rows) result.push_back(row.span().data());
  return result;
}

class Vote : public OnEveryIsa {};

TEST_P(Vote, EqualsOracleForEveryRowCount) {
  for (const std::size_t n_rows : kRowCounts) {
    for (const std::size_t n_words : kWordCounts) {
      SCOPED_TRACE(::testing::Message() << n_rows << " rows of " << n_words << " words");
      auto storage = random_rows(n_rows, n_words);
      const auto rows = pointers(storage);
      const auto want = reference::vote(rows, kTies, n_words);
      Guarded<std::uint64_t> majority(n_words, 1), positive(n_words, 1), nonzero(n_words, 1);
      vote(rows, kTies, majority.span());
      vote_ternary(rows, positive.span(), nonzero.span());
      EXPECT_TRUE(grid::same_words(majority.values(), want.majority));
      EXPECT_TRUE(grid::same_words(positive.values(), want.positive));
      EXPECT_TRUE(grid::same_words(nonzero.values(), want.nonzero));
      EXPECT_TRUE(majority.intact() && positive.intact() && nonzero.intact());
    }
  }
}

TEST_P(Vote, CountsEqualOracleForEveryRowCount) {
  for (const std::size_t n_rows : kRowCounts) {
    for (const std::size_t n_words : {std::size_t{1}, std::size_t{19}}) {
      std::size_t n_planes = 1;
      while ((std::size_t{1} << n_planes) <= n_rows) ++n_planes;
      for (const std::size_t planes : {n_planes, n_planes + 2}) {
        SCOPED_TRACE(::testing::Message() << n_rows << " rows, " << planes << " planes");
        auto storage = random_rows(n_rows, n_words);
        const auto rows = pointers(storage);
        Guarded<std::uint64_t> out(planes * n_words, 1);
        count(rows, n_words, planes, out.span());
        EXPECT_TRUE(grid::same_words(out.values(), reference::count(rows, n_words, planes)));
        EXPECT_TRUE(out.intact());
      }
    }
  }
}

TEST_P(Vote, HoldsForMostRowsThatItTakes) {
  // one row many times over: the count is 0 or kMaxRows, and one row fewer leaves no tie
  const Words row = grid::random_words(9, 3), inverse = [&] {
    Words words = row;
    for (std::uint64_t& word : words) word = ~word;
    return words;
  }();
  std::vector<const std::uint64_t*> rows(kMaxRows, row.data());
  Words out(9);
  vote(rows, kTies, out);
  EXPECT_TRUE(grid::same_words(out, row));
  // 32768 against 32767
  std::fill(rows.begin(), rows.begin() + 32768, inverse.data());
  vote(rows, kTies, out);
  EXPECT_TRUE(grid::same_words(out, inverse));
  Words planes(16 * 9);
  count(rows, 9, 16, planes);
  EXPECT_TRUE(grid::same_words(planes, reference::count(rows, 9, 16)));
}

TEST_P(Vote, BreaksTiesByHashOfTheWordIndex) {
  const Words plus(20, ~std::uint64_t{0}), minus(20, 0);
  const std::vector<const std::uint64_t*> rows{plus.data(), minus.data()};
  Words out(20);
  vote(rows, kTies, out);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const auto word = [&](std::size_t i) { return mix64(kTies.key, kTies.first_word + i); };
    EXPECT_EQ(out[k], (word(k) >> 13 | word(k + 1) << 51) ^ kTies.flip) << "word " << k;
  }
}

PRIDE_ON_EVERY_ISA(Vote);

}  // namespace
}  // namespace pride::kernels::vote_test
