// A step over a faulty network: every rank gets an error with the operation and the ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <regex>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/faulty_comm.h"
#include "support/training.h"

namespace pride::faults_test {
namespace {

constexpr int kWorld = 3;
constexpr std::chrono::seconds kTimeout{1};  // duration of some tests of a lost frame

struct Outcome {
  std::vector<std::string> errors;  // of each rank, "" if it finished
  int victim = -1;                  // the destination of the faulty send
};

// Five steps, with a fault on rank 1: with h=2 a rank that has all frames of one exchange needs
// another one to learn that a frame of its own was lost.
Outcome outcome_of(const std::string& method, bool overlap, Fault fault) {
  const Layout layout({{"w", {1000}}});
  testing::Training run{.world = kWorld, .steps = 5};
  testing::set_method(run.options, method);
  run.options.overlap = overlap;
  run.options.exchange_threads = 2;  // a_frame() counts their starts
  run.options.bucket_coords = 256;
  Outcome outcome{.errors = std::vector<std::string>(kWorld)};
  auto world = make_thread_world(kWorld);
  std::latch done(kWorld);
  std::vector<std::thread> threads;
  for (int r = 0; r < kWorld; ++r) {
    std::unique_ptr<Communicator> comm = std::move(world[static_cast<std::size_t>(r)]);
    threads.emplace_back([&, r, inner = std::move(comm)]() mutable {
      FaultyComm faulty(std::move(inner), r == 1 ? fault : Fault{});
      faulty.set_timeout(kTimeout);
      try {
        testing::train_rank(faulty, layout, run);
      } catch (const std::exception& e) {
        outcome.errors[static_cast<std::size_t>(r)] =
            e.what();  // without a call of fail(): the step has made it
      }
      if (r == 1) {
        EXPECT_TRUE(faulty.happened()) << "the fault was never reached";
        outcome.victim = faulty.victim();
      }
      done.arrive_and_wait();  // no rank is released by another's exit
    });
  }
  for (std::thread& t : threads) t.join();
  return outcome;
}

// Waiting and awaited rank in the text of an error, as at the end of "..., bucket 0: wait: rank 2
// of 3: receive of 64 bytes from rank 1 (tag 1): not complete at the deadline". Or a message of
// another size arrived: that of a later frame.
struct Waiting {
  int waiter = -1, awaited = -1;
};
Waiting waiting_in(const std::string& error) {
  static const std::regex kWait(
      R"(.*rank (\d)(?: of 3)?: [^()]*(?:receive|send) of \d+ bytes (?:from|to) rank (\d) )"
      R"(\(tag \d+\)[^(]*)"
      "(?:deadline|sizes differ: ).*");
  std::smatch match;
  if (!std::regex_match(error, match, kWait)) return {};
  return {std::stoi(match[1]), std::stoi(match[2])};
}

// A send of rank 1 that carries a frame: two sends each of the construction's two checks, of making
// a communicator (with overlap two) and of comparing the parameters come first.
int a_frame(bool overlap) { return overlap ? 12 : 10; }

class ExchangeFaults : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(ExchangeFaults, ACorruptedFrameIsRefusedByNameOnAllRanks) {
  const auto [method, overlap] = GetParam();
  // byte 20 is in the header
  const auto [errors, victim] = outcome_of(
      method, overlap, {.kind = Fault::Kind::kCorrupt, .at_send = a_frame(overlap), .byte = 20});
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("frame from rank 1 has"), std::string::npos) << "'" << e << "'";
  }
}

TEST_P(ExchangeFaults, ALostFrameEndsAtTheDeadlineOnAllRanks) {
  const auto [method, overlap] = GetParam();
  const auto [errors, victim] =
      outcome_of(method, overlap, {.kind = Fault::Kind::kDrop, .at_send = a_frame(overlap)});
  for (const std::string& e : errors) {
    SCOPED_TRACE(concat("'", e, "', lost was a frame from rank 1 to rank ", victim));
    EXPECT_NE(e.find("bucket"), std::string::npos);
    // the frame itself is refused, or a message after the lost one was received in its place
    if (e.find("frame from rank 1 ") != std::string::npos) continue;
    const auto [waiter, awaited] = waiting_in(e);
    // deadlines begin microseconds apart: that of a rank waiting for the victim may end first
    if (awaited == victim) continue;
    EXPECT_EQ(std::minmax(waiter, awaited), std::minmax(1, victim));
  }
}

// A method of each route and of each kind of frame; the faults do not depend on what frames hold.
INSTANTIATE_TEST_SUITE_P(
    All, ExchangeFaults,
    ::testing::Combine(::testing::Values("dlion-vote:route=one-shot", "dlion-vote:route=sharded",
                                         "dlion-avg:route=sharded", "lion", "lion-cub", "terngrad",
                                         "dgc", "signsgd-ef", "local-vote:h=2"),
                       ::testing::Bool()),
    [](const auto& info) {
      return testing::test_name(std::get<0>(info.param)) +
             (std::get<1>(info.param) ? "_overlap" : "");
    });

}  // namespace
}  // namespace pride::faults_test
