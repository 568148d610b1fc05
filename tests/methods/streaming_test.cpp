// Fragments and delays of the methods with local steps: against a scalar oracle; only options
// change bits; the common parameters while an exchange is in flight.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/local_steps_ref.h; the tensors of each fragment are written here.
#include <gtest/gtest.h>

#include "methods/streaming.h"
#include "pride/registry.h"
#include "reference/local_steps_ref.h"
#include "support/texts.h"

namespace pride::streaming_test {
namespace {

using namespace streaming;
using reference::Hyper;
using reference::LocalHyper;
using reference::LocalOracle;

// Fragments of kTensors, by tensor: their padded sizes are 832, 2048, 128, 512 and 64 of 3584.
const std::map<int, std::vector<int>> kFragments = {
    {1, {0, 0, 0, 0, 0}}, {2, {0, 1, 1, 1, 1}}, {3, {0, 1, 2, 2, 2}}, {4, {0, 2, 3, 3, 3}}};

struct Case {
  std::string method, rule;
  int h, fragments, delay;
};

class StreamingOracle : public ::testing::TestWithParam<Case> {};

TEST_P(StreamingOracle, AgreesBitForBitAfterEveryStep) {
  const auto& [method, rule, h, fragments, delay] = GetParam();
  const Layout layout(kTensors);
  for (const int world : {1, 3}) {
    Stream run{.world = world};
    run.options.method = method;
    run.options.options = {{"h", std::to_string(h)},
                           {"local", rule},
                           {"fragments", std::to_string(fragments)},
                           {"delay", std::to_string(delay)}};
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.125}};
    run.options.seed = 11;
    run.options.bucket_coords = 256;
    const auto ranks = train(run);
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const int f = kFragments.at(fragments)[t];
      LocalHyper hyper{
          .rule = rule,
          .h = h,
          .phase = (f + 1) * h / fragments - 1,
          .delay = delay,
          .local = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.125},
          .outer = {.lr = 1, .beta1 = 0.95, .beta2 = 0.98}};
      if (rule == "adamw") hyper.local.beta2 = 0.999;
      hyper.signs = method != "diloco";
      if (!hyper.signs) hyper.outer = Hyper{.lr = 0.7, .beta1 = 0.9, .nesterov = true};
      const char* outer = method == "local-vote" ? "dlion-vote" : method == "dsm" ? "lion" : "sgdm";
      const TensorSlot& slot = layout.tensors()[t];
      LocalOracle oracle(outer, world, testing::initial_of(layout, t), hyper, slot.offset, 11);
      for (int step = 0; step < run.steps; ++step) {
        std::vector<std::vector<float>> grads;
        std::vector<bool> missing;
        for (int r = 0; r < world; ++r) {
          missing.push_back(unused(r, step, t));
          auto& g = grads.emplace_back(slot.n);
          for (std::size_t i = 0; i < slot.n; ++i) g[i] = testing::gradient(r, step, t, i);
        }
        oracle.step(grads, missing);
        for (int r = 0; r < world; ++r) {
          const Trace& trace = ranks[static_cast<std::size_t>(r)];
          const auto part = [&](const std::vector<float>& x) {
            return std::vector(x.begin() + static_cast<std::ptrdiff_t>(slot.offset),
                               x.begin() + static_cast<std::ptrdiff_t>(slot.offset + slot.n));
          };
          const auto s = static_cast<std::size_t>(step);
          ASSERT_EQ(part(trace.common[s]), oracle.x()) << slot.spec.name << ", step " << step;
          ASSERT_EQ(part(trace.local[s]), oracle.local(r)) << slot.spec.name << ", step " << step;
        }
      }
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* method : {"local-vote", "dsm", "diloco"}) {
    for (const char* rule : {"lion", "adamw", "sgdm"}) {
      for (const auto& [h, fragments, delay] :
           {std::array{4, 1, 0}, {4, 1, 2}, {4, 2, 0}, {4, 2, 3}, {5, 3, 1}, {4, 4, 2}}) {
        cases.push_back({method, rule, h, fragments, delay});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, StreamingOracle, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return testing::test_name(concat(c.method, "_", c.rule, "_h", c.h, "_n",
                                                            c.fragments, "_k", c.delay));
                         });

TEST(Streaming, BucketsThreadsAndLooksChangeNoBit) {
  for (const auto& [method, options] : streams()) {
    SCOPED_TRACE(concat(method, " ", text_of(options)));
    Stream run = run_of(method, options);
    const auto want = train(run);
    for (const auto& [coords, threads] :
         {std::pair<std::size_t, int>{64, 0}, {64, 1}, {640, 3}, {1 << 20, 2}}) {
      run.options.bucket_coords = coords;
      run.options.overlap = threads > 0;
      run.options.exchange_threads = std::max(1, threads);
      for (const bool look : {false, true}) {
        run.look = look;
        const auto got = train(run);
        for (std::size_t r = 0; r < got.size(); ++r) {
          EXPECT_EQ(got[r].hash, want[0].hash) << "rank " << r << ", buckets of " << coords;
          ASSERT_EQ(got[r].local, want[r].local) << "rank " << r << ", buckets of " << coords;
          if (look) {
            ASSERT_EQ(got[r].common, want[0].common) << "rank " << r;
          }
        }
      }
    }
  }
}

TEST(Streaming, NodesChangeNoBit) {
  Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "2"}});
  run.world = 4;
  const auto want = train(run);
  run.options.nodes = Nodes::of_size(4, 2);
  run.options.overlap = true;
  run.options.bucket_coords = 640;
  EXPECT_EQ(train(run)[3].hash, want[0].hash);
}

TEST(Streaming, TheCommonParametersAreThoseOfAllExchangesThatWereBegun) {
  Stream run = run_of("local-vote", {{"h", "4"}, {"delay", "3"}});
  const auto ranks = train(run);
  for (std::size_t step = 0; step < ranks[0].common.size(); ++step) {
    SCOPED_TRACE(concat("step ", step));
    const bool same = step == 0 || ranks[0].common[step] == ranks[0].common[step - 1];
    EXPECT_EQ(same, step == 0 || step % 4 != 3);
    EXPECT_EQ(ranks[0].common[step], ranks[2].common[step]);
    EXPECT_NE(ranks[0].local[step], ranks[2].local[step]) << "a worker keeps what it has not sent";
  }
}

// A run continues to the same bits from a state of any step, also with an exchange in flight.
TEST(Streaming, IsSavedInTheMiddleOfAnyPhaseAndOfAnyDelay) {
  const Layout layout(kTensors);
  for (const auto& [method, options] : streams()) {
    for (const bool overlap : {false, true}) {
      Stream run = run_of(method, options);
      run.options.overlap = overlap;
      const auto want = train(run);
      for (int saved_at = 1; saved_at <= 8; ++saved_at) {
        run_world(run.world, [&](Communicator& comm) {
          FlatBuffer x = initial(layout);
          StateDict state;
          {
            Optimizer first(comm, layout, run.options);
            take(first, comm, x, run, 0, saved_at);
            state = first.save();
            first.to_common(x.span());
          }
          Optimizer second(comm, layout, run.options);
          second.load(state);
          second.to_local(x.span());
          take(second, comm, x, run, saved_at, run.steps);
          const auto r = static_cast<std::size_t>(comm.rank());
          EXPECT_TRUE(std::ranges::equal(x.span(), want[r].local.back()))
              << method << " " << text_of(options) << "saved after " << saved_at;
          second.to_common(x.span());
          EXPECT_EQ(param_hash(layout, x.span()), want[0].hash)
              << method << " " << text_of(options) << "saved after " << saved_at;
        });
      }
    }
  }
}

// An optimizer that loads while its exchanges are on their way forgets them.
TEST(Streaming, ALoadDiscardsWhatIsOnItsWay) {
  const Layout layout(kTensors);
  Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "2"}});
  run.options.overlap = true;
  const auto want = train(run);
  run_world(run.world, [&](Communicator& comm) {
    FlatBuffer x = initial(layout);
    Optimizer optimizer(comm, layout, run.options);
    take(optimizer, comm, x, run, 0, 3);
    const StateDict state = optimizer.save();
    take(optimizer, comm, x, run, 3, 8);
    optimizer.load(state);
    optimizer.to_common(x.span());
    optimizer.to_local(x.span());
    take(optimizer, comm, x, run, 3, run.steps);
    optimizer.to_common(x.span());
    EXPECT_EQ(param_hash(layout, x.span()), want[0].hash);
  });
}

TEST(Streaming, GoesOnWithAnotherNumberOfRanksInTheMiddleOfADelay) {
  const Layout layout(kTensors);
  for (const auto& [method, options] : streams()) {
    Stream run = run_of(method, options);
    std::vector<StateDict> states(3);
    std::uint64_t saved = 0;
    run_world(3, [&](Communicator& comm) {
      FlatBuffer x = initial(layout);
      Optimizer optimizer(comm, layout, run.options);
      take(optimizer, comm, x, run, 0, 5);
      states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
      optimizer.to_common(x.span());
      if (comm.rank() == 0) saved = param_hash(layout, x.span());
    });
    for (const int world : {2, 4}) {
      for (const LocalState local : {LocalState::kKeep, LocalState::kAverage, LocalState::kReset}) {
        Hashes hashes(static_cast<std::size_t>(world));
        run_world(world, [&](Communicator& comm) {
          FlatBuffer x(layout.flat_size());
          Optimizer optimizer(comm, layout, run.options);
          optimizer.load(states, local);
          optimizer.to_common(x.span());
          EXPECT_EQ(param_hash(layout, x.span()), saved) << method;
          optimizer.to_local(x.span());
          take(optimizer, comm, x, run, 5, 9);
          optimizer.to_common(x.span());
          hashes[static_cast<std::size_t>(comm.rank())] = param_hash(layout, x.span());
        });
        EXPECT_EQ(hashes, Hashes(hashes.size(), hashes[0])) << method;
        EXPECT_NE(hashes[0], saved) << method;
      }
    }
  }
}

TEST(Streaming, SendsItsCostAndTheMeanOverAPeriod) {
  const Layout layout(kTensors);
  for (const auto& [method, options] : streams()) {
    SCOPED_TRACE(concat(method, " ", text_of(options)));
    const std::int64_t h = std::stoll(options.at("h")), delay = std::stoll(options.at("delay"));
    for (const bool overlap : {false, true}) {
      Stream run = run_of(method, options);
      run.steps = static_cast<int>(3 * h + delay);
      run.options.overlap = overlap;
      run.look = false;
      const auto ranks = train(run);
      for (int r = 0; r < run.world; ++r) {
        std::uint64_t stated = 0, sent = 0;
        for (const StepReport& report : ranks[static_cast<std::size_t>(r)].reports) {
          const CostQuery query{
              .options = options, .world = 3, .rank = r, .step = report.step - delay};
          const std::uint64_t begun =
              report.step < delay ? 0 : method_cost(method, layout, query).bytes();
          EXPECT_EQ(report.bytes_sent, begun) << "step " << report.step;
          if (report.step >= delay + 2 * h) continue;
          stated += begun;
          sent += report.bytes_sent;
        }
        const Cost mean = method_cost(
            method, layout, {.options = options, .world = 3, .rank = r, .step = 1, .mean = true});
        EXPECT_EQ(stated, sent);
        EXPECT_NEAR(static_cast<double>(mean.bytes()), static_cast<double>(sent) / (2.0 * h), 2);
      }
    }
  }
}

TEST(Streaming, IsInTheBitsStateAndRoutesOfMethods) {
  const MethodInfo plain = method_info("local-vote", 4, {{"h", "8"}});
  const MethodInfo stream =
      method_info("local-vote", 4, {{"h", "8"}, {"fragments", "4"}, {"delay", "2"}});
  EXPECT_EQ(stream.period, 8);
  EXPECT_EQ(stream.bits_up, plain.bits_up);
  const Layout layout(kTensors);
  EXPECT_EQ(state_of("local-vote", layout, {{"h", "8"}, {"fragments", "4"}, {"delay", "2"}}).floats,
            state_of("local-vote", layout, {{"h", "8"}}).floats + 2);
  const CostQuery query{.options = {{"h", "8"}, {"fragments", "3"}}, .bucket_coords = 512};
  const auto routes = bucket_routes("diloco", Layout(kTensors), query);
  EXPECT_GT(routes.size(), 3u);
  for (const BucketRoute& route : routes) EXPECT_EQ(route.phases, 2) << route.name;
}

TEST(Streaming, RefusesWhatItCannotDo) {
  const auto refuses = [](const std::string& method, Options options, const std::string& text) {
    texts::expect_error<InvalidArgument>([&] { state_of(method, Layout(kTensors), options); },
                                         {text});
  };
  refuses("local-vote", {{"h", "4"}, {"fragments", "5"}}, "option fragments = '5'");
  refuses("local-vote", {{"h", "4"}, {"fragments", "0"}}, "option fragments = '0'");
  refuses("diloco", {{"h", "4"}, {"delay", "4"}}, "option delay = '4'");
  const Layout layout(kTensors);
  run_world(2, [&](Communicator& comm) {
    Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "2"}});
    Optimizer optimizer(comm, layout, run.options);
    FlatBuffer x = initial(layout);
    take(optimizer, comm, x, run, 0, 3);
    EXPECT_THROW(optimizer.add({{"more", {70}}}), InvalidArgument);
    StateDict state = optimizer.save();
    for (const char* text : {"home", "sent home home", "home lost", "dropped 0 5 home"}) {
      state.scalars["method.fragments"] = text;
      EXPECT_THROW(optimizer.load(state), InvalidArgument) << text;
    }
  });
}

}  // namespace
}  // namespace pride::streaming_test
