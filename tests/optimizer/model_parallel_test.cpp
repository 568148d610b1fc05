// Model parallelism: an optimizer has rows of some tensors, and others whole. Oracle: an optimizer
// of the whole model.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cmath>
#include <thread>

#include "pride/error.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::model_parallel_test {
namespace {

constexpr int kSteps = 4;
constexpr std::array<int, 4> kTwoNodes = {0, 0, 1, 1};
const std::vector<TensorSpec> kWhole = {{"a", {100}}, {"b", {37, 10}}, {"c", {70}}, {"d", {5}}};

// Of tensor `tensor` of the whole model the values from `begin` on.
struct Place {
  std::size_t tensor, begin;
};
struct Piece {
  std::vector<TensorSpec> tensors;
  std::vector<Place> places;
};
// The offsets of kWhole: 0, 128, 512, 640. A piece's tensors are neighbours that were none.
const std::vector<Piece> kPieces = {
    {{{"b", {17, 10}, 0, 128}, {"d", {5}, 0, 640}}, {{1, 0}, {3, 0}}},
    {{{"a", {100}, 0, 0}, {"b", {20, 10}, 0, 128 + 170}, {"c", {70}, 0, 512}},
     {{0, 0}, {1, 170}, {2, 0}}}};
const Piece kAll = {kWhole, {{0, 0}, {1, 0}, {2, 0}, {3, 0}}};

// Steps of one rank; `nan`: the step in which a value of "c" is not finite. Reports of the steps.
std::vector<StepReport> train(Optimizer& optimizer, int rank, const Piece& piece, FlatBuffer& x,
                              int nan = -1) {
  std::vector<StepReport> reports;
  const Layout& layout = optimizer.layout();
  FlatBuffer g(layout.flat_size());
  testing::fill(layout, x, [&](std::size_t t, std::size_t i) {
    return testing::initial(piece.places[t].tensor, piece.places[t].begin + i);
  });
  for (int step = 0; step < kSteps; ++step) {
    testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
      const auto [tensor, begin] = piece.places[t];
      return step == nan && tensor == 2 && i == 9
                 ? NAN
                 : testing::gradient(rank, step, tensor, begin + i);
    });
    reports.push_back(optimizer.step(x.span(), g.span()));
  }
  return reports;
}

void expect_piece_of(const Piece& piece, const FlatBuffer& x, const FlatBuffer& whole,
                     const std::string& what) {
  const Layout layout(piece.tensors), all(kWhole);
  for (std::size_t t = 0; t < piece.places.size(); ++t) {
    const std::size_t from = all.tensors()[piece.places[t].tensor].offset + piece.places[t].begin;
    const TensorSlot& slot = layout.tensors()[t];
    const auto expected = whole.span().subspan(from, slot.n);
    EXPECT_TRUE(std::ranges::equal(x.span().subspan(slot.offset, slot.n), expected))
        << what << ", " << slot.spec.name;
  }
}

struct Variant {
  std::string method;
  std::map<std::string, std::string> options = {};
  Nodes nodes = {};
  int weight = 1;  // of rank 1
};

void compare(Communicator& comm, const Variant& v, std::size_t bucket_coords) {
  const OptimizerOptions options{.method = v.method,
                                 .options = v.options,
                                 .bucket_coords = bucket_coords,
                                 .nodes = v.nodes,
                                 .vote_weight = comm.rank() == 1 ? v.weight : 1};
  const Layout layout(kWhole);
  FlatBuffer whole(layout.flat_size());
  Optimizer all(comm, layout, options);
  train(all, comm.rank(), kAll, whole);
  for (const Piece& piece : kPieces) {
    const Layout own(piece.tensors);
    FlatBuffer x(own.flat_size());
    Optimizer optimizer(comm, own, options);
    train(optimizer, comm.rank(), piece, x);
    expect_piece_of(piece, x, whole, v.method);
  }
}

TEST(ModelParallel, StepsAreThoseOfTheWholeModel) {
  const std::vector<Variant> variants = {{"dlion-vote", {{"route", "sharded"}}},
                                         {"dlion-vote", {{"route", "one-shot"}}},
                                         {.method = "dlion-vote", .nodes = Nodes(kTwoNodes)},
                                         {.method = "dlion-vote", .weight = 3},
                                         {"signum-vote"},
                                         {"local-vote", {{"h", "2"}}},
                                         {"dlion-avg"}};
  for (const Variant& v : variants) {
    // with few ranks and large buckets a shard has pieces of several tensors
    for (const int world : {2, 4}) {
      for (const std::size_t bucket_coords : {std::size_t{64}, std::size_t{4096}}) {
        if (v.nodes.known() && world != v.nodes.world()) continue;
        run_world(world, [&](Communicator& comm) { compare(comm, v, bucket_coords); });
      }
    }
  }
}

TEST(ModelParallel, RanksWithOtherTensorsFailAndNameTheTensor) {
  run_world(2, [](Communicator& comm) {
    auto tensors = kPieces[1].tensors;
    if (comm.rank() == 1) tensors[1].first_coord = 128 + 160;
    texts::expect_error<InvalidArgument>(
        [&] { Optimizer(comm, Layout(tensors), {}); },
        {"is tensor 1 (here 'b' of shape (20, 10), group 0, from coordinate "});
  });
}

// Both pieces, each on a thread and alone in its world; sums are taken over the two.
struct Together {
  std::array<FlatBuffer, 2> x;
  std::array<std::vector<StepReport>, 2> reports;
};
Together step_both(const OptimizerOptions& options, int nan) {
  Together out;
  std::array<std::array<double, 2>, 2> given{};
  std::barrier<> meet(2);
  std::vector<std::thread> threads;
  for (std::size_t p = 0; p < 2; ++p) {
    out.x[p] = FlatBuffer(Layout(kPieces[p].tensors).flat_size());
    threads.emplace_back([&, p] {
      OptimizerOptions own = options;
      own.model_parallel_sum = [&, p](std::span<double> values) {
        std::ranges::copy(values, given[p].begin());
        meet.arrive_and_wait();
        for (std::size_t i = 0; i < 2; ++i) values[i] = given[0][i] + given[1][i];
        meet.arrive_and_wait();
      };
      run_world(1, [&](Communicator& comm) {
        Optimizer optimizer(comm, Layout(kPieces[p].tensors), own);
        out.reports[p] = train(optimizer, 0, kPieces[p], out.x[p], nan);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

TEST(ModelParallel, AllSkipAndClipTogether) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{.method = "adamw", .non_finite = NonFinitePolicy::kSkip},
        OptimizerOptions{.method = "sgdm",
        .non_finite = NonFinitePolicy::kSkip,
        .clip_global_norm = 7,
        .overlap = true},
        OptimizerOptions{.method = "dlion-vote", .non_finite = NonFinitePolicy::kSkip}}) {
    FlatBuffer whole(Layout(kWhole).flat_size());
    std::vector<StepReport> expected;
    run_world(1, [&](Communicator& comm) {
      Optimizer all(comm, Layout(kWhole), options);
      expected = train(all, 0, kAll, whole, 1);
    });
    const Together pieces = step_both(options, 1);
    for (std::size_t p = 0; p < 2; ++p) {
      expect_piece_of(kPieces[p], pieces.x[p], whole, options.method);
      for (int step = 0; step < kSteps; ++step) {
        const StepReport &mine = pieces.reports[p][static_cast<std::size_t>(step)],
                         &of_all = expected[static_cast<std::size_t>(step)];
        EXPECT_EQ(mine.skipped, step == 1);
        EXPECT_EQ(mine.grad_norm.has_value(), of_all.grad_norm.has_value());
        EXPECT_NEAR(mine.grad_norm.value_or(0), of_all.grad_norm.value_or(0), 1e-9);
      }
    }
    EXPECT_EQ(pieces.reports[0][1].skip_reason,
              "step 2: NaN or Inf in a gradient of another model-parallel rank");
    EXPECT_EQ(pieces.reports[1][1].skip_reason,
              "step 2: NaN or Inf in the gradient of 'c' on rank 0");
  }
}

TEST(ModelParallel, SkipIsRefusedWithLocalSteps) {
  run_world(1, [](Communicator& comm) {
    const auto sum = [](std::span<double>) {};
    const Layout layout(kPieces[0].tensors);
    EXPECT_THROW(Optimizer(comm, layout,
                           {.method = "local-vote",
                            .options = {{"h", "2"}},
                            .non_finite = NonFinitePolicy::kSkip,
                            .model_parallel_sum = sum}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace pride::model_parallel_test
