// Means by a coordinator: adamw, lion, sgdm, dsm, diloco and FedAvg. Oracle: sums in double by
// coordinate. central_test.cpp compares the bits with those of a world of ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codecs/levels.h"
#include "optimizer/central_half.h"
#include "optimizer/central_workers.h"
#include "pride/bf16.h"

namespace pride::central_dense_test {
namespace {

using testing::error_of;
using testing::Half;
using testing::joined;
using testing::kSeed;
using testing::record_of;
using testing::run_all;
using testing::TestCoordinator;
using testing::Worker;

OptimizerOptions options_of(const char* method, std::map<std::string, std::string> options = {}) {
  return {.method = method, .options = std::move(options), .bucket_coords = 1000, .seed = 11};
}

const std::map<std::string, std::string> kFedAvg = {
    {"h", "2"}, {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}};

// Visits the values of a ballot's or a record's frames, as one row for each bucket.
template <typename T>
void for_bodies(const CentralRound& central, std::span<const std::byte> bytes, bool up,
                const std::function<void(const Shard&, std::span<const T>)>& visit) {
  std::size_t at = 0;
  central.for_parts({.step = 3, .central = true},
                    [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
                      const FrameKind& kind = up ? part.up : part.down;
                      at += kind.bytes(shard);
                      visit(shard, {reinterpret_cast<const T*>(bytes.data() + at), shard.size()});
                      at += kind.body_bytes(shard);
                    });
  EXPECT_EQ(at, bytes.size());
}

TEST(CentralMean, CountsAVoterOfWeightWAsWVoters) {
  Half half("sgdm");
  const CentralRound central(half.sections, half.steps);
  // 65,535 of 65,536: the divisor is not the number of voters
  for (const std::vector<Voter>& voters :
       {std::vector<Voter>{{2, 3}, {3, 1}, {7, 5}}, {{0, 65535}, {1, 1}}}) {
    double votes = 0;
    for (const Voter& voter : voters) votes += voter.weight;
    std::vector<std::vector<std::byte>> ballots;
    for (const Voter& voter : voters) {
      ballots.push_back(half.ballot(central, 3, voter));
      central.check_ballot(3, kSeed, digest_of(half.scalars), voter, ballots.back());
    }
    const RoundRecord record = record_of(central, voters, ballots, half.scalars);
    central.check_record(record, kSeed, "test");
    std::size_t compared = 0;
    for_bodies<float>(
        central, record.frames, false, [&](const Shard& shard, std::span<const float> mean) {
          for (const Piece& p : shard.pieces) {
            const TensorSlot& slot = half.layout.tensors()[p.tensor];
            for (std::size_t i = p.begin; i < p.end; ++i, ++compared) {
              double sum = 0;
              for (const Voter& v : voters) {
                if (testing::unused(v.number, 3, p.tensor)) continue;
                sum += v.weight * static_cast<double>(
                                      testing::gradient(v.number, 3, p.tensor, i - slot.offset));
              }
              ASSERT_EQ(mean[i - shard.begin], static_cast<float>(sum / votes)) << i;
            }
          }
        });
    EXPECT_GT(compared, 2000U);
  }
}

TEST(CentralMean, AWeightedMeanInBfloat16IsRoundedOnce) {
  Half half("sgdm", {{"dense", "bf16"}});
  const CentralRound central(half.sections, half.steps);
  const std::vector<Voter> voters = {{0, 2}, {1, 1}};
  const std::vector<std::vector<std::byte>> ballots = {half.ballot(central, 3, voters[0]),
                                                       half.ballot(central, 3, voters[1])};
  const RoundRecord record = record_of(central, voters, ballots, half.scalars);
  const auto rounded = [](float x) {
    BFloat16 narrow[1];
    to_bf16({&x, 1}, narrow);
    to_float(narrow, {&x, 1});
    return x;
  };
  for_bodies<BFloat16>(
      central, record.frames, false, [&](const Shard& shard, std::span<const BFloat16> mean) {
        for (const Piece& p : shard.pieces) {
          if (p.tensor != 1) continue;  // which both use
          std::vector<float> got(p.n());
          to_float(mean.subspan(p.begin - shard.begin, p.n()), got);
          for (std::size_t i = 0; i < p.n(); ++i) {
            const std::size_t at = p.begin + i - half.layout.tensors()[1].offset;
            const double sum = 2.0 * static_cast<double>(rounded(testing::gradient(0, 3, 1, at))) +
                               static_cast<double>(rounded(testing::gradient(1, 3, 1, at)));
            ASSERT_EQ(got[i], rounded(static_cast<float>(sum / 3))) << at;
          }
        }
      });
}

TEST(CentralMean, AWeightedMeanInLevelsIsRoundedOnce) {
  const ValueFormat format{ValueFormat::Kind::kLevels, 4};
  Half half("sgdm", {{"dense", "int4"}});
  const CentralRound central(half.sections, half.steps);
  const std::vector<Voter> voters = {{0, 2}, {1, 1}};
  const std::vector<std::vector<std::byte>> ballots = {half.ballot(central, 3, voters[0]),
                                                       half.ballot(central, 3, voters[1])};
  const RoundRecord record = record_of(central, voters, ballots, half.scalars);
  const auto rounded = [&](std::vector<float> values) {
    values.resize((values.size() + 63) / 64 * 64);
    std::vector<std::byte> frame(64 + 8 * values.size());
    write_values(values, format, frame);
    read_values(frame, format, values);
    return values;
  };
  std::size_t at = 0, compared = 0;
  central.for_parts({.step = 3, .central = true}, [&](std::size_t, std::size_t, const Part& part,
                                                      const Shard& shard) {
    std::vector<float> mean(shard.size());
    const ValueView<const std::byte> view(record.frames.data() + at, shard.size(), format,
                                          shard.pieces.size());
    read_values(Space::host(), view, 0, mean);
    at += part.down.all_bytes(shard);
    for (const Piece& p : shard.pieces) {
      if (p.tensor != 1) continue;  // which both use
      std::vector<float> expected(p.n());
      const auto of = [&](int worker) {
        std::vector<float> g(p.n());
        const std::size_t first = p.begin - half.layout.tensors()[1].offset;
        for (std::size_t i = 0; i < g.size(); ++i)
          g[i] = testing::gradient(worker, 3, 1, first + i);
        return rounded(g);
      };
      const std::vector<float> first = of(0), second = of(1);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = static_cast<float>((2 * double{first[i]} + double{second[i]}) / 3);
      }
      expected = rounded(expected);
      for (std::size_t i = 0; i < p.n(); ++i, ++compared) {
        ASSERT_EQ(mean[p.begin - shard.begin + i], expected[i]) << p.begin + i;
      }
    }
  });
  EXPECT_GT(compared, 1000U);
}

// One worker's huge numbers stop no run.
TEST(CentralMean, OfFiniteNumbersIsFinite) {
  for (const char* dense : {"ordered", "bf16", "int8", "int4", "int2"}) {
    Half half("sgdm", {{"dense", dense}});
    half.grad = [](int, std::int64_t, std::size_t, std::size_t) { return 0x1.8p127F; };
    const CentralRound central(half.sections, half.steps);
    const std::vector<Voter> voters = {{1, 1}, {2, 1}, {3, 1}};
    std::vector<std::vector<std::byte>> ballots;
    for (const Voter& voter : voters) ballots.push_back(half.ballot(central, 3, voter));
    const RoundRecord record = record_of(central, voters, ballots, half.scalars);
    EXPECT_EQ(error_of([&] { central.check_record(record, kSeed, "test"); }), "") << dense;
  }
}

TEST(CentralMean, RefusesABallotWithANumberThatIsNotFinite) {
  for (const char* dense : {"ordered", "bf16"}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Half half("sgdm", {{"dense", dense}});
      const CentralRound central(half.sections, half.steps);
      const Voter voter{4, 1};
      const std::uint64_t digest = digest_of(half.scalars);
      const std::size_t offset = half.layout.tensors()[1].offset;
      // the frame does not say so: an honest worker's program would not have sent it
      half.grad = [&](int, std::int64_t, std::size_t t, std::size_t i) {
        return t == 1 && i == 77 ? bad : 0;
      };
      const auto ballot = half.ballot(central, 3, voter);
      const std::string text =
          error_of([&] { central.check_ballot(3, kSeed, digest, voter, ballot); });
      EXPECT_NE(text.find("worker 4, round 3"), std::string::npos) << text;
      EXPECT_NE(text.find(concat("coordinate ", offset + 77)), std::string::npos) << text;
      // the numbers of an unused tensor do not count
      half.grad = [&](int, std::int64_t, std::size_t t, std::size_t) { return t == 4 ? bad : 0; };
      const auto unused = half.ballot(central, 3, voter);
      EXPECT_EQ(error_of([&] { central.check_ballot(3, kSeed, digest, voter, unused); }), "");
    }
  }
}

TEST(CentralMean, RefusesABallotWithAnyByteChanged) {
  Half half("diloco", kFedAvg);
  const CentralRound central(half.sections, half.steps);
  const Voter voter{4, 1};
  auto ballot = half.ballot(central, 3, voter);
  for (std::size_t i = 0; i < ballot.size(); i += i < 80 ? 1 : 97) {
    ballot[i] ^= std::byte{0x10};
    EXPECT_NE(
        error_of([&] { central.check_ballot(3, kSeed, digest_of(half.scalars), voter, ballot); }),
        "")
        << "byte " << i;
    ballot[i] ^= std::byte{0x10};
  }
}

// docs/wire_format.md, section 11.
TEST(CentralMean, TakesTheBytesOfItsFormatUpAndDown) {
  const std::pair<const char*, std::size_t> formats[] = {
      {"ordered", 32}, {"bf16", 16}, {"int8", 8}, {"int4", 4}, {"int2", 2}};
  for (const auto& [dense, bits] : formats) {
    const Half half("diloco", {{"dense", dense}});
    const CentralRound central(half.sections, half.steps);
    std::size_t frames = bits * half.layout.flat_size() / 8;
    for (const Bucket& bucket : half.buckets) {
      frames += 64 + 8 * ((bucket.shards[0].pieces.size() + 63) / 64);
      if (bits < 16) frames += (2 * bucket.size() / 64 + 7) / 8 * 8;
    }
    EXPECT_EQ(central.ballot_bytes(0), frames);
    const std::vector<Voter> voters = {{0, 1}, {1, 7}};
    EXPECT_EQ(central.record_bytes(0, 1, voters), frames + 56 + 60 + 2 * 4);
  }
}

// FedAvg: after a round x is the mean of the workers' own parameters, by their weights.
TEST(CentralMean, FedAvgIsTheWeightedMeanOfParameters) {
  OptimizerOptions options = options_of("diloco", kFedAvg);
  options.options["local"] = "sgdm";
  TestCoordinator coordinator(testing::layout(), options);
  const std::vector<int> weights = {1, 4, 2};
  auto workers = joined(coordinator, options, 3, weights);
  run_all(workers, 1);  // the first of two local steps: from here each is by itself
  std::vector<double> mean(testing::layout().flat_size());
  for (int w = 0; w < 3; ++w) {
    OptimizerOptions alone = options_of("sgdm");
    const auto comms = make_thread_world(1);
    Optimizer local(*comms[0], testing::layout(), alone);
    FlatBuffer x(mean.size()), g(mean.size());
    testing::fill(testing::layout(), x, testing::initial);
    for (int step = 0; step < 2; ++step) {
      testing::fill(testing::layout(), g,
                    [&](std::size_t t, std::size_t i) { return testing::gradient(w, step, t, i); });
      bool flags[5];
      for (std::size_t t = 0; t < 5; ++t) flags[t] = testing::unused(w, step, t);
      local.step(x.span(), g.span(), flags);
    }
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += weights[static_cast<std::size_t>(w)] / 7.0 * static_cast<double>(x.span()[i]);
    }
  }
  run_all(workers, 2);
  constexpr double kFloatNoise = 2e-6;  // drifts of about 4: a few roundings of 2^-23
  for (const TensorSlot& slot : testing::layout().tensors()) {
    for (std::size_t i = slot.offset; i < slot.offset + slot.n; ++i) {
      ASSERT_NEAR(static_cast<double>(workers[0]->params()[i]), mean[i], kFloatNoise) << i;
    }
  }
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash());
}

std::span<float> buffer_of(Worker& worker, const std::string& name) {
  for (const StateBuffer& buffer : worker.optimizer().state_buffers()) {
    if (buffer.name == name) return buffer.values;
  }
  ADD_FAILURE() << "no buffer " << name;
  return {};
}

TEST(CentralState, OfANewWorkerIsThatOfTheOthers) {
  for (const char* method : {"adamw", "lion", "diloco"}) {
    OptimizerOptions options = options_of(method);
    if (options.method == "diloco") options.options["h"] = "2";
    TestCoordinator coordinator(testing::layout(), options);
    auto workers = joined(coordinator, options, 2);
    coordinator.parameters_every = 6;
    run_all(workers, 12);
    Worker late(coordinator, 7, options, 1);
    late.join();
    EXPECT_EQ(coordinator.parameters_taken, 1) << method;
    const auto want = buffer_of(*workers[0], "m"), got = buffer_of(late, "m");
    EXPECT_TRUE(std::ranges::equal(got, want)) << method;
    EXPECT_TRUE(std::ranges::any_of(got, [](float m) { return m != 0; })) << method;
  }
}

// Parameters alone would be equal until the next step.
TEST(CentralState, ThatDiffersIsSeenAndMadeEqual) {
  const OptimizerOptions options = options_of("adamw");
  TestCoordinator coordinator(testing::layout(), options);
  auto workers = joined(coordinator, options, 3);
  run_all(workers, 4);
  buffer_of(*workers[1], "v")[3] += 1;
  run_all(workers, 5);
  const auto& round = workers[1]->reports.back().round;
  EXPECT_FALSE(round->counted);
  EXPECT_EQ(round->why_not, "other");
  EXPECT_TRUE(round->took_parameters);
  run_all(workers, 8);
  EXPECT_TRUE(std::ranges::equal(buffer_of(*workers[1], "v"), buffer_of(*workers[0], "v")));
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash());
}

}  // namespace
}  // namespace pride::central_dense_test
