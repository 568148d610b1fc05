// SignMethod: the common half of the methods whose workers send one sign for each coordinate: their
// options, their momentum, their route for each bucket, and the counts of a node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codecs/counts.h"
#include "methods/encode_signs.h"

namespace pride::methods {

class SignMethod : public Method {
 public:
  // Errors name the method `name`. `muon`: matrices are orthogonalised.
  SignMethod(const MethodContext& ctx, BlendOf blend, bool muon);

  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override;
  void tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) override;
  const OrthogonalBlend* muon() const noexcept { return muon_.get(); }  // null: none

 protected:
  Protocol signs_protocol(int most_votes = std::numeric_limits<int>::max()) const;
  // Frames of results, after this route.
  virtual FrameKind result_frames(int votes, Route route) const = 0;

  // delta = sign(beta1 m + (1-beta1) g);  m = beta2 m + (1-beta2) g
  void encode_signs(const StepContext& ctx, Flight& flight) {
    methods::encode_signs(space_, flight.parts[0].shards, flight.grad, ctx, blend_, m_,
                          flight.wire(0), muon_.get());
  }
  // Server: a node's partial counts of its ranks' signs.
  void count_node(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                  Reply& reply) const;
  // The most votes of a node: the partial counts of all nodes have the form for it.
  int node_votes(const SharedContext& shared) const;
  // Worker: the results are in the device's memory.
  void upload_results(const Flight& flight) const;

  Space& space_;

 private:
  enum class RouteChoice { kAuto, kSharded, kOneShot };

  const Layout& layout_;
  BlendOf blend_;
  RouteChoice choice_;
  std::uint64_t bandwidth_delay_bytes_;
  Nodes nodes_;
  std::unique_ptr<OrthogonalBlend> muon_;
  Stored m_;
};

// A step of the tensor by a result of one: learning rate and decay.
kernels::Step step_of(const Piece& p, const StepContext& ctx, const OrthogonalBlend* muon);

// The sign of the new momentum is sent.
kernels::Blend signum_blend(const StepScalars& s);

MethodInfo dlion_info(int world, bool average);
MethodInfo signum_info(int world, bool average);
MethodInfo muon_info(int world, bool average);
template <MethodInfo (*kInfo)(int, bool), bool kAverage>
MethodInfo info_of(int world) {
  return kInfo(world, kAverage);
}

}  // namespace pride::methods
