// Payloads of arbitrary bytes about arbitrary shards, straight into the codecs: what is refused is
// refused by name; what is taken can be used without a step outside the frame, and keeps what its
// codec promises.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "codecs/counts.h"
#include "codecs/levels.h"
#include "codecs/scaled_signs.h"
#include "codecs/signs.h"
#include "codecs/sparse.h"
#include "codecs/ternary.h"
#include "fuzz_input.h"
#include "methods/shared_scales.h"
#include "pride/error.h"
#include "pride/layout.h"
#include "pride/random_bits.h"
#include "routes/protocol.h"

namespace pride::fuzz {
namespace {

constexpr int kFrom = 77;

Layout next_layout(Input& input) {
  std::vector<TensorSpec> specs;
  const std::size_t n = 1 + input.below(80);
  const auto longest = 1 + input.below(9000);
  for (std::size_t t = 0; t < n; ++t) {
    const auto size = static_cast<std::int64_t>(mix64(longest, t) % (n > 8 ? 70 : longest));
    specs.push_back({.name = concat("t", t), .shape = {size}});
  }
  return Layout(std::move(specs));
}

// How a frame arrives: as a result or not, and what the receiver knows of itself.
struct Arrival {
  bool result = false;
  std::span<const char> unused_here = {};
};

// True if the check takes the frame.
template <typename Check>
bool taken(Check&& check) {
  try {
    check();
    return true;
  } catch (const CommError& e) {
    must(contains(e.what(), concat("rank ", kFrom)), "the error does not name the sender");
    return false;
  }
}

// A frame with the bytes of the input behind its header; what is taken is used.
template <typename Use>
void one_frame(Input& input, const FrameKind& kind, const Shard& shard, const Arrival& arrival,
               Use&& use) {
  static const std::string where = "fuzz";
  // words, because frames lie at multiples of 8; none too many, so that no step outside is missed
  std::vector<std::uint64_t> words(kind.bytes(shard) / 8);
  const auto bytes = std::as_writable_bytes(std::span(words));
  must(bytes.size() == kind.bytes(shard), "a frame that is no multiple of 8 bytes");
  input.fill(bytes.subspan(kHeaderBytes));
  const ReceivedFrame f{{bytes}, shard, kFrom, where, arrival.unused_here};
  if (taken([&] { check_payload(kind, f, arrival.result); })) use(f);
}

// The runs of a frame's users and those of one that uses everything are all words of the shard.
void use_unused_bits(const ReceivedFrame& f) {
  std::vector<std::uint64_t> other(f.frame.head.size() / 8),
      nobody(words_for(f.shard.pieces.size()));
  const std::vector<Frame> frames = {f.frame, {std::as_bytes(std::span(other))}};
  std::vector<std::uint16_t> users(f.shard.pieces.size());
  count_users(f.shard, frames, users);
  mark_unused_by_all(frames, f.shard, nobody);
  std::size_t end = 0;
  for (const Run& run : runs_of(f.shard, frames)) {
    must(run.first_word == end, "a gap between two runs");
    end += run.n_words;
  }
  must(end == f.shard.n_words(), "the runs are not the words of the shard");
  const auto unused = unused_bits(f.frame.head.data(), f.shard);
  for (std::size_t k = 0; k < users.size(); ++k) {
    must(users[k] == (bit_at(unused, k) ? 1 : 2), "a wrong number of users");
    must(!bit_at(nobody, k), "a tensor that is used by a rank and by none");
  }
}

void use_scaled_signs(const ReceivedFrame& f) {
  use_unused_bits(f);
  const ScaledSignView view(f.frame.head.data(), f.shard);
  const auto blocks = scale_blocks(f.shard);
  must(blocks.size() == view.scales.size(), "not a scale for each block");
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    must(view.scales[k] >= 0 && std::isfinite(view.scales[k]), "a scale that is no size");
    const auto signs = view.signs_of(blocks[k]);
    must(!bits_beyond(signs, blocks[k].n()) || blocks[k].n() % 64 == 0, "signs of no coordinate");
  }
}

// Numbers given by bit planes, `stride` words apart: none is above `most` for each user of its
// piece.
void numbers_are_possible(const Shard& shard, std::span<const std::uint64_t> planes,
                          std::size_t n_planes, std::span<const std::uint16_t> users,
                          unsigned most) {
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    for (std::size_t i = 0; i < 64 * piece.n_words(); ++i) {
      const std::size_t word = piece.first_word + i / 64;
      unsigned number = 0;
      for (std::size_t p = 0; p < n_planes; ++p) {
        number |= static_cast<unsigned>((planes[p * shard.n_words() + word] >> (i % 64)) & 1) << p;
      }
      must(number <= most * users[k], "a number above that of the users");
    }
  }
}

void one_count(Input& input, const Shard& shard, int world, CountForm form,
               const Arrival& arrival) {
  one_frame(input, count_frames(world, form), shard, arrival, [&](const ReceivedFrame& f) {
    const CountView view(f.frame.head.data(), shard, world, form);
    const std::size_t stride = shard.n_words();
    std::vector<std::uint64_t> planes(view.n_planes * stride);
    if (view.packed_words > 0) {
      kernels::unpack_digits(view.packed, view.radix, 0, view.packed_words, view.n_planes, stride,
                             planes);
    }
    for (std::size_t p = 0; p < view.n_planes; ++p) {
      std::ranges::copy(view.planes.subspan(p * view.plane_words, view.plane_words),
                        std::span(planes).subspan(p * stride + view.packed_words).begin());
    }
    numbers_are_possible(shard, planes, view.n_planes, view.users, 1);
  });
}

void one_sum(Input& input, const Shard& shard, int world, const Arrival& arrival) {
  one_frame(input, sum_frames(world), shard, arrival, [&](const ReceivedFrame& f) {
    const SumView view(f.frame.head.data(), shard, world);
    numbers_are_possible(shard, view.planes, view.n_planes, view.users, 2);
  });
}

// Levels that are taken are voted on; the vote sees a wrong code if and only if the check names it.
void one_level_frame(Input& input, const Shard& shard, const Arrival& arrival) {
  const int bits = 2 + static_cast<int>(input.below(7));
  one_frame(input, level_frames(bits), shard, arrival, [&](const ReceivedFrame& f) {
    use_unused_bits(f);
    const LevelView view(f.frame.head.data(), shard, bits);
    const std::vector<const std::uint64_t*> rows(3, view.lines.data());
    std::vector<std::uint64_t> positive(shard.n_words()), nonzero(shard.n_words());
    const bool good = kernels::vote_levels({rows, view.shape}, kernels::HashWords{1, 0}, positive);
    must(good == kernels::vote_levels_ternary({rows, view.shape}, positive, nonzero),
         "the two votes do not agree on the codes");
    must(good == taken([&] { check_codes(f, bits); }),
         "the vote and the check do not agree on the codes");
  });
}

// Values that are taken are finite.
void one_value_frame(Input& input, std::size_t n, const Arrival& arrival) {
  ValueFormat format;
  const std::size_t bits = input.below(9);
  if (bits == 1) format = {ValueFormat::Kind::kBFloat16, 16};
  if (bits >= 2) format = {ValueFormat::Kind::kLevels, static_cast<int>(bits)};
  const Codec codec = arrival.result ? Codec::kMeanValues : Codec::kValues;
  const Shard shard{.begin = 0, .end = n, .pieces = {}};
  one_frame(input, value_frames(codec, format), shard, arrival, [&](const ReceivedFrame& f) {
    std::vector<float> values(n);
    read_values(f.frame.head, format, values);
    const bool finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
    must(finite, "a value that was taken is not finite");
  });
}

// So are gradients in levels; padding and unused tensors are zero.
void one_gradient_frame(Input& input, const Shard& shard, const Arrival& arrival) {
  const ValueFormat format{ValueFormat::Kind::kLevels, 2 + static_cast<int>(input.below(7))};
  const Codec codec = arrival.result ? Codec::kMeanLevels : Codec::kGradientLevels;
  one_frame(input, gradient_frames(codec, format), shard, arrival, [&](const ReceivedFrame& f) {
    use_unused_bits(f);
    const ValueView view(f.frame.head.data(), shard.size(), format, shard.pieces.size());
    std::vector<float> values(shard.size());
    read_values(Space::host(), view, 0, values);
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      const Piece& piece = shard.pieces[k];
      const auto all = std::span(values).subspan(64 * piece.first_word, 64 * piece.n_words());
      const std::size_t used = bit_at(view.unused, k) ? 0 : piece.n();
      for (std::size_t i = 0; i < all.size(); ++i) {
        must(std::isfinite(all[i]), "a gradient that was taken is not finite");
        must(i < used || all[i] == 0, "a gradient of no coordinate");
      }
    }
  });
}

// So are scales.
void one_scales_frame(Input& input, const Arrival& arrival) {
  const std::size_t n = 1 + input.below(300);
  const Part part = methods::SharedScales(methods::SharedScales::Rule::kMean, n).part();
  one_frame(input, part.up, part.shards[0], arrival, [&](const ReceivedFrame& f) {
    for (const float scale : Parts<const std::byte>(f.frame.head.data()).take<float>(n)) {
      must(scale >= 0 && std::isfinite(scale), "a scale that is no size");
    }
  });
}

// An honest payload of some of n coordinates, changed here and there: arbitrary bytes would hardly
// get past the number of entries.
void one_sparse(Input& input, std::size_t n) {
  static const std::string where = "fuzz";
  const std::uint64_t seed = input.number<std::uint8_t>();
  const std::size_t rarity = 1 + input.below(200);
  std::vector<std::uint64_t> mask(words_for(n));
  const std::vector<float> values(n, 0.5f);
  std::vector<float> sum(n, 1.0f);
  for (std::size_t i = 0; i < n; ++i) {
    if (mix64(seed, i) % rarity == 0) set_bit(mask, i);
  }
  ByteBuffer frame;
  write_sparse(mask, values, frame);
  const Shard shard{.begin = 0, .end = n, .pieces = {}};
  must(frame.size() <= sparse_frames().bytes(shard), "a frame that is longer than the longest");
  const bool honest = input.empty();
  const auto payload = frame.span().subspan(kHeaderBytes);
  for (int c = 0; c < 8 && !input.empty(); ++c) {
    const auto part = payload.subspan(input.below(payload.size()));
    const auto first = input.number<std::uint32_t>();
    turn_two_bits(part, first, input.number<std::uint32_t>());
  }
  const bool good = taken([&] { add_sparse({{frame.span()}, shard, kFrom, where}, sum); });
  const bool touched = std::any_of(sum.begin(), sum.end(), [](float x) { return x != 1.0f; });
  must(good || !touched, "a refused payload was added in part");
  must(good || !honest, "an honest payload was refused");
}

void one_input(Input input) {
  const std::size_t kind = input.below(16);
  const int world = 1 + static_cast<int>(input.below(9));
  const std::size_t target = 1 + input.below(10000);
  const Layout layout = next_layout(input);
  const auto buckets = make_buckets(layout, target, world, kind == 5 ? kScaleBlock : kAlignment);
  if (buckets.empty()) return;
  const Bucket& bucket = buckets[input.below(buckets.size())];
  const Shard& shard = bucket.shards[input.below(bucket.shards.size())];
  const Shard whole = whole_of(bucket);
  std::vector<char> unused(layout.tensors().size());
  input.fill(
      std::as_writable_bytes(std::span(unused)).first(std::min<std::size_t>(4, unused.size())));
  const std::size_t how = input.below(4);
  const Arrival arrival{how % 2 == 1,
                        how < 2 ? std::span<const char>(unused) : std::span<const char>()};
  const auto frame_of = [&](const FrameKind& k, const Shard& s) {
    one_frame(input, k, s, arrival, use_unused_bits);
  };

  switch (kind) {
    case 0:
      return frame_of(sign_frames(), shard);
    case 1:
    case 2:
      return frame_of(vote_frames(kind == 2), shard);
    case 3:
      return frame_of(unused_bits_frames(Codec::kDense, "dense", 4), shard);
    case 4:
      return frame_of(sign_frames(Codec::kAllSigns), whole);
    case 5:
      return one_frame(input, scaled_sign_frames(), shard, arrival, use_scaled_signs);
    case 6:
      return one_count(input, shard, world, CountForm::kPlanes, arrival);
    case 7:
      return one_count(input, shard, world, CountForm::kPacked, arrival);
    case 8:
      return frame_of(ternary_frames(), shard);
    case 9:
      return one_sum(input, shard, world, arrival);
    case 10:
      return one_level_frame(input, shard, arrival);
    case 11:
      return frame_of(unused_bits_frames(Codec::kParticipation, "participation"), whole);
    case 12:
      return one_value_frame(input, shard.size(), arrival);
    case 13:
      return one_scales_frame(input, arrival);
    case 14:
      return one_gradient_frame(input, shard, arrival);
    default:
      return one_sparse(input, shard.size());
  }
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}
