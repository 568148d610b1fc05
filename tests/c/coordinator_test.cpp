// Workers of a coordinator through the functions of the C interface. Oracle: ranks of a world.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "c/handles.h"
#include "support/coordinator.h"
#include "support/training.h"

namespace pride {
namespace {

using testing::TestCoordinator;

OptimizerOptions core_options() {
  return {.method = "dlion-vote", .bucket_coords = 1000, .seed = 11};
}

struct CWorker {
  CWorker(TestCoordinator& coordinator, int number)
      : number(number), line{coordinator.client(number)} {
    std::vector<pride_tensor> tensors;
    for (const TensorSpec& spec : testing::kTensors) {
      tensors.push_back({spec.name.c_str(), spec.shape.data(),
                         static_cast<std::int32_t>(spec.shape.size()), spec.group});
    }
    EXPECT_EQ(pride_layout_create(tensors.data(), tensors.size(), &layout), PRIDE_OK);
    pride_options options;
    pride_options_init(&options, sizeof options);
    options.bucket_coords = 1000;
    options.seed = 11;
    EXPECT_EQ(pride_optimizer_create_worker(&line, layout, &options, nullptr, &optimizer), PRIDE_OK)
        << pride_last_error();
    x = FlatBuffer(layout->layout.flat_size());
    g = FlatBuffer(layout->layout.flat_size());
    testing::fill(layout->layout, x, testing::initial);
  }
  ~CWorker() {
    pride_optimizer_destroy(optimizer);
    pride_layout_destroy(layout);
  }
  CWorker(const CWorker&) = delete;
  CWorker& operator=(const CWorker&) = delete;

  static pride_array array(FlatBuffer& values) {
    return {.data = values.data(),
            .n = values.size(),
            .dtype = PRIDE_FLOAT32,
            .device = PRIDE_CPU,
            .device_index = 0,
            .reserved = 0,
            .stream = nullptr};
  }
  int join() {
    const pride_array params = array(x);
    return pride_optimizer_broadcast(optimizer, &params);
  }
  int step() {
    const std::int64_t at = pride_optimizer_steps_done(optimizer);
    testing::fill(layout->layout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(number, at, t, i);
    });
    const pride_array params = array(x), grads = array(g);
    return pride_optimizer_step(optimizer, &params, &grads, nullptr, nullptr);
  }
  pride_round round() const {
    pride_round out{};
    out.struct_size = sizeof out;
    EXPECT_EQ(pride_optimizer_round(optimizer, &out), PRIDE_OK);
    return out;
  }

  int number;
  pride_coordinator line;
  pride_layout* layout = nullptr;
  pride_optimizer* optimizer = nullptr;
  FlatBuffer x, g;
};

TEST(CCoordinator, WorkersHaveTheParametersOfAWorld) {
  const Layout layout(testing::kTensors);
  // an odd number: a coordinator has other bits for ties
  const testing::Training world{.world = 3, .steps = 5, .options = core_options()};
  const auto ranks = testing::train(layout, world);
  TestCoordinator coordinator(layout, core_options());
  CWorker a(coordinator, 0), b(coordinator, 1), c(coordinator, 2);
  EXPECT_EQ(a.step(), PRIDE_INVALID) << "it has not joined";
  EXPECT_NE(std::string(pride_last_error()).find("broadcast"), std::string::npos);
  ASSERT_EQ(a.join(), PRIDE_OK) << pride_last_error();
  ASSERT_EQ(b.join(), PRIDE_OK) << pride_last_error();
  ASSERT_EQ(c.join(), PRIDE_OK) << pride_last_error();
  EXPECT_EQ(a.round().round, -1);
  coordinator.voters = 3;
  const auto run = [](CWorker& worker) {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(worker.step(), PRIDE_OK) << pride_last_error();
  };
  {
    std::jthread second([&] { run(b); }), third([&] { run(c); });
    run(a);
  }
  for (const CWorker* worker : {&a, &b, &c}) {
    EXPECT_EQ(param_hash(layout, worker->x.span()), ranks[0].hash);
    EXPECT_EQ(worker->round().round, 4);
    EXPECT_EQ(worker->round().voters, 3);
    EXPECT_EQ(worker->round().counted, 1);
    EXPECT_STREQ(worker->round().why_not, "");
    EXPECT_EQ(pride_optimizer_worker(worker->optimizer), worker->number);
  }
  // one that comes later
  CWorker late(coordinator, 7);
  ASSERT_EQ(late.join(), PRIDE_OK) << pride_last_error();
  EXPECT_EQ(pride_optimizer_steps_done(late.optimizer), 5);
  EXPECT_EQ(param_hash(layout, late.x.span()), ranks[0].hash);
}

// The same bits as by whole steps. Until the step ends, nothing else may be called.
TEST(CCoordinator, StepsInParts) {
  const Layout layout(testing::kTensors);
  std::uint64_t hashes[2] = {};
  for (const bool flat : {false, true}) {
    TestCoordinator coordinator(layout, core_options());
    CWorker whole(coordinator, 0);
    ASSERT_EQ(whole.join(), PRIDE_OK);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(whole.step(), PRIDE_OK) << pride_last_error();
    hashes[0] = param_hash(layout, whole.x.span());

    TestCoordinator other(layout, core_options());
    CWorker parts(other, 0);
    ASSERT_EQ(parts.join(), PRIDE_OK);
    pride_optimizer* const o = parts.optimizer;
    const pride_array params = CWorker::array(parts.x);
    const auto refused = [](int status, const char* text) {
      EXPECT_EQ(status, PRIDE_INVALID);
      EXPECT_NE(std::string(pride_last_error()).find(text), std::string::npos)
          << pride_last_error();
    };
    for (int i = 0; i < 3; ++i) {
      testing::fill(layout, parts.g,
                    [&](std::size_t t, std::size_t k) { return testing::gradient(0, i, t, k); });
      pride_array grads = CWorker::array(parts.g);
      if (flat) {
        --grads.n;
        refused(pride_optimizer_begin(o, &params, &grads), "with padding");
        ++grads.n;
      }
      refused(pride_optimizer_ready(o, 0, 0), "outside a step");
      refused(pride_optimizer_finish(o, -1, nullptr), "outside a step");
      ASSERT_EQ(pride_optimizer_begin(o, &params, flat ? &grads : nullptr), PRIDE_OK);
      refused(pride_optimizer_begin(o, &params, nullptr), "in the middle of a step");
      refused(parts.step(), "in the middle of a step");
      EXPECT_EQ(pride_optimizer_set_stream(o, nullptr), PRIDE_OK);  // Python names it in each call
      refused(pride_optimizer_set_gradient_factor(o, 2), "in the middle of a step");
      for (std::size_t t = layout.tensors().size(); t-- > 0;) {
        const TensorSlot& slot = layout.tensors()[t];
        pride_array one = grads;
        one.data = parts.g.data() + slot.offset;
        one.n = slot.n;
        if (flat) {
          refused(pride_optimizer_ready_at(o, t, &one), "begin_step() was given all gradients");
          ASSERT_EQ(pride_optimizer_ready(o, t, 0), PRIDE_OK) << pride_last_error();
        } else {
          refused(pride_optimizer_ready(o, t, 0), "was given no gradient");
          ASSERT_EQ(pride_optimizer_ready_at(o, t, &one), PRIDE_OK) << pride_last_error();
        }
        refused(pride_optimizer_ready(o, t, 1), "twice");
      }
      ASSERT_EQ(pride_optimizer_finish(o, -1, nullptr), PRIDE_OK) << pride_last_error();
    }
    hashes[1] = param_hash(layout, parts.x.span());
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

TEST(CCoordinator, RefusesWhatCannotBe) {
  const Layout layout(testing::kTensors);
  TestCoordinator coordinator(layout, core_options());
  const CWorker good(coordinator, 0);
  pride_optimizer* optimizer = nullptr;
  pride_options options;
  pride_options_init(&options, sizeof options);
  EXPECT_EQ(pride_optimizer_create_worker(nullptr, good.layout, &options, nullptr, &optimizer),
            PRIDE_INVALID);
  options.method = "terngrad";
  pride_coordinator line{coordinator.client(1)};
  EXPECT_EQ(pride_optimizer_create_worker(&line, good.layout, &options, nullptr, &optimizer),
            PRIDE_INVALID);
  EXPECT_EQ(optimizer, nullptr);
  pride_coordinator* out = nullptr;
  EXPECT_EQ(pride_coordinator_connect(nullptr, &out), PRIDE_INVALID);
  pride_coordinator_address address{};
  EXPECT_EQ(pride_coordinator_connect(&address, &out), PRIDE_INVALID) << "no struct_size";
  address.struct_size = sizeof address;
  address.host_port = "127.0.0.1:4770";
  EXPECT_EQ(pride_coordinator_connect(&address, &out), PRIDE_INVALID);
  EXPECT_NE(std::string(pride_last_error()).find("libpride_coord.so"), std::string::npos);
  EXPECT_EQ(out, nullptr);
}

}  // namespace
}  // namespace pride
