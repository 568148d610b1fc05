// A worker's half of a coordinator's round, without an optimizer: a ballot of any round.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "methods/registry.h"
#include "optimizer/central_round.h"
#include "optimizer/step_scalars.h"
#include "pride/error.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::testing {

inline constexpr std::uint64_t kSeed = 5;

// A method's half of a worker, without an optimizer.
struct Half {
  explicit Half(const std::string& name, std::map<std::string, std::string> options = {})
      : sections(layout, {.method = name, .options = std::move(options), .groups = {{}}}, 1),
        steps(sections.make_steps({.bucket_coords = 1000}, 1, Space::host())) {
    method->state().allocate(layout.flat_size());
  }

  std::vector<std::byte> ballot(const CentralRound& central, std::int64_t round, Voter voter) {
    StepContext ctx;
    static_cast<SharedContext&>(ctx) = {.step = central.step_of(round),
                                        .seed = kSeed,
                                        .scalars_digest = digest_of(scalars),
                                        .central = true};
    ctx.rank = voter.number;
    ctx.groups = scalars;
    std::vector<char> unused(layout.tensors().size(), 0);
    for (std::size_t t = 0; t < unused.size(); ++t) {
      unused[t] = testing::unused(voter.number, ctx.step, t) ? 1 : 0;
    }
    ctx.unused = unused;
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    fill(layout, x, initial);
    ctx.x = {.flat = ConstFloats(std::as_const(x).span())};
    fill(layout, g,
         [&](std::size_t t, std::size_t i) { return grad(voter.number, ctx.step, t, i); });
    std::vector<Flight> flights(buckets.size());
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      Flight& flight = flights[b];
      flight.grad = {.flat = g.data()};
      flight.parts = method->parts(buckets[b], ctx);
      flight.wires.resize(flight.parts.size());
      for (std::size_t k = 0; k < flight.parts.size(); ++k) {
        size_frames(flight.parts[k], ctx, flight.wires[k]);
      }
      method->encode(buckets[b], ctx, flight);
      if (flight.pack) flight.pack(flight);
    }
    return central.ballot(ctx, voter, flights);
  }

  std::function<float(int, std::int64_t, std::size_t, std::size_t)> grad = gradient;
  Layout layout{kTensors};
  Sections sections;
  std::vector<SectionStep> steps;
  Method* method = steps[0].method.get();
  const std::vector<Bucket>& buckets = sections[0].buckets;
  std::vector<StepScalars> scalars = {
      scalars_of({.lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}, 0)};
};

// The record of a round with ballots of these voters.
inline RoundRecord record_of(const CentralRound& central, std::vector<Voter> voters,
                             const std::vector<std::vector<std::byte>>& ballots,
                             const std::vector<StepScalars>& scalars) {
  const std::vector<std::span<const std::byte>> spans(ballots.begin(), ballots.end());
  RoundRecord record;
  record.round = 3;
  record.step = central.step_of(3);
  record.params_hash = 77;
  record.scalars = scalars;
  record.voters = std::move(voters);
  record.frames = central.serve(3, kSeed, digest_of(scalars), record.voters, spans);
  return record;
}

inline std::string error_of(const std::function<void()>& body) {
  return texts::error_of<CommError>(body);
}

}  // namespace pride::testing
