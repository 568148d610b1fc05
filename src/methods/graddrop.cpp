// Gradient dropping.
// SPDX-License-Identifier: Apache-2.0
// Source    Aji & Heafield 2017, arXiv:1704.05021, Algorithm 1.
// Cost      at most ratio (34 + log2(1/ratio)) bits per coordinate to each other rank, plus frames:
//           grows with N.
// State     v: residual (n) float32, local to each rank; what was sent leaves it.
// Deviates  the threshold is the exact quantile rather than that of a sample; weight decay is
//           decoupled.
#include "kernels/kernels.h"
#include "methods/sparse_method.h"
#include "pride/error.h"
#include "pride/methods/sparse.h"

namespace pride::methods {
namespace {

class GradientDropping final : public SparseMethod {
 public:
  explicit GradientDropping(const MethodContext& ctx)
      : SparseMethod("graddrop", ctx, is_global(ctx.options.at("threshold"))) {}

 private:
  // v = v + g;  the largest |v| are sent and leave v
  void accumulate(const StepContext& ctx, ConstView g) override {
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (ctx.is_absent(t)) continue;
      const TensorSlot& slot = layout().tensors()[t];
      const auto v = residual(slot);
      const float* rows[] = {v.data(), g.data + slot.offset};
      kernels::sum_rows(rows, v);
    }
  }

  static bool is_global(const std::string& name) {
    PRIDE_CHECK(name == "tensor" || name == "global", "graddrop: option threshold = '", name,
                "': choose tensor or global");
    return name == "global";
  }
};

}  // namespace

std::unique_ptr<Method> make_graddrop(const MethodContext& ctx) {
  return std::make_unique<GradientDropping>(ctx);
}

MethodInfo graddrop_info(int world) {
  MethodInfo info = sparse_method_info(world);
  info.title = "Gradient dropping";
  info.source = "Aji & Heafield 2017, arXiv:1704.05021, Algorithm 1";
  info.state_floats = 1;
  info.options.push_back({"threshold", "tensor",
                          "'tensor': each tensor sends its share; 'global': one threshold for the "
                          "whole model, as in the paper"});
  return info;
}

}  // namespace pride::methods
