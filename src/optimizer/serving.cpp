// The Serving of a run: its methods from the registry, for a world of one, and CentralRound.
// SPDX-License-Identifier: Apache-2.0
#include "pride/serving.h"

#include <algorithm>
#include <limits>

#include "codecs/signs.h"
#include "methods/registry.h"
#include "optimizer/central_round.h"
#include "optimizer/run_values.h"
#include "optimizer/step_scalars.h"
#include "pride/error.h"

namespace pride {
namespace {

class CentralServing final : public Serving {
 public:
  explicit CentralServing(const RunDescription& run)
      : layout_(run.tensors),
        options_(optimizer_options(run)),
        sections_(layout_, options_, 1),
        steps_(sections_.make_steps(options_, 1, Space::host())),
        values_(layout_, sections_, steps_),
        rounds_(sections_, steps_) {
    check(run);
  }

  std::int64_t step_of(std::int64_t round) const override { return rounds_.step_of(round); }
  std::size_t ballot_bytes(std::int64_t round) const override {
    return rounds_.ballot_bytes(round);
  }
  std::size_t parameter_floats() const override { return values_.floats(); }
  std::uint64_t parameters_hash(std::span<const float> params) const override {
    return values_.hash(params);
  }
  std::uint64_t coordinates() const override { return layout_.n_coords(); }
  int groups() const override { return static_cast<int>(options_.groups.size()); }
  std::uint64_t digest_of(std::span<const StepScalars> scalars) const override {
    return pride::digest_of(scalars);
  }
  std::int64_t most_votes() const override {
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
    for (const SectionStep& step : steps_) {
      most = std::min<std::int64_t>(most, step.method->protocol({.central = true}).most_votes);
    }
    return most;
  }

  void check_ballot(std::int64_t round, std::uint64_t scalars_digest, Voter voter,
                    std::span<const std::byte> ballot) const override {
    rounds_.check_ballot(round, options_.seed, scalars_digest, voter, ballot);
  }
  std::vector<std::byte> serve(std::int64_t round, std::uint64_t scalars_digest,
                               std::span<const Voter> voters,
                               std::span<const std::span<const std::byte>> ballots) const override {
    return rounds_.serve(round, options_.seed, scalars_digest, voters, ballots);
  }
  bool has_signs() const override { return sign_words(0) > 0; }
  Signs sample(std::int64_t round, std::span<const std::byte> ballot, std::uint64_t key,
               std::size_t most) const override;

 private:
  // The description comes from a worker: reject it unless it has all options of its methods.
  void check(const RunDescription& run) const {
    const auto check_options = [](const std::string& method, const OptionMap& given) {
      PRIDE_CHECK(complete_options(method, given) == given,
                  "the run's options are not the complete set of ", method,
                  ": this coordinator may have another version");
    };
    check_options(run.method, run.options);
    for (std::size_t g = 0; g < run.groups.size(); ++g) {
      const ParamGroup& group = run.groups[g];
      if (!group.method.empty()) check_options(group.method, group.options);
      const auto index = static_cast<int>(g);
      complete_group(group, sections_.of_group(index).info, index);
    }
  }
  std::size_t sign_words(std::int64_t round) const;  // in a ballot

  const Layout layout_;
  const OptimizerOptions options_;
  Sections sections_;
  const std::vector<SectionStep> steps_;
  const RunValues values_;
  const CentralRound rounds_;
};

// Visits the words of signs of a frame. `mask` is 0 for a tensor that this worker does not use.
template <typename Visit>
void for_words(const Frame& frame, const Shard& shard, const Visit& visit) {
  const SignView<const std::byte> view(frame.head.data(), shard);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    for (std::size_t w = 0; w < piece.n_words(); ++w) {
      const std::size_t n = std::min<std::size_t>(64, piece.n() - 64 * w);
      const std::uint64_t mask = n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
      visit(view.signs[piece.first_word + w], bit_at(view.unused, k) ? 0 : mask);
    }
  }
}

std::size_t CentralServing::sign_words(std::int64_t round) const {
  std::size_t words = 0;
  rounds_.for_parts({.step = step_of(round), .central = true},
                    [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
                      if (part.up.codec != Codec::kSign) return;
                      for (const Piece& piece : shard.pieces) words += piece.n_words();
                    });
  return words;
}

Serving::Signs CentralServing::sample(std::int64_t round, std::span<const std::byte> ballot,
                                      std::uint64_t key, std::size_t most) const {
  const std::size_t all = sign_words(round);
  if (all == 0) return {};
  const std::size_t every = (all + most - 1) / most, first = key % every;
  Signs signs;
  std::size_t at = 0, word = 0;
  rounds_.for_parts({.step = step_of(round), .central = true},
                    [&](std::size_t, std::size_t, const Part& part, const Shard& shard) {
                      const Frame frame{ballot.subspan(at, part.up.bytes(shard))};
                      at += part.up.all_bytes(shard);
                      if (part.up.codec != Codec::kSign) return;
                      for_words(frame, shard, [&](std::uint64_t bits, std::uint64_t mask) {
                        if (word++ % every != first) return;
                        signs.words.push_back(bits);
                        signs.mask.push_back(mask);
                      });
                    });
  return signs;
}

}  // namespace

OptimizerOptions optimizer_options(const RunDescription& run) {
  OptimizerOptions options;
  options.method = run.method;
  options.options = run.options;
  options.groups = run.groups;
  options.bucket_coords = run.bucket_coords;
  options.seed = run.seed;
  return options;
}

std::unique_ptr<Serving> make_serving(const RunDescription& run) {
  return std::make_unique<CentralServing>(run);
}

}  // namespace pride
