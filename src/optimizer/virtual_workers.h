// VirtualWorkers::Impl: N workers of one process over one copy of the parameters. Each has methods
// of its own with the state of a rank; shared state exists once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "optimizer/replica_impl.h"
#include "pride/flat_buffer.h"
#include "pride/virtual_workers.h"
#include "routes/in_process.h"

namespace pride {

// In a step each worker encodes when its gradients are handed over. Then the servers of the
// method's own routes serve all frames in memory, so that bits and counted bytes are those of N
// ranks, and the results are applied once.
struct VirtualWorkers::Impl final : Replica::Impl {
  Impl(Layout the_layout, OptimizerOptions the_options, VirtualWorkersOptions the_workers);

  void after_load() noexcept override;
  void check_between_gradients(const char*) const override {}
  void check_parameters() override;
  std::size_t frame_bytes() const override;
  void to_local(View) const override {}  // to_worker() does it, worker by worker
  void move_server_state(std::size_t section, std::span<const Bucket> from) override;

  struct Frames {
    bool handed_over = false;
    std::vector<Flight> flights;   // by Bucket::index
    std::vector<FlatBuffer> kept;  // by section: its gradient, if the method reads it later
    std::vector<Traffic> traffic;  // by section
  };
  std::size_t checked(int worker, const char* call) const;
  Flight& flight_of(std::size_t worker, std::size_t section, std::size_t bucket);

  // Encodes a worker's gradients, whose memory is free afterwards.
  void hand_over(std::size_t worker);
  void keep_gradient(std::size_t worker, std::size_t section);
  void encode(std::size_t worker, std::size_t section);

  StepReport step(const Parameters& params);
  // Exchanges, and applies unless a gradient is not finite. Afterwards x are the common parameters.
  std::optional<NonFinite> exchange_and_apply();
  void share(std::size_t section);
  std::optional<NonFinite> exchange();
  bool exchange_parts(std::size_t k);
  template <typename WireOf>
  std::vector<InProcess::Rank> ranks(std::size_t section, const WireOf& wire_of);
  template <typename Body>
  void for_workers(const Body& body);
  void clip_mean();
  void take_result(std::size_t section, std::size_t bucket);
  template <typename Body>
  void for_shared(std::size_t section, std::size_t bucket, const Body& body);
  View sink();
  void report_workers(const std::optional<NonFinite>& non_finite, StepReport& report);
  void report_local_steps(std::size_t section, StepReport& report);

  VirtualWorkersOptions asked;
  std::vector<Frames> frames;  // by worker
  FlatBuffer shared;           // a bucket's shared values before the first worker's step
  FlatBuffer sink_values;      // local steps write parameters here that nothing reads
  std::vector<ParameterPlace> sink_places;
  double grad_norm = 0;
  StepTimes timing;
};

}  // namespace pride
