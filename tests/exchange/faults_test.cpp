// A step over a network that goes wrong: every rank gets an error that says what and where.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <latch>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/faulty_comm.h"
#include "support/training.h"

namespace pride {
namespace {

constexpr int kWorld = 3;

// Three steps, with a fault on rank 1; the error of each rank, "" if it finished.
std::vector<std::string> errors_with(const std::string& method, bool overlap, Fault fault) {
  const Layout layout({{"w", {1000}}});
  testing::Training run{.world = kWorld, .steps = 3};
  run.options.method = method;
  run.options.overlap = overlap;
  run.options.bucket_coords = 256;
  std::vector<std::string> errors(kWorld);
  auto world = make_thread_world(kWorld);
  std::latch done(kWorld);
  std::vector<std::thread> threads;
  for (int r = 0; r < kWorld; ++r) {
    std::unique_ptr<Communicator> comm = std::move(world[static_cast<std::size_t>(r)]);
    threads.emplace_back([&, r, inner = std::move(comm)]() mutable {
      FaultyComm faulty(std::move(inner), r == 1 ? fault : Fault{});
      faulty.set_timeout(std::chrono::seconds(2));
      try {
        testing::train_rank(faulty, layout, run);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();  // nobody calls fail(): the step has
      }
      if (r == 1) {
        EXPECT_TRUE(faulty.happened()) << "the fault was never reached";
      }
      done.arrive_and_wait();  // no rank is released by another's leaving
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// A send of rank 1 that carries a frame: those of the start-up come first, and with overlap there
// are two communicators to make.
int a_frame(bool overlap) { return overlap ? 8 : 6; }

class ExchangeFaults : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(ExchangeFaults, ACorruptedFrameIsRefusedByNameOnAllRanks) {
  const auto [method, overlap] = GetParam();
  // byte 20 is in the header
  const auto errors = errors_with(
      method, overlap, {.kind = Fault::Kind::kCorrupt, .at_send = a_frame(overlap), .byte = 20});
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("frame from rank 1 has"), std::string::npos) << "'" << e << "'";
  }
}

TEST_P(ExchangeFaults, ALostFrameEndsAtTheDeadlineOnAllRanks) {
  const auto [method, overlap] = GetParam();
  const auto errors =
      errors_with(method, overlap, {.kind = Fault::Kind::kDrop, .at_send = a_frame(overlap)});
  for (const std::string& e : errors) {
    // where several exchanges wait at a time, a rank that waits for one that waits may be first
    EXPECT_NE(e.find(overlap ? "rank " : "rank 1"), std::string::npos) << "'" << e << "'";
    EXPECT_NE(e.find("bucket"), std::string::npos) << "'" << e << "'";
  }
}

TEST_P(ExchangeFaults, ALateFrameIsNoError) {
  const auto [method, overlap] = GetParam();
  const auto errors = errors_with(method, overlap,
                                  {.kind = Fault::Kind::kDelay,
                                   .at_send = a_frame(overlap),
                                   .delay = std::chrono::milliseconds(50)});
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeFaults,
                         ::testing::Combine(::testing::ValuesIn(method_names()), ::testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           for (char& ch : name) ch = ch == '-' ? '_' : ch;
                           return name + (std::get<1>(info.param) ? "_overlap" : "");
                         });

}  // namespace
}  // namespace pride
