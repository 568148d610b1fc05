// Keys of hash words: these values.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/hash_keys.h"

#include <gtest/gtest.h>

namespace pride::hash_keys_test {
namespace {

// The keys are part of the wire format: these values must never change.
TEST(HashKeys, AreThese) {
  EXPECT_EQ(tie_key(0, 0), 0xC33F78A684259989u);
  EXPECT_EQ(tie_key(42, 7), 0xF52C1B55CD030905u);
  EXPECT_EQ(zero_key(42, 7, 3), 0x14A47404DD3F2DDFu);
  EXPECT_NE(zero_key(0, 0, 0), zero_key(0, 0, 1));
  EXPECT_NE(tie_key(0, 0), tie_key(0, 1));
}

}  // namespace
}  // namespace pride::hash_keys_test
