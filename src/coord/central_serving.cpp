// SPDX-License-Identifier: Apache-2.0
#include "coord/central_serving.h"

#include <algorithm>

#include "codecs/signs.h"
#include "methods/registry.h"
#include "optimizer/run_values.h"
#include "optimizer/step_scalars.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

class CentralServing final : public Serving {
 public:
  explicit CentralServing(const RunDescription& run)
      : layout_(run.tensors),
        seed_(run.seed),
        method_(make_method(run.method, {layout_, 1, checked_options(run)})),
        groups_(checked_groups(run)),
        buckets_(make_buckets(layout_, run.bucket_coords, 1,
                              method_->protocol({.central = true}).alignment)),
        rounds_(*method_, buckets_) {}

  std::int64_t step_of(std::int64_t round) const override { return rounds_.step_of(round); }
  std::size_t ballot_bytes(std::int64_t round) const override {
    return rounds_.ballot_bytes(round);
  }
  std::size_t parameter_floats() const override { return run_floats(*method_, layout_); }
  std::uint64_t parameters_hash(std::span<const float> params) const override {
    return run_hash(layout_, params);
  }
  std::uint64_t coordinates() const override { return layout_.n_coords(); }
  int groups() const override { return groups_; }
  std::uint64_t digest_of(std::span<const StepScalars> scalars) const override {
    return pride::digest_of(scalars);
  }
  std::int64_t most_votes() const override {
    return method_->protocol({.central = true}).most_votes;
  }

  void check_ballot(std::int64_t round, std::uint64_t scalars_digest, Voter voter,
                    std::span<const std::byte> ballot) const override {
    rounds_.check_ballot(round, seed_, scalars_digest, voter, ballot);
  }
  std::vector<std::byte> serve(std::int64_t round, std::uint64_t scalars_digest,
                               std::span<const Voter> voters,
                               std::span<const std::span<const std::byte>> ballots) const override {
    return rounds_.serve(round, seed_, scalars_digest, voters, ballots);
  }
  bool has_signs() const override { return sign_words(0) > 0; }
  Signs sample(std::int64_t round, std::span<const std::byte> ballot, std::uint64_t key,
               std::size_t most) const override;

 private:
  // The description comes from a worker: reject it unless it has all options of the method.
  static std::map<std::string, std::string> checked_options(const RunDescription& run) {
    const auto all = complete_options(run.method, run.options);
    PRIDE_CHECK(all == run.options, "the run's options are not the complete set of ", run.method,
                ": this coordinator may have another version");
    return all;
  }
  static int checked_groups(const RunDescription& run) {
    const MethodInfo info = method_info(run.method, 1, run.options);
    for (std::size_t g = 0; g < run.groups.size(); ++g) {
      complete_group(run.groups[g], info, static_cast<int>(g));
    }
    return static_cast<int>(run.groups.size());
  }
  std::size_t sign_words(std::int64_t round) const;  // in a ballot

  const Layout layout_;
  const std::uint64_t seed_;
  const std::unique_ptr<Method> method_;
  const int groups_;
  const std::vector<Bucket> buckets_;
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

std::unique_ptr<Serving> make_central_serving(const RunDescription& run) {
  return std::make_unique<CentralServing>(run);
}

}  // namespace pride::coord
