// Layout: placement, names, digests.
// SPDX-License-Identifier: Apache-2.0
#include "pride/layout.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride {
namespace {

TEST(Layout, StartsEveryTensorAtAMultipleOf64) {
  const Layout layout({{"a", {1}}, {"b", {64}}, {"c", {5, 13}}, {"empty", {0, 7}}, {"scalar", {}}});
  const std::size_t offsets[] = {0, 64, 128, 256, 256};
  const std::size_t sizes[] = {1, 64, 65, 0, 1};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(layout.tensors()[i].offset, offsets[i]) << i;
    EXPECT_EQ(layout.tensors()[i].n, sizes[i]) << i;
  }
  EXPECT_EQ(layout.n_coords(), 131u);
  EXPECT_EQ(layout.flat_size(), 320u);
  EXPECT_EQ(layout.index_of("c"), 2u);
  EXPECT_THROW(layout.index_of("d"), InvalidArgument);
}

TEST(Layout, RefusesBadTensors) {
  EXPECT_THROW(Layout({{"", {1}}}), InvalidArgument);
  EXPECT_THROW(Layout({{"a", {1}}, {"a", {2}}}), InvalidArgument);
  EXPECT_THROW(Layout({{"a", {-1}}}), InvalidArgument);
  EXPECT_THROW(Layout({{"a", {1}, -1}}), InvalidArgument);
  EXPECT_THROW(Layout({{"a", {std::int64_t{1} << 40, std::int64_t{1} << 40}}}), InvalidArgument);
}

TEST(Layout, DigestSeesEveryField) {
  const std::uint64_t base = Layout({{"a", {2, 3}}, {"b", {4}}}).digest();
  EXPECT_EQ(Layout({{"a", {2, 3}}, {"b", {4}}}).digest(), base);
  EXPECT_NE(Layout({{"x", {2, 3}}, {"b", {4}}}).digest(), base);
  EXPECT_NE(Layout({{"a", {3, 2}}, {"b", {4}}}).digest(), base);
  EXPECT_NE(Layout({{"a", {2, 3}}, {"b", {4}, 1}}).digest(), base);
  EXPECT_NE(Layout({{"b", {4}}, {"a", {2, 3}}}).digest(), base);
}

}  // namespace
}  // namespace pride
