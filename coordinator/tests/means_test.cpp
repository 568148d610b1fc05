// Ballots of numbers instead of signs: a coordinator's replies. Oracle: the chosen numbers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "rig.h"

namespace pride::coord::test {
namespace {

// The frame of sgdm for these numbers: one tensor, one bucket.
std::string ballot_of_numbers(const RunDescription& run, const BallotOf& of,
                              const std::function<float(std::size_t)>& number) {
  const Layout layout(run.tensors);
  std::vector<float> frame(64 / 4 + 8 / 4 + layout.flat_size());
  for (std::size_t i = 0; i < layout.n_coords(); ++i) frame[18 + i] = number(i);
  const auto bytes = std::as_writable_bytes(std::span(frame));
  seal({.codec = Codec::kDense,
        .rank = static_cast<std::uint16_t>(of.number),
        .weight = static_cast<std::uint16_t>(of.weight),
        .step = static_cast<std::uint64_t>(of.round),
        .n_coords = layout.flat_size(),
        .scalars = digest_of(scalars(of.lr)),
        .non_finite = {}},
       bytes.first(72), bytes.subspan(72));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Means, RefuseABallotThatIsNotFiniteByNameAndCoordinateAndGoOn) {
  Rig rig({}, run_of_signs(200, "sgdm"));
  const std::uint64_t hash = 77;  // nobody has given parameters
  rig.join("ann"), rig.join("bob");
  const VoteReply bad =
      rig.vote({.number = 0}, hash, ballot_of_numbers(rig.run(), {.number = 0}, [](std::size_t i) {
                 return i == 123 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
               }));
  EXPECT_EQ(bad.status(), VoteReply::REFUSED);
  EXPECT_TRUE(has(bad.why(), "ballot of worker 0, round 0"));
  EXPECT_TRUE(has(bad.why(), "nan at coordinate 123"));
  ASSERT_EQ(rig.seen.refused.size(), 1U);
  EXPECT_TRUE(has(rig.seen.refused[0], "Vote 0: ballot of worker 0"));
  // no round waits for ann's any more
  rig.vote({.number = 1}, hash,
           ballot_of_numbers(rig.run(), {.number = 1}, [](std::size_t) { return 1.0F; }));
  ASSERT_EQ(rig.seen.rounds.size(), 1U);
  // two that are finite, whose sum is not
  constexpr float kHuge = std::numeric_limits<float>::max();
  for (int number = 0; number < 2; ++number) {
    const BallotOf of{.number = number, .round = 1};
    rig.vote(of, hash, ballot_of_numbers(rig.run(), of, [](std::size_t) { return kHuge; }));
  }
  EXPECT_EQ(rig.seen.failed, "");
  ASSERT_EQ(rig.seen.rounds.size(), 2U);
  const std::string record = rig.get(RECORD, 0, 1);
  const RoundRecord round = decode_record(bytes_of(record), "test");
  ASSERT_EQ(round.frames.size(), 72U + 4 * 256);
  for (std::size_t i = 0; i < 200; ++i) {
    float mean = 0;
    std::memcpy(&mean, round.frames.data() + 72 + 4 * i, 4);
    ASSERT_EQ(mean, kHuge) << i;
  }
}

TEST(Means, HaveNoWeightsThatAreLearnedFromSigns) {
  CoordinatorOptions options;
  options.weighting = Weighting::kLearned;
  Rig rig(options, run_of_signs(200, "sgdm"));
  EXPECT_TRUE(has(rig.join("ann").refused(), "--weights equal or samples"));
  options.weighting = Weighting::kGiven;
  Rig given(options, run_of_signs(200, "sgdm"));
  EXPECT_EQ(given.join("ann").refused(), "");
}

}  // namespace
}  // namespace pride::coord::test
