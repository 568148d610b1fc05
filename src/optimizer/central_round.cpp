// Ballots and records: byte layout, checks, and the server's half of a round.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/central_round.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "methods/vote_weights.h"
#include "optimizer/step_scalars.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

constexpr std::uint32_t kRecordMagic = 0x31435250;  // "PRC1" in memory order
constexpr std::uint16_t kRecordVersion = 2;
constexpr std::size_t kRecordHeaderBytes = 56, kChecksumAt = 48;
constexpr std::size_t kVoterBytes = 4, kScalarsBytes = 60;
constexpr std::uint32_t kMostGroups = 65535;
static_assert(sizeof(StepScalars) == kScalarsBytes,
              "fifteen floats, in the order of their members");

template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) {
  std::memcpy(out.subspan(at, sizeof(T)).data(), &value, sizeof(T));
}

template <typename T>
T get(std::span<const std::byte> in, std::size_t at) {
  T value;
  std::memcpy(&value, in.subspan(at, sizeof(T)).data(), sizeof(T));
  return value;
}

// Covers the header up to the checksum, then all that follows it.
std::uint64_t checksum(std::span<const std::byte> record) {
  return hash_bytes(record.subspan(kRecordHeaderBytes), hash_bytes(record.first(kChecksumAt)));
}

template <typename... What>
[[noreturn]] void refuse(const std::string& where, const What&... what) {
  throw CommError(concat(where, ": ", what...));
}

FrameHeader ballot_header(const Part& part, const Shard& shard, const SharedContext& shared,
                          Voter voter) {
  return {.codec = part.up.codec,
          .bucket = static_cast<std::uint32_t>(part.bucket),
          .rank = voter.number,
          .weight = voter.weight,
          .step = static_cast<std::uint64_t>(shared.step),
          .n_coords = shard.size(),
          .scalars = shared.scalars_digest,
          .non_finite = {}};
}

// The frame that begins at `at`: its head, then its body.
Frame frame_at(std::span<const std::byte> bytes, std::size_t at, const FrameKind& kind,
               const Shard& shard) {
  const std::size_t head = kind.bytes(shard);
  return {bytes.subspan(at, head), bytes.subspan(at + head, kind.body_bytes(shard))};
}

FrameHeader record_header(const Part& part, const Shard& shard, const SharedContext& shared) {
  FrameHeader header = ballot_header(part, shard, shared, {});
  header.codec = part.down.codec;
  return header;
}

}  // namespace

// --- Scalars. ------------------------------------------------------------------------------------

std::vector<std::byte> encode_scalars(std::span<const StepScalars> scalars) {
  const auto bytes = std::as_bytes(scalars);
  return {bytes.begin(), bytes.end()};
}

std::vector<StepScalars> decode_scalars(std::span<const std::byte> bytes, int groups,
                                        const std::string& where) {
  const std::size_t expected = kScalarsBytes * static_cast<std::size_t>(groups);
  if (bytes.size() != expected) {
    refuse(where, "the scalars have ", bytes.size(), " bytes, those of ", groups, " groups have ",
           expected);
  }
  std::vector<StepScalars> scalars(static_cast<std::size_t>(groups));
  if (groups > 0) std::memcpy(scalars.data(), bytes.data(), bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    const auto value = get<float>(bytes, at);
    if (!std::isfinite(value)) {
      refuse(where, "a scalar of group ", at / kScalarsBytes, " is ", value, ", must be finite");
    }
  }
  return scalars;
}

// --- Records. ------------------------------------------------------------------------------------

std::vector<std::byte> encode_record(const RoundRecord& r) {
  const std::vector<std::byte> scalars = encode_scalars(r.scalars);
  std::vector<std::byte> out(kRecordHeaderBytes + scalars.size() + kVoterBytes * r.voters.size() +
                             r.frames.size());
  put<std::uint32_t>(out, 0, kRecordMagic);
  put<std::uint16_t>(out, 4, kRecordVersion);
  put<std::uint16_t>(out, 6, 0);
  put<std::int64_t>(out, 8, r.round);
  put<std::int64_t>(out, 16, r.step);
  put<std::uint64_t>(out, 24, r.params_hash);
  put<std::uint32_t>(out, 32, static_cast<std::uint32_t>(r.scalars.size()));
  put<std::uint32_t>(out, 36, static_cast<std::uint32_t>(r.voters.size()));
  put<std::uint64_t>(out, 40, r.frames.size());
  std::ranges::copy(scalars, out.begin() + kRecordHeaderBytes);
  std::size_t at = kRecordHeaderBytes + scalars.size();
  for (const Voter& voter : r.voters) {
    put(out, at, voter.number);
    put(out, at + 2, voter.weight);
    at += kVoterBytes;
  }
  std::ranges::copy(r.frames, out.begin() + static_cast<std::ptrdiff_t>(at));
  put<std::uint64_t>(out, kChecksumAt, checksum(out));
  return out;
}

RoundRecord decode_record(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < kRecordHeaderBytes) {
    refuse(where, "the record has ", bytes.size(), " bytes, its header has ", kRecordHeaderBytes);
  }
  const auto must_be = [&](std::string_view field, std::uint64_t got, std::uint64_t expected) {
    if (got != expected) {
      refuse(where, "the record has ", field, " ", got, ", must be ", expected);
    }
  };
  must_be("magic", get<std::uint32_t>(bytes, 0), kRecordMagic);
  must_be("version", get<std::uint16_t>(bytes, 4), kRecordVersion);
  must_be("checksum", get<std::uint64_t>(bytes, kChecksumAt), checksum(bytes));
  must_be("flags", get<std::uint16_t>(bytes, 6), 0);
  const auto groups = get<std::uint32_t>(bytes, 32), voters = get<std::uint32_t>(bytes, 36);
  if (groups < 1 || groups > kMostGroups)
    refuse(where, "the record has ", groups, " groups, must be from 1 to ", kMostGroups);
  if (voters < 1 || voters > kMaxWorld)
    refuse(where, "the record has ", voters, " voters, must be from 1 to ", kMaxWorld);
  const std::size_t scalars_end = kRecordHeaderBytes + kScalarsBytes * groups;
  const std::size_t voters_end = scalars_end + kVoterBytes * voters;
  if (bytes.size() < voters_end) {
    refuse(where, "the record has ", bytes.size(), " bytes, too few for its ", groups,
           " groups and ", voters, " voters");
  }
  must_be("bytes of frames", get<std::uint64_t>(bytes, 40), bytes.size() - voters_end);

  RoundRecord r;
  r.round = get<std::int64_t>(bytes, 8);
  r.step = get<std::int64_t>(bytes, 16);
  if (r.round < 0 || r.step < r.round) {
    refuse(where, "the record is of round ", r.round, " and step ", r.step,
           ": the round must be 0 or more, the step at least the round");
  }
  r.params_hash = get<std::uint64_t>(bytes, 24);
  r.scalars = decode_scalars(bytes.subspan(kRecordHeaderBytes, kScalarsBytes * groups),
                             static_cast<int>(groups), where);
  for (std::size_t at = scalars_end; at < voters_end; at += kVoterBytes) {
    const Voter voter{get<std::uint16_t>(bytes, at), get<std::uint16_t>(bytes, at + 2)};
    if (voter.weight == 0 || (!r.voters.empty() && voter.number <= r.voters.back().number)) {
      refuse(where, "voter ", voter.number, " with ", voter.weight,
             " votes: numbers must ascend, and each voter must have a vote");
    }
    r.voters.push_back(voter);
  }
  r.frames.assign(bytes.begin() + static_cast<std::ptrdiff_t>(voters_end), bytes.end());
  return r;
}

// --- Rounds. -------------------------------------------------------------------------------------

CentralRound::CentralRound(const Sections& sections, std::span<const SectionStep> steps)
    : sections_(sections), steps_(steps), period_(steps.front().method->facts().period) {
  for (const SectionStep& step : steps) check(step);
}

void CentralRound::check(const SectionStep& step) const {
  const Method& method = *step.method;
  const SharedContext first{.step = step_of(0), .central = true};
  const Protocol protocol = method.protocol(first);
  PRIDE_CHECK(!protocol.preliminary, "a coordinator cannot serve ", step.section->method,
              ": its workers share scales before each step");
  PRIDE_CHECK(!method.state().has(StateKind::kServer), "a coordinator cannot serve ",
              step.section->method, ": its servers keep state of their own");
  for (const Bucket& bucket : step.section->buckets) {
    PRIDE_CHECK(bucket.shards.size() == 1, "a coordinator's buckets have one shard each, bucket ",
                bucket.index, " has ", bucket.shards.size());
    for (const Part& part : method.parts(bucket, first)) {
      PRIDE_CHECK(part.route != Route::kNative, "a coordinator cannot serve ", step.section->method,
                  ": the sum is the transport's own; set another `dense`");
      PRIDE_CHECK(part.route == Route::kSharded && part.up.sized, "a coordinator cannot serve ",
                  step.section->method, ": its frames use the ", route_name(part.route),
                  " route, or their length depends on data");
    }
  }
  PRIDE_CHECK(protocol.replays, "a coordinator cannot serve ", step.section->method,
              ": its workers share state that records do not "
              "contain, keep the part of a drift that was not applied, or exchange fragments");
}

void CentralRound::for_parts(const SharedContext& shared, const VisitPart& visit) const {
  for (std::size_t b = 0; b < sections_.by_bucket().size(); ++b) {
    const auto& [section, index] = sections_.by_bucket()[b];
    const Bucket& bucket = sections_[section].buckets[index];
    const std::vector<Part> parts = steps_[section].method->parts(bucket, shared);
    for (std::size_t k = 0; k < parts.size(); ++k) visit(b, k, parts[k], parts[k].shards[0]);
  }
}

std::vector<int> CentralRound::weights_of(std::span<const Voter> voters) const {
  std::vector<std::int64_t> given;
  for (const Voter& voter : voters) given.push_back(voter.weight);
  const SharedContext any{.step = step_of(0), .central = true};
  std::vector<int> weights;  // equal for all methods that have weights
  for (const SectionStep& step : steps_) {
    weights = vote_weights("coordinator", step.method->protocol(any), {}, given);
  }
  return weights;
}

SharedContext CentralRound::shared_context(std::int64_t round, std::uint64_t seed,
                                           std::uint64_t scalars_digest,
                                           std::span<const Voter> voters,
                                           std::span<const int> weights) const {
  return {.step = step_of(round),
          .voters = static_cast<int>(voters.size()),
          .seed = seed,
          .scalars_digest = scalars_digest,
          .weights = weights,
          .central = true};
}

std::size_t CentralRound::ballot_bytes(std::int64_t round) const {
  const auto by_section = bytes_by_section(round);
  return std::accumulate(by_section.begin(), by_section.end(), std::size_t{0});
}

std::vector<std::size_t> CentralRound::bytes_by_section(std::int64_t round) const {
  std::vector<std::size_t> bytes(sections_.size());
  for_parts({.step = step_of(round), .central = true},
            [&](std::size_t b, std::size_t, const Part& part, const Shard& shard) {
              bytes[sections_.by_bucket()[b].section] += part.up.all_bytes(shard);
            });
  return bytes;
}

std::size_t CentralRound::record_bytes(std::int64_t round, int groups,
                                       std::span<const Voter> voters) const {
  const std::vector<int> weights = weights_of(voters);
  std::size_t bytes = kRecordHeaderBytes + kScalarsBytes * static_cast<std::size_t>(groups) +
                      kVoterBytes * voters.size();
  for_parts(shared_context(round, 0, 0, voters, weights),
            [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
              bytes += part.down.all_bytes(shard);
            });
  return bytes;
}

std::vector<std::byte> CentralRound::ballot(const SharedContext& shared, Voter voter,
                                            std::span<const Flight> flights) const {
  std::vector<std::byte> out;
  for_parts(shared, [&](std::size_t b, std::size_t k, const Part& part, const Shard& shard) {
    const Wire& wire = flights[b].wires[k];
    const auto head = wire.up[0].span();
    const std::size_t begin = out.size();
    out.insert(out.end(), head.begin(), head.end());
    out.insert(out.end(), wire.up_body[0].begin(), wire.up_body[0].end());
    const auto frame = std::span(out).subspan(begin);
    seal(ballot_header(part, shard, shared, voter), frame.first(head.size()),
         frame.subspan(head.size()));
  });
  return out;
}

void CentralRound::check_ballot(std::int64_t round, std::uint64_t seed,
                                std::uint64_t scalars_digest, Voter voter,
                                std::span<const std::byte> ballot) const {
  const std::string who = concat("ballot of worker ", voter.number, ", round ", round);
  if (const std::size_t expected = ballot_bytes(round); ballot.size() != expected) {
    refuse(who, ballot.size(), " bytes, must be ", expected);
  }
  const SharedContext shared = shared_context(round, seed, scalars_digest, {&voter, 1}, {});
  std::size_t at = 0;
  for_parts(shared, [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
    const Frame frame = frame_at(ballot, at, part.up, shard);
    const std::string where = concat(who, ": ", part.up.name, " frames of bucket ", part.bucket);
    const auto bad = open(frame, ballot_header(part, shard, shared, voter), where);
    if (bad) refuse(where, "tensor ", bad->tensor, " is not finite: a ballot must be finite");
    check_payload(part.up, {frame, shard, voter.number, where}, false);
    at += part.up.all_bytes(shard);
  });
}

std::vector<std::byte> CentralRound::serve(
    std::int64_t round, std::uint64_t seed, std::uint64_t scalars_digest,
    std::span<const Voter> voters, std::span<const std::span<const std::byte>> ballots) const {
  PRIDE_CHECK(!voters.empty() && voters.size() == ballots.size(), "round ", round, ": ",
              voters.size(), " voters with ", ballots.size(), " ballots");
  const std::vector<int> weights = weights_of(voters);
  const SharedContext shared = shared_context(round, seed, scalars_digest, voters, weights);
  std::vector<std::byte> out;
  std::size_t at = 0;
  for_parts(shared, [&](std::size_t b, std::size_t, const Part& part, const Shard& shard) {
    const SectionStep& step = steps_[sections_.by_bucket()[b].section];
    const std::size_t begin = out.size();
    std::vector<Frame> frames;
    for (const auto ballot : ballots) frames.push_back(frame_at(ballot, at, part.up, shard));
    at += part.up.all_bytes(shard);
    out.resize(begin + part.down.all_bytes(shard));
    const auto head = std::span(out).subspan(begin, part.down.bytes(shard));
    const auto body = std::span(out).subspan(begin + head.size());
    ByteBuffer pending;
    Reply reply{FrameRole::kDown, head, body, pending};
    const std::string where =
        concat("round ", round, ": ", part.up.name, " frames of bucket ", part.bucket);
    step.method->serve(part, shard, {FrameRole::kUp, frames, where, weights}, shared, reply);
    if (reply.non_finite) {
      refuse(where, "tensor ", step.section->in_all(*reply.non_finite).tensor, " overflows");
    }
    seal(record_header(part, shard, shared), head, body);
  });
  return out;
}

void CentralRound::check_record(const RoundRecord& record, std::uint64_t seed,
                                const std::string& where) const {
  if (record.step != step_of(record.round)) {
    refuse(where, "the record of round ", record.round, " is of step ", record.step, ", must be ",
           step_of(record.round));
  }
  std::vector<int> weights;
  try {
    weights = weights_of(record.voters);
  } catch (const InvalidArgument& e) {
    refuse(where, e.what());
  }
  const SharedContext shared =
      shared_context(record.round, seed, digest_of(record.scalars), record.voters, weights);
  const std::span<const std::byte> frames = record.frames;
  std::size_t at = 0;
  for_parts(shared, [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
    const std::size_t n = part.down.all_bytes(shard);
    if (frames.size() - at < n) {
      refuse(where, "the record ends inside the ", part.down.name, " frame of bucket ",
             part.bucket);
    }
    const Frame frame = frame_at(frames, at, part.down, shard);
    const std::string text = concat(where, ": ", part.down.name, " frames of bucket ", part.bucket);
    const auto bad = open(frame, record_header(part, shard, shared), text);
    if (bad) refuse(text, "tensor ", bad->tensor, " is not finite");
    check_payload(part.down, {frame, shard, 0, text}, true);
    at += n;
  });
  if (at != frames.size()) {
    refuse(where, "the record has ", frames.size() - at, " bytes after its frames");
  }
}

}  // namespace pride
