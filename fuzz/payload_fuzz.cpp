// Payloads of arbitrary bytes about arbitrary shards, straight into the codecs: what is refused is
// refused by name; what is taken can be used without a step outside the frame.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "codecs/counts.h"
#include "codecs/levels.h"
#include "codecs/payload.h"
#include "codecs/payload_check.h"
#include "codecs/scaled_signs.h"
#include "codecs/sparse.h"
#include "codecs/ternary.h"
#include "fuzz_input.h"
#include "kernels/levels.h"
#include "pride/error.h"
#include "pride/layout.h"
#include "pride/random_bits.h"

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

// The bytes of the input, at an address where frames may lie.
struct Frame {
  explicit Frame(std::size_t n) : words((n + 7) / 8), n_bytes(n) {}
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(words)).first(n_bytes); }
  std::vector<std::uint64_t> words;
  std::size_t n_bytes;
};

// True if the check takes the frame.
template <typename Check>
bool taken(Input& input, const Shard& shard, std::size_t bytes, Check&& check) {
  static const std::string where = "fuzz";
  Frame frame(bytes);
  input.fill(frame.span());
  try {
    check(ReceivedFrame{frame.span(), shard, kFrom, where});
    return true;
  } catch (const CommError& e) {
    must(contains(e.what(), concat("rank ", kFrom)), "the error does not name the sender");
    return false;
  }
}

void one_count(Input& input, const Shard& shard, int world, CountForm form,
               std::span<const char> absent) {
  const std::size_t bytes = CountFrame(shard, world, form).bytes;
  taken(input, shard, bytes, [&](const ReceivedFrame& f) {
    check_counts(f, world, form);
    check_present(f, world, absent);
  });
}

// Levels that are taken are voted on; the vote sees a wrong code if and only if the check names it.
void one_level_frame(Input& input, const Shard& shard) {
  const LevelFrame at(shard, 2 + static_cast<int>(input.below(7)));
  const int bits = at.shape.bits;
  taken(input, shard, at.bytes, [&](const ReceivedFrame& f) {
    check_levels(f, bits);
    const auto lines = words_at(f.frame, at.lines_at, at.shape.size());
    const std::vector<const std::uint64_t*> rows(3, lines.data());
    std::vector<std::uint64_t> positive(shard.n_words()), nonzero(shard.n_words());
    const bool good = kernels::vote_levels({rows, at.shape}, {1, 0}, positive);
    must(good == kernels::vote_levels_ternary({rows, at.shape}, positive, nonzero),
         "the two votes do not agree on the codes");
    bool refused = true;
    try {
      check_codes(f, bits);
      refused = false;
    } catch (const CommError& e) {
      must(contains(e.what(), concat("rank ", kFrom)), "the error does not name the sender");
    }
    must(good != refused, "the vote and the check do not agree on the codes");
  });
}

// Values that are taken are finite.
void one_value_frame(Input& input, const Shard& shard) {
  ValueFormat format;
  const std::size_t bits = input.below(9);
  if (bits == 1) format = {ValueFormat::Kind::kBFloat16, 16};
  if (bits >= 2) format = {ValueFormat::Kind::kLevels, static_cast<int>(bits)};
  const ValueFrame at(shard.size(), format);
  taken(input, shard, at.bytes, [&](const ReceivedFrame& f) {
    check_values(f, at);
    std::vector<float> values(at.n);
    read_values(f.frame, at, values);
    const bool finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
    must(finite, "a value that was taken is not finite");
  });
}

// An honest payload of some of n coordinates, changed here and there: arbitrary bytes would hardly
// get past the number of entries.
void one_sparse(Input& input, std::size_t n) {
  const std::uint64_t seed = input.number<std::uint8_t>();
  const std::size_t rarity = 1 + input.below(200);
  std::vector<std::uint64_t> mask((n + 63) / 64);
  std::vector<float> values(n, 0.5f), sum(n, 1.0f);
  std::size_t k = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (mix64(seed, i) % rarity != 0) continue;
    set_bit(mask, i);
    ++k;
  }
  Frame payload(SparseShape(n, k).bytes);
  write_sparse(mask, values, k, payload.span());
  const bool honest = input.empty();
  for (int c = 0; c < 8 && !input.empty(); ++c) {
    const auto part = payload.span().subspan(input.below(payload.n_bytes));
    const auto first = input.number<std::uint32_t>();
    turn_two_bits(part, first, input.number<std::uint32_t>());
  }
  bool good = true;
  try {
    add_sparse(payload.span(), kFrom, "fuzz", sum);
  } catch (const CommError& e) {
    good = false;
    must(contains(e.what(), concat("rank ", kFrom)), "the error does not name the sender");
  }
  const bool touched = std::any_of(sum.begin(), sum.end(), [](float x) { return x != 1.0f; });
  must(good || !touched, "a refused payload was added in part");
  must(good || !honest, "an honest payload was refused");
}

void one_input(Input input) {
  const std::size_t kind = input.below(14);
  const int world = 1 + static_cast<int>(input.below(9));
  const std::size_t target = 1 + input.below(10000);
  const Layout layout = next_layout(input);
  const auto buckets = make_buckets(layout, target, world, kind == 5 ? kScaleBlock : kAlignment);
  if (buckets.empty()) return;
  const Bucket& bucket = buckets[input.below(buckets.size())];
  const Shard& shard = bucket.shards[input.below(bucket.shards.size())];
  std::vector<char> absent(layout.tensors().size());
  input.fill(
      std::as_writable_bytes(std::span(absent)).first(std::min<std::size_t>(4, absent.size())));

  switch (kind) {
    case 0:
      taken(input, shard, SignFrame(shard).bytes, check_signs);
      break;
    case 1:
    case 2:
      taken(input, shard, VoteFrame(shard, kind == 2).bytes,
            [&](const ReceivedFrame& f) { check_vote(f, kind == 2, absent); });
      break;
    case 3:
      taken(input, shard, DenseFrame(shard).bytes, check_absent_bits);
      break;
    case 4:
      taken(input, shard, DenseFrame(shard).bytes,
            [&](const ReceivedFrame& f) { check_nobody_bits(f, absent); });
      break;
    case 5:
      taken(input, shard, ScaledSignFrame(shard).bytes, check_scaled_signs);
      break;
    case 6:
      one_count(input, shard, world, CountForm::kPlanes, absent);
      break;
    case 7:
      one_count(input, shard, world, CountForm::kPacked, absent);
      break;
    case 8:
      taken(input, shard, TernaryFrame(shard).bytes,
            [](const ReceivedFrame& f) { check_ternary(f.frame, f.shard, f.from, f.where); });
      break;
    case 9:
      taken(input, shard, SumFrame(shard, world).bytes, [&](const ReceivedFrame& f) {
        check_sums(f.frame, f.shard, world, f.from, f.where);
        check_present(f, world, absent);
      });
      break;
    case 10:
      one_level_frame(input, shard);
      break;
    case 11:
      taken(input, shard, RollCallFrame(bucket).bytes,
            [&](const ReceivedFrame& f) { check_roll_call(f, bucket); });
      break;
    case 12:
      one_value_frame(input, shard);
      break;
    default:
      one_sparse(input, shard.size());
  }
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}
