// Counts of hosts, added up; and the vote and the counts that follow.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codecs/hash_keys.h"
#include "codecs/payload.h"
#include "exchange/counting.h"
#include "kernels/planes.h"
#include "kernels/radix.h"

namespace pride::exchange {
namespace {

void add_numbers(std::span<const std::byte> frame, std::size_t at,
                 std::vector<std::uint16_t>& sums) {
  const auto theirs = values_at<std::uint16_t>(frame, at, sums.size());
  for (std::size_t k = 0; k < sums.size(); ++k) {
    sums[k] = static_cast<std::uint16_t>(sums[k] + theirs[k]);
  }
}

// The numbers of present ranks, as a frame of counts has them.
void write_present(const HostCounts& counts, const CountFrame& at, std::span<std::byte> out) {
  const auto parts = words_at(out, at.present_at, (at.packed_at - at.present_at) / 8);
  std::fill(parts.begin(), parts.end(), 0);
  std::ranges::copy(counts.by_piece(),
                    values_at<std::uint16_t>(out, at.present_at, counts.by_piece().size()).begin());
}

// Bit k = 1: nobody has piece k.
void write_nobody(const HostCounts& counts, std::span<std::uint64_t> nobody) {
  std::fill(nobody.begin(), nobody.end(), 0);
  for (std::size_t k = 0; k < counts.by_piece().size(); ++k) {
    if (counts.by_piece()[k] == 0) set_bit(nobody, k);
  }
}

// What a host counted beyond the end of a tensor is nobody's vote.
void clear_padding(const Shard& shard, std::span<std::uint64_t> positive) {
  std::size_t word = 0;
  for (const Piece& piece : shard.pieces) {
    word += piece.n_words();
    if (piece.n() % 64 != 0) positive[word - 1] &= (std::uint64_t{1} << (piece.n() % 64)) - 1;
  }
}

}  // namespace

HostCounts::HostCounts(const Shard& shard, const Frames& frames, int per_host)
    : shard_(shard),
      frames_(frames),
      host_(shard, per_host, CountForm::kPacked),
      world_(per_host * static_cast<int>(frames.size())),
      n_planes_(CountFrame(shard, world_, CountForm::kPlanes).n_planes),
      by_piece_(shard.pieces.size()) {
  for (const auto frame : frames) add_numbers(frame, host_.present_at, by_piece_);
}

void HostCounts::planes_of(std::size_t first, std::size_t n,
                           std::span<std::uint64_t> planes) const {
  std::fill(planes.begin(), planes.end(), 0);
  for (const auto frame : frames_) add(frame, first, n, n, planes);
}

// planes += one host's counts of the words, which are in groups up to host_.packed_words.
void HostCounts::add(std::span<const std::byte> frame, std::size_t first, std::size_t n,
                     std::size_t stride, std::span<std::uint64_t> planes) const {
  const std::size_t n_packed =
      first < host_.packed_words ? std::min(n, host_.packed_words - first) : 0;
  if (n_packed > 0) {
    const auto packed = values_at<std::uint32_t>(frame, host_.packed_at, 64 * host_.n_groups);
    std::vector<std::uint64_t> part(host_.n_planes * n_packed);
    kernels::unpack_digits(packed, host_.radix, first, n_packed, host_.n_planes, n_packed, part);
    kernels::add_planes({part, host_.n_planes, n_packed}, n_packed, {planes, n_planes_, stride});
  }
  if (n_packed < n) {
    const auto theirs = words_at(frame, host_.planes_at, host_.n_planes * host_.plane_words);
    kernels::add_planes(
        {theirs.subspan(first + n_packed - host_.packed_words), host_.n_planes, host_.plane_words},
        n - n_packed, {planes.subspan(n_packed), n_planes_, stride});
  }
}

void HostCounts::write_counts(CountForm form, std::span<std::byte> out) const {
  const CountFrame at(shard_, world_, form);
  write_present(*this, at, out);
  write_count_words(*this, at, out);
}

void HostCounts::write_vote(const StepContext& ctx, Tie tie, std::span<std::byte> out) const {
  const VoteFrame down(shard_, tie == Tie::kZero);
  write_nobody(*this, words_at(out, down.nobody_at, down.nobody_words));
  const auto positive = words_at(out, down.positive_at, down.sign_words);

  // who is present where, as a frame of counts would say it
  const CountFrame at(shard_, world_, CountForm::kPlanes);
  std::vector<std::uint64_t> numbers(at.packed_at / 8);
  const auto present = std::as_writable_bytes(std::span(numbers));
  write_present(*this, at, present);
  const std::uint64_t key = tie_key(ctx.seed, ctx.step);
  std::vector<std::uint64_t> planes(n_planes_ * std::min(kPlaneWords, shard_.n_words()));
  for (const CountRange& range : count_ranges(present, shard_, at)) {
    const std::size_t end = range.first_word + range.n_words();
    for (std::size_t word = range.first_word; word < end; word += kPlaneWords) {
      const std::size_t n = std::min(kPlaneWords, end - word);
      const auto part = std::span(planes).first(n_planes_ * n);
      planes_of(word, n, part);
      const kernels::Planes counts{part, n_planes_, n};
      if (tie == Tie::kZero) {
        const auto nonzero = words_at(out, down.nonzero_at + 8 * word, n);
        kernels::vote_planes_ternary(counts, range.present, positive.subspan(word, n), nonzero);
      } else {
        kernels::vote_planes(counts, range.present, {key, shard_.begin / 64 + word},
                             positive.subspan(word, n));
      }
    }
  }
  clear_padding(shard_, positive);
}

}  // namespace pride::exchange
