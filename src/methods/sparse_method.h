// What the sparse methods share: a residual v that takes in gradients, the choice of its largest
// entries, and the commit of what was sent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

class SparseMethod : public Method {
 public:
  // `global`: one threshold for all tensors instead of one for each. Throws InvalidArgument, naming
  // the method, unless 0 < ratio <= 1.
  SparseMethod(std::string name, const MethodContext& ctx, bool global);

  bool needs_whole_gradient() const noexcept override { return true; }
  void agree(Communicator&, const StepContext& ctx, ConstView g) override;
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;

  void save(StateWriter& out) const override { out.buffer("v", v_); }
  void load(StateReader& in) override { in.buffer("v", v_); }
  std::uint64_t state_floats() const override { return v_.size(); }

 protected:
  // Takes the gradients, all finite, into the residual.
  virtual void accumulate(const StepContext& ctx, ConstView g) = 0;
  // Share of the entries that a step sends.
  virtual double ratio_at(std::int64_t) const { return ratio_; }
  // What was sent leaves the residual. `mask` and [begin, end) are those of the bucket.
  virtual void commit(std::span<const std::uint64_t> mask, std::size_t begin, std::size_t end);

  std::span<float> residual(const TensorSlot& slot) {
    return v_.span().subspan(slot.offset, slot.n);
  }
  const Layout& layout() const noexcept { return layout_; }
  double ratio() const noexcept { return ratio_; }
  int world() const noexcept { return world_; }

 private:
  void select(const StepContext& ctx);
  std::size_t entries_of(std::size_t n, std::int64_t step) const;
  std::size_t max_entries(std::int64_t step) const;
  std::span<const std::uint64_t> mask_of(const Bucket& bucket) const;

  Layout layout_;
  int world_;
  double ratio_;
  bool global_;
  FlatBuffer v_;
  std::vector<std::uint64_t> mask_;  // what this step sends: a bit for each flat coordinate
  std::optional<Poison> poison_;     // of this rank's gradients, this step
};

// Bits, growth and the option `ratio`; the method adds the rest.
MethodInfo sparse_method_info(int world);

}  // namespace pride::methods
