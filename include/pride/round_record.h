// The record of a coordinator's round: its result, its voters, the scalars of its step. Byte
// layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pride/step_scalars.h"

namespace pride {

struct Voter {
  std::uint16_t number = 0;  // of the worker
  std::uint16_t weight = 1;  // votes
};

struct RoundRecord {
  std::int64_t round = 0;
  std::int64_t step = 0;             // of the exchange: the last of its period
  std::uint64_t params_hash = 0;     // run_hash() before the round
  std::vector<StepScalars> scalars;  // of each group
  std::vector<Voter> voters;         // by ascending number; at least one
  std::vector<std::byte> frames;     // results, bucket by bucket, part by part
};

std::vector<std::byte> encode_record(const RoundRecord& record);
// Throws CommError, beginning with `where`, unless these are the whole bytes of a record of this
// version with a valid checksum. CentralRound::check_record() checks its frames.
RoundRecord decode_record(std::span<const std::byte> bytes, const std::string& where);

// Their digest is digest_of() in step_scalars.h.
std::vector<std::byte> encode_scalars(std::span<const StepScalars> scalars);
std::vector<StepScalars> decode_scalars(std::span<const std::byte> bytes, int groups,
                                        const std::string& where);

}  // namespace pride
