// Saved states of optimizers whose groups name methods of their own. Oracle: the run without a
// break.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "optimizer/section.h"
#include "optimizer/sections_run.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride::sections_test {
namespace {

std::vector<float> copy_of(const FlatBuffer& x) { return {x.span().begin(), x.span().end()}; }

TEST(Sections, BucketsComeInTheOrderOfBackward) {
  const Layout layout(kModel);
  OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
  Sections sections(layout, options, 2);
  const auto steps = sections.make_steps(options, 2, Space::host());
  std::size_t last = kModel.size();
  int index = 0;
  for (const auto& [section, number] : sections.by_bucket()) {
    const Bucket& bucket = sections[section].buckets[number];
    EXPECT_EQ(bucket.index, index++);
    std::size_t first = kModel.size();  // the tensor whose gradient completes the bucket
    for (const Shard& shard : bucket.shards) {
      for (const Piece& piece : shard.pieces) {
        first = std::min(first, sections[section].tensors[piece.tensor]);
      }
    }
    EXPECT_LE(first, last) << "bucket " << bucket.index;
    last = first;
  }
  EXPECT_EQ(static_cast<std::size_t>(index),
            sections[0].buckets.size() + sections[1].buckets.size());
}

TEST(Sections, FrozenTensorsAreThoseOfTheModel) {
  run_world(2, [](Communicator& comm) {
    Side side(comm, options_of(pair("dlion-vote", "adamw")));
    side.step(0);
    const std::vector<float> before = copy_of(side.x);
    const std::array<bool, 6> frozen = {false, true, false, false, true, false};  // one of each
    side.optimizer.set_frozen(frozen);
    side.step(1);
    for (std::size_t t = 0; t < kModel.size(); ++t) {
      const TensorSlot& slot = side.optimizer.layout().tensors()[t];
      const bool same =
          std::equal(before.begin() + static_cast<std::ptrdiff_t>(slot.offset),
                     before.begin() + static_cast<std::ptrdiff_t>(slot.offset + slot.n),
                     side.x.span().begin() + static_cast<std::ptrdiff_t>(slot.offset));
      EXPECT_EQ(same, frozen[t]) << slot.spec.name;
    }
  });
}

struct Saved {
  std::vector<StateDict> states;
  std::vector<std::vector<float>> params, later;  // when saved, and two steps later
};
Saved save_and_go_on(const Pair& p, int world) {
  Saved saved;
  saved.states.resize(static_cast<std::size_t>(world));
  saved.params.resize(saved.states.size());
  saved.later.resize(saved.states.size());
  run_world(world, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Side side(comm, options_of(p, &comm));
    for (int step = 0; step < 2; ++step) side.step(step);
    saved.states[r] = side.optimizer.save();
    side.optimizer.to_common(side.x.span());
    saved.params[r] = copy_of(side.x);
    side.optimizer.to_local(side.x.span());
    for (int step = 2; step < 4; ++step) side.step(step);
    saved.later[r] = copy_of(side.x);
  });
  return saved;
}

TEST(Sections, StatesGoOnWithTheSameBits) {
  for (const Pair& p : pairs()) {
    const int world = p.nodes.known() ? 4 : 3;
    const Saved saved = save_and_go_on(p, world);
    for (const bool of_all : {false, true}) {
      run_world(world, [&](Communicator& comm) {
        const auto r = static_cast<std::size_t>(comm.rank());
        OptimizerOptions options = options_of(p, &comm);
        options.bucket_coords = of_all ? 320 : 128;  // servers change
        Side side(comm, options);
        std::ranges::copy(saved.params[r], side.x.span().begin());
        of_all ? side.optimizer.load(saved.states) : side.optimizer.load(saved.states[r]);
        side.optimizer.to_local(side.x.span());
        for (int step = 2; step < 4; ++step) side.step(step);
        EXPECT_EQ(copy_of(side.x), saved.later[r])
            << p.first.method << " and " << p.second.method << ", of all " << of_all;
      });
    }
  }
}

using Narrow = std::vector<std::vector<BFloat16>>;

// Steps [from, to) of bfloat16 parameters, after a load if there is a state.
StateDict train(Communicator& comm, Narrow& values, int from, int to, const StateDict* state) {
  const Layout layout(kModel);
  Optimizer optimizer(comm, layout, options_of(pair("dlion-vote", "adamw")));
  FlatBuffer g(layout.flat_size());
  std::vector<Tensor> params;
  std::vector<ConstTensor> grads;
  values.resize(kModel.size());
  for (std::size_t t = 0; t < kModel.size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    values[t].resize(slot.n);
    params.emplace_back(values[t].data(), slot.n, DType::kBFloat16);
    grads.emplace_back(g.data() + slot.offset, slot.n, DType::kFloat32);
  }
  if (state != nullptr) optimizer.load(*state);
  for (int step = from; step < to; ++step) {
    fill(layout, g, kAllTensors,
         [&](std::size_t t, std::size_t i) { return testing::gradient(comm.rank(), step, t, i); });
    optimizer.step(params, grads);
  }
  return optimizer.save();
}

TEST(Sections, StatesHaveTheMastersOfAll) {
  run_world(2, [](Communicator& comm) {
    Narrow all, values;
    const StateDict last = train(comm, all, 0, 4, nullptr);
    const StateDict saved = train(comm, values, 0, 2, nullptr);
    EXPECT_TRUE(saved.tensors.contains("master/e") && saved.tensors.contains("master/b"));
    EXPECT_TRUE(testing::same(train(comm, values, 2, 4, &saved), last));
    EXPECT_EQ(values, all);
  });
}

TEST(Sections, StatesOfOtherSectionsAreRefused) {
  const Saved saved = save_and_go_on(pair("dlion-vote", "adamw"), 2);
  EXPECT_EQ(saved.states[0].scalars.at("group sections"), "0 1 0");
  EXPECT_EQ(saved.states[0].scalars.at("method"), "dlion-vote");
  EXPECT_EQ(saved.states[0].scalars.at("section 1 method"), "adamw");
  run_world(2, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const auto expect = [&](const OptimizerOptions& options, const std::string& text) {
      Optimizer other(comm, Layout(kModel), options);
      texts::expect_error<InvalidArgument>([&] { other.load(saved.states[r]); }, {text});
      texts::expect_error<InvalidArgument>([&] { other.load(saved.states); }, {text});
    };
    expect(options_of(pair("dlion-vote", "lion")),
           "the state is for section 1 method adamw, this optimizer has lion");
    OptimizerOptions options = options_of(pair("dlion-vote", "adamw"));
    options.groups[2].method = "adamw";
    expect(options, "the state is for group sections 0 1 0, this optimizer has 0 1 1");
    options.groups = std::vector<ParamGroup>(3);
    expect(options, "the state is for group sections 0 1 0, this optimizer has none");
    Optimizer plain(comm, Layout(kModel), options),
        both(comm, Layout(kModel), options_of(pair("dlion-vote", "adamw")));
    texts::expect_error<InvalidArgument>(
        [&] { both.load(plain.save()); },
        {"the state is for group sections none, this optimizer has 0 1 0"});
    // of a section's tensors one is missing
    StateDict less = saved.states[r];
    less.tensors.erase("v/e");
    texts::expect_error<InvalidArgument>([&] { both.load(less); }, {"no tensor 'v/e'"});
    StateDict more = saved.states[r];
    more.tensors["v/b"] = more.tensors.at("m/b");  // dlion-vote has no v
    texts::expect_error<InvalidArgument>([&] { both.load(more); }, {"'v/b'"});
  });
}

}  // namespace
}  // namespace pride::sections_test
