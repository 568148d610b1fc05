// A round from closing to the replies: voters, weights, the record in the journal.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "coord/coordinator_impl.h"
#include "coord/refusals.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {

using Impl = Coordinator::Impl;

namespace {

constexpr std::size_t kSampledWords = 1024;

bool all_equal(std::span<const int> weights) {
  return std::ranges::all_of(weights, [&](int w) { return w == weights[0]; });
}

// The ballot to leave out: the last of an even number with equal weights. Null: none.
const HeldBallot* odd_one(const QuorumOptions& options, const std::vector<HeldBallot>& ballots,
                          std::span<const int> weights) {
  const int n = static_cast<int>(ballots.size());
  if (!options.odd || n % 2 != 0 || n <= options.least_voters() || !all_equal(weights))
    return nullptr;
  return &*std::ranges::max_element(ballots, {}, &HeldBallot::arrived);
}

std::vector<Voter> voters_of(const Closing& closing) {
  std::vector<Voter> voters;
  for (std::size_t i = 0; i < closing.ballots.size(); ++i) {
    if (closing.weights[i] == 0) continue;
    voters.push_back({static_cast<std::uint16_t>(closing.ballots[i].number),
                      static_cast<std::uint16_t>(closing.weights[i])});
  }
  return voters;
}

}  // namespace

std::vector<int> Impl::weights_of(const std::vector<HeldBallot>& ballots) const {
  std::vector<int> weights(ballots.size(), 1), numbers;
  for (const HeldBallot& ballot : ballots) numbers.push_back(ballot.number);
  if (options.weighting == Weighting::kLearned) weights = learned.weights(numbers);
  for (std::size_t i = 0; options.weighting == Weighting::kGiven && i < numbers.size(); ++i) {
    weights[i] = registrations.entries()[static_cast<std::size_t>(numbers[i])].vote_weight;
  }
  reduce_weights(weights, serving->most_votes());
  return weights;
}

void Impl::start_closing(Work& work, Close how) {
  closing = true;
  auto round = std::make_shared<Closing>();
  round->round = open.round();
  for (const HeldBallot* ballot : open.group(known_hash())) round->ballots.push_back(*ballot);
  for (const HeldBallot& ballot : open.ballots()) {
    if (ballot.agrees_with(round->ballots[0])) continue;
    round->why_not[ballot.number] = difference(ballot, round->ballots[0]);
  }
  std::ranges::sort(round->ballots, {}, &HeldBallot::number);
  round->weights = weights_of(round->ballots);
  if (const HeldBallot* odd = odd_one(quorum, round->ballots, round->weights)) {
    round->why_not[odd->number] = "the last of an even number of equal votes";
    const auto index = static_cast<std::size_t>(odd - round->ballots.data());
    round->weights[index] = 0;
  }
  RoundReport& report = round->report;
  report.by_quorum = how == Close::kQuorum;
  report.grace = window;
  report.open = Seconds(now - *first_ballot);
  for (int number = 0; number < std::ssize(workers); ++number) {
    const bool waits = is_waited_for(at(number)) && open.of(number) == nullptr;
    if (!waits) continue;
    report.missing.push_back(number);
    if (++at(number).missed < kMostMissed) continue;
    observer.on_warning(concat("worker ", name_of(number), " is not waited for until it votes: ",
                               "no ballot from it in ", kMostMissed, " rounds"));
  }
  if (!quorum_at) grace.quorum(open.round(), now);  // to measure how late others are
  work.later([this, round] { run_later([this, round] { close(round); }); });
}

// A task of run_later(): one at a time.
void Impl::close(std::shared_ptr<Closing> round) {
  const auto began = std::chrono::steady_clock::now();  // measures `served`; decides nothing
  std::string why;
  std::optional<Known> known;
  try {
    std::shared_ptr<const Serving> rules;
    std::uint64_t key = 0;
    {
      const std::lock_guard lock(mutex);
      rules = serving;
      key = hash_bytes(std::as_bytes(std::span(&round->round, 1)), sample_key);
    }
    const HeldBallot& first = round->ballots[0];
    if (options.weighting == Weighting::kLearned) {
      std::vector<Serving::Signs> samples;
      for (const HeldBallot& ballot : round->ballots) {
        samples.push_back(rules->sample(round->round, ballot.frames->bytes(), key, kSampledWords));
      }
      round->agreement = agreements(samples);
    }
    const std::vector<Voter> voters = voters_of(*round);
    std::vector<std::span<const std::byte>> frames;
    for (std::size_t i = 0; i < round->ballots.size(); ++i) {
      if (round->weights[i] > 0) frames.push_back(round->ballots[i].frames->bytes());
    }
    round->report.step = rules->step_of(round->round);
    round->record =
        encode_record({.round = round->round,
                       .step = round->report.step,
                       .params_hash = first.params_hash,
                       .scalars = decode_scalars(std::as_bytes(std::span(first.scalars)),
                                                 rules->groups(), "round"),
                       .voters = voters,
                       .frames = rules->serve(round->round, first.scalars_digest, voters, frames)});
    journal.append(round->round, round->record);  // on disk before any worker gets it
    known = follow();
  } catch (const std::exception& error) {
    why = concat("round ", round->round, ": ", error.what());
  }
  round->report.served = Seconds(std::chrono::steady_clock::now() - began);
  Work work(*this);
  if (!why.empty()) return fail(work, why);
  learn_hash(known);
  finish(work, *round);
}

void Impl::report(Closing& round) {
  RoundReport& report = round.report;
  report.round = round.round;
  report.params_hash = round.ballots[0].params_hash;
  report.record_bytes = round.record.size();
  double sum = 0;
  int n_losses = 0;
  for (std::size_t i = 0; i < round.ballots.size(); ++i) {
    const HeldBallot& ballot = round.ballots[i];
    const auto agreement = round.agreement.empty() ? std::nullopt : round.agreement[i];
    at(ballot.number).weight = round.weights[i];
    if (round.weights[i] == 0) {
      round.why_not.try_emplace(ballot.number,
                                "weight 0: its signs agree too rarely with the others'");
      continue;
    }
    ++at(ballot.number).counted;
    at(ballot.number).lost.add(false);
    ++ballots_counted;
    report.voters.push_back({ballot.number, name_of(ballot.number), round.weights[i],
                             Seconds(now - ballot.arrived), agreement, ballot.loss});
    if (!ballot.loss) continue;
    sum += *ballot.loss;
    ++n_losses;
  }
  if (n_losses > 0) report.loss = sum / n_losses;
  for (const auto& [number, why] : round.why_not) {
    report.left_out.push_back(number);
    count_lost(number, why);
  }
  reports.push_back(report);
  if (reports.size() > kRoundsKept) reports.pop_front();
  observer.on_round(report);
}

void Impl::finish(Work& work, Closing& round) {
  for (std::size_t i = 0; i < round.agreement.size(); ++i) {
    if (round.agreement[i]) learned.learn(round.ballots[i].number, *round.agreement[i]);
  }
  report(round);
  ClosedRound over{.round = round.round,
                   .params_hash = round.report.params_hash,
                   .voters = {},
                   .why_not = round.why_not,
                   .at = now};
  for (const VoterReport& voter : round.report.voters) over.voters.push_back(voter.number);
  closed.push_back(std::move(over));
  if (closed.size() > kRoundsKept) closed.pop_front();
  last_round = round.round;
  last_record = std::make_shared<const std::vector<std::byte>>(std::move(round.record));
  open = OpenRound(round.round + 1);
  set_length();
  closing = false;
  first_ballot = quorum_at = split_since = {};
  for (Worker& worker : workers) {
    if (worker.ballot && worker.ballot->round() < round.round) worker.ballot = nullptr;
  }
  confirm_offer(work, round);
  ask_for_parameters(round);
  answer_all(work);
}

const ClosedRound* Impl::closed_round(std::int64_t round) const {
  const auto found = std::ranges::find(closed, round, &ClosedRound::round);
  return found == closed.end() ? nullptr : &*found;
}

bool Impl::was_counted(int number, std::int64_t round) const {
  const ClosedRound* known = closed_round(round);
  return known != nullptr && std::ranges::binary_search(known->voters, number);
}

// WaitRound's present reply about this round.
WaitRoundReply Impl::round_reply(int number, std::int64_t round) const {
  WaitRoundReply reply;
  set_state(*reply.mutable_state());
  if (round >= open.round()) {
    reply.set_has_ballot(round == open.round() && open.of(number) != nullptr);
    reply.set_refused(at_end());
    return reply;
  }
  const auto record = journal.record(round);
  if (!record) {
    reply.set_refused(concat("the record of round ", round, " is no longer kept"));
    return reply;
  }
  reply.set_closed(true);
  reply.set_total(record->size());
  reply.set_hash(record->hash());
  reply.set_counted(was_counted(number, round));
  const ClosedRound* known = closed_round(round);
  if (!reply.counted()) {
    reply.set_why_not(std::string(known == nullptr ? kLongAgo : kLate));
    if (known != nullptr && known->why_not.contains(number)) {
      reply.set_why_not(known->why_not.at(number));
    }
  }
  reply.set_wants_parameters(ask && ask->number == number && ask->before_round == round + 1);
  return reply;
}

void Impl::answer(Work& work, int number, WaitRoundReply reply) {
  Worker& worker = at(number);
  if (!worker.waiter) return;
  count_bytes(number, worker.waiter->bytes, reply.ByteSizeLong());
  work.later([call = std::move(worker.waiter->answer), reply = std::move(reply)] { call(reply); });
  worker.waiter = {};
}

// Replies to the waiting calls whose round is closed; to all if the coordinator has stopped.
void Impl::answer_all(Work& work) {
  const std::string why = stopped();
  for (int number = 0; number < std::ssize(workers); ++number) {
    const std::optional<Waiter>& waiter = at(number).waiter;
    if (!waiter || (why.empty() && waiter->round >= open.round())) continue;
    WaitRoundReply reply;
    if (why.empty()) {
      reply = round_reply(number, waiter->round);
    } else {
      reply.set_refused(why);
    }
    answer(work, number, std::move(reply));
  }
}

// After a restart the last voters count as live for `dead_after`, so that they have time to call.
void Impl::recall_last_record(Time time) {
  const std::int64_t round = journal.next_round() - 1;
  const auto stored = journal.record(round);
  if (!stored) return;
  const std::string bytes = stored->read(0, stored->size());
  const std::string where = concat(options.folder.string(), ": record of round ", round);
  const auto record = decode_record(std::as_bytes(std::span(bytes)), where);
  ClosedRound over{
      .round = round, .params_hash = record.params_hash, .voters = {}, .why_not = {}, .at = time};
  for (const Voter& voter : record.voters) {
    over.voters.push_back(voter.number);
    if (voter.number >= workers.size()) continue;  // registered after this journal was copied
    Worker& worker = at(voter.number);
    worker.live = true;
    worker.seen = time;
    worker.round = worker.can_be_at = round + 1;
    worker.weight = voter.weight;
    if (options.weighting == Weighting::kLearned) {
      const auto largest = std::ranges::max(record.voters, {}, &Voter::weight).weight;
      learned.recall(voter.number, voter.weight, largest);
    }
  }
  closed.push_back(std::move(over));
}

void Coordinator::wait_round(const WaitRoundRequest& request, const Peer& peer, Time now,
                             Answer answer) {
  Impl::Work work(*impl_);
  const Impl::Caller caller = impl_->caller(request.session(), peer, now);
  if (!caller) {
    WaitRoundReply reply;
    reply.set_refused(caller.refused);
    impl_->note_refused("WaitRound", -1, peer, reply.refused());
    impl_->count_bytes(-1, request.ByteSizeLong(), reply.ByteSizeLong());
    return work.later([reply, answer] { answer(reply); });
  }
  const int number = caller.number;
  Worker& worker = impl_->at(number);
  if (worker.waiter) {
    impl_->answer(work, number, impl_->round_reply(number, worker.waiter->round));
  }
  const std::uint32_t wait_ms = std::min(request.wait_ms(), impl_->options.most_wait_ms);
  worker.waiter = Waiter{.round = request.round(),
                         .until = impl_->now + std::chrono::milliseconds(wait_ms),
                         .abstains = request.abstains(),
                         .bytes = request.ByteSizeLong(),
                         .answer = std::move(answer)};
  WaitRoundReply reply = impl_->round_reply(number, request.round());
  impl_->note_refused("WaitRound", number, peer, reply.refused());
  const bool waits = request.round() == impl_->open.round() && wait_ms > 0 &&
                     (reply.has_ballot() || request.abstains());
  if (!waits) return impl_->answer(work, number, std::move(reply));
  if (request.abstains()) worker.round = std::max(worker.round, request.round());
  impl_->evaluate(work);
}

}  // namespace pride::coord
