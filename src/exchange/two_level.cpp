// Exchanges of signs in two levels.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/two_level.h"

#include <algorithm>
#include <string>
#include <vector>

#include "codecs/payload.h"
#include "exchange/counting.h"
#include "exchange/frames.h"
#include "exchange/sign_frames.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

constexpr int kTwoLevelTag = 3;

// The poison of the lowest rank.
void keep_lowest(const std::optional<Poison>& seen, std::optional<Poison>& lowest) {
  if (seen && (!lowest || seen->rank < lowest->rank)) lowest = seen;
}

// One bucket of one rank.
class TwoLevels {
 public:
  TwoLevels(Communicator& comm, const Bucket& bucket, const StepContext& ctx, const Hosts& hosts,
            Wire& wire)
      : comm_(comm),
        bucket_(bucket),
        ctx_(ctx),
        hosts_(hosts),
        wire_(wire),
        here_(hosts.host_of(ctx.rank)),
        place_(hosts.place_of(ctx.rank)),
        codec_(count_codec(hosts.per_host(), CountForm::kPacked)) {}

  // The signs of this host, then the counts of all hosts about this rank's shard. Sets wire.poison
  // to that of the lowest rank that reports one: the same on all ranks.
  void gather();

  HostCounts counts() const { return {mine(), counts_, hosts_.per_host()}; }
  std::span<std::byte> result() { return wire_.down[index(ctx_.rank)].span(); }

  // This rank's result to its colleagues, and theirs to the ranks of this host.
  void spread(Codec codec, const PayloadCheck& check);

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  const Shard& shard_of(int rank) const { return bucket_.shards[index(rank)]; }
  const Shard& mine() const { return shard_of(ctx_.rank); }
  int colleague(int host) const { return hosts_.rank_at(host, place_); }
  int neighbour(int place) const { return hosts_.rank_at(here_, place); }
  ByteBuffer& signs_from(int host, int place) {
    return wire_.in[index(host * hosts_.per_host() + place)];
  }

  // Calls body for the other hosts (places), each rank in an order of its own, so that not all
  // send to one at a time.
  template <typename Body>
  void for_other_hosts(const Body& body) const {
    for (int d = 1; d < hosts_.count(); ++d) body((here_ + d) % hosts_.count());
  }
  template <typename Body>
  void for_other_places(const Body& body) const {
    for (int d = 1; d < hosts_.per_host(); ++d) body((place_ + d) % hosts_.per_host());
  }

  void send(int peer, std::span<const std::byte> frame) {
    pending_.push_back(comm_.start_send(peer, kTwoLevelTag, frame));
  }
  void receive(int peer, std::span<std::byte> frame) {
    pending_.push_back(comm_.start_recv(peer, kTwoLevelTag, frame));
  }
  void wait() {
    comm_.wait_all(pending_);
    pending_.clear();
  }
  FrameHeader header(Codec codec, const Shard& shard, int sender, int weight) const {
    FrameHeader h = header_of(codec, bucket_, shard, sender, ctx_);
    h.weight = static_cast<std::uint16_t>(weight);
    return h;
  }
  std::optional<Poison> opened(std::span<const std::byte> frame, const FrameHeader& expected,
                               const std::string& where) const {
    return open_frame(frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)}, expected, ctx_,
                      where);
  }

  void swap_signs();
  std::optional<Poison> open_signs();
  Frames signs_about(int host);
  void seal_counts(int host, const std::optional<Poison>& poison);
  void swap_counts();
  void open_counts();
  std::string passed_on_by(Codec codec, int rank) const;

  Communicator& comm_;
  const Bucket& bucket_;
  const StepContext& ctx_;
  const Hosts& hosts_;
  Wire& wire_;
  const int here_, place_;
  const Codec codec_;  // of the counts of a host
  std::vector<Ticket> pending_;
  Frames counts_;  // about this rank's shard, by host
};

void TwoLevels::gather() {
  swap_signs();
  const auto poison = open_signs();
  wire_.host_up.resize(index(hosts_.count()));
  wire_.host_in.resize(index(hosts_.count()));
  for (int h = 0; h < hosts_.count(); ++h) seal_counts(h, poison);
  wire_.poison = poison;
  swap_counts();
  open_counts();
}

void TwoLevels::swap_signs() {
  wire_.in.resize(index(hosts_.world()));
  for_other_places([&](int place) {
    for (int h = 0; h < hosts_.count(); ++h) {
      ByteBuffer& in = signs_from(h, place);
      in.resize(wire_.up[index(colleague(h))].size());
      receive(neighbour(place), in.span());
    }
  });
  for_other_places([&](int place) {
    for (int h = 0; h < hosts_.count(); ++h) {
      const int owner = hosts_.rank_at(h, place);
      const auto frame = wire_.up[index(owner)].span();
      FrameHeader out = header(Codec::kSign, shard_of(owner), ctx_.rank, 1);
      out.poison = wire_.poison;
      seal(out, frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)});
      send(neighbour(place), frame);
    }
  });
  wait();
}

// The poison of the lowest rank of this host.
std::optional<Poison> TwoLevels::open_signs() {
  const std::string where = phase_name(Codec::kSign, bucket_);
  std::optional<Poison> lowest = wire_.poison;
  for (int place = 0; place < hosts_.per_host(); ++place) {
    for (int h = 0; h < hosts_.count() && place != place_; ++h) {
      const int from = neighbour(place);
      keep_lowest(opened(signs_from(h, place).span(),
                         header(Codec::kSign, shard_of(colleague(h)), from, 1), where),
                  lowest);
    }
  }
  for (int place = 0; place < hosts_.per_host() && !lowest; ++place) {
    for (int h = 0; h < hosts_.count() && place != place_; ++h) {
      check_signs({signs_from(h, place).span(), shard_of(colleague(h)), neighbour(place), where});
    }
  }
  return lowest;
}

// What the ranks of this host say about the shard of the colleague there.
Frames TwoLevels::signs_about(int host) {
  Frames frames;
  for (int place = 0; place < hosts_.per_host(); ++place) {
    frames.push_back(place == place_ ? wire_.up[index(colleague(host))].span()
                                     : signs_from(host, place).span());
  }
  return frames;
}

void TwoLevels::seal_counts(int host, const std::optional<Poison>& poison) {
  const Shard& shard = shard_of(colleague(host));
  ByteBuffer& buffer = wire_.host_up[index(host)];
  buffer.resize(CountFrame(shard, hosts_.per_host(), CountForm::kPacked).bytes);
  const auto frame = buffer.span();
  if (poison) {
    std::ranges::fill(frame.subspan(kHeaderBytes), std::byte{0});
  } else {
    count_signs(shard, signs_about(host), CountForm::kPacked, frame);
  }
  if (host == here_) return;
  FrameHeader out = header(codec_, shard, ctx_.rank, hosts_.per_host());
  out.poison = poison;
  seal(out, frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)});
}

void TwoLevels::swap_counts() {
  for_other_hosts([&](int h) {
    wire_.host_in[index(h)].resize(wire_.host_up[index(here_)].size());
    receive(colleague(h), wire_.host_in[index(h)].span());
  });
  for_other_hosts([&](int h) { send(colleague(h), wire_.host_up[index(h)].span()); });
  wait();
}

// Every rank hears from every host here, so all choose the same poison.
void TwoLevels::open_counts() {
  const std::string where = phase_name(codec_, bucket_);
  counts_.clear();
  for (int h = 0; h < hosts_.count(); ++h) {
    counts_.push_back(wire_.host_up[index(h)].span());
    if (h == here_) continue;
    counts_.back() = wire_.host_in[index(h)].span();
    keep_lowest(
        opened(counts_.back(), header(codec_, mine(), colleague(h), hosts_.per_host()), where),
        wire_.poison);
  }
  for (int h = 0; h < hosts_.count() && !wire_.poison; ++h) {
    if (h == here_) continue;
    check_counts({counts_[index(h)], mine(), colleague(h), where}, hosts_.per_host(),
                 CountForm::kPacked);
  }
}

std::string TwoLevels::passed_on_by(Codec codec, int rank) const {
  return concat(phase_name(codec, bucket_), ", passed on by rank ", rank);
}

void TwoLevels::spread(Codec codec, const PayloadCheck& check) {
  seal(header(codec, mine(), ctx_.rank, 1), result().first(kHeaderBytes),
       {result().subspan(kHeaderBytes)});
  const std::string where = phase_name(codec, bucket_);
  std::optional<Poison> first;
  const auto take = [&](int owner, const std::string& text) {
    const auto frame = wire_.down[index(owner)].span();
    keep_lowest(opened(frame, header(codec, shard_of(owner), owner, 1), text), first);
    if (!first) check({frame, shard_of(owner), owner, text});
  };
  for_other_hosts([&](int h) { receive(colleague(h), wire_.down[index(colleague(h))].span()); });
  for_other_hosts([&](int h) { send(colleague(h), result()); });
  wait();
  // before they are passed on: an error names the owner, and not who passed its frame on
  for_other_hosts([&](int h) { take(colleague(h), where); });

  for_other_places([&](int place) {
    for (int h = 0; h < hosts_.count(); ++h) {
      receive(neighbour(place), wire_.down[index(hosts_.rank_at(h, place))].span());
    }
  });
  for_other_places([&](int place) {
    for (int h = 0; h < hosts_.count(); ++h) {
      send(neighbour(place), wire_.down[index(colleague(h))].span());
    }
  });
  wait();
  for_other_places([&](int place) {
    for (int h = 0; h < hosts_.count(); ++h) {
      const int owner = hosts_.rank_at(h, place);
      take(owner, h == here_ ? where : passed_on_by(codec, neighbour(place)));
    }
  });
  wire_.poison = first;
}

// In one level: what a rank sends to those of its host.
Cost with_local_part(Cost cost, int rank, const Hosts& hosts, std::span<const Bucket> buckets,
                     const std::function<std::size_t(const Shard&)>& down_bytes) {
  for (const Bucket& bucket : buckets) {
    for (int other = 0; hosts.known() && other < hosts.world(); ++other) {
      if (other == rank || hosts.host_of(other) != hosts.host_of(rank)) continue;
      cost.bytes_local += SignFrame(bucket.shards[static_cast<std::size_t>(other)]).bytes +
                          down_bytes(bucket.shards[static_cast<std::size_t>(rank)]);
    }
  }
  return cost;
}

Cost cost_in_two_levels(std::span<const Bucket> buckets, int rank, const Hosts& hosts,
                        const std::function<std::size_t(const Shard&)>& down_bytes) {
  Cost cost;
  const int here = hosts.host_of(rank), place = hosts.place_of(rank);
  const auto others = static_cast<std::uint64_t>(hosts.per_host() - 1);
  for (const Bucket& bucket : buckets) {
    std::uint64_t local_up = 0, local_down = 0;
    for (int other = 0; other < hosts.world(); ++other) {
      const Shard& shard = bucket.shards[static_cast<std::size_t>(other)];
      const bool colleague = hosts.place_of(other) == place;
      if (!colleague) local_up += SignFrame(shard).bytes;
      if (colleague) local_down += others * down_bytes(shard);
      if (colleague && hosts.host_of(other) != here) {
        cost.bytes_up += CountFrame(shard, hosts.per_host(), CountForm::kPacked).bytes;
      }
    }
    cost.bytes_down += static_cast<std::uint64_t>(hosts.count() - 1) *
                       down_bytes(bucket.shards[static_cast<std::size_t>(rank)]);
    cost.bytes_up += local_up;
    cost.bytes_down += local_down;
    cost.bytes_local += local_up + local_down;
  }
  return cost;
}

}  // namespace

void sign_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, const Hosts& hosts,
               Tie tie, Wire& wire) {
  if (!hosts.two_levels()) return sign_vote(comm, bucket, ctx, tie, wire);
  const Communicator::Scope scope(comm, concat("sign_vote, bucket ", bucket.index));
  TwoLevels levels(comm, bucket, ctx, hosts, wire);
  levels.gather();
  if (wire.poison) return;
  levels.counts().write_vote(ctx, tie, levels.result());
  levels.spread(Codec::kVote,
                [&](const ReceivedFrame& f) { check_vote(f, tie == Tie::kZero, ctx.absent); });
}

void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                const Hosts& hosts, CountForm form, Wire& wire) {
  if (!hosts.two_levels()) return sign_count(comm, bucket, ctx, form, wire);
  const Communicator::Scope scope(comm, concat("sign_count, bucket ", bucket.index));
  TwoLevels levels(comm, bucket, ctx, hosts, wire);
  levels.gather();
  if (wire.poison) return;
  levels.counts().write_counts(form, levels.result());
  levels.spread(count_codec(ctx.world, form), [&](const ReceivedFrame& f) {
    check_counts(f, ctx.world, form);
    check_present(f, ctx.world, ctx.absent);
  });
}

Cost vote_cost(std::span<const Bucket> buckets, int rank, const Hosts& hosts, Tie tie) {
  const auto down = [tie](const Shard& s) { return VoteFrame(s, tie == Tie::kZero).bytes; };
  if (hosts.two_levels()) return cost_in_two_levels(buckets, rank, hosts, down);
  return with_local_part(vote_cost(buckets, rank, tie), rank, hosts, buckets, down);
}

Cost count_cost(std::span<const Bucket> buckets, int rank, const Hosts& hosts, CountForm form) {
  const int world = buckets.empty() ? 1 : static_cast<int>(buckets.front().shards.size());
  const auto down = [=](const Shard& s) { return CountFrame(s, world, form).bytes; };
  if (hosts.two_levels()) return cost_in_two_levels(buckets, rank, hosts, down);
  return with_local_part(count_cost(buckets, rank, form), rank, hosts, buckets, down);
}

}  // namespace pride::exchange
