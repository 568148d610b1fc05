// The parts of `pride bench`: statistics, and that wrong results are counted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <numeric>

#include "bench/exchange.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "program/settings.h"
#include "support/faulty_comm.h"
#include "support/replayed_peers.h"
#include "support/temp_folder.h"

namespace pride::app {
namespace {

using test::expect_contains;

TEST(Times, AreMinimumMedianAndP99) {
  std::vector<double> seconds(200);
  std::iota(seconds.rbegin(), seconds.rend(), 1);
  const Times times = times_of(seconds);
  EXPECT_EQ(times.n, 200);
  EXPECT_EQ(times.min_s, 1);
  EXPECT_EQ(times.median_s, 100.5);
  EXPECT_EQ(times.p99_s, 198);
  EXPECT_EQ(times_of({3}).p99_s, 3);
  EXPECT_EQ(times_of({3, 1, 2}).median_s, 2);
  EXPECT_THROW(times_of({}), InvalidArgument);
}

// Measured as briefly as can be.
MethodBench briefly(std::vector<std::string> methods, std::vector<std::size_t> sizes) {
  return {.methods = std::move(methods),
          .sizes = std::move(sizes),
          .bucket_coords = 1 << 14,
          .seconds = 0.001,
          .least = 2};
}

// The cells of a run on `world` threads, on rank 0.
std::vector<ExchangeCell> cell_bits_of(int world, const MethodBench& settings, Fault fault = {}) {
  std::vector<ExchangeCell> cells;
  run_world(world, [&](Communicator& comm) {
    // the fault is rank 1's
    const Fault mine = comm.rank() == 1 ? fault : Fault{};
    FaultyComm faulty(comm.duplicate(), mine);
    bench_exchange(faulty, settings, {.goodput = 1e9}, [&](const ExchangeCell& cell) {
      if (comm.rank() == 0) cells.push_back(cell);
    });
    EXPECT_EQ(faulty.happened(), mine.kind != Fault::Kind::kNone);
  });
  return cells;
}

TEST(ExchangeBench, CountsTheBytesOfTheMethodAndFindsTheResultRight) {
  for (const int world : {1, 4}) {
    const MethodBench settings = briefly(method_names(), {1000, 20'000});
    const auto cells = cell_bits_of(world, settings);
    ASSERT_EQ(cells.size(), 2 * (settings.methods.size() + 3));
    for (const ExchangeCell& cell : cells) {
      EXPECT_EQ(cell.wrong_ranks, 0) << cell.name << ", N = " << world;
      EXPECT_GT(cell.times.median_s, 0) << cell.name;
      EXPECT_GE(cell.times.n, 2) << cell.name;
      EXPECT_NEAR(cell.limit_s, cell.bytes / 1e9, 1e-15) << cell.name;
      if (!cell.counted || cell.name == "memcpy") continue;
      EXPECT_EQ(cell.checked_against, "threads") << cell.name;
      const Layout layout({{"w", {static_cast<std::int64_t>(cell.coords)}}});
      const std::int64_t late = std::int64_t{1} << 40;  // of every period in question, a first step
      const Cost cost = largest_cost(cell.name, layout,
                                     {.world = world,
                                      .step = late + method_info(cell.name, world).period - 1,
                                      .bucket_coords = settings.bucket_coords});
      if (cost.exact) {
        EXPECT_EQ(cell.bytes, static_cast<double>(cost.bytes())) << cell.name << ", N = " << world;
      } else {
        EXPECT_LE(cell.bytes, static_cast<double>(cost.bytes())) << cell.name << ", N = " << world;
      }
    }
  }
}

// 79 blocks in 5 buckets, the last a block smaller.
TEST(ExchangeBench, ExchangesUnequalBucketsWithAndWithoutThreads) {
  for (const int threads : {0, 3}) {
    MethodBench settings = briefly(method_names(), {5000});
    settings.bucket_coords = 1024;
    settings.exchange_threads = threads;
    for (const ExchangeCell& cell : cell_bits_of(2, settings)) {
      EXPECT_EQ(cell.wrong_ranks, 0) << cell.name << ", " << threads << " threads";
    }
  }
}

TEST(ExchangeBench, CountsWrongResults) {
  // the first two sends of the transport's own sum are sizes; then a bit of an addend changes
  const Fault fault{.kind = Fault::Kind::kCorrupt, .at_send = 2, .byte = 402};
  const auto cells = cell_bits_of(3, briefly({}, {1000}), fault);
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_GT(cells[0].wrong_ranks, 0);
  EXPECT_EQ(cells[1].wrong_ranks, 0);
}

// A method may be in the list with options, several times; its own options override those for all.
TEST(ExchangeBench, TakesOptionsOfOneMethod) {
  const MethodBench settings = briefly(
      {"lion", "lion:dense=bf16", "lion:dense=native", "dlion-avg:counts=planes"}, {70'000});
  for (const int world : {1, 3, 4}) {
    const auto cells = cell_bits_of(world, settings);
    ASSERT_EQ(cells.size(), 7u);
    for (const ExchangeCell& cell : cells) EXPECT_EQ(cell.wrong_ranks, 0) << cell.name;
    EXPECT_EQ(cells[1].name, "lion:dense=bf16");
    EXPECT_EQ(cells[4].name, "threads all-reduce fp32");
    EXPECT_EQ(cells[5].name, "threads all-reduce bf16");
    EXPECT_TRUE(cells[1].counted);
    EXPECT_EQ(cells[2].counted, world == 1) << "what the transport's sum sends is not known";
    if (world == 1) continue;
    EXPECT_NEAR(cells[1].bytes / cells[0].bytes, 0.5, 0.02);
    EXPECT_NEAR(cells[2].bytes / cells[0].bytes, 1, 0.02);
    EXPECT_EQ(cells[5].bytes / cells[4].bytes, 0.5);
  }
  MethodBench both = settings;
  both.methods = {"lion", "lion:dense=ordered"};
  both.method_options = {"dense=bf16"};
  const auto cells = cell_bits_of(2, both);
  EXPECT_NEAR(cells[0].bytes / cells[1].bytes, 0.5, 0.02);
}

TEST(MethodChoice, IsANameAndOptions) {
  const MethodChoice choice = parse_method("lion-cub:bits=2:sync=none");
  EXPECT_EQ(choice.name, "lion-cub");
  EXPECT_EQ(checked_options(choice),
            (std::map<std::string, std::string>{{"bits", "2"}, {"sync", "none"}}));
  EXPECT_TRUE(checked_options(parse_method("lion")).empty());
  for (const char* text : {"sgd", "lion:tie=zero", "lion:dense", "lion:dense=bf16:dense=native",
                           "lion:", "lion::dense=bf16", ""}) {
    EXPECT_THROW(checked_options(parse_method(text)), InvalidArgument) << "'" << text << "'";
  }
}

TEST(ExchangeBench, RefusesOptionsThatNoMethodOfTheListHas) {
  MethodBench settings{.methods = {"lion", "dlion-vote"}, .method_options = {"route=one-shot"}};
  EXPECT_NO_THROW(check_options(settings, 4));
  settings.method_options = {"route=round"};
  EXPECT_THROW(check_options(settings, 4), InvalidArgument) << "no such value";
  settings.method_options = {"rout=one-shot"};
  EXPECT_THROW(check_options(settings, 4), InvalidArgument) << "no such option";
  settings = {.methods = {"lion"}, .method_options = {"route=one-shot"}};
  EXPECT_THROW(check_options(settings, 4), InvalidArgument) << "of no method in the list";
}

TEST(WithMemoryFor, SaysOfWhatAndHowMuchThereIsNone) {
  EXPECT_EQ(with_memory_for("lion", 10, [] { return 3; }), 3);
  test::expect_error<Error>(
      [] { with_memory_for("lion of 8 coordinates", 12'000, [] { throw std::bad_alloc(); }); },
      {"lion of 8 coordinates: out of memory: each rank needs 12,000 bytes or more; ask for "
       "smaller --sizes"});
}

TEST(BytesOf, AreThoseOfTheOptions) {
  const double wide = bytes_of({"lion"}, 4, 1e6, 1 << 20);
  EXPECT_NEAR(bytes_of({"lion", {{"dense", "bf16"}}}, 4, 1e6, 1 << 20) / wide, 0.5, 0.001);
}

// A link with an attacker on it: in some frames the first byte of the signs is changed (after the
// word of unused bits), and the checksum made valid again, so that it is not detected before
// parameters differ.
class Forger final : public ForwardingCommunicator {
 public:
  Forger(std::unique_ptr<Communicator> inner, Codec codec, std::shared_ptr<std::atomic<int>> left)
      : ForwardingCommunicator(std::move(inner)), codec_(codec), left_(std::move(left)) {}

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    testing::Recording message{{0, rank(), tag, {bytes.begin(), bytes.end()}}};
    auto& copy = message[0].bytes;
    const bool mine = testing::is_frame(message[0]) && copy[6] == std::byte(codec_);
    if (!mine || left_->fetch_sub(1) <= 0) {
      return ForwardingCommunicator::do_start_send(peer, tag, bytes);
    }
    copy[kHeaderBytes + 8] ^= std::byte{0xff};
    testing::reseal(message, {0});
    sent_.push_back(std::move(copy));
    return ForwardingCommunicator::do_start_send(peer, tag, sent_.back());
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new Forger(ForwardingCommunicator::do_group(members), codec_, left_));
  }

 private:
  Codec codec_;
  std::shared_ptr<std::atomic<int>> left_;
  std::list<std::vector<std::byte>> sent_;  // lives as long as sends may look at it
};

// The number of wrong ranks, of three, if a frame of rank 1 is forged in the first step.
int wrong_with_forged(Codec codec, const std::string& method) {
  MethodBench settings = briefly({method}, {1000});
  settings.exchange_threads = 1;
  int wrong = -1;
  run_world(3, [&](Communicator& comm) {
    auto left = std::make_shared<std::atomic<int>>(comm.rank() == 1 ? 1 : 0);
    Forger forger(comm.duplicate(), codec, left);
    bench_exchange(forger, settings, {}, [&](const ExchangeCell& cell) {
      if (comm.rank() == 0 && cell.name == method) wrong = cell.wrong_ranks;
    });
    EXPECT_LE(left->load(), 0) << "nothing was forged";
  });
  return wrong;
}

// A replica with another result differs from the others; signs changed on their way to a vote leave
// replicas alike, and only the run on threads shows that all are wrong.
TEST(ExchangeBench, CountsWrongResultsOfMethods) {
  EXPECT_EQ(wrong_with_forged(Codec::kVote, "dlion-vote:route=sharded"), 1);
  EXPECT_EQ(wrong_with_forged(Codec::kSign, "dlion-vote:route=sharded"), 3);
  EXPECT_EQ(wrong_with_forged(Codec::kAllSigns, "dlion-vote:route=one-shot"), 1);
}

TEST(OptimizerBench, CountsRanksWithOtherParameters) {
  const MethodBench settings{.methods = {"dlion-vote:route=sharded"},
                             .bucket_coords = 1 << 14,
                             .exchange_threads = 0,
                             .seconds = 0.001,
                             .least = 1};
  for (const int forged : {0, 1}) {  // of the votes that rank 1 sends
    run_world(3, [&](Communicator& comm) {
      auto left = std::make_shared<std::atomic<int>>(comm.rank() == 1 ? forged : 0);
      Forger forger(comm.duplicate(), Codec::kVote, left);
      EXPECT_EQ(bench_optimizer(forger, settings, 1000)[1].wrong_ranks, forged);
    });
  }
}

TEST(ExchangeBench, HasTheRouteOfBuckets) {
  MethodBench settings =
      briefly({"lion", "dlion-vote:route=sharded", "dlion-vote:route=one-shot",
               "dlion-vote:bandwidth_delay_bytes=0", "dlion-vote:bandwidth_delay_bytes=1000000"},
              {20'000});
  auto cells = cell_bits_of(4, settings);
  const char* const routes[] = {"sharded", "sharded", "one-shot", "sharded", "one-shot"};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(cells[i].route, routes[i]) << cells[i].name;
  settings.nodes = Nodes::of_size(4, 2);
  settings.methods = {"dlion-vote"};
  EXPECT_EQ(cell_bits_of(4, settings)[0].route, "hierarchical");
}

// Exceptions of three ranks; rank 2 has `other`.
std::vector<std::string> errors_of(const Settings& all, const Settings& other) {
  std::vector<std::string> errors(3);
  run_world(3, [&](Communicator& comm) {
    try {
      check_same_settings(comm, comm.rank() == 2 ? other : all);
    } catch (const InvalidArgument& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  return errors;
}

TEST(SameSettings, AreNamedOnAllRanksWhereOneDiffers) {
  const Settings all = {{"--sizes", "10"}, {"--reps", "5"}};
  for (const auto& error : errors_of(all, all)) EXPECT_EQ(error, "");
  for (const auto& error : errors_of(all, {{"--sizes", "10"}, {"--reps", "6"}})) {
    EXPECT_EQ(error.find("--reps differs: rank(s) 2 have another value than rank 0"), 0u) << error;
  }
  for (const auto& error : errors_of(all, {{"--sizes", "11"}, {"--reps", "5"}})) {
    EXPECT_EQ(error.find("--sizes differs: rank(s) 2"), 0u) << error;
  }
  for (const auto& error : errors_of(all, {{"--sizes", "10"}})) {
    EXPECT_EQ(error.find("rank(s) 2 run another command"), 0u) << error;
  }
}

TEST(LocalRank, CountsTheRanksBeforeOnTheMachine) {
  run_world(3, [](Communicator& comm) { EXPECT_EQ(local_rank(comm), comm.rank()); });
}

// Ranks 0 and 1 often share a node; all other measurements are the same for ranks 1 and 2.
TEST(OnNetwork, SetsWhatARankCouldSendInARound) {
  const NetworkModel network{.latency_s = 1e-3, .message_s = 1e-4, .bytes_per_s = 1e8};
  EXPECT_EQ(bandwidth_delay_bytes(network, 2), 100'000u);
  EXPECT_EQ(bandwidth_delay_bytes(network, 12), 200'000u);
  using Options = std::map<std::string, std::string>;
  EXPECT_EQ(on_network({"dlion-vote", {{"tie", "zero"}}}, network, 2).options,
            (Options{{"tie", "zero"}, {"bandwidth_delay_bytes", "100000"}}));
  EXPECT_EQ(on_network({"dlion-vote", {{"bandwidth_delay_bytes", "5"}}}, network, 2).options,
            (Options{{"bandwidth_delay_bytes", "5"}}));
  EXPECT_EQ(on_network({"lion-cub"}, network, 2).options, Options{});
}

TEST(SentIn, IsOneRoundInOneShot) {
  const auto sent = [](const PlanMethod& method, int world) {
    return sent_in(method, world, 4e6, 1 << 20);
  };
  const PlanMethod one_shot{"dlion-vote", {{"route", "one-shot"}}};
  EXPECT_EQ(sent({"dlion-vote"}, 2).phases, 1);
  EXPECT_EQ(sent({"dlion-vote"}, 2).vote_times, 2);
  EXPECT_EQ(sent({"dlion-vote"}, 4).phases, 2);
  EXPECT_EQ(sent({"dlion-vote"}, 4).vote_times, 1);
  EXPECT_EQ(sent(one_shot, 4).phases, 1);
  EXPECT_NEAR(sent(one_shot, 4).bytes / sent({"dlion-vote"}, 4).bytes, 2, 0.01);
  EXPECT_EQ(sent({"lion-cub"}, 4).phases, 5);
}

}  // namespace
}  // namespace pride::app
