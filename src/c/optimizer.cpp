// Optimizers of the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>

#include "c/handles.h"

namespace pride::c {
namespace {

const char* place_of(std::int32_t device) {
  return device == PRIDE_CPU ? "CPU memory" : device == PRIDE_CUDA ? "a GPU's memory" : "?";
}

void check_array(const pride_optimizer& optimizer, const pride_array& array, const char* name) {
  const std::int32_t wanted = optimizer.on_device ? PRIDE_CUDA : PRIDE_CPU;
  PRIDE_CHECK(array.device == wanted || array.data == nullptr, name, " lies in ",
              place_of(array.device), " (device ", array.device, "), the optimizer takes ",
              place_of(wanted), ": copy it there");
  PRIDE_CHECK(array.n == 0 || array.data != nullptr, name, ": ", array.n, " values at NULL");
}

DType dtype_of(const pride_array& array, const char* name) {
  PRIDE_CHECK(array.dtype >= PRIDE_FLOAT32 && array.dtype <= PRIDE_FLOAT16, name, ": dtype ",
              array.dtype, ", must be float32, bfloat16 or float16");
  return static_cast<DType>(array.dtype);
}

Tensor tensor_of(const pride_optimizer& optimizer, const pride_array& array, const char* name) {
  check_array(optimizer, array, name);
  return {array.data, array.n, dtype_of(array, name)};
}

// n flags; NULL: none is set.
std::unique_ptr<bool[]> flags_of(const std::uint8_t* flags, std::size_t n) {
  auto out = std::make_unique<bool[]>(n);
  for (std::size_t i = 0; flags != nullptr && i < n; ++i) out[i] = flags[i] != 0;
  return out;
}

// The caller's flat buffer; NULL: the tensors of pride_optimizer_set_parameters().
Parameters params_of(const pride_optimizer& optimizer, const pride_array* array) {
  if (array == nullptr) {
    PRIDE_CHECK(!optimizer.params.empty(), "params is NULL");
    return std::span<const Tensor>(optimizer.params);
  }
  check_array(optimizer, *array, "params");
  PRIDE_CHECK(
      dtype_of(*array, "params") == DType::kFloat32, "params: dtype ", array->dtype,
      ", a flat buffer must be float32; for other dtypes use pride_optimizer_set_parameters()");
  return std::span(static_cast<float*>(array->data), array->n);
}

Gradients grads_of(const pride_optimizer& optimizer, const pride_array* array) {
  check_array(optimizer, given(array, "grads"), "grads");
  switch (dtype_of(*array, "grads")) {
    case DType::kBFloat16:
      return std::span(static_cast<const BFloat16*>(array->data), array->n);
    case DType::kFloat16:
      return std::span(static_cast<const Float16*>(array->data), array->n);
    case DType::kFloat32:
      break;
  }
  return std::span(static_cast<const float*>(array->data), array->n);
}

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

void add_tensors(pride_optimizer* optimizer, std::vector<TensorSpec> tensors,
                 const pride_group* groups, std::uint64_t n_groups) {
  Optimizer& all = idle(optimizer);
  PRIDE_CHECK(n_groups == 0 || groups != nullptr, n_groups, " groups at NULL");
  std::vector<ParamGroup> more;
  for (std::uint64_t g = 0; g < n_groups; ++g) more.push_back(group_of(groups[g]));
  all.add(std::move(tensors), std::move(more));
  optimizer->buffers.clear();
  optimizer->params.clear();
}

}  // namespace

Optimizer& idle(const pride_optimizer* handle) {
  const pride_optimizer& optimizer = given(handle, "optimizer");
  PRIDE_CHECK(!optimizer.finishing.valid(), "optimizer: a step is being finished");
  return *optimizer.optimizer;
}

}  // namespace pride::c

using namespace pride::c;

int pride_optimizer_check_memory(const pride_layout* layout, const pride_options* options,
                                 uint64_t master_bytes) {
  return guarded([&] {
    pride::check_device_memory(given(layout, "layout").layout,
                               options_of(given(options, "options"), 1), master_bytes);
  });
}

int pride_optimizer_create(pride_comm* comm, const pride_layout* layout,
                           const pride_options* options, pride_optimizer** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    pride::Communicator& world = *given(comm, "comm").comm;
    auto made = std::make_unique<pride::Optimizer>(
        world, given(layout, "layout").layout, options_of(given(options, "options"), world.size()));
    *out = new pride_optimizer{.comm = &world, .optimizer = std::move(made)};
    (*out)->on_device = options->struct_size > offsetof(pride_options, device) && options->device;
  });
}

void pride_optimizer_destroy(pride_optimizer* optimizer) {
  if (optimizer == nullptr) return;
  if (optimizer->finishing.valid()) {
    optimizer->comm->fail("the optimizer was destroyed in the middle of a step");
    if (optimizer->coordinator) optimizer->coordinator->interrupt();
    optimizer->finishing.wait();
  }
  delete optimizer;
}

int pride_optimizer_set_parameters(pride_optimizer* optimizer, const pride_array* params,
                                   uint64_t n) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    const auto& tensors = all.layout().tensors();
    PRIDE_CHECK(n == tensors.size() && params != nullptr, "params: ", n,
                " tensors given, the layout has ", tensors.size());
    std::vector<pride::Tensor> given;
    for (uint64_t i = 0; i < n; ++i) {
      given.push_back(tensor_of(*optimizer, params[i], tensors[i].spec.name.c_str()));
    }
    all.place(std::span<const pride::Tensor>(given));
    optimizer->params = std::move(given);
  });
}

int pride_optimizer_set_frozen(pride_optimizer* optimizer, const uint8_t* frozen) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    const std::size_t n = frozen == nullptr ? 0 : all.layout().tensors().size();
    all.set_frozen({flags_of(frozen, n).get(), n});
  });
}

int pride_optimizer_set_gradient_factor(pride_optimizer* optimizer, float factor) {
  return guarded([&] { idle(optimizer).set_gradient_factor(factor); });
}

int pride_optimizer_scale_next_step(pride_optimizer* optimizer, const pride_array* factor) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    if (factor == nullptr) return all.scale_next_step(nullptr);
    check_array(*optimizer, *factor, "factor");
    PRIDE_CHECK(factor->n == 1 && factor->dtype == PRIDE_FLOAT32, "factor: ", factor->n,
                " values of dtype ", factor->dtype, ", must be one float32");
    all.scale_next_step(static_cast<const float*>(factor->data));
  });
}

int pride_optimizer_set_stream(pride_optimizer* optimizer, void* stream) {
  return guarded([&] { idle(optimizer).set_stream(stream); });
}

int pride_optimizer_hash(pride_optimizer* optimizer, uint64_t* out) {
  return guarded([&] { given(out, "out") = idle(optimizer).hash(params_of(*optimizer, nullptr)); });
}

int pride_optimizer_read(const pride_optimizer* optimizer, uint64_t tensor, uint64_t begin,
                         uint64_t n, float* values) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || values != nullptr, n, " values at NULL");
    idle(optimizer).read(tensor, begin, std::span(values, n));
  });
}

int pride_optimizer_step(pride_optimizer* optimizer, const pride_array* params,
                         const pride_array* grads, const uint8_t* unused, pride_report* report) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    check_report(report);
    const std::size_t n = all.layout().tensors().size();
    const auto flags = flags_of(unused, n);
    write(all.step(params_of(*optimizer, params), grads_of(*optimizer, grads), {flags.get(), n}),
          *optimizer, report);
  });
}

int pride_optimizer_begin(pride_optimizer* optimizer, const pride_array* params,
                          const pride_array* grads) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    if (grads == nullptr) return all.begin_step(params_of(*optimizer, params));
    all.begin_step(params_of(*optimizer, params), grads_of(*optimizer, grads));
  });
}

int pride_optimizer_ready(pride_optimizer* optimizer, uint64_t tensor, int32_t unused) {
  return guarded([&] { idle(optimizer).gradient_ready(tensor, unused != 0); });
}

int pride_optimizer_ready_at(pride_optimizer* optimizer, uint64_t tensor, const pride_array* grad) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    check_array(*optimizer, given(grad, "grad"), "grad");
    all.gradient_ready(tensor, pride::ConstTensor(grad->data, grad->n, dtype_of(*grad, "grad")));
  });
}

int pride_optimizer_take_released(pride_optimizer* optimizer, uint64_t* tensors, uint64_t n,
                                  uint64_t* found) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    PRIDE_CHECK(n >= all.layout().tensors().size(), "take_released: room for ", n,
                " tensors, the layout has ", all.layout().tensors().size());
    const std::vector<std::size_t> released = all.take_released();
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
      return write(optimizer->optimizer->finish_step(), *optimizer, report);
    }
    if (!finishing.valid()) {
      optimizer->steps_done = optimizer->optimizer->steps_done();
      finishing = std::async(std::launch::async,
                             [all = optimizer->optimizer.get()] { return all->finish_step(); });
    }
    const std::chrono::milliseconds wait(std::min(timeout_ms, kLongestWaitMs));
    pending = timeout_ms >= 0 && finishing.wait_for(wait) != std::future_status::ready;
    if (!pending) write(finishing.get(), *optimizer, report);
  });
  return pending ? static_cast<int>(PRIDE_PENDING) : status;
}

int pride_optimizer_to_worker(const pride_optimizer* optimizer, int32_t worker,
                              const pride_array* params) {
  return guarded([&] { idle(optimizer).to_worker(worker, params_of(*optimizer, params)); });
}

int pride_optimizer_hand_over(pride_optimizer* optimizer, int32_t worker, const pride_array* params,
                              const pride_array* grads, uint64_t n) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    PRIDE_CHECK(n == 0 || grads != nullptr, "grads: ", n, " gradients at NULL");
    std::vector<pride::ConstTensor> given;
    for (uint64_t i = 0; i < n; ++i) {
      const pride_array& g = grads[i];
      if (g.data != nullptr) check_array(*optimizer, g, "grads");
      given.emplace_back(g.data, g.n, g.data == nullptr ? pride::DType{} : dtype_of(g, "grads"));
    }
    all.hand_over(worker, params_of(*optimizer, params),
                  std::span<const pride::ConstTensor>(given));
  });
}

int pride_optimizer_step_workers(pride_optimizer* optimizer, const pride_array* params,
                                 pride_report* report) {
  return guarded([&] {
    pride::Optimizer& all = idle(optimizer);
    check_report(report);
    write(all.step_workers(params_of(*optimizer, params)), *optimizer, report);
  });
}

int pride_optimizer_routes(const pride_optimizer* optimizer, const char** text) {
  thread_local std::string routes;
  return guarded([&] {
    given(text, "text") = "";
    routes.clear();
    for (const auto& [name, n] : idle(optimizer).routes()) {
      routes += pride::concat(routes.empty() ? "" : ", ", name, " (", n,
                              n == 1 ? " bucket)" : " buckets)");
    }
    *text = routes.c_str();
  });
}

const char* pride_optimizer_note(const pride_optimizer* optimizer) {
  return optimizer ? optimizer->note.c_str() : "";
}

int pride_optimizer_follow(pride_optimizer* optimizer, const pride_layout* layout, int32_t* part) {
  return guarded([&] {
    given(part, "part") = -1;
    *part = idle(optimizer).follow(given(layout, "layout").layout).value_or(-1);
  });
}

int pride_optimizer_results(const pride_optimizer* optimizer, const void** data, uint64_t* n) {
  return guarded([&] {
    const auto results = idle(optimizer).results();
    given(data, "data") = results.data();
    given(n, "n") = results.size();
  });
}

int pride_optimizer_result_bytes(const pride_optimizer* optimizer, int32_t part, uint64_t* n) {
  return guarded([&] { given(n, "n") = idle(optimizer).result_bytes(part); });
}

int pride_optimizer_apply_results(pride_optimizer* optimizer, int32_t part,
                                  const pride_array* params, uint64_t n, const uint8_t* frozen,
                                  const void* data, uint64_t n_bytes) {
  return guarded([&] {
    PRIDE_CHECK(n == 0 || params != nullptr, "params: ", n, " tensors at NULL");
    PRIDE_CHECK(n_bytes == 0 || data != nullptr, "data: ", n_bytes, " bytes at NULL");
    std::vector<pride::Tensor> tensors;
    for (uint64_t i = 0; i < n; ++i) tensors.push_back(tensor_of(*optimizer, params[i], "params"));
    const auto flags = flags_of(frozen, n);
    idle(optimizer).apply_results(part, std::span<const pride::Tensor>(tensors),
                                  {flags.get(), frozen == nullptr ? 0 : n},
                                  {static_cast<const std::byte*>(data), n_bytes});
  });
}

int pride_optimizer_set_group(pride_optimizer* optimizer, int32_t group,
                              const pride_group* values) {
  return guarded([&] { idle(optimizer).set_group(group_of(given(values, "values")), group); });
}

int pride_optimizer_get_group(const pride_optimizer* optimizer, int32_t group,
                              pride_group* values) {
  return guarded([&] {
    given(values, "values") = group_of(given(optimizer, "optimizer").optimizer->group(group));
  });
}

int pride_optimizer_add(pride_optimizer* optimizer, const pride_tensor* tensors, uint64_t n,
                        const pride_group* groups, uint64_t n_groups) {
  return pride_optimizer_add_part(optimizer, tensors, nullptr, n, groups, n_groups);
}

int pride_optimizer_add_part(pride_optimizer* optimizer, const pride_tensor* tensors,
                             const uint64_t* first_coords, uint64_t n, const pride_group* groups,
                             uint64_t n_groups) {
  return guarded(
      [&] { add_tensors(optimizer, specs_of(tensors, first_coords, n), groups, n_groups); });
}

int pride_optimizer_add_layout(pride_optimizer* optimizer, const pride_layout* layout,
                               const pride_group* groups, uint64_t n_groups) {
  return guarded(
      [&] { add_tensors(optimizer, specs_of(given(layout, "layout").layout), groups, n_groups); });
}

int pride_optimizer_broadcast(pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] { idle(optimizer).broadcast(params_of(*optimizer, params)); });
}

int pride_optimizer_to_common(const pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] { idle(optimizer).to_common(params_of(*optimizer, params)); });
}

int pride_optimizer_to_local(const pride_optimizer* optimizer, const pride_array* params) {
  return guarded([&] { idle(optimizer).to_local(params_of(*optimizer, params)); });
}

int64_t pride_optimizer_period(const pride_optimizer* optimizer) {
  return optimizer == nullptr ? -1 : optimizer->optimizer->period();
}

int64_t pride_optimizer_steps_done(const pride_optimizer* optimizer) {
  if (optimizer == nullptr) return -1;
  return optimizer->finishing.valid() ? optimizer->steps_done : optimizer->optimizer->steps_done();
}
