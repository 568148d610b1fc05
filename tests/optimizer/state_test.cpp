// State by parameter name: a run continues from a saved state bit for bit.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "pride/error.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::state_test {
namespace {

const Layout kLayout({{"w", {30, 7}}, {"b", {30}}});

void steps(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, std::int64_t from,
           std::int64_t to) {
  FlatBuffer g(kLayout.flat_size());
  for (std::int64_t step = from; step < to; ++step) {
    testing::fill(kLayout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), step, t, i);
    });
    optimizer.step(x.span(), g.span());
  }
}

// All methods, and options with state of their own.
TEST(OptimizerState, ResumesBitForBit) {
  std::vector<std::string> runs = method_names();
  runs.insert(runs.end(),
              {"onebit-adam:freeze_steps=1", "onebit-adam:freeze_steps=3",
               "onebit-adam:freeze_steps=5", "signsgd-ef:momentum=0.9", "lion-cub:bits=1,sync=all",
               "lion-cub:bits=3,feedback=yes,sync=vectors,sync_every=2",
               "lion-cub:sync_schedule=exponential,sync_doubling=2"});
  for (const std::string& method : runs) {
    run_world(3, [&](Communicator& comm) {
      OptimizerOptions options{.method = method};
      if (method.find(':') != std::string::npos) testing::set_method(options, method);
      FlatBuffer x(kLayout.flat_size()), y(kLayout.flat_size());
      Optimizer whole(comm, kLayout, options);
      steps(whole, comm, x, 0, 6);

      Optimizer first(comm, kLayout, options);
      steps(first, comm, y, 0, 3);
      const StateDict state = first.save();
      OptimizerOptions other_buckets = options;
      other_buckets.bucket_coords = 64;
      Optimizer second(comm, kLayout, other_buckets);
      second.load(state);
      EXPECT_EQ(second.steps_done(), 3);
      steps(second, comm, y, 3, 6);
      EXPECT_EQ(param_hash(kLayout, x.span()), param_hash(kLayout, y.span())) << method;
    });
  }
}

TEST(OptimizerState, IsKeyedByParameterNameAndFreeOfPadding) {
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, kLayout, {.method = "adamw"});
    const StateDict state = optimizer.save();
    ASSERT_EQ(state.tensors.size(), 4u);
    EXPECT_EQ(state.tensors.at("m/w").shape, (std::vector<std::int64_t>{30, 7}));
    EXPECT_EQ(state.tensors.at("v/b").values.size(), 30u);
    EXPECT_EQ(state.scalars.at("method"), "adamw");
  });
}

TEST(OptimizerState, RefusesAWrongStateAndChangesNothing) {
  run_world(1, [](Communicator& comm) {
    FlatBuffer x(kLayout.flat_size());
    Optimizer optimizer(comm, kLayout, {.method = "lion"});
    steps(optimizer, comm, x, 0, 2);
    const StateDict good = optimizer.save();
    const auto refuses = [&](const std::function<void(StateDict&)>& change,
                             const std::string& names) {
      StateDict bad = good;
      change(bad);
      texts::expect_error<InvalidArgument>([&] { optimizer.load(bad); }, {names});
      EXPECT_EQ(optimizer.save().tensors.at("m/w").values, good.tensors.at("m/w").values);
      EXPECT_EQ(optimizer.steps_done(), 2);
    };
    refuses([](StateDict& s) { s.tensors.erase("m/b"); }, "m/b");
    refuses([](StateDict& s) { s.tensors["m/b"].shape = {15, 2}; }, "m/b");
    refuses([](StateDict& s) { s.tensors["m/b"].values.pop_back(); }, "m/b");
    refuses(
        [](StateDict& s) { s.tensors["m/b"].values[3] = std::numeric_limits<float>::quiet_NaN(); },
        "m/b");
    refuses([](StateDict& s) { s.tensors["v/b"] = s.tensors["m/b"]; }, "v/b");
    refuses([](StateDict& s) { s.scalars["method"] = "adamw"; }, "adamw");
    refuses([](StateDict& s) { s.scalars["world"] = "2"; }, "of 2");
    refuses([](StateDict& s) { s.scalars["layout"] = "0"; }, "layout");
    refuses([](StateDict& s) { s.scalars["seed"] = "7"; }, "seed");
    refuses([](StateDict& s) { s.scalars["options"] = "dense=native"; }, "options");
    refuses([](StateDict& s) { s.scalars.erase("rank"); }, "rank");
    refuses([](StateDict& s) { s.scalars["step"] = "-1"; }, "step");
    refuses([](StateDict& s) { s.scalars["version"] = "1"; }, "version 1");
    refuses([](StateDict& s) { s.scalars.erase("version"); }, "version");
    refuses([](StateDict& s) { s.scalars["step"] = "99999999999999999999"; }, "step");
  });
}

TEST(OptimizerState, OptionsThatAStateIsOlderThanMustHaveTheirDefaults) {
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, kLayout, {.method = "lion-cub"});
    Optimizer other(comm, kLayout, {.method = "lion-cub", .options = {{"tie", "zero"}}});
    StateDict state = optimizer.save();
    std::string& options = state.scalars["options"];
    options.erase(options.find(" tie=hash"), 9);
    EXPECT_NO_THROW(optimizer.load(state));
    EXPECT_THROW(other.load(state), InvalidArgument);
  });
}

// Lists of words may have spaces; the options of a state are separated by them.
TEST(OptimizerState, OptionsWithSpacesAreThoseWithout) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout matrices({{"w", {30, 7}}, {"u", {4, 8}}, {"b", {30}}});
  run_world(1, [&](Communicator& comm) {
    const auto made = [&](const std::string& split) {
      return Optimizer(comm, matrices, {.method = "muon", .options = {{"split", split}}});
    };
    const StateDict state = made("qkv, =w=30*1, =u=4").save();
    EXPECT_NO_THROW(made("qkv,=w=30*1,=u=4").load(state));
    for (const char* other : {"qkv, =w=7*1, =u=4", "qkv,=w=7*1,=u=4", "qkv, =w=30*1"}) {
      EXPECT_THROW(made(other).load(state), InvalidArgument) << other;
    }
  });
}

TEST(OptimizerState, RefusesANegativeMeanOfSquares) {
  run_world(1, [](Communicator& comm) {
    for (const std::string method : {"adamw", "onebit-adam"}) {
      Optimizer optimizer(comm, kLayout, {.method = method});
      StateDict state = optimizer.save();
      state.tensors["m/w"].values[3] = -1;
      EXPECT_NO_THROW(optimizer.load(state)) << method;
      state.tensors["v/w"].values[3] = -1;
      EXPECT_THROW(optimizer.load(state), InvalidArgument) << method;
    }
  });
}

}  // namespace
}  // namespace pride::state_test
