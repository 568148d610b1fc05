// Parameters for new workers: requests to voters, and checks of the parameters they send.
//
// The first worker that sends parameters defines those before round 0. Later parameters are kept if
// they have the hash in the round's record, which most workers had.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "coord/coordinator_impl.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {

using Impl = Coordinator::Impl;

namespace {

constexpr std::int64_t kPatience = 8;  // rounds until parameters are requested from another worker

}  // namespace

void Impl::ask_for_parameters(const Closing& round) {
  const std::int64_t before = round.round + 1;
  if (shadow_knows) return;
  const bool none = !journal.newest_parameters() && keeping < 0;
  const bool periodic = options.parameters_every > 0 && before % options.parameters_every == 0;
  const bool due = try_again_at > 0 ? before >= try_again_at : none || periodic;
  const bool broken = ask && (!at(ask->number).live || before - ask->before_round >= kPatience);
  if (!(due && !ask) && !broken) return;
  // the voter whose ballot arrived first, except the worker that did not send its parameters
  const HeldBallot* first = nullptr;
  for (std::size_t i = 0; i < round.ballots.size(); ++i) {
    const HeldBallot& ballot = round.ballots[i];
    if (round.weights[i] == 0 || (ask && ask->number == ballot.number)) continue;
    if (first == nullptr || ballot.arrived < first->arrived) first = &ballot;
  }
  if (first == nullptr) first = &round.ballots[0];
  ask = {first->number, before};
  offer = {};
}

// Why the offer is rejected; empty: it is kept, or held until its round closes.
std::string Impl::take_offer(Work& work, ParametersOffer given) {
  const std::int64_t before = given.before_round;
  const ClosedRound* round = closed_round(before);
  if (before == 0 && open.round() == 0) {
    keep(work, std::move(given));
  } else if (before == open.round()) {
    offer = std::move(given);
  } else if (round == nullptr) {
    return concat("parameters before round ", before, " are too old");
  } else if (round->params_hash != given.params_hash) {
    return concat("parameters before round ", before,
                  " with a hash that differs from most workers' at that time");
  } else {
    keep(work, std::move(given));
  }
  return {};
}

void Impl::confirm_offer(Work& work, const Closing& round) {
  if (!offer || offer->before_round != round.round) return;
  ParametersOffer given = std::move(*offer);
  offer = {};
  if (given.params_hash == round.report.params_hash) return keep(work, std::move(given));
  ask = {};
  note_refused("OfferParameters", given.number, at(given.number).peer,
               concat("parameters before round ", round.round,
                      " with a hash that differs from most workers'"));
}

void Impl::keep(Work& work, ParametersOffer given) {
  keeping = given.before_round;
  work.later([this, given] {
    run_later([this, given] {
      const auto bytes = given.bytes->bytes();
      const std::string unwritten =
          write_parameters(given.before_round, given.params_hash,
                           {reinterpret_cast<const float*>(bytes.data()), bytes.size() / 4});
      std::string why;
      std::optional<Known> known;
      try {
        known = follow();
      } catch (const std::exception& error) {
        why = error.what();
      }
      Work after(*this);
      keeping = -1;
      if (ask && ask->before_round <= given.before_round) ask = {};
      first_giver = {};
      if (!why.empty()) return fail(after, why);
      try_again_at = unwritten.empty() ? 0 : open.round() + kPatience;
      if (unwritten.empty()) {
        observer.on_parameters(given.before_round, given.params_hash, name_of(given.number));
      } else {
        observer.on_warning(concat(unwritten, "; requested again after round ", try_again_at));
      }
      learn_hash(known);
      evaluate(after);
    });
  });
}

// Why the parameters are not on disk; empty: they are. Rounds continue without them, and new
// workers replay more records.
std::string Impl::write_parameters(std::int64_t before_round, std::uint64_t hash,
                                   std::span<const float> params) {
  try {
    journal.keep_parameters(before_round, hash, params);
    return {};
  } catch (const DataError& error) {
    return concat("parameters before round ", before_round, ": ", error.what());
  }
}

std::optional<Impl::Known> Impl::follow() {
  if (!options.shadow) return {};
  if (!shadow) shadow = std::make_unique<Shadow>(*run);
  if (shadow->round() < 0) {
    const auto newest = journal.newest_parameters();
    if (!newest) return {};
    const std::string bytes =
        journal.parameters(newest->before_round)->read(0, 4 * newest->n_floats);
    shadow->take(newest->before_round,
                 {reinterpret_cast<const float*>(bytes.data()), newest->n_floats});
  }
  Known known;
  while (shadow->round() < journal.next_round()) {
    const auto stored = *journal.record(shadow->round());
    const std::string bytes = stored.read(0, stored.size());
    shadow->apply(std::as_bytes(std::span(bytes)), concat("shadow, round ", shadow->round()));
    const std::int64_t round = shadow->round();
    if (options.parameters_every == 0 || round % options.parameters_every != 0) continue;
    known.unwritten = write_parameters(round, shadow->hash(), shadow->params().span());
    if (known.unwritten.empty()) known.kept = round;
  }
  known.round = shadow->round();
  known.hash = shadow->hash();
  return known;
}

void Impl::learn_hash(const std::optional<Known>& now_known) {
  if (!now_known) return;
  shadow_knows = now_known;
  ask = {};
  if (!now_known->unwritten.empty()) observer.on_warning(now_known->unwritten);
  if (now_known->kept >= 0) {
    observer.on_parameters(now_known->kept, journal.newest_parameters()->params_hash, "the shadow");
  }
}

OfferParametersReply Coordinator::offer_parameters(const OfferParametersRequest& request,
                                                   const Peer& peer, Time now) {
  OfferParametersReply reply;
  std::shared_ptr<Upload> upload;
  std::shared_ptr<const Serving> serving;
  Impl::Caller caller;
  {
    Impl::Work work(*impl_);
    caller = impl_->caller(request.session(), peer, now);
    const Impl::Place place =
        impl_->place_of(caller, PARAMETERS, request.before_round(), request.total());
    reply.set_refused(place.refused);
    upload = place.upload;
    serving = impl_->serving;
    if (upload && !upload->complete()) {
      reply.set_refused("chunks are missing");
      upload = nullptr;
    }
  }
  if (upload) {  // without the lock: two passes over all parameters
    const auto bytes = upload->bytes();
    const std::span<const float> params(reinterpret_cast<const float*>(bytes.data()),
                                        bytes.size() / 4);
    if (hash_bytes(bytes) != request.hash() ||
        serving->parameters_hash(params) != request.params_hash()) {
      reply.set_refused("the hash does not match the parameters");
    }
  }
  Impl::Work work(*impl_);
  if (upload) {
    impl_->at(caller.number).parameters = nullptr;
    if (reply.refused().empty()) {
      reply.set_refused(impl_->take_offer(
          work, {caller.number, request.before_round(), request.params_hash(), upload}));
    }
  }
  return impl_->done("OfferParameters", caller.number, peer, request, std::move(reply));
}

}  // namespace pride::coord
