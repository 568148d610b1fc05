// GPT-2 style language model: pre-LN blocks, learned positions, tied embeddings.
// SPDX-License-Identifier: Apache-2.0
// Source    Radford et al. 2019; parameter names and (in, out) weights as Hugging Face's GPT-2.
#pragma once

#include <functional>
#include <memory>

#include "pride/train/model.h"
#include "train/models/parts.h"

namespace pride::train {

struct GptSize {
  std::int64_t layers = 4, heads = 4, width = 128;
  std::int64_t context = 128;     // longest input, in tokens
  std::int64_t vocabulary = 256;  // bytes
  double init_std = 0.02;         // of initial weights; a branch's last: over sqrt(2 layers)
  double embedding_std = 0.02;    // of the token embeddings, which are also the head
};

// The keys and values of one text read so far, by layer.
struct KvCache {
  std::vector<at::Tensor> keys, values;  // (heads, context, width / heads)
  std::int64_t length = 0;               // tokens
};

class Gpt final : public Model {
 public:
  // Throws InvalidArgument on a size below 1, a width that the heads do not divide, or a
  // deviation that is not positive and finite.
  explicit Gpt(const GptSize& size);

  const GptSize& size() const noexcept { return size_; }
  // Several threads may call either of the two at a time.
  at::Tensor logits(const at::Tensor& input) override;
  at::Tensor logits_at(const at::Tensor& input, const at::Tensor& places) override;

  // Reads token ids (n) that follow those in `cache`, at the cost of these n only. Returns the
  // logits (vocabulary) after the last one. Throws InvalidArgument if the cache would hold more
  // than the context.
  at::Tensor read(const at::Tensor& tokens, KvCache& cache) const;

 private:
  struct Block {
    Affine ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj;
  };
  // q, k and v beside each other -> the attended values
  using Attention = std::function<at::Tensor(const at::Tensor& qkv)>;

  Affine declare_norm(const std::string& name);
  Affine declare_conv1d(const std::string& name, std::int64_t in, std::int64_t out,
                        double deviation);
  Block declare_block(std::int64_t index);
  at::Tensor norm(const at::Tensor& x, const Affine& p) const;
  at::Tensor hidden(const at::Tensor& input);  // (batch, length, width), before the last norm
  at::Tensor forward(const Block& b, const at::Tensor& x, const Attention& attention) const;
  at::Tensor attend_cached(const at::Tensor& qkv, const at::Tensor& mask, std::size_t layer,
                           KvCache& cache) const;

  GptSize size_;
  at::Tensor wte_, wpe_;
  std::vector<Block> blocks_;
  Affine ln_f_;
};

// A Gpt, as any model.
std::unique_ptr<Model> make_gpt(const GptSize& size);

}  // namespace pride::train
