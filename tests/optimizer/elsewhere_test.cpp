// Calls with parameters at other addresses than the replica's: they do not move where save() reads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/bf16.h"
#include "pride/float16.h"
#include "support/training.h"

namespace pride::elsewhere_test {
namespace {

template <typename Value>
void compare(DType dtype) {
  const Layout layout({{"w", {70}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    std::vector<Value> here(70), there(70);
    for (std::size_t i = 0; i < 70; ++i) {
      here[i] = static_cast<Value>(0x3c00 + i);
      there[i] = static_cast<Value>(0x4400 + 3 * i);
    }
    const Tensor own[] = {{here.data(), 70, dtype}}, other[] = {{there.data(), 70, dtype}};
    optimizer.place(std::span<const Tensor>(own));
    const auto masters = [&] { return optimizer.save().tensors.at("master/w").values; };
    const auto before = masters();
    const std::uint64_t hash = optimizer.hash(std::span<const Tensor>(own));
    EXPECT_NE(optimizer.hash(std::span<const Tensor>(other)), hash);
    EXPECT_EQ(masters(), before);
    std::vector<float> flat(layout.flat_size());
    optimizer.read(std::span<const Tensor>(other), flat);
    EXPECT_NE(flat[1], before[1]);
    optimizer.to_common(std::span<const Tensor>(other));
    optimizer.to_local(std::span<const Tensor>(other));
    EXPECT_EQ(masters(), before);
    EXPECT_EQ(optimizer.hash(std::span<const Tensor>(own)), hash);
  });
}

TEST(Elsewhere, NothingMovesWhereAStateIsReadFrom) {
  compare<BFloat16>(DType::kBFloat16);
  compare<Float16>(DType::kFloat16);
}

}  // namespace
}  // namespace pride::elsewhere_test
