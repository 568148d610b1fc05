// Registrations, sessions, liveness; the calls that do not concern a round.
// SPDX-License-Identifier: Apache-2.0
#include "coord/coordinator.h"

#include <algorithm>
#include <cstring>

#include "coord/coordinator_impl.h"
#include "coord/refusals.h"
#include "coord/run_message.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

constexpr std::size_t kSessionsRemembered = 8;
constexpr int kMostSamples = 65'535;  // the largest number that fits in a ballot's header

const CoordinatorOptions& checked(const CoordinatorOptions& o) {
  PRIDE_CHECK(!o.folder.empty(), "coordinator: it needs a folder");
  PRIDE_CHECK(o.quorum.min_workers >= 1, "coordinator: min_workers is ", o.quorum.min_workers);
  PRIDE_CHECK(o.quorum.share > 0 && o.quorum.share <= 1, "coordinator: a quorum of the share ",
              o.quorum.share, ", must be above 0 and at most 1");
  PRIDE_CHECK(o.quorum.count.value_or(1) >= 1, "coordinator: a quorum of ", *o.quorum.count);
  const int most_weight = o.most_weight_of_a_worker();
  PRIDE_CHECK(most_weight >= 1 && most_weight <= kMostSamples, "coordinator: most_weight is ",
              most_weight, ", must be from 1 to ", kMostSamples);
  PRIDE_CHECK(o.dead_after > Seconds(0), "coordinator: dead_after must be above 0");
  PRIDE_CHECK(o.max_workers >= 1, "coordinator: max_workers is ", o.max_workers);
  PRIDE_CHECK(o.quorum.least_voters() <= o.max_workers,
              "coordinator: min_workers or the quorum is ", o.quorum.least_voters(),
              ", max_workers ", o.max_workers, ": no round could close");
  PRIDE_CHECK(o.parameters_every >= 0, "coordinator: parameters_every is ", o.parameters_every);
  return o;
}

// A refusal may contain a worker's text, and is printed in logs and pages.
std::string printable(std::string text) {
  constexpr std::size_t kMost = 500;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  std::memcpy(&number, random_token().data(), sizeof number);
  return number;
}

}  // namespace

int CoordinatorOptions::most_weight_of_a_worker() const {
  return most_weight.value_or(weighting == Weighting::kLearned ? LearnedWeights::kFew
                                                               : kMostSamples);
}

Coordinator::Impl::Impl(CoordinatorOptions given, MakeServing make, Run run_tasks,
                        Observer& watcher, Time time)
    : options(checked(given)),
      make_serving(std::move(make)),
      run_later(std::move(run_tasks)),
      observer(watcher),
      journal(options.folder, options.segment_bytes, options.retain_all),
      now(time),
      quorum(options.quorum),
      registrations(options),
      open(journal.next_round()),
      grace(options.quorum),
      learned(options.most_weight_of_a_worker()),
      sample_key(random_number()) {
  for (const std::string& note : journal.notes()) observer.on_journal(note);
  if (journal.registrations()) {
    registrations.load(*journal.registrations(), (options.folder / kRegistrationsFile).string());
    workers.resize(registrations.entries().size());
  }
  if (!journal.run()) return;
  run = decode_run(*journal.run());
  serving = make_serving(*run);
  set_length();
  recall_last_record(time);
  learn_hash(follow());
}

std::string Coordinator::Impl::stopped() const {
  if (!failed.empty()) return concat(kFailed, ": ", failed);
  return stopping ? std::string(kStops) : "";
}

Coordinator::Impl::Caller Coordinator::Impl::caller(const std::string& session, const Peer& peer,
                                                    Time time) {
  pass(time);
  if (std::string why = stopped(); !why.empty()) return {.refused = why};
  const auto found = sessions.find(session);
  if (found == sessions.end()) {
    return {.refused = concat(kRegisterAgain, ": this session is not known")};
  }
  const int number = found->second;
  Worker& worker = at(number);
  if (worker.session != session) {
    return {.refused = concat("'", name_of(number), "' registered again, at ", worker.peer.address,
                              ": only the newest session counts")};
  }
  if (worker.peer.certificate != peer.certificate) {
    return {.refused = "the certificate differs from that of the registration"};
  }
  worker.peer = peer;
  worker.seen = now;
  worker.live = true;
  return {.number = number};
}

void Coordinator::Impl::set_state(RunState& state) const {
  state.set_open_round(open.round());
  state.set_first_record(journal.first_record());
  const auto newest = journal.newest_parameters();
  state.set_parameters_round(newest ? newest->before_round : -1);
  state.set_steps(length.steps);
  state.set_last_step(length.last_step);
  if (!newest) return;
  state.set_parameters_hash(newest->params_hash);
  state.set_parameters_bytes(4 * newest->n_floats);
}

void Coordinator::Impl::count_bytes(int number, std::uint64_t in, std::uint64_t out) {
  bytes_in += in;
  bytes_out += out;
  if (number < 0) return;
  at(number).bytes_in += in;
  at(number).bytes_out += out;
}

void Coordinator::Impl::note_refused(const char* call, int number, const Peer& peer,
                                     const std::string& why) {
  if (why.empty()) return;
  ++calls_refused;
  observer.on_refused(call, number, number < 0 ? "" : name_of(number), peer, why);
}

void Coordinator::Impl::fail(Work& work, const std::string& why) {
  failed = why;
  observer.on_failed(why);
  answer_all(work);
}

std::string Coordinator::Impl::register_refusal(const RegisterRequest& request, const Peer& peer,
                                                Time time, Registrations::Found& found) {
  if (std::string why = stopped(); !why.empty()) return why;
  if (request.protocol() != kProtocol) {
    return concat("the worker has protocol ", request.protocol(), ", this coordinator ", kProtocol,
                  ": install the same pride");
  }
  RunDescription theirs;
  std::shared_ptr<const Serving> new_serving;
  try {
    theirs = decode_run(request.run());
    if (!run) new_serving = make_serving(theirs);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  if (run) {
    const std::int64_t steps = ordered(orders).steps;
    if (const auto differs = coord::difference(*run, theirs, steps)) {
      return concat("another run: ", *differs, at_end().empty() ? "" : "; " + at_end(),
                    steps > 0 && steps_of(theirs) > steps ? kMakeLonger : "");
    }
  }
  if (new_serving && options.weighting != Weighting::kEqual && new_serving->most_votes() == 0) {
    return concat("the coordinator weighs votes, and ", theirs.method, " has no weights");
  }
  if (new_serving && options.weighting == Weighting::kLearned && !new_serving->has_signs()) {
    return concat("the coordinator learns weights from signs, and ballots of ", theirs.method,
                  " have none; start it with --weights equal or samples");
  }
  if (orders.ejected.contains(peer.certificate.empty() ? request.name() : peer.certificate)) {
    return std::string(kEjected);
  }
  const int weight =
      request.vote_weight() == 0 ? 1 : static_cast<int>(std::min(request.vote_weight(), 65536u));
  found = registrations.find_or_add(request.name(), request.secret(), weight, peer, time);
  if (!found.refused.empty() || !new_serving) return found.refused;
  journal.begin(encode_run(theirs, random_token()));
  run = std::move(theirs);
  serving = std::move(new_serving);
  set_length();
  return {};
}

void Coordinator::Impl::begin_session(int number, const Peer& peer, Time time) {
  Worker& worker = at(number);
  if (!worker.session.empty()) worker.ended.push_back(worker.session);
  if (worker.ended.size() > kSessionsRemembered) {
    sessions.erase(worker.ended.front());
    worker.ended.pop_front();
  }
  worker.session = random_token();
  sessions[worker.session] = number;
  worker.peer = peer;
  worker.seen = time;
  worker.live = true;
}

void Coordinator::Impl::put_away(int number) {
  Worker& worker = at(number);
  worker.live = false;
  worker.ballot = worker.parameters = nullptr;
}

// Erases the session, so that a call still in flight does not make the worker live again.
void Coordinator::Impl::end_session(int number) {
  put_away(number);
  sessions.erase(at(number).session);
  at(number).session.clear();
}

Coordinator::Coordinator(CoordinatorOptions options, MakeServing make_serving, Run run,
                         Observer& observer, Time now)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(make_serving), std::move(run),
                                   observer, now)) {}

Coordinator::~Coordinator() = default;

RegisterReply Coordinator::register_worker(const RegisterRequest& request, const Peer& peer,
                                           Time now) {
  Impl::Work work(*impl_);
  impl_->pass(now);
  RegisterReply reply;
  Registrations::Found found;
  try {
    reply.set_refused(printable(impl_->register_refusal(request, peer, impl_->now, found)));
    if (reply.refused().empty() && found.changed) {
      impl_->workers.resize(impl_->registrations.entries().size());
      impl_->journal.save_registrations(impl_->registrations.save());
    }
  } catch (const Error& error) {
    impl_->fail(work, error.what());
    reply.set_refused(impl_->stopped());
  }
  if (reply.refused().empty()) {
    impl_->begin_session(found.number, peer, impl_->now);
    if (impl_->options.weighting == Weighting::kEqual && request.vote_weight() > 1) {
      impl_->observer.on_warning(
          concat("worker ", impl_->name_of(found.number), " asks for ", request.vote_weight(),
                 " votes, but each worker has one: start with --weights samples"));
    }
    impl_->observer.on_joined(found.number, impl_->name_of(found.number), peer, found.added);
    reply.set_session(impl_->at(found.number).session);
    reply.set_number(static_cast<std::uint32_t>(found.number));
    reply.set_heartbeat_ms(impl_->options.heartbeat_ms);
    impl_->set_state(*reply.mutable_state());
  }
  const int number = reply.refused().empty() ? found.number : -1;
  return impl_->done("Register", number, peer, request, std::move(reply));
}

HeartbeatReply Coordinator::heartbeat(const HeartbeatRequest& request, const Peer& peer, Time now) {
  Impl::Work work(*impl_);
  HeartbeatReply reply;
  const Impl::Caller caller = impl_->caller(request.session(), peer, now);
  if (caller) {
    // a worker cannot make rounds wait by claiming more than it has fetched
    Worker& worker = impl_->at(caller.number);
    worker.round = std::min(request.round(), worker.can_be_at);
    if (request.leaves()) {
      impl_->end_session(caller.number);
      impl_->observer.on_left(caller.number, impl_->name_of(caller.number));
    }
    impl_->set_state(*reply.mutable_state());
    impl_->evaluate(work);
  }
  reply.set_refused(caller.refused);
  return impl_->done("Heartbeat", caller.number, peer, request, std::move(reply));
}

void Coordinator::tick(Time time) {
  Impl::Work work(*impl_);
  impl_->pass(time);
  const Time now = impl_->now;
  for (int number = 0; number < std::ssize(impl_->workers); ++number) {
    Worker& worker = impl_->at(number);
    if (worker.live && Seconds(now - *worker.seen) >= impl_->options.dead_after) {
      impl_->put_away(number);
      impl_->observer.on_lost(number, impl_->name_of(number), "no heartbeat");
    }
    if (worker.waiter && worker.waiter->until <= now) {
      impl_->answer(work, number, impl_->round_reply(number, worker.waiter->round));
    }
  }
  if (const auto due = impl_->few_voters_due(); due && *due <= now) {
    impl_->few_said = now;
    impl_->observer.on_warning(impl_->few_voters());
  }
  impl_->evaluate(work);
}

// The time of the next warning that a round has ballots, but too few.
std::optional<Time> Coordinator::Impl::few_voters_due() const {
  if (few_voters().empty()) return {};
  return std::max(*first_ballot + kFewAfter, few_said + kFewAgain);
}

std::string Coordinator::Impl::few_voters() const {
  const int least = quorum.least_voters(), in = votes().in_group;
  if (!first_ballot || closing || in >= least || !stopped().empty()) return {};
  return concat("round ", open.round(), " waits for voters: ", in, " of ", least, " are in it, ",
                std::ranges::count(workers, true, &Worker::live), " workers are live");
}

std::optional<Time> Coordinator::next_event() const {
  const std::lock_guard lock(impl_->mutex);
  std::optional<Time> next;
  const auto consider = [&](Time time, Seconds after) {
    // rounded up: not before the event
    const auto exact = time + std::chrono::ceil<std::chrono::nanoseconds>(after);
    next = next ? std::min(*next, Time(exact)) : Time(exact);
  };
  const bool waits = !impl_->closing && impl_->stopped().empty();
  if (waits && impl_->quorum_at) consider(*impl_->quorum_at, impl_->window);
  if (const auto due = impl_->few_voters_due()) consider(*due, Seconds(0));
  if (waits && impl_->split_since) consider(*impl_->split_since, impl_->quorum.most_grace);
  for (const Worker& worker : impl_->workers) {
    if (worker.live) consider(*worker.seen, impl_->options.dead_after);
    if (worker.waiter) consider(worker.waiter->until, Seconds(0));
  }
  return next;
}

void Coordinator::shutdown() {
  Impl::Work work(*impl_);
  impl_->stopping = true;
  impl_->answer_all(work);
}

}  // namespace pride::coord
