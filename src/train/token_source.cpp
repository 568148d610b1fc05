// SPDX-License-Identifier: Apache-2.0
#include "train/token_source.h"

#include <algorithm>
#include <numeric>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/data/shard.h"
#include "train/data/text.h"
#include "train/hex.h"

namespace pride::train {
namespace {

class ByteSource final : public TokenSource {
 public:
  explicit ByteSource(std::vector<std::uint8_t> bytes)
      : bytes_(std::move(bytes)), size_(bytes_.size()) {}

  std::span<const std::size_t> sizes() const noexcept override { return {&size_, 1}; }
  void copy(std::size_t, std::size_t begin, std::span<std::int64_t> out) const override {
    std::copy_n(bytes_.data() + begin, out.size(), out.begin());
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t size_;
};

// Only what is read comes from disk, and only that is checked.
class ShardSource final : public TokenSource {
 public:
  // of the only file: the first nine tenths, or the rest
  enum class Side { kAll, kFront, kBack };

  ShardSource(std::vector<Shard> shards, Side side, std::size_t vocabulary)
      : shards_(std::move(shards)), vocabulary_(vocabulary) {
    for (const Shard& shard : shards_) {
      const std::size_t n = shard.tokens().size(), border = n - (n + 9) / 10;
      begin_ = side == Side::kBack ? border : 0;
      sizes_.push_back(side == Side::kAll ? n : side == Side::kFront ? border : n - border);
    }
  }

  std::span<const std::size_t> sizes() const noexcept override { return sizes_; }
  void copy(std::size_t run, std::size_t begin, std::span<std::int64_t> out) const override {
    const Shard& shard = shards_[run];
    shard.check(begin_ + begin, out.size(), vocabulary_);
    std::copy_n(shard.tokens().data() + begin_ + begin, out.size(), out.begin());
  }

 private:
  std::vector<Shard> shards_;
  std::size_t vocabulary_, begin_ = 0;
  std::vector<std::size_t> sizes_;
};

std::int64_t as_fact(std::size_t n) { return static_cast<std::int64_t>(n); }

LmData bytes_of(TextCorpus corpus) {
  LmData data;
  data.facts = {corpus.source,
                hex16(corpus.hash),
                {{"files", as_fact(corpus.n_files)},
                 {"train_bytes", as_fact(corpus.train.size())},
                 {"valid_bytes", as_fact(corpus.valid.size())}}};
  data.train = std::make_unique<ByteSource>(std::move(corpus.train));
  data.valid = std::make_unique<ByteSource>(std::move(corpus.valid));
  return data;
}

LmData shards_of(const std::filesystem::path& path, const std::string& folder) {
  if (path.empty()) {
    throw DataError("--vocab needs --data: shards of tokens (`pride tokenize` makes them)");
  }
  LmData data;
  data.vocabulary = std::make_shared<Vocabulary>(folder);
  const std::size_t size = data.vocabulary->size();
  ShardSet shards = open_shards(path);
  const bool one = !std::filesystem::is_directory(path);
  const std::size_t files = one ? 1 : shards.train.size() + shards.valid.size();
  // the same tokens of another vocabulary are other data
  const std::uint64_t hash = mix64(hash_of(shards), data.vocabulary->hash());
  using Side = ShardSource::Side;
  data.train =
      std::make_unique<ShardSource>(std::move(shards.train), one ? Side::kFront : Side::kAll, size);
  data.valid =
      std::make_unique<ShardSource>(std::move(shards.valid), one ? Side::kBack : Side::kAll, size);
  data.facts = {concat(path.string(), " (", files, one ? " shard, first 90 %" : " shards",
                       one ? " of its tokens to train)" : ")"),
                hex16(hash),
                {{"files", as_fact(files)},
                 {"vocabulary", folder},
                 {"train_tokens", as_fact(data.train->total())},
                 {"valid_tokens", as_fact(data.valid->total())}}};
  return data;
}

}  // namespace

std::size_t TokenSource::total() const noexcept {
  const auto all = sizes();
  return std::accumulate(all.begin(), all.end(), std::size_t{0});
}

Windows::Windows(const TokenSource& source, std::size_t context, std::size_t slack)
    : source_(source), context_(context), first_{0} {
  for (const std::size_t n : source.sizes()) {
    first_.push_back(first_.back() + (n > slack ? (n - 1 - slack) / context : 0));
  }
}

void Windows::read(std::size_t index, std::size_t offset, std::span<std::int64_t> out) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), index);
  const auto run = static_cast<std::size_t>(after - first_.begin()) - 1;
  source_.copy(run, offset + (index - first_[run]) * context_, out);
}

LmData load_lm_data(const TrainOptions& options) {
  const std::filesystem::path path = options.data;
  if (!options.vocab.empty()) return shards_of(path, options.vocab);
  return bytes_of(path.empty() ? load_default_text() : load_text(path));
}

}  // namespace pride::train
