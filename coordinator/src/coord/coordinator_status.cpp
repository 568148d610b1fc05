// The state of a coordinator at a moment.
// SPDX-License-Identifier: Apache-2.0
#include "coord/coordinator_impl.h"
#include "coord/refusals.h"

namespace pride::coord {

Status Coordinator::status(Time now) const {
  const std::lock_guard lock(impl_->mutex);
  Status status{.method = impl_->run ? impl_->run->method : "",
                .coordinates = impl_->serving ? impl_->serving->coordinates() : 0,
                .open_round = impl_->open.round(),
                .first_record = impl_->journal.first_record(),
                .closing = impl_->closing,
                .voters_in = impl_->votes().in_group,
                .least_voters = impl_->quorum.least_voters(),
                .steps_done = impl_->serving ? impl_->open.round() * impl_->period() : 0,
                .last_step = impl_->length.last_step,
                .at_end = impl_->at_end(),
                .few_voters = impl_->few_voters(),
                .failed = impl_->failed,
                .grace = impl_->quorum_at ? impl_->window : impl_->grace.window(),
                .ballots_counted = impl_->ballots_counted,
                .ballots_late = impl_->ballots_late,
                .ballots_refused = impl_->ballots_refused,
                .calls_refused = impl_->calls_refused,
                .bytes_in = impl_->bytes_in,
                .bytes_out = impl_->bytes_out,
                .journal_bytes = impl_->journal.bytes(),
                .workers = {},
                .rounds = {impl_->reports.begin(), impl_->reports.end()}};
  const auto newest = impl_->journal.newest_parameters();
  status.parameters_round = newest ? newest->before_round : -1;
  for (int number = 0; number < std::ssize(impl_->workers); ++number) {
    const Worker& worker = impl_->at(number);
    WorkerStatus& one = status.workers.emplace_back();
    one = {.number = number,
           .name = impl_->name_of(number),
           .address = worker.peer.address,
           .certificate_until = worker.peer.certificate_until,
           .live = worker.live,
           .silent = {},
           .round = worker.round,
           .ended = worker.seen && !worker.live && worker.session.empty() && worker.round >= 0,
           .voted = impl_->open.of(number) != nullptr,
           .weight = worker.weight,
           .counted = worker.counted,
           .late = worker.late,
           .refused = worker.refused,
           .bytes_in = worker.bytes_in,
           .bytes_out = worker.bytes_out,
           .agreement = impl_->learned.agreement(number),
           .loss = worker.loss,
           .warning = worker.live && worker.lost.is_many() ? impl_->lost_warning(number) : ""};
    if (worker.seen) one.silent = std::max(Seconds(0), Seconds(now - *worker.seen));
  }
  return status;
}

}  // namespace pride::coord
