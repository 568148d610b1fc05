// A fixture that runs each test once for every instruction set of this machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "pride/cpu.h"
#include "support/grid.h"

namespace pride {

class OnEveryIsa : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_isa(GetParam()); }
  void TearDown() override { force_isa(""); }

  // Calls body(n, offset) over the grid.
  template <typename Body>
  static void for_each_size(const Body& body) {
    for (const std::size_t n : grid::kSizes) {
      for (const std::size_t offset : grid::kOffsets) {
        SCOPED_TRACE(::testing::Message() << "n " << n << " offset " << offset);
        body(n, offset);
      }
    }
  }
};

}  // namespace pride

#define PRIDE_ON_EVERY_ISA(suite)                                 \
  INSTANTIATE_TEST_SUITE_P(                                       \
      Isa, suite, ::testing::ValuesIn(::pride::available_isas()), \
      [](const ::testing::TestParamInfo<std::string>& isa) { return isa.param; })
