// The hierarchical route against the sharded one: the same parameters and errors; and the
// bytes that stay on a node and leave it against the stated cost.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "codecs/counts.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/faulty_comm.h"
#include "support/sign_cases.h"
#include "support/texts.h"

namespace pride::hierarchical_test {
namespace {

using testing::kSignCases;
using testing::kTensors;
using testing::SignCase;
using testing::Training;
using testing::unused;

struct Shape {
  int nodes, per_node;
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr Shape kShapes[] = {{1, 4}, {4, 1}, {2, 3}};  // thousands of threads take minutes there
#else
constexpr Shape kShapes[] = {{1, 1}, {1, 4}, {4, 1}, {2, 3}, {3, 2}, {3, 3}, {2, 8}};
#endif

// Ranks assigned to the nodes round-robin, as by `mpirun --map-by node`.
Nodes dealt_out(Shape shape) {
  std::vector<int> node_of_rank;
  for (int r = 0; r < shape.nodes * shape.per_node; ++r) {
    node_of_rank.push_back(100 - r % shape.nodes);
  }
  return Nodes(node_of_rank);
}

Nodes in_blocks(Shape shape) {
  return Nodes::of_size(shape.nodes * shape.per_node, shape.per_node);
}

class Hierarchical : public ::testing::TestWithParam<SignCase> {
 protected:
  Training run(Shape shape) const {
    Training run{.world = shape.nodes * shape.per_node, .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.unused = unused;
    run.grad = testing::sparse_gradient;
    return run;
  }
};

// Hash of the run, after checking that all ranks have it.
std::uint64_t hash_of(const Training& run) {
  const auto ranks = testing::train(Layout(kTensors), run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].hash;
}

TEST_P(Hierarchical, GivesTheParametersOfTheShardedRoute) {
  for (const Shape shape : kShapes) {
    const Training flat = run(shape);
    const std::uint64_t expected = hash_of(flat);
    for (const Nodes& nodes : {in_blocks(shape), dealt_out(shape)}) {
      for (const std::size_t coords : {std::size_t{64}, std::size_t{1000}, std::size_t{1} << 20}) {
        Training other = flat;
        other.options.nodes = nodes;
        other.options.bucket_coords = coords;
        EXPECT_EQ(hash_of(other), expected) << shape.nodes << " nodes of " << shape.per_node << ", "
                                            << coords << " coordinates a bucket";
        other.options.overlap = true;
        EXPECT_EQ(hash_of(other), expected)
            << shape.nodes << " nodes of " << shape.per_node << ", overlap";
      }
    }
  }
}

// --- NaN and Inf. -------------------------------------------------------------------------------

TEST_P(Hierarchical, NamesTheNonFiniteRankAsTheShardedRouteDoes) {
  for (const Nodes& nodes : {in_blocks({2, 3}), dealt_out({2, 3})}) {
    Training two = run({2, 3});
    two.options.bucket_coords = 1000;
    const Training one = two;
    two.options.nodes = nodes;
    for (const std::vector<int>& bad :
         {std::vector{0}, std::vector{1}, std::vector{5}, std::vector{4, 2}, std::vector{3, 1}}) {
      const auto expected = testing::errors_with_nan(Layout(kTensors), one, bad);
      EXPECT_NE(expected[0].find(concat("'w1' on rank ", std::ranges::min(bad))),
                std::string::npos);
      EXPECT_EQ(testing::errors_with_nan(Layout(kTensors), two, bad), expected);
    }
  }
}

TEST_P(Hierarchical, SkipsANonFiniteStepAsTheShardedRouteDoes) {
  Training flat = run({2, 3});
  flat.options.non_finite = NonFinitePolicy::kSkip;
  flat.options.bucket_coords = 1000;
  flat.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = tensor == 2 && index == 3 && step == rank;
    return bad ? std::numeric_limits<float>::infinity()
               : testing::sparse_gradient(rank, step, tensor, index);
  };
  Training other = flat;
  other.options.nodes = in_blocks({2, 3});
  EXPECT_EQ(hash_of(other), hash_of(flat));
}

// --- Bytes. -------------------------------------------------------------------------------------

// Sums the bytes to ranks of the same node, and to others.
class CountingComm final : public ForwardingCommunicator {
 public:
  struct Bytes {
    std::atomic<std::uint64_t> local{0}, off_node{0};
  };
  CountingComm(std::unique_ptr<Communicator> inner, const Nodes& nodes,
               std::shared_ptr<Bytes> bytes)
      : ForwardingCommunicator(std::move(inner)), nodes_(nodes), bytes_(std::move(bytes)) {}

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    const bool local = nodes_.node_of(peer) == nodes_.node_of(rank());
    (local ? bytes_->local : bytes_->off_node) += bytes.size();
    return ForwardingCommunicator::do_start_send(peer, tag, bytes);
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new CountingComm(ForwardingCommunicator::do_group(members), nodes_, bytes_));
  }

 private:
  const Nodes& nodes_;
  std::shared_ptr<Bytes> bytes_;
};

// Counted bytes off the nodes, of all ranks together; each must send its cost.
std::uint64_t counted_off_node(const Layout& layout, const Training& run, const Nodes& nodes) {
  std::atomic<std::uint64_t> total{0};
  auto world = make_thread_world(run.world);
  std::vector<std::thread> threads;
  for (int r = 0; r < run.world; ++r) {
    threads.emplace_back([&, inner = std::move(world[static_cast<std::size_t>(r)])]() mutable {
      const auto bytes = std::make_shared<CountingComm::Bytes>();
      CountingComm comm(std::move(inner), nodes, bytes);
      Optimizer optimizer(comm, layout, run.options);
      FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
      optimizer.step(params.span(), grads.span());  // the first one also compares parameters
      comm.barrier();
      const std::uint64_t local = bytes->local, off_node = bytes->off_node;
      const StepReport report = optimizer.step(params.span(), grads.span());
      const Cost cost = optimizer.cost();
      EXPECT_TRUE(cost.exact);
      EXPECT_EQ(report.bytes_sent, cost.bytes()) << "rank " << comm.rank();
      if (run.options.nodes.known()) {
        EXPECT_EQ(bytes->local - local, cost.bytes_local) << "rank " << comm.rank();
        EXPECT_EQ(bytes->off_node - off_node, cost.bytes_off_node()) << "rank " << comm.rank();
      }
      total += bytes->off_node - off_node;
    });
  }
  for (std::thread& t : threads) t.join();
  return total;
}

TEST_P(Hierarchical, SendsItsCostWithinNodesAndBetweenThem) {
  for (const Shape shape : kShapes) {
    for (const std::int64_t d : {1, 63, 1000}) {
      SCOPED_TRACE(concat(shape.nodes, " nodes of ", shape.per_node, ", d = ", d));
      const Layout layout({{"w", {d}}, {"rows", {d, 3}}});
      Training run{.world = shape.nodes * shape.per_node};
      run.options.method = GetParam().method;
      run.options.options = GetParam().options;
      run.options.bucket_coords = 512;
      for (const Nodes& nodes : {in_blocks(shape), dealt_out(shape)}) {
        run.options.nodes = nodes;
        counted_off_node(layout, run, nodes);
      }
    }
  }
}

TEST_P(Hierarchical, CostIsKnownWithoutAWorld) {
  const Layout layout({{"w", {5000}}, {"rows", {50, 3}}});
  Training run{.world = 6, .steps = 1};
  run.options.method = GetParam().method;
  run.options.options = GetParam().options;
  run.options.bucket_coords = 700;
  run.options.nodes = Nodes::of_size(6, 3);
  CostQuery query{
      .options = run.options.options, .world = 6, .bucket_coords = 700, .ranks_per_node = 3};
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

INSTANTIATE_TEST_SUITE_P(All, Hierarchical, ::testing::ValuesIn(kSignCases),
                         testing::sign_case_name);

// docs/nodes.md: off a node go (H-1)/H * (c + r)/8 bytes a coordinate.
TEST(HierarchicalVote, SendsOffANodeWhatTheFormulaGives) {
  const double d = 1'000'000;
  const Layout layout({{"w", {1'000'000}}});
  for (const Shape shape : {Shape{2, 2}, Shape{2, 8}, Shape{4, 4}}) {
    const Nodes nodes = in_blocks(shape);
    Training run{.world = nodes.world()};
    run.options.nodes = nodes;
    const double counted = static_cast<double>(counted_off_node(layout, run, nodes)) / shape.nodes;
    const double bits = count_bits(shape.per_node, CountForm::kPacked) + 1;
    const double formula = (shape.nodes - 1.0) / shape.nodes * d * bits / 8;
    EXPECT_NEAR(counted / formula, 1, 0.01) << shape.nodes << " nodes of " << shape.per_node;
  }
}

// --- Refusals. ----------------------------------------------------------------------------------

std::string error_of(int world, const std::function<void(Communicator&)>& body) {
  return texts::error_of<InvalidArgument>([&] { run_world(world, body); });
}

TEST(NodeOptions, NeedAMethodThatExchangesSigns) {
  std::string with_route, refusal;
  for (const std::string& name : method_names()) {
    const bool signs =
        std::ranges::any_of(kSignCases, [&](const SignCase& c) { return c.method == name; }) ||
        name.starts_with("dlion-muon") || name == "local-vote" || name == "local-muon";
    const auto error = error_of(4, [&](Communicator& comm) {
      Optimizer(comm, Layout({{"w", {100}}}), {.method = name, .nodes = Nodes::of_size(4, 2)});
    });
    EXPECT_EQ(error.find(name + " has no hierarchical route") != std::string::npos, !signs)
        << name << ": '" << error << "'";
    if (signs) with_route += (with_route.empty() ? "" : ", ") + name;
    if (name == "turn-muon" || name == "lion") refusal = error;
  }
  EXPECT_TRUE(refusal.ends_with("methods that have it: " + with_route)) << refusal;
  EXPECT_THROW(method_cost("lion", Layout({{"w", {100}}}), {.ranks_per_node = 2}), InvalidArgument);
}

TEST(NodeOptions, MustBeOfThisWorldAndTheSameOnAllRanks) {
  const Layout layout({{"w", {100}}});
  EXPECT_NE(
      error_of(
          4, [&](Communicator& comm) { Optimizer(comm, layout, {.nodes = Nodes::of_size(6, 3)}); })
          .find("the nodes have 6 ranks in all, the communicator has 4"),
      std::string::npos);
  const auto error = error_of(4, [&](Communicator& comm) {
    const Shape shape{2, 2};
    Optimizer(comm, layout, {.nodes = comm.rank() == 3 ? dealt_out(shape) : in_blocks(shape)});
  });
  EXPECT_NE(error.find("list of nodes of rank(s) 3"), std::string::npos) << error;
}

}  // namespace
}  // namespace pride::hierarchical_test
