// Frames of counts from the signs of ranks.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/counting.h"

#include <algorithm>

#include "codecs/payload.h"
#include "exchange/sign_frames.h"
#include "kernels/kernels.h"

namespace pride::exchange {
namespace {

// How many of the ranks have each piece.
void count_present(const Shard& shard, const Frames& frames, const CountFrame& at,
                   std::span<std::byte> out) {
  const auto parts = words_at(out, at.present_at, (at.packed_at - at.present_at) / 8);
  std::fill(parts.begin(), parts.end(), 0);
  const auto by_piece = values_at<std::uint16_t>(out, at.present_at, shard.pieces.size());
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    for (const auto frame : frames) {
      const auto absent = words_at(frame, kHeaderBytes + 8 * (k / 64), 1);
      if (!bit_at(absent, k % 64)) ++by_piece[k];
    }
  }
}

// Counts the ranks' signs of a shard.
class SignCounts final : public PlaneSource {
 public:
  SignCounts(const Shard& shard, const Frames& frames, std::size_t n_planes)
      : runs_(runs_of(shard, frames)), frames_(frames), up_(shard), n_planes_(n_planes) {}

  void planes_of(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const override {
    auto run = std::ranges::partition_point(
        runs_, [&](const Run& r) { return r.first_word + r.n_words <= first; });
    for (; run != runs_.end() && run->first_word < first + n; ++run) {
      const std::size_t begin = std::max(first, run->first_word);
      const std::size_t end = std::min(first + n, run->first_word + run->n_words);
      const auto rows = rows_of({begin, end - begin, run->ranks}, frames_, up_);
      if (end - begin == n) {
        kernels::count(rows, n, n_planes_, planes);
      } else {
        count_part(rows, begin - first, end - begin, n, planes);
      }
    }
  }

 private:
  // A part of the words: its planes are not adjacent.
  void count_part(std::span<const std::uint64_t* const> rows, std::size_t at, std::size_t n,
                  std::size_t stride, std::span<std::uint64_t> planes) const {
    std::vector<std::uint64_t> part(n_planes_ * n);
    kernels::count(rows, n, n_planes_, part);
    for (std::size_t p = 0; p < n_planes_; ++p) {
      std::ranges::copy(std::span(part).subspan(p * n, n), planes.subspan(p * stride + at).begin());
    }
  }

  std::vector<Run> runs_;
  const Frames& frames_;
  SignFrame up_;
  std::size_t n_planes_;
};

// A few groups at a time, so that their planes stay in the first cache until they are packed.
void pack_groups(const PlaneSource& source, const CountFrame& at, std::span<std::uint32_t> packed) {
  if (at.n_groups == 0) return;
  const std::size_t n_digits = at.radix.n_digits,
                    some = std::max<std::size_t>(1, kPlaneWords / n_digits);
  std::vector<std::uint64_t> planes(at.n_planes * some * n_digits);
  for (std::size_t g = 0; g < at.n_groups; g += some) {
    const std::size_t n = std::min(some, at.n_groups - g), n_words = n * n_digits;
    const auto part = std::span(planes).first(at.n_planes * n_words);
    source.planes_of(g * n_digits, n_words, part);
    kernels::pack_digits(part, at.n_planes, n_words, at.radix, packed.subspan(64 * g, 64 * n));
  }
}

}  // namespace

void write_count_words(const PlaneSource& source, const CountFrame& at, std::span<std::byte> out) {
  pack_groups(source, at, values_at<std::uint32_t>(out, at.packed_at, 64 * at.n_groups));
  source.planes_of(at.packed_words, at.plane_words,
                   words_at(out, at.planes_at, at.n_planes * at.plane_words));
}

void count_signs(const Shard& shard, const Frames& frames, CountForm form,
                 std::span<std::byte> out) {
  const CountFrame at(shard, static_cast<int>(frames.size()), form);
  const SignCounts counts(shard, frames, at.n_planes);
  count_present(shard, frames, at, out);
  write_count_words(counts, at, out);
}

}  // namespace pride::exchange
