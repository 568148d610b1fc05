// Steps of the C interface: of ranks, of a coordinator's worker, of virtual workers, of followers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "c/handles.h"

namespace pride::c {
namespace {

// Called before the step, so that an unusable report does not lose the step.
void check_report(const pride_report* out) {
  PRIDE_CHECK(out == nullptr || out->struct_size >= sizeof(pride_report),
              "pride_report: struct_size is ", out->struct_size, ", must be ", sizeof(pride_report),
              " or more");
}

// REQUIRES: check_report(out).
void write(const StepReport& report, pride_optimizer& optimizer, pride_report* out) {
  optimizer.note = report.skipped ? report.skip_reason : report.note;
  optimizer.round = report.round;
  if (out == nullptr) return;
  *out = {.struct_size = out->struct_size,
          .skipped = report.skipped,
          .step = report.step,
          .bytes_sent = report.bytes_sent,
          .bytes_received = report.bytes_received,
          .messages_sent = report.messages_sent,
          .grad_norm = report.grad_norm.value_or(kNotSet),
          .encode_s = report.encode_s,
          .exchange_s = report.exchange_s,
          .apply_s = report.apply_s};
}

constexpr std::int64_t kLongestWaitMs = std::int64_t{1000} * 3600 * 24 * 365;

// Throws InvalidArgument, naming the function, for another front door.
Optimizer& plain(const pride_optimizer* optimizer, const char* function) {
  auto* const found = door<Optimizer>(optimizer);
  PRIDE_CHECK(found != nullptr, "optimizer: ", function,
              "() is not supported with a coordinator or virtual workers");
  return *found;
}

VirtualWorkers& workers_of(const pride_optimizer* optimizer, const char* function) {
  auto* const found = door<VirtualWorkers>(optimizer);
  PRIDE_CHECK(found != nullptr, "optimizer: ", function,
              "(): the optimizer has no virtual workers (pride_options.virtual_workers)");
  return *found;
}

[[noreturn]] void refuse_step() {
  throw InvalidArgument(
      "optimizer: with virtual workers call hand_over() for each, then step_workers()");
}

ResultFollower& follower_of(const pride_optimizer* optimizer, std::int32_t part,
                            const char* function) {
  plain(optimizer, function);
  const auto& all = optimizer->followers;
  PRIDE_CHECK(part >= 0 && static_cast<std::size_t>(part) < all.size(), "optimizer: ", function,
              "(): part ", part, " of ", all.size());
  return *all[static_cast<std::size_t>(part)];
}

// --- A coordinator's worker takes all gradients of a step at once. -------------------------------

void begin(pride_optimizer& optimizer, const Parameters& params, const pride_array* grads) {
  const Layout& layout = optimizer.replica->layout();
  const auto& tensors = layout.tensors();
  pride_gradients& step = optimizer.gradients;
  PRIDE_CHECK(grads == nullptr || grads->n == layout.flat_size(),
              "optimizer: ", grads == nullptr ? 0 : grads->n, " gradients given, the layout has ",
              layout.flat_size(), " with padding");
  step = {};
  step.each.resize(tensors.size());
  step.reported.resize(tensors.size(), 0);
  if (grads != nullptr) step.flat = grads_of(optimizer, grads).flat();
  step.params = params;
  step.begun = true;
}

// nullopt: the gradient that begin() was given.
void ready(pride_optimizer& optimizer, std::size_t tensor, const std::optional<ConstTensor>& grad) {
  pride_gradients& step = optimizer.gradients;
  PRIDE_CHECK(step.begun, "optimizer: gradient_ready() outside a step");
  PRIDE_CHECK(tensor < step.each.size(), "optimizer: gradient_ready() of tensor ", tensor,
              ", the layout has ", step.each.size(), " tensors");
  const TensorSlot& slot = optimizer.replica->layout().tensors()[tensor];
  PRIDE_CHECK(step.reported[tensor] == 0, "optimizer: tensor '", slot.spec.name,
              "' reported ready twice in a step");
  PRIDE_CHECK(grad || step.flat, "optimizer: gradient_ready() was given no gradient of '",
              slot.spec.name, "', nor was begin_step()");
  PRIDE_CHECK(!grad || !step.flat || grad->data == nullptr,
              "optimizer: gradient_ready() was given a gradient of '", slot.spec.name,
              "', but begin_step() was given all gradients");
  step.reported[tensor] = 1;
  if (grad) {
    step.each[tensor] = *grad;
  } else {
    const auto* const data = static_cast<const std::byte*>(step.flat->data);
    step.each[tensor] = {data + slot.offset * size_of(step.flat->dtype), slot.n, step.flat->dtype};
  }
}

// The coordinator's worker of a handle whose step in parts may have begun; null: another door.
RunWorker* gathering(const pride_optimizer* optimizer) {
  return dynamic_cast<RunWorker*>(&unlocked(optimizer));
}

StepReport finish(pride_optimizer& optimizer) {
  if (auto* const ranks = dynamic_cast<Optimizer*>(optimizer.replica.get())) {
    return ranks->finish_step();
  }
  auto* const worker = dynamic_cast<RunWorker*>(optimizer.replica.get());
  if (worker == nullptr) refuse_step();
  pride_gradients& step = optimizer.gradients;
  PRIDE_CHECK(step.begun, "optimizer: finish_step() outside a step");
  step.begun = false;
  return worker->step(*step.params, std::span<const ConstTensor>(step.each));
}

}  // namespace
}  // namespace pride::c

using namespace pride::c;

int pride_optimizer_scale_next_step(pride_optimizer* optimizer, const pride_array* factor) {
  return guarded([&] {
    pride::Optimizer& all = plain(optimizer, "scale_next_step");
    if (factor == nullptr) return all.scale_next_step(nullptr);
    PRIDE_CHECK(factor->data != nullptr, "factor: ", factor->n, " values at NULL");
    const pride::ConstTensor value = gradient_of(*optimizer, *factor);
    PRIDE_CHECK(factor->n == 1 && factor->dtype == PRIDE_FLOAT32, "factor: ", factor->n,
                " values of dtype ", factor->dtype, ", must be one float32");
    all.scale_next_step(static_cast<const float*>(value.data));
  });
}

int pride_optimizer_step(pride_optimizer* optimizer, const pride_array* params,
                         const pride_array* grads, const uint8_t* unused, pride_report* report) {
  return guarded([&] {
    pride::Replica& all = idle(optimizer);
    check_report(report);
    const std::size_t n = all.layout().tensors().size();
    const auto flags = flags_of(unused, n);
    const pride::Parameters to = params_of(*optimizer, params);
    const pride::Gradients from = grads_of(*optimizer, grads);
    if (auto* const ranks = door<pride::Optimizer>(optimizer)) {
      return write(ranks->step(to, from, {flags.get(), n}), *optimizer, report);
    }
    auto* const worker = door<pride::RunWorker>(optimizer);
    if (worker == nullptr) refuse_step();
    write(worker->step(to, from, {flags.get(), n}), *optimizer, report);
  });
}

int pride_optimizer_begin(pride_optimizer* optimizer, const pride_array* params,
                          const pride_array* grads) {
  return guarded([&] {
    idle(optimizer);
    const pride::Parameters to = params_of(*optimizer, params);
    if (door<pride::RunWorker>(optimizer) != nullptr) {
      return begin(*optimizer, to, grads);
    }
    auto* const ranks = door<pride::Optimizer>(optimizer);
    if (ranks == nullptr) refuse_step();
    if (grads == nullptr) return ranks->begin_step(to);
    ranks->begin_step(to, grads_of(*optimizer, grads));
  });
}

int pride_optimizer_ready(pride_optimizer* optimizer, uint64_t tensor, int32_t unused) {
  return guarded([&] {
    std::optional<pride::ConstTensor> grad;
    if (unused) grad.emplace();
    if (gathering(optimizer) != nullptr) return ready(*optimizer, tensor, grad);
    plain(optimizer, "gradient_ready").gradient_ready(tensor, grad);
  });
}

int pride_optimizer_ready_at(pride_optimizer* optimizer, uint64_t tensor, const pride_array* grad) {
  return guarded([&] {
    const bool gathers = gathering(optimizer) != nullptr;
    const pride::ConstTensor here = gradient_of(*optimizer, given(grad, "grad"));
    if (gathers) return ready(*optimizer, tensor, here);
    plain(optimizer, "gradient_ready").gradient_ready(tensor, here);
  });
}

int pride_optimizer_take_released(pride_optimizer* optimizer, uint64_t* tensors, uint64_t n,
                                  uint64_t* found) {
  return guarded([&] {
    pride::Replica& replica = unlocked(optimizer);
    const std::size_t all = replica.layout().tensors().size();
    PRIDE_CHECK(n >= all, "take_released: room for ", n, " tensors, the layout has ", all);
    std::vector<std::size_t> released;
    if (auto* const ranks = dynamic_cast<pride::Optimizer*>(&replica)) {
      released = ranks->take_released();
    }
    given(found, "found") = released.size();
    if (!released.empty()) std::ranges::copy(released, &given(tensors, "tensors"));
  });
}

int pride_optimizer_finish(pride_optimizer* optimizer, int64_t timeout_ms, pride_report* report) {
  bool pending = false;
  const int status = guarded([&] {
    auto& finishing = given(optimizer, "optimizer").finishing;
    check_report(report);
    if (!finishing.valid() && timeout_ms < 0) {
      return write(finish(*optimizer), *optimizer, report);
    }
    if (!finishing.valid()) {
      optimizer->steps_done = optimizer->replica->steps_done();
      finishing = std::async(std::launch::async, [optimizer] { return finish(*optimizer); });
    }
    const std::chrono::milliseconds wait(std::min(timeout_ms, kLongestWaitMs));
    pending = timeout_ms >= 0 && finishing.wait_for(wait) != std::future_status::ready;
    if (!pending) write(finishing.get(), *optimizer, report);
  });
  return pending ? static_cast<int>(PRIDE_PENDING) : status;
}

// --- Virtual workers. ----------------------------------------------------------------------------

int pride_optimizer_to_worker(const pride_optimizer* optimizer, int32_t worker,
                              const pride_array* params) {
  return guarded(
      [&] { workers_of(optimizer, "to_worker").to_worker(worker, params_of(*optimizer, params)); });
}

int pride_optimizer_hand_over(pride_optimizer* optimizer, int32_t worker, const pride_array* params,
                              const pride_array* grads, uint64_t n) {
  return guarded([&] {
    pride::VirtualWorkers& all = workers_of(optimizer, "hand_over");
    PRIDE_CHECK(n == 0 || grads != nullptr, "grads: ", n, " gradients at NULL");
    std::vector<pride::ConstTensor> given;
    for (uint64_t i = 0; i < n; ++i) given.push_back(gradient_of(*optimizer, grads[i]));
    all.hand_over(worker, params_of(*optimizer, params),
                  std::span<const pride::ConstTensor>(given));
  });
}

int pride_optimizer_step_workers(pride_optimizer* optimizer, const pride_array* params,
                                 pride_report* report) {
  return guarded([&] {
    pride::VirtualWorkers& all = workers_of(optimizer, "step_workers");
    check_report(report);
    write(all.step(params_of(*optimizer, params)), *optimizer, report);
  });
}

int pride_optimizer_save_worker(const pride_optimizer* optimizer, int32_t worker,
                                pride_state** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    *out = new pride_state{workers_of(optimizer, "save").save(worker)};
  });
}

// --- Results of other ranks. ---------------------------------------------------------------------

int pride_optimizer_follow(pride_optimizer* optimizer, const pride_layout* layout, int32_t* part) {
  return guarded([&] {
    given(part, "part") = -1;
    auto made = std::make_unique<pride::ResultFollower>(plain(optimizer, "follow"),
                                                        given(layout, "layout").layout);
    if (!made->suffices()) return;
    *part = static_cast<std::int32_t>(optimizer->followers.size());
    optimizer->followers.push_back(std::move(made));
  });
}

int pride_optimizer_results(const pride_optimizer* optimizer, const void** data, uint64_t* n) {
  return guarded([&] {
    const auto results = plain(optimizer, "results").results();
    given(data, "data") = results.data();
    given(n, "n") = results.size();
  });
}

int pride_optimizer_result_bytes(const pride_optimizer* optimizer, int32_t part, uint64_t* n) {
  return guarded([&] { given(n, "n") = follower_of(optimizer, part, "result_bytes").bytes(); });
}

int pride_optimizer_apply_results(pride_optimizer* optimizer, int32_t part,
                                  const pride_array* params, uint64_t n, const uint8_t* frozen,
                                  const void* data, uint64_t n_bytes) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || params != nullptr, "params: ", n, " tensors at NULL");
    PRIDE_CHECK(n_bytes == 0 || data != nullptr, "data: ", n_bytes, " bytes at NULL");
    pride::ResultFollower& follower = follower_of(optimizer, part, "apply_results");
    std::vector<pride::Tensor> tensors;
    for (uint64_t i = 0; i < n; ++i) tensors.push_back(tensor_of(*optimizer, params[i], "params"));
    const auto flags = flags_of(frozen, n);
    follower.apply(std::span<const pride::Tensor>(tensors),
                   {flags.get(), frozen == nullptr ? 0 : n},
                   {static_cast<const std::byte*>(data), n_bytes});
  });
}
