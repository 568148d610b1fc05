// `pride bench kernels`: its rows are right, and wrong ones are counted.
// Oracle: values spoilt by hand, and the shapes of the arrays.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "pride/cpu.h"
#include "pride/error.h"
#include "support/temp_folder.h"

namespace pride::app {
namespace {

constexpr const char* kPlain = "SCALAR";

std::vector<KernelCell> cell_bits_of(std::span<const KernelRow> rows,
                                     const std::vector<std::size_t>& sizes,
                                     const std::vector<std::string>& isas) {
  std::vector<KernelCell> cells;
  bench_kernels(rows, {.sizes = sizes, .isas = isas, .seconds = 1e-6, .least = 1},
                [&](const KernelCell& cell) { cells.push_back(cell); });
  return cells;
}

// A kernel that does nothing, but with `spoil` on every instruction set except plain code.
std::vector<KernelRow> spoilt(const KernelShape& shape, std::function<void(KernelArrays&)> spoil) {
  return {{.name = "spoilt", .bytes = 4, .shape = shape, .run = [=](KernelArrays& arrays) {
             if (active_isa() != kPlain) spoil(arrays);
           }}};
}

std::string another_isa() { return available_isas().front(); }

class KernelBenchWrong : public ::testing::Test {
 protected:
  void SetUp() override {
    if (another_isa() == kPlain) GTEST_SKIP() << "plain code is all there is here";
  }
  static std::size_t wrong(const KernelShape& shape, std::function<void(KernelArrays&)> spoil) {
    const auto cells = cell_bits_of(spoilt(shape, std::move(spoil)), {1000}, {another_isa()});
    return cells.at(0).wrong_values.value();
  }
};

TEST_F(KernelBenchWrong, CountsFloatsThatDifferInTheirLastBit) {
  EXPECT_EQ(wrong({.floats = 2}, [](auto&) {}), 0u);
  EXPECT_EQ(wrong({.floats = 2},
                  [](auto& a) {
                    a.array(1)[999] = std::nextafter(a.array(1)[999], 2.0f);
                    a.array(0)[0] = std::nextafter(a.array(0)[0], 2.0f);
                  }),
            2u);
}

TEST_F(KernelBenchWrong, TellsTheZerosApart) {
  EXPECT_EQ(wrong({.floats = 1},
                  [](auto& a) {
                    const auto zero = std::ranges::find(a.array(0), 0.0f);
                    *zero = std::signbit(*zero) ? 0.0f : -0.0f;
                  }),
            1u);
}

TEST_F(KernelBenchWrong, CountsWordsNumbersHalvesAndWhatIsReturned) {
  EXPECT_EQ(wrong({.bits = 3}, [](auto& a) { a.bits(2)[7] ^= 1; }), 1u);
  EXPECT_EQ(wrong({.numbers = 1}, [](auto& a) { a.numbers()[5] ^= 1; }), 1u);
  EXPECT_EQ(wrong({.halves = 1}, [](auto& a) { a.halves()[999] = BFloat16{0x7FC0}; }), 1u);
  EXPECT_EQ(wrong({}, [](auto& a) { a.result = 1; }), 1u);
}

TEST(KernelBench, GivesEachRowItsOwnNameAndBytes) {
  const std::vector<std::size_t> n_rows = {4, 16};
  std::set<std::string> names;
  for (const KernelRow& row : kernel_rows(n_rows)) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GT(row.bytes, 0) << row.name;
  }
  EXPECT_EQ(kernel_rows(n_rows).front().name, "memcpy");
}

// A kernel that writes nothing at all must not pass as right.
TEST(KernelBench, RunsKernelsThatDoSomething) {
  const std::vector<std::size_t> n_rows = {4};
  for (const KernelRow& row : kernel_rows(n_rows)) {
    KernelArrays before(row.shape, 5000, true), after(row.shape, 5000, true);
    for (KernelArrays* arrays : {&before, &after}) {
      if (row.prepare) row.prepare(*arrays);
      arrays->result = 12345;
    }
    EXPECT_EQ(before.differing(after), 0u) << row.name;
    row.run(after);
    EXPECT_GT(before.differing(after), 0u) << row.name;
  }
}

TEST(KernelBench, LeavesTheInstructionSetAsItWas) {
  force_isa(kPlain);
  const std::vector<std::size_t> n_rows = {4};
  const auto rows = matching_rows(kernel_rows(n_rows), "^apply_signs$");
  ASSERT_EQ(rows.size(), 1u);
  cell_bits_of(rows, {100}, {another_isa()});
  EXPECT_EQ(active_isa(), kPlain);
  for (const char* isa : {"NO_SUCH", "", "all"}) {
    EXPECT_THROW(cell_bits_of(rows, {100}, {isa}), InvalidArgument) << isa;
  }
  EXPECT_EQ(active_isa(), kPlain);
  force_isa("");
}

TEST(KernelBench, ChoosesRowsByName) {
  const std::vector<std::size_t> n_rows = {4};
  const auto all = kernel_rows(n_rows);
  EXPECT_EQ(matching_rows(all, "").size(), all.size());
  EXPECT_EQ(matching_rows(all, "^(adamw|memcpy)$").size(), 2u);
  EXPECT_THROW(matching_rows(all, "("), InvalidArgument);
  test::expect_error<InvalidArgument>([&] { matching_rows(all, "no-such"); }, {"lion_sign_update"});
}

}  // namespace
}  // namespace pride::app
