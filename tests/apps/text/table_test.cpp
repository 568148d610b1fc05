// The cells of a comparison, and the table around them.
// SPDX-License-Identifier: Apache-2.0
#include "text/table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pride::app {
namespace {

TEST(Spread, IsThatOfASample) {
  const Spread spread = spread_of({1, 2, 3});
  EXPECT_DOUBLE_EQ(spread.mean, 2);
  EXPECT_DOUBLE_EQ(spread.deviation, 1);
  EXPECT_EQ(spread_text({1, 2, 3}), "2.000 ± 1.000");
  EXPECT_EQ(spread_text({1.23456}), "1.235");
}

TEST(Cells, GroupDigits) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999.4), "999");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123456), "-123,456");
}

TEST(Cells, CompareWithARing) {
  EXPECT_EQ(fp32_ring_bytes(1000, 4), 6000);
  EXPECT_EQ(fp32_ring_bytes(1000, 1), 0);
  EXPECT_EQ(ratio_text(6000, 6000), "1");
  EXPECT_EQ(ratio_text(6050, 6000), "1") << "frames are not worth a ratio";
  EXPECT_EQ(ratio_text(187.5, 6000), "1/32.0");
  EXPECT_EQ(ratio_text(9000, 6000), "1.50");
  EXPECT_EQ(ratio_text(0, 6000), "0.00");
  EXPECT_EQ(ratio_text(0, 0), "-") << "one worker";
}

TEST(Table, IsMarkdownWithFlushColumns) {
  const std::string text =
      markdown_table({{"method", "loss"}, {"a", "1 ± 2"}, {"long name", "3"}}, 1);
  EXPECT_EQ(text,
            "| method    |  loss |\n"
            "|-----------|------:|\n"
            "| a         | 1 ± 2 |\n"
            "| long name |     3 |\n");
}

}  // namespace
}  // namespace pride::app
