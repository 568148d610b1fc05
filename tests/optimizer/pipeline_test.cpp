// The pipeline when a step fails: every rank gets the error at once, and no thread is left.
// Oracle: a method that throws at a given place; the world's deadline is far beyond the test's.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "device/device_space.h"
#include "device/no_device.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "support/one_section.h"

namespace pride::pipeline_test {
namespace {

constexpr int kWorld = 3;
constexpr int kBadRank = 1;
constexpr int kLanes = 2;
constexpr std::chrono::seconds kDeadline{100}, kSoon{20};

enum class Where { kEncode, kServe, kNowhere };

// Frames of the unused bits alone.
class Frames : public Method {
 public:
  Protocol protocol(const SharedContext&) const override { return {}; }
  std::vector<Part> parts(const Bucket& b, const SharedContext&) const override {
    std::vector<Part> parts;
    parts.push_back(sharded_part(b, unused_bits_frames(Codec::kDense, "test"),
                                 unused_bits_frames(Codec::kMean, "result")));
    return parts;
  }
  void encode(const Bucket&, const StepContext&, Flight&) override {}
  void serve(const Part&, const Shard& shard, const VoterFrames& voters, const SharedContext&,
             Reply& reply) const override {
    mark_unused_by_all(voters.frames, shard, unused_bits(reply.head.data(), shard));
  }
  void apply(const Bucket&, const Flight&, const StepContext&, View) override {}
};

// One rank throws at bucket 1.
class Breaking final : public Frames {
 public:
  Breaking(int rank, Where where) : where_(rank == kBadRank ? where : Where::kNowhere) {}

  void encode(const Bucket& b, const StepContext&, Flight&) override {
    if (where_ == Where::kEncode && b.index == 1) throw std::runtime_error("out of paper");
  }
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    // what is found after the bytes have come, as a refused frame is
    if (where_ == Where::kServe && part.bucket == 1) throw CommError("out of paper");
    Frames::serve(part, shard, voters, shared, reply);
  }

 private:
  Where where_;
};

// What rank's step throws. All ranks keep their ends until the last is done: that a rank leaves
// must not be what the others hear of.
template <typename Step>
std::vector<std::string> errors_of(Where where, bool overlap, const Step& step) {
  const Layout layout({{"w", {256}}});
  std::vector<std::string> errors(kWorld);
  std::latch done(kWorld);
  run_world(kWorld, [&](Communicator& caller) {
    caller.set_timeout(kDeadline);
    std::vector<std::unique_ptr<Communicator>> comms;
    for (int i = 0; i < kLanes; ++i) comms.push_back(caller.duplicate());
    OneSection only(layout, std::make_unique<Breaking>(caller.rank(), where), 64, kWorld,
                    caller.rank());
    try {
      Pipeline pipeline(comms, caller, only.sections, only.steps, {}, overlap);
      pipeline.begin(false);
      step(pipeline, caller.rank());
    } catch (const std::exception& e) {
      errors[static_cast<std::size_t>(caller.rank())] = e.what();
    }
    done.arrive_and_wait();
  });
  return errors;
}

class BrokenStep : public ::testing::TestWithParam<bool> {};

void expect_all_know(const std::vector<std::string>& errors, const std::string& why) {
  for (int r = 0; r < kWorld; ++r) {
    const std::string& e = errors[static_cast<std::size_t>(r)];
    EXPECT_NE(e.find(why), std::string::npos) << "rank " << r << ": '" << e << "'";
    if (r != kBadRank) {
      EXPECT_NE(e.find("rank 1: "), std::string::npos) << "rank " << r << ": '" << e << "'";
    }
  }
}

TEST_P(BrokenStep, AnErrorOnOneRankReachesAllRanksAtOnce) {
  for (const Where where : {Where::kEncode, Where::kServe}) {
    const auto before = std::chrono::steady_clock::now();
    const auto errors =
        errors_of(where, GetParam(), [](Pipeline& pipeline, int) { pipeline.finish(); });
    expect_all_know(errors, "out of paper");
    EXPECT_LT(std::chrono::steady_clock::now() - before, kSoon);
  }
}

TEST_P(BrokenStep, AnErrorInSubmitReachesAllRanksAtOnce) {
  const auto before = std::chrono::steady_clock::now();
  const auto errors = errors_of(Where::kEncode, GetParam(), [](Pipeline& pipeline, int) {
    for (std::size_t b = 0; b < 4; ++b) pipeline.submit(b);
    pipeline.finish();
  });
  expect_all_know(errors, "out of paper");
  EXPECT_LT(std::chrono::steady_clock::now() - before, kSoon);
}

TEST_P(BrokenStep, DestructionInTheMiddleReachesAllRanksAtOnce) {
  const auto before = std::chrono::steady_clock::now();
  const auto errors = errors_of(Where::kNowhere, GetParam(), [](Pipeline& pipeline, int rank) {
    for (std::size_t b = 0; b < 2; ++b) pipeline.submit(b);
    if (rank == kBadRank) throw std::runtime_error("destroyed in the middle");
    pipeline.finish();
  });
  expect_all_know(errors, "destroyed in the middle");
  EXPECT_LT(std::chrono::steady_clock::now() - before, kSoon);
}

// Every bucket's exchange waits until the next one has begun, unless it is the last.
class InPairs final : public Frames {
 public:
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    const auto index = static_cast<std::size_t>(part.bucket);
    begun_[index].count_down();
    if (index + 1 < kBuckets && index % kLanes == 0) begun_[index + 1].wait();
    if (index == 0) first_thread_ = std::this_thread::get_id();
    if (index == 2) third_thread_ = std::this_thread::get_id();
    Frames::serve(part, shard, voters, shared, reply);
  }
  void apply(const Bucket& b, const Flight&, const StepContext&, View) override {
    order_.push_back(b.index);
  }

  static constexpr std::size_t kBuckets = 4;
  std::vector<int> order_;
  mutable std::thread::id first_thread_, third_thread_;

 private:
  mutable std::latch begun_[kBuckets] = {std::latch(1), std::latch(1), std::latch(1),
                                         std::latch(1)};
};

// The deadline of the test program is the oracle of the first: one after the other, it would hang.
TEST(Pipeline, HasAsManyBucketsOnTheirWayAsItHasCommunicators) {
  const Layout layout({{"w", {64 * InPairs::kBuckets}}});
  const auto world = make_thread_world(1);
  std::vector<std::unique_ptr<Communicator>> comms;
  for (int i = 0; i < kLanes; ++i) comms.push_back(world[0]->duplicate());
  OneSection only(layout, std::make_unique<InPairs>(), 64, 1);
  const auto& method = dynamic_cast<const InPairs&>(*only.steps[0].method);
  ASSERT_EQ(only.steps[0].buckets.size(), InPairs::kBuckets);
  Pipeline pipeline(comms, *world[0], only.sections, only.steps, {}, true);
  pipeline.begin(false);
  EXPECT_FALSE(pipeline.finish());
  EXPECT_EQ(method.order_, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(method.first_thread_, method.third_thread_) << "a lane keeps its buckets";
}

// Counts the buckets that are encoded and not applied. Bucket 5 is not finite in step 1.
class Counting final : public Frames {
 public:
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    most_ = std::max(most_, ++in_flight_);
    encoded_.push_back(b.index);
    if (b.index == 5 && ctx.step == 1) flight.wire(0).non_finite = NonFinite{ctx.rank, 0};
  }
  void apply(const Bucket& b, const Flight&, const StepContext&, View) override {
    --in_flight_;
    applied_.push_back(b.index);
  }
  void reset() {
    in_flight_ = most_ = 0;
    encoded_.clear();
    applied_.clear();
  }

  int in_flight_ = 0, most_ = 0;
  std::vector<int> encoded_, applied_;
};

std::vector<int> first(int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(Pipeline, FramesTakeNoMoreThanTheirLimit) {
  constexpr int kBuckets = 12;
  const Layout layout({{"w", {64 * kBuckets}}});
  run_world(kWorld, [&](Communicator& caller) {
    caller.set_timeout(kDeadline);
    std::vector<std::unique_ptr<Communicator>> comms;
    for (int i = 0; i < kLanes; ++i) comms.push_back(caller.duplicate());
    for (const bool overlap : {true, false}) {
      DeviceSpace device(std::make_shared<NoDevice>());
      OneSection only(layout, std::make_unique<Counting>(), 64, kWorld, caller.rank(), device);
      auto& method = dynamic_cast<Counting&>(*only.steps[0].method);
      Pipeline pipeline(comms, caller, only.sections, only.steps, {}, overlap, device);
      const int lanes = overlap ? kLanes : 1;
      const auto parts = method.parts(only.sections[0].buckets.front(), only.steps[0].ctx);
      std::size_t bytes = 0;  // of a bucket's frames
      for (const Shard& shard : parts[0].shards) {
        bytes += parts[0].up.all_bytes(shard) + parts[0].down.all_bytes(shard);
      }
      for (const auto& [limit, most] :
           {std::pair{bytes, lanes + 1}, {5 * bytes, 5}, {100 * bytes, kBuckets}}) {
        method.reset();
        pipeline.limit_frames(limit);
        pipeline.begin(false);
        for (std::size_t b = kBuckets; b-- > 0;) pipeline.submit(b);
        EXPECT_FALSE(pipeline.finish());
        EXPECT_EQ(method.most_, most);
        EXPECT_EQ(method.applied_, first(kBuckets));
        method.reset();
        pipeline.begin(true);
        EXPECT_FALSE(pipeline.finish());
        EXPECT_EQ(method.most_, kBuckets) << "held";
      }
      // a step that stops leaves the buckets behind it, on all ranks
      method.reset();
      pipeline.limit_frames(0);
      only.begin(1);
      pipeline.begin(false);
      EXPECT_TRUE(pipeline.finish());
      EXPECT_EQ(method.applied_, first(5));
      EXPECT_EQ(method.encoded_, first(5 + lanes + 1));
      only.begin(2);
      method.reset();
      pipeline.begin(false);
      EXPECT_FALSE(pipeline.finish());
      EXPECT_EQ(method.applied_, first(kBuckets));
    }
  });
}

// Exchanges in step 0 with a delay of 2; its server waits until it is let go.
class Late final : public Frames, public LocalParameters {
 public:
  Late() { local_ = this; }
  Protocol protocol(const SharedContext& shared) const override {
    Protocol protocol;
    protocol.delay = 2;
    protocol.exchanges = shared.step == 0;
    return protocol;
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override {
    return shared.step == 0 ? Frames::parts(b, shared) : std::vector<Part>();
  }
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    go_.wait();
    Frames::serve(part, shard, voters, shared, reply);
  }
  void apply(const Bucket&, const Flight&, const StepContext& ctx, View) override {
    log_ += concat("apply ", ctx.step, "; ");
  }
  void arrive(const Bucket&, const Flight&, const StepContext& begun) override {
    log_ += concat("arrive ", begun.step, "; ");
  }
  void drop(const StepContext&, const NonFinite&) override {}
  void begin(ConstView) override {}
  ConstView common(View x, std::vector<ParameterPlace>&) const override { return x; }
  void rebase(ConstView) override {}
  void to_common(View, std::span<const char>) const override {}
  void to_local(View, std::span<const char>) const override {}
  void replay(const Bucket&, const Flight&, const StepContext&, View) override {}
  StepNotes end_step(const StepContext&) override { return {}; }

  std::string log_;
  mutable std::latch go_{1};
};

// A deadline is the oracle of the first half: a step that waited for its exchange would hang.
TEST(Pipeline, ADelayedExchangeGoesOnBesideTheStepsThatFollow) {
  const Layout layout({{"w", {64}}});
  const auto world = make_thread_world(1);
  std::vector<std::unique_ptr<Communicator>> comms;
  comms.push_back(world[0]->duplicate());
  for (const bool by_hand : {false, true}) {
    OneSection only(layout, std::make_unique<Late>(), 64, 1);
    auto& method = dynamic_cast<Late&>(*only.steps[0].method);
    Pipeline pipeline(comms, *world[0], only.sections, only.steps, {}, true);
    for (int step = 0; step < 2; ++step) {
      only.begin(step);
      pipeline.begin(false);
      EXPECT_FALSE(pipeline.finish());
    }
    EXPECT_EQ(method.log_, "apply 0; apply 1; ");
    method.go_.count_down();
    if (by_hand) pipeline.complete();
    only.begin(2);
    pipeline.begin(false);
    EXPECT_FALSE(pipeline.finish());
    EXPECT_EQ(method.log_, "apply 0; apply 1; arrive 0; apply 2; ");
  }
}

INSTANTIATE_TEST_SUITE_P(All, BrokenStep, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "overlap" : "in_order");
});

}  // namespace
}  // namespace pride::pipeline_test
