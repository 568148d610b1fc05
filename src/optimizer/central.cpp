// SPDX-License-Identifier: Apache-2.0
#include "optimizer/central.h"

#include <algorithm>
#include <utility>

#include "codecs/frame.h"
#include "optimizer/run_values.h"
#include "optimizer/step_scalars.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/registry.h"

namespace pride {

Central::Central(const Layout& layout, const Sections& sections, std::span<const SectionStep> steps,
                 const OptimizerOptions& options, std::shared_ptr<CoordinatorClient> client,
                 RunWorkerOptions run)
    : layout_(layout),
      sections_(sections),
      steps_(steps),
      values_(layout, sections, steps),
      options_(options),
      client_(std::move(client)),
      run_(std::move(run)),
      rounds_(sections, steps),
      voter_{0, static_cast<std::uint16_t>(options.vote_weight)},
      replayed_(sections.by_bucket().size()) {}

RunDescription Central::description() const {
  const Section& first = sections_.of_group(0);
  RunDescription run{.method = first.method,
                     .options = first.options,
                     .tensors = {},
                     .groups = {},
                     .bucket_coords = options_.bucket_coords,
                     .seed = options_.seed,
                     .settings = run_.settings};
  for (const TensorSlot& slot : layout_.tensors()) run.tensors.push_back(slot.spec);
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    const auto index = static_cast<int>(g);
    const Section& section = sections_.of_group(index);
    const auto values = complete_group(options_.groups[g], section.info, index);
    ParamGroup& group = run.groups.emplace_back(settings_of(values, section.info));
    group.lr.reset();
    if (&section == &first) continue;
    group.method = section.method;
    group.options = section.options;
  }
  return run;
}

std::string Central::where(std::int64_t round) const {
  return concat("coordinator, round ", round);
}

// Before the first replay: local steps copy the parameters.
void Central::begin(View x) const {
  std::vector<ParameterPlace> room;
  for (const SectionStep& step : steps_) {
    if (step.is_local()) step.method->local()->begin(step.section->view(x, room));
  }
}

// --- Records. ------------------------------------------------------------------------------------

RoundRecord Central::read(std::span<const std::byte> bytes, std::int64_t round,
                          const std::string& where) const {
  RoundRecord record = decode_record(bytes, where);
  if (record.round != round) {
    throw CommError(concat(where, ": the record is of round ", record.round, ", must be ", round));
  }
  if (record.scalars.size() != options_.groups.size()) {
    throw CommError(concat(where, ": the record has scalars of ", record.scalars.size(),
                           " groups, this worker has ", options_.groups.size(), " groups"));
  }
  rounds_.check_record(record, options_.seed, where);
  return record;
}

// The record's voters and scalars go to ctx, its frames to the flights. It must outlive both.
void Central::take_results(const RoundRecord& record, StepContext& ctx, std::span<Flight> flights) {
  weights_ = rounds_.weights_of(record.voters);
  static_cast<SharedContext&>(ctx) = rounds_.shared_context(
      record.round, options_.seed, digest_of(record.scalars), record.voters, weights_);
  ctx.groups = record.scalars;
  std::span<const std::byte> rest = record.frames;
  rounds_.for_parts(ctx, [&](std::size_t b, std::size_t k, const Part& part, const Shard& shard) {
    const std::size_t head = part.down.bytes(shard), body = part.down.body_bytes(shard);
    Wire& wire = flights[b].wires[k];
    wire.down[0].resize(head);  // which may depend on the voters
    std::ranges::copy(rest.first(head), wire.down[0].span().begin());
    if (body > 0 && wire.down_body[0].empty()) {  // the step was not encoded
      wire.room.resize(body);
      wire.down_body[0] = wire.room.span();
    }
    if (body > 0) std::ranges::copy(rest.subspan(head, body), wire.down_body[0].begin());
    rest = rest.subspan(head + body);
  });
}

void Central::apply(View x, const RoundRecord& record) {
  begin(x);
  const std::vector<char> unused(layout_.tensors().size(), 1);  // no gradient of this worker
  StepContext ctx;
  ctx.rank = voter_.number;
  ctx.unused = unused;
  static_cast<SharedContext&>(ctx) = {.step = record.step, .central = true};
  const auto& order = sections_.by_bucket();
  for (std::size_t b = 0; b < order.size(); ++b) {
    steps_[order[b].section].buckets.make_room(order[b].index, ctx, replayed_[b]);
  }
  take_results(record, ctx, replayed_);
  std::vector<std::vector<ParameterPlace>> places(steps_.size());
  std::vector<View> views;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    views.push_back(sections_[s].view(x, places[s]));
  }
  for (std::size_t b = 0; b < order.size(); ++b) {
    const auto& [section, index] = order[b];
    steps_[section].buckets.replay(index, replayed_[b], ctx, views[section]);
  }
}

void Central::replay(View x, std::int64_t round, std::span<const std::byte> bytes,
                     const std::string& where) {
  const RoundRecord record = read(bytes, round, where);
  const std::uint64_t hash = values_.hash(x);
  if (record.params_hash != hash) {
    throw CommError(concat(where, ": the record is for parameters with hash ", record.params_hash,
                           ", the given parameters have ", hash));
  }
  apply(x, record);
}

// --- A round with a ballot of this worker. -------------------------------------------------------

Central::Results Central::exchange(View x, std::span<SectionStep> steps,
                                   std::span<Flight> flights) {
  StepContext& ctx = steps.front().ctx;
  const std::int64_t round = ctx.step / period();
  const std::vector<std::byte> frames = rounds_.ballot(ctx, voter_, flights);
  const std::uint64_t hash = values_.hash(x);
  answer_ = client_->vote({.round = round,
                           .params_hash = hash,
                           .scalars = encode_scalars(ctx.groups),
                           .frames = frames,
                           .loss = run_.report_loss ? run_.report_loss() : std::nullopt});
  record_ = read(answer_.record, round, where(round));
  other_parameters_ = record_.params_hash != hash;
  const bool listed = std::ranges::count(record_.voters, voter_.number, &Voter::number) > 0;
  if (answer_.counted && (other_parameters_ || !listed)) {
    throw CommError(concat(where(round), ": the coordinator counted this worker's ballot, but its ",
                           "record ", listed ? "is for other parameters" : "does not list it"));
  }
  if (other_parameters_) return Results::kNothing;
  take_results(record_, ctx, flights);
  for (SectionStep& step : steps)
    static_cast<SharedContext&>(step.ctx) = static_cast<const SharedContext&>(ctx);
  return answer_.counted ? Results::kApply : Results::kReplay;
}

void Central::finish(View x, std::int64_t& round, bool voted, RoundReport& report) {
  if (!voted) {
    answer_ = client_->wait(round);
    record_ = read(answer_.record, round, where(round));
    other_parameters_ = record_.params_hash != values_.hash(x);
    answer_.counted = false;
    answer_.why_not = "its gradient is not finite";
    if (!other_parameters_) apply(x, record_);
  }
  report.round = round;
  report.voters = static_cast<int>(record_.voters.size());
  report.counted = answer_.counted;
  report.why_not = answer_.why_not;
  if (!other_parameters_) ++round;
  if (answer_.wants_parameters && !other_parameters_) give(x, round);
  if (!other_parameters_ && answer_.open_round <= round) return;
  welcome_ = client_->look();
  catch_up(x, round, other_parameters_, report);
}

// --- Parameters, and rounds that this worker missed. ---------------------------------------------

void Central::give(View x, std::int64_t round) {
  const FlatBuffer all = values_.copy(x);
  client_->put_parameters(round, values_.hash(all.span()), all.span());
}

// Adopts the coordinator's newest parameters, and returns the round before which they are.
std::int64_t Central::take(View x) {
  const std::int64_t round = *welcome_.parameters_round;
  FlatBuffer all(values_.floats());
  client_->get_parameters(round, all.span());
  const std::uint64_t hash = values_.hash(std::as_const(all).span());
  if (hash != welcome_.parameters_hash) {
    throw CommError(concat(where(round),
                           ": the coordinator's parameters before this round have hash ", hash,
                           ", must be ", welcome_.parameters_hash));
  }
  values_.take(all.span(), x);
  return round;
}

// Assumes records of one voter: frames of votes have the same size for any number of voters.
bool Central::replays_are_fewer_bytes(std::int64_t from) const {
  const auto groups = static_cast<int>(options_.groups.size());
  const auto record = static_cast<double>(rounds_.record_bytes(from, groups, {&voter_, 1}));
  const auto parameters = static_cast<double>(sizeof(float) * values_.floats());
  return record * static_cast<double>(*welcome_.parameters_round - from) <= parameters;
}

// Brings x from before `round` to before the open round, which welcome_ has.
void Central::catch_up(View x, std::int64_t& round, bool take_parameters, RoundReport& report) {
  const bool any = welcome_.parameters_round.has_value();
  const auto take_now = [&] {
    if (!any) {
      throw CommError(concat(where(round), ": this worker's parameters are not those of the run, ",
                             "and the coordinator has none to send"));
    }
    report.took_parameters = true;
    return take(x);
  };
  if (!take_parameters && round > welcome_.open_round) {
    throw CommError(concat(where(welcome_.open_round), " is open, this worker is at round ", round,
                           ": it is ahead of the coordinator's run, whose journal is an older "
                           "copy. Start the coordinator on the newest copy, or this worker without "
                           "its checkpoint; it then takes the run's parameters"));
  }
  const bool gone = round < welcome_.first_record && round < welcome_.open_round;
  if (take_parameters || gone ||
      (any && *welcome_.parameters_round > round && !replays_are_fewer_bytes(round))) {
    round = take_now();
  }
  while (round < welcome_.open_round) {
    for (; round < welcome_.open_round; ++round) {
      const RoundRecord record = read(client_->record(round), round, where(round));
      if (record.params_hash != values_.hash(x)) {
        if (report.took_parameters) {
          throw CommError(concat(where(round), ": the record is not for the parameters that the ",
                                 "coordinator sent"));
        }
        round = take_now();
        break;
      }
      apply(x, record);
      ++report.replayed;
    }
    welcome_ = client_->look();
  }
}

void Central::join(View x, std::int64_t& round) {
  begin(x);
  welcome_ = client_->join(description(), options_.vote_weight);
  if (welcome_.number < 0 || welcome_.number >= kMaxWorld) {
    throw CommError(concat("coordinator: this worker's number is ", welcome_.number,
                           ", must be from 0 to ", kMaxWorld - 1));
  }
  voter_.number = static_cast<std::uint16_t>(welcome_.number);
  if (!welcome_.parameters_round && round == welcome_.open_round) {
    give(x, round);
    welcome_ = client_->look();  // another worker may have sent its parameters first
  }
  const bool others = welcome_.parameters_round && *welcome_.parameters_round == round &&
                      welcome_.parameters_hash != values_.hash(x);
  RoundReport report;
  catch_up(x, round, others, report);
}

}  // namespace pride
