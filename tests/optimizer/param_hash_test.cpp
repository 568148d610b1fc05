// The digest of parameters covers every bit of every tensor, and nothing else.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/optimizer.h"

namespace pride::param_hash_test {
namespace {

TEST(ParamHash, SeesEveryCoordinateAndNoPadding) {
  const Layout layout({{"a", {70}}, {"b", {3}}});
  std::vector<float> params(layout.flat_size(), 1.0f);
  const std::uint64_t base = param_hash(layout, params);
  for (const TensorSlot& slot : layout.tensors()) {
    for (std::size_t i = 0; i < slot.n; ++i) {
      params[slot.offset + i] = 2.0f;
      EXPECT_NE(param_hash(layout, params), base) << slot.spec.name << i;
      params[slot.offset + i] = 1.0f;
    }
  }
  params[100] = 5.0f;  // padding of a
  EXPECT_EQ(param_hash(layout, params), base);
  params.pop_back();
  EXPECT_THROW(param_hash(layout, params), InvalidArgument);
}

}  // namespace
}  // namespace pride::param_hash_test
