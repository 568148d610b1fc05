// Workers of a coordinator whose groups name methods of their own. Oracle: ranks with the same
// groups.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>

#include "optimizer/central_workers.h"
#include "optimizer/sections_run.h"

namespace pride::sections_test {
namespace {

using testing::at_once;
using testing::TestCoordinator;

// Pairs without ties, whose bits depend on the parameters, which a coordinator lacks.
std::vector<Pair> served() {
  std::vector<Pair> all = {pair("dlion-vote:tie=zero", "adamw"), pair("signum-avg", "dlion-avg"),
                           pair("adamw:dense=bf16", "sgdm"),
                           pair("local-vote:h=2,tie=zero", "diloco:h=2")};
  if (rules::has_blas()) all.push_back(pair("adamw", "dlion-muon:tie=zero"));
  return all;
}

struct Worker {
  Worker(TestCoordinator& coordinator, int n, const OptimizerOptions& options)
      : number(n), optimizer(coordinator.client(n), Layout(kModel), options) {
    testing::fill(optimizer.layout(), x, testing::initial);
    optimizer.join(x.span());
  }
  StepReport step() {
    const auto at = static_cast<int>(optimizer.steps_done());
    testing::fill(optimizer.layout(), g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(number, at, t, i);
    });
    const auto unused = flags_of(number, at, kAllTensors);
    return optimizer.step(x.span(), g.span(), {unused.get(), kModel.size()});
  }
  void steps(int until) {
    while (optimizer.steps_done() < until) {
      last = step();
      std::uint64_t sent = 0;
      const auto sections = optimizer.sections(last.step);
      for (const SectionReport& section : sections) {
        EXPECT_EQ(section.bytes_sent, section.cost.bytes());
        EXPECT_EQ(section.cost.bytes_up > 0, last.round.has_value());
        sent += section.bytes_sent;
      }
      EXPECT_EQ(last.bytes_sent, sent);
      EXPECT_EQ(optimizer.cost(last.step).bytes(), sent);
    }
  }
  std::uint64_t hash() { return optimizer.hash(x.span()); }

  int number;
  RunWorker optimizer;
  FlatBuffer x{Layout(kModel).flat_size()}, g{Layout(kModel).flat_size()};
  StepReport last;
};

void run_all(std::vector<std::unique_ptr<Worker>>& workers, int until) {
  std::vector<std::function<void()>> bodies;
  for (auto& worker : workers) bodies.push_back([&worker, until] { worker->steps(until); });
  at_once(bodies);
}

TEST(Sections, OfACoordinatorsWorkersAreThoseOfRanks) {
  for (const Pair& p : served()) {
    const std::string what = p.first.method + " and " + p.second.method;
    const OptimizerOptions options = options_of(p);
    std::uint64_t ranks = 0;
    run_world(3, [&](Communicator& comm) {
      Side side(comm, options);
      for (int step = 0; step < 4; ++step) side.step(step);
      if (comm.rank() == 0) ranks = side.optimizer.hash(side.x.span());
    });
    TestCoordinator coordinator(Layout(kModel), options);
    coordinator.set_voters(3);
    std::vector<std::unique_ptr<Worker>> workers;
    for (int n = 0; n < 3; ++n) {
      workers.push_back(std::make_unique<Worker>(coordinator, n, options));
    }
    run_all(workers, 4);
    for (auto& worker : workers) EXPECT_EQ(worker->hash(), ranks) << what;

    // one misses rounds and replays their records; one is new
    auto away = std::move(workers.back());
    workers.pop_back();
    coordinator.set_voters(2);
    run_all(workers, 8);
    while (away->optimizer.steps_done() < 8) away->last = away->step();
    EXPECT_EQ(away->last.round->why_not, "late") << what;
    EXPECT_GT(away->last.round->replayed, 0) << what;
    EXPECT_EQ(away->hash(), workers[0]->hash()) << what;
    workers.push_back(std::make_unique<Worker>(coordinator, 7, options));
    EXPECT_EQ(workers.back()->hash(), workers[0]->hash()) << what;
    coordinator.set_voters(3);
    run_all(workers, 10);
    for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash()) << what;
  }
}

TEST(Sections, AGradientThatIsNotFiniteIsNoBallotOfAnySection) {
  const OptimizerOptions options = options_of(pair("dlion-vote:tie=zero", "adamw"));
  TestCoordinator coordinator(Layout(kModel), options);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int n = 0; n < 2; ++n) {
    workers.push_back(std::make_unique<Worker>(coordinator, n, options));
  }
  coordinator.set_voters(1);
  OptimizerOptions skips = options;
  skips.non_finite = NonFinitePolicy::kSkip;
  Worker bad(coordinator, 2, skips);
  StepReport report;
  at_once({[&] { workers[0]->steps(1); },
           [&] {
             bad.g.span()[bad.optimizer.layout().tensors()[4].offset] =
                 std::numeric_limits<float>::quiet_NaN();
             report = bad.optimizer.step(bad.x.span(), bad.g.span());
           }});
  EXPECT_EQ(report.skip_reason, "step 1: NaN or Inf in the gradient of 'e' on rank 2");
  EXPECT_EQ(report.round->why_not, "its gradient is not finite");
  EXPECT_EQ(bad.hash(), workers[0]->hash());
}

}  // namespace
}  // namespace pride::sections_test
