// Agreement between ranks before a collective call: what differs, and who refuses, is named on all.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/optimizer.h"
#include "support/training.h"

namespace pride::agreement_test {
namespace {

void expect_all_contain(const std::vector<std::string>& texts, const std::string& part) {
  for (std::size_t r = 0; r < texts.size(); ++r) {
    EXPECT_NE(texts[r].find(part), std::string::npos) << "rank " << r << ": '" << texts[r] << "'";
  }
}

TEST(Agreement, NamesTheRankWithAnotherLayout) {
  const auto texts = testing::errors_of<InvalidArgument>(3, [](Communicator& comm) {
    std::vector<TensorSpec> tensors = {{"a", {10}}, {"b", {20}}};
    if (comm.rank() == 2) tensors[1].shape = {21};
    const Optimizer optimizer(comm, Layout(tensors), {});
  });
  expect_all_contain(texts, "rank(s) 2");
  expect_all_contain(texts, "'b'");
}

TEST(Agreement, NamesTheSettingThatDiffers) {
  const Layout layout({{"a", {10}}});
  const auto with = [&](const std::function<void(OptimizerOptions&)>& change) {
    return testing::errors_of<InvalidArgument>(2, [&](Communicator& comm) {
      OptimizerOptions options;
      if (comm.rank() == 1) change(options);
      const Optimizer optimizer(comm, layout, options);
    });
  };
  expect_all_contain(with([](auto& o) { o.method = "lion"; }), "method");
  expect_all_contain(with([](auto& o) { o.seed = 3; }), "seed");
  expect_all_contain(with([](auto& o) { o.groups[0].lr = 3; }), "hyper-parameters");
  expect_all_contain(with([](auto& o) { o.options["tie"] = "zero"; }), "method options");
  expect_all_contain(with([](auto& o) { o.bucket_coords = 64; }), "bucket size");
  expect_all_contain(with([](auto& o) { o.overlap = true; }), "exchange threads");
}

// A checkpoint that only some ranks have: they would wait for each other in different calls.
TEST(Agreement, NamesTheCallsOfRanksThatDiffer) {
  const Layout layout({{"a", {10}}});
  for (const bool at_step : {false, true}) {
    const auto texts = testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout, {});
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      if (comm.rank() != 2) return optimizer.load(optimizer.save());
      if (!at_step) return optimizer.broadcast(x.span());
      optimizer.step(x.span(), g.span());
    });
    const std::string other = concat("rank(s) 2 call ", at_step ? "step()" : "broadcast()");
    const std::string loads = "rank(s) 0, 1 call load()";
    expect_all_contain(texts, concat("all ranks must make the same call: ", at_step ? loads : other,
                                     ", ", at_step ? other : loads));
  }
}

// broadcast() begins with an agreement, on a communicator that an exchange in flight may still use.
TEST(Agreement, BroadcastsWhileADelayedExchangeIsInFlight) {
  const Layout layout({{"a", {60000}}, {"b", {3000}}});
  run_world(2, [&](Communicator& comm) {
    OptimizerOptions options{.method = "local-vote", .options = {{"h", "2"}, {"delay", "1"}}};
    options.bucket_coords = 64;
    options.overlap = true;
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    std::ranges::fill(g.span(), 1.0f + static_cast<float>(comm.rank()));
    for (int step = 0; step < 20; ++step) {
      optimizer.step(x.span(), g.span());
      if (step % 2 == 1) optimizer.broadcast(x.span());
    }
    EXPECT_EQ(optimizer.steps_done(), 20);
  });
}

TEST(Agreement, NamesTheRanksThatRefuseACall) {
  const Layout layout({{"a", {10}}});
  const std::string others = " fails on rank(s) 0; their errors give the reason";
  auto texts = testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    StateDict state = optimizer.save();
    if (comm.rank() == 0) state.tensors.clear();
    optimizer.load(state);
  });
  EXPECT_EQ(texts[1], "optimizer: load()" + others);
  EXPECT_EQ(texts[2], texts[1]);
  EXPECT_EQ(texts[0], "load: the state has no tensor 'm/a'");
  texts = testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    std::vector<float> a(comm.rank() == 0 ? 9 : 10);
    optimizer.broadcast(std::vector<Tensor>{a});
  });
  EXPECT_EQ(texts[1], "optimizer: broadcast()" + others);
  EXPECT_NE(texts[0].find("'a'"), std::string::npos) << texts[0];
}

// The others wait for it at the start-up check: they hear at once, and can go on without a new
// world.
TEST(Agreement, NamesTheRankWhoseSettingsCannotBeUsed) {
  const Layout layout({{"a", {10}}});
  const auto with = [&](const std::function<void(OptimizerOptions&)>& change) {
    return testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
      OptimizerOptions options;
      if (comm.rank() == 1) change(options);
      try {
        const Optimizer optimizer(comm, layout, options);
      } catch (const InvalidArgument&) {
        EXPECT_EQ(Optimizer(comm, layout, {}).steps_done(), 0);
        throw;
      }
    });
  };
  for (const auto& texts :
       {with([](auto& o) { o.method = "dlion"; }), with([](auto& o) { o.bucket_coords = 0; }),
        with([](auto& o) { o.options["tie"] = "dlion"; }),
        with([](auto& o) { o.groups[0].lr = -1; })}) {
    EXPECT_NE(texts[0].find("rank(s) 1"), std::string::npos) << texts[0];
    EXPECT_EQ(texts[2], texts[0]);
    EXPECT_NE(texts[1], "");
    EXPECT_NE(texts[1], texts[0]) << "its own error says more";
  }
}

TEST(Agreement, NamesEachCallAndLeavesARefusalItsReason) {
  const Layout layout({{"a", {10}}});
  const auto texts = testing::errors_of<InvalidArgument>(4, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    std::vector<float> too_few(9);
    if (comm.rank() == 0) return optimizer.add({{"b", {3}}});
    if (comm.rank() == 1) return optimizer.broadcast(x.span());
    if (comm.rank() == 2) return optimizer.broadcast(std::vector<Tensor>{too_few});
    optimizer.step(x.span(), g.span());
  });
  const std::string all =
      "optimizer: all ranks must make the same call: rank(s) 0 call add(), "
      "rank(s) 1, 2 call broadcast(), rank(s) 3 call step()";
  EXPECT_EQ(texts, (std::vector<std::string>{all, all, texts[2], all}));
  EXPECT_NE(texts[2].find("'a'"), std::string::npos) << texts[2];
}

}  // namespace
}  // namespace pride::agreement_test
