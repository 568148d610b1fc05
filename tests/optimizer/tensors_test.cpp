// Tensors in separate memory, in any dtype. Oracle: the same run over one flat float32 buffer.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/floats.h"
#include "optimizer/placed_parameters.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride {
namespace {

// Values of any dtype, in memory of their own.
class Values {
 public:
  Values(DType dtype, std::span<const float> from) : dtype_(dtype), n_(from.size()) {
    bytes_.resize(std::max<std::size_t>(1, n_ * size_of(dtype)));
    set(from);
  }
  void set(std::span<const float> from) {
    void* at = bytes_.data();
    if (dtype_ == DType::kFloat32) std::ranges::copy(from, static_cast<float*>(at));
    if (dtype_ == DType::kBFloat16) {  // as the upper half of a master
      std::vector<std::uint16_t> lower(n_);
      split(from, static_cast<std::uint16_t*>(at), lower.data());
    }
    if (dtype_ == DType::kFloat16) to_float16(from, {static_cast<Float16*>(at), n_});
  }
  std::vector<float> get() const {
    std::vector<float> out(n_);
    const void* at = bytes_.data();
    if (dtype_ == DType::kFloat32) std::copy_n(static_cast<const float*>(at), n_, out.begin());
    if (dtype_ == DType::kBFloat16) to_float({static_cast<const BFloat16*>(at), n_}, out);
    if (dtype_ == DType::kFloat16) to_float({static_cast<const Float16*>(at), n_}, out);
    return out;
  }
  Tensor tensor() { return {bytes_.data(), n_, dtype_}; }
  ConstTensor const_tensor() const { return {bytes_.data(), n_, dtype_}; }

 private:
  DType dtype_;
  std::size_t n_;
  std::vector<std::byte> bytes_;
};

std::vector<float> rounded(DType dtype, std::span<const float> x) { return Values(dtype, x).get(); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// One model whose tensors lie apart; dtypes go round, so that they are mixed.
struct Apart {
  Apart(const Layout& layout, std::size_t first_dtype) {
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      values.emplace_back(kDTypes[(first_dtype + t) % 3], testing::initial_of(layout, t));
    }
    for (Values& v : values) tensors.push_back(v.tensor());
  }
  std::vector<Values> values;
  std::vector<Tensor> tensors;
};

float gradient(DType dtype, int rank, std::int64_t step, std::size_t t, std::size_t i) {
  const float g = testing::gradient(rank, step, t, i);
  return rounded(dtype, {&g, 1})[0];
}

class ByMethod : public ::testing::TestWithParam<std::string> {};

TEST_P(ByMethod, TensorsApartGiveTheBitsOfAFlatBuffer) {
  const Layout layout(testing::kTensors);
  for (std::size_t first = 0; first < 3; ++first) {
    for (const bool overlap : {false, true}) {
      testing::Training run{.world = 3, .steps = 4};
      testing::set_method(run.options, GetParam());
      run.options.bucket_coords = 256;
      run.options.overlap = overlap;
      const auto dtype_of = [&](std::size_t t) { return kDTypes[(first + t) % 3]; };
      run_world(run.world, [&](Communicator& comm) {
        Optimizer flat(comm, layout, run.options), apart(comm, layout, run.options);
        Apart model(layout, first);
        FlatBuffer x(layout.flat_size()), g(layout.flat_size());
        for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
          std::ranges::copy(model.values[t].get(),
                            x.span().subspan(layout.tensors()[t].offset).begin());
        }
        for (std::int64_t step = 0; step < run.steps; ++step) {
          std::vector<Values> grads;
          std::vector<ConstTensor> where;
          const auto flags = std::make_unique<bool[]>(layout.tensors().size());
          for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
            const TensorSlot& slot = layout.tensors()[t];
            const auto part = g.span().subspan(slot.offset, slot.n);
            for (std::size_t i = 0; i < slot.n; ++i) {
              part[i] = gradient(dtype_of(t), comm.rank(), step, t, i);
            }
            grads.emplace_back(dtype_of(t), part);
            flags[t] = testing::unused(comm.rank(), step, t);
          }
          for (std::size_t t = 0; t < grads.size(); ++t) {
            where.push_back(flags[t] ? ConstTensor() : grads[t].const_tensor());
          }
          flat.step(x.span(), g.span(), {flags.get(), layout.tensors().size()});
          apart.step(model.tensors, where);
        }
        flat.to_common(x.span());
        apart.to_common(model.tensors);
        ASSERT_EQ(apart.hash(model.tensors), param_hash(layout, x.span()))
            << "overlap " << overlap << ", first dtype " << first;
        for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
          const TensorSlot& slot = layout.tensors()[t];
          ASSERT_EQ(model.values[t].get(),
                    rounded(dtype_of(t), x.span().subspan(slot.offset, slot.n)))
              << slot.spec.name;
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tensors, ByMethod, ::testing::ValuesIn(testing::method_variants()),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST(Tensors, MayMoveBetweenSteps) {
  const Layout layout({{"a", {70}}, {"b", {3}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer still(comm, layout, {.method = "adamw"}), moving(comm, layout, {.method = "adamw"});
    Apart one(layout, 1), other(layout, 1);
    const std::vector<float> ga(70, 0.5f), gb(3, -2.0f);
    const std::vector<ConstTensor> grads = {ga, gb};
    for (int step = 0; step < 4; ++step) {
      still.step(one.tensors, grads);
      std::vector<Values> copy = other.values;  // other addresses, the same values
      std::vector<Tensor> tensors = {copy[0].tensor(), copy[1].tensor()};
      moving.step(tensors, grads);
      for (std::size_t t = 0; t < 2; ++t) other.values[t].set(copy[t].get());
    }
    EXPECT_EQ(still.hash(one.tensors), moving.hash(other.tensors));
  });
}

// An edited value keeps its lower half: the master is one that rounds to it.
TEST(Masters, TakeWhatTheCallerChangedAndKeepTheRest) {
  const Layout layout({{"a", {130}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {.method = "sgdm", .groups = {{.lr = 1e-4}}});
    Values x(DType::kBFloat16, std::vector<float>(130, 1.0f));
    const std::vector<Tensor> tensors = {x.tensor()};
    const std::vector<float> g(130, 1.0f);
    const std::vector<ConstTensor> grads = {g};
    optimizer.step(tensors, grads);
    std::vector<float> now = x.get();
    EXPECT_EQ(now[0], 1.0f);  // 0.9999 rounds to 1; the master keeps it
    now[129] = 3;
    x.set(now);
    optimizer.step(tensors, grads);
    FlatBuffer masters(layout.flat_size());
    optimizer.read(tensors, masters.span());
    EXPECT_NEAR(masters.span()[0], 1 - 1e-4 - 1.9e-4, 1e-6);
    EXPECT_NEAR(masters.span()[129], 3 - 1.9e-4, 0x1p-7);
    EXPECT_EQ(x.get()[129], 3);
  });
}

TEST(Masters, AreSavedLoadedAndCounted) {
  const Layout layout({{"wide", {65}}, {"narrow", {70}}});
  run_world(2, [&](Communicator& comm) {
    const OptimizerOptions options = {.method = "dlion-vote", .groups = {{.lr = 1e-4}}};
    Optimizer first(comm, layout, options), second(comm, layout, options);
    Apart a(layout, 0), b(layout, 0);
    const std::vector<float> g0(65, 1.0f), g1(70, -1.0f);
    const std::vector<ConstTensor> grads = {g0, g1};
    const MemoryUse before = first.memory();
    for (int step = 0; step < 3; ++step) first.step(a.tensors, grads);
    EXPECT_EQ(first.memory().state, before.state);
    EXPECT_EQ(first.memory().masters, 2 * 70);
    const StateDict state = first.save();
    EXPECT_TRUE(state.tensors.contains("master/narrow"));
    EXPECT_FALSE(state.tensors.contains("master/wide"));
    EXPECT_EQ(state.scalars.at("kind.master"), "shared");
    EXPECT_EQ(first.state_buffers().size(), 1U);
    second.load(state);
    EXPECT_EQ(second.save().tensors.at("master/narrow").values,
              state.tensors.at("master/narrow").values);
    for (std::size_t t = 0; t < 2; ++t) b.values[t].set(a.values[t].get());
    EXPECT_EQ(first.hash(a.tensors), second.hash(b.tensors));
    first.step(a.tensors, grads);
    second.step(b.tensors, grads);
    EXPECT_EQ(first.hash(a.tensors), second.hash(b.tensors));
    // states of all ranks, and a state without masters: those follow from the values
    std::vector<StateDict> all(2, state);
    all[0].scalars["rank"] = "0", all[1].scalars["rank"] = "1";
    second.load(all);
    StateDict none = state;
    none.tensors.erase("master/narrow");
    second.load(none);
    second.step(b.tensors, grads);
  });
}

// A version before this one rounded ties to even.
TEST(Masters, OfOlderStatesAreThoseOfTheirValuesWhereverTiesWent) {
  const Layout layout({{"a", {3}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    const std::vector<float> masters = {0x1.01p0f, -0x1.03p0f, 0x1.008p0f};  // two ties; none
    std::vector<BFloat16> x(3);
    to_bf16(masters, x);
    x[2] = BFloat16{0x4000};  // 2, of another model
    const std::vector<Tensor> tensors = {x};
    StateDict state = optimizer.save();
    state.tensors["master/a"] = {{3}, masters};
    state.scalars["kind.master"] = "shared";
    optimizer.load(state);
    optimizer.place(tensors);
    EXPECT_EQ(optimizer.save().tensors.at("master/a").values,
              (std::vector<float>{0x1.01p0f, -0x1.03p0f, 2}));
    std::vector<float> now(3);
    to_float(x, now);
    EXPECT_EQ(now, (std::vector<float>{0x1.02p0f, -0x1.04p0f, 2}));
    // of two states that are loaded one after the other the second holds, also without masters
    Optimizer twice(comm, layout, {});
    twice.load(state);
    StateDict none = state;
    none.tensors.erase("master/a");
    twice.load(none);
    twice.place(tensors);
    EXPECT_EQ(twice.save().tensors.at("master/a").values, now);
    state.tensors["master/b"] = {{3}, masters};
    EXPECT_PRED2(contains, texts::error_of<InvalidArgument>([&] { optimizer.load(state); }),
                 "has 2 masters");
  });
}

TEST(Tensors, ThatDoNotFitAreRefusedByName) {
  const Layout layout({{"a", {5}}, {"b", {3}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    std::vector<float> a(5), b(3), short_one(2);
    std::vector<BFloat16> narrow(3);
    const std::vector<Tensor> good = {a, b};
    const std::vector<ConstTensor> grads = {a, b};
    optimizer.step(good, grads);
    const auto refusal = [&](std::vector<Tensor> tensors) {
      return texts::error_of<InvalidArgument>([&] { optimizer.step(tensors, grads); });
    };
    EXPECT_PRED2(contains, refusal({a}), "1 parameters given, the layout has 2");
    EXPECT_PRED2(contains, refusal({a, short_one}), "2 values given for 'b'");
    EXPECT_PRED2(contains, refusal({a, narrow}), "'b' is bfloat16 now and was float32");
    EXPECT_PRED2(contains, refusal({a, Tensor(nullptr, 3, DType::kFloat32)}),
                 "'b' has a null pointer");
    FlatBuffer flat(layout.flat_size());
    EXPECT_THROW(optimizer.step(flat.span(), grads), InvalidArgument);
    optimizer.step(good, grads);
  });
}

TEST(Frozen, TensorsKeepTheirBitsAndAreAgreedOn) {
  const Layout layout({{"a", {70}}, {"b", {70}}});
  for (const std::string& method : testing::method_variants()) {
    run_world(2, [&](Communicator& comm) {
      OptimizerOptions options;
      testing::set_method(options, method);
      options.groups = {{.lr = 1e-2, .weight_decay = 0.1}};
      Optimizer optimizer(comm, layout, options);
      Apart model(layout, 0);
      const std::vector<float> g(70, 1.0f);
      const std::vector<ConstTensor> grads = {g, g};
      for (int step = 0; step < 6; ++step) {
        const bool frozen[] = {step >= 2 && step < 5, false};
        optimizer.set_frozen(frozen);
        const std::vector<float> before = model.values[0].get(), other = model.values[1].get();
        optimizer.step(model.tensors, grads);
        ASSERT_EQ(model.values[0].get() == before, frozen[0]) << method << ", step " << step;
        if (optimizer.method().period == 1) {
          EXPECT_NE(model.values[1].get(), other) << method;
        }
      }
    });
  }
}

// Between sending and adopting a fragment, too; and what the caller writes to them stays.
TEST(Frozen, TensorsStayThroughCommonAndLocalParameters) {
  const Layout layout({{"a", {70}}, {"b", {70}}});
  const std::map<std::string, std::string> plain = {{"h", "2"}},
                                           late = {{"h", "4"}, {"delay", "2"}, {"fragments", "2"}};
  for (const auto& options : {plain, late}) {
    for (const char* method : {"diloco", "local-vote"}) {
      run_world(2, [&](Communicator& comm) {
        Optimizer optimizer(comm, layout, {.method = method, .options = options});
        Apart model(layout, 0);
        const std::vector<float> g(70, comm.rank() == 0 ? 1.0f : 0.5f);
        const std::vector<ConstTensor> grads = {g, g};
        for (int step = 0; step < 12; ++step) {
          const bool frozen[] = {step >= 2, false};
          optimizer.set_frozen(frozen);
          if (step == 7) model.values[0].set(std::vector<float>(70, 5.0f));
          const std::vector<float> before = model.values[0].get();
          optimizer.step(model.tensors, grads);
          if (!frozen[0]) continue;
          ASSERT_EQ(model.values[0].get(), before) << method << ", step " << step;
          const std::vector<float> other = model.values[1].get();
          optimizer.to_common(model.tensors);
          ASSERT_EQ(model.values[0].get(), before) << method << ", step " << step;
          optimizer.to_local(model.tensors);
          ASSERT_EQ(model.values[0].get(), before) << method << ", step " << step;
          ASSERT_EQ(model.values[1].get(), other) << method << ", step " << step;
        }
      });
    }
  }
}

TEST(Masters, AreSavedRightAfterTensorsWereAdded) {
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout({{"a", {70}}}), {});
    Values x(DType::kBFloat16, std::vector<float>(70, 1.0f));
    const std::vector<Tensor> tensors = {x.tensor()};
    const std::vector<float> g(70, 1.0f);
    const std::vector<ConstTensor> grads = {g};
    optimizer.step(tensors, grads);
    const auto before = optimizer.save().tensors.at("master/a").values;
    optimizer.add({{"b", {3}}});
    EXPECT_EQ(optimizer.save().tensors.at("master/a").values, before);
  });
}

TEST(Frozen, OnOneRankAloneEndsTheStep) {
  const Layout layout({{"a", {70}}});
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    const bool frozen[] = {comm.rank() == 1};
    optimizer.set_frozen(frozen);
    const auto text = texts::error_of<CommError>([&] { optimizer.step(x.span(), g.span()); });
    EXPECT_PRED2(contains, text, "frozen tensors");
  });
}

TEST(GradientFactor, IsThatOfScaledGradients) {
  const Layout layout(testing::kTensors);
  for (const std::string& method : testing::method_variants()) {
    testing::Training run{.world = 2, .steps = 3};
    testing::set_method(run.options, method);
    run.options.bucket_coords = 256;
    const std::uint64_t expected = testing::train(layout, run)[0].hash;
    run_world(run.world, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout, run.options);
      optimizer.set_gradient_factor(-0.25f);
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      testing::fill(layout, x, testing::initial);
      for (std::int64_t step = 0; step < run.steps; ++step) {
        testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
          return -4 * testing::gradient(comm.rank(), step, t, i);
        });
        optimizer.step(x.span(), g.span());
      }
      optimizer.to_common(x.span());
      EXPECT_EQ(param_hash(layout, x.span()), expected) << method;
    });
  }
}

}  // namespace
}  // namespace pride
