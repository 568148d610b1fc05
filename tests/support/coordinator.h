// A coordinator within the process, for workers on threads: it serves rounds by CentralRound, and
// keeps all records and the newest parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "methods/registry.h"
#include "optimizer/central_round.h"
#include "optimizer/run_values.h"
#include "optimizer/step_scalars.h"
#include "pride/coordinator.h"
#include "pride/error.h"
#include "pride/optimizer.h"

namespace pride::testing {

class TestCoordinator {
 public:
  TestCoordinator(const Layout& layout, const OptimizerOptions& options)
      : layout_(layout),
        options_(options),
        sections_(layout_, options_, 1),
        steps_(sections_.make_steps(options_, 1, Space::host())),
        rounds_(sections_, steps_) {}

  // Worker `number`, which must not be in the run at that time.
  std::shared_ptr<CoordinatorClient> client(int number) {
    return std::make_shared<Client>(*this, number);
  }

  std::string settings;      // of the run
  int voters = 1;            // a round closes with this number of ballots
  int parameters_every = 0;  // rounds between requests of a voter's parameters; 0: never
  // The ordered length of the run, at this open round.
  std::function<RunLength(std::int64_t open_round)> length = nullptr;
  // Changes what a worker gets as the record of a round.
  std::function<void(std::int64_t round, std::vector<std::byte>&)> tamper = nullptr;

  // Called before a worker votes on a round.
  std::function<void(std::int64_t round)> before_vote = nullptr;

  std::vector<std::vector<std::byte>> records() {
    const std::lock_guard lock(mutex_);
    return records_;
  }
  std::int64_t open_round() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(records_.size());
  }
  void set_voters(int n) {
    const std::lock_guard lock(mutex_);
    voters = n;
    if (!ballots_.empty() && ballots_.size() >= static_cast<std::size_t>(n)) close();
  }
  int parameters_given = 0, parameters_taken = 0, records_taken = 0;

 private:
  struct Kept {
    Voter voter;
    std::uint64_t hash = 0;
    std::vector<std::byte> scalars, frames;
  };

  class Client final : public CoordinatorClient {
   public:
    Client(TestCoordinator& c, int number) : c_(c), number_(number) {}

    CoordinatorWelcome join(const RunDescription& run, int vote_weight) override {
      const std::lock_guard lock(c_.mutex_);
      PRIDE_CHECK(run.method == c_.sections_.of_group(0).method && run.seed == c_.options_.seed &&
                      run.settings == c_.settings,
                  "coordinator: another run");
      EXPECT_TRUE(std::ranges::equal(run.tensors, c_.layout_.tensors(), {}, &TensorSpec::name,
                                     [](const TensorSlot& slot) { return slot.spec.name; }));
      weight_ = vote_weight;
      return c_.welcome(number_);
    }
    CoordinatorVote vote(const Ballot& ballot) override {
      if (c_.before_vote) c_.before_vote(ballot.round);
      traffic_.bytes_sent += ballot.frames.size();
      return c_.vote(ballot,
                     {static_cast<std::uint16_t>(number_), static_cast<std::uint16_t>(weight_)},
                     traffic_);
    }
    CoordinatorVote wait(std::int64_t round) override {
      std::unique_lock lock(c_.mutex_);
      return c_.answer(lock, round, number_, traffic_);
    }
    std::vector<std::byte> record(std::int64_t round) override {
      const std::lock_guard lock(c_.mutex_);
      ++c_.records_taken;
      return c_.given(round);
    }
    void get_parameters(std::int64_t round, std::span<float> params) override {
      const std::lock_guard lock(c_.mutex_);
      ++c_.parameters_taken;
      PRIDE_CHECK(round == c_.parameters_round_, "no parameters before round ", round);
      std::ranges::copy(c_.parameters_, params.begin());
    }
    void put_parameters(std::int64_t round, std::uint64_t hash,
                        std::span<const float> params) override {
      const std::lock_guard lock(c_.mutex_);
      EXPECT_EQ(hash, RunValues(c_.layout_, c_.sections_, c_.steps_).hash(params));
      if (c_.parameters_round_ && *c_.parameters_round_ >= round) return;
      ++c_.parameters_given;
      c_.parameters_round_ = round;
      c_.parameters_.assign(params.begin(), params.end());
      c_.hash_ = hash;
    }
    RunLength length() const override {
      return c_.length ? c_.length(c_.open_round()) : RunLength{};
    }
    CoordinatorWelcome look() override {
      const std::lock_guard lock(c_.mutex_);
      return c_.welcome(number_);
    }
    Traffic traffic() const override { return traffic_; }

   private:
    TestCoordinator& c_;
    int number_, weight_ = 1;
    Traffic traffic_;
  };

  CoordinatorWelcome welcome(int number) const {
    return {.number = number,
            .open_round = static_cast<std::int64_t>(records_.size()),
            .first_record = 0,
            .parameters_round = parameters_round_,
            .parameters_hash = hash_};
  }

  std::vector<std::byte> given(std::int64_t round) const {
    std::vector<std::byte> record = records_.at(static_cast<std::size_t>(round));
    if (tamper) tamper(round, record);
    return record;
  }

  CoordinatorVote vote(const Ballot& b, Voter voter, Traffic& traffic) {
    std::unique_lock lock(mutex_);
    if (b.round == static_cast<std::int64_t>(records_.size())) {
      const auto scalars = decode_scalars(b.scalars, static_cast<int>(options_.groups.size()), "");
      rounds_.check_ballot(b.round, options_.seed, digest_of(scalars), voter, b.frames);
      ballots_[voter.number] = {
          voter, b.params_hash, b.scalars, {b.frames.begin(), b.frames.end()}};
      if (ballots_.size() >= static_cast<std::size_t>(voters)) close();
    }
    CoordinatorVote reply = answer(lock, b.round, voter.number, traffic);
    const RoundRecord record = decode_record(records_[static_cast<std::size_t>(b.round)], "");
    reply.counted = std::ranges::count(record.voters, voter.number, &Voter::number) > 0;
    if (!reply.counted) reply.why_not = record.params_hash == b.params_hash ? "late" : "other";
    return reply;
  }

  CoordinatorVote answer(std::unique_lock<std::mutex>& lock, std::int64_t round, int number,
                         Traffic& traffic) {
    const bool closed = closed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return static_cast<std::int64_t>(records_.size()) > round;
    });
    if (!closed) throw CommError(concat("coordinator, round ", round, ": not closed"));
    const auto open = static_cast<std::int64_t>(records_.size());
    CoordinatorVote reply;
    reply.record = given(round);
    traffic.bytes_received += reply.record.size();
    reply.open_round = open;
    reply.wants_parameters = parameters_every > 0 && (round + 1) % parameters_every == 0 &&
                             asked_ == std::pair(round, number);
    return reply;
  }

  // Serves the largest group of ballots for the same parameters.
  void close() {
    std::map<std::uint64_t, int> by_hash;
    for (const auto& [number, b] : ballots_) ++by_hash[b.hash];
    const auto most =
        std::ranges::max_element(by_hash, {}, [](const auto& entry) { return entry.second; });
    RoundRecord record;
    record.round = static_cast<std::int64_t>(records_.size());
    record.step = rounds_.step_of(record.round);
    record.params_hash = most->first;
    std::vector<std::span<const std::byte>> frames;
    for (const auto& [number, b] : ballots_) {
      if (b.hash != record.params_hash) continue;
      if (frames.empty()) {
        record.scalars =
            decode_scalars(b.scalars, static_cast<int>(options_.groups.size()), "scalars");
        asked_ = {record.round, number};
      }
      record.voters.push_back(b.voter);
      frames.push_back(b.frames);
    }
    record.frames = rounds_.serve(record.round, options_.seed, digest_of(record.scalars),
                                  record.voters, frames);
    records_.push_back(encode_record(record));
    ballots_.clear();
    closed_.notify_all();
  }

  Layout layout_;
  OptimizerOptions options_;
  Sections sections_;
  std::vector<SectionStep> steps_;
  CentralRound rounds_;

  std::mutex mutex_;
  std::condition_variable closed_;
  std::vector<std::vector<std::byte>> records_;
  std::map<int, Kept> ballots_;
  std::optional<std::int64_t> parameters_round_;
  std::uint64_t hash_ = 0;
  std::vector<float> parameters_;
  std::pair<std::int64_t, int> asked_;
};

}  // namespace pride::testing
