// SPDX-License-Identifier: Apache-2.0
#include "methods/momentum_sync.h"

#include <algorithm>
#include <sstream>

#include "exchange/mean_values.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

// '*' stands for any characters. After a mismatch the last star takes one more.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool is_embedding(const std::string& name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  return has("emb") || has("wte") || has("wpe") || has("pos");
}

bool is_matrix(const TensorSlot& slot) { return slot.spec.shape.size() >= 2; }

// The tensors that one item names.
std::vector<std::size_t> named_by(const std::string& item, const Layout& layout) {
  const auto& tensors = layout.tensors();
  std::vector<std::size_t> found, matrices;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (is_matrix(tensors[t])) matrices.push_back(t);
  }
  if (item == "first") return {matrices.begin(), matrices.begin() + (matrices.empty() ? 0 : 1)};
  if (item == "last") return {matrices.end() - (matrices.empty() ? 0 : 1), matrices.end()};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const bool hit = item == "all" || (item == "vectors" && !is_matrix(tensors[t])) ||
                     (item == "embeddings" && is_embedding(tensors[t].spec.name)) ||
                     matches(item, tensors[t].spec.name);
    if (hit) found.push_back(t);
  }
  return found;
}

}  // namespace

ValueFormat value_format(const std::string& method, const std::string& text) {
  if (text == "fp32") return {ValueFormat::Kind::kFloat32, 32};
  if (text == "bf16") return {ValueFormat::Kind::kBFloat16, 16};
  PRIDE_CHECK(text.size() == 1 && text[0] >= '2' && text[0] <= '8', method,
              ": option sync_format = '", text,
              "': choose fp32, bf16, or a number of bits from 2 to 8");
  return {ValueFormat::Kind::kLevels, text[0] - '0'};
}

std::vector<char> choose_tensors(const std::string& method, const Layout& layout,
                                 const std::string& text) {
  std::vector<char> chosen(layout.tensors().size(), 0);
  if (text == "none") return chosen;
  PRIDE_CHECK(!text.empty(), method, ": option sync is empty; 'none' synchronises nothing");
  std::istringstream items(text);
  std::string item;
  while (std::getline(items, item, ',')) {
    const auto found = named_by(item, layout);
    const bool is_kind = item == "all" || item == "vectors" || item == "embeddings" ||
                         item == "first" || item == "last";
    PRIDE_CHECK(is_kind || !found.empty(), method, ": option sync = '", text,
                "': no tensor is named by '", item,
                "'; an item is none, all, vectors, embeddings, first, last, or a pattern of "
                "tensor names with *");
    for (const std::size_t t : found) chosen[t] = 1;
  }
  return chosen;
}

MomentumSync::MomentumSync(const Layout& layout, std::vector<char> chosen, std::int64_t every,
                           ValueFormat format)
    : chosen_(std::move(chosen)), every_(every), format_(format) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    first_block_.push_back(n_blocks_);
    offset_.push_back(slot.offset);
    if (chosen_[t] != 0) n_blocks_ += (slot.n + 63) / 64;
  }
}

std::vector<MomentumSync::Range> MomentumSync::due(const Bucket& bucket, std::int64_t step) const {
  std::vector<Range> ranges;
  if (n_blocks_ == 0 || bucket.shards.size() == 1) return ranges;  // alone, momenta are the mean
  const auto slices = static_cast<std::size_t>(every_);
  const std::size_t slice = static_cast<std::size_t>(step % every_);
  const std::size_t low = n_blocks_ * slice / slices, high = n_blocks_ * (slice + 1) / slices;
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (chosen_[piece.tensor] == 0) continue;
      const std::size_t offset = offset_[piece.tensor];
      const std::size_t first = first_block_[piece.tensor] + (piece.begin - offset) / 64;
      const std::size_t begin = std::max(first, low);
      const std::size_t end = std::min(first + piece.n_words(), high);
      if (begin >= end) continue;
      const std::size_t at = piece.begin + 64 * (begin - first);
      ranges.push_back({at, at + 64 * (end - begin), piece.tensor});
    }
  }
  return ranges;
}

Cost MomentumSync::cost(const Bucket& bucket, int rank, std::int64_t step) const {
  return exchange::mean_values_cost(size_of(due(bucket, step)), format_,
                                    static_cast<int>(bucket.shards.size()), rank);
}

double MomentumSync::mean_bytes(std::span<const Bucket> buckets, int world) const {
  std::uint64_t bytes = 0;
  for (std::int64_t step = 0; n_blocks_ > 0 && step < every_; ++step) {
    for (const Bucket& bucket : buckets) {
      bytes += exchange::mean_values_total(size_of(due(bucket, step)), format_, world);
    }
  }
  return static_cast<double>(bytes) / static_cast<double>(every_);
}

std::size_t size_of(std::span<const MomentumSync::Range> ranges) {
  std::size_t n = 0;
  for (const auto& r : ranges) n += r.end - r.begin;
  return n;
}

}  // namespace pride::methods
