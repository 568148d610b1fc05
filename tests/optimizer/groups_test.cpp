// Groups that change during a run: hyper-parameters, added tensors and groups, and ranks that begin
// with other parameters. Oracle: runs that had the same from their beginning.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::groups_test {
namespace {

const std::vector<TensorSpec> kFirst = {{"w", {70, 3}}, {"b", {9}}};
const std::vector<TensorSpec> kMore = {{"v", {4100}, 1}, {"c", {5}, 1}};

std::vector<TensorSpec> all_tensors() {
  std::vector<TensorSpec> all = kFirst;
  all.insert(all.end(), kMore.begin(), kMore.end());
  return all;
}

// Steps [from, to) with the gradients of the layout's tensors; those from `unused` on have none.
void train(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, int from, int to,
           std::size_t unused = 99) {
  const Layout& layout = optimizer.layout();
  FlatBuffer g(layout.flat_size());
  const std::size_t n = layout.tensors().size();
  const auto flags = std::make_unique<bool[]>(n);
  for (std::size_t t = 0; t < n; ++t) flags[t] = t >= unused;
  for (int step = from; step < to; ++step) {
    testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
      return flags[t] ? 0.0F : testing::gradient(comm.rank(), step, t, i);
    });
    optimizer.step(x.span(), g.span(), {flags.get(), n});
  }
}

TEST(Groups, ChangeEveryHyperParameterBetweenSteps) {
  const Layout layout(kFirst);
  for (const std::string& method : method_names()) {
    const MethodInfo info = method_info(method, 2);
    ParamGroup other{.lr = 3e-3, .weight_decay = 0.25};
    if (info.default_beta1 != 0) other.beta1 = 0.5;
    if (info.default_beta2 != 0) other.beta2 = 0.75;
    if (info.default_eps != 0) other.eps = 1e-3;
    if (info.default_momentum != 0) other.momentum = 0.5;
    run_world(2, [&](Communicator& comm) {
      FlatBuffer x(layout.flat_size()), y(layout.flat_size());
      Optimizer changed(comm, layout, {.method = method});
      train(changed, comm, x, 0, 2);
      std::ranges::copy(x.span(), y.span().begin());
      const StateDict state = changed.save();
      // one at a time: the others stay
      changed.set_group({.lr = other.lr});
      changed.set_group({.beta1 = other.beta1, .beta2 = other.beta2, .eps = other.eps});
      changed.set_group({.weight_decay = other.weight_decay});
      changed.set_group({.momentum = other.momentum});
      train(changed, comm, x, 2, 4);

      Optimizer made(comm, layout, {.method = method, .groups = {other}});
      made.load(state);
      train(made, comm, y, 2, 4);
      EXPECT_EQ(param_hash(layout, x.span()), param_hash(layout, y.span())) << method;
      const ParamGroup now = changed.group();
      EXPECT_EQ(now.lr, other.lr);
      EXPECT_EQ(now.beta1, other.beta1) << method;
      EXPECT_EQ(now.beta2, other.beta2) << method;
      EXPECT_EQ(now.eps, other.eps) << method;
      EXPECT_EQ(now.weight_decay, other.weight_decay);
      EXPECT_EQ(now.momentum, other.momentum) << method;
    });
  }
}

TEST(Groups, RefuseWhatTheMethodDoesNotHaveAndStayAsTheyAre) {
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout(kFirst), {.method = "lion"});
    for (const ParamGroup& bad :
         {ParamGroup{.lr = 0.5, .beta1 = 1}, ParamGroup{.lr = 0.5, .eps = 1e-8},
          ParamGroup{.lr = 0.5, .weight_decay = -1}, ParamGroup{.lr = 1e39}}) {
      EXPECT_THROW(optimizer.set_group(bad), InvalidArgument);
    }
    EXPECT_EQ(optimizer.group().lr, 1e-4);
    EXPECT_FALSE(optimizer.group().eps);
    EXPECT_THROW(optimizer.set_group({}, 1), InvalidArgument);
    EXPECT_THROW(optimizer.group(-1), InvalidArgument);
  });
}

// Tensors that were there from the beginning, unused and without decay, are the same as those that
// are added later: state zero, and coordinates where they are.
TEST(Groups, AddedTensorsAreAsIfTheyHadBeenUnused) {
  for (const std::string& method : method_names()) {
    if (method == "onebit-adam") continue;  // refuses, below
    std::map<std::string, std::string> own;
    if (method == "lion-cub") own = {{"sync", "none"}};  // momenta take turns over all tensors
    const bool adam = method_info(method, 2).default_eps != 0;
    run_world(3, [&](Communicator& comm) {
      const OptimizerOptions options{.method = method,
                                     .options = own,
                                     .groups = {{.weight_decay = 0.1}},
                                     .bucket_coords = 64,
                                     .overlap = true};
      OptimizerOptions whole_options = options;
      whole_options.groups.push_back({.lr = 0.01, .weight_decay = 0.0});
      Optimizer whole(comm, Layout(all_tensors()), whole_options);
      Optimizer grown(comm, Layout(kFirst), options);
      FlatBuffer x(whole.layout().flat_size()), y(grown.layout().flat_size());
      train(whole, comm, x, 0, 3, 2);
      train(grown, comm, y, 0, 3);
      grown.add(kMore, {{.lr = 0.01, .weight_decay = 0.0}});
      EXPECT_EQ(grown.layout().digest(), whole.layout().digest());
      EXPECT_EQ(grown.steps_done(), 3);
      FlatBuffer z(grown.layout().flat_size());
      std::ranges::copy(y.span(), z.span().begin());
      train(whole, comm, x, 3, 6);
      train(grown, comm, z, 3, 6);
      // Adam's bias correction of the new group begins when it is added
      const std::size_t n = adam ? y.size() : z.size();
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(z.span()[i], x.span()[i]) << method << ", coordinate " << i;
      }
    });
  }
}

TEST(Groups, AddedTensorsOfAdamBeginLikeNewOnes) {
  run_world(2, [](Communicator& comm) {
    Optimizer grown(comm, Layout({{"w", {64}}}), {.method = "adamw"});
    FlatBuffer x(64), z(128), fresh(64), g(64);
    train(grown, comm, x, 0, 5);
    grown.add({{"v", {64}, 1}}, {{}});
    Optimizer alone(comm, Layout({{"v", {64}}}), {.method = "adamw"});
    for (int step = 0; step < 3; ++step) {
      FlatBuffer both(128);
      for (std::size_t i = 0; i < 64; ++i) {
        g.span()[i] = both.span()[64 + i] = testing::gradient(comm.rank(), step, 0, i);
      }
      grown.step(z.span(), both.span());
      alone.step(fresh.span(), g.span());
      if (step > 0) continue;
      // saved with its beginning
      Optimizer loaded(comm, grown.layout(), {.method = "adamw", .groups = {{}, {}}});
      loaded.load(grown.save());
      EXPECT_EQ(loaded.save().scalars.at("group starts"), "0 5");
    }
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(z.span()[64 + i], fresh.span()[i]);
  });
}

TEST(Groups, ARankThatAddsOthersIsNamedAndNothingChanges) {
  std::vector<int> kept(3, 0);
  const auto texts = testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, Layout(kFirst), {});
    FlatBuffer x(optimizer.layout().flat_size());
    try {
      optimizer.add({{"v", {comm.rank() == 1 ? 7 : 8}}});
    } catch (const InvalidArgument&) {
      train(optimizer, comm, x, 0, 1);
      kept[static_cast<std::size_t>(comm.rank())] =
          optimizer.layout().tensors().size() == 2 && optimizer.steps_done() == 1 ? 1 : 0;
      throw;
    }
  });
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_NE(texts[r].find("layouts of rank(s) 1 and of rank 0 differ"), std::string::npos)
        << texts[r];
    EXPECT_EQ(kept[r], 1) << "rank " << r;
  }
  const auto without_group = testing::errors_of<InvalidArgument>(2, [](Communicator& comm) {
    Optimizer(comm, Layout(kFirst), {}).add({{"v", {8}, 1}});
  });
  for (const auto& text : without_group) {
    EXPECT_NE(text.find("2 groups, the options 1"), std::string::npos) << text;
  }
}

// A layout that one rank cannot have reaches all ranks at once, not at the deadline.
TEST(Groups, ASpecThatOneRankRefusesIsRefusedOnAll) {
  const auto texts = testing::errors_of<InvalidArgument>(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, Layout(kFirst), {});
    FlatBuffer x(optimizer.layout().flat_size());
    train(optimizer, comm, x, 0, 1);
    try {
      optimizer.add({{comm.rank() == 1 ? "w" : "v", {8}}});
    } catch (const InvalidArgument&) {
      train(optimizer, comm, x, 1, 2);
      throw;
    }
  });
  EXPECT_NE(texts[1].find("two tensors are named 'w'"), std::string::npos) << texts[1];
  for (const std::size_t r : {0, 2}) {
    EXPECT_EQ(texts[r], "optimizer: add() fails on rank(s) 1; their errors give the reason");
  }
}

TEST(Groups, OneBitAdamRefusesTensorsWithoutSecondMoments) {
  run_world(2, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout(kFirst), {.method = "onebit-adam"});
    optimizer.add({{"early", {5}}});
    FlatBuffer x(optimizer.layout().flat_size());
    train(optimizer, comm, x, 0, 1);
    EXPECT_THROW(optimizer.add(kMore, {{}}), InvalidArgument);
    train(optimizer, comm, x, 1, 2);
  });
}

// --- Initial parameters. ------------------------------------------------------------------------

TEST(InitialParameters, RanksThatDifferAreNamedBeforeTheFirstStep) {
  const Layout layout(kFirst);
  const auto texts = testing::errors_of<InvalidArgument>(4, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {.method = "lion"});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    if (comm.rank() % 2 == 1) x.span()[4] = 1;
    x.span()[250] = static_cast<float>(comm.rank());  // padding counts for nothing
    for (int again = 0; again < 2; ++again) {
      EXPECT_THROW(optimizer.step(x.span(), g.span()), InvalidArgument);
    }
    EXPECT_EQ(optimizer.steps_done(), 0);
    EXPECT_EQ(x.span()[4], comm.rank() % 2 == 1 ? 1.0F : 0.0F);
    optimizer.step(x.span(), g.span());
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("rank(s) 1, 3 and of rank 0 differ before step 1"), std::string::npos)
        << text;
  }
}

TEST(InitialParameters, BroadcastGivesAllThoseOfRank0) {
  const Layout layout(kFirst);
  std::vector<float> all[3];
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size());
    testing::fill(layout, x, [&](std::size_t t, std::size_t i) {
      return testing::initial(t, i) + static_cast<float>(comm.rank());
    });
    EXPECT_THROW(optimizer.broadcast(x.span().first(64)), InvalidArgument);
    optimizer.broadcast(x.span());
    EXPECT_EQ(x.span()[3], testing::initial(0, 3));
    train(optimizer, comm, x, 0, 2);
    all[comm.rank()].assign(x.span().begin(), x.span().end());
  });
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(all[2], all[0]);
}

TEST(InitialParameters, AreComparedAgainAfterALoadButNotInEveryStep) {
  const Layout layout(kFirst);
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size());
    train(optimizer, comm, x, 0, 1);
    const StateDict state = optimizer.save();
    const float kept = x.span()[0];
    if (comm.rank() == 1) x.span()[0] = 5;
    train(optimizer, comm, x, 1, 2);  // what a caller changes later is the caller's
    optimizer.load(state);
    EXPECT_THROW(train(optimizer, comm, x, 1, 2), InvalidArgument);
    x.span()[0] = kept;
    train(optimizer, comm, x, 1, 2);
  });
}

}  // namespace
}  // namespace pride::groups_test
