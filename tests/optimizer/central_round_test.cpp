// Ballots and records of a coordinator: bytes, checks, and the methods that it can serve. Oracle:
// votes counted by coordinate. central_test.cpp compares rounds with those of a world of ranks.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/central_round.h"

#include <gtest/gtest.h>

#include "codecs/signs.h"
#include "optimizer/central_half.h"
#include "support/texts.h"

namespace pride::central_round_test {
namespace {

using testing::error_of;
using testing::Half;
using testing::kSeed;
using testing::record_of;

TEST(CentralRound, RefusesMethodsThatNeedMoreThanFrames) {
  const auto refusal = [](const std::string& method, std::map<std::string, std::string> options) {
    const Half half(method, std::move(options));
    return texts::error_of<InvalidArgument>(
        [&] { const CentralRound central(half.sections, half.steps); });
  };
  for (const char* method : {"dlion-vote", "dlion-avg", "signum-vote", "signum-avg", "local-vote",
                             "adamw", "lion", "sgdm", "dsm", "diloco"}) {
    EXPECT_EQ(refusal(method, {}), "") << method;
  }
  EXPECT_EQ(refusal("lion-cub", {{"bits", "1"}, {"sync", "none"}}), "");
  EXPECT_NE(refusal("lion-cub", {}).find("share scales before"), std::string::npos);
  EXPECT_NE(refusal("terngrad", {}).find("share scales before"), std::string::npos);
  EXPECT_NE(refusal("signsgd-ef", {}).find("servers keep state"), std::string::npos);
  EXPECT_NE(refusal("dgc", {}).find("depends on data"), std::string::npos);
  EXPECT_NE(refusal("graddrop", {}).find("depends on data"), std::string::npos);
  EXPECT_NE(refusal("onebit-adam", {}).find("servers keep state"), std::string::npos);
  EXPECT_NE(refusal("lion", {{"dense", "native"}}).find("set another `dense`"), std::string::npos);
  EXPECT_NE(refusal("diloco", {{"dense", "native"}}).find("set another `dense`"),
            std::string::npos);
  EXPECT_NE(refusal("diloco", {{"fragments", "2"}}).find("fragments"), std::string::npos);
  EXPECT_NE(refusal("local-vote", {{"fragments", "2"}}).find("fragments"), std::string::npos);
}

TEST(CentralRound, CountsAVoteOfWeightWAsWVotes) {
  Half a("dlion-vote"), b("dlion-vote"), c("dlion-vote");
  const CentralRound central(a.sections, a.steps);
  const std::vector<Voter> voters = {{2, 1}, {3, 3}, {7, 1}};
  std::vector<std::vector<std::byte>> ballots;
  Half* workers[] = {&a, &b, &c};
  for (std::size_t i = 0; i < 3; ++i) {
    ballots.push_back(workers[i]->ballot(central, 3, voters[i]));
    central.check_ballot(3, kSeed, digest_of(a.scalars), voters[i], ballots[i]);
  }
  const RoundRecord record = record_of(central, voters, ballots, a.scalars);
  central.check_record(record, kSeed, "test");
  // 3 of 5: what worker 3 says, where it uses the tensor
  std::size_t compared = 0;
  const std::span<const std::byte> up = ballots[1], down = record.frames;
  std::size_t up_at = 0, down_at = 0;
  central.for_parts({.step = 3, .central = true},
                    [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
                      const SignView vote(up.subspan(up_at).data(), shard);
                      const VoteView result(down.subspan(down_at).data(), shard, false);
                      up_at += part.up.bytes(shard);
                      down_at += part.down.bytes(shard);
                      for (const Piece& p : shard.pieces) {
                        if (testing::unused(3, 3, p.tensor)) continue;
                        for (std::size_t i = 0; i < p.n(); ++i, ++compared) {
                          ASSERT_EQ(bit_at(vote.signs, 64 * p.first_word + i),
                                    bit_at(result.positive, 64 * p.first_word + i));
                        }
                      }
                    });
  EXPECT_GT(compared, 2000U);
}

TEST(CentralRound, StatesTheBytesOfBallotsAndRecords) {
  for (const char* method : {"dlion-vote", "dlion-avg", "local-vote", "sgdm", "diloco"}) {
    Half half(method), other(method);
    const CentralRound central(half.sections, half.steps);
    const std::vector<Voter> voters = {{0, 1}, {1, 1}};
    const std::vector<std::vector<std::byte>> ballots = {half.ballot(central, 3, voters[0]),
                                                         other.ballot(central, 3, voters[1])};
    EXPECT_EQ(ballots[0].size(), central.ballot_bytes(3)) << method;
    EXPECT_EQ(encode_record(record_of(central, voters, ballots, half.scalars)).size(),
              central.record_bytes(3, 1, voters))
        << method;
  }
}

TEST(CentralRound, RefusesABallotWithAnyByteChanged) {
  Half half("dlion-vote");
  const CentralRound central(half.sections, half.steps);
  const Voter voter{4, 2};
  const std::uint64_t digest = digest_of(half.scalars);
  std::vector<std::byte> ballot = half.ballot(central, 3, voter);
  for (std::size_t i = 0; i < ballot.size(); ++i) {
    ballot[i] ^= std::byte{0x10};
    const std::string text =
        error_of([&] { central.check_ballot(3, kSeed, digest, voter, ballot); });
    EXPECT_NE(text.find("worker 4, round 3"), std::string::npos) << "byte " << i << ": " << text;
    ballot[i] ^= std::byte{0x10};
  }
  const auto refused = [&](std::int64_t round, std::uint64_t scalars, Voter v,
                           std::span<const std::byte> bytes) {
    return error_of([&] { central.check_ballot(round, kSeed, scalars, v, bytes); });
  };
  EXPECT_EQ(refused(3, digest, voter, ballot), "");
  EXPECT_NE(refused(4, digest, voter, ballot).find("step"), std::string::npos);
  EXPECT_NE(refused(3, digest + 1, voter, ballot).find("scalars"), std::string::npos);
  EXPECT_NE(refused(3, digest, {5, 2}, ballot).find("sender rank"), std::string::npos);
  EXPECT_NE(refused(3, digest, {4, 1}, ballot).find("weight"), std::string::npos);
  EXPECT_NE(refused(3, digest, voter, std::span(ballot).first(100)).find("100 bytes"),
            std::string::npos);
}

TEST(CentralRound, RefusesABallotThatSaysItIsNotFinite) {
  Half half("dlion-vote");
  const CentralRound central(half.sections, half.steps);
  std::vector<std::byte> ballot = half.ballot(central, 0, {});
  const std::uint64_t digest = digest_of(half.scalars);
  const Shard& shard = half.buckets[0].shards[0];
  const auto frame = std::span(ballot).first(sign_frames().bytes(shard));
  seal({.codec = Codec::kSign,
        .bucket = 0,
        .n_coords = shard.size(),
        .scalars = digest,
        .non_finite = NonFinite{0, 2}},
       frame);
  EXPECT_NE(error_of([&] {
              central.check_ballot(0, kSeed, digest, {}, ballot);
            }).find("tensor 2 is not finite"),
            std::string::npos);
}

TEST(RoundRecord, SurvivesItsEncodingAndNoChangeOfAByte) {
  Half half("dlion-avg");
  const CentralRound central(half.sections, half.steps);
  const std::vector<Voter> voters = {{0, 2}, {9, 3}};
  std::vector<std::vector<std::byte>> ballots = {half.ballot(central, 3, voters[0]),
                                                 half.ballot(central, 3, voters[1])};
  const RoundRecord record = record_of(central, voters, ballots, half.scalars);
  std::vector<std::byte> bytes = encode_record(record);
  const RoundRecord again = decode_record(bytes, "test");
  EXPECT_EQ(again.round, 3);
  EXPECT_EQ(again.step, 3);
  EXPECT_EQ(again.params_hash, 77U);
  EXPECT_EQ(digest_of(again.scalars), digest_of(half.scalars));
  ASSERT_EQ(again.voters.size(), 2U);
  EXPECT_EQ(again.voters[1].number, 9);
  EXPECT_EQ(again.voters[1].weight, 3);
  EXPECT_EQ(again.frames, record.frames);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_NE(error_of([&] { decode_record(bytes, "test"); }), "") << "byte " << i;
    bytes[i] ^= std::byte{1};
  }
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_NE(error_of([&] { decode_record(std::span(bytes).first(n), "test"); }), "") << n;
  }
}

TEST(RoundRecord, IsRefusedIfItsFieldsCannotBe) {
  Half half("dlion-vote");
  const CentralRound central(half.sections, half.steps);
  const std::vector<Voter> voters = {{0, 1}, {1, 1}};
  const std::vector<std::vector<std::byte>> ballots = {half.ballot(central, 3, voters[0]),
                                                       half.ballot(central, 3, voters[1])};
  const RoundRecord good = record_of(central, voters, ballots, half.scalars);
  // each with a checksum that fits
  const auto refusal = [&](const std::function<void(RoundRecord&)>& change) {
    RoundRecord record = good;
    change(record);
    return error_of([&] {
      central.check_record(decode_record(encode_record(record), "record"), kSeed, "record");
    });
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_NE(refusal([](auto& r) { r.voters.clear(); }), "");
  EXPECT_NE(refusal([](auto& r) { r.voters[1].number = 0; }), "");
  EXPECT_NE(refusal([](auto& r) { r.voters[1].weight = 0; }), "");
  EXPECT_NE(refusal([](auto& r) { r.step = 4; }), "");
  EXPECT_NE(refusal([](auto& r) { r.round = -1; }), "");
  EXPECT_NE(refusal([](auto& r) { r.scalars[0].lr = std::numeric_limits<float>::infinity(); }), "");
  EXPECT_NE(refusal([](auto& r) { r.scalars[0].lr *= 2; }), "") << "frames have another digest";
  EXPECT_NE(refusal([](auto& r) { r.frames.resize(r.frames.size() - 8); }), "");
  EXPECT_NE(refusal([](auto& r) { r.frames.resize(r.frames.size() + 8); }), "");
  EXPECT_NE(refusal([](auto& r) { r.frames.clear(); }), "");
}

TEST(CentralRound, RefusesWeightsThatAnAverageCannotCount) {
  const Half half("dlion-avg");
  const CentralRound central(half.sections, half.steps);
  const std::vector<Voter> heavy = {{0, 65535}, {1, 65534}};
  EXPECT_THROW(central.weights_of(heavy), InvalidArgument);
  const std::vector<Voter> equal = {{0, 65535}, {1, 65535}};
  EXPECT_TRUE(central.weights_of(equal).empty());
}

}  // namespace
}  // namespace pride::central_round_test
