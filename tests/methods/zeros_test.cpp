// Zeros stay: with every method that sends signs, a coordinate without gradient stays within eight
// steps of its start, whenever and on whichever ranks its tensor is used; and a rank that alone has
// a gradient wins most votes.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the coordinate's start times the decay; the count over ranks in docs/wire_format.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>

#include "pride/optimizer.h"
#include "pride/run_worker.h"
#include "rules/orthogonalise.h"
#include "support/coordinator.h"
#include "support/training.h"

namespace pride::zeros_test {
namespace {

using Options = std::map<std::string, std::string>;

constexpr int kExchanges = 1000;
constexpr double kLr = 0.01, kWeightDecay = 0.01;
// In steps, of which a step in 1e4 undoes no decay.
constexpr double kMost = 8.02, kMostInTurn = 12;

const Layout& layout() {
  static const Layout all({{"rows", {5, 16}}, {"b", {70}}, {"still", {9}}});
  return all;
}

// A row of the first tensor, some coordinates of the second, the whole third.
bool is_zero(std::size_t tensor, std::size_t i) {
  return tensor == 2 || (tensor == 0 ? i / 16 == 2 : i % 9 == 4);
}

float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t i) {
  if (is_zero(tensor, i)) return (static_cast<std::size_t>(rank) + i) % 2 == 0 ? 0.0f : -0.0f;
  const float g = testing::gradient(rank, step, tensor, i);
  return g == 0 ? 0.25f : g;
}

struct Case {
  std::string method;
  Options options = {};
  int world = 1;
  std::vector<int> weights = {};
  int per_node = 0;
  std::size_t bucket_coords = std::size_t{1} << 20;
};

std::string text_of(const Case& run) {
  std::string text = concat(run.method, " on ", run.world);
  for (const auto& [name, value] : run.options) text += concat(" ", name, "=", value);
  for (const int weight : run.weights) text += concat(" weight=", weight);
  return text + (run.per_node > 0 ? concat(" per_node=", run.per_node) : "");
}

OptimizerOptions options_of(const Case& run, int rank) {
  OptimizerOptions options;
  options.method = run.method;
  options.options = run.options;
  options.groups = {{.lr = kLr, .weight_decay = kWeightDecay}};
  options.bucket_coords = run.bucket_coords;
  options.seed = 29;
  if (run.per_node > 0) options.nodes = Nodes::of_size(run.world, run.per_node);
  if (!run.weights.empty()) options.vote_weight = run.weights[static_cast<std::size_t>(rank)];
  return options;
}

std::int64_t period_of(const Case& run) {
  const auto h = run.options.find("h");
  return h == run.options.end() ? 1 : std::stoll(h->second);
}

// The furthest, in steps of kLr, that a zero coordinate was from its beginning (times the decay)
// after an exchange, and the furthest that it went in one.
struct Walk {
  double furthest = 0, longest = 0;
};

// One worker. The gradients of a few steps are made before, and repeated.
template <typename Door>
Walk walk(Door& optimizer, int rank, const OptimizerOptions& options, std::int64_t period) {
  constexpr std::size_t kRepeat = 7;
  FlatBuffer x(layout().flat_size());
  testing::fill(layout(), x, testing::initial);
  if constexpr (std::is_same_v<Door, RunWorker>) optimizer.join(x.span());
  std::vector<FlatBuffer> grads;
  for (std::size_t s = 0; s < kRepeat; ++s) {
    testing::fill(layout(), grads.emplace_back(layout().flat_size()), [&](auto t, auto i) {
      return gradient(rank, static_cast<std::int64_t>(s), t, i);
    });
  }
  struct Zero {
    std::size_t at;
    double kept, before;
  };
  std::vector<Zero> zeros;
  for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
    const TensorSlot& slot = layout().tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i) {
      const double start = testing::initial(t, i);
      if (is_zero(t, i)) zeros.push_back({slot.offset + i, start, start});
    }
  }
  // signs decay by their own step, means by those of the period
  const bool means = options.method == "local-ef";
  const double decay = std::pow(1 - kLr * kWeightDecay, means ? period : 1);
  Walk result;
  for (std::int64_t step = 0; step < kExchanges * period; ++step) {
    optimizer.step(x.span(), grads[static_cast<std::size_t>(step) % kRepeat].span());
    if ((step + 1) % period != 0) continue;
    for (Zero& zero : zeros) {
      const double now = x.span()[zero.at];
      zero.kept *= decay;
      result.furthest = std::max(result.furthest, std::abs(now - zero.kept) / kLr);
      result.longest = std::max(result.longest, std::abs(now - zero.before) / kLr);
      zero.before = now;
    }
  }
  return result;
}

Walk walk(const Case& run) {
  Walk result;
  run_world(run.world, [&](Communicator& comm) {
    const OptimizerOptions options = options_of(run, comm.rank());
    Optimizer optimizer(comm, layout(), options);
    const Walk mine = walk(optimizer, comm.rank(), options, period_of(run));
    if (comm.rank() == 0) result = mine;
  });
  return result;
}

// The same with a coordinator instead of ranks.
Walk walk_by_coordinator(const Case& run) {
  testing::TestCoordinator coordinator(layout(), options_of(run, 0));
  coordinator.voters = run.world;
  Walk result;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < run.world; ++rank) {
    threads.emplace_back([&, rank] {
      const OptimizerOptions options = options_of(run, rank);
      RunWorker worker(coordinator.client(rank), layout(), options);
      const Walk mine = walk(worker, rank, options, period_of(run));
      if (rank == 0) result = mine;
    });
  }
  threads.clear();
  return result;
}

void expect_to_stay(const Walk& result, const Case& run) {
  EXPECT_LE(result.furthest, kMost) << text_of(run);
}

constexpr int kWorlds[] = {1, 2, 3, 4, 8};

// Methods whose zeros are votes or levels, with the options that decide how.
const std::vector<std::pair<std::string, Options>> kSigns = {
    {"dlion-vote", {}},
    {"dlion-vote", {{"tie", "zero"}}},
    {"dlion-avg", {}},
    {"dlion-avg", {{"counts", "planes"}}},
    {"signum-vote", {}},
    {"signum-avg", {}},
    {"lion-cub", {}},
    {"lion-cub", {{"bits", "1"}}},
    {"lion-cub", {{"bits", "3"}, {"tie", "zero"}, {"rounding", "stochastic"}}},
    {"lion-cub", {{"granularity", "block"}, {"shared", "no"}, {"feedback", "yes"}}},
    {"dlion-muon", {}},
    {"dlion-muon", {{"every", "3"}}},
    {"dlion-muon-avg", {}},
};

bool is_known(const std::string& method) {
  return rules::has_blas() || method.find("muon") == std::string::npos;
}

// By every method that sends signs.
void expect_to_stay_on(int world) {
  for (const auto& [method, options] : kSigns) {
    if (!is_known(method)) continue;
    Case run{method, options, world};
    run.options["route"] = "sharded";
    expect_to_stay(walk(run), run);
  }
}

TEST(Zeros, StayAlone) { expect_to_stay_on(1); }
TEST(Zeros, StayOnTwoRanks) { expect_to_stay_on(2); }
TEST(Zeros, StayOnThreeRanks) { expect_to_stay_on(3); }
TEST(Zeros, StayOnFourRanks) { expect_to_stay_on(4); }
TEST(Zeros, StayOnEightRanks) { expect_to_stay_on(8); }

TEST(Zeros, StayOnEveryRoute) {
  for (const char* method : {"dlion-vote", "dlion-avg", "signum-vote", "signum-avg"}) {
    for (const std::size_t bucket : {64, 1000}) {
      const Case run{method, {{"route", "one-shot"}}, 3, {}, 0, bucket};
      expect_to_stay(walk(run), run);
    }
    for (const auto& [world, per_node] : {std::pair(4, 2), {8, 2}, {8, 4}}) {
      const Case run{method, {}, world, {}, per_node};
      expect_to_stay(walk(run), run);
    }
  }
  const Case native{"lion-cub", {{"route", "native"}}, 4};
  expect_to_stay(walk(native), native);
}

TEST(Zeros, StayWithWeights) {
  for (const char* method : {"dlion-vote", "dlion-avg"}) {
    for (const std::vector<int>& weights :
         std::vector<std::vector<int>>{{2, 1}, {2, 1, 1}, {1, 7, 3, 2}}) {
      for (const char* tie : {"hash", "zero"}) {
        Case run{method, {}, static_cast<int>(weights.size()), weights};
        if (run.method == "dlion-vote") run.options["tie"] = tie;
        expect_to_stay(walk(run), run);
      }
    }
  }
}

const std::vector<std::pair<std::string, Options>> kLocal = {
    {"local-vote", {}},
    {"local-vote", {{"tie", "zero"}}},
    {"local-vote", {{"local", "sgdm"}}},
    {"local-muon", {}},
};

TEST(Zeros, StayWithLocalSteps) {
  for (const auto& [method, options] : kLocal) {
    if (!is_known(method)) continue;
    for (const char* h : {"1", "2", "5"}) {
      for (const int world : {1, 3, 4}) {
        Case run{method, options, world};
        run.options["h"] = h;
        expect_to_stay(walk(run), run);
      }
    }
  }
}

// The exchange of a fragment is one of a period, and with a delay its result comes in the next.
TEST(Zeros, StayInFragmentsWithADelay) {
  for (const char* delay : {"0", "1"}) {
    const Case run{"local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", delay}}, 3};
    expect_to_stay(walk(run), run);
  }
}

TEST(Zeros, StayThroughACoordinator) {
  for (const auto& [method, options] : std::vector<std::pair<std::string, Options>>{
           {"dlion-vote", {}},
           {"dlion-vote", {{"tie", "zero"}}},
           {"dlion-avg", {}},
           {"lion-cub", {{"granularity", "block"}, {"shared", "no"}, {"sync", "none"}}},
           {"local-vote", {{"h", "2"}}}}) {
    for (const int world : {1, 2, 3, 4, 8}) {
      const Case run{method, options, world};
      expect_to_stay(walk_by_coordinator(run), run);
    }
  }
}

// Error feedback remembers the step that it took for a zero, and pays it back. Then the coordinate
// is no zero any more: it is as far away as worker and server still owe, about a step of its block.
TEST(Zeros, WithErrorFeedbackStayWithinTheError) {
  for (const auto& [method, options] :
       std::vector<std::pair<std::string, Options>>{{"signsgd-ef", {}},
                                                    {"signsgd-ef", {{"momentum", "0.9"}}},
                                                    {"local-ef", {{"h", "1"}}},
                                                    {"local-ef", {{"h", "5"}}}}) {
    for (const int world : kWorlds) {
      const Case run{method, options, world};
      const Walk result = walk(run);
      EXPECT_LE(result.furthest, 1.5 * result.longest) << text_of(run);
      EXPECT_GT(result.longest, 0.1) << text_of(run);
    }
  }
}

// What an exchange moved without a drift is paid back by the next ones.
TEST(Zeros, StayWithDriftFeedback) {
  for (const int world : {1, 2, 3, 4}) {
    const Case run{"local-vote", {{"h", "2"}, {"drift_feedback", "0.9"}}, world};
    expect_to_stay(walk(run), run);
  }
}

// Their second moment is 0, and they do not move at all: rounding is all there is.
TEST(Zeros, DoNotMoveByOneBitAdam) {
  for (const int world : {1, 3, 4}) {
    const Case run{"onebit-adam", {{"freeze_steps", "20"}}, world};
    EXPECT_LE(walk(run).furthest, 0.01) << text_of(run);
  }
}

// --- Tensors that are used now and then. --------------------------------------------------------

struct Use {
  const char* text;
  bool (*used)(int rank, int world, int step);
  double (*rate)(int step) = [](int) { return 1.0; };
};

const std::vector<Use> kUses = {
    {"every second step", [](int, int, int t) { return t % 2 == 0; }},
    {"every third step", [](int, int, int t) { return t % 3 == 0; }},
    {"every fourth step", [](int, int, int t) { return t % 4 == 0; }},
    {"all but every third step", [](int, int, int t) { return t % 3 != 0; }},
    {"three steps on, three off", [](int, int, int t) { return t / 3 % 2 == 0; }},
    {"ten steps on, ten off", [](int, int, int t) { return t / 10 % 2 == 0; }},
    {"rates in turn", [](int, int, int) { return true; },
     [](int t) { return t % 2 == 0 ? 1 : 0.1; }},
    {"ranks in turn", [](int r, int n, int t) { return t % n == r; }},
    {"ranks in turn, two steps each", [](int r, int n, int t) { return t / 2 % n == r; }},
    {"ranks in turn, four steps each", [](int r, int n, int t) { return t / 4 % n == r; }},
    {"one rank", [](int r, int, int) { return r == 0; }},
    {"the last rank, every second step",
     [](int r, int n, int t) { return r == n - 1 && t % 2 == 1; }},
    {"half of the ranks in turn", [](int r, int n, int t) { return (2 * r < n) == (t % 2 == 0); }},
};

// An odd number of ranks that take turns of the length in which bits change goes in one direction:
// docs/methods/votes.md names these patterns.
bool is_excepted(const Use& use, int world) {
  return use.text == std::string_view("ranks in turn, two steps each") && world % 2 == 1 &&
         world > 1;
}

// The furthest that a tensor of zeros went from its start, in steps of the largest rate.
double furthest(const Use& use, const std::string& method, int world, double lr) {
  constexpr std::size_t kCoords = 512;
  constexpr int kSteps = 120;
  double most = 0;
  run_world(world, [&](Communicator& comm) {
    OptimizerOptions options = options_of({method, {}, world}, comm.rank());
    Optimizer optimizer(comm, Layout({{"w", {kCoords}}, {"b", {3}}}), options);
    FlatBuffer x(optimizer.layout().flat_size()), g(x.size());
    testing::fill(optimizer.layout(), x, testing::initial);
    const std::vector<float> start(x.span().begin(), x.span().begin() + kCoords);
    for (int t = 0; t < kSteps; ++t) {
      const bool unused[] = {!use.used(comm.rank(), world, t), false};
      optimizer.set_group({.lr = lr * use.rate(t), .weight_decay = 0});
      optimizer.step(x.span(), g.span(), unused);
      for (std::size_t i = 0; i < kCoords && comm.rank() == 0; ++i) {
        most = std::max(most, std::abs(static_cast<double>(x.span()[i]) - start[i]) / lr);
      }
    }
  });
  return most;
}

TEST(Zeros, StayHoweverTheirTensorIsUsed) {
  for (const Use& use : kUses) {
    for (const int world : {1, 2, 3, 8}) {
      if (is_excepted(use, world)) continue;
      for (const double lr : {1e-3, 0x1p-10}) {
        if (world == 8 && lr != 1e-3) continue;  // threads take their time under sanitizers
        EXPECT_LE(furthest(use, "dlion-vote", world, lr), kMostInTurn)
            << use.text << ", " << world << ", " << lr;
      }
    }
    for (const char* method : {"dlion-avg", "lion-cub"}) {
      EXPECT_LE(furthest(use, method, 2, 1e-3), kMostInTurn) << use.text << ", " << method;
    }
  }
}

// Row r of eight is touched by rank r alone: it wins if the zeros of the others do not outvote it,
// and in some of the ties.
TEST(Zeros, LetARankThatIsAloneWinThreeVotesInFour) {
  constexpr int kWorld = 8, kSteps = 200;
  constexpr std::size_t kCols = 64;
  for (const int per_node : {0, 4}) {
    double won = 0;
    run_world(kWorld, [&](Communicator& comm) {
      auto options = options_of({"dlion-vote", {}, kWorld, {}, per_node}, comm.rank());
      options.groups = {{.lr = 1}};
      Optimizer optimizer(comm, Layout({{"rows", {kWorld, kCols}}}), options);
      FlatBuffer x(kWorld * kCols), g(kWorld * kCols);
      const auto mine = g.span().subspan(static_cast<std::size_t>(comm.rank()) * kCols, kCols);
      for (std::size_t i = 0; i < kCols; ++i) mine[i] = i % 2 == 0 ? 1.0f : -1.0f;
      for (int step = 0; step < kSteps; ++step) optimizer.step(x.span(), g.span());
      // after n wins and kSteps - n losses x is at 2n - kSteps, against the gradient
      for (std::size_t i = 0; i < x.size() && comm.rank() == 0; ++i) {
        const double down = i % 2 == 0 ? -x.span()[i] : x.span()[i];
        won += (kSteps + down) / 2 / (kSteps * static_cast<double>(x.size()));
      }
    });
    EXPECT_TRUE(won >= 0.74 && won <= 0.85) << won << ", " << per_node;
  }
}

}  // namespace
}  // namespace pride::zeros_test
