// The model of a step's time. Oracle: sums by hand, and invariants.
// SPDX-License-Identifier: Apache-2.0
#include "pride/plan.h"

#include <gtest/gtest.h>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "rules/orthogonalise.h"

namespace pride::app {
namespace {

const NetworkModel kNetwork{.latency_s = 1e-3, .message_s = 1e-4, .bytes_per_s = 1e6};
const MethodModel kMethod{
    .name = "m", .bytes = 1e5, .phases = 2, .encode_s = 0.01, .vote_s = 0.02, .apply_s = 0.03};
const StepModel kStep{.world = 4, .compute_s = 0.5, .buckets = 5};

TEST(Predict, InOrderIsTheSumOfItsParts) {
  // 5 buckets of 2 phases of a latency and 2 further messages; 0.1 s of bytes
  const Prediction p = predict(kNetwork, kMethod, kStep, false);
  EXPECT_NEAR(p.network_s, 5 * 2 * (1e-3 + 2 * 1e-4) + 0.1, 1e-12);
  EXPECT_NEAR(p.arithmetic_s, 0.06, 1e-12);
  EXPECT_NEAR(p.step_s, 0.5 + 0.06 + p.network_s, 1e-12);
  EXPECT_EQ(p.hidden_s, 0);
  EXPECT_EQ(p.bottleneck, "compute");
}

TEST(Predict, OverlapHidesTheExchangeButTheLastBucketsAndIsNeverSlower) {
  const double in_order = predict(kNetwork, kMethod, kStep, false).step_s;
  const Prediction p = predict(kNetwork, kMethod, kStep, true);
  EXPECT_LT(p.step_s, in_order);
  EXPECT_GT(p.step_s, kStep.compute_s + kMethod.encode_s);
  // compute is long: the visible rest is the last bucket's bytes, vote, apply and latency
  const double last = (0.1 + 0.02 + 0.03) / 5 + 2 * (1e-3 + 2 * 1e-4);
  EXPECT_NEAR(p.step_s, 0.5 + 0.01 + last, 1e-12);
  EXPECT_NEAR(p.hidden_s, in_order - p.step_s, 1e-12);
}

TEST(Predict, ASlowNetworkDecidesTheStep) {
  NetworkModel slow = kNetwork;
  slow.bytes_per_s = 1e4;  // 10 s of bytes
  const Prediction p = predict(slow, kMethod, kStep, true);
  EXPECT_GE(p.step_s, 10);
  EXPECT_LT(p.step_s, 10.5);
  EXPECT_EQ(p.bottleneck, "bandwidth");
  MethodModel dense = kMethod;
  dense.bytes *= 32;
  EXPECT_GT(predict(slow, dense, kStep, true).step_s / p.step_s, 28);
}

TEST(Predict, LatencyIsTheBottleneckOfManyBuckets) {
  StepModel many = kStep;
  many.buckets = 5000;
  EXPECT_EQ(predict(kNetwork, kMethod, many, true).bottleneck, "latency");
}

TEST(Predict, WholeGradientsAreExchangedAfterBackward) {
  MethodModel whole = kMethod;
  whole.whole_gradient = true;
  EXPECT_GE(predict(kNetwork, whole, kStep, true).step_s, 0.5 + 0.1);
}

// of 10 steps one sends 1e5 bytes, which take 0.1 s
MethodModel local_steps(std::int64_t exchanges, std::int64_t delay) {
  MethodModel method = kMethod;
  method.bytes = 1e4;
  method.period = 10;
  method.exchanges = exchanges;
  method.delay = delay;
  method.local_s = 0.004;
  return method;
}

TEST(Predict, LocalStepsInOrderAreTheMeanOfTheirPeriod) {
  const double exchange = predict(kNetwork, kMethod, kStep, false).step_s, plain = 0.5 + 0.004;
  const Prediction p = predict(kNetwork, local_steps(1, 0), kStep, false);
  EXPECT_NEAR(p.step_s, (exchange + 9 * plain) / 10, 1e-12);
  EXPECT_NEAR(p.network_s, (0.1 + 5 * 2 * (1e-3 + 2 * 1e-4)) / 10, 1e-12);
  EXPECT_NEAR(p.arithmetic_s, (0.06 + 9 * 0.004) / 10, 1e-12);
  EXPECT_EQ(p.hidden_s, 0);
  EXPECT_EQ(predict(kNetwork, local_steps(1, 5), kStep, false).step_s, p.step_s)
      << "nothing is hidden in order";
}

TEST(Predict, AnExchangeOfLocalStepsHidesBehindTheStepsOfItsDelay) {
  NetworkModel slow = kNetwork;
  slow.bytes_per_s = 1e4;  // an exchange takes 10 s, a period of local steps 5.04
  const auto step_s = [&](std::int64_t delay) {
    return predict(slow, local_steps(1, delay), kStep, true).step_s;
  };
  const double plain =
      predict(slow, {.name = "plain", .phases = 0, .encode_s = 0.004}, kStep, true).step_s;
  EXPECT_NEAR(step_s(0) - step_s(4), 4 * plain / 10, 1e-9);
  EXPECT_GE(step_s(9), 10.0 / 10) << "the link is busy all the time";
  slow.bytes_per_s = 1e5;  // 1 s
  EXPECT_NEAR(step_s(4), plain + (0.01 + 0.03 - 0.004) / 10, 1e-9) << "encode and apply remain";
  EXPECT_LT(step_s(4), step_s(0));
}

TEST(Predict, FragmentsSendTheSameBytesInMoreSteps) {
  const Prediction one = predict(kNetwork, local_steps(1, 0), kStep, false);
  const Prediction five = predict(kNetwork, local_steps(5, 0), kStep, false);
  EXPECT_NEAR(five.network_s, one.network_s, 1e-12) << "a bucket each";
  EXPECT_NEAR(five.step_s, one.step_s, 0.01);
}

TEST(Predict, ProcessorTimeOfTheTransportCountsWhereCoresAreShared) {
  NetworkModel network = kNetwork;
  network.cpu_s = 0.4 / kMethod.bytes;
  StepModel step = kStep;
  step.cores = 0.5;
  const double without = predict(kNetwork, kMethod, step, true).step_s;
  const double in_order = predict(network, kMethod, step, false).step_s;
  EXPECT_NEAR(in_order, predict(kNetwork, kMethod, step, false).step_s, 1e-12)
      << "in the goodput, which is measured with it";
  EXPECT_GT(predict(network, kMethod, step, true).step_s, without);
  EXPECT_LE(predict(network, kMethod, step, true).step_s, in_order);
  step.cores = 2;
  EXPECT_EQ(predict(network, kMethod, step, true).step_s,
            predict(kNetwork, kMethod, step, true).step_s);
}

TEST(Predict, OneRankNeedsNoNetwork) {
  StepModel alone = kStep;
  alone.world = 1;
  const Prediction p = predict({}, kMethod, alone, false);
  EXPECT_NEAR(p.step_s, 0.56, 1e-12);
  EXPECT_EQ(p.network_s, 0);
  EXPECT_THROW(predict({}, kMethod, kStep, false), InvalidArgument);
}

TEST(TransformerLayout, OfFewParametersIsOneNarrowBlock) {
  EXPECT_EQ(transformer_layout(1).tensors()[0].spec.shape, (std::vector<std::int64_t>{3, 1}));
  for (const double params : {100, 1000, 20000, 49152}) {
    const Layout layout = transformer_layout(params);
    EXPECT_EQ(layout.tensors().size(), 4u) << params;
    EXPECT_NEAR(static_cast<double>(layout.n_coords()), params, params / 6);
  }
}

TEST(Plan, MeasuresNewtonSchulzOnce) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const auto world = make_thread_world(1);
  PlanFacts facts{.world = 4, .network = kNetwork, .params = 1e5, .compute_s = 0.1};
  const PlanRow vote = plan_step(*world.front(), {"dlion-vote"}, facts);
  EXPECT_EQ(facts.matrix_speed, 0) << "it has none";
  EXPECT_EQ(vote.method.matrix_s, 0);
  plan_step(*world.front(), {"dlion-muon"}, facts);
  EXPECT_GT(facts.matrix_speed, 0);
  facts.matrix_speed = 1e6;
  const PlanRow muon = plan_step(*world.front(), {"muon"}, facts);
  EXPECT_EQ(facts.matrix_speed, 1e6);
  EXPECT_EQ(muon.method.matrix_s,
            matrix_operations("muon", transformer_layout(1e5), {.world = 4}) / 1e6);
  EXPECT_GE(muon.in_order.arithmetic_s, muon.method.matrix_s);
  EXPECT_LT(muon.no_network_s, muon.best_s());
}

TEST(Plan, KnowsFragmentsAndDelaysOfLocalSteps) {
  const auto world = make_thread_world(1);
  PlanFacts facts{.world = 4, .network = kNetwork, .params = 1e5, .compute_s = 0.1};
  const PlanMethod streamed = {"local-vote", {{"h", "8"}, {"fragments", "2"}, {"delay", "3"}}};
  const PlanRow row = plan_step(*world.front(), streamed, facts);
  EXPECT_EQ(row.method.period, 8);
  EXPECT_EQ(row.method.exchanges, 2);
  EXPECT_EQ(row.method.delay, 3);
  EXPECT_GT(row.method.local_s, 0);
  const PlanRow vote = plan_step(*world.front(), {"dlion-vote"}, facts);
  EXPECT_EQ(vote.method.period, 1);
  EXPECT_NEAR(row.method.bytes, vote.method.bytes / 8, 0.1 * vote.method.bytes / 8);
}

// The oracle is a plan for each section alone.
TEST(Plan, OfGroupsIsTheSumOfTheirSections) {
  const Layout model({{"a", {1000, 100}, 0}, {"b", {500}, 1}, {"c", {30, 1000}, 2}, {"d", {7}, 0}});
  const PlanMethod both = {"dlion-vote", {}, {{}, {}, {.method = "adamw"}}};
  const auto sections = sections_of(both, model, 4);
  ASSERT_EQ(sections.size(), 2U);
  EXPECT_EQ(sections[0].method.name, "dlion-vote");
  EXPECT_EQ(sections[0].tensors.n_coords(), 100'507U);
  EXPECT_EQ(sections[1].method.name, "adamw");
  EXPECT_EQ(sections[1].tensors.tensors()[0].spec.name, "c");
  const auto world = make_thread_world(1);
  PlanFacts facts{.world = 4, .network = kNetwork, .tensors = model, .compute_s = 0.1};
  facts.params = static_cast<double>(model.n_coords());
  const PlanRow row = plan_step(*world.front(), both, facts);
  EXPECT_EQ(row.buckets, 1);
  EXPECT_FALSE(row.dense);
  EXPECT_EQ(row.method.name, "dlion-vote");
  const double votes = bytes_of(sections[0].method, 4, 100'507, 1 << 20),
               gradients = bytes_of({"adamw"}, 4, 30'000, 1 << 20);
  EXPECT_EQ(row.method.bytes, votes + gradients);
  EXPECT_EQ(row.route, "sharded");
  const auto adamw = plan_step(*world.front(), {"adamw", {}, {{}, {.method = "lion"}, {}}}, facts);
  EXPECT_TRUE(adamw.dense);
  const PlanMethod unlike = {"dlion-vote", {}, {{}, {}, {.method = "local-vote"}}};
  EXPECT_THROW(plan_step(*world.front(), unlike, facts), InvalidArgument);
  facts.tensors = Layout({});
  EXPECT_THROW(plan_step(*world.front(), both, facts), InvalidArgument);
}

TEST(Plan, SectionsHaveTheSameMethodWithTheSameOptions) {
  const Layout model({{"a", {8}, 0}, {"b", {0}, 1}, {"c", {8}, 2}, {"d", {8}, 3}});
  const PlanMethod method = {"lion",
                             {},
                             {{.lr = 1},
                              {.method = "adamw"},
                              {.method = "lion", .options = {{"momentum_dtype", "float32"}}},
                              {.method = "lion", .options = {{"momentum_dtype", "bfloat16"}}}}};
  const auto sections = sections_of(method, model, 4);
  ASSERT_EQ(sections.size(), 2U) << "the default is no other option; no values, no section";
  EXPECT_EQ(sections[0].tensors.tensors().size(), 2U);
  EXPECT_EQ(sections[1].tensors.tensors()[0].spec.name, "d");
}

// By hand: the gradient and Lion's momentum are read, the momentum is written; bits go to the host
// and come back; the parameter is read and written.
TEST(OnDevice, ArithmeticIsWhatItsBytesTake) {
  const DeviceModel gpu{.bytes_per_s = 1e9, .host_bytes_per_s = 1e7, .operations_per_s = 1e6};
  const auto at = [&](const PlanMethod& method, double operations = 0) {
    const MethodInfo info = method_info(method.name, 4, method.options);
    return on_device(gpu, {.name = "m", .vote_s = 7, .period = info.period}, method, 4, 1e6,
                     operations);
  };
  const MethodModel vote = at({"dlion-vote"});
  EXPECT_NEAR(vote.encode_s, 1e6 * (12 / 1e9 + 1 / 8.0 / 1e7), 1e-12);
  EXPECT_NEAR(vote.apply_s, 1e6 * (8 / 1e9 + 1 / 8.0 / 1e7), 1e-12);
  EXPECT_EQ(vote.vote_s, 7) << "on the host";
  EXPECT_EQ(vote.matrix_s, 0);
  // no host: a library adds up on the GPU
  for (const PlanMethod& dense : {PlanMethod{"adamw"}, {"adamw", {{"dense", "bf16"}}}}) {
    const MethodModel adamw = at(dense);
    EXPECT_EQ(adamw.encode_s, 0);
    EXPECT_NEAR(adamw.vote_s, 1e6 * 8 / 1e9, 1e-12);
    EXPECT_NEAR(adamw.apply_s, 1e6 * 28 / 1e9, 1e-12);
  }
  const MethodModel local = at({"local-vote", {{"h", "8"}}});
  EXPECT_NEAR(local.encode_s - local.local_s, 1e6 * (1 / 8.0 / 1e7 - 8 / 1e9), 1e-12)
      << "a step without exchange has no bits, and the parameter at once";
  const MethodModel narrow = at({"dlion-vote", {{"momentum_dtype", "bfloat16"}}});
  EXPECT_NEAR(vote.encode_s - narrow.encode_s, 1e6 * 4 / 1e9, 1e-12) << "2 read and 2 written";
  const MethodModel ternary = at({"dlion-vote", {{"tie", "zero"}}});
  EXPECT_NEAR(ternary.apply_s - vote.apply_s, 1e6 * (1 / 8.0 / 1e7), 1e-12);
  // the server's error is the host's
  const MethodModel ef = at({"signsgd-ef"});
  EXPECT_NEAR(ef.encode_s, 1e6 * (20 / 1e9 + (1 + 32 / 4096.0) / 8 / 1e7), 1e-12);
  if (!rules::has_blas()) GTEST_SKIP() << "no CBLAS, and no method of matrices";
  EXPECT_NEAR(at({"dlion-muon"}, 5e6).matrix_s, 5, 1e-12);
  // the host packs its turn out of all signs, and unpacks votes that may be 0
  const MethodModel turn = at({"turn-muon"});
  EXPECT_NEAR(turn.encode_s, vote.encode_s, 1e-12);
  EXPECT_NEAR(turn.apply_s, ternary.apply_s, 1e-12);
}

TEST(OnDevice, MethodsOfTheHostCopyGradientsAndParameters) {
  const DeviceModel gpu{.bytes_per_s = 1e9, .host_bytes_per_s = 1e7};
  const MethodModel host{.name = "m", .encode_s = 3, .apply_s = 2};
  for (const PlanMethod& method : {PlanMethod{"dgc"}, {"lion-cub", {{"scale", "l0"}}}}) {
    const MethodModel model = on_device(gpu, host, method, 4, 1e6, 0);
    EXPECT_NEAR(model.encode_s, 3 + 0.4, 1e-12) << method.name;
    EXPECT_NEAR(model.apply_s, 2 + 0.4, 1e-12) << method.name;
  }
}

TEST(OnDevice, NeedsAllRates) {
  const auto model = [](const DeviceModel& device, double operations) {
    on_device(device, {.name = "m"}, {"dlion-vote"}, 4, 1e6, operations);
  };
  EXPECT_THROW(model({.bytes_per_s = 1}, 0), InvalidArgument);
  EXPECT_THROW(model({.bytes_per_s = 1, .host_bytes_per_s = 1}, 1), InvalidArgument);
  model({.bytes_per_s = 1, .host_bytes_per_s = 1}, 0);
}

TEST(Plan, OfADeviceHasItsTimesAndTheHostsVote) {
  const auto world = make_thread_world(1);
  PlanFacts facts{.world = 4, .network = kNetwork, .params = 1e5, .compute_s = 0.1};
  facts.device = {.bytes_per_s = 1e6, .host_bytes_per_s = 1e6};
  const PlanRow row = plan_step(*world.front(), {"dlion-vote"}, facts);
  const MethodModel wanted = on_device(facts.device, {}, {"dlion-vote"}, 4, 1e5, 0);
  EXPECT_EQ(row.method.encode_s, wanted.encode_s);
  EXPECT_EQ(row.method.apply_s, wanted.apply_s);
  EXPECT_GT(row.method.vote_s, 0);
  NetworkModel slower = kNetwork;
  slower.bytes_per_s /= 100;
  EXPECT_EQ(step_on(kNetwork, facts, row), row.best_s());
  EXPECT_GT(step_on(slower, facts, row), row.best_s());
}

TEST(TransformerLayout, HasBlocksOfMatricesOfAboutSoManyParameters) {
  for (const double params : {5e4, 1e5, 1e6, 1.24e8, 7e9}) {
    const Layout layout = transformer_layout(params);
    EXPECT_NEAR(static_cast<double>(layout.n_coords()), params, params / 4);
    const auto width = layout.tensors()[1].spec.shape[0];
    EXPECT_EQ(width % 64, 0) << params;
    const std::vector<std::vector<std::int64_t>> block = {
        {3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}};
    EXPECT_EQ(layout.tensors().size() % 4, 0u);
    for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
      EXPECT_EQ(layout.tensors()[i].spec.shape, block[i % 4]) << params << ": " << i;
    }
  }
}

TEST(Predict, BestBucketsIsBetterThanOneAndThanVeryMany) {
  StepModel step = kStep;
  NetworkModel network = kNetwork;
  network.bytes_per_s = 2e5;
  const auto bytes = [](int) { return Sent{kMethod.bytes, kMethod.phases}; };
  const int best = best_buckets(network, kMethod, step, {1, 4096}, bytes);
  const auto seconds = [&](int buckets) {
    step.buckets = buckets;
    return predict(network, kMethod, step, true).step_s;
  };
  EXPECT_GT(best, 1);
  EXPECT_LT(best, 4096);
  EXPECT_LT(seconds(best), seconds(1));
  EXPECT_LT(seconds(best), seconds(4096));
  EXPECT_EQ(best_buckets(network, kMethod, step, {1, 1}, bytes), 1);
  EXPECT_EQ(best_buckets(network, kMethod, step, {4 * best - 1, 4096}, bytes), 4 * best)
      << "buckets may not be larger";
  EXPECT_THROW(best_buckets(network, kMethod, step, {5, 7}, bytes), InvalidArgument);
  const auto frames = [](int n) { return Sent{kMethod.bytes * (1 + n), kMethod.phases}; };
  EXPECT_LT(best_buckets(network, kMethod, step, {1, 4096}, frames), best)
      << "frames are bytes too";
  const auto one_phase = [](int) { return Sent{kMethod.bytes, 1}; };
  EXPECT_GE(best_buckets(network, kMethod, step, {1, 4096}, one_phase), best)
      << "latencies are halved";
}

}  // namespace
}  // namespace pride::app
