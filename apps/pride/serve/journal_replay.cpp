// SPDX-License-Identifier: Apache-2.0
#include "serve/journal_replay.h"

#include <cstring>
#include <memory>
#include <vector>

#include "coord/shadow.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"

namespace pride::app {
namespace {

// A coordinator that has closed its last round: it gives the oldest parameters and what followed.
class JournalClient final : public CoordinatorClient {
 public:
  explicit JournalClient(const coord::JournalFiles& files) : files_(files) {}

  CoordinatorWelcome join(const RunDescription&, int) override { return look(); }
  CoordinatorWelcome look() override {
    CoordinatorWelcome welcome;
    welcome.open_round = files_.next_round();
    welcome.first_record = files_.first_record();
    welcome.parameters_round = oldest().before_round;
    welcome.parameters_hash = oldest().params_hash;
    return welcome;
  }

  std::vector<std::byte> record(std::int64_t round) override {
    for (const coord::JournalSegment& segment : files_.segments) {
      for (const coord::JournalEntry& entry : segment.entries) {
        if (entry.round == round)
          return coord::read_bytes(segment.file, entry.offset, entry.length);
      }
    }
    throw DataError(concat("the journal has no record of round ", round));
  }
  void get_parameters(std::int64_t, std::span<float> params) override {
    const auto bytes =
        coord::read_bytes(oldest().file, coord::kParametersHeaderBytes, params.size_bytes());
    std::memcpy(params.data(), bytes.data(), bytes.size());
  }

  CoordinatorVote vote(const Ballot&) override { throw CommError("a journal takes no ballots"); }
  CoordinatorVote wait(std::int64_t) override { throw CommError("a journal closes no rounds"); }
  void put_parameters(std::int64_t, std::uint64_t, std::span<const float>) override {}
  Traffic traffic() const override { return {}; }

 private:
  const coord::JournalParameters& oldest() const { return files_.parameters.front(); }

  const coord::JournalFiles& files_;
};

}  // namespace

Replayed replay_journal(const coord::JournalFiles& files, const RunDescription& run) {
  if (files.parameters.empty()) {
    throw DataError("the journal has no parameters yet, from which its records could be replayed");
  }
  OptimizerOptions options = coord::options_of(run);
  options.coordinator = std::make_shared<JournalClient>(files);
  const auto world = make_thread_world(1);
  Optimizer optimizer(*world.front(), Layout(run.tensors), options);
  std::vector<float> params(optimizer.layout().flat_size());
  optimizer.broadcast(params);
  return {.from = files.parameters.front().before_round,
          .round = files.next_round(),
          .params_hash = param_hash(optimizer.layout(), params)};
}

}  // namespace pride::app
