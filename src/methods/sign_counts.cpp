// SPDX-License-Identifier: Apache-2.0
#include "methods/sign_counts.h"

#include <algorithm>
#include <bit>

#include "kernels/planes.h"
#include "methods/zeros.h"

namespace pride::methods {
namespace {

constexpr std::size_t kPlaneWords = 512;  // words whose planes stay in the L1 cache

}  // namespace

SignCounts::SignCounts(const Shard& shard, const VoterFrames& voters, int votes, int votes_each)
    : shard_(shard),
      voters_(voters),
      frames_(voters.frames),
      weights_(voters.weights),
      signs_(voters.role == FrameRole::kUp),
      votes_(votes),
      votes_each_(votes_each),
      n_planes_(static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(votes)))),
      users_(shard.pieces.size()) {
  if (signs_) runs_ = runs_of(shard, frames_);
  for (std::size_t i = 0; i < frames_.size(); ++i) add_users(i);
}

void SignCounts::add_users(std::size_t i) {
  const std::byte* frame = frames_[i].head.data();
  if (signs_) {
    const auto unused = unused_bits(frame, shard_);
    for (std::size_t k = 0; k < users_.size(); ++k)
      users_[k] += bit_at(unused, k) ? 0 : weight_of(i);
  } else {
    const CountView view(frame, shard_, votes_each_, CountForm::kPacked);
    for (std::size_t k = 0; k < users_.size(); ++k) users_[k] += view.users[k];
  }
}

void SignCounts::planes_of(std::size_t first, std::size_t n,
                           std::span<std::uint64_t> planes) const {
  if (signs_) return count_signs(first, n, planes);
  std::ranges::fill(planes, std::uint64_t{0});
  for (const Frame& frame : frames_) add_counts(frame, first, n, planes);
}

// Rows of signs from word `begin` on, of the run's frames whose weights have the bit.
std::vector<const std::uint64_t*> SignCounts::rows_of(const Run& run, std::size_t bit,
                                                      std::size_t begin) const {
  std::vector<const std::uint64_t*> rows;
  for (const std::size_t i : run.frames) {
    if ((weight_of(i) >> bit & 1) == 0) continue;
    rows.push_back(SignView(frames_[i].head.data(), shard_).signs.data() + begin);
  }
  return rows;
}

// The weighted sum of rows: for each bit of the weights, adds the count of the rows with this bit
// to the planes from this bit on.
void SignCounts::count_signs(std::size_t first, std::size_t n,
                             std::span<std::uint64_t> planes) const {
  if (n == 0) return;
  auto run = std::ranges::partition_point(
      runs_, [&](const Run& r) { return r.first_word + r.n_words <= first; });
  const bool one_run = run->first_word + run->n_words >= first + n;
  if (weights_.empty() && one_run) {
    return kernels::count(rows_of(*run, 0, first), n, n_planes_, planes);
  }
  std::ranges::fill(planes, std::uint64_t{0});
  std::vector<std::uint64_t> part;
  for (; run != runs_.end() && run->first_word < first + n; ++run) {
    const std::size_t begin = std::max(first, run->first_word);
    const std::size_t n_words = std::min(first + n, run->first_word + run->n_words) - begin;
    for (std::size_t bit = 0; bit < (weights_.empty() ? 1 : n_planes_); ++bit) {
      const auto rows = rows_of(*run, bit, begin);
      if (rows.empty()) continue;
      const auto width = static_cast<std::size_t>(std::bit_width(rows.size()));
      part.resize(width * n_words);
      kernels::count(rows, n_words, width, part);
      kernels::add_planes({part, width, n_words}, n_words,
                          {planes.subspan(bit * n + begin - first), n_planes_ - bit, n});
    }
  }
}

// planes += one node's counts of the words. Words before view.packed_words are packed.
void SignCounts::add_counts(const Frame& frame, std::size_t first, std::size_t n,
                            std::span<std::uint64_t> planes) const {
  const CountView view(frame.head.data(), shard_, votes_each_, CountForm::kPacked);
  const std::size_t n_packed =
      first < view.packed_words ? std::min(n, view.packed_words - first) : 0;
  if (n_packed > 0) {
    std::vector<std::uint64_t> part(view.n_planes * n_packed);
    kernels::unpack_digits(view.packed, view.radix, first, n_packed, view.n_planes, n_packed, part);
    kernels::add_planes({part, view.n_planes, n_packed}, n_packed, {planes, n_planes_, n});
  }
  if (n_packed < n) {
    const auto theirs = view.planes.subspan(first + n_packed - view.packed_words);
    kernels::add_planes({theirs, view.n_planes, view.plane_words}, n - n_packed,
                        {planes.subspan(n_packed), n_planes_, n});
  }
}

void SignCounts::write_counts(CountForm form, std::span<std::byte> out) const {
  const CountView view(out.data(), shard_, votes_, form);
  std::ranges::transform(users_, view.users.begin(),
                         [](int votes) { return static_cast<std::uint16_t>(votes); });
  clear_padding(view.users);
  // a few groups at a time, so that their planes stay in the L1 cache until they are packed
  const std::size_t n_digits = view.radix.n_digits;
  const std::size_t some =
      std::max<std::size_t>(1, kPlaneWords / std::max<std::size_t>(1, n_digits));
  std::vector<std::uint64_t> planes(view.n_groups > 0 ? view.n_planes * some * n_digits : 0);
  for (std::size_t g = 0; g < view.n_groups; g += some) {
    const std::size_t n = std::min(some, view.n_groups - g), n_words = n * n_digits;
    const auto part = std::span(planes).first(view.n_planes * n_words);
    planes_of(g * n_digits, n_words, part);
    kernels::pack_digits(part, view.n_planes, n_words, view.radix,
                         view.packed.subspan(64 * g, 64 * n));
  }
  planes_of(view.packed_words, view.plane_words, view.planes);
}

// Bits of ties from the shard's word `word` on.
kernels::SharedBits SignCounts::tie_bits_at(const SharedContext& shared, const Piece& piece,
                                            std::size_t word, const OrthogonalBlend* muon) const {
  if (voters_.sees_parameters(shared)) {
    return tie_bits_of(shared, piece, step_scale(muon, piece.tensor), voters_.cells)
        .from(64 * (word - piece.first_word));
  }
  const auto run = std::ranges::partition_point(
      runs_, [&](const Run& r) { return r.first_word + r.n_words <= word; });
  std::vector<const std::uint64_t*> rows;
  for (const std::size_t i : run->frames) {
    rows.push_back(SignView(frames_[i].head.data(), shard_).signs.data() + word);
  }
  return tie_bits_of(shared, rows);
}

void SignCounts::write_vote(const SharedContext& shared, Tie tie, std::span<std::byte> out,
                            const OrthogonalBlend* muon) const {
  const VoteView view(out.data(), shard_, tie == Tie::kZero);
  std::ranges::fill(view.unused, std::uint64_t{0});
  std::vector<std::uint64_t> planes(n_planes_ * std::min(kPlaneWords, shard_.n_words()));
  for (std::size_t k = 0; k < users_.size(); ++k) {
    const Piece& piece = shard_.pieces[k];
    if (users_[k] == 0) set_bit(view.unused, k);
    const std::size_t end = piece.first_word + piece.n_words();
    for (std::size_t word = piece.first_word; word < end; word += kPlaneWords) {
      const std::size_t n = std::min(kPlaneWords, end - word);
      const auto counts = std::span(planes).first(n_planes_ * n);
      planes_of(word, n, counts);
      const auto positive = view.positive.subspan(word, n);
      if (tie == Tie::kZero) {
        kernels::vote_planes_ternary({counts, n_planes_, n}, users_[k], positive,
                                     view.nonzero.subspan(word, n));
      } else {
        kernels::vote_planes({counts, n_planes_, n}, users_[k],
                             tie_bits_at(shared, piece, word, muon), positive);
      }
    }
    // a node's counts may have bits beyond the end of the tensor
    if (piece.n() % 64 != 0) view.positive[end - 1] &= (std::uint64_t{1} << (piece.n() % 64)) - 1;
  }
}

}  // namespace pride::methods
