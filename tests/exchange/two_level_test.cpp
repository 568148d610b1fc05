// Exchanges in two levels against those in one: the same frames, parameters and errors; and the
// bytes that stay on a host and leave it against the stated cost.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/two_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "methods/registry.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/faulty_comm.h"
#include "support/training.h"

namespace pride {
namespace {

using testing::absent;
using testing::kTensors;
using testing::Training;

// Zero in most blocks of the embedding, others on every rank.
float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  const bool hidden = tensor == 0 && mix64(index / 64, static_cast<std::uint64_t>(rank)) % 3 != 0;
  return hidden ? 0 : testing::gradient(rank, step, tensor, index);
}

struct Shape {
  int hosts, per_host;
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr Shape kShapes[] = {{1, 4}, {4, 1}, {2, 3}};  // thousands of threads take minutes there
#else
constexpr Shape kShapes[] = {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {2, 3}, {3, 2},
                             {2, 4}, {4, 2}, {3, 3}, {2, 8}, {5, 3}};
#endif

// Ranks dealt out to the hosts in turn, as `mpirun --map-by node` does.
Hosts dealt_out(Shape shape) {
  std::vector<int> host_of_rank;
  for (int r = 0; r < shape.hosts * shape.per_host; ++r) {
    host_of_rank.push_back(100 - r % shape.hosts);
  }
  return Hosts(host_of_rank);
}

Hosts in_blocks(Shape shape) {
  return Hosts::of_size(shape.hosts * shape.per_host, shape.per_host);
}

struct Case {
  std::string method;
  std::map<std::string, std::string> options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.method; }

const std::vector<Case> kCases = {{"dlion-vote", {}},  {"dlion-vote", {{"tie", "zero"}}},
                                  {"dlion-avg", {}},   {"dlion-avg", {{"counts", "planes"}}},
                                  {"signum-vote", {}}, {"signum-avg", {}}};

class TwoLevels : public ::testing::TestWithParam<Case> {
 protected:
  Training run(Shape shape) const {
    Training run{.world = shape.hosts * shape.per_host, .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.absent = absent;
    run.grad = gradient;
    return run;
  }
};

// Hash of the run, after checking that all ranks have it.
std::uint64_t hash_of(const Training& run) {
  const auto ranks = testing::train(Layout(kTensors), run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].hash;
}

TEST_P(TwoLevels, GiveTheParametersOfOneLevel) {
  for (const Shape shape : kShapes) {
    const Training flat = run(shape);
    const std::uint64_t expected = hash_of(flat);
    for (const Hosts& hosts : {in_blocks(shape), dealt_out(shape)}) {
      for (const std::size_t coords : {std::size_t{64}, std::size_t{1000}, std::size_t{1} << 20}) {
        Training other = flat;
        other.options.hosts = hosts;
        other.options.bucket_coords = coords;
        EXPECT_EQ(hash_of(other), expected) << shape.hosts << " hosts of " << shape.per_host << ", "
                                            << coords << " coordinates a bucket";
        other.options.overlap = true;
        EXPECT_EQ(hash_of(other), expected)
            << shape.hosts << " hosts of " << shape.per_host << ", overlap";
      }
    }
  }
}

// Every frame of results, on every rank.
std::vector<std::vector<std::vector<std::byte>>> results_of(const Training& run,
                                                            const Layout& layout,
                                                            const Bucket& bucket) {
  std::vector<std::vector<std::vector<std::byte>>> all(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    const int rank = comm.rank();
    const auto method =
        make_method(run.options.method,
                    {layout, rank, run.world,
                     complete_options(run.options.method, run.options.options), run.options.hosts});
    std::vector<char> missing;
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      missing.push_back(run.absent(rank, 0, t) ? 1 : 0);
    }
    const std::vector<StepScalars> groups(1);
    const StepContext ctx{.step = 3,
                          .rank = rank,
                          .world = run.world,
                          .seed = 9,
                          .groups = groups,
                          .scalars_digest = 7,
                          .absent = missing};
    FlatBuffer grads(layout.flat_size());
    testing::fill(layout, grads,
                  [&](std::size_t t, std::size_t i) { return run.grad(rank, 0, t, i); });
    Wire wire;
    method->encode(bucket, {grads.span().data(), grads.size()}, ctx, wire);
    method->exchange(comm, bucket, ctx, wire);
    for (const ByteBuffer& frame : wire.down) {
      all[static_cast<std::size_t>(rank)].emplace_back(frame.span().begin(), frame.span().end());
    }
  });
  return all;
}

TEST_P(TwoLevels, EndWithTheFramesOfOneLevelByteForByte) {
  const Layout layout(kTensors);
  for (const Shape shape : kShapes) {
    Training flat = run(shape);
    flat.options.options["form"] = "sharded";  // of the direct form the results are not sent
    for (const Bucket& bucket : make_buckets(layout, 1500, flat.world)) {
      const auto expected = results_of(flat, layout, bucket);
      Training other = flat;
      other.options.hosts = in_blocks(shape);
      if (flat.world > 1) {
        EXPECT_TRUE(results_of(other, layout, bucket) == expected)
            << shape.hosts << " hosts of " << shape.per_host << ", bucket " << bucket.index;
      }
    }
  }
}

TEST_P(TwoLevels, BreakTiesAsOneLevelDoes) {
  // even ranks push up, odd ones down: every coordinate is tied, within hosts and between them
  for (const Shape shape : {Shape{2, 2}, Shape{2, 3}, Shape{4, 2}}) {
    Training flat = run(shape);
    flat.grad = [](int rank, std::int64_t, std::size_t, std::size_t) {
      return rank % 2 == 0 ? 1.0f : -1.0f;
    };
    const std::uint64_t expected = hash_of(flat);
    Training other = flat;
    other.options.hosts = in_blocks(shape);
    EXPECT_EQ(hash_of(other), expected);
    other.options.hosts = dealt_out(shape);
    EXPECT_EQ(hash_of(other), expected);
  }
}

// --- NaN and Inf. -------------------------------------------------------------------------------

// What each rank throws in a run where these ranks have a NaN in w1.
std::vector<std::string> errors_with_nan(Training run, const std::vector<int>& ranks) {
  run.grad = [=](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = tensor == 1 && index == 1234 && std::ranges::count(ranks, rank) > 0;
    return bad ? std::numeric_limits<float>::quiet_NaN() : gradient(rank, step, tensor, index);
  };
  std::vector<std::string> errors(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    try {
      testing::train_rank(comm, Layout(kTensors), run);
    } catch (const NonFiniteGradient& e) {
      errors[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  return errors;
}

TEST_P(TwoLevels, NameThePoisonedRankAsOneLevelDoes) {
  for (const Hosts& hosts : {in_blocks({2, 3}), dealt_out({2, 3})}) {
    Training two = run({2, 3});
    two.options.bucket_coords = 1000;
    const Training one = two;
    two.options.hosts = hosts;
    for (const std::vector<int>& bad :
         {std::vector{0}, std::vector{1}, std::vector{5}, std::vector{4, 2}, std::vector{3, 1}}) {
      const auto expected = errors_with_nan(one, bad);
      EXPECT_NE(expected[0].find(concat("'w1' on rank ", std::ranges::min(bad))),
                std::string::npos);
      EXPECT_EQ(errors_with_nan(two, bad), expected);
    }
  }
}

TEST_P(TwoLevels, SkipAPoisonedStepAsOneLevelDoes) {
  Training flat = run({2, 3});
  flat.options.non_finite = NonFinitePolicy::kSkip;
  flat.options.bucket_coords = 1000;
  flat.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = tensor == 2 && index == 3 && step == rank;
    return bad ? std::numeric_limits<float>::infinity() : gradient(rank, step, tensor, index);
  };
  Training other = flat;
  other.options.hosts = in_blocks({2, 3});
  EXPECT_EQ(hash_of(other), hash_of(flat));
}

// --- Bytes. -------------------------------------------------------------------------------------

// Adds up what goes to ranks of the same host, and to others.
class CountingComm final : public ForwardingCommunicator {
 public:
  struct Bytes {
    std::atomic<std::uint64_t> local{0}, off_host{0};
  };
  CountingComm(std::unique_ptr<Communicator> inner, const Hosts& hosts,
               std::shared_ptr<Bytes> bytes)
      : ForwardingCommunicator(std::move(inner)), hosts_(hosts), bytes_(std::move(bytes)) {}

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    const bool local = hosts_.host_of(peer) == hosts_.host_of(rank());
    (local ? bytes_->local : bytes_->off_host) += bytes.size();
    return ForwardingCommunicator::do_start_send(peer, tag, bytes);
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new CountingComm(ForwardingCommunicator::do_group(members), hosts_, bytes_));
  }

 private:
  const Hosts& hosts_;
  std::shared_ptr<Bytes> bytes_;
};

// Counted bytes off the host of all ranks, each of which must be what its cost says.
std::uint64_t counted_off_host(const Layout& layout, const Training& run, const Hosts& hosts) {
  std::atomic<std::uint64_t> total{0};
  auto world = make_thread_world(run.world);
  std::vector<std::thread> threads;
  for (int r = 0; r < run.world; ++r) {
    threads.emplace_back([&, inner = std::move(world[static_cast<std::size_t>(r)])]() mutable {
      const auto bytes = std::make_shared<CountingComm::Bytes>();
      CountingComm comm(std::move(inner), hosts, bytes);
      Optimizer optimizer(comm, layout, run.options);
      FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
      comm.barrier();
      const std::uint64_t local = bytes->local, off_host = bytes->off_host;
      const StepReport report = optimizer.step(params.span(), grads.span());
      const Cost cost = optimizer.cost();
      EXPECT_TRUE(cost.exact);
      EXPECT_EQ(report.bytes_sent, cost.bytes()) << "rank " << comm.rank();
      if (run.options.hosts.known()) {
        EXPECT_EQ(bytes->local - local, cost.bytes_local) << "rank " << comm.rank();
        EXPECT_EQ(bytes->off_host - off_host, cost.bytes_off_host()) << "rank " << comm.rank();
      }
      total += bytes->off_host - off_host;
    });
  }
  for (std::thread& t : threads) t.join();
  return total;
}

TEST_P(TwoLevels, SendWhatTheirCostSaysOnTheHostAndOffIt) {
  for (const Shape shape : kShapes) {
    for (const std::int64_t d : {1, 63, 1000}) {
      SCOPED_TRACE(concat(shape.hosts, " hosts of ", shape.per_host, ", d = ", d));
      const Layout layout({{"w", {d}}, {"rows", {d, 3}}});
      Training run{.world = shape.hosts * shape.per_host};
      run.options.method = GetParam().method;
      run.options.options = GetParam().options;
      run.options.bucket_coords = 512;
      for (const Hosts& hosts : {in_blocks(shape), dealt_out(shape)}) {
        run.options.hosts = hosts;
        counted_off_host(layout, run, hosts);
      }
    }
  }
}

TEST_P(TwoLevels, CostIsKnownWithoutAWorld) {
  const Layout layout({{"w", {5000}}, {"rows", {50, 3}}});
  Training run{.world = 6, .steps = 1};
  run.options.method = GetParam().method;
  run.options.options = GetParam().options;
  run.options.bucket_coords = 700;
  run.options.hosts = Hosts::of_size(6, 3);
  CostQuery query{
      .options = run.options.options, .world = 6, .bucket_coords = 700, .ranks_per_host = 3};
  std::uint64_t most = 0;
  for (const auto& rank : testing::train(layout, run)) {
    const Cost cost = method_cost(run.options.method, layout, query);
    EXPECT_EQ(cost.bytes_up, rank.cost.bytes_up) << "rank " << query.rank;
    EXPECT_EQ(cost.bytes_down, rank.cost.bytes_down) << "rank " << query.rank;
    EXPECT_EQ(cost.bytes_local, rank.cost.bytes_local) << "rank " << query.rank;
    most = std::max(most, cost.bytes());
    ++query.rank;
  }
  query.rank = 0;
  EXPECT_EQ(largest_cost(run.options.method, layout, query).bytes(), most);
}

INSTANTIATE_TEST_SUITE_P(All, TwoLevels, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.method;
  for (const auto& [key, value] : info.param.options) name += "_" + value;
  for (char& ch : name) ch = ch == '-' ? '_' : ch;
  return name;
});

// docs/performance.md: off a host go (H-1)/H * (c + r)/8 bytes a coordinate.
TEST(TwoLevelVote, SendsOffAHostWhatTheFormulaSays) {
  const double d = 1'000'000;
  const Layout layout({{"w", {1'000'000}}});
  for (const Shape shape : {Shape{2, 2}, Shape{2, 8}, Shape{4, 4}}) {
    const Hosts hosts = in_blocks(shape);
    Training run{.world = hosts.world()};
    run.options.hosts = hosts;
    const double counted = static_cast<double>(counted_off_host(layout, run, hosts)) / shape.hosts;
    const double bits = count_bits(shape.per_host, CountForm::kPacked) + 1;
    const double formula = (shape.hosts - 1.0) / shape.hosts * d * bits / 8;
    EXPECT_NEAR(counted / formula, 1, 0.01) << shape.hosts << " hosts of " << shape.per_host;
  }
}

TEST(TwoLevelVote, SendsAThirdOfOneLevelOffTwoHostsOfEight) {
  const Layout layout({{"w", {1'000'000}}});
  const Hosts hosts = Hosts::of_size(16, 8);
  Training run{.world = 16};
  const std::uint64_t flat = counted_off_host(layout, run, hosts);
  run.options.hosts = hosts;
  const std::uint64_t two_levels = counted_off_host(layout, run, hosts);
  EXPECT_GE(static_cast<double>(flat), 3.7 * static_cast<double>(two_levels));
}

// --- Refusals. ----------------------------------------------------------------------------------

std::string error_of(int world, const std::function<void(Communicator&)>& body) {
  try {
    run_world(world, body);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

TEST(TwoLevelOptions, NeedAMethodThatExchangesSigns) {
  for (const std::string& name : method_names()) {
    const bool signs = std::ranges::any_of(kCases, [&](const Case& c) { return c.method == name; });
    const auto error = error_of(4, [&](Communicator& comm) {
      Optimizer(comm, Layout({{"w", {100}}}), {.method = name, .hosts = Hosts::of_size(4, 2)});
    });
    EXPECT_EQ(error.find(name + " has no exchange in two levels") != std::string::npos, !signs)
        << name << ": '" << error << "'";
  }
  EXPECT_THROW(method_cost("lion", Layout({{"w", {100}}}), {.ranks_per_host = 2}), InvalidArgument);
}

TEST(TwoLevelOptions, MustBeOfThisWorldAndTheSameOnAllRanks) {
  const Layout layout({{"w", {100}}});
  EXPECT_NE(
      error_of(
          4, [&](Communicator& comm) { Optimizer(comm, layout, {.hosts = Hosts::of_size(6, 3)}); })
          .find("hosts of 6 ranks, there are 4"),
      std::string::npos);
  const auto error = error_of(4, [&](Communicator& comm) {
    const Shape shape{2, 2};
    Optimizer(comm, layout, {.hosts = comm.rank() == 3 ? dealt_out(shape) : in_blocks(shape)});
  });
  EXPECT_NE(error.find("list of hosts of rank(s) 3"), std::string::npos) << error;
}

}  // namespace
}  // namespace pride
