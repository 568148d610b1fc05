// Every method reproduces the parameters, bytes and messages of the golden table.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/golden/table.txt, written by scripts/golden.sh. A row may only
// change together with a line under "Numerics" (hash) or a change of docs/wire_format.md (bytes).
#include <gtest/gtest.h>

#include "golden/runs.h"

namespace pride::golden {
namespace {

class Golden : public ::testing::TestWithParam<Variant> {};

TEST_P(Golden, RunsGiveTheRowsOfTheTable) {
  const auto table = read_table(PRIDE_GOLDEN_TABLE);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::vector<int> worlds = {1, 3, 4};
#else
  const std::vector<int> worlds = {1, 2, 3, 4, 8};
#endif
  for (const Case& run : runs_of(GetParam(), worlds)) {
    const auto row = table.find(run.key());
    ASSERT_NE(row, table.end()) << "no row '" << run.key() << "'";
    EXPECT_EQ(run_on_threads(run).text(), row->second)
        << run.key() << (run.overlap ? ", with overlap" : ", without overlap");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(variants()), [](const auto& info) {
  std::string name = info.param.method + "_" + info.param.label;
  for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
  return name;
});

// A row without a run would be a lost method.
TEST(GoldenTable, HasNoRowThatNoRunMakes) {
  auto table = read_table(PRIDE_GOLDEN_TABLE);
  for (const Variant& v : variants()) {
    for (const Case& run : runs_of(v, {1, 2, 3, 4, 8})) table.erase(run.key());
  }
  EXPECT_TRUE(table.empty()) << table.size() << " rows, the first '" << table.begin()->first << "'";
}

}  // namespace
}  // namespace pride::golden
