// Undamaged frames with invalid contents: each is refused before a parameter changes, and the error
// names the sender. One rank runs; its peer repeats an honest run with one change.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/replayed_peers.h"
#include "support/training.h"

namespace pride::malformed_test {
namespace {

using testing::put_number;

constexpr int kWorld = 2, kHere = 0, kPeer = 1;
constexpr std::size_t kCodecAt = 6, kFlagsAt = 7, kTensorAt = 48, kRankAt = 52;
constexpr std::size_t kUnusedAt = 64, kSignsAt = 72;

// Two halves of five words, a shard each where shards may be cut at 64. A half is 70 coordinates,
// 70 more, and 3 that are unused on the peer; those of the second half are unused on both.
Layout halves() {
  return Layout({{"a0", {70}}, {"b0", {70}}, {"p0", {3}}, {"a1", {70}}, {"b1", {70}}, {"p1", {3}}});
}

using Options = std::map<std::string, std::string>;

testing::Training training(const std::string& method, const Options& options) {
  testing::Training run{.world = kWorld, .steps = 1};
  run.options.method = method;
  run.options.non_finite = NonFinitePolicy::kSkip;  // nothing is applied before all is checked
  run.options.options = options;
  run.unused = [](int rank, std::int64_t, std::size_t tensor) {
    return tensor == 5 || (tensor == 2 && rank == kPeer);
  };
  return run;
}

using Edit = std::function<void(std::span<std::byte> frame, std::span<std::byte> floats)>;

Edit set_bits(std::size_t at, std::uint64_t bits) {
  return
      [=](auto frame, auto) { put_number(frame, at, 8, testing::number_at(frame, at, 8) | bits); };
}

Edit clear_payload() {
  return [](auto frame, auto) { std::ranges::fill(frame.subspan(kHeaderBytes), std::byte{0}); };
}

// of a sparse payload, which is a message of its own
Edit put_entries(std::uint64_t k) {
  return [=](auto, auto payload) { put_number(payload, 0, 8, k); };
}

// Bit i of several lines of words: the code of one coordinate, all bits set.
Edit set_lines(std::size_t at, std::size_t width, std::size_t n, std::uint64_t bit) {
  return [=](auto frame, auto floats) {
    for (std::size_t b = 0; b < n; ++b) set_bits(at + 8 * width * b, bit)(frame, floats);
  };
}

Edit put_float(std::size_t at, float value) {
  return [=](auto frame, auto) { put_number(frame, at, 4, std::bit_cast<std::uint32_t>(value)); };
}

Edit put_half(std::size_t at, std::uint64_t bits) {
  return [=](auto frame, auto) { put_number(frame, at, 2, bits); };
}

Edit clear_bits(std::size_t at, std::uint64_t bits) {
  return
      [=](auto frame, auto) { put_number(frame, at, 8, testing::number_at(frame, at, 8) & ~bits); };
}

Edit non_finite(std::uint32_t flag, std::uint32_t tensor, std::uint32_t rank) {
  return [=](auto frame, auto) {
    put_number(frame, kFlagsAt, 1, flag);
    put_number(frame, kTensorAt, 4, tensor);
    put_number(frame, kRankAt, 4, rank);
  };
}

Edit set_float(std::size_t index, float value) {
  return [=](auto, auto floats) {
    put_number(floats, 4 * index, 4, std::bit_cast<std::uint32_t>(value));
  };
}

Edit set_bf16(std::size_t index, std::uint64_t bits) {
  return [=](auto, auto values) { put_number(values, 2 * index, 2, bits); };
}

// The change to the last frame of this codec that the peer sends.
struct Malformed {
  std::string name, method, tie;
  Codec codec = Codec::kSign;
  Edit edit;
  std::string error;
  Options options = {};

  Options all_options() const {
    Options all = options;
    if (!tie.empty()) all["tie"] = tie;
    return all;
  }
};

void PrintTo(const Malformed& m, std::ostream* out) { *out << m.name; }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t kBit = 1;

// lion-cub with all of its frames: levels of 4 bits, momenta that are all due
const Options kLevels = {{"route", "sharded"}, {"sync_every", "1"}};
const Options kNative = {{"route", "native"}, {"sync_format", "fp32"}, {"sync_every", "1"}};
// one frame of signs to all, or one to the server of each shard
const Options kOneShot = {{"route", "one-shot"}}, kSharded = {{"route", "sharded"}};
const Options kBf16 = {{"dense", "bf16"}}, kInt4 = {{"dense", "int4"}};
constexpr std::size_t kScalesAt = 72, kGradientLinesAt = 88;  // of five words, with kInt4
constexpr std::size_t kLinesAt = 72;                          // of five words

const Malformed kCases[] = {
    {"UnknownFlag", "dlion-vote", "", Codec::kSign, non_finite(2, 0, 0), "flags 2", kSharded},
    {"NonFiniteOfNoTensor", "dlion-vote", "", Codec::kSign, non_finite(1, 6, 1),
     "reports tensor 6 on", kSharded},
    {"NonFiniteOfNoRank", "dlion-vote", "", Codec::kSign, non_finite(1, 0, 2),
     "on rank 2 as not finite", kSharded},
    {"NonFiniteOfNegativeRank", "dlion-avg", "", Codec::kSign, non_finite(1, 0, 0u - 2),
     "on rank -2", kSharded},
    {"TensorWithoutFlag", "dlion-vote", "", Codec::kVote, non_finite(0, 1, 0),
     "has no non-finite flag, but tensor 1", kSharded},
    {"RankWithoutFlag", "lion", "", Codec::kMean, non_finite(0, 0, 1),
     "has no non-finite flag, but rank 1"},

    {"SignsBeyondTheTensor", "dlion-vote", "", Codec::kSign, set_bits(kSignsAt + 8, kBit << 6),
     "signs beyond the end of tensor 0", kSharded},

    {"VoteOnATensorUnusedByAll", "dlion-vote", "", Codec::kVote, set_bits(kUnusedAt, kBit),
     "marks tensor 3 as unused on all ranks", kSharded},
    {"VoteBeyondTheTensor", "dlion-vote", "", Codec::kVote, set_bits(kSignsAt + 8, kBit << 6),
     "signs beyond the end of tensor 3", kSharded},

    {"AllSignsNonFiniteOfNoRank", "dlion-vote", "", Codec::kAllSigns, non_finite(1, 0, 2),
     "on rank 2 as not finite", kOneShot},
    {"AllSignsBeyondTheTensor", "signum-vote", "", Codec::kAllSigns,
     set_bits(kSignsAt + 8, kBit << 6), "signs beyond the end of tensor 0", kOneShot},
    // a rank that takes the sharded route
    {"AllSignsFromARankThatMeansItsShard", "dlion-vote", "", Codec::kAllSigns,
     [](auto frame, auto) { put_number(frame, kCodecAt, 1, 1); },
     "has codec 1, this rank expects 19", kOneShot},

    {"CountsThatForgetThisRank", "dlion-avg", "", Codec::kPackedCount, clear_payload(),
     "0 of 2 ranks as users of tensor 3, which this rank uses", kSharded},

    {"SumsThatForgetThisRank", "terngrad", "", Codec::kSum, clear_payload(),
     "0 of 2 ranks as users of tensor 3, which this rank uses"},
    {"CodeThatIsNone", "terngrad", "", Codec::kTernary, set_bits(kUnusedAt + 8 + 32, kBit),
     "a code that is none of"},

    {"SparseEntriesBeyondTheBucket", "dgc", "", Codec::kSparse, put_entries(641),
     "641 entries of 640 coordinates"},
    {"SparseNonFiniteOfNoTensor", "graddrop", "", Codec::kSparse, non_finite(1, 6, 1),
     "tensor 6 on"},

    {"NanThatIsNotReported", "lion", "", Codec::kDense, set_float(1, kNan), "nan at coordinate 1 "},
    {"InfThatIsNotReported", "adamw", "", Codec::kDense, set_float(129, -kInf),
     "-inf at coordinate 129 "},
    {"DenseUnusedBitsBeyond", "lion", "", Codec::kDense, set_bits(kUnusedAt, kBit << 40),
     "unused bits set after its 3 pieces"},
    {"MeanThatIsNan", "lion", "", Codec::kMean, set_float(0, kNan), "nan at coordinate 320 "},
    {"MeanThatIsInf", "sgdm", "", Codec::kMean, set_float(319, kInf), "inf at coordinate 639 "},
    {"MeanOfATensorUnusedByAll", "lion", "", Codec::kMean, set_bits(kUnusedAt, kBit << 1),
     "tensor 4 as unused on all ranks"},

    {"Bf16NanThatIsNotReported", "lion", "", Codec::kDenseBf16, set_bf16(1, 0x7FC0),
     "nan at coordinate 1 ", kBf16},
    {"Bf16InfThatIsNotReported", "adamw", "", Codec::kDenseBf16, set_bf16(129, 0xFF80),
     "-inf at coordinate 129 ", kBf16},
    {"Bf16UnusedBitsBeyond", "sgdm", "", Codec::kDenseBf16, set_bits(kUnusedAt, kBit << 40),
     "unused bits set after its 3 pieces", kBf16},
    {"Bf16MeanThatIsNan", "lion", "", Codec::kMeanBf16, set_bf16(0, 0x7FC0),
     "nan at coordinate 320 ", kBf16},
    {"Bf16MeanThatIsInf", "sgdm", "", Codec::kMeanBf16, set_bf16(319, 0x7F80),
     "inf at coordinate 639 ", kBf16},
    {"Bf16MeanOfATensorUnusedByAll", "lion", "", Codec::kMeanBf16, set_bits(kUnusedAt, kBit << 1),
     "tensor 4 as unused on all ranks", kBf16},
    // a rank that sends float32
    {"Bf16FromARankThatSaysFloat32", "lion", "", Codec::kDenseBf16,
     [](auto frame, auto) { put_number(frame, kCodecAt, 1, 4); },
     "has codec 4, this rank expects 17", kBf16},
    {"Bf16MeanFromARankThatSaysFloat32", "lion", "", Codec::kMeanBf16,
     [](auto frame, auto) { put_number(frame, kCodecAt, 1, 5); },
     "has codec 5, this rank expects 18", kBf16},

    {"ScaleOfGradientsThatIsNan", "adamw", "", Codec::kGradientLevels,
     put_half(kScalesAt + 2, 0x7FC0), "nan as a scale", kInt4},
    {"ScaleOfTheMeanGradientThatIsNegative", "lion", "", Codec::kMeanLevels,
     put_half(kScalesAt, 0xBF80), "-1 as a scale", kInt4},
    {"PaddingOfGradientScales", "lion", "", Codec::kGradientLevels, put_half(kScalesAt + 10, 1),
     "nonzero padding after its scales", kInt4},
    {"GradientLevelThatIsNone", "sgdm", "", Codec::kGradientLevels,
     set_lines(kGradientLinesAt, 5, 4, kBit << 9), "an invalid code (all bits set)", kInt4},
    {"GradientLevelsBeyondTheTensor", "adamw", "", Codec::kGradientLevels,
     clear_bits(kGradientLinesAt + 8, kBit << 6), "levels beyond the end of tensor 0", kInt4},
    {"MeanLevelsBeyondTheTensor", "adamw", "", Codec::kMeanLevels,
     clear_bits(kGradientLinesAt + 8, kBit << 6), "levels beyond the end of tensor 3", kInt4},
    {"GradientLevelsOfAnUnusedTensor", "lion", "", Codec::kGradientLevels,
     set_bits(kGradientLinesAt + 32, kBit), "levels of tensor 2, which it marks as unused", kInt4},
    {"MeanLevelsOfATensorUnusedByAll", "lion", "", Codec::kMeanLevels,
     set_bits(kUnusedAt, kBit << 1), "tensor 4 as unused on all ranks", kInt4},
    {"LevelsFromARankThatSaysBf16", "lion", "", Codec::kGradientLevels,
     [](auto frame, auto) { put_number(frame, kCodecAt, 1, 17); },
     "has codec 17, this rank expects 22", kInt4},

    // one shard has all six tensors: blocks of scales are longer than the layout
    {"ScaledSignsOfATensorUnusedByAll", "signsgd-ef", "", Codec::kScaledSign,
     set_bits(kUnusedAt, kBit), "tensor 0 as unused on all ranks"},

    {"LevelThatIsNone", "lion-cub", "", Codec::kLevels, set_lines(kLinesAt, 5, 4, kBit << 9),
     "an invalid code (all bits set) in tensor 0", kLevels},
    {"LevelThatIsNoneInABlockOfItsOwn", "lion-cub", "zero", Codec::kLevels,
     set_lines(kLinesAt + 24, 5, 4, kBit << 5), "an invalid code (all bits set) in tensor 1",
     kLevels},
    {"LevelsBeyondTheTensor", "lion-cub", "", Codec::kLevels, set_bits(kLinesAt + 8, kBit << 6),
     "levels beyond the end of tensor 0", kLevels},
    {"VoteOnLevelsOfATensorUnusedByAll", "lion-cub", "", Codec::kVote, set_bits(kUnusedAt, kBit),
     "marks tensor 3 as unused on all ranks", kLevels},
    {"SharedScaleThatIsNegative", "lion-cub", "", Codec::kScales, put_float(64 + 8, -1.0f),
     "has -1 as scale 2", kLevels},

    {"ScaleOfValuesThatIsNan", "lion-cub", "", Codec::kValues, put_half(64 + 8, 0x7FC0),
     "nan as a scale", kLevels},
    {"ScaleOfTheMeanThatIsInf", "lion-cub", "", Codec::kMeanValues, put_half(64 + 2, 0x7F80),
     "inf as a scale", kLevels},
    {"ValueThatIsNan", "lion-cub", "", Codec::kValues, put_float(64 + 4 * 3, kNan),
     "nan as value 3", kNative},
    {"MeanValueThatIsInf", "lion-cub", "", Codec::kMeanValues, put_float(64 + 4 * 319, -kInf),
     "-inf as value 319", kNative},

    {"ParticipationOfTooManyPieces", "lion-cub", "", Codec::kParticipation,
     set_bits(kUnusedAt, kBit << 6), "unused bits set after its 6 pieces", kNative},
    {"ParticipationNonFiniteOfNoRank", "lion-cub", "", Codec::kParticipation, non_finite(1, 0, 2),
     "on rank 2 as not finite", kNative},
};

// Run alone against the peer's recorded frames; the error, "" if there was none.
std::string error_of(const testing::Training& run, const Layout& layout,
                     const testing::Recording& messages) {
  testing::ReplayComm comm(kHere, kWorld, messages);
  Optimizer optimizer(comm, layout, run.options);
  FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
  testing::fill(layout, params, testing::initial);
  testing::fill(layout, grads,
                [&](std::size_t t, std::size_t i) { return run.grad(kHere, 0, t, i); });
  const std::vector<float> before(params.span().begin(), params.span().end());
  const bool unused[] = {false, false, false, false, false, true};
  try {
    optimizer.step(params.span(), grads.span(), unused);
  } catch (const CommError& e) {
    EXPECT_TRUE(std::equal(before.begin(), before.end(), params.span().begin()))
        << "parameters changed";
    EXPECT_THROW(optimizer.step(params.span(), grads.span(), unused), InvalidArgument);
    return e.what();
  }
  EXPECT_FALSE(std::equal(before.begin(), before.end(), params.span().begin()));
  return "";
}

testing::Recording honest(const testing::Training& run, const Layout& layout) {
  return testing::record(kWorld, kHere,
                         [&](Communicator& comm) { testing::train_rank(comm, layout, run); });
}

testing::RecordedFrame last_of(Codec codec, const testing::Recording& messages) {
  auto frames = testing::frames_of(messages);
  std::erase_if(frames, [&](const auto& frame) {
    return testing::number_at(messages[frame.first].bytes, kCodecAt, 1) !=
           static_cast<std::uint64_t>(codec);
  });
  if (frames.empty()) throw InvalidArgument("the peer sent no frame of this codec");
  return frames.back();
}

class MalformedFrames : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedFrames, AreRefusedByNameBeforeAnythingChanges) {
  const Malformed& m = GetParam();
  const Layout layout = halves();
  const testing::Training run = training(m.method, m.all_options());
  testing::Recording messages = honest(run, layout);
  ASSERT_EQ(error_of(run, layout, messages), "") << "unchanged frames";

  const auto frame = last_of(m.codec, messages);
  const bool has_floats = frame.second != testing::RecordedFrame::kNone;
  m.edit(messages[frame.first].bytes,
         has_floats ? std::span(messages[frame.second].bytes) : std::span<std::byte>{});
  testing::reseal(messages, frame);
  const std::string error = error_of(run, layout, messages);
  EXPECT_NE(error.find("the frame from rank 1 "), std::string::npos) << "'" << error << "'";
  EXPECT_NE(error.find(m.error), std::string::npos) << "'" << error << "'";
}

INSTANTIATE_TEST_SUITE_P(All, MalformedFrames, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Integers of a native sum are no frame: an impossible sum is detected.
TEST(MalformedSums, AreRefusedBeforeAnythingChanges) {
  const Layout layout = halves();
  const testing::Training run = training("lion-cub", kNative);
  const testing::Recording messages = honest(run, layout);
  int refused = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    // a byte a coordinate of a shard: only the peer's levels, and its sums, have this size
    if (testing::is_frame(messages[i]) || messages[i].bytes.size() != 320) continue;
    testing::Recording changed = messages;
    changed[i].bytes[7] = std::byte{0x7F};
    const std::string error = error_of(run, layout, changed);
    EXPECT_NE(error.find("the transport's sum of levels is "), std::string::npos) << error;
    ++refused;
  }
  EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace pride::malformed_test
