// Signs of a blend of momentum and gradient, written straight into the frames that will be sent.
// SPDX-License-Identifier: Apache-2.0
#include "methods/sign_method.h"

#include <algorithm>

#include "codecs/hash_keys.h"
#include "codecs/payload.h"
#include "exchange/two_level.h"
#include "methods/options.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

exchange::Tie tie_rule(const std::string& method, const std::string& name) {
  if (name == "hash") return exchange::Tie::kHash;
  if (name == "zero") return exchange::Tie::kZero;
  throw InvalidArgument(concat(method, ": option tie = '", name, "': choose hash or zero"));
}

// What a rank could send while a round waits where nobody has measured it: 100 us at 1 Gbit/s.
constexpr const char* kRoundBytes = "12500";
constexpr std::int64_t kMostRoundBytes = std::int64_t{1} << 40;

void add_form_options(MethodInfo& info) {
  info.options.push_back(
      {.name = "form",
       .default_value = "auto",
       .help = "of the exchange: 'sharded' (two rounds: signs to an owner, its answer to all), "
               "'direct' (one round: all signs to all ranks), or 'auto', the faster one for the "
               "bucket's size, the number of ranks and round_bytes; the same results",
       .wire_only = true});
  info.options.push_back(
      {.name = "round_bytes",
       .default_value = kRoundBytes,
       .help = "for form = auto: bytes that a rank could send while it waits for a round of "
               "messages, latency times rate; pride train sets what it has measured",
       .wire_only = true});
}

CountForm count_form(const std::string& method, const std::string& name) {
  if (name == "packed") return CountForm::kPacked;
  if (name == "planes") return CountForm::kPlanes;
  throw InvalidArgument(concat(method, ": option counts = '", name, "': choose packed or planes"));
}

}  // namespace

FormRule form_rule(const std::string& method, const MethodContext& ctx) {
  FormRule rule;
  rule.choice = static_cast<FormRule::Choice>(
      word_option(method, ctx, "form", {"auto", "sharded", "direct"}));
  rule.round_bytes =
      static_cast<std::uint64_t>(whole_option(method, ctx, "round_bytes", 0, kMostRoundBytes));
  PRIDE_CHECK(rule.choice != FormRule::Choice::kDirect || !ctx.hosts.two_levels(), method,
              ": option form = direct with hosts: an exchange in two levels has no direct form; "
              "choose auto or sharded");
  return rule;
}

// --- The worker's half. -------------------------------------------------------------------------

bool SignMethod::is_direct(const Bucket& b) const {
  if (hosts_.two_levels() || form_.choice == FormRule::Choice::kSharded) return false;
  if (form_.choice == FormRule::Choice::kDirect) return true;
  const auto answer = [this](const Shard& shard) { return answer_bytes(shard); };
  return exchange::cheaper_form(b, form_.round_bytes, answer) == exchange::SignForm::kDirect;
}

ExchangeForm SignMethod::exchange_form(const Bucket& b) const {
  if (b.shards.size() == 1) return {};
  if (hosts_.two_levels()) return {"two levels", 4};
  return is_direct(b) ? ExchangeForm{"direct", 1} : ExchangeForm{"sharded", 2};
}

// Returns the index of a bad gradient, or kAllFinite.
std::size_t SignMethod::encode_piece(const Piece& piece, ConstView grad, const StepContext& ctx,
                                     std::span<std::uint64_t> signs) {
  const kernels::Blend rule = blend(ctx.groups[static_cast<std::size_t>(piece.group)]);
  const kernels::HashWords zeros{zero_key(ctx.seed, ctx.step, ctx.rank), piece.begin / 64};
  const auto g = grad.f32(piece.begin, piece.end);
  const auto m = m_.span().subspan(piece.begin, piece.n());
  return kernels::lion_sign_update(g, rule, zeros, m, signs);
}

void SignMethod::encode_shard(const Shard& shard, ConstView grad, const StepContext& ctx,
                              std::span<std::byte> frame, std::optional<Poison>& poison) {
  const SignFrame at(shard);
  const auto absent = words_at(frame, at.absent_at, at.absent_words);
  std::fill(absent.begin(), absent.end(), 0);
  std::size_t word = 0;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    const auto signs = words_at(frame, at.signs_at + 8 * word, piece.n_words());
    if (ctx.is_absent(piece.tensor)) {
      set_bit(absent, k);
      std::fill(signs.begin(), signs.end(), 0);
    } else if (encode_piece(piece, grad, ctx, signs) != kernels::kAllFinite && !poison) {
      poison = Poison{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
    }
    word += piece.n_words();
  }
}

void SignMethod::encode_signs(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  w.poison.reset();
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    encode_shard(b.shards[j], g, ctx, w.up[j].span(), w.poison);
  }
}

void SignMethod::encode_direct(const Shard& whole, ConstView g, const StepContext& ctx, Wire& w) {
  w.poison.reset();
  encode_shard(whole, g, ctx, w.up[static_cast<std::size_t>(ctx.rank)].span(), w.poison);
}

// --- Majority vote. -----------------------------------------------------------------------------

VoteMethod::VoteMethod(const std::string& name, const MethodContext& ctx, const FormRule& form)
    : SignMethod(ctx, form), tie_(tie_rule(name, ctx.options.at("tie"))) {}

std::size_t VoteMethod::answer_bytes(const Shard& shard) const {
  return VoteFrame(shard, tie_ == exchange::Tie::kZero).bytes;
}

void VoteMethod::encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  if (is_direct(b)) {
    const Shard whole = exchange::whole_of(b);
    exchange::prepare_direct_vote(whole, ctx, tie_, w);
    return encode_direct(whole, g, ctx, w);
  }
  exchange::prepare_vote(b, tie_, w);
  encode_signs(b, g, ctx, w);
}

void VoteMethod::exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  if (is_direct(b)) return exchange::direct_vote(c, b, ctx, tie_, w);
  exchange::sign_vote(c, b, ctx, hosts(), tie_, w);
}

void VoteMethod::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  if (is_direct(b)) return exchange::apply_direct_vote(b, w, ctx, tie_, x);
  exchange::apply_vote(b, w, ctx, tie_, x);
}

Cost VoteMethod::cost(std::span<const Bucket> buckets, int rank, std::int64_t) const {
  Cost cost;
  for (const Bucket& b : buckets) {
    cost += is_direct(b) ? exchange::direct_cost(b, rank, hosts())
                         : exchange::vote_cost({&b, 1}, rank, hosts(), tie_);
  }
  return cost;
}

MethodInfo vote_method_info() {
  MethodInfo info;
  info.bits_up = 1;
  info.bits_down = 1;
  info.growth = "none";
  info.state_floats = 1;
  info.options = {{"tie", "hash",
                   "a tied vote: 'hash' takes a random bit that all ranks share, 'zero' leaves the "
                   "coordinate (2 bits down)"}};
  add_form_options(info);
  return info;
}

// --- Average. -----------------------------------------------------------------------------------

AverageMethod::AverageMethod(const std::string& name, const MethodContext& ctx)
    : SignMethod(ctx, form_rule(name, ctx)),
      counts_(count_form(name, ctx.options.at("counts"))),
      world_(ctx.world) {}

std::size_t AverageMethod::answer_bytes(const Shard& shard) const {
  return CountFrame(shard, world_, counts_).bytes;
}

void AverageMethod::encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  if (is_direct(b)) {
    const Shard whole = exchange::whole_of(b);
    exchange::prepare_direct_count(whole, ctx, w);
    return encode_direct(whole, g, ctx, w);
  }
  exchange::prepare_count(b, ctx, counts_, w);
  encode_signs(b, g, ctx, w);
}

void AverageMethod::exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  if (is_direct(b)) return exchange::direct_count(c, b, ctx, w);
  exchange::sign_count(c, b, ctx, hosts(), counts_, w);
}

void AverageMethod::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  if (is_direct(b)) return exchange::apply_direct_count(b, w, ctx, x);
  exchange::apply_count(b, w, ctx, counts_, x);
}

Cost AverageMethod::cost(std::span<const Bucket> buckets, int rank, std::int64_t) const {
  Cost cost;
  for (const Bucket& b : buckets) {
    cost += is_direct(b) ? exchange::direct_cost(b, rank, hosts())
                         : exchange::count_cost({&b, 1}, rank, hosts(), counts_);
  }
  return cost;
}

MethodInfo average_method_info(int world) {
  MethodInfo info;
  info.bits_up = 1;
  info.bits_down = count_bits(world, CountForm::kPacked);
  info.growth = "log N";
  info.state_floats = 1;
  info.options = {{"counts", "packed",
                   "the counts sent down: 'packed' to base N+1 where that takes fewer bits, "
                   "'planes' as whole bits"}};
  add_form_options(info);
  return info;
}

}  // namespace pride::methods
