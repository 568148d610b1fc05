// Groups that name methods of their own. Oracle: an optimizer of its own for each method, over a
// part of the model; bit for bit, byte for byte.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "optimizer/sections_run.h"
#include "optimizer/virtual_run.h"
#include "pride/error.h"
#include "support/test_device.h"
#include "support/texts.h"

namespace pride::sections_test {
namespace {

// The part's values are those that the model has at its tensors.
void expect_same_values(const Side& all, const Side& own, const std::string& what) {
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    const TensorSlot& slot = own.optimizer.layout().tensors()[i];
    const TensorSlot& in_all = all.optimizer.layout().tensors()[own.tensors[i]];
    EXPECT_TRUE(std::ranges::equal(own.x.span().subspan(slot.offset, slot.n),
                                   all.x.span().subspan(in_all.offset, slot.n)))
        << what << ", " << slot.spec.name;
  }
}

void expect_same_bytes(const SectionReport& section, const StepReport& own, const Cost& cost,
                       const std::string& what) {
  EXPECT_EQ(section.bytes_sent, own.bytes_sent) << what;
  EXPECT_EQ(section.bytes_received, own.bytes_received) << what;
  EXPECT_EQ(section.messages_sent, own.messages_sent) << what;
  EXPECT_EQ(section.cost.bytes(), cost.bytes()) << what;
  EXPECT_EQ(section.cost.exact, cost.exact) << what;
}

void expect_same_state(const StateDict& all, const StateDict& own, const std::string& what) {
  for (const auto& [key, tensor] : own.tensors) {
    const auto found = all.tensors.find(key);
    ASSERT_NE(found, all.tensors.end()) << what << ", " << key;
    EXPECT_EQ(found->second.shape, tensor.shape) << what << ", " << key;
    EXPECT_EQ(found->second.values, tensor.values) << what << ", " << key;
  }
}

void compare(Communicator& comm, const Pair& p, const OptimizerOptions& options) {
  const std::string what = p.first.method + " and " + p.second.method;
  Side all(comm, options);
  std::array<Side, 2> own = {Side(comm, options, p.first, false),
                             Side(comm, options, p.second, true)};
  for (int step = 0; step < kSteps; ++step) {
    const Cost cost = all.optimizer.cost(step);
    const StepReport report = all.step(step);
    const auto sections = all.optimizer.sections(step);
    ASSERT_EQ(sections.size(), 2U);
    EXPECT_EQ(sections[0].groups, (std::vector{0, 2}));
    EXPECT_EQ(sections[1].groups, (std::vector{1}));
    std::uint64_t sent = 0, state = 0, stated = 0;
    for (std::size_t s = 0; s < 2; ++s) {
      const Cost of_own = own[s].optimizer.cost(step);
      const StepReport mine = own[s].step(step);
      expect_same_values(all, own[s], concat(what, ", step ", step));
      expect_same_bytes(sections[s], mine, of_own, concat(what, ", step ", step));
      EXPECT_EQ(sections[s].state, own[s].optimizer.memory().state) << what;
      EXPECT_EQ(sections[s].n_coords, own[s].optimizer.layout().n_coords());
      sent += mine.bytes_sent;
      stated += of_own.bytes();
      state += sections[s].state;
    }
    EXPECT_EQ(report.bytes_sent, sent) << what;
    EXPECT_EQ(cost.bytes(), stated) << what;
    EXPECT_EQ(all.optimizer.memory().state, state) << what;
  }
  const StateDict saved = all.optimizer.save();
  std::size_t tensors = 0;
  for (Side& side : own) {
    const StateDict mine = side.optimizer.save();
    expect_same_state(saved, mine, what);
    tensors += mine.tensors.size();
  }
  EXPECT_EQ(saved.tensors.size(), tensors) << what;
}

TEST(Sections, HaveTheBitsAndBytesOfOptimizersOfTheirOwn) {
  for (const Pair& p : pairs()) {
    for (const int world : {1, 2, 4}) {
      if (p.nodes.known() && world != p.nodes.world()) continue;
      for (const bool overlap : {false, true}) {
        for (const std::size_t bucket_coords : {std::size_t{128}, std::size_t{1} << 20}) {
          run_world(world, [&](Communicator& comm) {
            OptimizerOptions options = options_of(p, &comm);
            options.overlap = overlap;
            options.exchange_threads = 3;
            options.bucket_coords = bucket_coords;
            compare(comm, p, options);
          });
        }
      }
    }
  }
}

TEST(Sections, TakeGradientsOneByOneAndReleaseThem) {
  run_world(2, [](Communicator& comm) {
    OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
    Side at_once(comm, options);
    options.overlap = true;
    Side one_by_one(comm, options);
    at_once.step(0);
    fill(one_by_one.optimizer.layout(), one_by_one.g, kAllTensors,
         [&](std::size_t t, std::size_t i) { return testing::gradient(comm.rank(), 0, t, i); });
    one_by_one.optimizer.begin_step(one_by_one.x.span(), std::nullopt);
    const auto unused = flags_of(comm.rank(), 0, kAllTensors);
    std::vector<std::size_t> released;
    for (std::size_t t = kModel.size(); t-- > 0;) {
      const TensorSlot& slot = one_by_one.optimizer.layout().tensors()[t];
      const float* const values = one_by_one.g.data() + slot.offset;
      one_by_one.optimizer.gradient_ready(
          t, ConstTensor(unused[t] ? nullptr : values, slot.n, DType::kFloat32));
      std::ranges::copy(one_by_one.optimizer.take_released(), std::back_inserter(released));
    }
    std::ranges::sort(released);
    // adamw's sum reads its gradients again, or not: the votes' never
    EXPECT_TRUE(std::ranges::includes(released, std::vector<std::size_t>{1, 2, 5}));
    one_by_one.optimizer.finish_step();
    EXPECT_TRUE(std::ranges::equal(one_by_one.x.span(), at_once.x.span()));
  });
}

TEST(Sections, HaveTheBitsOfTheHostOnADevice) {
  for (const Pair& p : {pair("dlion-vote", "adamw"), pair("dlion-avg", "lion-cub")}) {
    run_world(2, [&](Communicator& comm) {
      const auto device = std::make_shared<testing::TestDevice>();
      OptimizerOptions options = options_of(p);
      Side host(comm, options);
      options.device = device;
      Optimizer optimizer(comm, Layout(kModel), options);
      const std::size_t bytes = host.x.span().size_bytes();
      auto* const x = static_cast<float*>(device->allocate(bytes));
      auto* const g = static_cast<float*>(device->allocate(bytes));
      device->put(x, std::as_bytes(host.x.span()));
      std::vector<Tensor> params;
      std::vector<ConstTensor> grads;
      for (const TensorSlot& slot : optimizer.layout().tensors()) {
        params.emplace_back(x + slot.offset, slot.n, DType::kFloat32);
        grads.emplace_back(g + slot.offset, slot.n, DType::kFloat32);
      }
      for (int step = 0; step < kSteps; ++step) {
        host.step(step);
        device->put(g, std::as_bytes(host.g.span()));
        const auto unused = flags_of(comm.rank(), step, kAllTensors);
        optimizer.step(params, grads, {unused.get(), kModel.size()});
      }
      FlatBuffer here(host.x.size());
      device->get(x, std::as_writable_bytes(here.span()));
      EXPECT_TRUE(std::ranges::equal(here.span(), host.x.span())) << p.first.method;
    });
  }
}

// --- Virtual workers. ----------------------------------------------------------------------------

TEST(Sections, OfVirtualWorkersAreThoseOfRanks) {
  for (const Pair& p : pairs()) {
    testing::Training run;
    run.world = 4;
    run.options = options_of(p);
    run.weights = {1, p.weight, 1, 1};
    const Layout layout(kModel);
    std::vector<std::vector<SectionReport>> reports;  // of rank 0, by step
    std::vector<float> common;
    run_world(run.world, [&](Communicator& comm) {
      Side side(comm, options_of(p, &comm));
      for (int step = 0; step < kSteps; ++step) {
        side.step(step);
        if (comm.rank() == 0) reports.push_back(side.optimizer.sections(step));
      }
      side.optimizer.to_common(side.x.span());
      if (comm.rank() == 0) common = testing::copy_of(side.x);
    });
    run.unused = [](int rank, std::int64_t step, std::size_t t) {
      return t == 3 && (rank + step) % 3 == 0;
    };
    FlatBuffer x(layout.flat_size());
    testing::fill(layout, x, testing::initial);
    testing::VirtualWorld world(layout, run, x);
    for (int step = 0; step < kSteps; ++step) {
      world.step(step);
      const auto sections = world.optimizer().sections(step);
      for (std::size_t s = 0; s < 2; ++s) {
        EXPECT_EQ(sections[s].bytes_sent, reports[static_cast<std::size_t>(step)][s].bytes_sent);
        EXPECT_EQ(sections[s].cost.bytes(),
                  reports[static_cast<std::size_t>(step)][s].cost.bytes());
      }
    }
    EXPECT_EQ(testing::copy_of(x), common) << p.first.method << " and " << p.second.method;
  }
}

// --- Values that are not finite, and the norm of all. --------------------------------------------

TEST(Sections, AreSkippedTogether) {
  for (const bool overlap : {false, true}) {
    run_world(2, [&](Communicator& comm) {
      OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
      options.non_finite = NonFinitePolicy::kSkip;
      options.overlap = overlap;
      Side side(comm, options);
      side.step(0);
      const std::vector<float> before = testing::copy_of(side.x);
      const std::size_t at = side.optimizer.layout().tensors()[4].offset + 3;
      if (comm.rank() == 1) side.g.span()[at] = NAN;
      const StepReport report = side.optimizer.step(side.x.span(), side.g.span());
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.skip_reason, "step 2: NaN or Inf in the gradient of 'e' on rank 1");
      EXPECT_EQ(testing::copy_of(side.x), before);
      EXPECT_FALSE(side.step(2).skipped);
      EXPECT_NE(testing::copy_of(side.x), before);
    });
  }
}

TEST(Sections, HaveOneNorm) {
  const Layout layout(kModel);
  run_world(1, [&](Communicator& comm) {
    // with one rank both sums have the gradient's bits, so that a single method is the oracle
    OptimizerOptions options = options_of(pair("adamw", "adamw:dense=native"));
    options.clip_global_norm = 0.5;
    Side both(comm, options);
    for (ParamGroup& group : options.groups) group.options = {};
    Side one(comm, options);
    ASSERT_EQ(both.optimizer.sections().size(), 2U);
    ASSERT_EQ(one.optimizer.sections().size(), 1U);
    for (int step = 0; step < kSteps; ++step) {
      const auto norm = both.step(step).grad_norm, of_one = one.step(step).grad_norm;
      ASSERT_TRUE(norm && of_one);
      EXPECT_NEAR(*norm, *of_one, 1e-12 * *of_one);
      EXPECT_GT(*norm, 0.5) << "nothing is clipped";
      EXPECT_EQ(testing::copy_of(both.x), testing::copy_of(one.x));
    }
  });
}

// --- Groups, and tensors that join. --------------------------------------------------------------

TEST(Sections, GroupsHaveTheirMethodsDefaults) {
  run_world(1, [](Communicator& comm) {
    OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
    Optimizer optimizer(comm, Layout(kModel), options);
    EXPECT_EQ(optimizer.method(0).name, "dlion-vote");
    EXPECT_EQ(optimizer.method(1).name, "adamw");
    EXPECT_EQ(optimizer.group(1).method, "adamw");
    EXPECT_EQ(optimizer.group(1).lr, method_info("adamw", 1).default_lr);
    EXPECT_EQ(optimizer.group(0).lr, method_info("dlion-vote", 1).default_lr);
    EXPECT_FALSE(optimizer.group(0).eps);
    optimizer.set_group({.lr = 0.5, .eps = 1e-4}, 1);
    EXPECT_EQ(optimizer.group(1).eps, 1e-4);
    optimizer.set_group(optimizer.group(1), 1);
    texts::expect_error<InvalidArgument>([&] { optimizer.set_group({.eps = 1e-4}, 0); },
                                         {"group 0: dlion-vote has no eps"});
    texts::expect_error<InvalidArgument>([&] { optimizer.set_group({.method = "lion"}, 1); },
                                         {"group 1: set_group() with another method"});
    texts::expect_error<InvalidArgument>([&] { optimizer.method(3); }, {"group 3, must be"});
  });
}

TEST(Sections, AGroupMayBringAnotherMethod) {
  run_world(2, [](Communicator& comm) {
    OptimizerOptions options = options_of(pair("dlion-vote", "lion"));
    Side side(comm, options);
    side.step(0);
    const std::vector<TensorSpec> more = {{"g", {300}, 3}};
    const ParamGroup group{.method = "adamw"};
    side.optimizer.add(more, {group});
    const Layout grown = side.optimizer.layout();
    ASSERT_EQ(side.optimizer.sections().size(), 3U);
    FlatBuffer x(grown.flat_size()), g(grown.flat_size());
    std::ranges::copy(side.x.span(), x.span().begin());
    testing::fill(grown, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), 1, t, i);
    });
    const TensorSlot& slot = grown.tensors().back();
    Optimizer own(comm, Layout({{"g", {300}, 0, slot.offset}}), {.method = "adamw"});
    FlatBuffer own_x(own.layout().flat_size()), own_g(own.layout().flat_size());
    std::ranges::copy(g.span().subspan(slot.offset, slot.n), own_g.span().begin());
    Side before(comm, options);
    before.step(0);
    const auto used = std::make_unique<bool[]>(kModel.size());
    fill(before.optimizer.layout(), before.g, kAllTensors,
         [&](std::size_t t, std::size_t i) { return testing::gradient(comm.rank(), 1, t, i); });
    before.optimizer.step(before.x.span(), before.g.span(), {used.get(), kModel.size()});
    side.optimizer.step(x.span(), g.span());
    own.step(own_x.span(), own_g.span());
    EXPECT_TRUE(
        std::ranges::equal(x.span().subspan(slot.offset, slot.n), own_x.span().first(slot.n)));
    EXPECT_TRUE(std::ranges::equal(x.span().first(before.x.size()), before.x.span()));
  });
}

// onebit-adam's second moments are those of its first steps.
TEST(Sections, OnlyThoseWithNewTensorsMustBeAbleToGrow) {
  run_world(2, [](Communicator& comm) {
    Side side(comm, options_of(pair("dlion-vote", "onebit-adam:freeze_steps=2")));
    side.step(0);
    const std::vector<float> before = testing::copy_of(side.x);
    const auto add = [&](const std::string& name, int group, std::vector<ParamGroup> groups) {
      side.optimizer.add({{name, {300}, group}}, std::move(groups));
    };
    const ParamGroup another{.method = "onebit-adam", .options = {{"freeze_steps", "3"}}};
    const std::string why_not = "onebit-adam";
    texts::expect_error<InvalidArgument>([&] { add("g", 1, {}); }, {why_not});
    texts::expect_error<InvalidArgument>([&] { add("g", 3, {another}); }, {why_not});
    EXPECT_EQ(side.optimizer.sections().size(), 2U);
    EXPECT_FALSE(side.step(1).skipped) << "a refusal changes nothing";
    add("g", 0, {});
    add("h", 3, {{.method = "lion"}});
    EXPECT_EQ(side.optimizer.sections().size(), 3U);
  });
}

TEST(Sections, WordsMayNameTensorsOfOtherSections) {
  if (!rules::has_blas()) GTEST_SKIP() << "built without CBLAS";
  run_world(1, [](Communicator& comm) {
    OptimizerOptions options = options_of(pair("dlion-muon", "adamw"));
    for (const int g : {0, 2})
      options.groups[static_cast<std::size_t>(g)].options = {{"not_matrices", "e"}};
    EXPECT_EQ(Optimizer(comm, Layout(kModel), options).sections().size(), 2U);
    for (const int g : {0, 2})
      options.groups[static_cast<std::size_t>(g)].options = {{"not_matrices", "z"}};
    texts::expect_error<InvalidArgument>([&] { Optimizer(comm, Layout(kModel), options); },
                                         {"no tensor's name contains 'z'"});
  });
}

TEST(Sections, AreRefusedWhereTheyCannotBe) {
  run_world(1, [](Communicator& comm) {
    const auto expect = [&](const OptimizerOptions& options, const std::string& text) {
      texts::expect_error<InvalidArgument>([&] { Optimizer(comm, Layout(kModel), options); },
                                           {text});
    };
    OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
    options.groups[1].method.clear();
    options.groups[1].options = {{"tie", "zero"}};
    expect(options, "group 1: the option tie is given without a method");
    options.groups[1] = {.method = "dlion-voet"};
    expect(options, "dlion-voet");
    options.groups[1] = {.method = "adamw", .options = {{"tie", "zero"}}};
    expect(options, "tie");
    expect(options_of(pair("local-vote:h=2", "adamw")), "all groups must have the same period");
    expect(options_of(pair("local-vote:h=2,delay=1", "diloco:h=2")), "option delay");
    options = options_of(pair("dlion-vote", "adamw"));
    options.clip_global_norm = 1;
    expect(options, "clip_global_norm: dlion-vote");
    options = options_of(pair("dlion-vote", "adamw"));
    options.nodes = Nodes::of_size(1, 1);
    expect(options, "adamw has no hierarchical route");
  });
}

TEST(Sections, RanksMustHaveTheSame) {
  const auto errors = [](const ParamGroup& of_rank_0, const ParamGroup& of_rank_1) {
    return testing::errors_of<InvalidArgument>(2, [&](Communicator& comm) {
      OptimizerOptions options = options_of(pair("dlion-vote", "lion"));
      options.groups[1] = comm.rank() == 0 ? of_rank_0 : of_rank_1;
      Optimizer(comm, Layout(kModel), options);
    });
  };
  for (const std::string& error : errors({.method = "lion"}, {.method = "signum-vote"})) {
    EXPECT_NE(error.find("the method of rank(s) 1 and of rank 0 differ"), std::string::npos)
        << error;
  }
  for (const std::string& error :
       errors({.method = "dlion-vote", .options = {{"tie", "zero"}}}, {.method = "dlion-vote"})) {
    EXPECT_NE(error.find("rank(s) 1 and of rank 0 differ"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace pride::sections_test
