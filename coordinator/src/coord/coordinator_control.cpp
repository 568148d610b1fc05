// An operator's orders during a run.
// SPDX-License-Identifier: Apache-2.0
#include "coord/coordinator_impl.h"
#include "coord/refusals.h"
#include "coord/run_message.h"
#include "pride/error.h"

namespace pride::coord {

using Impl = Coordinator::Impl;

RunLength Impl::ordered(const Orders& given) const {
  if (!run) return {};
  RunLength out{.steps = steps_of(*run)};
  if (out.steps > 0) out.steps = std::max(out.steps, given.steps.value_or(0));
  out.last_step = out.steps;
  if (!given.last_round) return out;
  const std::int64_t last = (*given.last_round + 1) * period();
  if (out.steps == 0 || last < out.steps) out.last_step = last;
  return out;
}

std::string Impl::refuse(const Orders& given) const {
  if (std::string why = stopped(); !why.empty()) return why;
  const int least = std::max(given.min_workers.value_or(1), given.quorum.value_or(1));
  if (least > options.max_workers) {
    return concat(least, " voters, --max-workers is ", options.max_workers);
  }
  if (!run) return {};
  if (given.steps && *given.steps < steps_of(*run)) {
    return concat("steps ", *given.steps, ": the run has ", steps_of(*run),
                  "; `finish ROUND` ends it earlier");
  }
  if (given.steps && steps_of(*run) == 0) return "steps: the run's settings have none";
  // workers have begun the open round, so it cannot be beyond the end
  const std::int64_t last = ordered(given).last_step;
  if (!sessions.empty() && last != length.last_step && last / period() <= open.round() &&
      last > 0) {
    return concat("the run would end with round ", last / period() - 1, ", and round ",
                  open.round(), " is open: `finish ", open.round(), "` is the earliest end");
  }
  return {};
}

std::string Impl::at_end() const {
  if (length.last_step == 0 || open.round() < length.last_step / period()) return {};
  return concat("the run is at its end (step ", std::max(length.last_step, open.round() * period()),
                ")");
}

void Impl::eject(Work& work, int number) {
  if (!closing) {
    open.remove(number);
    if (open.ballots().empty()) first_ballot = quorum_at = {};
  }
  WaitRoundReply reply;
  reply.set_refused(std::string(kEjected));
  answer(work, number, std::move(reply));
  if (at(number).live) observer.on_lost(number, name_of(number), "ejected");
  end_session(number);
}

std::string Coordinator::obey(const Orders& orders, Time now) {
  Impl::Work work(*impl_);
  impl_->pass(now);
  if (std::string why = impl_->refuse(orders); !why.empty()) return why;
  impl_->orders = orders;
  QuorumOptions& quorum = impl_->quorum;
  quorum = impl_->options.quorum;
  quorum.min_workers = orders.min_workers.value_or(quorum.min_workers);
  if (orders.quorum) quorum.count = orders.quorum;
  for (int number = 0; number < std::ssize(impl_->workers); ++number) {
    if (orders.ejected.contains(impl_->name_of(number))) impl_->eject(work, number);
  }
  // no worker has begun the open round, so its length may change
  if (impl_->sessions.empty() || !impl_->at_end().empty()) impl_->set_length();
  impl_->evaluate(work);
  return {};
}

}  // namespace pride::coord
