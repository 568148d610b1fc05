// What the methods that send one sign per coordinate share: momentum, frames of signs, and either
// form of the answer. A method of its own has a rule for the blend, and nothing else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "exchange/direct_signs.h"
#include "exchange/sign_vote.h"
#include "kernels/kernels.h"
#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// How the form of a bucket's exchange is chosen, the same on all ranks.
struct FormRule {
  enum class Choice { kAuto, kSharded, kDirect } choice = Choice::kSharded;
  std::uint64_t round_bytes = 0;  // for kAuto: exchange::cheaper_form()
};

// Options form and round_bytes. Throws InvalidArgument, naming the method.
FormRule form_rule(const std::string& method, const MethodContext& ctx);

// The worker's half:  delta_i = sign(beta1 m + (1-beta1) g);  m = beta2 m + (1-beta2) g.
// Absent tensors keep their momentum and set their absent bit.
class SignMethod : public Method {
 public:
  SignMethod(const MethodContext& ctx, const FormRule& form)
      : m_(ctx.layout.flat_size()), hosts_(ctx.hosts), form_(form) {}

  bool has_two_levels() const noexcept override { return true; }
  ExchangeForm exchange_form(const Bucket& b) const override;
  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 protected:
  virtual kernels::Blend blend(const StepScalars& s) const = 0;
  std::span<float> momentum() noexcept { return m_.span(); }
  const Hosts& hosts() const noexcept { return hosts_; }

  // Of the frame that an owner answers with.
  virtual std::size_t answer_bytes(const Shard& shard) const = 0;
  bool is_direct(const Bucket& b) const;

  // Signs into the frames wire.up; wire.poison: the first tensor with a NaN or Inf.
  // REQUIRES: frames sized by prepare_vote or _count, or by the direct form's.
  void encode_signs(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w);
  void encode_direct(const Shard& whole, ConstView g, const StepContext& ctx, Wire& w);

 private:
  void encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                    std::span<std::byte> frame, std::optional<Poison>& poison);
  std::size_t encode_piece(const Piece& piece, ConstView g, const StepContext& ctx,
                           std::span<std::uint64_t> signs);

  FlatBuffer m_;
  Hosts hosts_;
  FormRule form_;
};

// Delta = sign(sum of signs);  x = (1 - lr wd) x - lr Delta
class VoteMethod : public SignMethod {
 public:
  // Throws InvalidArgument, naming the method, on a tie rule that is not known.
  VoteMethod(const std::string& name, const MethodContext& ctx, const FormRule& form);
  VoteMethod(const std::string& name, const MethodContext& ctx)
      : VoteMethod(name, ctx, form_rule(name, ctx)) {}

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;

 protected:
  exchange::Tie tie() const noexcept { return tie_; }

 private:
  std::size_t answer_bytes(const Shard& shard) const override;

  exchange::Tie tie_;
};

// c = number of +, S = 2c - N;  x = (1 - lr wd) x - lr S / N
class AverageMethod : public SignMethod {
 public:
  // Throws InvalidArgument, naming the method, on a form of counts that is not known.
  AverageMethod(const std::string& name, const MethodContext& ctx);

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;

 private:
  std::size_t answer_bytes(const Shard& shard) const override;

  CountForm counts_;
  int world_;
};

// Bits, growth, state and options of the two forms; the method adds title, source and defaults.
MethodInfo vote_method_info();
MethodInfo average_method_info(int world);

}  // namespace pride::methods
