// Ballots of the open round: accepted, checked and counted until it can close.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "coord/coordinator_impl.h"
#include "coord/refusals.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {

using Impl = Coordinator::Impl;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hex(std::uint64_t hash) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string seconds(Seconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", time.count());
  return text;
}

// The first scalar that differs, by name.
std::string scalar_difference(std::span<const StepScalars> one, std::span<const StepScalars> most) {
  static constexpr struct {
    const char* name;
    float (*value)(const StepScalars&);
  } kAll[] = {{"lr", [](const StepScalars& s) { return s.lr; }},
              {"1 - lr * weight decay", [](const StepScalars& s) { return s.decay.same; }},
              {"cautious decay", [](const StepScalars& s) { return s.decay.opposite; }},
              {"weight decay", [](const StepScalars& s) { return s.weight_decay; }},
              {"beta1", [](const StepScalars& s) { return s.beta1; }},
              {"beta2", [](const StepScalars& s) { return s.beta2; }},
              {"eps", [](const StepScalars& s) { return s.eps; }},
              {"the step's bias correction", [](const StepScalars& s) { return s.adam_step; }},
              {"momentum", [](const StepScalars& s) { return s.momentum; }}};
  for (std::size_t g = 0; g < std::min(one.size(), most.size()); ++g) {
    for (const auto& [name, value] : kAll) {
      const float its = value(one[g]), theirs = value(most[g]);
      if (its == theirs) continue;
      return concat("its scalars differ from most workers': ", name, " of group ", g, " is ", its,
                    ", most have ", theirs);
    }
  }
  return "its scalars differ from most workers'";
}

}  // namespace

// The hash of the parameters before the open round, if they are kept or the shadow has them.
std::optional<std::uint64_t> Impl::known_hash() const {
  if (shadow_knows && shadow_knows->round == open.round()) return shadow_knows->hash;
  const auto newest = journal.newest_parameters();
  if (!newest || newest->before_round != open.round()) return {};
  return newest->params_hash;
}

// A worker that is more than a round behind replays records and is not waited for.
bool Impl::is_waited_for(const Worker& worker) const {
  const bool abstains =
      worker.waiter && worker.waiter->round == open.round() && worker.waiter->abstains;
  return worker.live && worker.round >= open.round() - 1 && worker.missed < kMostMissed &&
         worker.refused_round != open.round() && !abstains;
}

// The worker has all it needs to work on this round.
void Impl::reached(int number, std::int64_t round) {
  Worker& worker = at(number);
  worker.can_be_at = std::max(worker.can_be_at, std::min(round, open.round()));
  worker.round = std::max(worker.round, worker.can_be_at);
}

Votes Impl::votes() const {
  Votes votes{.in_group = static_cast<int>(open.group(known_hash()).size())};
  for (int number = 0; number < std::ssize(workers); ++number) {
    if (!is_waited_for(workers[static_cast<std::size_t>(number)])) continue;
    ++votes.waited_for;
    if (open.of(number) != nullptr) ++votes.waited_and_in;
  }
  return votes;
}

std::string Impl::difference(const HeldBallot& ballot, const HeldBallot& most) const {
  if (ballot.params_hash != most.params_hash) {
    return concat("its parameters differ from most workers': hash ", hex(ballot.params_hash),
                  ", most have ", hex(most.params_hash));
  }
  const auto groups = static_cast<int>(run->groups.size());
  return scalar_difference(decode_scalars(bytes_of(ballot.scalars), groups, "ballot"),
                           decode_scalars(bytes_of(most.scalars), groups, "ballot"));
}

// A worker is late at most once per round. A ballot that came in time but was left out is not late.
bool Impl::may_be_late(int number, std::int64_t round) const {
  const ClosedRound* known = closed_round(round);
  return workers[static_cast<std::size_t>(number)].late_round < round &&
         !was_counted(number, round) && (known == nullptr || !known->why_not.contains(number));
}

bool Impl::has_whole_ballot(int number, std::int64_t round) {
  const std::shared_ptr<Upload>& upload = at(number).ballot;
  return upload && upload->round() == round && upload->complete();
}

// Rounds wait for a worker again only after a good vote: otherwise a sender of empty votes would
// delay them.
void Impl::count_late(int number, std::int64_t round, Time time, bool has_voted) {
  if (!may_be_late(number, round)) return;
  Worker& worker = at(number);
  worker.late_round = round;
  if (has_voted) worker.missed = 0;
  ++worker.late;
  ++ballots_late;
  const auto after = has_voted ? grace.arrived(round, time) : std::nullopt;
  observer.on_late(number, name_of(number), round, after.value_or(Seconds(0)));
  count_lost(number, late_reason(number));
}

// The time since its ballot before, and that of a round.
std::string Impl::late_reason(int number) {
  const std::optional<Time> before = std::exchange(at(number).ballot_at, now);
  if (!before || closed.size() < 2) return std::string(kLate);
  const auto n_live = std::ranges::count_if(workers, [](const Worker& w) { return w.live; });
  const Seconds round = (closed.back().at - closed.front().at) / (closed.size() - 1);
  return concat(kLate, ": it takes ", seconds(now - *before), " s for a ballot, a round takes ",
                seconds(round), " s. Set --grace above the first (by itself the window is at most ",
                "--most-grace, ", seconds(options.quorum.most_grace), " s), or --min-workers to ",
                n_live, ", or let it take fewer samples a step");
}

void Impl::count_lost(int number, const std::string& why) {
  Worker& worker = at(number);
  worker.lost_because = why;
  if (worker.lost.add(true)) observer.on_warning(lost_warning(number));
}

std::string Impl::lost_warning(int number) const {
  const Worker& worker = workers[static_cast<std::size_t>(number)];
  return concat("worker ", name_of(number), ": ", worker.lost.share(),
                " ballots were not counted, the last one because: ", worker.lost_because);
}

// The reply to a ballot that needs no check; not set: it needs one.
std::optional<VoteReply> Impl::settled_vote(int number, std::int64_t round, Time time,
                                            bool is_checked) {
  const auto settled = [&](VoteReply::Status status, const std::string& why) {
    VoteReply reply;
    set_state(*reply.mutable_state());
    reply.set_status(status);
    reply.set_why(why);
    return reply;
  };
  if (round > open.round()) {
    return settled(VoteReply::AHEAD,
                   concat("a ballot of round ", round, ", but round ", open.round(), " is open"));
  }
  const bool here = round == open.round() && open.of(number) != nullptr;
  if (here || (round < open.round() && was_counted(number, round))) {
    return settled(VoteReply::TAKEN, "");
  }
  if (round == open.round() && !at_end().empty()) return settled(VoteReply::REFUSED, at_end());
  if (round == open.round() && !closing) return {};
  const bool whole = has_whole_ballot(number, round) && may_be_late(number, round);
  if (!is_checked && round >= open.round() - 1 && whole) return {};
  count_late(number, round, time, is_checked);
  return settled(VoteReply::LATE, std::string(kLate));
}

// The ballot if it is good; not set: the reply has the reason.
std::optional<HeldBallot> Impl::check(const VoteRequest& request, int number,
                                      std::shared_ptr<const Upload> frames, const Serving& rules,
                                      VoteReply& reply) const {
  if (hash_bytes(frames->bytes()) != request.hash()) {
    reply.set_status(VoteReply::INCOMPLETE);
    reply.set_why("the ballot's hash does not match its bytes; send it again");
    return {};
  }
  HeldBallot ballot{.number = number,
                    .params_hash = request.params_hash(),
                    .scalars = request.scalars(),
                    .scalars_digest = 0,
                    .frames = std::move(frames),
                    .loss = {}};
  if (request.has_loss() && std::isfinite(request.loss())) ballot.loss = request.loss();
  try {
    const std::string who = concat("ballot of worker ", number, ", round ", request.round());
    ballot.scalars_digest =
        rules.digest_of(decode_scalars(bytes_of(request.scalars()), rules.groups(), who));
    rules.check_ballot(request.round(), ballot.scalars_digest, registered_voter(number),
                       ballot.frames->bytes());
  } catch (const CommError& error) {
    reply.set_status(VoteReply::REFUSED);
    reply.set_why(error.what());
    return {};
  }
  return ballot;
}

Voter Impl::registered_voter(int number) const {
  const std::lock_guard lock(mutex);
  const int weight = registrations.entries()[static_cast<std::size_t>(number)].vote_weight;
  return {static_cast<std::uint16_t>(number), static_cast<std::uint16_t>(weight)};
}

void Impl::hold(Work& work, HeldBallot ballot, Time time) {
  Worker& worker = at(ballot.number);
  reached(ballot.number, open.round());
  worker.missed = 0;
  worker.ballot_at = time;
  worker.loss = ballot.loss;
  worker.ballot = nullptr;
  ballot.arrived = time;
  if (quorum_at) grace.arrived(open.round(), time);
  if (!first_ballot) first_ballot = time;
  open.add(std::move(ballot));
  evaluate(work);
}

// Closes the round if it can close. Otherwise starts the grace window, or refuses a minority.
void Impl::evaluate(Work& work) {
  if (closing || !serving || !stopped().empty()) return;
  const Votes now_in = votes();
  const int needed = std::max(1, quorum_of(quorum, now_in.waited_for));
  if (!quorum_at && now_in.in_group >= needed) {
    window = grace.window();
    quorum_at = now;
    grace.quorum(open.round(), now);
  }
  const Close how = may_close(quorum, now_in, quorum_at, window, now);
  if (how != Close::kNot) return start_closing(work, how);
  // all have voted but no group is large enough: refuse a minority, or workers would wait for ever
  const bool split = now_in.waited_for > 0 && now_in.waited_and_in == now_in.waited_for &&
                     now_in.in_group < std::ssize(open.ballots());
  if (!split) {
    split_since = {};
  } else if (!split_since) {
    split_since = now;
  } else if (Seconds(now - *split_since) >= quorum.most_grace) {
    refuse_minority(work);
  }
}

void Impl::refuse_minority(Work& work) {
  split_since = {};
  const auto group = open.group(known_hash());
  std::map<int, std::string> why;
  for (const HeldBallot& ballot : open.ballots()) {
    if (std::ranges::find(group, &ballot) != group.end()) continue;
    why[ballot.number] =
        group.empty() ? "its parameters differ from the kept ones" : difference(ballot, *group[0]);
  }
  for (const auto& [number, reason] : why) {
    open.remove(number);
    at(number).refused_round = open.round();
    ++at(number).refused;
    ++ballots_refused;
    const std::string text =
        concat("round ", open.round(), " has too few ballots with equal parameters: ", reason,
               "; start again from the coordinator's parameters");
    note_refused("Vote", number, at(number).peer, text);
    WaitRoundReply reply;
    reply.set_refused(text);
    answer(work, number, reply);
  }
}

// The reply, if it does not depend on the ballot's bytes; otherwise `frames` gets these for the
// check.
VoteReply Impl::begin_vote(const VoteRequest& request, int number,
                           std::shared_ptr<const Upload>& frames) {
  if (auto settled = settled_vote(number, request.round(), now, false)) return *settled;
  VoteReply reply;
  const std::uint64_t size = ballot_size(request.round());
  if (request.total() != size) {
    reply.set_status(VoteReply::REFUSED);
    reply.set_why(concat("a ballot of ", request.total(), " bytes; those of round ",
                         request.round(), " have ", size));
  } else if (!has_whole_ballot(number, request.round())) {
    reply.set_status(VoteReply::INCOMPLETE);
  } else {
    frames = at(number).ballot;
  }
  return reply;
}

VoteReply Coordinator::vote(const VoteRequest& request, const Peer& peer, Time now) {
  VoteReply reply;
  std::shared_ptr<const Upload> frames;
  std::shared_ptr<const Serving> serving;
  Impl::Caller caller;
  {
    Impl::Work work(*impl_);
    caller = impl_->caller(request.session(), peer, now);
    if (caller) {
      reply = impl_->begin_vote(request, caller.number, frames);
      serving = impl_->serving;
    } else {
      reply.set_status(VoteReply::REFUSED);
      reply.set_why(caller.refused);
    }
  }
  // without the lock: passes over the whole ballot
  std::optional<HeldBallot> ballot;
  if (frames) ballot = impl_->check(request, caller.number, frames, *serving, reply);
  Impl::Work work(*impl_);
  if (frames) impl_->end_vote(work, caller.number, request.round(), std::move(ballot), reply);
  if (caller) impl_->set_state(*reply.mutable_state());
  const bool refused = reply.status() == VoteReply::REFUSED;
  impl_->note_refused("Vote", caller.number, peer, refused ? reply.why() : "");
  impl_->count_bytes(caller.number, request.ByteSizeLong(), reply.ByteSizeLong());
  return reply;
}

// The round may have closed during the check.
void Impl::end_vote(Work& work, int number, std::int64_t round, std::optional<HeldBallot> ballot,
                    VoteReply& reply) {
  Worker& worker = at(number);
  if (!ballot || round < open.round()) worker.ballot = nullptr;
  if (auto settled = settled_vote(number, round, now, ballot.has_value())) {
    reply = *settled;
  } else if (ballot) {
    reply.set_status(VoteReply::TAKEN);
    hold(work, std::move(*ballot), now);
  } else if (reply.status() == VoteReply::REFUSED) {  // otherwise the worker sends it again
    ++worker.refused;
    ++ballots_refused;
    worker.refused_round = round;
    evaluate(work);
  }
}

}  // namespace pride::coord
