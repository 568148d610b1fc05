// Distributed Lion's vote as functions of one shard, for the methods that vote with signs;
// encode_signs.h has the worker's other half.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/signs.h"
#include "methods/sign_method.h"

namespace pride::methods {

// Result of a tied vote: a bit that all ranks share, or zero (a ternary result).
enum class Tie { kHash, kZero };

// Option `tie`, and its declaration.
Tie tie_option(const std::string& method, const MethodContext& ctx);
MethodOption tie_option_info(std::string tied);

// Server: the majority of frames of signs. `matrices`: as in apply_vote().
void serve_vote(const Shard& shard, const Ballots& up, const Round& round, Tie tie,
                std::span<std::byte> result, const OrthogonalBlend* matrices = nullptr);

// Worker: x = (1 - lr wd) x - lr vote; only decay where no rank uses the tensor. `matrices`: their
// scales multiply lr.
void apply_vote(Space& space, const Shard& shard, const VoteView<const std::byte>& vote,
                const StepContext& ctx, View x, const OrthogonalBlend* matrices = nullptr);

// dlion-muon, under the name of another method in errors.
std::unique_ptr<SignMethod> make_muon_vote(const std::string& name, const MethodContext& ctx);

}  // namespace pride::methods
