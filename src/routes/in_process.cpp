// SPDX-License-Identifier: Apache-2.0
#include "routes/in_process.h"

#include <algorithm>

namespace pride {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// The chunk's values of rank 0 become the sums over ranks, added in their order.
template <typename T>
void add_rows(std::span<const InProcess::Rank> ranks, std::size_t chunk) {
  const auto row = [](const InProcess::Rank& rank) {
    const auto bytes = rank.wire.room.span();
    return std::span(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
  };
  const std::span<T> sum = row(ranks[0]);
  const std::size_t begin = sum.size() * chunk / ranks.size();
  const std::size_t end = sum.size() * (chunk + 1) / ranks.size();
  for (const InProcess::Rank& rank : ranks.subspan(1)) {
    const std::span<const T> more = row(rank);
    for (std::size_t i = begin; i < end; ++i) sum[i] = static_cast<T>(sum[i] + more[i]);
  }
}

}  // namespace

InProcess::InProcess(const Part& part, std::vector<Rank> ranks, const Nodes& nodes)
    : part_(part), ranks_(std::move(ranks)), nodes_(nodes) {}

std::optional<NonFinite> InProcess::begin() {
  traffic_ = traffic_of(part_, nodes_, ranks_.size());
  count(&PartTraffic::up);
  if (native()) return std::nullopt;
  if (!part_.up.sized) count_payloads();
  return agree();
}

// The lowest flag goes to all.
std::optional<NonFinite> InProcess::agree() const {
  std::optional<NonFinite> first;
  for (const Rank& rank : ranks_) {
    const auto& flag = rank.wire.non_finite;
    if (flag && (!first || *flag < *first)) first = flag;
  }
  for (const Rank& rank : ranks_) rank.wire.non_finite = first;
  return first;
}

void InProcess::count(Traffic PartTraffic::*way) const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].traffic = ranks_[r].traffic + traffic_[r].*way;
  }
}

void InProcess::count_payloads() const {
  const std::uint64_t others = ranks_.size() - 1;
  std::uint64_t all = 0;
  const auto payload = [](const Rank& rank) { return rank.wire.up[0].size() - kHeaderBytes; };
  for (const Rank& rank : ranks_) all += payload(rank);
  for (const Rank& rank : ranks_) {
    rank.traffic.bytes_sent += others * payload(rank);
    rank.traffic.bytes_received += all - payload(rank);
  }
}

// --- The servers. --------------------------------------------------------------------------------

void InProcess::serve(std::size_t task) {
  if (native()) {
    add(task);
  } else if (part_.route == Route::kHierarchical) {
    serve_nodes(task);
  } else {
    serve_shard(task);
  }
}

void InProcess::serve_shard(std::size_t shard) const {
  std::vector<Frame> frames;
  for (const Rank& rank : ranks_) {
    frames.push_back({rank.wire.up[shard].span(), rank.wire.up_body[shard]});
  }
  Wire& out = ranks_[0].wire;
  serve(shard, FrameRole::kUp, frames, ranks_[0].ctx.weights, FrameRole::kDown,
        out.down[shard].span(), out.down_body[shard]);
}

void InProcess::serve_nodes(std::size_t shard) const {
  std::vector<ByteBuffer> partials(index(nodes_.count()));
  std::vector<Frame> frames;
  for (int node = 0; node < nodes_.count(); ++node) {
    std::vector<Frame> up;
    std::vector<int> weights;
    for (int k = 0; k < nodes_.per_node(); ++k) {
      const Rank& rank = ranks_[index(nodes_.rank_at(node, k))];
      up.push_back({rank.wire.up[shard].span()});
      if (!rank.ctx.weights.empty()) weights.push_back(rank.ctx.weight_of(rank.ctx.rank));
    }
    ByteBuffer& partial = partials[index(node)];
    partial.resize(part_.partial.bytes(part_.shards[shard]));
    serve(shard, FrameRole::kUp, up, weights, FrameRole::kPartial, partial.span(), {});
    frames.push_back({partial.span()});
  }
  serve(shard, FrameRole::kPartial, frames, {}, FrameRole::kDown, ranks_[0].wire.down[shard].span(),
        {});
}

// By the shard's server, into the memory of rank 0.
void InProcess::serve(std::size_t shard, FrameRole from, std::span<const Frame> frames,
                      std::span<const int> weights, FrameRole to, std::span<std::byte> head,
                      std::span<std::byte> body) const {
  const Rank& rank = ranks_[shard];
  const std::string where = concat(part_.frames(from).name, " frames of bucket ", part_.bucket);
  const auto cells = rank.wire.cells.span();
  const std::span words{reinterpret_cast<const std::uint64_t*>(cells.data()), cells.size() / 8};
  Reply reply{to, head, body, rank.wire.pending};
  rank.server.serve(part_, part_.shards[shard], {from, frames, where, weights, words}, rank.ctx,
                    reply);
  rank.wire.non_finite = reply.non_finite;
}

void InProcess::add(std::size_t chunk) const {
  switch (part_.sum) {
    case Sum::kFloat32:
      return add_rows<float>(ranks_, chunk);
    case Sum::kInt8:
      return add_rows<std::int8_t>(ranks_, chunk);
    case Sum::kInt16:
      return add_rows<std::int16_t>(ranks_, chunk);
    case Sum::kInt32:
      return add_rows<std::int32_t>(ranks_, chunk);
  }
}

std::optional<NonFinite> InProcess::end(bool all) {
  Wire& from = ranks_[0].wire;
  if (native())
    serve(0, FrameRole::kUp, {}, {}, FrameRole::kDown, from.down[0].span(), from.room.span());
  count(&PartTraffic::down);
  if (const auto flag = agree()) return flag;
  for (const Rank& rank : std::span(ranks_).subspan(all ? 1 : ranks_.size())) {
    for (std::size_t j = 0; j < part_.shards.size(); ++j) {
      std::ranges::copy(from.down[j].span(), rank.wire.down[j].span().begin());
      std::ranges::copy(from.down_body[j], rank.wire.down_body[j].begin());
    }
    if (native()) std::ranges::copy(from.room.span(), rank.wire.room.span().begin());
  }
  return std::nullopt;
}

}  // namespace pride
